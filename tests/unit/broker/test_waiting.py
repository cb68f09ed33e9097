"""The table of requests that wait: the events that make them due, the order in which they are resumed, the limits."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.simulated import SimulatedWorkers, in_simulated_time
from tests.waits import until

from cometmq.broker.filters.work import FilterWork
from cometmq.broker.pulls import waiting
from cometmq.broker.pulls.waiter import ANY_QUEUE, Reason, State, TagMatcher, Waiter
from cometmq.broker.pulls.waiting import Waiting
from cometmq.broker.refusal import Refused
from cometmq.errors import StoreError
from cometmq.protocol.command import Request
from cometmq.protocol.frame import Frame, SerializeType
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.holdings import Holdings
from cometmq.runtime.tasks import TaskOwner

PER_TURN = waiting.RESUMED_PER_TURN


def open_connection() -> Connection:
    return Connection(Handlers(), TaskOwner("test"))


class Table:
    """A table, and the names of the requests that it has resumed, with the reasons."""

    def __init__(
        self, max_held: int = 100_000, max_of_connection: int = 100_000, per_turn: int = 1 << 60
    ):
        self.work = FilterWork(per_turn)
        self.workers = SimulatedWorkers()
        self.waiting = Waiting(self.work, self.workers, max_held, max_of_connection)
        self.resumed: list[tuple[str, Reason]] = []
        self.last_s = 0.0
        self.limits: list[str] = []
        self.waiting.on_limit = self.limits.append

    def waiter(
        self,
        name: str = "a",
        connection: Connection | None = None,
        *,
        then: Callable[[Waiter, Reason], None] | None = None,
        body: bytes = b"",
    ) -> Waiter:
        def resume(waiter: Waiter, reason: Reason) -> None:
            self.resumed.append((name, reason))
            self.last_s = asyncio.get_running_loop().time()
            if then is not None:
                then(waiter, reason)

        request: Request[Any] = Request(code=11, frame=Frame(SerializeType.JSON, b"", body))
        return Waiter(connection or open_connection(), request, resume)

    def hold(
        self,
        name: str = "a",
        connection: Connection | None = None,
        *,
        topic: str = "t",
        queue_id: int = 0,
        offset: int = 0,
        wait_s: float = 100.0,
        matches: TagMatcher | None = None,
        then: Callable[[Waiter, Reason], None] | None = None,
    ) -> bool:
        waiter = self.waiter(name, connection, then=then)
        waiter.places = ((topic, queue_id),)
        waiter.offset = offset
        waiter.deadline = asyncio.get_running_loop().time() + wait_s
        waiter.matches = matches
        return self.waiting.wait(waiter, State.MESSAGES)

    async def woken(self) -> list[str]:
        """Return the names of those resumed since the last call, after the end of this turn of the loop."""
        await asyncio.sleep(0)
        resumed, self.resumed = self.resumed, []
        return [name for name, _ in resumed]


# Each state and each event

EVENTS: dict[str, Callable[[Table, Waiter], None]] = {
    "ARRIVED": lambda table, _: table.waiting.arrived("t", 0, 1, 0),
    "another queue": lambda table, _: table.waiting.arrived("t", 1, 1, 0),
    "HEARD": lambda table, _: table.waiting.heard("g"),
    "another group": lambda table, _: table.waiting.heard("h"),
    "RELEASED": lambda table, _: table.waiting.release_all(),
    "another topic": lambda table, _: table.waiting.release_topic("u"),
}
# The reason with which an event makes a request due, by state. Other events change nothing.
TRANSITIONS: dict[State, dict[str, Reason]] = {
    State.MESSAGES: {"ARRIVED": Reason.ARRIVED, "RELEASED": Reason.RELEASED},
    State.HEARTBEAT: {"HEARD": Reason.HEARD, "RELEASED": Reason.RELEASED},
    State.FILTERS: {},
    State.DISK: {},
}
# The reason with which a request comes back if nothing happens, and the latest time.
BY_ITSELF = {
    State.MESSAGES: (Reason.DEADLINE, 5.0 + waiting.TICK_S),
    State.HEARTBEAT: (Reason.DEADLINE, 5.0 + waiting.TICK_S),
    State.FILTERS: (Reason.TURN, 0.0),
    State.DISK: (Reason.READ, 0.01),
}


def put(table: Table, state: State, connection: Connection | None = None) -> Waiter:
    """Have a request wait that fits all events."""
    waiter = table.waiter("a", connection)
    waiter.places, waiter.group = (("t", 0),), "g"
    waiter.deadline = asyncio.get_running_loop().time() + 5.0
    assert table.waiting.wait(waiter, state)
    return waiter


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", TRANSITIONS, ids=lambda state: state.name)
@in_simulated_time
async def test_each_event_in_each_state(state: State, event: str) -> None:
    table = Table()
    waiter = put(table, state)
    assert table.waiting.state_of(waiter) is state
    EVENTS[event](table, waiter)
    reason = TRANSITIONS[state].get(event)
    assert table.waiting.state_of(waiter) is (state if reason is None else State.DUE)
    assert table.resumed == []  # not inside the event
    at_latest_s = 0.0
    if reason is None:
        reason, at_latest_s = BY_ITSELF[state]
    began = asyncio.get_running_loop().time()
    await until(lambda: bool(table.resumed))
    assert table.resumed == [("a", reason)]
    assert table.last_s - began <= at_latest_s
    assert table.waiting.state_of(waiter) is None
    assert table.waiting.count(state) == 0
    table.waiting.close()


@pytest.mark.parametrize("event", EVENTS)
@in_simulated_time
async def test_what_is_due_keeps_its_reason(event: str) -> None:
    table = Table()
    waiter = put(table, State.MESSAGES)
    table.waiting.release_topic("t")
    EVENTS[event](table, waiter)
    assert table.waiting.state_of(waiter) is State.DUE
    await asyncio.sleep(20.0)
    assert table.resumed == [("a", Reason.RELEASED)]
    table.waiting.close()


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", TRANSITIONS, ids=lambda state: state.name)
@in_simulated_time
async def test_a_request_waits_for_its_peer_with_the_reason_that_it_has(
    state: State, event: str
) -> None:
    table = Table()
    slow = open_connection()
    slow.pause_writing()
    waiter = put(table, state, slow)
    table.waiting.release_all()
    await asyncio.sleep(10.0)
    assert table.waiting.state_of(waiter) is State.PEER
    EVENTS[event](table, waiter)
    await asyncio.sleep(10.0)
    # It still counts, or a peer could have ever more requests that wait so.
    assert table.waiting.count(state) == 1
    assert table.resumed == []
    slow.resume_writing()
    await until(lambda: bool(table.resumed))
    reason = TRANSITIONS[state].get("RELEASED") or BY_ITSELF[state][0]
    assert table.resumed == [("a", reason)]
    assert table.waiting.count(state) == 0
    table.waiting.close()


@pytest.mark.parametrize("is_due", [False, True])
@pytest.mark.parametrize("state", TRANSITIONS, ids=lambda state: state.name)
@in_simulated_time
async def test_the_requests_of_a_lost_connection_leave_the_table(
    state: State, is_due: bool
) -> None:
    table = Table()
    lost = open_connection()
    waiter = put(table, state, lost)
    table.hold("other")
    if is_due:
        table.waiting.release_all()
    lost.connection_lost(None)
    assert table.waiting.state_of(waiter) is None
    assert table.waiting.count(State.MESSAGES) == 1
    for event in EVENTS.values():
        event(table, waiter)
    await asyncio.sleep(20.0)
    assert [name for name, _ in table.resumed] == ["other"]
    table.waiting.close()


@pytest.mark.parametrize("state", TRANSITIONS, ids=lambda state: state.name)
@in_simulated_time
async def test_a_request_may_wait_for_each_thing_after_another(state: State) -> None:
    table = Table()
    to_come = [state, State.FILTERS, State.DISK, State.HEARTBEAT, State.MESSAGES]

    def wait_on(waiter: Waiter, _reason: Reason) -> None:
        if to_come:
            assert table.waiting.wait(waiter, to_come.pop(0))

    waiter = table.waiter(then=wait_on)
    waiter.places, waiter.group = (("t", 0),), "g"
    waiter.deadline = asyncio.get_running_loop().time() + 5.0
    wait_on(waiter, Reason.ARRIVED)
    await asyncio.sleep(20.0)
    # A deadline that has passed lets it go at once.
    expected = [BY_ITSELF[state][0], Reason.TURN, Reason.READ, Reason.DEADLINE, Reason.DEADLINE]
    assert [reason for _, reason in table.resumed] == expected
    assert not any(map(table.waiting.count, TRANSITIONS))
    table.waiting.close()


async def test_a_request_of_a_closed_connection_is_forgotten() -> None:
    table = Table()
    gone = open_connection()
    gone.connection_lost(None)
    assert table.hold("gone", gone)
    assert table.waiting.count(State.MESSAGES) == 0


# Messages


async def test_an_arrival_wakes_the_requests_that_wait_for_its_queue() -> None:
    table = Table()
    for name, topic, queue_id in (("a", "t", 0), ("b", "t", 0), ("c", "t", 1), ("d", "u", 0)):
        table.hold(name, topic=topic, queue_id=queue_id)
    assert table.waiting.is_awaited("t", 0)
    table.waiting.arrived("t", 0, 1, 0)
    assert await table.woken() == ["a", "b"]
    assert table.waiting.count(State.MESSAGES) == 2
    assert not table.waiting.is_awaited("t", 0)


async def test_several_arrivals_wake_a_request_once() -> None:
    table = Table()
    table.hold("a")
    for offset in (1, 2, 3):
        table.waiting.arrived("t", 0, offset, 0)
    assert await table.woken() == ["a"]
    assert await table.woken() == []


async def test_a_message_before_the_offset_that_is_waited_for_wakes_nobody() -> None:
    table = Table()
    table.hold("a", offset=5)
    table.waiting.arrived("t", 0, 5, 0)
    assert await table.woken() == []
    table.waiting.arrived("t", 0, 6, 0)
    assert await table.woken() == ["a"]


async def test_a_message_with_another_tag_wakes_nobody() -> None:
    table = Table()
    table.hold("a", matches={7}.__contains__)
    table.hold("all")
    table.waiting.arrived("t", 0, 1, 8)
    assert await table.woken() == ["all"]
    table.waiting.arrived("t", 0, 2, 7)
    assert await table.woken() == ["a"]


async def test_properties_are_decoded_for_filters_that_ask_for_them() -> None:
    table = Table()

    def is_red(properties: Mapping[str, str]) -> bool:
        return properties.get("colour") == "red"

    waiter = table.waiter("red")
    waiter.places, waiter.deadline = (("t", 0),), 1e9
    waiter.matches_properties = is_red
    table.waiting.wait(waiter, State.MESSAGES)
    table.waiting.arrived("t", 0, 1, 0, 0, b"colour\x01blue\x02")
    assert await table.woken() == []
    table.waiting.arrived("t", 0, 2, 0, 0, b"colour\x01red\x02")
    assert await table.woken() == ["red"]


async def test_a_request_may_wait_for_all_queues_of_several_topics() -> None:
    """So a POP waits: for its topic, and for the topic of its group's retries."""
    for topic, queue_id in (("t", 3), ("retry", 0)):
        table = Table()
        waiter = table.waiter("pop")
        waiter.places, waiter.deadline = (("t", ANY_QUEUE), ("retry", ANY_QUEUE)), 1e9
        table.waiting.wait(waiter, State.MESSAGES)
        table.hold("pull", topic=topic, queue_id=queue_id)
        table.waiting.arrived("u", 3, 1, 0)
        assert await table.woken() == []
        assert table.waiting.is_awaited(topic, queue_id)
        table.waiting.arrived(topic, queue_id, 1, 0)
        assert await table.woken() == ["pull", "pop"]
        assert not table.waiting.is_awaited("t", 3)
        assert not table.waiting.is_awaited("retry", 0)


