"""Stores that Java's broker of 5.5 keeps in RocksDB, wholly or in part, are named and refused."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.interop.clients import CometClient
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker
from tests.waits import PROCESS_WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

IN_ROCKSDB = "timerRocksDBEnable", "transRocksDBEnable", "indexRocksDBEnable"
CASES = {
    "queues": ({"storeType": "defaultRocksDB"}, "consumequeue is a RocksDB"),
    "parts": (dict.fromkeys(IN_ROCKSDB, "true"), "rocksdbstore is a RocksDB"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_store_of_java_in_rocksdb_is_named(
    case: str, tmp_path: Path, comet_namesrv: Namesrv
) -> None:
    need("java", "mvn")
    conf, said = CASES[case]
    conf = {"timerWheelEnable": "true", **conf}
    with JavaBroker(comet_namesrv, store=tmp_path / "store", conf=conf) as broker:
        CometClient().produce(namesrv=comet_namesrv, topic="topic", count=4, delays=",ms:60000")
        broker.stop()
    ended = subprocess.run(
        [sys.executable, "-m", "cometmq", "store", "check", str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=False,
    )
    assert ended.returncode == 2, ended
    assert said in ended.stderr
