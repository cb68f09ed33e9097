"""Send to some queues exactly those messages that their logs do not have yet under the same id.

The target's log holds what a killed task, executor or driver has sent, and each message's
properties say what it was made from (`marks`). So a client first reads the log from the offset
where the work began, and leaves out the messages that it finds. Two clients must not do that at the
same time. So a lane holds the brokers' locks of its queues while it sends (the locks of orderly
consumers, which a Java broker has, too), and an attempt that takes over from a killed one waits
until that one's locks have expired, which takes a minute.

Docs: docs/internals/pipelines.md.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from cometmq.bulk.range_pulls import Missing
from cometmq.bulk.range_reader import RangeReader
from cometmq.client.instance import ClientInstance
from cometmq.client.membership.queue_locks import QueueLock, QueueLocks
from cometmq.client.producing.encoding import COMPRESS_OVER_BYTES, MessageEncoder, Outgoing
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.errors import (
    CometMQError,
    DataLossError,
    IllegalArgumentError,
    QueueLockedError,
    RemoteError,
    RemotingError,
    RouteNotFoundError,
    Stored,
)
from cometmq.logs.loggers import get_logger
from cometmq.model.message import Message
from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.resending.marks import Marks, Place
from cometmq.pipelines.resending.pacing import Pacer
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.messages.record import decode_records
from cometmq.runtime.back_off import BackOff
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

GROUP: Final = "COMETMQ_PIPELINES"
# The limits of one request.
MAX_BATCH_MESSAGES: Final = 128
MAX_BATCH_BYTES: Final = 512 * 1024
# A lock is trusted for 30 s after its renewal, and expires after 60 s. So a message that was sent at
# the last moment is answered or given up before another lane gets the lock.
SEND_TIMEOUT_S: Final = 25.0
# For how long to retry a broker that takes no messages; longer than a lock lives.
PATIENCE_S: Final = 180.0
# The wait after an unanswered request, before the log is asked whether the message was stored.
SETTLE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message, and the place of the message that it is made from."""

    message: Message
    place: Place


@dataclass(slots=True)
class Tally:
    """Counts the outcomes of the messages for one target queue. `refused` ones can never be sent;
    `reason` is that of the first refusal.
    """

    sent: int = 0
    already_there: int = 0
    refused: int = 0
    reason: str = ""


