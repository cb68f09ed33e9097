"""A group whose members join, leave and are killed at random while messages flow, and its checker.

Everything random follows from a seed. The checker reads what the members wrote and how the producer's
sends were answered, and asks no broker.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from tests.crash.storm_member import RECORD
from tests.waits import WAIT_S

import cometmq
from cometmq import Message, MessageQueue
from cometmq.testing.cluster import Cluster

TOPIC = "storm"
GROUP = "storm-group"
BATCH = 20
# What an answer may take on a machine that is busy with the members.
PATIENCE_MS = 60_000
# Offsets are committed every 5 s, on such a machine somewhat later.
COMMITTED_AFTER_NS = 30 * 10**9


class Event(NamedTuple):
    moment: int
    kind: bytes
    queue: int
    offset: int
    number: int
    member: str


@dataclass(slots=True)
class Life:
    """One member; `ended` by `left` or `killed`, at the moment when that was asked for."""

    name: str
    pid: int
    history: Path
    killed_at: int | None = None
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    mode: str
    messages: int
    members: int
    queues: int
    per_second: int
    listener_us: int = 200
    kills: bool = True
    # Between two changes of membership, in seconds.
    pause_s: tuple[float, float] = (0.1, 0.7)
    # So long nothing may come until it counts as lost; a dead member's locks are held for 60 s.
    drain_s: float = 120.0


@dataclass(slots=True)
class Outcome:
    """Figures of a storm, for its one line of output."""

    joined: int = 0
    left: int = 0
    killed: int = 0
    most: int = 0
    deliveries: int = 0
    repeated: int = 0
    longest_step_back: int = 0
    faults: list[str] = field(default_factory=list)


class Storm:
    def __init__(self, plan: Plan, seed: int, directory: Path) -> None:
        self._plan = plan
        self._chance = random.Random(seed)
        self._directory = directory
        self.lives: list[Life] = []
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self._sending = threading.Event()
        self._failure: BaseException | None = None
        self._target = plan.members

    def run(self) -> Outcome:
        properties = {
            "accessMessageInMemoryMaxRatio": "0",
            "defaultTopicQueueNums": str(self._plan.queues),
        }
        with Cluster(properties=properties) as cluster:
            self._make_topic(cluster.namesrv)
            with self._nursery(cluster.namesrv) as nursery:
                self._join(nursery)
                sender = threading.Thread(target=self._send_all, args=(cluster.namesrv,))
                sender.start()
                try:
                    while sender.is_alive():
                        time.sleep(self._chance.uniform(*self._plan.pause_s))
                        self._change(nursery)
                finally:
                    self._sending.set()
                    sender.join()
                if self._failure is not None:
                    raise self._failure
                self._await_all()
                self._leave_all()
        return self.check()

    # -- what happens --

    def _make_topic(self, namesrv: str) -> None:
        with cometmq.Producer(
            "storm-make",
            namesrv=namesrv,
            default_topic_queue_nums=self._plan.queues,
            send_timeout_ms=PATIENCE_MS,
        ) as producer:
            first = producer.send(Message(TOPIC, b"-1"), queue=MessageQueue(TOPIC, "broker-a", 0))
            assert first.queue_offset == 0
            deadline = time.monotonic() + WAIT_S
            while True:
                with cometmq.Producer("storm-look", namesrv=namesrv) as look:
                    if len(look.queues(TOPIC)) == self._plan.queues:
                        return
                assert time.monotonic() < deadline, "the topic was not made"

    @contextmanager
    def _nursery(self, namesrv: str) -> Iterator[subprocess.Popen[str]]:
        plan = self._plan
        arguments = [namesrv, GROUP, TOPIC, plan.mode, str(plan.listener_us)]
        with subprocess.Popen(
            [sys.executable, "-m", "tests.crash.storm_member", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as nursery:
            yield nursery
            assert nursery.stdin is not None
            nursery.stdin.close()

    def _send_all(self, namesrv: str) -> None:
        """Batches to the queues in turn; what was acknowledged is remembered with its place."""
        plan = self._plan
        try:
            # One that is repeated because its answer was late would be at two places.
            with cometmq.Producer(
                "storm-producer", namesrv=namesrv, send_timeout_ms=PATIENCE_MS
            ) as producer:
                began = time.monotonic()
                for start in range(0, plan.messages, BATCH):
                    if self._sending.is_set():
                        return
                    time.sleep(max(0.0, began + start / plan.per_second - time.monotonic()))
                    queue = MessageQueue(TOPIC, "broker-a", start // BATCH % plan.queues)
                    numbers = range(start, min(start + BATCH, plan.messages))
                    result = producer.send_batch(
                        [Message(TOPIC, b"%d" % number) for number in numbers], queue=queue
                    )
                    for index, number in enumerate(numbers):
                        place = queue.queue_id, result.queue_offset + index
                        self.acknowledged[number] = place
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._failure = error

    def _alive(self) -> list[Life]:
        return [life for life in self.lives if life.killed_at is None and not life.leaving]

    def _change(self, nursery: subprocess.Popen[str]) -> None:
        alive = self._alive()
        if len(alive) == self._target:
            self._target = self._chance.randint(1, self._plan.members)
        towards = 0.85 if len(alive) < self._target else 0.15
        if len(alive) == 1 or (len(alive) < self._plan.members and self._chance.random() < towards):
            self._join(nursery)
            return
        life = self._chance.choice(alive)
        if self._plan.kills and self._chance.random() < 0.5:
            os.kill(life.pid, signal.SIGKILL)
            life.killed_at = time.monotonic_ns()
        else:
            os.kill(life.pid, signal.SIGTERM)
            life.leaving = True

    def _join(self, nursery: subprocess.Popen[str]) -> None:
        name = f"m{len(self.lives)}"
        history = self._directory / name
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write(f"{history}\n")
        nursery.stdin.flush()
        self.lives.append(Life(name, int(nursery.stdout.readline()), history))

    def _await_all(self) -> None:
        """Until every acknowledged message was consumed, or too long nothing came."""
        wanted = set(self.acknowledged)
        deadline = time.monotonic() + self._plan.drain_s
        while time.monotonic() < deadline:
            before = len(wanted)
            wanted -= {event.number for event in self._events() if event.kind == b"E"}
            if not wanted:
                return
            if len(wanted) < before:
                deadline = time.monotonic() + self._plan.drain_s
            time.sleep(0.5)

    def _leave_all(self) -> None:
        for life in self._alive():
            os.kill(life.pid, signal.SIGTERM)
            life.leaving = True
        waiting = {life.name for life in self.lives if life.leaving}
        deadline = time.monotonic() + 2 * WAIT_S
        while waiting and time.monotonic() < deadline:
            waiting -= {event.member for event in self._events() if event.kind == b"L"}
            time.sleep(0.05)

    # -- what must hold --

    def _events(self) -> list[Event]:
        """All histories, in the order of the moments."""
        events = []
        for life in self.lives:
            if life.history.exists():
                data = life.history.read_bytes()
                whole = data[: len(data) - len(data) % RECORD.size]
                for kind, moment, queue, offset, number in RECORD.iter_unpack(whole):
                    events.append(Event(moment, kind, queue, offset, number, life.name))
        events.sort()
        return events

    def check(self) -> Outcome:
        events = self._events()
        outcome = Outcome(
            joined=len(self.lives),
            left=sum(life.leaving for life in self.lives),
            killed=sum(life.killed_at is not None for life in self.lives),
        )
        steps = [(e.moment, (e.kind == b"J") - (e.kind == b"L")) for e in events if e.kind in b"JL"]
        steps += [(life.killed_at, -1) for life in self.lives if life.killed_at is not None]
        outcome.most = max(accumulate(step for _, step in sorted(steps)))
        by_queue: dict[int, list[Event]] = defaultdict(list)
        done: dict[int, int] = defaultdict(int)
        for event in events:
            if event.kind in b"BE":
                by_queue[event.queue].append(event)
            if event.kind == b"E":
                done[event.number] += 1
        outcome.deliveries = sum(done.values())
        outcome.repeated = outcome.deliveries - len(done)
        lost = self.acknowledged.keys() - done.keys()
        if lost:
            places = sorted(self.acknowledged[number] for number in lost)
            outcome.faults.append(f"{len(lost)} acknowledged messages lost: {places[:10]} …")
        gone = {life.name for life in self.lives if not life.leaving and life.killed_at is None}
        if gone:
            outcome.faults.append(f"members {sorted(gone)} ended by themselves")
        for queue, happened in sorted(by_queue.items()):
            outcome.faults += self._faults_of_places(queue, happened)
            outcome.faults += self._check_queue(queue, happened, outcome)
        return outcome

    def _faults_of_places(self, queue: int, events: list[Event]) -> list[str]:
        return [
            f"message {event.number} was sent to {self.acknowledged[event.number]} and came from "
            f"{(queue, event.offset)}"
            for event in events
            if event.number >= 0
            and event.number in self.acknowledged
            and self.acknowledged[event.number] != (queue, event.offset)
        ]

    def _check_queue(self, queue: int, events: list[Event], outcome: Outcome) -> list[str]:
        orderly = self._plan.mode == "orderly"
        killed_at = {life.name: life.killed_at for life in self.lives}
        # A member may run so far ahead of the offset that it can commit, and commits every 5 s.
        window = 2000 + 7 * self._plan.per_second // self._plan.queues
        faults: list[str] = []
        inside: dict[str, int] = {}
        last_by: dict[int, str] = {}
        done_at: dict[int, int] = {}
        high_of: dict[str, int] = {}
        high = -1
        for event in events:
            if event.kind == b"E":
                inside.pop(event.member, None)
                done_at[event.offset] = event.moment
                continue
            if event.offset in last_by:
                outcome.longest_step_back = max(outcome.longest_step_back, high - event.offset)
                before = last_by[event.offset]
                died = _killed_by(event.moment, killed_at[before])
                alive = {event.member} if died is not None else {event.member, before}
                step_back = max(high_of.get(member, -1) for member in alive) - event.offset
                if step_back > window:
                    faults.append(f"{_told(event)} lies {step_back} back, more than {window}")
                # Who takes over what waited for a dead member's lock may do any number of messages
                # between two commits: of what the killed did, only the time tells.
                since = 0 if died is None else died - done_at.get(event.offset, died)
                if since > COMMITTED_AFTER_NS:
                    faults.append(
                        f"{_told(event)} was done {since / 1e9:.0f} s before {before} died"
                    )
            if orderly:
                for member in list(inside):
                    if _killed_by(event.moment, killed_at[member]) is not None:
                        del inside[member]
                    elif member != event.member:
                        faults.append(f"{_told(event)} while {member} has {inside[member]}")
                if event.offset > high + 1:
                    faults.append(f"{_told(event)} after {high}: a gap")
                holder = last_by.get(event.offset)
                if holder is not None and killed_at[holder] is None:
                    faults.append(f"{_told(event)} again, though {holder} was not killed")
            inside[event.member] = event.offset
            high_of[event.member] = max(high_of.get(event.member, -1), event.offset)
            last_by[event.offset] = event.member
            high = max(high, event.offset)
        return faults[:5]


def _killed_by(moment: int, killed_at: int | None) -> int | None:
    """Return when a member was killed, None if it still lived at `moment`."""
    return killed_at if killed_at is not None and killed_at < moment else None


def _told(event: Event) -> str:
    return f"queue {event.queue} offset {event.offset} to {event.member} at {event.moment}"