async def test_a_message_wakes_one_of_those_that_share_it() -> None:
    table = Table()

    def pop(name: str, share: str) -> bool:
        waiter = table.waiter(name)
        waiter.places, waiter.deadline = (("t", ANY_QUEUE),), 1e9
        waiter.share, waiter.max_share = share, 2
        return table.waiting.wait(waiter, State.MESSAGES)

    assert [pop(name, "t@g@-1") for name in ("g1", "g2", "g3")] == [True, True, False]
    assert pop("h1", "t@h@-1")
    assert table.waiting.count_of_share("t@g@-1") == 2
    table.waiting.arrived("t", 0, 1, 0)
    assert await table.woken() == ["g1", "h1"]
    assert table.waiting.count_of_share("t@g@-1") == 1
    table.waiting.arrived("t", 1, 1, 0)
    assert await table.woken() == ["g2"]
    assert table.waiting.count_of_share("t@g@-1") == 0


async def test_a_message_looks_at_few_of_the_many_that_share_it() -> None:
    """Each message looked at all pops that waited, and when that took too long, woke all of them."""
    table, connection = Table(), open_connection()
    looked_at: list[int] = []

    def matches(code: int) -> bool:
        looked_at.append(code)
        return True

    def pop(name: str, group: str) -> None:
        waiter = table.waiter(name, connection)
        waiter.places, waiter.deadline, waiter.matches = (("t", ANY_QUEUE),), 1e9, matches
        waiter.share, waiter.max_share = f"t@{group}@-1", 10_000
        assert table.waiting.wait(waiter, State.MESSAGES)

    for number in range(4_000):
        pop(f"pop-{number}", f"g{number % 4}")
    for offset in (1, 2):
        table.waiting.arrived("t", 0, offset, 0)
    assert await table.woken() == [f"pop-{number}" for number in range(8)]
    assert len(looked_at) == 8


