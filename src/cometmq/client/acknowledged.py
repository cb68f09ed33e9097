"""Provides the base of messages that their user acknowledges or gives back."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self

from cometmq.errors import ClientStateError
from cometmq.model.message import MessageExt


class AcknowledgedMessage(MessageExt):
    """Holds a message that its user acknowledges or gives back, once.

    async with message:        # acknowledges it, or gives it back if the block raises
        handle(message.body)
    """

    __slots__ = ("_is_done",)

    _is_done: bool

    @abstractmethod
    async def ack(self) -> None: ...

    @abstractmethod
    async def _give_back(self, error: BaseException | None) -> None:
        """Give the message back because of `error`, with the delay that nobody chose."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_done:
            return
        if exc_type is None:
            await self.ack()
        elif issubclass(exc_type, Exception):
            await self._give_back(exc)

    def _end(self, how: str) -> None:
        self._check_open(how)
        self._is_done = True

    def _check_open(self, how: str) -> None:
        if self._is_done:
            raise ClientStateError(
                f"message {self.msg_id} of {self.topic} was acknowledged or given back; it cannot be "
                f"{how} any more"
            )
