"""Send a decided batch, each message once; docs/internals/spark-sink.md says why this holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cometmq.bulk.producer import BlockingBulkProducer
from cometmq.errors import CometMQError, DataLossError, RequestTimeoutError, RouteNotFoundError
from cometmq.logs.loggers import get_logger
from cometmq.model.properties import UNIQ_CLIENT_MESSAGE_ID
from cometmq.model.queue import MessageQueue
from cometmq.protocol.messages.record_columns import read_columns
from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock
from cometmq.spark.patience import patiently
from cometmq.spark.rows.text_columns import TextColumns
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.outbox import Decision, Mark, Outbox, Unit

log = get_logger(__name__)

# After this time, a broker that answers has read whatever a killed sender sent last, and a Java
# broker has stored or dropped it (waitTimeMillsInSendQueue, waitTimeMillsInTransactionQueue).
QUIET_S: Final = 3.0


@dataclass(frozen=True)
class KeptPart:
    """Holds what a task has put into the outbox. `name` is None if the task had no rows, or if it
    `skipped` them because its unit is decided.
    """

    owner: str
    rows: int = 0
    name: str | None = None
    topics: tuple[str, ...] = ()
    skipped: bool = False
    dead_letters: int = 0


def commit_unit(
    options: SinkOptions,
    outbox: Outbox,
    name: str,
    parts: Sequence[KeptPart],
    quiet_s: float = QUIET_S,
    clock: BlockingClock = SYSTEM_CLOCK,
) -> None:
    """Decide that these parts make up the unit, unless that is decided already, and send what is
    not sent yet.

    `quiet_s` is how long to wait between a broker's answer and asking it which messages it has. May
    be called any number of times, by several processes. Raise the error that keeps messages from
    their topics.
    """
    with outbox.lock():
        unit = outbox.unit(name)
        decision = unit.decision()
        resumed = decision is not None
        if not resumed and any(part.skipped for part in parts):
            raise DataLossError(
                f"{name} was decided when its tasks ran and is gone from the outbox {outbox.uri}: put "
                "it back, or remove the query's checkpoint and outbox and start again"
            )
        if unit.is_done or not (resumed or any(part.rows for part in parts)):
            return
        with options.new_producer() as producer:
            if decision is None:
                decision = decide(options, producer, unit, parts, outbox.latest_marks(), clock)
            OutboxSending(options, producer, quiet_s, clock).run(unit, decision, resumed=resumed)
        unit.finish()


def decide(
    options: SinkOptions,
    producer: BlockingBulkProducer,
    unit: Unit,
    parts: Sequence[KeptPart],
    before: Sequence[Mark] = (),
    clock: BlockingClock = SYSTEM_CLOCK,
) -> Decision:
    """Decide that these parts make up the unit.

    `before` are the marks of the preceding batch: keys choose among its queues, too. If a broker of
    these is away, wait for it until `timeoutMs` is over.
    """
    topics = {topic for part in parts for topic in part.topics}
    patience_s = options.timeout_ms / 1000
    try:
        marks = patiently(lambda: marks_of(producer, topics, before), patience_s, clock)
    except RouteNotFoundError as error:
        log.warning("keys go to other queues", reason=str(error))
        marks = patiently(lambda: marks_of(producer, topics), patience_s, clock)
    decision = Decision(
        owner=parts[0].owner,
        unit=unit.name,
        parts=[part.name for part in parts if part.name is not None],
        rows=sum(part.rows for part in parts),
        marks=marks,
    )
    unit.decide(decision)
    return decision


def marks_of(
    producer: BlockingBulkProducer, topics: Iterable[str], before: Sequence[Mark] = ()
) -> list[Mark]:
    """Return the ends of all queues of the topics.

    Raise RouteNotFoundError, also when a broker that `before` names is away, and RemotingError.
    """
    queues = []
    for topic in sorted(topics):
        found = producer.write_queues(topic)
        here = {queue.broker_name for queue in found}
        away = {mark.broker for mark in before if mark.topic == topic} - here
        if away:
            raise RouteNotFoundError(
                f"of the brokers of topic {topic} {', '.join(sorted(away))} is away"
            )
        queues += found
    return [
        Mark(queue.topic, queue.broker_name, queue.queue_id, end)
        for queue, (_, end) in producer.bounds(queues).items()
    ]


class OutboxSending:
    """Sends a decided unit, whose messages may partly be in their topics already. `quiet_s` is as
    in `commit_unit`.
    """

    def __init__(
        self,
        options: SinkOptions,
        producer: BlockingBulkProducer,
        quiet_s: float = QUIET_S,
        clock: BlockingClock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._options = options
        self._producer = producer
        self._quiet_s = quiet_s
        self._patience_s = options.timeout_ms / 1000

    def run(self, unit: Unit, decision: Decision, *, resumed: bool) -> None:
        """Send until all messages are in their topics. Raise the error that prevents it; another
        run continues.
        """
        if resumed:
            log.info("a batch is resumed", outbox=unit.name, rows=decision.rows)
        there = self._look(unit, decision) if resumed else _none()
        stuck_until = self._clock.monotonic() + self._patience_s
        while (doubt := self._send(unit, decision, there)) is not None:
            found = self._look(unit, decision)
            if len(found) > len(there):
                stuck_until = self._clock.monotonic() + self._patience_s
            elif self._clock.monotonic() > stuck_until:
                raise RequestTimeoutError(
                    f"of {decision.rows} messages {len(found)} arrived, and no more within "
                    f"{self._options.timeout_ms} ms (timeoutMs), lately because {doubt}; what is "
                    "missing is sent when the query is started again"
                ) from doubt
            there = found

    # Inside

    def _send(self, unit: Unit, decision: Decision, there: Any) -> CometMQError | None:
        """Send the messages that are not there yet. Return None if all are acknowledged, else the
        error that leaves doubt.
        """
        queues: dict[str, list[MessageQueue]] = {}
        for mark in decision.marks:
            queues.setdefault(mark.topic, []).append(mark.queue)
        packing = self._options.new_packing(queues.__getitem__)
        with self._producer.sending(once=True) as sending:
            for messages in self._missing(unit, decision, there):
                sending.put(packing.parcels(messages))
                if sending.doubt is not None:
                    break
            sending.flush()
            return sending.doubt

    def _missing(self, unit: Unit, decision: Decision, there: Any) -> Iterator[Any]:
        for part in decision.parts:
            for batch in unit.read(part):
                messages = batch
                if len(there):
                    absent = pc.invert(pc.is_in(messages.column("id"), value_set=there))
                    messages = messages.filter(absent)
                if len(messages):
                    yield messages

    def _look(self, unit: Unit, decision: Decision) -> Any:
        """Return the ids of the unit's messages that are in their topics."""
        marks = {mark.queue: mark.offset for mark in decision.marks}
        self._bounds(marks)  # waits for an answer from each broker
        self._clock.sleep(self._quiet_s)
        found = []
        with self._options.new_reader() as reader:
            for queue, (low, end) in self._bounds(marks).items():
                if low > marks[queue]:
                    raise DataLossError(
                        f"{queue} begins at offset {low}: whether its messages from "
                        f"{marks[queue]} on, which are gone, were some of {unit.name} cannot be "
                        "known any more. The query was away for longer than the topic keeps "
                        "messages: remove its checkpoint and outbox to start again"
                    )
                if end > marks[queue]:
                    chunks = reader.read(queue, marks[queue], end)
                    found += [_ids(chunk.records) for chunk in chunks]
        ids = pa.concat_arrays(found) if found else _none()
        ours = pa.concat_arrays(
            [b.column("id") for part in decision.parts for b in unit.read(part)] or [_none()]
        )
        there = ours.filter(pc.is_in(ours, value_set=ids))
        log.info("looked for a batch", outbox=unit.name, rows=decision.rows, there=len(there))
        return there

    def _bounds(self, marks: dict[MessageQueue, int]) -> dict[MessageQueue, tuple[int, int]]:
        """Return the bounds that the masters report; wait for masters that are away."""
        return patiently(lambda: self._producer.bounds(marks), self._patience_s, self._clock)


def _ids(records: bytes) -> Any:
    columns = read_columns(records, 0, len(records), None)
    if not len(columns):
        return _none()
    return TextColumns(records, columns).values(UNIQ_CLIENT_MESSAGE_ID)


def _none() -> Any:
    return pa.nulls(0, pa.string())
