"""Read the queues to archive: from live brokers, or from the store directory of a stopped broker.

`message_logs` reads the messages. This module says which queues there are and which offsets they
have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, Protocol

from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import CometMQError, ConfigError, IllegalArgumentError, RouteNotFoundError
from cometmq.logs.loggers import get_logger
from cometmq.model.names import is_system_topic
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.division import Range, Ranges, readings
from cometmq.pipelines.known_names import some_of
from cometmq.pipelines.message_logs import read_live, read_store
from cometmq.pipelines.small_tables import small_table
from cometmq.spark.live.identity import LiveIdentity, Marks
from cometmq.spark.live.options import LiveOptions
from cometmq.spark.live.queues import LiveQueues
from cometmq.spark.live.unknown_topics import unknown_topics
from cometmq.spark.rows.columns import COLUMNS
from cometmq.spark.stores.plan import LMQ_PREFIX
from cometmq.store.reading.files import StoreFiles, kept_from_brokers
from cometmq.store.reading.store_times import store_time_ms

log = get_logger(__name__)

_PLACES: Final = ("topic", "queue_id", "queue_offset")
_NO_LOG: Final = 2**63 - 1
# At most this many readings of a store make a batch. Each is planned by itself, and gives all offsets
# from its lowest to its highest for each of its queues.
_READINGS: Final = 8
# Up to this many queues the ranges become conditions, which are faster than a join with a table.
_MOST_CONDITIONS: Final = 64


class Source(Protocol):
    # Has the marks of the archive, and the queues that `bounds` found to be new ones.
    identity: LiveIdentity

    def marks(self, ends: Mapping[MessageQueue, int]) -> Marks:
        """Return a message of each queue below `ends`, by which the queue is recognised."""

    def bounds(
        self, known: Mapping[MessageQueue, int], /, *, all_of_them: bool
    ) -> dict[MessageQueue, Range]:
        """Return the first offset of each queue and the offset behind its last.

        Leave a queue out while its broker is away, unless `all_of_them` are needed. Raise
        CometMQError.
        """

    def rows(
        self,
        spark: Any,
        ranges: Ranges,
        gaps: Path | None,
        columns: Collection[str] = tuple(COLUMNS),
    ) -> Any:
        """Return the messages of these ranges, with these columns. Messages that are gone are noted
        in the directory `gaps`; if it is None they fail the job.
        """

    def archived(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Note that everything below these offsets is archived. Raise CometMQError."""

    def safe(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Note that everything below these offsets may expire. Raise CometMQError for the first
        refusal; later ones are only logged, because the next proof notes it again.
        """

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
        safe_group: str | None = None,
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
        self.identity = self._queues.identity
        self._planned = planned
        self._pattern = pattern
        # Topics that no look-up has confirmed yet.
        self._unseen = set(topics)
        self._commit_group = commit_group
        self._safe_group = safe_group
        self._has_marked = False
        self._reader: BlockingRangeReader | None = None

    def bounds(
        self, known: Mapping[MessageQueue, int], /, *, all_of_them: bool
    ) -> dict[MessageQueue, Range]:
        try:
            self._look_for_names(known)
            found = self._queues.bounds(self._client(), known, all_of_them=all_of_them)
        except RouteNotFoundError as error:
            if not self._unseen:  # name servers forget the topics of brokers that are away
                raise
            raise ConfigError(
                f"topics names one that the name server {self._planned.namesrv} does not know: "
                f"{error}; or see that its brokers are up"
            ) from error
        if not found and not known and self._pattern:
            raise ConfigError(
                f"topic_pattern is {self._pattern!r}, and no topic's whole name matches it; "
                "RocketMQ's own topics are archived only by name, in topics"
            )
        return found

    def marks(self, ends: Mapping[MessageQueue, int]) -> Marks:
        return self.identity.set(self._client(), ends)

    def rows(
        self,
        spark: Any,
        ranges: Ranges,
        gaps: Path | None,
        columns: Collection[str] = tuple(COLUMNS),
    ) -> Any:
        return read_live(spark, self._options, ranges, columns, gaps)

    def archived(self, offsets: Mapping[MessageQueue, int]) -> None:
        if self._commit_group:
            self._client().commit(self._commit_group, offsets)

    def safe(self, offsets: Mapping[MessageQueue, int]) -> None:
        if self._safe_group is None:
            return
        # By broker, so that one that is away does not keep the others from deleting.
        by_broker: dict[str, dict[MessageQueue, int]] = {}
        for queue, offset in offsets.items():
            by_broker.setdefault(queue.broker_name, {})[queue] = offset
        for broker, own in by_broker.items():
            try:
                self._client().commit(self._safe_group, own)
            except CometMQError as error:
                if not self._has_marked:
                    raise
                log.warning(
                    "a broker did not get the offsets that may expire",
                    broker=broker,
                    reason=str(error),
                )
        self._has_marked = True

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _look_for_names(self, known: Mapping[MessageQueue, int]) -> None:
        """Raise RouteNotFoundError for a topic that is neither in the archive nor in the cluster.

        `LiveQueues` would ignore a misspelt name and read the known queues only.
        """
        reader, unseen = self._client(), self._unseen - {queue.topic for queue in known}
        try:
            for topic in sorted(unseen):
                reader.queues(topic)
        except RouteNotFoundError as error:
            raise unknown_topics(reader, self._planned.namesrv, unseen, error) from error
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
        self._files = StoreFiles(directory)
        # Nobody writes to the store. A list of 10,000 queues takes half a second, and each batch needs one.
        self._queues = self._files.queues()
        there = {queue.topic for queue in self._queues}
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
        self._bounds: dict[MessageQueue, Range] | None = None
        self.identity = LiveIdentity(0.0)
        self._has_compared = False

    def marks(self, ends: Mapping[MessageQueue, int]) -> Marks:
        return self.identity.set(self, ends)

    def store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """Return when the message at one offset of each queue was stored, None if the log has no
        such message. The newest of several counts: after a crash the log may also have those of a
        deleted topic with the same name.
        """
        if not places:
            return {}
        return self._times_by_queues(places) if self._knows_queues() else self._times(places)

    def bounds(
        self, known: Mapping[MessageQueue, int], /, *, all_of_them: bool
    ) -> dict[MessageQueue, Range]:
        del all_of_them  # a store's queues are always there
        if self._bounds is None:
            # Nobody writes to the store, so the ends stay as they are.
            self._bounds = self._bounds_by_queues() if self._knows_queues() else self._counted()
        if self.identity.marks and not self._has_compared:
            # Once: the archive's marks may be of another topic, all later ones are of this store.
            self.identity.compare(self, self._bounds, known)
            self._has_compared = True
        return self._bounds

    def rows(
        self,
        spark: Any,
        ranges: Ranges,
        gaps: Path | None,
        columns: Collection[str] = tuple(COLUMNS),
    ) -> Any:
        frames = [
            self._within(spark, reading, gaps, columns) for reading in readings(ranges, _READINGS)
        ]
        return reduce(lambda whole, frame: whole.unionByName(frame), frames)

    def archived(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: a directory has no consumer groups."""

    def safe(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: no broker deletes files of a store that it does not run on."""

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def _within(
        self, spark: Any, ranges: Ranges, gaps: Path | None, columns: Collection[str]
    ) -> Any:
        """Return the messages of ranges that lie near each other, in one reading."""
        from pyspark.sql import functions as F

        # The filters below reach the source, which then reads no other queues and offsets.
        frame = self._frame(spark, {*columns, *_PLACES}, gaps, push_filters=True)
        low, end = (
            end(bounds[at] for bounds in ranges.values()) for at, end in ((0, min), (1, max))
        )
        frame = frame.where(
            F.col("topic").isin(sorted({queue.topic for queue in ranges}))
            & F.col("queue_id").isin(sorted({queue.queue_id for queue in ranges}))
            & (F.col("queue_offset") >= low)
            & (F.col("queue_offset") < end)
        )
        names = [name for name in COLUMNS if name in columns]
        if len(ranges) <= _MOST_CONDITIONS:
            return frame.where(reduce(or_, _conditions(ranges))).select(*names)
        wanted = small_table(
            spark,
            [(queue.topic, queue.queue_id, *bounds) for queue, bounds in ranges.items()],
            "topic string, queue_id int, start bigint, end bigint",
        )
        joined = frame.join(F.broadcast(wanted), ["topic", "queue_id"])
        inside = (F.col("queue_offset") >= F.col("start")) & (F.col("queue_offset") < F.col("end"))
        return joined.where(inside).select(*names)

    def _knows_queues(self) -> bool:
        """Say whether the consume queues agree with the log: after a crash they may lack messages,
        and queues of light topics hold messages of others.
        """
        borrowed = any(topic.startswith(LMQ_PREFIX) for topic in self._topics)
        return self._files.is_clean and not borrowed

    def _bounds_by_queues(self) -> dict[MessageQueue, Range]:
        with kept_from_brokers(self._directory):
            log = self._files.log_files()
            base = log[0].base if log else _NO_LOG
            return {
                MessageQueue(queue.topic, self._broker, queue.queue_id): queue.bounds(base)
                for queue in self._queues
                if queue.topic in self._topics
            }

    def _counted(self) -> dict[MessageQueue, Range]:
        from pyspark.sql import functions as F

        frame = self._frame(self._spark, (*_PLACES, "commit_log_offset"))
        # The log may still have messages of a topic that was deleted and created again, with higher
        # offsets than the newest message.
        newest = F.max_by("queue_offset", "commit_log_offset")
        found = frame.groupBy("topic", "queue_id").agg(F.min("queue_offset"), newest).collect()
        return {
            MessageQueue(topic, self._broker, queue_id): (low, high + 1)
            for topic, queue_id, low, high in found
        }

    def _times_by_queues(
        self, places: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int | None]:
        with kept_from_brokers(self._directory):
            log = self._files.log_files()
            there = {(queue.topic, queue.queue_id): queue for queue in self._queues}
            files = {queue: there.get((queue.topic, queue.queue_id)) for queue in places}
            return {
                queue: None if own is None else store_time_ms(own, places[queue], log)
                for queue, own in files.items()
            }

    def _times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """Read the whole log: after a crash, consume queues may lack the messages."""
        from pyspark.sql import functions as F

        wanted = small_table(
            self._spark,
            [(queue.topic, queue.queue_id, offset) for queue, offset in places.items()],
            "topic string, queue_id int, queue_offset bigint",
        )
        frame = self._frame(self._spark, (*_PLACES, "store_time"))
        found = frame.join(F.broadcast(wanted), list(_PLACES)).groupBy("topic", "queue_id")
        times = {
            MessageQueue(topic, self._broker, queue_id): stored_ms
            for topic, queue_id, stored_ms in found.agg(
                F.unix_millis(F.max("store_time"))
            ).collect()
        }
        return {queue: times.get(queue) for queue in places}

    def _frame(
        self,
        spark: Any,
        columns: Collection[str] | None = None,
        gaps: Path | None = None,
        *,
        push_filters: bool = False,
    ) -> Any:
        return read_store(
            spark,
            self._directory,
            self._topics,
            columns,
            gaps,
            broker=self._broker,
            min_partitions=self._min_partitions,
            push_filters=push_filters,
        )


def _conditions(ranges: Ranges) -> Iterator[Any]:
    """Yield conditions of which each message of the ranges meets one."""
    from pyspark.sql import functions as F

    alike: dict[tuple[str, Range], list[int]] = {}
    for queue, bounds in ranges.items():
        alike.setdefault((queue.topic, bounds), []).append(queue.queue_id)
    for (topic, (start, end)), queue_ids in alike.items():
        yield (
            (F.col("topic") == topic)
            & F.col("queue_id").isin(queue_ids)
            & (F.col("queue_offset") >= start)
            & (F.col("queue_offset") < end)
        )
