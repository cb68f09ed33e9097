"""Provide the message over which a lite pull consumer iterates, and which its user acknowledges or
gives back.
"""

from __future__ import annotations

from typing import Final, Protocol, Self

from cometmq.client.acknowledged import ACKNOWLEDGED, GIVEN_BACK, AcknowledgedMessage
from cometmq.client.limits import check_range
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.model.durations import Duration, milliseconds
from cometmq.model.message import MessageExt

# The longest of the delays that brokers have for messages that come again.
MOST_DELAY_MS: Final = 2 * 3600 * 1000


class Holder(Protocol):
    """Holds the offsets of messages until they are done with; see `LitePullMember`."""

    def acknowledge(self, process_queue: ProcessQueue, message: MessageExt) -> None: ...

    async def give_back(
        self,
        process_queue: ProcessQueue,
        message: MessageExt,
        delay_ms: int | None,
        error: BaseException | None,
    ) -> None: ...


class PulledMessage(AcknowledgedMessage):
    """Holds a message that counts as consumed when it is acknowledged, or was given back.

        async for message in consumer:
            async with message:        # acknowledges it, or gives it back if the block raises
                handle(message.body)

    The consumer commits the offset of the queue's lowest message that is neither acknowledged nor
    given back. After a rebalance the queue has another holder, after a `seek` or a reset another
    position: then `ack` does nothing, and the message comes again.
    """

    __slots__ = ("_holder", "process_queue")

    _holder: Holder
    process_queue: ProcessQueue

    @classmethod
    def of(cls, message: MessageExt, process_queue: ProcessQueue, holder: Holder) -> Self:
        """Return a pulled message with the content of `message`, whose properties it takes over."""
        pulled = object.__new__(cls)
        message.copy_to(pulled)
        pulled._holder = holder
        pulled.process_queue = process_queue
        pulled._begin()
        return pulled

    @property
    def is_withdrawn(self) -> bool:
        """True if this consumer must no longer return the message. For any thread."""
        return self.process_queue.withheld

    async def ack(self) -> None:
        """Say that the message is done. The offset behind it is committed when all before it are done.

        Raises ClientStateError if the message was acknowledged or given back before.
        """
        self.claim()
        self.acknowledge()

    def claim(self) -> None:
        """Count the message as acknowledged, so that nobody settles it again. For any thread.

        Raises ClientStateError if it was settled before. `acknowledge` has to follow.
        """
        self._settle_as(ACKNOWLEDGED)

    def unclaim(self) -> None:
        """Take back `claim`, which nothing can follow."""
        self._reopen()

    def acknowledge(self) -> None:
        """Do the work of `ack` that is left after `claim`. For the loop."""
        self._holder.acknowledge(self.process_queue, self)
        self._report(success=True)

    async def nack(self, delay_ms: Duration | None = None) -> None:
        """Give the message back: the group gets it again later, and it no longer holds its queue's offset.

        It goes to the group's retry topic, and after the last of the group's deliveries
        (`retryMaxTimes`) to the dead letters. Brokers have fixed delays (`messageDelayLevel`, 1 s to 2 h);
        `delay_ms` chooses the next longer one of the default delays. Without it the delay grows with each
        delivery, from 10 s on. With assigned queues, and in broadcasting, there is no retry topic: this
        consumer itself returns the message again after `delay_ms` (default 1 s), and holds the offset.

        Raises ClientStateError if the message was acknowledged or given back before, and CometMQError if
        no broker takes it; it may be given back once more then.
        """
        if delay_ms is not None:
            delay_ms = milliseconds(delay_ms)
            check_range("delay_ms", delay_ms, 0, MOST_DELAY_MS)
        await self._nack(delay_ms, None)

    async def _nack(self, delay_ms: int | None, error: BaseException | None) -> None:
        self._settle_as(GIVEN_BACK)
        try:
            await self._holder.give_back(self.process_queue, self, delay_ms, error)
        except BaseException:
            self._reopen()
            raise
        self._report(success=False)

    async def _give_back(self, error: BaseException | None) -> None:
        await self._nack(None, error)
