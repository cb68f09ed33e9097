"""Read the log of live brokers, or the store files of stopped ones.

Both kinds of log say which topics and groups they know, which offsets each queue has and how far
groups have consumed, and give the messages of ranges as a DataFrame. All pipelines read messages by
`read_live` and `read_store`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import CometMQError, ConfigError, RouteNotFoundError
from cometmq.model.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.configuration import ClusterConfig
from cometmq.pipelines.context import Context
from cometmq.pipelines.known_names import unknown_name
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.spark.gaps import Gap, noted_gaps
from cometmq.spark.jvm import reader_for, reads_in_jvm
from cometmq.spark.live.options import LiveOptions, table_of
from cometmq.spark.rows.columns import COLUMNS
from cometmq.spark.rows.schema import arrow_schema
from cometmq.store.reading.files import StoreFiles

Range = tuple[int, int]
Ranges = dict[MessageQueue, Range]
_NO_LOG: Final = 2**63 - 1


class MessageLog(Protocol):
    """A log that a pipeline reads. `what` names it in a few words; `reads_again` says that reading
    it again gives the same, and takes less time than keeping the rows.
    """

    what: str
    reads_again: bool

    def topics(self) -> set[str]:
        """Return all topics, including RocketMQ's own."""
        ...

    def groups(self) -> set[str]:
        """Return the consumer groups that brokers have met."""
        ...

    def gaps(self, topics: Collection[str]) -> list[Gap]:
        """Return the messages of these topics that could not be read so far."""
        ...

    def ranges(self, topics: Iterable[str]) -> Ranges:
        """Return, for each queue of these topics, the lowest offset that is there and the one that
        the next message will get. A topic that does not exist has no queues.
        """
        ...

    def frame(self, ranges: Mapping[MessageQueue, Range], columns: Collection[str]) -> Any:
        """Return the messages of these offsets. Leave out those that cannot be read, and note them
        as gaps.
        """
        ...

    def committed(self, group: str, topics: Iterable[str]) -> dict[MessageQueue, int | None]:
        """Return a group's offset of each queue, None where it has none; leave out queues for which
        the log does not know it.
        """
        ...

    def at_time(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """Return the first offset of each queue that was stored at this time or later."""
        ...

    def store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """Return when the message at one offset of each queue was stored, in ms since the epoch;
        None if that is not known.
        """
        ...


@contextmanager
def open_message_log(
    context: Context, stores: Mapping[str, str], work_path: str | None
) -> Iterator[MessageLog]:
    """Open the log of `stores`, directories by broker name; of the cluster if there are none.

    work_path: a directory that workers and driver see, where workers note what they cannot read.
        The files in it are removed afterwards. None: a temporary directory of this machine.

    Raise ConfigError if workers do not see the directory, or nothing can be written there.
    """
    if work_path is None and not context.spark.sparkContext.master.startswith("local"):
        raise ConfigError(
            "work_path is not given: on a cluster it names a directory that the driver and all "
            "workers see, for what the reading notes"
        )
    with ExitStack() as stack:
        try:
            noted = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="cometmq-gaps-", dir=work_path)
            )
        except OSError as error:
            if work_path is None:
                raise
            raise ConfigError(
                f"work_path is {work_path!r}, where nothing can be written: {error}"
            ) from error
        if stores:
            yield StoreLog(context.spark, stores, Path(noted))
        else:
            yield LiveLog(context.spark, context.cluster, Path(noted))


def check_topics(log: MessageLog, ranges: Ranges, topics: Iterable[str], key: str) -> None:
    """Raise ConfigError for a topic without a queue, named by the setting `key`."""
    for topic in topics:
        if not any(queue.topic == topic for queue in ranges):
            known = {name for name in log.topics() if not is_system_topic(name)}
            raise unknown_name(
                f"{key} names {topic}, of which {log.what} has no queue; there are", topic, known
            )


def schema_of(columns: Collection[str]) -> str:
    """Return the schema by which a source makes only these columns, in the order of all columns."""
    assert set(columns) <= COLUMNS.keys(), columns
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name in columns)


