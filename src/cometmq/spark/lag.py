"""Measure how far streaming queries and consumer groups are behind their topics.

A listener in Spark's driver measures queries:

    lag = LagListener()
    spark.streams.addListener(lag)
    lag.queues("orders-archive")     # messages behind, by queue
    lag.serve(9404)                  # for Prometheus; or lag.lines() where a page exists already

Spark takes no metrics from sources in Python, unless the session has the jar of `cometmq.spark.jvm`. But
Spark takes the ends of the queues (`reportLatestOffset`), and reports them with each batch beside the offsets that
the batch reached.

    group_lag("billing", namesrv="127.0.0.1:9876").progress.in_flight

The brokers know the lag of a group that consumes the output of a query, or for which a query commits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import StreamingQueryListener

from cometmq.admin.groups.pops import PoppedTopic
from cometmq.admin.groups.records import GroupProgress
from cometmq.admin.sync import AdminClient
from cometmq.client.namespaces import Namespace
from cometmq.model.queue import MessageQueue
from cometmq.spark.connecting import CONNECTING, Connecting
from cometmq.spark.live.options import LiveTable, offsets_of
from cometmq.spark.options import Options

_QUEUE: Final = ("query", "topic", "broker", "queue")
# Queries that were started again a thousand times must not fill the memory.
MAX_QUERIES: Final = 1000


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The report of a query's last batch: offsets by queue, as JSON has them, and the time in
    seconds since the epoch.
    """

    name: str
    run_id: str
    batch_id: int
    time_s: float
    ends: dict[MessageQueue, int]
    latest: dict[MessageQueue, int]

    @property
    def queues(self) -> dict[MessageQueue, int]:
        """Return how many messages each queue had that no batch has taken yet."""
        return {
            queue: max(0, end - self.ends.get(queue, end)) for queue, end in self.latest.items()
        }


@dataclass(frozen=True, slots=True)
class StoreLag:
    """The report of the last batch of a query that follows a store: the position in the commit log that the
    batch reached, and an estimate of the end of the log. For a query that follows several stores, it is the
    store that is furthest behind.
    """

    name: str
    run_id: str
    batch_id: int
    time_s: float
    position: int
    latest: int

    @property
    def bytes_behind(self) -> int:
        return max(0, self.latest - self.position)


Lag = TypeVar("Lag", QueryLag, StoreLag)


