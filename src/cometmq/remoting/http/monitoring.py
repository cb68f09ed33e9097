"""Serve `/metrics`, `/health` and `/ready` of a server.

A scrape is put together on the loop, in slices of SLICE_S with the loop's other work in between.
Scrapers that ask while one is put together get the same one, and so do those that ask within
SHARED_FOR_S after it. A thread reads the figures that come from the system
(`/proc`, disks).
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from cometmq._version import __version__
from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.metrics import catalogue as m
from cometmq.metrics.exposition import CONTENT_TYPE, Exposition
from cometmq.metrics.limit_hits import LimitHits
from cometmq.metrics.limits import LIMITS, Limit
from cometmq.model.measures.histogram import LATENCY_BITS, bounds, latencies
from cometmq.protocol.codes import OwnRequestCode, RequestCode, ResponseCode
from cometmq.remoting import connection
from cometmq.remoting.dispatch import UNSERVED, Handlers
from cometmq.remoting.holdings import Holdings
from cometmq.remoting.http.http_server import HttpAnswer, HttpRequest, HttpServer, text
from cometmq.remoting.protected import ProtectedMode
from cometmq.runtime.clock import Clock
from cometmq.runtime.slices import SLICE_S
from cometmq.runtime.sockets.addresses import bare_host, is_loopback
from cometmq.runtime.sockets.network import TCP_NETWORK, Network

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

log = get_logger(__name__)

SHARED_FOR_S: Final = 1.0
PORT_KEY: Final = "metricsPromExporterPort"
LATENCY_BOUNDS_S: Final = [bound / 1e6 for bound in bounds(LATENCY_BITS)]
_LATENCY_BOUNDS_MS: Final = [bound / 1e3 for bound in bounds(LATENCY_BITS)]
_SAMPLE_PERIOD_S: Final = 1.0
# A scrape waits so long for the machine's answers; a disk that hangs must not hide the rest.
_MACHINE_S: Final = 2.0

# Writes samples, and yields where the loop may do other work.
Collector = Callable[[Exposition], Iterator[None]]


class Monitoring:
    """Serves the pages of one server. For the loop's thread only.

    `base` has the values of BASE_LABELS. `state` says why the server is not ready, "" if it is; it
    may be replaced. A server that serves no requests of the remoting protocol has neither `handlers` nor
    `holdings`, and `limit_hits` of its own. `protection` decides who may read more than `/health` and `/ready`. Functions in `machine` are called in a thread before each scrape, and those in
    `collectors` on the loop afterwards.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        base: Mapping[str, str],
        clock: Clock,
        handlers: Handlers | None,
        holdings: Holdings | None,
        connection_count: Callable[[], int],
        limit_hits: LimitHits | None = None,
        limits: Mapping[str, Limit] = LIMITS,
        protection: ProtectedMode | None = None,
        network: Network = TCP_NETWORK,
    ) -> None:
        self.base = dict(base)
        self._server = m.Server(base["node_type"])
        self.state: Callable[[], str] = lambda: "the server is starting"
        self.machine: list[Callable[[], None]] = [self._look_at_process]
        self.collectors: list[Collector] = [self._collect]
        self.http = HttpServer(
            host, port, port_key=PORT_KEY, protection=protection, network=network
        )
        self._is_open = protection is None and not is_loopback(bare_host(host))
        hits = handlers.limit_hits if handlers is not None else limit_hits
        assert hits is not None, "a server without handlers counts its limits itself"
        self._limit_hits = hits
        self._limits = limits
        self.http.on_limit = hits.hit
        self.http.add("/metrics", self._metrics)
        self.http.add("/health", self._health, for_all=True)
        self.http.add("/ready", self._ready, for_all=True)
        self._monotonic = clock.monotonic
        self._handlers = handlers
        self._holdings = holdings
        self._connection_count = connection_count
        self._began_s = self._monotonic()
        self._loop_delays = latencies()
        self._sampled_s: float | None = None
        self._process: list[Family] = []
        self._looking: asyncio.Future[None] | None = None
        self._scraping: asyncio.Task[bytearray] | None = None
        self._scrape = bytearray()
        self._scraped_s: float | None = None
        self._scrape_count = 0
        self.took_s = self.longest_slice_s = 0.0
        self.machine_s = _MACHINE_S

    async def start(self) -> None:
        """Listen. Raises ConfigError when the port is taken."""
        await self.http.start()
        self.http.tasks.every(_SAMPLE_PERIOD_S, self._sample, "loop-delay")
        log.info("metrics are served", address=self.http.address)
        if self._is_open:
            log.warning(
                "whoever reaches the port for metrics is served",
                address=self.http.address,
                meaning="protectedMode is false, and no access control guards /metrics and /lag, which "
                "name topics and groups",
                remedy="take protectedMode=false out and name the scrapers in metricsFrom, or let only "
                "trusted hosts reach the port (metricsPromExporterHost, a firewall)",
            )

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        await self.http.close()

    # -- pages --

    async def _health(self, _request: HttpRequest) -> HttpAnswer:
        return text("alive")

    async def _ready(self, _request: HttpRequest) -> HttpAnswer:
        reason = self.state()
        return text(reason, HTTPStatus.SERVICE_UNAVAILABLE) if reason else text("ready")

    async def _metrics(self, _request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(HTTPStatus.OK, await self.scrape(), CONTENT_TYPE)

    async def scrape(self) -> bytearray:
        """Return all metrics, put together now or within the last SHARED_FOR_S."""
        age_s = self._monotonic() - self._scraped_s if self._scraped_s is not None else SHARED_FOR_S
        if age_s < SHARED_FOR_S:
            return self._scrape
        if self._scraping is None or self._scraping.done():
            self._scraping = self.http.tasks.spawn(
                self._put_together(), "scrape", log_failure=False
            )
        # A scraper that goes away must not end the scrape of the others.
        return await asyncio.shield(self._scraping)

    async def _put_together(self) -> bytearray:
        began_s = self._monotonic()
        await self._ask_machine()
        out = Exposition(self.base)
        longest_s = 0.0
        slice_s = self._monotonic()
        for collect in self.collectors:
            for _ in collect(out):
                if self._monotonic() - slice_s >= SLICE_S:
                    out.pack()
                    longest_s = max(longest_s, self._monotonic() - slice_s)
                    await asyncio.sleep(0)
                    slice_s = self._monotonic()
        # Of the scrape before this one.
        out.one(m.SCRAPE_DURATION, self.took_s)
        out.one(m.SCRAPE_LONGEST_SLICE, self.longest_slice_s)
        self._scrape_count += 1
        out.one(m.SCRAPES, self._scrape_count)
        self._scrape = out.text()
        self._scraped_s = now_s = self._monotonic()
        self.took_s = now_s - began_s
        self.longest_slice_s = max(longest_s, now_s - slice_s)
        return self._scrape

    async def _ask_machine(self) -> None:
        if self._looking is None or self._looking.done():
            loop = asyncio.get_running_loop()
            self._looking = loop.run_in_executor(None, self._look_at_machine)
        await asyncio.wait([self._looking], timeout=self.machine_s)

    def _look_at_machine(self) -> None:
        for look in self.machine:
            try:
                look()
            except (OSError, CometMQError) as error:
                log.warning("no figures of the machine", reason=str(error))

    # -- what every server has --

    def _sample(self) -> None:
        now_s = self._monotonic()
        if self._sampled_s is not None:
            late_s = max(0.0, now_s - self._sampled_s - _SAMPLE_PERIOD_S)
            self._loop_delays.add(int(late_s * 1e6))
        self._sampled_s = now_s

    def _look_at_process(self) -> None:
        from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
        from prometheus_client.registry import CollectorRegistry

        process: list[Family] = list(ProcessCollector(registry=None).collect())
        process += GCCollector(registry=CollectorRegistry()).collect()
        process += PlatformCollector(registry=None).collect()
        self._process = process

    def _collect(self, out: Exposition) -> Iterator[None]:
        out.begin(m.BUILD_INFO)
        out.sample(1, __version__, platform.python_version(), _compiled())
        out.one(m.READY, 0 if self.state() else 1)
        out.one(m.UPTIME, self._monotonic() - self._began_s)
        out.one(m.CONNECTIONS, self._connection_count())
        if self._holdings is not None:
            out.one(m.BYTES_IN_FLIGHT, self._holdings.total_bytes)
            out.one(m.BYTES_IN_FLIGHT_LIMIT, self._holdings.limit_bytes)
        out.begin(m.LOOP_DELAY, LATENCY_BOUNDS_S)
        out.histogram(self._loop_delays.counts, self._loop_delays.total / 1e6)
        yield
        if self._handlers is not None:
            yield from self._requests(self._handlers, out)
        yield from self._of_limits(out)
        if self._process:
            out.families(self._process)
        yield

    def _requests(self, handlers: Handlers, out: Exposition) -> Iterator[None]:
        out.begin(m.RPC_LATENCY, _LATENCY_BOUNDS_MS)
        times = handlers.meter.times if handlers.meter is not None else {}
        for code, histogram in list(times.items()):
            if histogram.total or any(histogram.counts):
                out.histogram(
                    histogram.counts, histogram.total / 1e3, "remoting", request_name(code)
                )
            yield
        out.begin(m.REFUSED_REQUESTS)
        for (code, answer), count in sorted(handlers.refused.items()):
            out.sample(count, request_name(code), _name(answer, [ResponseCode]))
            yield

    def _of_limits(self, out: Exposition) -> Iterator[None]:
        out.begin(m.LIMIT_HITS)
        counts = self._limit_hits.counts
        # Limits that were never hit have a 0, so that an alert can notice the first hit.
        for limit in self._limits.values():
            if self._server in limit.servers:
                out.sample(counts.get(limit.name, 0), limit.name)
        yield


def request_name(code: int) -> str:
    """Return the name of a request's code as Java's metrics have it."""
    return "unsupported" if code == UNSERVED else _name(code, [RequestCode, OwnRequestCode])


def _name(code: int, kinds: Iterable[type[RequestCode | OwnRequestCode | ResponseCode]]) -> str:
    for kind in kinds:
        with suppress(ValueError):
            return kind(code).name.lower()
    return str(code)


def _compiled() -> str:
    return "false" if str(connection.__file__).endswith(".py") else "true"
