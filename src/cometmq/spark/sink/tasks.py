"""Do the work of a write's task: send the rows, or keep them in the outbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from cometmq.bulk.producer import BlockingBulkProducer
from cometmq.errors import ClientStateError, IllegalArgumentError, RouteNotFoundError
from cometmq.model.queue import MessageQueue
from cometmq.spark.live.options import TABLES_REMEDY
from cometmq.spark.patience import patiently
from cometmq.spark.sink.bad_rows import BadRows
from cometmq.spark.sink.columns import Outbound
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.outbox import Decided, Outbox, batch_unit, job_unit
from cometmq.spark.sink.outbox_sending import KeptPart

# Rows are turned into messages in pieces of this many bytes.
_PIECE_BYTES: Final = 32 * 1024 * 1024
# The local properties that Spark's StreamExecution and MicroBatchExecution set.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
# Likewise those of SQLExecution.
_EXECUTION: Final = "spark.sql.execution.id"
_STATEMENT: Final = "spark.sql.execution.root.id"


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """The commit message of a task that has sent its rows, `dead_letters` of them as such."""

    rows: int
    dead_letters: int = 0


@dataclass(frozen=True)
class Kept(WriterCommitMessage):
    """The commit message of a task that has kept its rows in the outbox."""

    part: KeptPart


def refuse_tables() -> None:
    """Raise IllegalArgumentError in a task of a statement that makes a table of the rows.

    Spark gives a writer the same calls, options and schema for `save` and for `saveAsTable`. But it
    writes the rows of a new table as an execution of its own within the statement's, and no others
    but those that a function of `foreachBatch` writes.
    """
    context = TaskContext.get()
    if context is None or context.getLocalProperty(_BATCH_ID) is not None:
        return
    statement = context.getLocalProperty(_STATEMENT)
    if statement is not None and statement != context.getLocalProperty(_EXECUTION):
        raise IllegalArgumentError(
            f"nothing is sent, because saveAsTable, writeTo(…).create() and CREATE TABLE … AS SELECT "
            f"would leave a table that cannot be read: {TABLES_REMEDY}"
        )


def send_rows(options: SinkOptions, batches: Iterator[Any]) -> Sent:
    """Send the rows, at least once. All are acknowledged when this returns."""
    rows = 0
    with options.new_producer() as producer:
        packing = options.new_packing(_queues(options, producer))
        making = _Making(options, producer)
        with producer.sending() as sending:
            for messages in making.messages(batches):
                sending.put(packing.parcels(messages))
                rows += len(messages)
            sending.flush()
    return Sent(rows, making.dead_letters)


@dataclass(frozen=True)
class Place:
    """Names the unit and the partition of a task's rows."""

    owner: str
    unit: str
    partition: int
    batch_id: int | None = None


def place_of_task(options: SinkOptions) -> Place:
    """Return the place that Spark gave this task. Raise ClientStateError if Spark gave none."""
    context = TaskContext.get()
    assert context is not None, "in a task"
    if options.transaction_id is not None:
        unit = job_unit(options.transaction_id)
        return Place(unit, unit, context.partitionId())
    owner, batch_id = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
    if owner is None or batch_id is None:
        raise ClientStateError(
            f"Spark does not name this task's query and batch ({_QUERY_ID}, {_BATCH_ID}), which "
            "delivery=exactly-once needs: use a micro-batch trigger"
        )
    return Place(owner, batch_unit(int(batch_id)), context.partitionId(), int(batch_id))


def keep_rows(
    options: SinkOptions,
    outbox: Outbox,
    decided: Decided | None,
    place: Place,
    batches: Iterator[Any],
) -> KeptPart:
    """Keep the rows for exactly-once delivery, unless the unit is decided. They are in a file of
    the outbox when this returns.
    """
    owner = place.owner
    if decided is not None and _is_decided(outbox, decided, place):
        for _ in batches:
            pass
        return KeptPart(owner, skipped=True)
    rows, topics = 0, set[str]()
    with options.new_producer() as producer:
        making = _Making(options, producer)
        messages = making.messages(batches)
        first = next(messages, None)
        if first is None:
            return KeptPart(owner)
        with outbox.unit(place.unit).part(place.partition) as (part, write):
            while first is not None:
                write(first)
                rows += len(first)
                topics.update(pc.unique(first.column("topic")).to_pylist())
                first = next(messages, None)
    return KeptPart(owner, rows, part, tuple(sorted(topics)), dead_letters=making.dead_letters)


def without_route(
    options: SinkOptions, topic: str, error: RouteNotFoundError
) -> RouteNotFoundError:
    """Return the error for a topic that is not there, with a way to make it."""
    return RouteNotFoundError(
        f"topic {topic} cannot be written to: {error}. The sink creates no topics, whatever "
        f"autoCreateTopicEnable says; make it first: cometmq admin updateTopic -n "
        f"'{options.connecting.namesrv}' -c DefaultCluster -t {topic}, with the name of your cluster "
        "(mqadmin has the same command)"
    )


# Inside


def _is_decided(outbox: Outbox, decided: Decided, place: Place) -> bool:
    if place.batch_id is None or decided.batch_id is None:
        return True  # the job's own decision
    if decided.owner != place.owner or decided.batch_id > place.batch_id:
        raise _foreign(
            outbox,
            f"batch {decided.batch_id} of query {decided.owner}",
            f"batch {place.batch_id} of query {place.owner}",
        )
    if decided.batch_id < place.batch_id and not decided.done:
        raise _foreign(
            outbox,
            f"batch {decided.batch_id}, which is decided and not sent",
            f"batch {place.batch_id}, before which Spark's checkpoint says it was",
        )
    return decided.batch_id == place.batch_id


def _foreign(outbox: Outbox, found: str, wanted: str) -> IllegalArgumentError:
    return IllegalArgumentError(
        f"the outbox {outbox.uri} holds {found}, and this is {wanted}: give each query an outbox of "
        "its own; one whose checkpoint was removed needs a new outbox, or none in the old place"
    )


def _queues(options: SinkOptions, producer: BlockingBulkProducer) -> Any:
    @cache
    def of(topic: str) -> Sequence[MessageQueue]:
        try:
            return patiently(lambda: producer.write_queues(topic), options.timeout_ms / 1000)
        except RouteNotFoundError as error:
            raise without_route(options, topic, error) from error

    return of


class _Making:
    """Makes messages of a task's rows, with the bad ones as the options say."""

    def __init__(self, options: SinkOptions, producer: BlockingBulkProducer) -> None:
        self._producer = producer
        common = producer.common_properties()
        self._rows = Outbound(options.topic, common, keep_origin=options.keep_origin)
        self._bad_rows: BadRows | None = None
        if options.dead_letter_topic is not None:
            letters = Outbound(options.dead_letter_topic, common, keep_origin=False)
            self._bad_rows = BadRows(self._rows, letters)

    @property
    def dead_letters(self) -> int:
        return 0 if self._bad_rows is None else self._bad_rows.count

    def messages(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows as batches of OUTBOUND."""
        maker = self._bad_rows or self._rows
        for batch in batches:
            for piece in _pieces(batch):
                yield maker.messages(piece, self._producer.new_ids(len(piece)))


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = len(batch)
    step = max(1, count * _PIECE_BYTES // max(_PIECE_BYTES, batch.nbytes))
    for start in range(0, count, step):
        yield batch.slice(start, step)