def read_live(
    spark: Any,
    options: Mapping[str, str],
    ranges: Mapping[MessageQueue, Range],
    columns: Collection[str] | None = None,
    gaps: Path | None = None,
) -> Any:
    """Return the messages of these offsets from live brokers, with these columns (None: all).

    Messages that are gone are noted in the directory `gaps`; if it is None they fail the job.
    """
    assigned: dict[str, dict[str, list[int]]] = {}
    for queue in sorted(ranges):
        brokers = assigned.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, []).append(queue.queue_id)
    return (
        _reader(spark, "rocketmq", columns, gaps)
        .options(
            **options,
            assign=_json(assigned),
            startingOffsets=_json(table_of({queue: low for queue, (low, _) in ranges.items()})),
            endingOffsets=_json(table_of({queue: end for queue, (_, end) in ranges.items()})),
        )
        .load()
    )


def read_store(
    spark: Any,
    path: str,
    topics: Collection[str],
    columns: Collection[str] | None = None,
    gaps: Path | None = None,
    *,
    broker: str | None,
    min_partitions: int = 1,
    push_filters: bool = False,
) -> Any:
    """Return all messages of these topics in the store directory `path` of the broker called
    `broker`.

    At least `min_partitions` tasks read them. `columns` and `gaps` are as in `read_live`. With
    `push_filters` the frame must be used in one place of each query, and always under a filter (see
    `push_where_allowed`).
    """
    reader = _reader(spark, "rocketmq-store", columns, gaps).option("reader", reader_for(spark))
    if broker is not None:
        reader = reader.option("brokerName", broker)
    if push_filters:
        reader = reader.option("pushFilters", "true")
    names = ",".join(sorted(topics))
    return reader.options(subscribe=names, minPartitions=str(min_partitions)).load(path)


def _reader(spark: Any, source: str, columns: Collection[str] | None, gaps: Path | None) -> Any:
    reader = spark.read.format(source)
    if columns is None:
        reader = reader.option("columns", "all")
    else:
        reader = reader.schema(schema_of(columns))
    if gaps is None:
        return reader.option("failOnDataLoss", "true")
    return reader.options(failOnDataLoss="false", gapLog=str(gaps))


def no_messages(spark: Any, columns: Collection[str]) -> Any:
    """Return an empty frame with these columns, which costs no task."""
    names = [name for name in COLUMNS if name in columns]
    return spark.createDataFrame(arrow_schema(names).empty_table())