class LagListener(StreamingQueryListener, Collector):
    """Keeps the lag of each query that reads one of our sources, until the query ends.

    Queries go by their names (`queryName`), or by their ids. Spark calls the methods in a thread of
    its own; the others may be called in any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lags: dict[str, QueryLag] = {}
        self._stores: dict[str, StoreLag] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def queries(self) -> list[QueryLag]:
        """Return the report of the last batch of each running query."""
        with self._lock:
            return list(self._lags.values())

    def stores(self) -> list[StoreLag]:
        """Return the report of the last batch of each running query that follows a store."""
        with self._lock:
            return list(self._stores.values())

    def queues(self, query: str) -> dict[MessageQueue, int]:
        """Return how many messages a query is behind in each queue; {} if it had no batch yet."""
        return next((lag.queues for lag in reversed(self.queries()) if lag.name == query), {})

    def lines(self) -> str:
        """Return Prometheus' lines of all queries."""
        return generate_latest(self._registry).decode()

    def serve(self, port: int, host: str = "127.0.0.1") -> tuple[Any, threading.Thread]:
        """Serve the lines at http://host:port/metrics; return the server and its thread, as
        prometheus_client does.
        """
        return start_http_server(port, host, self._registry)

    # Called by Spark

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's names, here and below
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        ends: dict[MessageQueue, int] = {}
        latest: dict[MessageQueue, int] = {}
        batch = (
            progress.name or str(progress.id),
            str(progress.runId),
            progress.batchId,
            _time_s(progress.timestamp),
        )
        stores: list[StoreLag] = []
        for source in progress.sources:
            ends |= _offsets(source.endOffset)
            latest |= _offsets(source.latestOffset)
            reached, end = _position(source.endOffset), _position(source.latestOffset)
            if reached is not None and end is not None:
                stores.append(StoreLag(*batch, reached, end))
        if stores:
            self._keep(self._stores, max(stores, key=lambda store: store.bytes_behind))
        if latest:
            self._keep(self._lags, QueryLag(*batch, ends, latest))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        with self._lock:
            self._lags.pop(str(event.runId), None)
            self._stores.pop(str(event.runId), None)

    # Called by Prometheus

    def describe(self) -> Iterable[Metric]:
        return self._families()

    def collect(self) -> Iterator[Metric]:
        lag, offset, batch, time, behind = families = self._families()
        # One line for a name: the start of a query that was started again may be reported before its end is, and
        # Prometheus refuses a page that says something twice.
        for store in {store.name: store for store in self.stores()}.values():
            behind.add_metric([store.name], store.bytes_behind)
        both: dict[str, QueryLag | StoreLag] = {}
        both |= {store.name: store for store in self.stores()}
        both |= {query.name: query for query in self.queries()}
        for query in both.values():
            batch.add_metric([query.name], query.batch_id)
            time.add_metric([query.name], query.time_s)
            if isinstance(query, StoreLag):
                continue
            for queue, messages in sorted(query.queues.items()):
                labels = [query.name, queue.topic, queue.broker_name, str(queue.queue_id)]
                lag.add_metric(labels, messages)
                if queue in query.ends:
                    offset.add_metric(labels, query.ends[queue])
        yield from families

    # Inside

    def _keep(self, kept: dict[str, Lag], lag: Lag) -> None:
        with self._lock:
            kept.pop(lag.run_id, None)
            kept[lag.run_id] = lag
            while len(kept) > MAX_QUERIES:
                del kept[next(iter(kept))]

    def _families(self) -> list[GaugeMetricFamily]:
        def gauge(name: str, text: str, labels: Iterable[str]) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"cometmq_spark_{name}", text, labels=list(labels))

        return [
            gauge("lag_messages", "Messages of a queue that no batch has taken yet.", _QUEUE),
            gauge("next_offset", "The offset at which the next batch reads a queue.", _QUEUE),
            gauge("batch_id", "The number of the last batch.", _QUEUE[:1]),
            gauge("batch_timestamp_seconds", "When the last batch began.", _QUEUE[:1]),
            gauge(
                "lag_bytes",
                "Bytes of a store's commit log that no batch has taken yet, by estimate.",
                _QUEUE[:1],
            ),
        ]


class GroupLag(NamedTuple):
    """How far a consumer group is.

    progress: the lag by queue, as `cometmq admin consumerProgress` prints it.
    popped: by topic, the messages that the group has popped and not acknowledged. Each is invisible until it
        is acknowledged or its invisible time is over. None if a broker does not report them, as Java's brokers.
    """

    progress: GroupProgress
    popped: list[PoppedTopic] | None


def group_lag(group: str, **options: str) -> GroupLag:
    """Ask the brokers how far a group is.

    The options are those by which the sources connect. With `namespace`, the names of topics begin with it, as
    in the output of `consumerProgress`.

    Raises IllegalArgumentError for an option that does not fit, ConfigError for a file or variable that
    cannot be read, RemoteError if no broker knows the group, and ServersFailedError if some broker does
    not answer.
    """
    connecting = Connecting(Options("group_lag", options, CONNECTING, "function"))
    access = connecting.parameters()
    name = Namespace(access["namespace"]).wrap(group)
    with AdminClient(
        access["namesrv"], credentials=access["credentials"], tls=access["tls"]
    ) as admin:
        return GroupLag(admin.groups.progress(name), admin.groups.popped(name))


def _offsets(text: str | None) -> dict[MessageQueue, int]:
    """Return the offsets of a source, none if it is not ours."""
    if text is None:
        return {}
    try:
        return offsets_of(msgspec.json.decode(text, type=LiveTable))
    except (msgspec.DecodeError, ValueError):
        return {}


def _position(text: str | None) -> int | None:
    """Return the position in an offset of `rocketmq-store`, None for an offset of another source."""
    try:
        found = None if text is None else msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    position = found.get("commitLog") if isinstance(found, dict) else None
    return position if isinstance(position, int) else None


def _time_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
