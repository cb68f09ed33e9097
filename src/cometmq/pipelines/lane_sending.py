"""Rows of messages to brokers, in Spark's Python workers: a partition is a lane, a lane some targets.

The rows of a lane come in the order in which they are to be sent. Those for one target queue are sent
one request after the other; the targets of a lane at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from cometmq.model import properties as p
from cometmq.model.message import Message
from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.lane_client import LaneClient, Parcel, Tally
from cometmq.pipelines.marks import LEFT_OUT, Marks, Place
from cometmq.pipelines.pacing import Pacer
from cometmq.runtime.portal import LoopThread
from cometmq.spark.connecting import Connecting

# The columns that are taken; `target` is the number of the queue to send to, times are ms.
COLUMNS: Final = (
    "target",
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "msg_id",
    "body",
    "properties",
    "flag",
    "born_ms",
    "store_ms",
)
# What a lane gives for each of its targets.
OUTCOME: Final = "target int, sent bigint, already_there bigint, refused bigint, reason string"


@dataclass(frozen=True)
class Errand:
    """What is to be done with the rows. Pickled to the workers.

    `targets` are the queues by their numbers, and `bases` the offsets from which on their logs may
    hold messages of these `marks`; `lanes` are the numbers of each lane, `rates` its messages a
    second. With `keeps_unique_id` a message has the producer's id of the first one.
    """

    connecting: Connecting
    marks: Marks
    targets: tuple[MessageQueue, ...]
    bases: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]
    rates: tuple[float | None, ...]
    exactly_once: bool
    keeps_unique_id: bool

    def task(self) -> Callable[[Iterator[Any]], Iterator[Any]]:
        """For mapInArrow, over rows with COLUMNS."""
        return self.send

    def send(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Send the rows of the lane whose number is that of Spark's partition. Raises CometMQError."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        context = TaskContext.get()
        assert context is not None, "runs in a task"
        lane = context.partitionId()
        numbers = self.lanes[lane]
        # A thread of its own: locks are renewed also while Spark makes the next batch.
        thread = LoopThread("cometmq-lane")
        thread.start()
        try:
            client = self._client(lane)
            thread.call(client.start())
            try:
                for batch in chain((first,), batches):
                    thread.call(self._send(client, numbers, batch))
            finally:
                thread.call(client.close())
        finally:
            thread.stop()
        yield _outcome(numbers, client.tallies)

    def _client(self, lane: int) -> LaneClient:
        numbers = self.lanes[lane]
        return LaneClient(
            self.connecting.parameters(),
            self.marks,
            [self.targets[number] for number in numbers],
            [self.bases[number] for number in numbers],
            Pacer(self.rates[lane]),
            exactly_once=self.exactly_once,
        )

    async def _send(self, client: LaneClient, numbers: Sequence[int], batch: Any) -> None:
        places = {number: at for at, number in enumerate(numbers)}
        by_target: list[list[Parcel]] = [[] for _ in numbers]
        for number, parcel in self.parcels(batch):
            by_target[places[number]].append(parcel)
        sends = (client.send(at, parcels) for at, parcels in enumerate(by_target) if parcels)
        # All end before the locks are given back, whatever becomes of one.
        for failure in await asyncio.gather(*sends, return_exceptions=True):
            if failure is not None:
                raise failure

    def parcels(self, batch: Any) -> Iterator[tuple[int, Parcel]]:
        """The messages to send for the rows, each with the number of its target."""
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        left_out = LEFT_OUT
        if not self.keeps_unique_id:
            left_out |= {p.UNIQ_CLIENT_MESSAGE_ID}
        for row in zip(*columns, strict=True):
            number, topic, broker, queue_id, offset, msg_id, body, given, flag, born, stored = row
            properties = {name: value for name, value in given or () if name not in left_out}
            place = Place(topic, broker or "", queue_id, offset)
            properties.update(self.marks.of(place, msg_id, born, stored))
            target = self.targets[number].topic
            if is_retry_topic(target):
                # Where consumers of a retry topic read what it was before.
                properties[p.RETRY_TOPIC] = dict(given)[p.RETRY_TOPIC]
            message = Message(target, body or b"", flag=flag, properties=properties)
            yield number, Parcel(message, place)


def _outcome(numbers: Sequence[int], tallies: Sequence[Tally]) -> Any:
    return pa.RecordBatch.from_pydict(
        {
            "target": pa.array(numbers, pa.int32()),
            "sent": pa.array([tally.sent for tally in tallies], pa.int64()),
            "already_there": pa.array([tally.already_there for tally in tallies], pa.int64()),
            "refused": pa.array([tally.refused for tally in tallies], pa.int64()),
            "reason": pa.array([tally.reason for tally in tallies], pa.string()),
        }
    )
