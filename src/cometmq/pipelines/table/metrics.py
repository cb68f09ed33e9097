"""Serve the figures of the service for Prometheus, at http://HOST:PORT/metrics.

The server of pages bounds connections and their times (`remoting/http/`), so that peers that never ask, or
never read, take no threads from the supervisor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cometmq.pipelines.table.board import Board
from cometmq.remoting.http.http_server import HttpAnswer, HttpRequest, HttpServer
from cometmq.runtime.portal import LoopThread

_TOPIC = ("topic",)


class TableMetrics(Collector):
    """Shows a board. Each scrape first calls `look`, for figures that are taken on demand only."""

    def __init__(self, board: Board, look: Callable[[], None] = lambda: None) -> None:
        self._board = board
        self._look = look

    def describe(self) -> Iterable[Metric]:
        return _Families().all

    def collect(self) -> Iterator[Metric]:
        self._look()
        shown = self._board.shown()
        found = _Families()
        found.running.add_metric([], int(shown.is_running))
        found.batches.add_metric([], shown.batches)
        for cause, count in shown.restarts.items():
            found.restarts.add_metric([cause.value], count)
        if shown.cpu_s is not None:
            found.cpu.add_metric([], shown.cpu_s)
        for topic, until_ms in shown.until_ms.items():
            found.freshness.add_metric([topic], self._board.age_s(until_ms))
            found.target.add_metric([topic], shown.target_s)
        for topic, count in shown.written.items():
            found.written.add_metric([topic], count)
        if shown.figures is not None:
            found.problems.add_metric([], shown.figures.problems)
            for one in shown.figures.topics:
                found.lag.add_metric([one.topic], one.lag)
                found.rows.add_metric([one.topic], one.rows)
                found.missing.add_metric([one.topic], one.missing)
                found.files.add_metric([one.topic], one.files)
                found.bytes.add_metric([one.topic], one.bytes)
                if one.undecodable is not None:
                    found.undecodable.add_metric([one.topic], one.undecodable)
                if one.undecoded is not None:
                    found.undecoded.add_metric([one.topic], one.undecoded)
            for table in shown.figures.tables:
                found.behind.add_metric([table.format], int(table.problem is not None))
        yield from found.all


class _Families:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        self.all: list[Metric] = []
        self.freshness = self._gauge(
            "freshness_seconds",
            "The tables have all messages stored at least this long ago.",
            _TOPIC,
        )
        self.target = self._gauge(
            "freshness_target_seconds", "The target freshness in pipeline.toml.", _TOPIC
        )
        self.lag = self._gauge("lag_messages", "Messages of the log that the tables lack.", _TOPIC)
        self.rows = self._gauge("rows", "Rows of the tables.", _TOPIC)
        self.missing = self._gauge(
            "missing_rows", "Messages that were gone before they could be archived.", _TOPIC
        )
        self.undecodable = self._gauge(
            "undecodable_rows", "Rows whose bodies do not fit the schema of their topic.", _TOPIC
        )
        self.undecoded = self._gauge(
            "undecoded_messages", "Archived messages that are not decoded yet.", _TOPIC
        )
        self.files = self._gauge("files", "Data files of the newest snapshot.", _TOPIC)
        self.bytes = self._gauge("bytes", "Bytes of the data files of the newest snapshot.", _TOPIC)
        self.problems = self._gauge("problems", "Problems that the last proof found.")
        self.behind = self._gauge(
            "behind", "1 while a table cannot be published, otherwise 0.", ("format",)
        )
        self.running = self._gauge("running", "1 while a driver runs, otherwise 0.")
        self.written = self._counter(
            "written_rows", "Rows written since the service started.", _TOPIC
        )
        self.batches = self._counter("batches", "Batches archived since the service started.")
        self.restarts = self._counter(
            "restarts", "Drivers that were killed, failed or stalled.", ("cause",)
        )
        self.cpu = self._counter(
            "cpu_seconds",
            "Processor time of the drivers, their Java and their workers on this machine.",
        )

    def _gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"cometmq_table_{name}", text, labels=list(labels))
        self.all.append(family)
        return family

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> CounterMetricFamily:
        family = CounterMetricFamily(f"cometmq_table_{name}", text, labels=list(labels))
        self.all.append(family)
        return family


@contextmanager
def served(metrics: TableMetrics, place: tuple[str, int]) -> Iterator[int]:
    """Serve metrics at a host and port within the context; yield the port. Raise ConfigError.

    A thread of its own answers one scrape at a time.
    """
    registry = CollectorRegistry()
    registry.register(metrics)

    async def page(_request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST)

    async def started() -> HttpServer:
        server = HttpServer(*place, port_key="metrics")
        server.add("/metrics", page)
        await server.start()
        return server

    thread = LoopThread("metrics")
    thread.start()
    try:
        server = thread.call(started())
        try:
            yield server.port
        finally:
            thread.call(server.close())
    finally:
        thread.stop()
