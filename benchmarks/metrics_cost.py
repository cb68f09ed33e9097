"""Measure the cost of metrics for a send: processor time of two brokers in one process, one with them.

    python -m benchmarks.metrics_cost               # a minute; prints a table
    python -m benchmarks.metrics_cost --pairs 50    # shorter, and less exact

Two runs of one broker differ by a tenth and more on a machine that others share, which hides a cost
of one per cent. So both brokers live in this process and take turns every few milliseconds with the
same frames, which reach them without a socket. Whatever the machine does meanwhile happens to both. A
figure is the median of the pairs' ratios, with the range in which it lies at 95 per cent
(bootstrap). A scrape is measured apart and counted as if it came every 15 seconds, as Prometheus
asks by default, to a broker whose loop the sends keep busy.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import structlog
from rich.console import Console
from rich.table import Table

from benchmarks.frames import FIRST_OPAQUE, QUEUES_PER_TOPIC, send_template, unique_prefix
from benchmarks.report import machine
from benchmarks.send_path import OUTPUT_COLUMNS, ROWS
from cometmq.broker.config import broker_configs
from cometmq.broker.server import Broker
from cometmq.runtime.loop import run
from cometmq.runtime.sockets.network import TcpNetwork

if TYPE_CHECKING:
    from benchmarks.measure import Row
    from cometmq.runtime.sockets.network import Listener

SCRAPED_EVERY_S: Final = 15.0
SENDS_OF_A_SLICE: Final = 1024
_SCRAPES: Final = 20
_RESAMPLES: Final = 2000
_SUCCESS: Final = b'"code":0,'


class _CapturingNetwork(TcpNetwork):
    """Keeps the factory by which a broker makes the protocol object of a connection."""

    def __init__(self) -> None:
        self.factories: list[Callable[[], asyncio.Protocol]] = []

    async def listen(
        self, new_protocol: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> Listener:
        self.factories.append(new_protocol)
        return await super().listen(new_protocol, host, port, **options)


class _Peer(asyncio.Transport):
    """Stands for a client: counts the answers that say success and drops them."""

    def __init__(self, protocol: asyncio.Protocol, number: int) -> None:
        super().__init__({"peername": ("127.0.0.1", 40_000 + number), "sockname": ("127.0.0.1", 1)})
        self.protocol = protocol
        self.acked = 0
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.acked += bytes(data).count(_SUCCESS)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close


class Subject:
    """One broker, and the connections over which the frames of one row reach it."""

    def __init__(self, directory: Path, *, metrics: bool) -> None:
        network = _CapturingNetwork()
        properties = {
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "vipChannelEnable": "false",
            "storePathRootDir": str(directory),
            "metricsExporterType": "PROM" if metrics else "DISABLE",
            "metricsPromExporterPort": "0",
        }
        self.broker = Broker(*broker_configs(properties, source="properties"), network=network)
        self._network = network
        self._peers: list[_Peer] = []

    async def connect(self, row: Row, reads: Sequence[bytes]) -> None:
        """Make the connections of a row, and its topic, which takes longer than a turn."""
        # The broker's own listener comes last; that of the metrics comes before it.
        new_protocol = self._network.factories[-1]
        self._peers = [_Peer(new_protocol(), number) for number in range(row.connections)]
        for peer, read in zip(self._peers, reads, strict=True):
            peer.protocol.connection_made(peer)
            peer.protocol.data_received(read)
        async with asyncio.timeout(10):
            while self._acked() < row.connections * row.in_flight:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)

    async def serve(self, reads: Sequence[bytes], sends: int) -> float:
        """Serve one read of each connection, again and again.

        Return the ns of this thread for each send.
        """
        acked = self._acked()
        turns = max(1, SENDS_OF_A_SLICE // sends)
        began_ns = time.thread_time_ns()
        for _ in range(turns):
            for peer, read in zip(self._peers, reads, strict=True):
                peer.protocol.data_received(read)
            await asyncio.sleep(0)  # the answers leave at the end of the turn
        took_ns = time.thread_time_ns() - began_ns
        await asyncio.sleep(0)
        acked = self._acked() - acked
        if acked != turns * sends:
            raise SystemExit(f"{turns * sends} sends, but {acked} were acknowledged")
        return took_ns / (turns * sends)

    def _acked(self) -> int:
        return sum(peer.acked for peer in self._peers)


def reads_of(row: Row) -> list[bytes]:
    """Return what one read of each connection brings: as many sends as it has outstanding."""
    templates = [
        send_template(row.topic, queue_id, row.body_bytes, unique_prefix())
        for queue_id in range(QUEUES_PER_TOPIC)
    ]
    return [
        b"".join(
            templates[number % QUEUES_PER_TOPIC].frame(FIRST_OPAQUE + number)
            for number in range(connection * row.in_flight, (connection + 1) * row.in_flight)
        )
        for connection in range(row.connections)
    ]


def median_and_range(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and between what it lies with 95 per cent."""
    draw = random.Random(1)
    medians = sorted(
        statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES)
    )
    return statistics.median(ratios), medians[_RESAMPLES // 40], medians[-_RESAMPLES // 40]


async def scrape_ns(broker: Broker) -> int:
    """Return the processor time of a scrape on the loop, the median of some."""
    times = []
    with patch("cometmq.remoting.http.monitoring.SHARED_FOR_S", 0.0):
        for _ in range(_SCRAPES):
            began_ns = time.thread_time_ns()
            await broker.monitoring.scrape()
            times.append(time.thread_time_ns() - began_ns)
    return int(statistics.median(times))


async def measure(pairs: int, console: Console) -> None:
    table = Table("row", "off, µs/send", "on, µs/send", "on / off", "95 % range of it")
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as directory:
        off = Subject(Path(directory) / "off", metrics=False)
        on = Subject(Path(directory) / "on", metrics=True)
        await off.broker.start()
        await on.broker.start()
        try:
            for row in dict.fromkeys(row for row in ROWS if not row.one_core):
                reads, sends = reads_of(row), row.connections * row.in_flight
                await off.connect(row, reads)
                await on.connect(row, reads)
                times: dict[Subject, list[float]] = {off: [], on: []}
                for number in range(pairs + pairs // 5):
                    for subject in (off, on) if number % 2 else (on, off):
                        times[subject].append(await subject.serve(reads, sends))
                kept = {each: figures[pairs // 5 :] for each, figures in times.items()}  # warm
                ratios = [b / a for a, b in zip(kept[off], kept[on], strict=True)]
                median, low, high = median_and_range(ratios)
                table.add_row(
                    row.title,
                    f"{statistics.median(kept[off]) / 1000:.2f}",
                    f"{statistics.median(kept[on]) / 1000:.2f}",
                    f"{median:.3f}",
                    f"{low:.3f}–{high:.3f}",
                )
            scrape_s = await scrape_ns(on.broker) / 1e9
        finally:
            await on.broker.close()
            await off.broker.close()
    console.print(table)
    console.print(
        f"A scrape takes {scrape_s * 1000:.1f} ms of the loop; every {SCRAPED_EVERY_S:.0f} s that is "
        f"{scrape_s / SCRAPED_EVERY_S:.2%} of it."
    )
    for name, value in machine().items():
        console.print(f"{name}: {value}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metrics_cost", description=__doc__)
    parser.add_argument("--pairs", type=int, default=400, help="slices of each broker and row")
    options = parser.parse_args(arguments)
    if options.pairs < 10:
        parser.error(f"--pairs {options.pairs}: give 10 or more, fewer have no range")
    console = Console()
    if not console.is_terminal:
        console = Console(width=OUTPUT_COLUMNS)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    gc.freeze()
    run(measure(options.pairs, console))
    return 0


if __name__ == "__main__":
    sys.exit(main())