async def test_filters_that_pass_over_many_of_a_share_cost_a_bounded_number_of_looks() -> None:
    table, connection = Table(), open_connection()
    looked_at: list[int] = []

    def matches(code: int) -> bool:
        looked_at.append(code)
        return False

    for number in range(3_000):
        waiter = table.waiter(f"pop-{number}", connection)
        waiter.places, waiter.deadline, waiter.matches = (("t", ANY_QUEUE),), 1e9, matches
        waiter.share, waiter.max_share = "t@g@-1", 10_000
        assert table.waiting.wait(waiter, State.MESSAGES)
    table.waiting.arrived("t", 0, 1, 0)
    assert len(looked_at) == 1_024
    assert len(await table.woken()) == 1


async def test_a_message_wakes_another_when_the_connection_that_it_woke_is_lost() -> None:
    """The message lay there until the other request's time was over."""
    table = Table()
    connections = {name: open_connection() for name in ("first", "second")}
    for name, connection in connections.items():
        waiter = table.waiter(name, connection)
        waiter.places, waiter.deadline = (("t", ANY_QUEUE),), 1e9
        waiter.share, waiter.max_share = "t@g@-1", 10
        assert table.waiting.wait(waiter, State.MESSAGES)
    table.waiting.arrived("t", 0, 1, 0)
    connections["first"].connection_lost(None)
    assert await table.woken() == ["second"]


