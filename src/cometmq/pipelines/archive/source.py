"""Read the queues to archive: from live brokers, or from the store directory of a stopped broker.

`message_logs` reads the messages. This module says which queues there are and which offsets they
have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from cometmq.client.range_reader import BlockingRangeReader
from cometmq.errors import ConfigError, IllegalArgumentError, RouteNotFoundError
from cometmq.model.names import is_system_topic
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.known_names import some_of
from cometmq.pipelines.message_logs import read_live, read_store
from cometmq.pipelines.small_tables import small_table
from cometmq.spark.live_options import LiveOptions
from cometmq.spark.live_plan import Range
from cometmq.spark.live_queues import LiveQueues
from cometmq.store.reading.files import StoreFiles

_PLACES: Final = ("topic", "queue_id", "queue_offset")

Ranges = Mapping[MessageQueue, Range]


class Source(Protocol):
    def bounds(
        self, known: Mapping[MessageQueue, int], /, *, all_of_them: bool
    ) -> dict[MessageQueue, Range]:
        """Return the first offset of each queue and the offset behind its last.

        Leave a queue out while its broker is away, unless `all_of_them` are needed. Raise
        CometMQError.
        """

    def rows(self, spark: Any, ranges: Ranges, gaps: Path | None) -> Any:
        """Return the messages of these ranges. Messages that are gone are noted in the directory
        `gaps`; if it is None they fail the job.
        """

    def archived(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Note that everything below these offsets is archived. Raise CometMQError."""

    def close(self) -> None: ...


class LiveSource:
    """Reads live brokers. `options` are those of every read from this cluster.

    Raises ConfigError unless `topics` or `pattern` says what to read.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        topics: list[str],
        pattern: str | None,
        min_partitions: int,
        commit_group: str | None,
    ) -> None:
        self._options = {**options, "minPartitions": str(min_partitions)}
        chosen = {"subscribePattern": pattern} if pattern else {"subscribe": ",".join(topics)}
        try:
            planned = LiveOptions({**self._options, **chosen}, streaming=False)
        except IllegalArgumentError as error:
            raise ConfigError(
                f"topics, topic_pattern or a key of the table [cluster] does not fit: {error}"
            ) from error
        self._queues = LiveQueues(planned)
        self._planned = planned
        self._pattern = pattern
        # Topics that no look-up has confirmed yet.
        self._unseen = set(topics)
        self._commit_group = commit_group
        self._reader: BlockingRangeReader | None = None

    def bounds(
        self, known: Mapping[MessageQueue, int], /, *, all_of_them: bool
    ) -> dict[MessageQueue, Range]:
        try:
            self._look_for_names(known)
            found = self._queues.bounds(self._client(), known, all_of_them=all_of_them)
        except RouteNotFoundError as error:
            raise ConfigError(
                f"topics names one that the name server {self._planned.namesrv} does not know: "
                f"{error}; see its name, or that its brokers are up"
            ) from error
        if not found and not known and self._pattern:
            raise ConfigError(
                f"topic_pattern is {self._pattern!r}, and no topic's whole name matches it; "
                "RocketMQ's own topics are archived only by name, in topics"
            )
        return found

    def rows(self, spark: Any, ranges: Ranges, gaps: Path | None) -> Any:
        return read_live(spark, self._options, ranges, gaps=gaps)

    def archived(self, offsets: Mapping[MessageQueue, int]) -> None:
        if self._commit_group:
            self._client().commit(self._commit_group, offsets)

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _look_for_names(self, known: Mapping[MessageQueue, int]) -> None:
        """Raise RouteNotFoundError for a topic that is neither in the archive nor in the cluster.

        `LiveQueues` would ignore a misspelt name and read the known queues only.
        """
        for topic in sorted(self._unseen - {queue.topic for queue in known}):
            self._client().queues(topic)
        self._unseen.clear()

    def _client(self) -> BlockingRangeReader:
        if self._reader is None:
            reader = self._planned.new_reader()
            reader.start()
            self._reader = reader
        return self._reader


class StoreSource:
    """Reads the store directory of the broker called `broker`."""

    def __init__(
        self,
        spark: Any,
        directory: str,
        broker: str,
        topics: list[str],
        pattern: str | None,
        min_partitions: int,
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._broker = broker
        self._min_partitions = min_partitions
        there = {queue.topic for queue in StoreFiles(directory).queues()}
        if pattern is not None:
            # As with live brokers, a pattern does not match RocketMQ's own topics.
            chosen = {t for t in there if re.fullmatch(pattern, t) and not is_system_topic(t)}
        else:
            chosen = set(topics)
        if not chosen <= there or not chosen:
            raise ConfigError(
                f"the store {directory} has no queues of {', '.join(sorted(chosen - there)) or pattern}"
                f"; it has those of {some_of(there)}"
            )
        self._topics = chosen

    def bounds(
        self, _known: Mapping[MessageQueue, int], /, *, all_of_them: bool
    ) -> dict[MessageQueue, Range]:
        from pyspark.sql import functions as F

        del all_of_them  # a store's queues are always there
        frame = self._frame(self._spark, _PLACES).groupBy("topic", "queue_id")
        found = frame.agg(F.min("queue_offset"), F.max("queue_offset")).collect()
        return {
            MessageQueue(topic, self._broker, queue_id): (low, high + 1)
            for topic, queue_id, low, high in found
        }

    def rows(self, spark: Any, ranges: Ranges, gaps: Path | None) -> Any:
        from pyspark.sql import functions as F

        wanted = small_table(
            spark,
            [(queue.topic, queue.queue_id, *bounds) for queue, bounds in ranges.items()],
            "topic string, queue_id int, start bigint, end bigint",
        )
        frame = self._frame(spark, gaps=gaps)
        joined = frame.join(F.broadcast(wanted), ["topic", "queue_id"])
        inside = (F.col("queue_offset") >= F.col("start")) & (F.col("queue_offset") < F.col("end"))
        return joined.where(inside).select(*frame.columns)

    def archived(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: nobody follows a directory by a consumer group."""

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def _frame(
        self, spark: Any, columns: Collection[str] | None = None, gaps: Path | None = None
    ) -> Any:
        return read_store(
            spark,
            self._directory,
            self._topics,
            columns,
            gaps,
            broker=self._broker,
            min_partitions=self._min_partitions,
        )
