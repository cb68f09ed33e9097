"""A store of the Java broker is damaged and repaired; the Java broker runs on it again."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.interop.clients import JavaClient
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker, JavaNamesrv
from tests.waits import eventually

from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.store.config import StoreConfig
from cometmq.store.offline.repair import check, plan_repair, repair

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

FILE_BYTES = 1 << 20
COUNT = 600
# By what a Java broker of these tests has; they cannot be told from the size of an index file.
INDEX = {"max_hash_slot_num": 10_000, "max_index_num": 50_000}


def damage(store: Path) -> None:
    """One bit of a body, and 5,000 bytes of several records."""
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[300_000] ^= 1
    data[500_000:505_000] = bytes(5000)
    path.write_bytes(data)


def test_a_repaired_store_serves_a_java_broker(tmp_path: Path) -> None:
    need("java", "mvn")
    client = JavaClient(5)
    store = tmp_path / "store"
    with JavaNamesrv() as namesrv:
        with JavaBroker(namesrv.address, commit_log_file_bytes=FILE_BYTES) as broker:
            client.produce(namesrv=namesrv.address, topic="T", mode="sync", count=COUNT, size=3000)
            broker.stop()
            shutil.copytree(broker.store, store)
        config = StoreConfig(store_path_root_dir=store, **INDEX)  # type: ignore[arg-type]  # a dict of settings of several types
        assert check(config)[1].is_sound
        damage(store)
        offline, report = check(config)
        lost = sum(len(_lost(found.text)) for found in report.findings)
        assert 2 <= lost <= 5
        repair(offline, plan_repair(offline, report), clock=SYSTEM_CLOCK, stamp="now")
        assert check(config)[1].is_sound

        with JavaBroker(namesrv.address, commit_log_file_bytes=FILE_BYTES, store=store) as broker:
            pulled = client.pull(namesrv=namesrv.address, topic="T", expression="*")
            # Where a message is lost the next one comes twice.
            assert len({event["offsetMsgId"] for event in pulled}) == COUNT - lost
            client.produce(namesrv=namesrv.address, topic="T", mode="sync", count=20, size=10)
            # A Java broker puts messages into their queues behind the answers.
            count = eventually(
                lambda: len(client.pull(namesrv=namesrv.address, topic="T", expression="*")),
                lambda count: count >= len(pulled) + 20,
            )
            assert count == len(pulled) + 20
            broker.stop()
    assert check(config)[1].is_sound


def _lost(text: str) -> range:
    """The queue offsets that a finding says are without a record."""
    head, _, which = text.partition("the log has no record for queue ")
    if head:
        return range(0)
    numbers = [int(word) for word in which.split() if word.isdecimal()]
    return range(numbers[0], numbers[-1] + 1)