class LiveLog:
    """Reads the log of live brokers. Raises RemotingError, RemoteError and RouteNotFoundError as
    clients do.
    """

    def __init__(self, spark: Any, cluster: ClusterConfig, gaps: Path) -> None:
        self._spark = spark
        self._options = cluster.options()
        self._gaps = gaps
        self.what = "the brokers' log"
        self.reads_again = False

    def topics(self) -> set[str]:
        with self._client() as client:
            return set(client.topics())

    def groups(self) -> set[str]:
        return groups_among(self.topics())

    def ranges(self, topics: Iterable[str]) -> Ranges:
        with self._client() as client:
            return client.offsets(_queues(client, topics))

    def frame(self, ranges: Mapping[MessageQueue, Range], columns: Collection[str]) -> Any:
        # Each read costs a process that plans it, so empty ranges are left out.
        ranges = {queue: bounds for queue, bounds in ranges.items() if bounds[0] < bounds[1]}
        if not ranges:
            return no_messages(self._spark, columns)
        return read_live(self._spark, self._options, ranges, columns, self._gaps)

    def gaps(self, topics: Collection[str]) -> list[Gap]:
        return _gaps_of(topics, self._gaps)

    def committed(self, group: str, topics: Iterable[str]) -> dict[MessageQueue, int | None]:
        with self._client() as client:
            return client.committed(group, _queues(client, topics))

    def at_time(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        with self._client() as client:
            return client.offsets_for_timestamp(queues, time_ms)

    def store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        with self._client() as client:
            return client.store_times(places)

    def _client(self) -> BlockingRangeReader:
        return LiveOptions(self._options | {"subscribe": "any"}, streaming=False).new_reader()


def groups_among(topics: Iterable[str]) -> set[str]:
    """Return the groups that have retry or dead-letter topics, as every group does that a broker
    has met.
    """
    return {
        topic.removeprefix(prefix)
        for topic in topics
        for prefix in (RETRY_PREFIX, DLQ_PREFIX)
        if topic.startswith(prefix)
    }


def _queues(client: BlockingRangeReader, topics: Iterable[str]) -> list[MessageQueue]:
    queues: list[MessageQueue] = []
    for topic in topics:
        with suppress(RouteNotFoundError):  # a topic without a route has no queues
            queues += client.queues(topic)
    return queues


class _OffsetTables(msgspec.Struct, rename="camel"):
    """config/consumerOffset.json: offsets by `topic@group` and queue id (Java: ConsumerOffsetManager)."""

    offset_table: dict[str, dict[int, int]] = {}


class StoreLog:
    """Reads the store directories `stores`, named by broker. Raises StoreUnusableError for a
    directory that is no store.
    """

    def __init__(self, spark: Any, stores: Mapping[str, str], gaps: Path) -> None:
        self._spark = spark
        self._stores = stores
        self._gaps = gaps
        self.what = f"the store {', '.join(stores.values())}"
        self.reads_again = reads_in_jvm(spark)

    def topics(self) -> set[str]:
        return {
            queue.topic for path in self._stores.values() for queue in StoreFiles(path).queues()
        }

    def groups(self) -> set[str]:
        tables = (_offset_table(path) or {} for path in self._stores.values())
        by_offsets = {name.rpartition("@")[2] for table in tables for name in table}
        return by_offsets | groups_among(self.topics())

    def ranges(self, topics: Iterable[str]) -> Ranges:
        wanted = set(topics)
        ranges = {}
        for broker, path in self._stores.items():
            files = StoreFiles(path)
            log = files.log_files()
            base = log[0].base if log else _NO_LOG
            for queue in files.queues():
                if queue.topic in wanted:
                    place = MessageQueue(queue.topic, broker, queue.queue_id)
                    ranges[place] = queue.bounds(base)
        return ranges

    def frame(self, ranges: Mapping[MessageQueue, Range], columns: Collection[str]) -> Any:
        frames = []
        for broker, path in self._stores.items():
            topics = {
                queue.topic
                for queue, (low, end) in ranges.items()
                if queue.broker_name == broker and low < end
            }
            if topics:
                frames.append(
                    read_store(self._spark, path, topics, columns, self._gaps, broker=broker)
                )
        if not frames:
            return no_messages(self._spark, columns)
        return reduce(lambda whole, frame: whole.unionByName(frame), frames)

    def gaps(self, topics: Collection[str]) -> list[Gap]:
        return _gaps_of(topics, self._gaps)

    def committed(self, group: str, topics: Iterable[str]) -> dict[MessageQueue, int | None]:
        wanted = set(topics)
        found = {}
        for broker, path in self._stores.items():
            table = _offset_table(path)
            if table is None:
                continue
            for queue in StoreFiles(path).queues():
                if queue.topic in wanted:
                    offsets = table.get(f"{queue.topic}@{group}", {})
                    place = MessageQueue(queue.topic, broker, queue.queue_id)
                    found[place] = offsets.get(queue.queue_id)
        return found

    def at_time(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        raise ConfigError(
            f"{self.what} is read as a whole, so it gives no offsets at {time_ms} for {queues}"
        )

    def store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        raise ConfigError(
            f"{self.what} is read as a whole, so it gives no store times for {places}"
        )


def _offset_table(store: str) -> dict[str, dict[int, int]] | None:
    """Read the store's file of consumer offsets; None for a copy of a store that lacks it."""
    file = Path(store) / "config" / "consumerOffset.json"
    if not file.exists():
        return None
    try:
        return decode_body(file.read_bytes(), _OffsetTables).offset_table
    except (OSError, CometMQError) as error:
        raise ConfigError(f"the consumer offsets {file} cannot be read: {error}") from error


def _gaps_of(topics: Collection[str], directory: Path) -> list[Gap]:
    return [gap for gap in noted_gaps(directory) if gap.topic in topics]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
