"""Give messages the user's names and call hooks, on the messages' way to the user.

Java: ConsumeMessageConcurrentlyService.ConsumeRequest, PullAPIWrapper.executeHook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.client.hooks import (
    ConsumeContext,
    ConsumeMessageHook,
    FilterContext,
    HookList,
    run_hooks,
)
from cometmq.client.namespaces import Namespace
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.client.consuming.listeners.listening import ConsumeJob

# Java: ConsumeReturnType.
SUCCESS: Final = "SUCCESS"
TIME_OUT: Final = "TIME_OUT"
EXCEPTION: Final = "EXCEPTION"
RETURNNULL: Final = "RETURNNULL"
FAILED: Final = "FAILED"


class Admission:
    """Gives pulled messages the user's names, and lets filter hooks take some of them out."""

    def __init__(self, hooks: HookList, group: str, namespace: Namespace) -> None:
        self._hooks = hooks
        self._group = group
        self._namespace = namespace

    def __call__(self, queue: MessageQueue, messages: list[MessageExt]) -> list[MessageExt]:
        """Return the messages that filter hooks leave of those just pulled. `queue` is named as on
        the wire.
        """
        if self._namespace:
            for message in messages:
                message.topic = self._namespace.unwrap(message.topic)
        if messages and self._hooks.filter:
            context = FilterContext(self._group, messages, self._namespace.unwrap_queue(queue))
            self._hooks.on_pulled(context)
            return context.messages
        return messages


class ConsumeHooks:
    """Calls the consume hooks of one consumer. Hooks get `group` and topics as users name them.

    A call of the listener that takes longer than `consume_timeout_s` counts as TIME_OUT. For the
    listener's thread or task, except `polled` and `ended`.
    """

    def __init__(
        self, hooks: HookList, group: str, namespace: Namespace, consume_timeout_s: float
    ) -> None:
        self._hooks: list[ConsumeMessageHook] = hooks.consume
        self._group = group
        self._namespace = namespace
        self._consume_timeout_s = consume_timeout_s

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def before(
        self,
        queue: MessageQueue,
        messages: Sequence[MessageExt],
        *,
        polled: bool = False,
        received: bool = False,
    ) -> ConsumeContext:
        """Call the hooks before work on messages; ConsumeContext explains `polled` and `received`."""
        visible = self._namespace.unwrap_queue(queue)
        namespace = self._namespace.name
        context = ConsumeContext(
            self._group, messages, visible, namespace, polled=polled, received=received
        )
        run_hooks([hook.before_consume for hook in self._hooks], context)
        return context

    def after(self, context: ConsumeContext, job: ConsumeJob, seconds: float) -> None:
        """Call the hooks once the listener is done with `job`, and with which outcome."""
        context.status = self._status(job, seconds)
        context.success = job.result is ConsumeResult.SUCCESS
        run_hooks([hook.after_consume for hook in self._hooks], context)

    def ended(self, context: ConsumeContext, status: str) -> None:
        """Call the hooks once work on messages has ended with `status`."""
        context.status, context.success = status, status == SUCCESS
        run_hooks([hook.after_consume for hook in self._hooks], context)

    def polled(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> None:
        """Call the hooks for a poll's messages, which count as consumed at once, as in Java."""
        self.ended(self.before(queue, messages, polled=True), SUCCESS)

    def _status(self, job: ConsumeJob, seconds: float) -> str:
        if not job.answered:
            return EXCEPTION if job.failure is not None else RETURNNULL
        if seconds >= self._consume_timeout_s:
            return TIME_OUT
        return SUCCESS if job.result is ConsumeResult.SUCCESS else FAILED
