"""A broker process killed at any moment under load, again and again on the same store.

Every acknowledged message is found by offset, by key, by unique key and by time: a killed process
loses nothing that reached the page cache, whatever the flush mode. After each kill the next broker,
which has recovered, is asked over the wire; after some of them the store is opened and looked at
from end to end: offsets are dense and none is given twice, queues equal a replay of the log.

COMETMQ_KILLS says how many kills there are together (default 200), COMETMQ_CRASH_SEED what is drawn
(`tests.seeds`).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.crash.nursery import ForkedServer, Nursery
from tests.crash.replay import compare, replayed
from tests.integration.raw_client import (
    Command,
    RawClient,
    binary_request,
    properties,
    pull_ext,
    send_ext,
)
from tests.seeds import seed_of
from tests.waits import WAIT_S, eventually

from cometmq.protocol.messages.record import decode_record, decode_records
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.store.config import StoreConfig
from cometmq.store.offline.repair import check
from cometmq.store.store import Boundary, MessageStore

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("COMETMQ_KILLS", "200"))
DEADLINE_S = 2 * WAIT_S
SEND, PULL, QUERY, RUNTIME_INFO, SEARCH = 10, 11, 12, 28, 29
TOPIC = "T"
QUEUES = 4
LOG_FILE = 256 * 1024
# The whole store is looked at after so many kills, and at the end.
LOOK_EVERY = 10
# So many messages of the last life, and as many of those before, are looked for over the wire.
ASKED = 40
UNDER_WAY = 64
EVER = 2**62


class Sent(NamedTuple):
    """A message on its way; both keys are its own."""

    queue_id: int
    body: bytes
    key: str
    unique_key: str


# What was acknowledged, by queue and queue offset: commit-log offset and message.
Acknowledged = dict[tuple[int, int], tuple[int, Sent]]


class Load:
    """One connection with many sends under way; remembers what was acknowledged."""

    def __init__(
        self, broker: ForkedServer, rng: random.Random, acknowledged: Acknowledged
    ) -> None:
        self._client = RawClient(f"127.0.0.1:{broker.port}")
        self._rng = rng
        self._acknowledged = acknowledged
        self._under_way: dict[int, Sent] = {}

    def run(self, seconds: float) -> None:
        """Send and take answers for so long."""
        end = time.monotonic() + seconds
        opaque = 0
        while time.monotonic() < end:
            batch = bytearray()
            while len(self._under_way) < UNDER_WAY:
                opaque += 1
                sent = self._under_way[opaque] = self._new()
                text = properties({"KEYS": sent.key, "UNIQ_KEY": sent.unique_key})
                ext = send_ext(TOPIC, queueId=sent.queue_id, properties=text)
                batch += binary_request(SEND, ext, sent.body, opaque=opaque)
            if batch:
                self._client.socket.sendall(batch)
            self._take(0.05)

    def _new(self) -> Sent:
        rng = self._rng
        body = rng.randbytes(rng.choice((20, 300, 3000)))
        name = rng.randbytes(8).hex()
        return Sent(rng.randrange(QUEUES), body, f"key-{name}", name.upper())

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
        sent = self._under_way.pop(answer.opaque)
        if answer.code == 0:
            place = int(answer.ext["msgId"].split(",")[0][-16:], 16)
            key = (sent.queue_id, int(answer.ext["queueOffset"]))
            assert key not in self._acknowledged, f"offset {key} is given twice"
            self._acknowledged[key] = (place, sent)
        return True


class Reader:
    """Looks for messages over the wire, in a broker that has recovered."""

    def __init__(self, broker: ForkedServer) -> None:
        self._client = RawClient(f"127.0.0.1:{broker.port}")
        self._opaques = itertools.count(1)
        self._checks: dict[int, Callable[[Command], None]] = {}
        self._requests = bytearray()

    def find(self, acknowledged: Acknowledged, wanted: Iterable[tuple[int, int]]) -> None:
        """Each by its offset, by both of its keys and, once its store time is known, by that."""
        # A query brings the index up to date, but only for a second: a busy machine may need longer.
        eventually(lambda: self._table()["indexBehindBytes"] == "0", wait_s=DEADLINE_S)
        for queue_id, queue_offset in wanted:
            self._look_for(queue_id, queue_offset, *acknowledged[queue_id, queue_offset])
        while self._checks:
            self._client.socket.sendall(self._requests)
            self._requests.clear()
            for _ in range(len(self._checks)):
                answer = self._client.receive()
                self._checks.pop(answer.opaque)(answer)

    def close(self) -> None:
        self._client.close()

    def _table(self) -> dict[str, str]:
        table: dict[str, str] = json.loads(self._client.ask(RUNTIME_INFO).body)["table"]
        return table

    def _ask(self, code: int, ext: dict[str, Any], check: Callable[[Command], None]) -> None:
        opaque = next(self._opaques)
        self._checks[opaque] = check
        self._requests += binary_request(code, ext, opaque=opaque)

    def _look_for(self, queue_id: int, queue_offset: int, place: int, sent: Sent) -> None:
        def pulled(answer: Command) -> None:
            assert answer.code == 0, (queue_id, queue_offset, answer.code, answer.remark)
            (record,) = decode_records(answer.body)
            assert (record.queue_offset, record.physical_offset) == (queue_offset, place)
            assert record.body == sent.body
            for boundary, is_right in (
                ("lower", lambda offset: offset <= queue_offset),
                ("upper", lambda offset: offset >= queue_offset),
            ):
                ext = {
                    "topic": TOPIC,
                    "queueId": queue_id,
                    "timestamp": record.store_timestamp,
                    "boundaryType": boundary,
                }
                self._ask(SEARCH, ext, lambda found, is_right=is_right: at_time(found, is_right))  # type: ignore[misc]  # mypy infers no lambda with a default

        def at_time(answer: Command, is_right: Callable[[int], bool]) -> None:
            assert answer.code == 0
            assert is_right(int(answer.ext["offset"])), (queue_id, queue_offset, answer.ext)

        def by_key(answer: Command) -> None:
            assert answer.code == 0, (sent.key, answer.code, answer.remark)
            assert place in [record.physical_offset for record in decode_records(answer.body)]

        pull = pull_ext(TOPIC, queueId=queue_id, queueOffset=queue_offset, maxMsgNums=1)
        self._ask(PULL, pull, pulled)
        query = {"topic": TOPIC, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": EVER}
        self._ask(QUERY, {**query, "key": sent.key}, by_key)
        unique = {**query, "key": sent.unique_key, "_UNIQUE_KEY_QUERY": "true"}
        self._ask(QUERY, unique, by_key)


def configuration(directory: Path, flush: str) -> Path:
    conf = directory / "broker.conf"
    conf.write_text(
        "brokerName=b\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort=0\n"
        f"storePathRootDir={directory}/store\nflushDiskType={flush}\ntimerWheelEnable=false\n"
        f"mappedFileSizeCommitLog={LOG_FILE}\nmappedFileSizeConsumeQueue=20000\n"
        "maxHashSlotNum=1000\nmaxIndexNum=4000\n"
        # A disk that other suites keep busy blocks flushes for seconds; that is not what is tested here.
        "osPageCacheBusyTimeOutMills=60000\n"
        # Nor does a disk that is nearly full delete messages.
        "diskMaxUsedSpaceRatio=95\ncleanFileForciblyEnable=false\n"
    )
    return conf


def look_at_everything(root: Path, acknowledged: Acknowledged, seen: int) -> None:
    """Open the store as a start would. Of the first `seen` messages, found before, only the units
    are looked at.
    """
    config = StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=LOG_FILE,
        mapped_file_size_consume_queue=20_000,
        max_hash_slot_num=1000,
        max_index_num=4000,
    )
    store = MessageStore(config, clock=SYSTEM_CLOCK, store_host=bytes(8))
    store.open()
    assert store.index.catch_up(store.commit_log.end, DEADLINE_S)
    expected = replayed(store)
    for queue_id in range(QUEUES):
        units = expected.get((TOPIC, queue_id), [])
        assert not units or units[0][0] == 0
        compare(store, TOPIC, queue_id, units)
    for number, ((queue_id, queue_offset), (place, sent)) in enumerate(acknowledged.items()):
        units = expected[TOPIC, queue_id]
        assert units[queue_offset][:2] == (queue_offset, place), (queue_id, queue_offset)
        if number >= seen:
            find(store, queue_id, queue_offset, place, sent)
    store.close()
    _, report = check(config)
    assert report.is_sound, report.findings
    assert json.loads((root / "config" / "topics.json").read_text())


def find(store: MessageStore, queue_id: int, queue_offset: int, place: int, sent: Sent) -> None:
    """By offset, by both keys and by time."""
    data = store.record_at(place)
    assert data is not None
    record = decode_record(data, check_crc=True)
    found = (record.topic, record.queue_id, record.queue_offset, record.body)
    assert found == (TOPIC, queue_id, queue_offset, sent.body)
    at = record.store_timestamp
    for key in (sent.key, sent.unique_key):
        # The index knows whole seconds since its file's first message.
        assert place in store.index.query(TOPIC, key, 32, at - 1000, at).offsets, key
    assert store.offset_by_time(TOPIC, queue_id, at) <= queue_offset
    assert store.offset_by_time(TOPIC, queue_id, at, Boundary.UPPER) >= queue_offset
    assert store.offset_by_time(TOPIC, queue_id, at + 1) > queue_offset


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_acknowledged_messages_survive_kills(
    tmp_path: Path, nursery: Nursery, flush: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of("COMETMQ_CRASH_SEED")
    rng = random.Random(seed)
    conf = configuration(tmp_path, flush)
    acknowledged: Acknowledged = {}
    kills = KILLS // 2
    before = asked = seen = 0
    for number in range(1, kills + 1):
        broker = nursery.broker(conf)
        try:
            wanted = to_ask(acknowledged, before, rng)
            if wanted:
                with closing(Reader(broker)) as reader:
                    reader.find(acknowledged, wanted)
            asked += len(wanted)
            before = len(acknowledged)
            load = Load(broker, rng, acknowledged)
            load.run(rng.uniform(0.01, 0.15))
        finally:
            broker.kill()
        load.drain()
        if number % LOOK_EVERY == 0 or number == kills:
            look_at_everything(tmp_path / "store", acknowledged, seen)
            seen = len(acknowledged)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{kills} kills, {flush}, {seen} acknowledged messages found by offset, keys and "
            f"time, {asked} of them over the wire right after a kill, seed {seed} "
        )


def test_a_topic_is_known_after_a_kill_right_behind_its_first_message(
    tmp_path: Path, nursery: Nursery
) -> None:
    conf = configuration(tmp_path, "ASYNC_FLUSH")
    broker = nursery.broker(conf)
    try:
        for number in range(10):
            topic = f"new-{number}"
            with RawClient(f"127.0.0.1:{broker.port}") as client:
                assert client.ask(SEND, send_ext(topic, queueId=1), b"the first").code == 0
                broker.kill()
            broker = nursery.broker(conf)
            with RawClient(f"127.0.0.1:{broker.port}") as client:
                answer = client.ask(PULL, pull_ext(topic, queueId=1, queueOffset=0))
            assert (answer.code, answer.remark) == (0, "FOUND"), topic
            (record,) = decode_records(answer.body)
            assert record.body == b"the first"
    finally:
        broker.kill()


def to_ask(acknowledged: Acknowledged, before: int, rng: random.Random) -> list[tuple[int, int]]:
    """Some of the last life's messages, its very last among them, and some of all."""
    every = list(acknowledged)
    last = every[before:]
    asked = {*last[-10:], *rng.sample(last, min(len(last), ASKED))}
    return sorted(asked | set(rng.sample(every, min(len(every), ASKED))))
