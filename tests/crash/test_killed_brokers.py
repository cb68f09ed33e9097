"""A broker process killed at any moment under load, again and again on the same store.

Every acknowledged message is found by its offset: a killed process loses nothing that reached the
page cache, whatever the flush mode. Then its store is checked from end to end.

COMETMQ_KILLS says how many kills there are together (default 200).
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.raw_client import RawClient, binary_request, send_ext

from cometmq.protocol.record import decode_record
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.store.config import StoreConfig
from cometmq.store.repair import check
from cometmq.store.store import MessageStore

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("COMETMQ_KILLS", "200"))
DEADLINE_S = 30.0
SEND = 10
LOG_FILE = 256 * 1024
# Acknowledged messages of the lives so far are looked up after so many kills, and at the end.
LOOK_EVERY = 10

Acknowledged = dict[tuple[int, int], tuple[int, bytes]]


class Broker:
    """The process, from its start until it is killed."""

    def __init__(self, conf: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cometmq", "broker", "-c", str(conf), "--log-level", "error"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.port = self._port()

    def _port(self) -> int:
        stdout = self.process.stdout
        assert stdout is not None
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if not select.select([stdout], [], [], 0.1)[0]:
                continue
            line = stdout.readline().decode()
            if "boot success" in line:
                return int(line.split("127.0.0.1:")[1].split("]")[0])
            assert line, self.process.stderr.read() if self.process.stderr else ""
        raise AssertionError("the broker did not start")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Load:
    """One connection with many sends under way; remembers what was acknowledged."""

    def __init__(self, port: int, rng: random.Random, acknowledged: Acknowledged) -> None:
        self._client = RawClient(f"127.0.0.1:{port}")
        self._rng = rng
        self._acknowledged = acknowledged
        self._under_way: dict[int, tuple[int, bytes]] = {}

    def run(self, seconds: float) -> None:
        """Send and take answers for so long."""
        end = time.monotonic() + seconds
        opaque = 0
        while time.monotonic() < end:
            batch = bytearray()
            while len(self._under_way) < 64:
                opaque += 1
                queue_id = self._rng.randrange(4)
                body = self._rng.randbytes(self._rng.choice((20, 300, 3000)))
                self._under_way[opaque] = (queue_id, body)
                batch += binary_request(SEND, send_ext("T", queueId=queue_id), body, opaque=opaque)
            if batch:
                self._client.socket.sendall(batch)
            self._take(0.05)

    def drain(self) -> None:
        """Answers that the broker sent before it died count."""
        try:
            while self._under_way and self._take(1.0):
                pass
        except (ConnectionError, TimeoutError):
            pass
        self._client.close()

    def _take(self, seconds: float) -> bool:
        if not select.select([self._client.socket], [], [], seconds)[0]:
            return False
        answer = self._client.receive()
        queue_id, body = self._under_way.pop(answer.opaque)
        if answer.code == 0:
            place = int(answer.ext["msgId"].split(",")[0][-16:], 16)
            key = (queue_id, int(answer.ext["queueOffset"]))
            assert key not in self._acknowledged, f"offset {key} is given twice"
            self._acknowledged[key] = (place, body)
        return True


def configuration(directory: Path, flush: str) -> Path:
    conf = directory / "broker.conf"
    conf.write_text(
        "brokerName=b\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort=0\n"
        f"storePathRootDir={directory}/store\nflushDiskType={flush}\ntimerWheelEnable=false\n"
        f"mappedFileSizeCommitLog={LOG_FILE}\nmappedFileSizeConsumeQueue=20000\n"
        "maxHashSlotNum=1000\nmaxIndexNum=4000\n"
    )
    return conf


def look_up(root: Path, acknowledged: Acknowledged) -> int:
    """Open the store as a start would and find everything; how many messages there were."""
    config = StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=LOG_FILE,
        mapped_file_size_consume_queue=20_000,
        max_hash_slot_num=1000,
        max_index_num=4000,
    )
    store = MessageStore(config, clock=SYSTEM_CLOCK, store_host=bytes(8))
    store.open()
    for (queue_id, queue_offset), (place, body) in acknowledged.items():
        unit = store.queue("T", queue_id).unit(queue_offset)
        assert unit is not None, f"queue {queue_id} has no offset {queue_offset}"
        assert unit.physical_offset == place
        data = store.record_at(place)
        assert data is not None
        record = decode_record(data, check_crc=True)
        assert (record.queue_id, record.queue_offset, record.body) == (
            queue_id,
            queue_offset,
            body,
        )
    store.index.catch_up(store.commit_log.end, DEADLINE_S)
    store.close()
    _, report = check(config)
    assert report.is_sound, report.findings
    assert json.loads((root / "config" / "topics.json").read_text())
    return len(acknowledged)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_acknowledged_messages_survive_kills(
    tmp_path: Path, flush: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("COMETMQ_CRASH_SEED", random.SystemRandom().randrange(1 << 32)))
    rng = random.Random(seed)
    conf = configuration(tmp_path, flush)
    acknowledged: Acknowledged = {}
    kills = KILLS // 2
    for number in range(1, kills + 1):
        broker = Broker(conf)
        try:
            load = Load(broker.port, rng, acknowledged)
            load.run(rng.uniform(0.02, 0.3))
        finally:
            broker.kill()
        load.drain()
        if number % LOOK_EVERY == 0 or number == kills:
            count = look_up(tmp_path / "store", acknowledged)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{kills} kills, {flush}, {count} acknowledged messages found, seed {seed} "
        )