async def test_an_arrival_looks_at_no_more_requests_than_its_work_allows() -> None:
    looked_at: list[int] = []

    def matches(code: int) -> bool:
        looked_at.append(code)
        return False

    table = Table(per_turn=100 * 150)
    for number in range(1_000):
        table.hold(f"{number}", matches=matches)
    table.waiting.arrived("t", 0, 1, 7)
    assert len(looked_at) == 1_000  # the last charge may go beyond the budget
    assert table.waiting.is_awaited("t", 0)
    table.waiting.arrived("t", 0, 2, 7)
    # Nothing is left: all are woken, unasked, and find out themselves.
    assert len(looked_at) == 1_000
    assert not table.waiting.is_awaited("t", 0)


async def test_the_requests_of_a_removed_topic_are_resumed() -> None:
    table = Table()
    table.hold("a", topic="t")
    table.hold("b", topic="t", queue_id=1)
    table.hold("c", topic="u")
    table.waiting.release_topic("t")
    assert await table.woken() == ["a", "b"]


async def test_all_are_resumed_in_one_turn_when_the_broker_stops() -> None:
    table = Table()
    for number in range(1_000):
        table.hold(f"{number}", topic=f"t{number % 7}")
    table.waiting.release_all()
    assert len(await table.woken()) == 1_000


