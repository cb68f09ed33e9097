"""Queue locks: each has one holder, is renewed, expires, and is released by its holder only."""

from __future__ import annotations

import pytest
import structlog

from cometmq.broker.groups import queue_locks
from cometmq.broker.groups.queue_locks import LOCK_MAX_LIVE_MS, QueueLocks
from cometmq.model.queue import MessageQueue

Q0, Q1 = (MessageQueue("t", "a", i) for i in range(2))


class Clock:
    now_s = 1000.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def locks(clock: Clock) -> QueueLocks:
    return QueueLocks(clock)


def test_the_first_to_ask_holds_a_queue(locks: QueueLocks) -> None:
    assert locks.lock("g", "first", [Q0]) == {Q0}
    assert locks.lock("g", "second", [Q0, Q1]) == {Q1}
    assert locks.lock("g", "first", [Q0, Q1]) == {Q0}


def test_groups_do_not_hinder_each_other(locks: QueueLocks) -> None:
    assert locks.lock("g", "c", [Q0]) == {Q0}
    assert locks.lock("h", "d", [Q0]) == {Q0}


def test_a_renewed_lock_stays_with_its_holder(locks: QueueLocks, clock: Clock) -> None:
    locks.lock("g", "first", [Q0])
    for _ in range(4):
        clock.now_s += LOCK_MAX_LIVE_MS / 1000
        assert locks.lock("g", "second", [Q0]) == set()
        assert locks.lock("g", "first", [Q0]) == {Q0}


def test_an_expired_lock_goes_to_whoever_asks(locks: QueueLocks, clock: Clock) -> None:
    locks.lock("g", "first", [Q0])
    clock.now_s += LOCK_MAX_LIVE_MS / 1000 + 0.001
    assert locks.lock("g", "second", [Q0]) == {Q0}
    assert locks.lock("g", "first", [Q0]) == set()


def test_only_the_holder_releases(locks: QueueLocks) -> None:
    locks.lock("g", "first", [Q0])
    locks.unlock("g", "second", [Q0])
    assert locks.lock("g", "second", [Q0]) == set()
    locks.unlock("g", "first", [Q0, Q1])
    assert locks.lock("g", "second", [Q0]) == {Q0}
    locks.unlock("nobody", "first", [Q0])


def test_a_group_holds_locks_until_they_expire_or_go(locks: QueueLocks, clock: Clock) -> None:
    assert not locks.holds_any("g")
    locks.lock("g", "c", [Q0])
    assert locks.holds_any("g")
    assert not locks.holds_any("h")
    clock.now_s += LOCK_MAX_LIVE_MS / 1000 + 0.001
    assert not locks.holds_any("g")
    locks.lock("g", "c", [Q0])
    locks.unlock("g", "c", [Q0])
    assert not locks.holds_any("g")


def test_a_full_table_refuses_and_forgets_what_expired(
    locks: QueueLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_locks, "MAX_LOCKS_PER_GROUP", 1)
    monkeypatch.setattr(queue_locks, "MAX_LOCKING_GROUPS", 1)
    assert locks.lock("g", "c", [Q0, Q1]) == {Q0}
    assert locks.lock("h", "c", [Q0]) == set()
    clock.now_s += LOCK_MAX_LIVE_MS / 1000 + 0.001
    assert locks.lock("h", "c", [Q0]) == {Q0}


def test_a_request_for_many_locks_leaves_one_log_line(
    locks: QueueLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_locks, "MAX_LOCKS_PER_GROUP", 100)
    many = [MessageQueue("t", "a", i) for i in range(1_000)]
    with structlog.testing.capture_logs() as lines:
        assert len(locks.lock("g", "first", many)) == 100
    assert [(line["event"], line["queues"]) for line in lines] == [
        ("queue locks not given: there are too many", 900)
    ]
    clock.now_s += LOCK_MAX_LIVE_MS / 1000 + 0.001
    with structlog.testing.capture_logs() as lines:
        assert len(locks.lock("g", "second", many[:100])) == 100
    assert [(line["event"], line["queues"]) for line in lines] == [
        ("expired queue locks change hands", 100)
    ]


def test_all_locks_together_are_bounded(
    locks: QueueLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_locks, "MAX_LOCKS", 3)
    assert len(locks.lock("g", "c", [Q0, Q1])) == 2
    assert locks.lock("h", "c", [Q0, Q1]) == {Q0}
    locks.unlock("g", "c", [Q1])
    assert locks.lock("h", "c", [Q0, Q1]) == {Q0, Q1}
    clock.now_s += LOCK_MAX_LIVE_MS / 1000 + 0.001
    assert len(locks.lock("i", "d", [Q0, Q1])) == 2


def test_a_full_table_is_not_swept_for_each_who_asks(
    locks: QueueLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_locks, "MAX_LOCKING_GROUPS", 1)
    locks.lock("g", "c", [Q0])
    clock.now_s += LOCK_MAX_LIVE_MS / 1000 - 1
    assert locks.lock("h", "c", [Q0]) == set()  # swept now, and all are alive
    clock.now_s += 2
    assert locks.lock("h", "c", [Q0]) == set()
    clock.now_s += 10
    assert locks.lock("h", "c", [Q0]) == {Q0}


def test_a_full_table_is_swept_in_parts(
    locks: QueueLocks, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request looked at all groups in one piece: 66 ms of the loop for 65,536 of them."""
    monkeypatch.setattr(queue_locks, "MAX_LOCKING_GROUPS", 4_000)
    for number in range(4_000):
        locks.lock(f"g-{number}", "c", [Q0])
    clock.now_s += LOCK_MAX_LIVE_MS / 1000 + 0.001
    locks.lock("g-3999", "c", [Q0])  # alive again
    # A part of the groups has made room, and the other parts do when it is needed.
    assert locks.lock("h", "c", [Q0]) == {Q0}
    held = [locks.lock(f"h-{number}", "c", [Q0]) for number in range(3_998)]
    assert held == [{Q0}] * 3_998
    assert locks.lock("one-too-many", "c", [Q0]) == set()
    assert locks.holds_any("g-3999")
