"""The log that a pipeline looks into: of live brokers, or the files of brokers that are stopped.

Both give the same: which offsets each queue has, the messages of ranges of them as a DataFrame, and
how far groups have come.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from cometmq.admin.offsets import OffsetsAdmin
from cometmq.client.namespaces import Namespace
from cometmq.errors import CometMQError, ConfigError, RouteNotFoundError
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.configuration import ClusterConfig
from cometmq.pipelines.context import Context
from cometmq.pipelines.targets import connecting_to
from cometmq.protocol.json_dialect import decode_body
from cometmq.runtime.loop import run
from cometmq.spark.gaps import Gap, noted_gaps
from cometmq.spark.live_options import LiveOptions, table_of
from cometmq.spark.schema import COLUMNS, arrow_schema
from cometmq.store.reading.files import StoreFiles

Range = tuple[int, int]
Ranges = dict[MessageQueue, Range]
_NO_LOG: Final = 2**63 - 1


class MessageLog(Protocol):
    """`what` says in a few words which log it is."""

    what: str

    def gaps(self, topics: Collection[str]) -> list[Gap]:
        """What could not be read so far, of these topics."""
        ...

    def ranges(self, topics: Iterable[str]) -> Ranges:
        """Of each queue of these topics the lowest offset that is there, and the one that the next
        message will get. A topic that does not exist has no queues.
        """
        ...

    def frame(self, ranges: Mapping[MessageQueue, Range], columns: Collection[str]) -> Any:
        """The messages of these offsets. What cannot be read is left out and noted as a gap."""
        ...

    def committed(self, group: str, topics: Iterable[str]) -> dict[MessageQueue, int]:
        """The offsets of a group, of the queues where it has one."""
        ...


@contextmanager
def open_message_log(
    context: Context, stores: Mapping[str, str], work_path: str | None
) -> Iterator[MessageLog]:
    """The log of `stores`, directories by broker name; of the cluster where there are none.

    work_path: where workers note what they cannot read, a directory that they and the driver see. What
        is made there is removed afterwards. None: a temporary one of this machine.

    Raises ConfigError where workers do not see it, or nothing can be written.
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


def schema_of(columns: Collection[str]) -> str:
    """The schema for a source that is to make these columns alone, in the order of all."""
    assert set(columns) <= COLUMNS.keys(), columns
    return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name in columns)


def no_messages(spark: Any, columns: Collection[str]) -> Any:
    """A frame of these columns without a row, which costs no task."""
    names = [name for name in COLUMNS if name in columns]
    return spark.createDataFrame(arrow_schema(names).empty_table())


class LiveLog:
    """Raises RemotingError, RemoteError and RouteNotFoundError as clients do."""

    def __init__(self, spark: Any, cluster: ClusterConfig, gaps: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._options = cluster.options()
        self._gaps = gaps
        self.what = "the brokers' log"

    def ranges(self, topics: Iterable[str]) -> Ranges:
        options = LiveOptions(self._options | {"subscribe": "any"}, streaming=False)
        queues: list[MessageQueue] = []
        with options.new_reader() as reader:
            for topic in topics:
                try:
                    queues += reader.queues(topic)
                except RouteNotFoundError:
                    continue
            return reader.offsets(queues)

    def frame(self, ranges: Mapping[MessageQueue, Range], columns: Collection[str]) -> Any:
        # Whatever is read costs a process that plans it.
        ranges = {queue: bounds for queue, bounds in ranges.items() if bounds[0] < bounds[1]}
        if not ranges:
            return no_messages(self._spark, columns)
        reader = self._spark.read.format("rocketmq").schema(schema_of(columns))
        assigned: dict[str, dict[str, list[int]]] = {}
        for queue in sorted(ranges):
            assigned.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(
                queue.queue_id
            )
        return reader.options(
            **self._options,
            assign=_json(assigned),
            startingOffsets=_json(table_of({queue: low for queue, (low, _) in ranges.items()})),
            endingOffsets=_json(table_of({queue: end for queue, (_, end) in ranges.items()})),
            failOnDataLoss="false",
            gapLog=str(self._gaps),
        ).load()

    def gaps(self, topics: Collection[str]) -> list[Gap]:
        return _gaps_of(topics, self._gaps)

    def committed(self, group: str, topics: Iterable[str]) -> dict[MessageQueue, int]:
        return run(self._committed(group, list(topics)))

    async def _committed(self, group: str, topics: Sequence[str]) -> dict[MessageQueue, int]:
        namespace = Namespace(self._cluster.namespace)
        found = {}
        access = connecting_to(self._cluster).parameters()
        async with OffsetsAdmin(
            access["namesrv"], credentials=access["credentials"], tls=access["tls"]
        ) as admin:
            for topic in topics:
                try:
                    queues = await admin.topic_offsets(namespace.wrap(topic), namespace.wrap(group))
                except RouteNotFoundError:
                    continue
                for offsets in queues:
                    if offsets.committed_offset is not None:
                        queue = namespace.unwrap_queue(offsets.queue)
                        found[queue] = offsets.committed_offset
        return found


class _OffsetTables(msgspec.Struct, rename="camel"):
    """config/consumerOffset.json: offsets by `topic@group` and queue id (Java: ConsumerOffsetManager)."""

    offset_table: dict[str, dict[int, int]] = {}


class StoreLog:
    """`stores` are directories by broker name. Raises StoreUnusableError for what is no store."""

    def __init__(self, spark: Any, stores: Mapping[str, str], gaps: Path) -> None:
        self._spark = spark
        self._stores = stores
        self._gaps = gaps
        self.what = f"the store {', '.join(stores.values())}"

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
                reader = self._spark.read.format("rocketmq-store").schema(schema_of(columns))
                options = {
                    "subscribe": ",".join(sorted(topics)),
                    "brokerName": broker,
                    "failOnDataLoss": "false",
                    "gapLog": str(self._gaps),
                }
                frames.append(reader.options(**options).load(path))
        if not frames:
            return no_messages(self._spark, columns)
        return reduce(lambda whole, frame: whole.unionByName(frame), frames)

    def gaps(self, topics: Collection[str]) -> list[Gap]:
        return _gaps_of(topics, self._gaps)

    def committed(self, group: str, topics: Iterable[str]) -> dict[MessageQueue, int]:
        found = {}
        for broker, path in self._stores.items():
            file = Path(path) / "config" / "consumerOffset.json"
            if not file.exists():
                continue
            try:
                table = decode_body(file.read_bytes(), _OffsetTables).offset_table
            except (OSError, CometMQError) as error:
                raise ConfigError(f"the consumer offsets {file} cannot be read: {error}") from error
            for topic in topics:
                for queue_id, offset in table.get(f"{topic}@{group}", {}).items():
                    found[MessageQueue(topic, broker, queue_id)] = offset
        return found


def _gaps_of(topics: Collection[str], directory: Path) -> list[Gap]:
    return [gap for gap in noted_gaps(directory) if gap.topic in topics]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