async def test_a_request_that_begins_to_wait_while_the_broker_stops_is_resumed() -> None:
    table = Table()
    table.waiting.release_all()  # nothing waits yet
    table.hold("late")
    table.waiting.arrived("t", 0, 1, 0)
    assert await table.woken() == ["late"]


async def test_a_request_may_wait_while_others_are_resumed() -> None:
    table = Table()
    table.hold("a", then=lambda _waiter, _reason: assert_held(table, "another"))
    table.hold("b")
    table.waiting.arrived("t", 0, 1, 0)
    assert await table.woken() == ["a", "b"]
    table.waiting.arrived("t", 0, 2, 0)
    assert await table.woken() == ["another"]


def assert_held(table: Table, name: str) -> None:
    assert table.hold(name)


# Heartbeats


@in_simulated_time
async def test_heartbeats_do_not_try_all_that_waits_each_time_they_are_sent() -> None:
    table = Table()

    def wait_on(waiter: Waiter, _reason: Reason) -> None:
        table.waiting.wait(waiter, State.HEARTBEAT)

    def await_heartbeat(name: str, then: Callable[[Waiter, Reason], None] | None = None) -> None:
        waiter = table.waiter(name, then=then)
        waiter.group, waiter.deadline = "g", 1e9
        table.waiting.wait(waiter, State.HEARTBEAT)

    for _ in range(1_000):
        await_heartbeat("ahead", wait_on)
    await_heartbeat("served")
    table.waiting.heard("g")
    tried: list[str] = []
    for _ in range(100):
        for _ in range(100):
            table.waiting.heard("g")
        part = await table.woken()
        assert 0 < len(part) <= PER_TURN
        tried += part
    # Nor does a heartbeat in each turn begin again: all have their turn.
    assert tried.count("served") == 1
    table.waiting.close()


# Deadlines


@in_simulated_time
async def test_a_deadline_is_met_within_a_tick() -> None:
    table = Table()
    loop = asyncio.get_running_loop()
    ended: dict[float, float] = {}
    began = loop.time()

    def hold(wait_s: float) -> None:
        def then(_waiter: Waiter, _reason: Reason) -> None:
            ended[wait_s] = loop.time() - began

        table.hold(wait_s=wait_s, then=then)

    for wait_s in (0.0, 0.1, 1.0, 1.9, 15.0, 3_600.0, 0.3):
        hold(wait_s)
    await asyncio.sleep(4_000.0)
    assert len(ended) == 7
    for wait_s, after_s in ended.items():
        assert wait_s <= after_s <= wait_s + waiting.TICK_S + 0.01
    assert {reason for _, reason in table.resumed} == {Reason.DEADLINE}
    table.waiting.close()


async def test_requests_that_are_answered_early_leave_nothing_behind() -> None:
    table = Table()
    left: list[weakref.ref[Any]] = []
    for number in range(100):

        def then(_waiter: Waiter, _reason: Reason) -> None:
            pass

        left.append(weakref.ref(then))
        table.hold("a", wait_s=600.0 + number, then=then)
        del then
        table.waiting.arrived("t", 0, 1, 0)
        assert await table.woken() == ["a"]
    assert not any(then() for then in left)


# Turns