class LaneClient:
    """Sends to `targets`, to which only this lane sends under these `marks`.

    bases: for each target, the offset from which on its log may hold messages of these marks.
    exactly_once: if False, the client takes no locks, and two attempts at the same time send
        messages twice.

    Use it only in the loop that enters it.
    """

    def __init__(
        self,
        connection: Mapping[str, Any],
        marks: Marks,
        targets: Sequence[MessageQueue],
        bases: Sequence[int],
        pacer: Pacer,
        *,
        exactly_once: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._reader = RangeReader(**connection)
        self._namespace = self._reader.namespace
        self._marks = marks
        self._targets = list(targets)
        self._positions = list(bases)
        self._pacer = pacer
        self._exactly_once = exactly_once
        self._monotonic = clock.monotonic
        self._locks_of: dict[int, QueueLock] = {}
        # Targets whose log must be read before anything more is sent to them.
        self._doubtful = set(range(len(targets)))
        self._turns = [asyncio.Lock() for _ in targets]
        self._there = _Places()
        self.tallies = [Tally() for _ in targets]
        self._is_open = False

    async def start(self) -> None:
        """Join the cluster, as a RangeReader does, and begin to renew the locks that are taken."""
        await self._reader.start()
        self._open(self._reader.check_started())
        self._is_open = True

    async def close(self) -> None:
        """Give the locks back and leave the cluster. Idempotent, also before a start."""
        is_open, self._is_open = self._is_open, False
        try:
            if is_open:
                await self._shut()
        finally:
            await self._reader.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def send(self, at: int, parcels: Sequence[Parcel]) -> None:
        """Send to the target number `at`, in order, the messages that its log does not have yet.

        Raise CometMQError when the broker takes no messages for PATIENCE_S, and DataLossError when
        it cannot be known any more which messages were sent.
        """
        most = self._pacer.most(MAX_BATCH_MESSAGES)
        for batch in _cut(parcels, most):
            await self._deliver(at, batch)

    async def look_everywhere(self) -> None:
        """Read the logs of all targets, for messages that an earlier attempt may have sent to
        another target than now. Raise as `send`.
        """
        for at in range(len(self._targets)):
            await self._secure(at)

    # Inside

    async def _deliver(self, at: int, parcels: list[Parcel]) -> None:
        failing_since: float | None = None
        back_off = BackOff()
        is_paced = False
        tally = self.tallies[at]
        while True:
            await self._secure(at)
            # Check only now, because `_secure` has just read the log.
            missing = [parcel for parcel in parcels if parcel.place not in self._there]
            if failing_since is None:
                tally.already_there += len(parcels) - len(missing)
            else:
                tally.sent += len(parcels) - len(missing)
            parcels = missing
            if not parcels:
                return
            if not is_paced:
                await self._pacer.take(len(parcels))
                is_paced = True
                continue  # the lock may have been lost while waiting
            try:
                await self._send(at, [parcel.message for parcel in parcels])
            except (RemotingError, RouteNotFoundError, RemoteError) as error:
                if isinstance(error, RemoteError) and error.code == ResponseCode.MESSAGE_ILLEGAL:
                    await self._refuse(at, parcels, error)
                    return
                failing_since = failing_since or self._monotonic()
                if self._monotonic() > failing_since + PATIENCE_S or not error.retriable:
                    raise
                await self._after_failure(at, error, back_off)
            except IllegalArgumentError as error:
                await self._refuse(at, parcels, error)
                return
            else:
                tally.sent += len(parcels)
                return

    async def _refuse(self, at: int, parcels: list[Parcel], error: CometMQError) -> None:
        """Refuse a message, or send each message of a refused batch alone, since only some may be
        at fault.
        """
        if len(parcels) > 1:
            for parcel in parcels:
                await self._deliver(at, [parcel])
            return
        tally = self.tallies[at]
        tally.refused += 1
        tally.reason = tally.reason or f"{parcels[0].place}: {error}"

    async def _after_failure(self, at: int, error: CometMQError, back_off: BackOff) -> None:
        queue = self._targets[at]
        log.info("not sent", queue=str(queue), reason=str(error))
        wire = self._namespace.wrap(queue.topic)
        self._reader.check_started().report_failure(error, wire, error.address)
        if error.stored is Stored.UNKNOWN:
            # The broker may have stored the message, or may store it at any moment.
            self._doubtful.add(at)
            await asyncio.sleep(SETTLE_S)
        else:
            await back_off.wait()

    async def _send(self, at: int, messages: list[Message]) -> None:
        queue = self._targets[at]
        outgoing = await self._encoded(messages)
        deadline = asyncio.get_running_loop().time() + SEND_TIMEOUT_S
        # Every status but an error means that the message is in the log.
        await self._sender.send_fixed(outgoing, self._namespace.wrap_queue(queue), deadline)

    async def _encoded(self, messages: list[Message]) -> Outgoing:
        if len(messages) > 1:
            return self._encoder.encode_batch(messages)
        return await self._encoder.encode(messages[0])

    # Messages that are there already

    async def _secure(self, at: int) -> None:
        """Hold the target's lock, and know what its log has. One call at a time for each target."""
        async with self._turns[at]:
            deadline = self._monotonic() + PATIENCE_S
            back_off = BackOff()
            while True:
                try:
                    if self._exactly_once:
                        await self._lock(at)
                    if at in self._doubtful:
                        await self._look(at)
                        self._doubtful.discard(at)
                except (RemoteError, RemotingError, RouteNotFoundError) as error:
                    if self._monotonic() > deadline or not error.retriable:
                        raise
                    wire = self._namespace.wrap(self._targets[at].topic)
                    self._reader.check_started().report_failure(error, wire, error.address)
                else:
                    return
                await back_off.wait()

    async def _lock(self, at: int) -> None:
        lock = self._locks_of.get(at)
        if lock is not None and lock.valid:
            return
        # Somebody else may have sent while we did not hold the lock.
        self._doubtful.add(at)
        wire = self._namespace.wrap_queue(self._targets[at])
        routes = self._reader.check_started().routes
        if routes.master_address(wire.broker_name) is None:
            await routes.refresh(wire.topic)
        try:
            self._locks_of[at] = await self._queue_locks.lock(wire)
        except QueueLockedError as error:
            raise QueueLockedError(
                f"the lock of {self._targets[at]} is not to be had: {error}; either {self._marks} is "
                "being run by somebody else, or a run of it was killed less than a minute ago",
                address=error.address,
            ) from error

    async def _look(self, at: int) -> None:
        queue, start = self._targets[at], self._positions[at]
        instance = self._reader.check_started()
        wire = self._namespace.wrap_queue(queue)
        await instance.routes.refresh(wire.topic)
        # A slave may lack messages that the master has already stored.
        address = instance.need_master(wire.broker_name, wire.topic)
        end = await instance.brokers.max_offset(address, wire)
        id_bytes = self._marks.id.encode()
        async for chunk in self._reader.read(queue, start, end):
            lost = [gap for gap in chunk.missing if gap.cause is Missing.RETENTION]
            if lost and self._exactly_once:
                raise DataLossError(
                    f"the messages of {queue} from {lost[0].start} to {lost[0].end} are gone, so "
                    f"nobody can know which of them {self._marks} had sent; delivery = "
                    '"at-least-once" goes on and may send them twice'
                )
            records = chunk.records
            if id_bytes in records:
                for record in decode_records(records):
                    place = self._marks.place_of(record.properties)
                    if place is not None:
                        self._there.add(place)
        self._positions[at] = max(start, end)

    # The client's life

    def _open(self, instance: ClientInstance) -> None:
        self._sender = Sender(instance, SendLimits(), group=GROUP, namespace=self._namespace)
        self._encoder = MessageEncoder(
            GROUP, instance.unique_ids, namespace=self._namespace, clock=instance.clock
        )
        self._queue_locks = QueueLocks(
            instance, self._marks.lock_group, self._on_lost, self._still_current
        )
        self._tasks = TaskOwner(f"lane-{self._marks}")
        self._tasks.spawn(self._queue_locks.run(), "lock-renewals")

    async def _shut(self) -> None:
        try:
            await self._tasks.close()
            await self._queue_locks.unlock(list(self._queue_locks.held()))
        finally:
            await self._queue_locks.close()

    def _on_lost(self, wire: MessageQueue) -> None:
        self._locks_of.pop(self._targets.index(self._namespace.unwrap_queue(wire)), None)

    async def _still_current(self, _wire: MessageQueue) -> bool:
        """Return False: a lock that was invalid in between is taken again, and the log read
        again.
        """
        return False


class _Places:
    """A set of places, compact for many places of few queues."""

    def __init__(self) -> None:
        self._offsets: defaultdict[tuple[str, str, int], set[int]] = defaultdict(set)

    def add(self, place: Place) -> None:
        self._offsets[place[:3]].add(place.queue_offset)

    def __contains__(self, place: Place) -> bool:
        offsets = self._offsets.get(place[:3])
        return offsets is not None and place.queue_offset in offsets


def _cut(parcels: Iterable[Parcel], most: int) -> Iterable[list[Parcel]]:
    """Cut the parcels into requests. A large body goes alone, since batches are not compressed."""
    batch: list[Parcel] = []
    size = 0
    for parcel in parcels:
        length = len(parcel.message.body)
        alone = length >= COMPRESS_OVER_BYTES or is_retry_topic(parcel.message.topic)
        full = len(batch) == most or size + length > MAX_BATCH_BYTES
        if batch and (alone or full):
            yield batch
            batch, size = [], 0
        if alone:
            yield [parcel]
        else:
            batch.append(parcel)
            size += length
    if batch:
        yield batch
