"""Provide the base of messages that their user acknowledges or gives back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from cometmq.client.consuming.listeners.consume_hooks import (
    EXCEPTION,
    FAILED,
    SUCCESS,
    ConsumeHooks,
)
from cometmq.client.faces import BLOCKING_WITH, refuses
from cometmq.client.hooks import ConsumeContext
from cometmq.errors import ClientStateError
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue

ACKNOWLEDGED: Final = "acknowledged"
GIVEN_BACK: Final = "given back"
DEAD_LETTER: Final = "made a dead letter"


class AcknowledgedMessage(MessageExt):
    """Holds a message that its user acknowledges or gives back, once.

    async with message:        # acknowledges it, or gives it back if the block raises
        handle(message.body)
    """

    __slots__ = ("_context", "_hooks", "_open", "_settled", "_when_settled")

    # How it was settled: ACKNOWLEDGED, GIVEN_BACK, DEAD_LETTER, or "" before that.
    _settled: str
    # Missing once the message is settled. If several threads settle it at once, only one can delete this.
    _open: bool
    # None in a consumer without hooks.
    _hooks: ConsumeHooks | None
    # None except while the block runs.
    _context: ConsumeContext | None
    _when_settled: Callable[[bool], None] | None

    def _begin(self) -> None:
        """Set what this class adds to a message."""
        self._settled = ""
        self._open = True
        self._hooks = self._context = self._when_settled = None

    @abstractmethod
    async def ack(self) -> None: ...

    @abstractmethod
    async def _give_back(self, error: BaseException | None) -> None:
        """Give the message back because of `error`, with the delay that nobody chose."""

    @property
    def is_settled(self) -> bool:
        return not hasattr(self, "_open")

    def when_settled(self, call: Callable[[bool], None]) -> None:
        """Have `call` called once: with True if the message was acknowledged, with False if it was given back.

        It is not called for a message that comes again because its time passes.
        """
        self._when_settled = call

    def _report(self, *, success: bool) -> None:
        call, self._when_settled = self._when_settled, None
        if call is not None:
            call(success)

    def watch(self, hooks: ConsumeHooks) -> None:
        """Have `hooks` see the block that handles the message."""
        self._hooks = hooks

    def enter_block(self) -> None:
        """Have the hooks see that the block begins. For the thread or task that runs it."""
        if self._hooks is not None:
            queue = MessageQueue(self.topic, self.broker_name, self.queue_id)
            self._context = self._hooks.before(queue, [self], received=True)

    def leave_block(self, error: BaseException | None) -> None:
        """Have the hooks see that the block ended, with `error`. For the same thread or task."""
        if self._hooks is None or self._context is None:
            return
        status = SUCCESS
        if error is not None:
            status = EXCEPTION
        elif self._settled in (GIVEN_BACK, DEAD_LETTER):
            status = FAILED
        self._hooks.ended(self._context, status)
        self._context = None

    async def settle(self, error: BaseException | None) -> None:
        """Acknowledge the message after its block, or give it back if the block raised `error`.

        Does nothing if the block did either. A message whose block was cancelled comes again later.
        """
        if self.is_settled:
            return
        if error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self._give_back(error)

    async def __aenter__(self) -> Self:
        self.enter_block()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave_block(exc)
        await self.settle(exc)

    if not TYPE_CHECKING:
        __enter__ = __exit__ = refuses("with", BLOCKING_WITH)

    def _settle_as(self, how: str) -> None:
        try:
            del self._open
        except AttributeError:
            self._check_open(how)
            raise AssertionError("settled without a word") from None
        self._settled = how

    def _reopen(self) -> None:
        """Take back what `_settle_as` did."""
        self._settled = ""
        self._open = True

    def _check_open(self, how: str) -> None:
        if self.is_settled:
            raise ClientStateError(
                f"message {self.msg_id} of {self.topic} was {self._settled or 'settled'}; it cannot be {how} any more"
            )
