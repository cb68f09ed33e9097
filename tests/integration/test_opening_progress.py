"""Test that a broker which recovers a large store says how far it is."""

from __future__ import annotations

from pathlib import Path

import structlog
from tests.integration.raw_client import RawClient, send_ext

from cometmq.broker.config import BrokerConfig
from cometmq.broker.server import Broker
from cometmq.broker.storage.opening import OpeningProgress
from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock, SystemClock
from cometmq.runtime.portal import LoopThread
from cometmq.store.config import StoreConfig


class SlowClock(SystemClock):
    """Shows three seconds more at each look."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 3
        return self.seconds


class ManualClock(SystemClock):
    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def run(root: Path, clock: BlockingClock, messages: int) -> None:
    """One life of a broker, to a clean stop."""
    thread = LoopThread("broker")
    thread.start()
    broker = Broker(
        BrokerConfig(
            broker_name="b", broker_ip1="127.0.0.1", bind_address="127.0.0.1", listen_port=0
        ),
        StoreConfig(
            store_path_root_dir=root,
            mapped_file_size_commit_log=1 << 16,
            # Sends are not refused because another process keeps the disk busy.
            os_page_cache_busy_time_out_mills=60_000,
        ),
        clock=clock,
    )
    thread.call(broker.start())
    try:
        with RawClient(f"127.0.0.1:{broker.port}") as client:
            for _ in range(messages):
                assert client.ask(10, send_ext("T"), b"x").code == 0
    finally:
        thread.call(broker.close())
        thread.stop()


def test_a_slow_recovery_is_told_before_the_broker_is_ready(tmp_path: Path) -> None:
    root = tmp_path / "store"
    run(root, SYSTEM_CLOCK, 5)
    (root / "abort").touch()
    with structlog.testing.capture_logs() as lines:
        run(root, SlowClock(), 0)
    events = [line["event"] for line in lines]
    at = events.index("recovering the store, not ready yet")
    assert at < events.index("store recovered") < events.index("broker started")
    assert lines[at]["path"] == str(root)
    assert 0 <= lines[at]["percent"] <= 100


def test_it_is_told_every_two_seconds() -> None:
    clock = ManualClock()
    progress = OpeningProgress(clock, "/store")
    with structlog.testing.capture_logs() as lines:
        for _ in range(50):
            clock.seconds += 0.1
            progress(int(clock.seconds * (100 << 20)), 1000 << 20)
    assert [(line["percent"], line["scanned_mib"]) for line in lines] == [(20, 200), (40, 400)]


def test_an_empty_log_has_no_percentage_to_fail_on() -> None:
    clock = ManualClock()
    progress = OpeningProgress(clock, "/store")
    clock.seconds = 5
    progress(0, 0)
