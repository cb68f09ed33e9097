"""Send rows of messages to brokers, in Spark's Python workers. A partition is a lane, a lane has
some targets.

The rows of a lane come in the order in which they are to be sent. The messages for one target are
sent one request after the other; the targets of a lane are served concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cometmq.model import properties as p
from cometmq.model.message import Message
from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.resending.client import LaneClient, Parcel
from cometmq.pipelines.resending.marks import LEFT_OUT, Marks, Place
from cometmq.pipelines.resending.pacing import Pacer
from cometmq.runtime.portal import LoopThread
from cometmq.spark.connecting import Connecting

# The columns of the rows. `target` is the number of the queue to send to; times are ms since the
# epoch.
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
# The columns of messages of which these are made.
MADE_OF: Final = frozenset(COLUMNS) - {"target", "born_ms", "store_ms"} | {
    "born_time",
    "store_time",
}
# At most this much of a lane is in memory at a time.
_MAX_ROWS: Final = 4000
_MAX_BYTES: Final = 16 * 1024 * 1024


class Outcome(NamedTuple):
    """Holds the outcomes of a target's messages in one task."""

    target: int
    sent: int
    already_there: int
    refused: int
    reason: str


@dataclass(frozen=True)
class Errand:
    """Holds the orders for the rows. Pickled to the workers.

    targets: the queues by their numbers.
    bases: the offsets from which on their logs may hold messages of these `marks`.
    lanes: the target numbers of each lane.
    rates: the messages a second of each lane.
    keeps_unique_id: a message keeps the producer's id of the original message.
    looks_everywhere: an earlier attempt may have sent a message to any target of its lane.
    """

    connecting: Connecting
    marks: Marks
    targets: tuple[MessageQueue, ...]
    bases: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]
    rates: tuple[float | None, ...]
    exactly_once: bool
    keeps_unique_id: bool = False
    looks_everywhere: bool = False

    def run(self, frame: Any) -> list[Outcome]:
        """Send the rows of a frame with COLUMNS, which has a partition for each lane."""
        # mapInArrow would need pandas, and messages are made one by one anyway.
        outcomes: list[Outcome] = frame.rdd.mapPartitionsWithIndex(self.send_lane).collect()
        return outcomes

    def send_lane(self, lane: int, rows: Iterable[Any]) -> Iterator[Outcome]:
        """Send the rows of a lane, in a task. Raise CometMQError."""
        pieces = _pieces(rows)
        first = next(pieces, None)
        if first is None:
            return
        numbers = self.lanes[lane]
        # In a thread of its own, the client renews locks also while Spark makes the next rows.
        thread = LoopThread("cometmq-lane")
        thread.start()
        try:
            client = self._client(lane)
            thread.call(client.start())
            try:
                if self.looks_everywhere:
                    thread.call(client.look_everywhere())
                thread.call(self._send(client, numbers, first))
                for piece in pieces:
                    thread.call(self._send(client, numbers, piece))
            finally:
                thread.call(client.close())
        finally:
            thread.stop()
        for number, tally in zip(numbers, client.tallies, strict=True):
            yield Outcome(number, tally.sent, tally.already_there, tally.refused, tally.reason)

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

    async def _send(self, client: LaneClient, numbers: Sequence[int], rows: Sequence[Any]) -> None:
        places = {number: at for at, number in enumerate(numbers)}
        by_target: list[list[Parcel]] = [[] for _ in numbers]
        for row in rows:
            number, parcel = self.parcel(row)
            by_target[places[number]].append(parcel)
        sends = (client.send(at, parcels) for at, parcels in enumerate(by_target) if parcels)
        # All sends end before the locks are released, even if one fails.
        for failure in await asyncio.gather(*sends, return_exceptions=True):
            if failure is not None:
                raise failure

    def parcel(self, row: Any) -> tuple[int, Parcel]:
        """Make the message for a row of COLUMNS; return it with the number of its target."""
        number, topic, broker, queue_id, offset, msg_id, body, given, flag, born, stored = row
        properties = {name: value for name, value in given.items() if name not in LEFT_OUT}
        if not self.keeps_unique_id:
            properties.pop(p.UNIQ_CLIENT_MESSAGE_ID, None)
        place = Place(topic, broker or "", queue_id, offset)
        properties.update(self.marks.of(place, msg_id, born, stored))
        target = self.targets[number].topic
        if is_retry_topic(target):
            # Consumers of a retry topic read the message's former topic here.
            properties[p.RETRY_TOPIC] = given[p.RETRY_TOPIC]
        return number, Parcel(Message(target, bytes(body), flag=flag, properties=properties), place)


def _pieces(rows: Iterable[Any]) -> Iterator[list[Any]]:
    at = COLUMNS.index("body")
    piece: list[Any] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row[at])
        if len(piece) == _MAX_ROWS or size >= _MAX_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
