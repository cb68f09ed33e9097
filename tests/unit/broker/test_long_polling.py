"""Pulls that wait: what wakes them, what does not, and how many may."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from cometmq.broker.pulls.long_polling import HeldPull, LongPolling, TagMatcher
from cometmq.model.work import WorkBudget
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.tasks import TaskOwner


@dataclass
class Waiter:
    """Holds pulls, and notes the names of those that were answered."""

    polling: LongPolling
    answered: list[str]

    def hold(
        self,
        name: str,
        *,
        topic: str = "t",
        queue_id: int = 0,
        offset: int = 0,
        deadline: float = 100.0,
        matches: TagMatcher | None = None,
        connection: Connection | None = None,
    ) -> bool:
        return self.polling.hold(
            HeldPull(
                connection or open_connection(),
                topic,
                queue_id,
                offset,
                deadline,
                matches,
                lambda: self.answered.append(name),
            )
        )

    async def woken(self) -> list[str]:
        """Return the pulls answered since the last call, after the end of this turn of the loop."""
        await asyncio.sleep(0)
        answered = list(self.answered)
        self.answered.clear()
        return answered


def waiter(max_held: int = 100, work: WorkBudget | None = None) -> Waiter:
    return Waiter(LongPolling(max_held, work or WorkBudget(1 << 60)), [])


def open_connection() -> Connection:
    return Connection(Handlers(), TaskOwner("test"))


async def test_an_arrival_wakes_who_waits_for_its_queue() -> None:
    pulls = waiter()
    for name, topic, queue_id in (("a", "t", 0), ("b", "t", 0), ("c", "t", 1), ("d", "u", 0)):
        pulls.hold(name, topic=topic, queue_id=queue_id)
    pulls.polling.arrived("t", 0, 1, 0)
    assert pulls.answered == []  # not inside the append
    assert await pulls.woken() == ["a", "b"]
    assert pulls.polling.count == 2


async def test_several_arrivals_wake_a_pull_once() -> None:
    pulls = waiter()
    pulls.hold("a")
    for offset in (1, 2, 3):
        pulls.polling.arrived("t", 0, offset, 0)
    assert await pulls.woken() == ["a"]
    assert pulls.polling.count == 0


async def test_a_message_before_the_offset_that_is_waited_for_wakes_nobody() -> None:
    pulls = waiter()
    pulls.hold("a", offset=5)
    pulls.polling.arrived("t", 0, 5, 0)
    assert await pulls.woken() == []
    pulls.polling.arrived("t", 0, 6, 0)
    assert await pulls.woken() == ["a"]


async def test_a_message_with_another_tag_wakes_nobody() -> None:
    pulls = waiter()
    pulls.hold("a", matches={7}.__contains__)
    pulls.hold("all")
    pulls.polling.arrived("t", 0, 1, 8)
    assert await pulls.woken() == ["all"]
    pulls.polling.arrived("t", 0, 2, 7)
    assert await pulls.woken() == ["a"]


async def test_the_sweep_answers_what_is_due() -> None:
    pulls = waiter()
    pulls.hold("soon", deadline=1.0)
    pulls.hold("late", deadline=2.0)
    pulls.polling.sweep(1.0)
    assert await pulls.woken() == ["soon"]
    pulls.polling.sweep(2.5)
    assert await pulls.woken() == ["late"]
    assert pulls.polling.count == 0


async def test_the_pulls_of_a_closed_connection_are_forgotten() -> None:
    pulls = waiter()
    lost = open_connection()
    pulls.hold("lost", connection=lost)
    pulls.hold("kept")
    lost.closed = True
    pulls.polling.sweep(0.0)
    assert await pulls.woken() == []
    assert pulls.polling.count == 1


async def test_an_arrival_does_not_answer_over_a_closed_connection() -> None:
    pulls = waiter()
    lost = open_connection()
    pulls.hold("lost", connection=lost)
    pulls.polling.arrived("t", 0, 1, 0)
    lost.closed = True
    assert await pulls.woken() == []


async def test_the_pulls_of_a_removed_topic_are_answered() -> None:
    pulls = waiter()
    pulls.hold("a", topic="t")
    pulls.hold("b", topic="t", queue_id=1)
    pulls.hold("c", topic="u")
    pulls.polling.release_topic("t")
    assert await pulls.woken() == ["a", "b"]


async def test_all_are_answered_when_the_broker_stops() -> None:
    pulls = waiter()
    pulls.hold("a")
    pulls.hold("b", topic="u")
    pulls.polling.release_all()
    assert await pulls.woken() == ["a", "b"]


async def test_above_the_limit_no_more_may_wait() -> None:
    pulls = waiter(max_held=2)
    assert pulls.hold("a")
    assert pulls.hold("b", topic="u")
    assert not pulls.hold("c")
    pulls.polling.arrived("t", 0, 1, 0)
    assert pulls.hold("d")
    assert await pulls.woken() == ["a"]


async def test_a_pull_may_be_held_while_others_are_answered() -> None:
    pulls = waiter()
    polling = pulls.polling

    def hold_another() -> None:
        pulls.hold("another")

    polling.hold(HeldPull(open_connection(), "t", 0, 0, 9.0, None, hold_another))
    pulls.hold("b")
    polling.arrived("t", 0, 1, 0)
    assert await pulls.woken() == ["b"]
    polling.arrived("t", 0, 2, 0)
    assert await pulls.woken() == ["another"]


async def test_a_pull_waits_while_its_peer_does_not_take_other_answers() -> None:
    it = waiter()
    slow = open_connection()
    it.hold("slow", connection=slow)
    it.hold("other")
    slow.pause_writing()
    it.polling.arrived("t", 0, 1, 0)
    assert await it.woken() == ["other"]
    it.polling.sweep(0.0)
    assert await it.woken() == []
    # It still counts, or a peer could have ever more pulls that wait so.
    assert slow.held_pulls == 1
    slow.resume_writing()
    it.polling.sweep(0.0)
    assert await it.woken() == ["slow"]
    assert slow.held_pulls == 0
    it.polling.sweep(1000.0)
    assert await it.woken() == []


async def test_an_arrival_looks_at_no_more_pulls_than_its_work_allows() -> None:
    looked_at: list[int] = []

    def matches(code: int) -> bool:
        looked_at.append(code)
        return False

    work = WorkBudget(100 * 150)
    pulls = waiter(10_000, work)
    for number in range(1_000):
        pulls.hold(f"{number}", matches=matches)
    pulls.polling.arrived("t", 0, 1, 7)
    assert len(looked_at) == 1_000  # the last charge may go beyond the budget
    assert pulls.polling.count == 1_000
    pulls.polling.arrived("t", 0, 2, 7)
    # Nothing is left: all are woken, unasked, and find out themselves.
    assert len(looked_at) == 1_000
    assert pulls.polling.count == 0


async def test_many_woken_pulls_are_answered_in_several_turns() -> None:
    pulls = waiter(10_000)
    names = [f"{number}" for number in range(1_000)]
    for name in names:
        pulls.hold(name)
    pulls.polling.arrived("t", 0, 1, 0)
    answered: list[str] = []
    turns = 0
    while len(answered) < len(names):
        part = await pulls.woken()
        assert 0 < len(part) <= 16
        answered += part
        turns += 1
    assert answered == names
    assert turns >= 1_000 / 16


async def test_a_connection_with_many_woken_pulls_does_not_hold_up_another_with_one() -> None:
    pulls = waiter(100_000)
    busy = open_connection()
    for number in range(10_000):
        pulls.hold(f"busy {number}", connection=busy)
    pulls.hold("modest")
    pulls.polling.arrived("t", 0, 1, 0)
    answered: list[str] = []
    while "modest" not in answered:
        answered += await pulls.woken()
    assert len(answered) <= 10 * 16
    while len(answered) < 10_001:
        answered += await pulls.woken()
    assert answered[-1] == "busy 9999"


async def test_as_many_pulls_may_be_woken_and_not_answered_yet_as_may_wait() -> None:
    pulls = waiter(1)
    assert pulls.hold("a")
    pulls.polling.arrived("t", 0, 1, 0)
    assert not pulls.hold("b")
    assert await pulls.woken() == ["a"]
    assert pulls.hold("b")


async def test_a_sweep_over_many_topics_takes_several_turns() -> None:
    pulls = waiter(100_000)
    for topic in range(300):
        for number in range(100):
            pulls.hold(f"{topic} {number}", topic=f"t{topic}", deadline=1.0)
    pulls.polling.sweep(1.0)
    assert pulls.polling.count >= 29_000
    for _ in range(60):
        await asyncio.sleep(0)
    assert pulls.polling.count == 0


async def test_a_sweep_over_many_pulls_of_one_queue_takes_several_turns() -> None:
    """They were looked at in one piece: 17 ms for 100,000 of which none was due."""
    pulls = waiter(100_000)
    for number in range(10_000):
        pulls.hold(f"{number}", deadline=1.0 if number % 2 else 50.0)
    pulls.polling.sweep(1.0)
    assert pulls.polling.idle_s(1.0) == 0.0
    turns = 0
    while pulls.polling.idle_s(1.0) == 0.0:
        before = pulls.polling.count
        await asyncio.sleep(0)
        turns += 1
        assert before - pulls.polling.count <= 250
    assert turns >= 19
    assert pulls.polling.count == 5_000
    assert pulls.polling.idle_s(1.0) == 49.0


async def test_a_message_during_a_sweep_leaves_nobody_behind() -> None:
    pulls = waiter(100_000)
    for number in range(2_000):
        tags = (lambda _code: False) if number % 2 else None
        pulls.hold(f"{number}", deadline=1.0 if number % 4 == 1 else 50.0, matches=tags)
    pulls.polling.sweep(1.0)
    pulls.polling.arrived("t", 0, 1, 7)  # who waits for any message leaves
    for _ in range(200):
        await asyncio.sleep(0)
    assert pulls.polling.idle_s(1.0) == 0.0, "the rest is looked at in the next round"
    pulls.polling.sweep(1.0)
    for _ in range(200):
        await asyncio.sleep(0)
    assert pulls.polling.count == 500
    assert len(pulls.answered) == 1_500
    assert pulls.polling.idle_s(1.0) == 49.0


async def test_a_sweep_is_quiet_until_the_first_of_the_pulls_that_stay_has_waited_enough() -> None:
    pulls = waiter()
    polling = pulls.polling
    assert polling.idle_s(1.0) == math.inf
    for deadline in (7.0, 3.0, 9.0):
        pulls.hold(f"{deadline}", deadline=deadline)
    assert polling.idle_s(1.0) == 2.0
    polling.sweep(3.5)
    assert await pulls.woken() == ["3.0"]
    assert polling.idle_s(3.5) == 3.5
    pulls.hold("sooner", deadline=4.0)
    assert polling.idle_s(3.5) == 0.5
    polling.arrived("t", 0, 1, 0)
    # Those that left earlier cost one round, no more.
    assert polling.idle_s(3.5) == 0.5
    polling.sweep(4.0)
    assert polling.idle_s(4.0) == math.inf


async def test_a_pull_that_fails_keeps_no_other_from_its_answer() -> None:
    pulls = waiter()

    def fail() -> None:
        raise RuntimeError("a fault of ours")

    for number in range(3):
        pulls.polling.hold(HeldPull(open_connection(), "t", 0, 0, 100.0, None, fail))
        pulls.hold(f"a{number}")
    pulls.polling.arrived("t", 0, 1, 0)
    assert await pulls.woken() == ["a0", "a1", "a2"]
    assert pulls.polling.count == 0
