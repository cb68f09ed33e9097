"""Hold messages of one queue that were pulled and are not consumed yet (Java: ProcessQueue)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.consumers import ProcessQueueInfo
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock

_MIB = 1024 * 1024
# How many queues a report on failures names, and how many letters of each reason.
_REPORTED_FAILURES: Final = 5
_REPORTED_REASON: Final = 300
# A puller waits for an answer for less time than this.
LAG_KNOWN_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Bounds what one queue holds: while a limit is exceeded, pulling of the queue pauses.

    `span` bounds the distance between the lowest and the highest offset held. Without it the rest
    of the queue could run far ahead of a message that takes long, and so of the committed offset.
    """

    messages: int = 1000
    size_bytes: int = 100 * 1024 * 1024
    span: int = 2000


class Lock(Protocol):
    @property
    def valid(self) -> bool: ...


class ProcessQueue:
    """Holds the offsets and sizes of the messages pulled from one queue and not consumed yet.

    For the loop's thread, except `consumable`, which any thread may read.

    `dropped` says that no listener here may begin further messages of the queue, since the queue
    goes to another member or is begun again. An orderly consumer lets running listeners of a dropped
    queue finish and commits their messages before it releases the queue. It does not commit if the
    queue is `forfeited`: then another member may hold the queue already. `lock` is the broker's
    lock, without which an orderly consumer must not consume. A user who iterates gets no more messages of a
    queue that is `withheld`.
    """

    def __init__(
        self, queue: MessageQueue, lock: Lock | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._now_ms = clock.now_ms
        self.queue = queue
        self.lock = lock
        self.dropped = False
        self.forfeited = False
        self.withheld = False
        self.last_pull_ms = 0
        self.last_pull_s = 0.0
        self.last_consume_ms = 0
        # Sizes by offset, lowest first, since pulls bring offsets in order. A plain dict would walk
        # over the gaps of deleted entries whenever it is asked for its first key.
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self._size_bytes = 0
        self._highest = -1
        self._removed: asyncio.Future[None] | None = None
        # The queue's end in the last answer to a pull, and the offset below which nothing waits; -1 if unknown.
        self._end = -1
        self._done_below = -1

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, offset: int) -> bool:
        return offset in self._sizes

    @property
    def consumable(self) -> bool:
        """True while a listener may get messages of this queue."""
        return not self.dropped and (self.lock is None or self.lock.valid)

    @property
    def size_bytes(self) -> int:
        """The size of the bodies held, in bytes."""
        return self._size_bytes

    @property
    def lowest(self) -> int:
        """The lowest offset held, or 0 if none is held."""
        return next(iter(self._sizes)) if self._sizes else 0

    @property
    def highest(self) -> int:
        """The highest offset held, or 0 if none is held."""
        return self._highest if self._sizes else 0

    @property
    def span(self) -> int:
        """The highest offset held minus the lowest."""
        return self._highest - next(iter(self._sizes)) if self._sizes else 0

    def learn(self, end: int, below: int) -> None:
        """Note two figures of an answer to a pull: the queue's end, and the offset below which nothing waits
        unless it is held.
        """
        self._end = end
        self.last_pull_ms = self._now_ms()
        if not self._sizes:
            self._done_below = below

    def lag(self, now_ms: int) -> int | None:
        """Return the number of offsets that wait to be consumed, None if this client does not know it.

        A queue that is not pulled, because it is paused or its listeners are slow, may have grown since the
        last answer: after LAG_KNOWN_MS the number is only a lower bound, and 0 counts as unknown. For any
        thread.
        """
        end, below = self._end, self._done_below
        if end < 0 or below < 0:
            return None
        lag = max(0, end - below)
        return None if not lag and now_ms - self.last_pull_ms > LAG_KNOWN_MS else lag

    def put(self, messages: Sequence[MessageExt]) -> None:
        sizes = self._sizes
        added = 0
        for message in messages:
            size = len(message.body)
            sizes[message.queue_offset] = size
            added += size
        self._size_bytes += added
        self._highest = max(self._highest, messages[-1].queue_offset)

    def hold(self, offset: int, size: int) -> None:
        """Hold an offset that no listener gets, so that nothing from it on is committed before it
        is removed.
        """
        self._sizes[offset] = size
        self._size_bytes += size
        self._highest = max(self._highest, offset)

    def remove(self, offsets: Iterable[int]) -> int:
        """Forget consumed messages. Return the offset below which all messages are consumed, or -1
        if the queue never held one.
        """
        if self._highest < 0:
            return -1
        sizes = self._sizes
        self.last_consume_ms = self._now_ms()
        for offset in offsets:
            self._size_bytes -= sizes.pop(offset, 0)
        if self._removed is not None and not self._removed.done():
            self._removed.set_result(None)
        below = self._done_below = next(iter(sizes)) if sizes else self._highest + 1
        return below

    def exceeded(self, limits: FlowLimits) -> str | None:
        """Say which limit keeps this queue from being pulled, or return None."""
        if len(self._sizes) > limits.messages:
            return f"{len(self._sizes)} messages are held, the limit is {limits.messages}"
        if self._size_bytes > limits.size_bytes:
            return f"{self._size_bytes} bytes are held, the limit is {limits.size_bytes}"
        if self.span > limits.span:
            return f"the offsets held span {self.span}, the limit is {limits.span}"
        return None

    async def wait_removed(self, timeout_s: float) -> None:
        """Wait until messages are removed, at most `timeout_s`. One waiter at a time."""
        self._removed = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((self._removed,), timeout=timeout_s)
        finally:
            self._removed = None


def process_queue_info(process_queue: ProcessQueue, commit_offset: int | None) -> ProcessQueueInfo:
    """Describe a queue for brokers and consoles that ask about its consumer."""
    lock = process_queue.lock
    return ProcessQueueInfo(
        cached_msg_count=len(process_queue),
        cached_msg_max_offset=process_queue.highest,
        cached_msg_min_offset=process_queue.lowest,
        cached_msg_size_in_mi_b=process_queue.size_bytes // _MIB,
        commit_offset=-1 if commit_offset is None else commit_offset,
        droped=process_queue.dropped,
        last_consume_timestamp=process_queue.last_consume_ms,
        last_pull_timestamp=process_queue.last_pull_ms,
        locked=lock is not None and lock.valid,
    )


def failures_text(failures: Mapping[MessageQueue, str]) -> str:
    """Describe what fails by queue, for brokers and consoles that ask about a consumer."""
    reported = sorted(failures.items(), key=lambda item: item[0])[:_REPORTED_FAILURES]
    parts = [
        f"{queue.topic}/{queue.broker_name}/{queue.queue_id}: {reason[:_REPORTED_REASON]}"
        for queue, reason in reported
    ]
    more = len(failures) - len(reported)
    return "; ".join([*parts, f"{more} more"] if more else parts)
