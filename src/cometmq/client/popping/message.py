"""Provide the message that a simple consumer receives and its user acknowledges or gives back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, Self

from cometmq.client.acknowledged import (
    ACKNOWLEDGED,
    DEAD_LETTER,
    GIVEN_BACK,
    AcknowledgedMessage,
)
from cometmq.client.limits import check_range
from cometmq.client.popping.received import Receipt
from cometmq.model.durations import Duration, milliseconds
from cometmq.model.message import MessageExt

# Java's brokers accept a day at most.
MOST_INVISIBLE_MS: Final = 24 * 3600 * 1000


class Acknowledging(Protocol):
    """Reports to brokers how messages were settled; see `Acknowledgements`."""

    async def ack(self, receipt: Receipt) -> None: ...

    async def hide(self, receipt: Receipt, invisible_ms: int) -> bool: ...

    async def dead_letter(
        self, message: MessageExt, receipt: Receipt, reason: str | BaseException
    ) -> None: ...


class ReceivedMessage(AcknowledgedMessage):
    """Holds a message that other members of the group do not see until it is acknowledged, or its time is over.

        message = (await consumer.receive())[0]
        async with message:        # acknowledges it, or gives it back if the block raises
            handle(message.body)

    `ack`, `nack`, `dead_letter` and `extend` raise RemotingError if the broker does not answer, RemoteError if it refuses,
    and ClientStateError if the message was acknowledged, given back or made a dead letter before.
    `reconsume_times` says how often the message was delivered before, to any member.
    """

    __slots__ = ("_acknowledging", "_extension", "_receipt")

    _acknowledging: Callable[[], Acknowledging]
    _receipt: Receipt
    # Done when the running call of `extend` ends. It changes the handle, and brokers no longer accept the old one.
    _extension: asyncio.Future[None] | None

    @classmethod
    def of(
        cls, message: MessageExt, receipt: Receipt, acknowledging: Callable[[], Acknowledging]
    ) -> Self:
        """Return a received message with the content of `message`, whose properties it takes over."""
        received = object.__new__(cls)
        message.copy_to(received)
        received._acknowledging = acknowledging
        received._receipt = receipt
        received._extension = None
        received._begin()
        return received

    async def ack(self) -> None:
        """Say that the message is done: nobody receives it again."""
        self._settle_as(ACKNOWLEDGED)
        try:
            await self._extended()
            await self._acknowledging().ack(self._receipt)
        except BaseException:
            self._reopen()
            raise
        self._report(success=True)

    async def nack(self, delay_ms: Duration = 0) -> None:
        """Give the message back: the group receives it again after `delay_ms`, at once by default.

        After the last of the group's deliveries (`retryMaxTimes`) it becomes a dead letter instead.
        """
        delay_ms = milliseconds(delay_ms)
        check_range("delay_ms", delay_ms, 0, MOST_INVISIBLE_MS)
        self._settle_as(GIVEN_BACK)
        try:
            await self._extended()
            # Brokers do not accept a time of 0.
            await self._acknowledging().hide(self._receipt, max(delay_ms, 1))
        except BaseException:
            self._reopen()
            raise
        self._report(success=False)

    async def dead_letter(self, reason: str | BaseException = "rejected") -> None:
        """Make the message a dead letter of the group at once, because no further delivery can succeed.

        `reason` becomes its failure (`MessageExt.failure`). A text, cut to 128 bytes, becomes the failure's type; an
        exception gives both its type and its text.
        """
        self._settle_as(DEAD_LETTER)
        try:
            await self._extended()
            await self._acknowledging().dead_letter(self, self._receipt, reason)
        except BaseException:
            self._reopen()
            raise
        self._report(success=False)

    async def extend(self, invisible_ms: Duration) -> None:
        """Hide the message for `invisible_ms` from now on, because its work takes longer."""
        invisible_ms = milliseconds(invisible_ms)
        check_range("invisible_ms", invisible_ms, 1, MOST_INVISIBLE_MS)
        await self._extended()
        self._check_open("extended")
        extension = self._extension = asyncio.get_running_loop().create_future()
        try:
            await self._acknowledging().hide(self._receipt, invisible_ms)
        finally:
            self._extension = None
            extension.set_result(None)

    async def _extended(self) -> None:
        """Wait until no call of `extend` is under way."""
        while self._extension is not None:
            await asyncio.wait((self._extension,))

    async def _give_back(self, _error: BaseException | None) -> None:
        await self.nack()
