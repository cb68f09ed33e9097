"""Define the hooks that users register with a client (Java: org.apache.rocketmq.client.hook).

Each kind of hook is a class; methods that are not abstract may be left out. Hooks run where the
work is done: hooks of sending on the producer's loop, ConsumeMessageHook in the thread or task of
the listener, FilterMessageHook on the consumer's loop. They must not block a loop. An exception of
a hook is logged and changes nothing, except that a CheckForbiddenHook forbids a send by raising,
and that the exception of an RpcHook fails the call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from cometmq.errors import CometMQError, IllegalArgumentError, SendForbiddenError
from cometmq.logs.loggers import get_logger
from cometmq.model.message import Message, MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import LocalTransactionState, SendResult
from cometmq.remoting.hooks import RpcHook

log = get_logger(__name__)


class CommunicationMode(Enum):
    SYNC = "SYNC"
    ASYNC = "ASYNC"
    ONEWAY = "ONEWAY"


@dataclass(slots=True)
class SendContext:
    """Describes one attempt to send.

    `messages` has several messages only for a batch. `queue` has the topic's name as users know it.
    `attempt` counts the attempts of one send from 1. After the attempt `result` or `error` is set; a
    one-way send has no result. Hooks may keep values of their own in `state`, under any key, from
    `before_send` to `after_send`.
    """

    group: str
    messages: Sequence[Message]
    queue: MessageQueue
    address: str
    mode: CommunicationMode
    body_length: int
    namespace: str = ""
    half: bool = False
    attempt: int = 1
    result: SendResult | None = None
    error: BaseException | None = None
    state: dict[Any, Any] = field(default_factory=dict)

    @property
    def message(self) -> Message:
        return self.messages[0]


@dataclass(slots=True)
class EndTransactionContext:
    """Describes a verdict on a transaction that a producer sends to a broker.

    `from_check` is True when the broker had asked for the verdict.
    """

    group: str
    message: Message
    msg_id: str
    transaction_id: str | None
    address: str
    state: LocalTransactionState
    from_check: bool


@dataclass(slots=True)
class ConsumeContext:
    """Describes one call of a listener, one poll, or one block that handles a received message.

    After the call `success` is set, and `status` is one of SUCCESS, FAILED, TIME_OUT, EXCEPTION and
    RETURNNULL. `queue` is the queue that the messages were pulled from (of the retry topic for a
    retried message), with the topic's name as users know it. `polled` says that no listener was
    called: a poll returned the messages, which count as consumed at once. `received` says that the
    context is that of a block `with message:`; another context came before it, for the poll that returned
    the message. Hooks may keep values of their own in `state`, under any key, from `before_consume` to
    `after_consume`.
    """

    group: str
    messages: Sequence[MessageExt]
    queue: MessageQueue
    namespace: str = ""
    success: bool = False
    status: str = ""
    polled: bool = False
    received: bool = False
    state: dict[Any, Any] = field(default_factory=dict)


@dataclass(slots=True)
class FilterContext:
    """Holds messages that were just pulled.

    This consumer never consumes a message that a hook removes from the list `messages`.
    """

    group: str
    messages: list[MessageExt]
    queue: MessageQueue


class SendMessageHook(ABC):  # noqa: B024 - each of its methods may be left out
    """Is called before and after every attempt to send."""

    def before_send(self, context: SendContext) -> None:  # noqa: B027 - each of them may be left out
        """See an attempt before it is made. Properties that the hook adds to the messages, such as a
        trace's id, are sent with them, except those of a batch that would outgrow
        `max_message_size_bytes`.
        """

    def after_send(self, context: SendContext) -> None:  # noqa: B027 - each of them may be left out
        """See an attempt after it ended."""


class CheckForbiddenHook(ABC):
    """Is asked before every attempt to send, and forbids the attempt by raising.

    The exception reaches the caller: a CometMQError as it is, any other as the cause of a
    SendForbiddenError. A verdict may concern only one broker, so `send` tries the next broker after
    a SendForbiddenError, as after a failure.
    """

    @abstractmethod
    def check_forbidden(self, context: SendContext) -> None: ...


class EndTransactionHook(ABC):
    """Is called with every verdict on a transaction before the producer sends it."""

    @abstractmethod
    def end_transaction(self, context: EndTransactionContext) -> None: ...


class ConsumeMessageHook(ABC):  # noqa: B024 - each of its methods may be left out
    """Is called before and after every call of a listener, for polls that return messages, and
    around blocks `with message:`.
    """

    def before_consume(self, context: ConsumeContext) -> None:  # noqa: B027 - each of them may be left out
        """See the messages before the listener is called."""

    def after_consume(self, context: ConsumeContext) -> None:  # noqa: B027 - each of them may be left out
        """See the outcome after the listener has returned or raised."""


class FilterMessageHook(ABC):
    """Removes from pulled messages those that this consumer shall not see."""

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
    """Holds the hooks of one client, by kind, in the order in which they were added."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = (*kinds, RpcHook)
        self.send: list[SendMessageHook] = []
        self.forbidden: list[CheckForbiddenHook] = []
        self.end_transaction: list[EndTransactionHook] = []
        self.consume: list[ConsumeMessageHook] = []
        self.filter: list[FilterMessageHook] = []
        self.rpc: list[RpcHook] = []
        # True when a send has to make a SendContext, which costs time.
        self.around_sends = False

    def add(self, hook: Hook) -> None:
        """Add a hook. Raises IllegalArgumentError if it is of no kind that this client calls."""
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
        """Call the hooks before an attempt. Raises what a CheckForbiddenHook raised; see there."""
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
    """Call each method. If one raises, log its exception and go on with the next."""
    for method in methods:
        try:
            method(context)
        except Exception as error:
            # A hook is the user's code; its failure must not end the client's work.
            log.warning("a hook failed", hook=repr(method), exc_info=error)
