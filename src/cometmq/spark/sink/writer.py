"""Implement the writers that Spark calls when rows are written to `rocketmq`.

df.write.format("rocketmq").mode("append").option("namesrv", "127.0.0.1:9876").option("topic", "orders")
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from cometmq.errors import IllegalArgumentError, RemotingError, RouteNotFoundError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.spark.patience import patiently
from cometmq.spark.sink.columns import check_columns
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.outbox import Decided, Outbox, batch_unit, job_unit
from cometmq.spark.sink.outbox_sending import commit_unit
from cometmq.spark.sink.tasks import (
    Kept,
    Sent,
    keep_rows,
    place_of_task,
    refuse_tables,
    send_rows,
    without_route,
)

if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    # PySpark 4.0 gives batches of Arrow to each writer of this class, those of streams too.
    DataSourceStreamArrowWriter = DataSourceArrowWriter

# The module in which a stream's commit and abort run; see `_committing`.
_COMMIT_MODULE: Final = "pyspark.sql.worker.python_streaming_sink_runner"

_MS_PER_DAY: Final = 86_400_000

log = get_logger(__name__)

Messages = Sequence[WriterCommitMessage | None]


class _Writer:
    """The common part of both writers. It is created on the driver, which checks everything; its
    pickle goes to the tasks.
    """

    def __init__(self, given: Any, schema: Any, *, overwrite: bool, streaming: bool) -> None:
        if overwrite:
            raise IllegalArgumentError(
                "the sink rocketmq adds messages to topics and cannot overwrite what is there: use "
                + ('outputMode("append") or "update"' if streaming else 'mode("append")')
            )
        self._options = options = SinkOptions(given, streaming=streaming)
        check_columns(
            schema, options.topic, keep_origin=options.keep_origin, once=options.exactly_once
        )
        self._outbox = None if options.outbox is None else Outbox(options.outbox)
        self._decided: Decided | None = None

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        refuse_tables()
        if self._outbox is None:
            return send_rows(self._options, iterator)
        place = place_of_task(self._options)
        part = keep_rows(self._options, self._outbox, self._decided, place, iterator)
        return Kept(part)

    # Inside

    def _look_around(self, patience_s: float) -> None:
        """Check that a job may start: servers answer and let us in, and the topic exists."""
        options = self._options
        topics = [topic for topic in (options.topic, options.dead_letter_topic) if topic]
        if not topics:
            with options.new_reader() as reader:
                try:
                    patiently(reader.topics, patience_s)
                except RemotingError as error:
                    raise options.connecting.unreachable(error) from error
            return
        with options.new_producer() as producer:
            for topic in topics:
                try:
                    patiently(partial(producer.write_queues, topic), patience_s)
                except RemotingError as error:
                    raise options.connecting.unreachable(error) from error
                except RouteNotFoundError as error:
                    raise without_route(options, topic, error) from error
            producer.join()

    def _report_dead_letters(self, messages: Messages) -> None:
        """Log how many rows went to the dead-letter topic, which nothing else shows."""
        count = 0
        for message in messages:
            if isinstance(message, Kept):
                count += message.part.dead_letters
            elif isinstance(message, Sent):
                count += message.dead_letters
        if count:
            topic = self._options.dead_letter_topic
            log.warning("rows are dead letters", rows=count, topic=topic)

    def _commit(self, name: str, messages: Messages) -> None:
        assert self._outbox is not None, "exactly once"
        parts = [message.part for message in messages if isinstance(message, Kept)]
        commit_unit(self._options, self._outbox, name, parts)

    def _abort(self, name: str) -> None:
        if self._outbox is not None:
            with self._outbox.lock():
                self._outbox.unit(name).abandon()


class SinkWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch job."""

    def __init__(self, given: Any, schema: Any, *, overwrite: bool) -> None:
        super().__init__(given, schema, overwrite=overwrite, streaming=False)
        self._look_around(0.0)
        if self._outbox is not None:
            self._decided = self._outbox.job(self._id)

    @property
    def _id(self) -> str:
        assert self._options.transaction_id is not None, "exactly once needs one"
        return self._options.transaction_id

    def commit(self, messages: Messages) -> None:
        self._report_dead_letters(messages)
        if self._outbox is None:
            return
        name = job_unit(self._id)
        self._commit(name, messages)
        if self._options.keep_days:
            before_ms = SYSTEM_CLOCK.now_ms() - self._options.keep_days * _MS_PER_DAY
            self._outbox.forget_jobs(before_ms, but=name)

    def abort(self, messages: Messages) -> None:  # noqa: ARG002 - Spark's signature
        if self._outbox is not None:
            self._abort(job_unit(self._id))


class SinkStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes one batch of a stream. Spark creates one for the tasks, and another one to commit or
    abort.
    """

    def __init__(self, given: Any, schema: Any, *, overwrite: bool) -> None:
        super().__init__(given, schema, overwrite=overwrite, streaming=True)
        if _committing():
            return
        # A query goes on while its servers restart, so this waits for them.
        self._look_around(self._options.timeout_ms / 1000)
        if self._outbox is not None:
            self._decided = self._outbox.latest()

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        self._report_dead_letters(messages)
        if self._outbox is None:
            return
        self._commit(batch_unit(batchId), messages)
        self._outbox.forget_before(batchId)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        self._abort(batch_unit(batchId))


def _committing() -> bool:
    """Return whether this process commits or aborts a stream's batch.

    It then does not ask servers whether the job may start: the job has run, and an abort needs no
    server.
    """
    return _COMMIT_MODULE in sys.modules