async def test_many_that_are_due_are_resumed_in_several_turns() -> None:
    table = Table()
    names = [f"{number}" for number in range(1_000)]
    for name in names:
        table.hold(name)
    table.waiting.arrived("t", 0, 1, 0)
    resumed: list[str] = []
    turns = 0
    while len(resumed) < len(names):
        part = await table.woken()
        assert 0 < len(part) <= PER_TURN
        resumed += part
        turns += 1
    assert resumed == names
    assert turns >= 1_000 / PER_TURN


async def test_a_connection_with_many_due_does_not_hold_up_another_with_one() -> None:
    table = Table()
    busy = open_connection()
    for number in range(10_000):
        table.hold(f"busy {number}", busy)
    table.hold("modest")
    table.waiting.arrived("t", 0, 1, 0)
    resumed: list[str] = []
    while "modest" not in resumed:
        resumed += await table.woken()
    assert len(resumed) <= 10 * PER_TURN
    while len(resumed) < 10_001:
        resumed += await table.woken()
    assert resumed[-1] == "busy 9999"


async def test_a_connection_that_is_lost_takes_those_that_are_due_with_it() -> None:
    table = Table()
    lost, other = open_connection(), open_connection()
    for number in range(100):
        table.hold(f"lost {number}", lost)
        table.hold(f"other {number}", other)
    table.waiting.arrived("t", 0, 1, 0)
    assert len(await table.woken()) == PER_TURN
    lost.connection_lost(None)
    resumed: list[str] = []
    for _ in range(20):
        resumed += await table.woken()
    assert len(resumed) == 100 - PER_TURN // 2
    assert not any(name.startswith("lost") for name in resumed)


async def test_a_fault_keeps_no_other_from_its_turn() -> None:
    table = Table()

    def fail(_waiter: Waiter, _reason: Reason) -> None:
        raise RuntimeError("a fault of ours")

    faulty = open_connection()
    for number in range(3):
        table.hold(f"b{number}", faulty, then=fail)
        table.hold(f"a{number}")
    table.waiting.arrived("t", 0, 1, 0)
    assert [name for name in await table.woken() if name[0] == "a"] == ["a0", "a1", "a2"]
    for state in (State.FILTERS, State.DISK):
        for name, then in (("b", fail), ("other", None)):
            table.waiting.wait(table.waiter(name, then=then), state)
        await until(lambda: ("other", BY_ITSELF[state][0]) in table.resumed)  # noqa: B023 - waited for here
    assert not any(map(table.waiting.count, TRANSITIONS))


async def test_connections_take_turns_at_the_work_of_filters() -> None:
    table = Table(per_turn=100)

    def work(_waiter: Waiter, _reason: Reason) -> None:
        table.work.charge(100)

    greedy, modest, lost = open_connection(), open_connection(), open_connection()
    for number in range(3):
        table.waiting.wait(table.waiter(f"greedy {number}", greedy, then=work), State.FILTERS)
        table.waiting.wait(table.waiter("lost", lost, then=work), State.FILTERS)
    table.waiting.wait(table.waiter("modest", modest, then=work), State.FILTERS)
    lost.connection_lost(None)
    # One a turn: each takes all of its work.
    turns = [await table.woken() for _ in range(4)]
    assert turns == [["greedy 0"], ["modest"], ["greedy 1"], ["greedy 2"]]
    assert table.waiting.count(State.FILTERS) == 0


# The disk


@in_simulated_time
async def test_a_disk_that_fails_says_why() -> None:
    table = Table()
    fault = StoreError("/store/0: Input/output error")

    def fail() -> None:
        raise fault

    waiter = table.waiter()
    waiter.absent = (fail,)
    table.waiting.wait(waiter, State.DISK)
    await until(lambda: bool(table.resumed))
    assert waiter.error is fault
    table.waiting.close()


@in_simulated_time
async def test_a_request_for_which_the_system_gives_no_thread_fails_and_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table()
    waiters = [table.waiter(str(number)) for number in range(waiting.READERS + 1)]

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "run_in_executor", no_thread)
        for waiter in waiters:
            assert table.waiting.wait(waiter, State.DISK)
        assert await table.woken() == ["0", "1", "2", "3", "4"]
    assert {str(waiter.error) for waiter in waiters} == {"can't start new thread"}
    assert table.waiting.count(State.DISK) == 0
    assert table.waiting.wait(table.waiter("next"), State.DISK)
    await until(lambda: table.resumed == [("next", Reason.READ)])
    table.waiting.close()


