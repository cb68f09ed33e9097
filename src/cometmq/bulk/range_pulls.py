"""Read one range of a queue by many pulls at a time.

A pull returns no more messages than the broker's transfer limits allow (as brokers are shipped, 32,
or 8 when they come from the disk). So with one pull after the other, the waits for answers would
decide the speed. Without a filter the offsets of the next pulls are known beforehand. Then several
pulls are under way, each for as many messages as fitted into the answers so far.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple

from cometmq.client.cluster.broker_api import PullAnswer, answer_in
from cometmq.client.instance import ClientInstance
from cometmq.client.pulling.puller import PULL_TIMEOUT_S, lite_header
from cometmq.errors import CometMQError, RouteNotFoundError
from cometmq.filtering.tags import selects_all
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.model.results import PullStatus
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.header import header_to_ext
from cometmq.runtime.back_off import BackOff
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

MAX_PULLS: Final = 16
MAX_MESSAGES: Final = 1024
CHUNK_BYTES: Final = 4 * 1024 * 1024
FIRST_PAUSE_S: Final = 0.05
# After this many full answers in a row, pulls ask for more messages: more may fit into one answer.
_FULL_BEFORE_MORE: Final = 32


class Missing(Enum):
    """Says why offsets gave no messages."""

    RETENTION = "retention"
    NOT_STORED = "not stored"
    BEYOND_THE_END = "beyond the end"


class MissingRange(NamedTuple):
    start: int
    end: int
    cause: Missing


@dataclass(slots=True)
class Chunk:
    """Holds a broker's messages at queue offsets from `start` to below `end`.

    `records` has records one after the other, in queue order; `missing` has the ranges of which the
    broker has no messages. The last records may lie behind the end of the range that is read.
    Each of `parts` is an answer. If all of them lie in `window`, in their order, `bounds` are their
    starts and ends there.
    """

    start: int
    end: int
    parts: list[bytes | memoryview] = field(default_factory=list)
    missing: list[MissingRange] = field(default_factory=list)
    size_bytes: int = 0
    window: memoryview | None = None
    bounds: list[tuple[int, int]] = field(default_factory=list)

    @property
    def records(self) -> bytes:
        return bytes(self.parts[0]) if len(self.parts) == 1 else b"".join(self.parts)

    def add(self, window: memoryview, start: int, end: int) -> None:
        """Add an answer that lies in a window; the first one decides which window it is."""
        if not self.parts:
            self.window = window
        if self.bounds and start < self.bounds[-1][1]:
            self.window = None  # it has come out of turn
        self.parts.append(window[start:end])
        self.bounds.append((start, end))
        self.size_bytes += end - start

    def located(self) -> tuple[bytes | memoryview, list[tuple[int, int]]]:
        """Return bytes that hold the answers one behind the other, perhaps with others between them,
        and where each answer begins and ends there.
        """
        if self.window is not None:
            return self.window, self.bounds
        ends = list(accumulate(len(part) for part in self.parts if part))
        return self.records, list(zip([0, *ends], ends, strict=False))


@dataclass(frozen=True, slots=True)
class _Pull:
    """A pull under way. One that could be sent at once is `sent`; another one is a task, which makes
    several attempts if need be.
    """

    offset: int
    wanted: int
    sent: asyncio.Future[RemotingCommand] | None
    answer: asyncio.Task[PullAnswer] | None

    def cancel(self) -> None:
        for future in (self.sent, self.answer):
            if future is not None and not future.cancel() and not future.cancelled():
                future.exception()  # else asyncio reports a failure that nobody waits for any more


class RangePulls:
    """Reads queue offsets from `start` to below `end`. For the instance's loop. Must be closed.

    A pull that fails is repeated for `patience_s`, by turns at the master and its slaves. A pull
    of an offset behind the end of the broker's queue is repeated as long. A slave may lack what its
    master has, at either end of a queue, so only a master's answer makes a range missing.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        queue: MessageQueue,
        start: int,
        end: int,
        subscription: SubscriptionData,
        patience_s: float,
    ) -> None:
        self._instance = instance
        self._group = group
        self._queue = queue
        self._position = self._requested = start
        self._end = end
        self._subscription = subscription
        self._patience_s = patience_s
        self._filtered = not selects_all(subscription)
        # The fields that all pulls have in common.
        self._ext = header_to_ext(lite_header(group, queue, 0, 0, subscription, 0))
        self._tasks = TaskOwner(f"range-{queue}")
        self._pending: deque[_Pull] = deque()
        # How many messages a pull asks for, how many answers in a row were full, and how many pulls
        # may be under way: one, until the first answer says how many messages fit into an answer.
        self._step = MAX_MESSAGES
        self._full = 0
        self._pulls = 1

    async def next_chunk(self) -> Chunk | None:
        """Return about CHUNK_BYTES of records, less at the end of the range, and None behind it.

        Raises RemotingError, RouteNotFoundError or RemoteError when pulls fail for `patience_s`,
        and ProtocolError for an answer that does not decode.
        """
        if self._position >= self._end:
            return None
        chunk = Chunk(self._position, self._position)
        while self._position < self._end and chunk.size_bytes < CHUNK_BYTES:
            self._ask_for_more()
            pull = self._pending.popleft()
            self._take(pull, await self._answered(pull), chunk)
        # Brokers answer these pulls while the caller works on the chunk.
        self._ask_for_more()
        chunk.end = self._position
        return chunk

    async def close(self) -> None:
        while self._pending:
            self._pending.pop().cancel()
        await self._tasks.close()

    # Inside

    def _ask_for_more(self) -> None:
        while len(self._pending) < self._pulls and self._requested < self._end:
            count = min(self._step, self._end - self._requested)
            self._pending.append(self._ask(self._requested, count))
            self._requested += count

    def _ask(self, offset: int, count: int) -> _Pull:
        # A task for each pull would cost more than all else that a pull of 32 messages takes.
        if (sent := self._send(offset, count)) is not None:
            return _Pull(offset, count, sent, None)
        pull = self._answer(offset, count)
        task = self._tasks.spawn(pull, f"pull-{offset}", log_failure=False)
        return _Pull(offset, count, None, task)

    def _send(self, offset: int, count: int) -> asyncio.Future[RemotingCommand] | None:
        """Send a pull where `address_of` would find its address at once, if nothing is in the way."""
        addresses = self._instance.routes.read_addresses(self._queue.broker_name)
        if not addresses:
            return None
        ext = {**self._ext, "queueOffset": str(offset), "maxMsgNums": str(count)}
        try:
            return self._instance.brokers.begin_pull(addresses[0], ext, PULL_TIMEOUT_S)
        except CometMQError:
            return None  # the task meets the same fault, and treats it

    async def _answered(self, pull: _Pull) -> PullAnswer:
        """Return the answer to a pull. One that was sent at once and does not get on is begun again:
        only `_answer` distinguishes missing messages from a late answer.
        """
        if pull.sent is None:
            assert pull.answer is not None, "a pull is one of both"
            return await pull.answer
        try:
            answer = answer_in(await pull.sent)
        except CometMQError as error:
            if not error.retriable:
                raise
            self._instance.report_failure(error, self._queue.topic, error.address)
        else:
            if answer is not None and _has_come_on(answer, pull.offset):
                return answer
        return await self._answer(pull.offset, pull.wanted)

    def _take(self, pull: _Pull, answer: PullAnswer, chunk: Chunk) -> None:
        end = pull.offset + pull.wanted
        next_offset = answer.header.next_begin_offset
        if answer.status is PullStatus.FOUND:
            chunk.parts.append(answer.records)
            chunk.size_bytes += len(answer.records)
        missing = self._missing(pull.offset, end, answer)
        if missing is not None:
            chunk.missing.append(missing)
            next_offset = max(next_offset, missing.end)
            if missing.cause is Missing.BEYOND_THE_END:
                self._give_up()
                return
        if self._filtered:
            # With a filter, the next offset depends on how many messages this pull passed over.
            self._position = self._requested = min(next_offset, self._end)
            return
        self._position = min(next_offset, self._end)
        if answer.status is PullStatus.FOUND:
            self._learn(next_offset - pull.offset, pull.wanted)
        if next_offset < end:
            self._fill(next_offset, end)
        elif next_offset > end:
            self._skip_to(next_offset)

    def _give_up(self) -> None:
        """End the reading, since the queue ends before the range does."""
        while self._pending:
            self._pending.pop().cancel()
        self._position = self._requested = self._end

    def _fill(self, start: int, end: int) -> None:
        """Ask for the rest of a pull's range, ahead of the pulls for the offsets behind it."""
        rest = [
            self._ask(offset, min(self._step, end - offset))
            for offset in range(start, end, self._step)
        ]
        self._pending.extendleft(reversed(rest))

    def _skip_to(self, offset: int) -> None:
        """Go on at `offset`, when an answer passed over offsets of the pulls behind it."""
        self._requested = max(self._requested, min(offset, self._end))
        while self._pending and self._pending[0].offset < offset:
            pull = self._pending.popleft()
            pull.cancel()
            end = pull.offset + pull.wanted
            if end > offset:
                self._pending.appendleft(self._ask(offset, end - offset))

    def _learn(self, got: int, wanted: int) -> None:
        self._pulls = MAX_PULLS
        if got < wanted:
            self._step = max(1, got)
            self._full = 0
            return
        self._full += 1
        if self._full >= _FULL_BEFORE_MORE:
            self._step = min(2 * self._step, MAX_MESSAGES)
            self._full = 0

    def _missing(self, offset: int, end: int, answer: PullAnswer) -> MissingRange | None:
        """Return the offsets of a pull that have no messages, as its answer says, or None."""
        header = answer.header
        if header.min_offset > offset:
            return MissingRange(offset, min(end, header.min_offset), Missing.RETENTION)
        if answer.status is PullStatus.FOUND:
            return None
        if header.next_begin_offset <= offset:
            return MissingRange(offset, self._end, Missing.BEYOND_THE_END)
        if self._filtered and answer.status is PullStatus.NO_MATCHED_MSG:
            return None
        return MissingRange(offset, min(end, header.next_begin_offset), Missing.NOT_STORED)

    async def _answer(self, offset: int, count: int) -> PullAnswer:
        """Pull until an answer goes beyond `offset`, or until `patience_s` is over.

        Then return the last answer, or raise the last failure.
        """
        deadline = self._instance.clock.monotonic() + self._patience_s
        back_off = BackOff(FIRST_PAUSE_S)
        routes, name = self._instance.routes, self._queue.broker_name
        failed_at: str | None = None
        while True:
            failure: CometMQError | None = None
            try:
                address = await address_of(self._instance, self._queue, not_at=failed_at)
                answer = await self._pull(address, offset, count)
            except CometMQError as error:
                if not error.retriable:
                    raise
                failure = error
            else:
                header = answer.header
                if address != routes.master_address(name) and (
                    header.next_begin_offset <= offset or header.min_offset > offset
                ):
                    failure = RouteNotFoundError(
                        f"the slave {address} does not have offset {offset} of {self._queue}, and "
                        f"the master of {name}, which may have it, cannot be asked",
                        address=address,
                    )
                elif header.next_begin_offset > offset:
                    return answer
            if self._instance.clock.monotonic() > deadline:
                if failure is not None:
                    raise failure
                return answer
            if failure is not None:
                log.debug("pull failed", queue=str(self._queue), reason=str(failure))
                self._instance.report_failure(failure, self._queue.topic, failure.address)
                failed_at = failure.address
            await back_off.wait()

    async def _pull(self, address: str, offset: int, count: int) -> PullAnswer:
        queue = self._queue
        header = lite_header(self._group, queue, offset, count, self._subscription, 0)
        try:
            return await self._instance.brokers.pull(address, header, PULL_TIMEOUT_S)
        except CometMQError as error:
            error.address = error.address or address
            raise


def _has_come_on(answer: PullAnswer, offset: int) -> bool:
    """Return whether an answer goes beyond `offset`, and nothing in front of that is missing, so that
    it counts from any broker.
    """
    header = answer.header
    return header.next_begin_offset > offset and header.min_offset <= offset


async def address_of(
    instance: ClientInstance, queue: MessageQueue, *, not_at: str | None = None
) -> str:
    """Return the address to read a queue at: the master's, or a slave's if there is no master.

    An address `not_at` is returned only if there is no other. Raises RouteNotFoundError,
    RemotingError.
    """
    routes = instance.routes
    if not routes.read_addresses(queue.broker_name):
        await routes.refresh(queue.topic)
    addresses = routes.read_addresses(queue.broker_name)
    if not addresses:
        raise RouteNotFoundError(
            f"the route of topic {queue.topic} names no broker {queue.broker_name}"
        )
    return next((address for address in addresses if address != not_at), addresses[0])
