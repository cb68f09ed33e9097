"""Hooks that users register with a client (Java: org.apache.rocketmq.client.hook).

Each is a class with methods that may be left out. They run where the work is done: those of sending
on the producer's loop, those of consuming in the thread or task of the listener. They must not block
a loop. What they raise is logged and changes nothing, but for CheckForbiddenHook, whose exception is
its verdict, and RpcHook, whose exception fails the call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import structlog

from cometmq.errors import CometMQError, IllegalArgumentError, SendForbiddenError
from cometmq.model.message import Message, MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import LocalTransactionState, SendResult
from cometmq.remoting.hooks import RpcHook

log = structlog.get_logger(__name__)


class CommunicationMode(Enum):
    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


@dataclass(slots=True)
class SendContext:
    """One attempt to send. `messages` has several only for a batch; `queue` has the user's topic
    name. `result` or `error` is set afterwards, neither of them after a one-way send. `state` is the
    hook's own, from one method to the other, by whatever key it likes.
    """

    group: str
    messages: Sequence[Message]
    queue: MessageQueue
    address: str
    mode: CommunicationMode
    body_length: int
    namespace: str = ""
    half: bool = False
    result: SendResult | None = None
    error: BaseException | None = None
    state: dict[Any, Any] = field(default_factory=dict)

    @property
    def message(self) -> Message:
        return self.messages[0]


@dataclass(slots=True)
class EndTransactionContext:
    """What a producer tells a broker of a transaction. `from_check`: because it was asked."""

    group: str
    message: Message
    msg_id: str
    transaction_id: str | None
    address: str
    state: LocalTransactionState
    from_check: bool


@dataclass(slots=True)
class ConsumeContext:
    """One call of a listener. Set afterwards: `success`, and `status`, one of SUCCESS, FAILED,
    TIME_OUT, EXCEPTION and RETURNNULL. `queue` is where the messages were pulled from (for a retried
    message the retry topic), by the user's names. `state` is the hook's own.
    """

    group: str
    messages: Sequence[MessageExt]
    queue: MessageQueue
    namespace: str = ""
    success: bool = False
    status: str = ""
    state: dict[Any, Any] = field(default_factory=dict)


@dataclass(slots=True)
class FilterContext:
    """Messages just pulled. What a hook takes out of the list `messages` is never consumed here."""

    group: str
    messages: list[MessageExt]
    queue: MessageQueue


class SendMessageHook(ABC):  # noqa: B024 - each of its methods may be left out
    """Around every attempt to send a message."""

    def before_send(self, context: SendContext) -> None:  # noqa: B027 - each of them may be left out
        """May add properties to a single message, which are then sent (a trace's id, say)."""

    def after_send(self, context: SendContext) -> None:  # noqa: B027 - each of them may be left out
        """The attempt ended."""


class CheckForbiddenHook(ABC):
    """Asked before every attempt; forbids it by raising.

    What it raises reaches the caller: a CometMQError as it is, anything else as the cause of a
    SendForbiddenError. Since it may concern only one broker, a `send` goes on to the next one, as
    after a failure.
    """

    @abstractmethod
    def check_forbidden(self, context: SendContext) -> None: ...


class EndTransactionHook(ABC):
    """Told of every verdict on a transaction before it is sent."""

    @abstractmethod
    def end_transaction(self, context: EndTransactionContext) -> None: ...


class ConsumeMessageHook(ABC):  # noqa: B024 - each of its methods may be left out
    """Around every call of a listener, and every non-empty poll."""

    def before_consume(self, context: ConsumeContext) -> None:  # noqa: B027 - each of them may be left out
        """The listener is about to be called."""

    def after_consume(self, context: ConsumeContext) -> None:  # noqa: B027 - each of them may be left out
        """The listener has returned or raised."""


class FilterMessageHook(ABC):
    """Takes out of what was pulled what this consumer shall not see."""

    @abstractmethod
    def filter_messages(self, context: FilterContext) -> None: ...


Hook = (
    SendMessageHook
    | CheckForbiddenHook
    | EndTransactionHook
    | ConsumeMessageHook
    | FilterMessageHook
    | RpcHook
)
ContextT = TypeVar("ContextT")


class HookList:
    """The hooks of one client, by kind, in the order in which they were added."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = (*kinds, RpcHook)
        self.send: list[SendMessageHook] = []
        self.forbidden: list[CheckForbiddenHook] = []
        self.end_transaction: list[EndTransactionHook] = []
        self.consume: list[ConsumeMessageHook] = []
        self.filter: list[FilterMessageHook] = []
        self.rpc: list[RpcHook] = []
        # Whether a send has to make a context.
        self.around_sends = False

    def add(self, hook: Hook) -> None:
        """Raises IllegalArgumentError for what is no hook of a kind that this client calls."""
        if not isinstance(hook, self._kinds):
            names = ", ".join(kind.__name__ for kind in self._kinds)
            raise IllegalArgumentError(f"{hook!r} is no hook of this client; it calls {names}")
        for kind, hooks in self._lists():
            if isinstance(hook, kind):
                hooks.append(hook)
        self.around_sends = bool(self.send or self.forbidden)

    def remove(self, hook: Hook) -> None:
        """Forget a hook that was added."""
        for _, hooks in self._lists():
            hooks[:] = [known for known in hooks if known is not hook]
        self.around_sends = bool(self.send or self.forbidden)

    def _lists(self) -> tuple[tuple[type, list[Any]], ...]:
        return (
            (SendMessageHook, self.send),
            (CheckForbiddenHook, self.forbidden),
            (EndTransactionHook, self.end_transaction),
            (ConsumeMessageHook, self.consume),
            (FilterMessageHook, self.filter),
            (RpcHook, self.rpc),
        )

    def before_send(self, context: SendContext) -> None:
        """Raises what a check-forbidden hook raised; see there."""
        for hook in self.forbidden:
            try:
                hook.check_forbidden(context)
            except CometMQError:
                raise
            except Exception as error:
                raise SendForbiddenError(
                    f"{type(hook).__name__} forbids the message to {context.queue}: {error!r}"
                ) from error
        run_hooks([hook.before_send for hook in self.send], context)

    def after_send(self, context: SendContext) -> None:
        run_hooks([hook.after_send for hook in self.send], context)

    def on_end_transaction(self, context: EndTransactionContext) -> None:
        run_hooks([hook.end_transaction for hook in self.end_transaction], context)

    def on_pulled(self, context: FilterContext) -> None:
        run_hooks([hook.filter_messages for hook in self.filter], context)


def run_hooks(methods: Sequence[Callable[[ContextT], None]], context: ContextT) -> None:
    """Call each; what one raises is logged and keeps none from the others."""
    for method in methods:
        try:
            method(context)
        except Exception as error:
            # The user's code, which must not end ours.
            log.warning("a hook failed", hook=repr(method), exc_info=error)
