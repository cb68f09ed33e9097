"""A broker process killed again and again while messages wait in it: delayed ones and transactions.

Acknowledged requests must take effect: a delayed message comes, once and not before its time, a
committed transaction is visible once, one that is rolled back never is. A request that was not
acknowledged may take effect or not, but not before its time either, and not against its producer's
verdict: the broker asks for it in a later life. Between kills files of the log expire while messages
wait in them.

COMETMQ_WAIT_KILLS says how many kills there are (default 6), COMETMQ_CRASH_SEED what is drawn
(`tests.seeds`).
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
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.integration.raw_client import Command, RawClient, binary_request, properties, send_ext
from tests.seeds import seed_of
from tests.waits import CLOCKS_APART_MS, WAIT_S

from cometmq.protocol.messages.record import StoredRecord, decode_record
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.store.config import StoreConfig
from cometmq.store.offline.repair import check
from cometmq.store.store import MessageStore

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("COMETMQ_WAIT_KILLS", "6"))
DEADLINE_S = 4 * WAIT_S
SEND, HEARTBEAT, END_TRANSACTION, CHECK, GET_MAX_OFFSET = 10, 34, 37, 39, 30
DELETE_EXPIRED_COMMITLOG = 329
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
ONEWAY = 2
GROUP = "pg"
TOPIC = "waits"
QUEUES = 4
LOG_FILE = 256 * 1024
QUEUE_FILE = 20_000
LEVELS_MS = {1: 1_000, 2: 2_000}
UNDER_WAY = 32


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


@dataclass
class Waiting:
    """A message and what becomes of it; `delay_ms` None for a transaction, which `commits` or not.

    `sent_ms` is when it was given out, before the broker had it; `by_itself` whether its producer
    ends it without being asked.
    """

    key: str
    sent_ms: int
    delay_ms: int | None = None
    level: int | None = None
    commits: bool = False
    by_itself: bool = False
    acknowledged: bool = False
    ended: bool = False

    @property
    def must_come(self) -> bool:
        return self.acknowledged and (self.delay_ms is not None or self.commits)

    @property
    def may_come(self) -> bool:
        return self.delay_ms is not None or self.commits

    def request(self, opaque: int, queue_id: int) -> bytes:
        values = {"UNIQ_KEY": self.key}
        if self.level is not None:
            values["DELAY"] = str(self.level)
        elif self.delay_ms is not None:
            values["TIMER_DELAY_MS"] = str(self.delay_ms)
        else:
            values |= {"TRAN_MSG": "true", "PGROUP": GROUP}
        ext = send_ext(
            TOPIC,
            queueId=queue_id,
            properties=properties(values),
            bornTimestamp=self.sent_ms,
            sysFlag=PREPARED if self.delay_ms is None else 0,
            defaultTopicQueueNums=QUEUES,
        )
        return binary_request(SEND, ext, b"x" * 500, opaque=opaque)


@dataclass
class World:
    """All messages of all lives, by key."""

    rng: random.Random
    waiting: dict[str, Waiting] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def new(self) -> Waiting:
        rng = self.rng
        message = Waiting(f"{len(self.waiting):032X}", time.time_ns() // 1_000_000)
        kind = rng.random()
        if kind < 0.25:
            message.level = rng.choice(list(LEVELS_MS))
            message.delay_ms = LEVELS_MS[message.level]
        elif kind < 0.5:
            message.delay_ms = rng.randint(1_000, 3_000)
        else:
            message.commits = rng.random() < 0.7
            message.by_itself = rng.random() < 0.8
        self.waiting[message.key] = message
        return message


class Life:
    """One connection, a producer's; it sends, ends what it sent, and answers questions."""

    def __init__(self, port: int, world: World) -> None:
        self._client = RawClient(f"127.0.0.1:{port}", binary=True)
        self._world = world
        self._sends: dict[int, Waiting] = {}
        self._ends: dict[int, Waiting] = {}
        self._opaque = 1_000
        beat = json.dumps({"clientID": f"raw@{port}", "producerDataSet": [{"groupName": GROUP}]})
        assert self._client.ask(HEARTBEAT, None, beat.encode()).code == 0

    def run(self, seconds: float, *, load: bool) -> None:
        """For so long; without `load` it only answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            while load and len(self._sends) < UNDER_WAY:
                message = self._world.new()
                self._sends[self._next()] = message
                queue_id = self._world.rng.randrange(QUEUES)
                self._client.socket.sendall(message.request(self._opaque, queue_id))
            self._take(0.02)

    def drain(self) -> None:
        """Answers that the broker sent before it died count."""
        try:
            while (self._sends or self._ends) and self._take(1.0):
                pass
        except (ConnectionError, TimeoutError):
            pass
        self._client.close()

    def expire(self) -> None:
        """Ask for the deletion of files that have become old."""
        self._client.socket.sendall(binary_request(DELETE_EXPIRED_COMMITLOG, opaque=self._next()))

    def _next(self) -> int:
        self._opaque += 1
        return self._opaque

    def _take(self, seconds: float) -> bool:
        if not select.select([self._client.socket], [], [], seconds)[0]:
            return False
        command = self._client.receive()
        if not command.is_response:
            if command.code == CHECK:
                self._answer(command)
        elif command.opaque in self._sends:
            self._sent(self._sends.pop(command.opaque), command)
        elif command.opaque in self._ends:
            message = self._ends.pop(command.opaque)
            # A verdict may come after the broker's own question was answered: that is no fault.
            assert command.code == 0, command.remark
            message.ended = True
            self._world.counts["commits" if message.commits else "rollbacks"] += 1
        return True

    def _sent(self, message: Waiting, answer: Command) -> None:
        assert answer.code == 0, answer.remark
        message.acknowledged = True
        if message.delay_ms is not None:
            self._world.counts["delayed"] += 1
            return
        self._world.counts["halves"] += 1
        if message.by_itself:
            place = int(answer.ext["msgId"].split(",")[0][-16:], 16)
            opaque = self._next()
            self._ends[opaque] = message
            self._end(message, int(answer.ext["queueOffset"]), place, opaque)

    def _answer(self, question: Command) -> None:
        message = self._world.waiting[question.ext["msgId"]]
        self._world.counts["asked"] += 1
        offset = int(question.ext["tranStateTableOffset"])
        place = int(question.ext["commitLogOffset"])
        self._end(message, offset, place, self._next(), asked=True)

    def _end(
        self, message: Waiting, offset: int, place: int, opaque: int, *, asked: bool = False
    ) -> None:
        ext = {
            "producerGroup": GROUP,
            "tranStateTableOffset": offset,
            "commitLogOffset": place,
            "commitOrRollback": COMMIT if message.commits else ROLLBACK,
            "fromTransactionCheck": "true" if asked else "false",
            "msgId": message.key,
            "transactionId": message.key,
        }
        self._client.socket.sendall(
            binary_request(END_TRANSACTION, ext, opaque=opaque, flag=ONEWAY if asked else 0)
        )


def configuration(directory: Path) -> Path:
    conf = directory / "broker.conf"
    conf.write_text(
        "brokerName=b\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort=0\n"
        f"storePathRootDir={directory}/store\nmappedFileSizeCommitLog={LOG_FILE}\n"
        f"mappedFileSizeConsumeQueue={QUEUE_FILE}\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"
        "messageDelayLevel=1s 2s\nflushDelayOffsetInterval=200\nflushConsumerOffsetInterval=300\n"
        "flushIntervalCommitLog=50\nflushCommitLogThoroughInterval=50\n"
        "transactionTimeOut=1000\ntransactionCheckInterval=300\ntransactionCheckMax=1000\n"
        "cleanResourceInterval=100\ndeleteWhen=\nfileReservedTime=72\n"
        # A disk that other suites keep busy blocks flushes for seconds; that is not what is tested here.
        "osPageCacheBusyTimeOutMills=60000\n"
        # Nor does a disk that is nearly full delete messages.
        "diskMaxUsedSpaceRatio=95\ncleanFileForciblyEnable=false\n"
    )
    return conf


def files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").glob("*"))


def age(paths: list[Path]) -> None:
    """Let files look as if nobody had written to them for long."""
    long_ago = time.time() - 100 * 3600
    for path in paths:
        # The last life asked for old files to go, and this one has begun with that.
        with suppress(FileNotFoundError):
            os.utime(path, (long_ago, long_ago))


def messages(root: Path) -> Iterator[StoredRecord]:
    """All that is in the topic, read from a store whose broker is dead."""
    store = MessageStore(store_config(root), clock=SYSTEM_CLOCK, store_host=bytes(8))
    store.open()
    try:
        for queue_id in range(QUEUES):
            queue = store.queue(TOPIC, queue_id)
            for offset in range(queue.min_offset, queue.next_offset):
                unit = queue.unit(offset)
                assert unit is not None
                data = store.record_at(unit.physical_offset)
                assert data is not None
                yield decode_record(data, check_crc=True)
    finally:
        store.close()


def store_config(root: Path) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=LOG_FILE,
        mapped_file_size_consume_queue=QUEUE_FILE,
        max_hash_slot_num=1000,
        max_index_num=4000,
        message_delay_level="1s 2s",
    )


class Seen:
    """The messages that were visible so far; files that expire take visible messages along."""

    def __init__(self) -> None:
        self._places: dict[str, set[tuple[int, int]]] = {}

    def look(self, root: Path, world: World) -> None:
        for record in messages(root):
            key = record.properties.partition("UNIQ_KEY\x01")[2].partition("\x02")[0]
            message = world.waiting[key]
            assert message.may_come, f"{message} was rolled back and is visible"
            self._places.setdefault(key, set()).add((record.queue_id, record.queue_offset))
            if message.delay_ms is not None:
                waited_ms = record.store_timestamp - message.sent_ms
                assert waited_ms >= message.delay_ms - CLOCKS_APART_MS, (
                    f"{message} came after {waited_ms} ms"
                )

    def missing(self, world: World) -> list[Waiting]:
        return [m for m in world.waiting.values() if m.must_come and m.key not in self._places]

    def doubled(self) -> list[str]:
        return [key for key, places in self._places.items() if len(places) > 1]


def test_what_waits_survives_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = seed_of("COMETMQ_CRASH_SEED")
    world = World(random.Random(seed))
    conf, root, seen = configuration(tmp_path), tmp_path / "store", Seen()
    gone = 0
    for _ in range(KILLS):
        # Only files go whose messages were looked at after the last life: those of before this one,
        # without the file that it goes on with and the one that may be made for the time after.
        complete = files(root)[:-2]
        broker = Broker(conf)
        try:
            life = Life(broker.port, world)
            life.run(world.rng.uniform(0.1, 0.4), load=True)
            age(complete)
            life.expire()
            life.run(world.rng.uniform(0.1, 0.6), load=True)
            gone += len(set(complete) - set(files(root)))
        finally:
            broker.kill()
        life.drain()
        seen.look(root, world)
    last_life(conf, root, world, seen)
    assert seen.missing(world) == []
    assert seen.doubled() == []
    _, report = check(store_config(root))
    assert report.is_sound, report.findings
    with capsys.disabled():
        sys.stdout.write(
            f"\n{KILLS} kills, {len(world.waiting)} messages, {dict(world.counts)}, "
            f"{gone} files went, seed {seed} "
        )


def last_life(conf: Path, root: Path, world: World, seen: Seen) -> None:
    """Everything is answered until all that must come has come; the oldest file goes meanwhile."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        broker = Broker(conf)
        try:
            first, *_ = files(root)
            age([first])
            life = Life(broker.port, world)
            life.expire()
            life.run(4.0, load=False)
            while first.exists():
                assert time.monotonic() < deadline, f"{first} does not go"
                life.run(0.1, load=False)
            broker.process.send_signal(signal.SIGTERM)
            broker.process.wait(DEADLINE_S)
        finally:
            broker.kill()
        life.drain()
        seen.look(root, world)
        if not seen.missing(world) or time.monotonic() > deadline:
            return