# Limits


async def test_above_the_limit_no_more_may_wait() -> None:
    table = Table(max_held=2)
    assert table.hold("a")
    assert table.hold("b", topic="u")
    assert not table.hold("c")
    # One that is due counts until it is resumed.
    table.waiting.arrived("t", 0, 1, 0)
    assert not table.hold("d")
    assert await table.woken() == ["a"]
    assert table.hold("d")
    assert table.limits == ["maxHeldPulls"] * 2


async def test_a_connection_has_a_limit_of_its_own() -> None:
    table = Table(max_of_connection=1)
    greedy = open_connection()
    assert table.hold("a", greedy)
    assert not table.hold("b", greedy)
    assert table.hold("c")
    table.waiting.set_limits(100, 2)
    assert table.hold("b", greedy)
    assert table.limits == ["maxHeldPullsPerConnection"]


async def test_those_ahead_of_a_heartbeat_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_PULLS_AHEAD", 1)
    table = Table()
    waiters = [table.waiter(), table.waiter()]
    assert [table.waiting.wait(waiter, State.HEARTBEAT) for waiter in waiters] == [True, False]
    assert table.limits == ["MAX_PULLS_AHEAD"]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (State.FILTERS, "1 pulls wait for their filters' turn, the limit maxHeldPulls is 1"),
        (State.DISK, "1 pulls wait for the disk, the limit MAX_COLD_PULLS_OF_CONNECTION is 1"),
    ],
)
async def test_a_request_that_can_only_wait_is_refused_by_name(
    state: State, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_COLD_PULLS_OF_CONNECTION", 1)
    table = Table(max_held=1)
    connection = open_connection()
    table.waiting.wait(table.waiter("a", connection), state)
    with pytest.raises(Refused, match=says):
        table.waiting.wait(table.waiter("b", connection), state)


@in_simulated_time
async def test_what_waits_is_counted_as_held_until_it_is_resumed() -> None:
    table = Table()
    for state in BY_ITSELF:
        connection = Connection(Handlers(), TaskOwner("test"), holdings=Holdings())
        waiter = table.waiter("a", connection, body=b"x" * 5_000)
        waiter.size, waiter.places, waiter.group = 10_000, (("t", 0),), "g"
        table.waiting.wait(waiter, state)
        assert connection.holding.kept == 15_000
        await until(lambda: bool(table.resumed))
        assert connection.holding.kept == 0
        table.resumed.clear()
    table.waiting.close()


async def test_the_collector_looked_at_all_that_waits_when_requests_were_answered_and_came_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many objects are freed as are made, so the collector does not come by itself for a long time."""
    monkeypatch.setattr("cometmq.runtime.garbage._Young.is_watched", True)
    table, connection = Table(), open_connection()
    kept: list[Waiter] = []
    held = 4_000
    looked_at: list[int] = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looked_at.append(
                sum(
                    isinstance(each, Waiter)
                    for generation in range(info["generation"] + 1)
                    for each in gc.get_objects(generation)
                )
            )

    def hold(number: int) -> None:
        waiter = table.waiter(connection=connection)
        waiter.places = (("t", number),)
        waiter.deadline = asyncio.get_running_loop().time() + 100
        assert table.waiting.wait(waiter, State.MESSAGES)
        kept.append(waiter)

    for number in range(held):
        hold(number)
    gc.collect()
    gc.freeze()
    gc.callbacks.append(count)
    try:
        for number in range(held):
            table.waiting.arrived("t", number, 1, 0)
            await table.woken()
            del kept[0]
            hold(number)
        gc.collect(1)
    finally:
        gc.callbacks.remove(count)
        gc.unfreeze()
    assert max(looked_at) < held // 2
