"""Clients leave slow and failing brokers alone, as MQFaultStrategy does."""

from __future__ import annotations

import pytest

from cometmq.client.latency_faults import LatencyFaults, LatencyTables
from cometmq.client.routes import PublishRoute
from cometmq.errors import IllegalArgumentError
from cometmq.model.queue import MessageQueue


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def faults(clock: Clock) -> LatencyFaults:
    return LatencyFaults(LatencyTables(), clock)


def route(*brokers: str) -> PublishRoute:
    return PublishRoute([MessageQueue("t", name, i) for name in brokers for i in range(2)], 0)


@pytest.mark.parametrize(
    ("latency_ms", "pause_ms"),
    [
        (0, 0),
        (549, 0),
        (550, 2000),
        (1799, 2000),
        (1800, 5000),
        (3000, 6000),
        (5000, 10_000),
        (14_999, 10_000),
        (15_000, 30_000),
        (999_999, 30_000),
    ],
)
def test_the_tables_are_javas(latency_ms: int, pause_ms: int) -> None:
    assert LatencyTables().pause_ms(latency_ms) == pause_ms


@pytest.mark.parametrize(
    ("latencies", "durations"), [((1, 2), (1,)), ((), ()), ((2, 1), (0, 0)), ((1,), (-1,))]
)
def test_tables_that_do_not_fit_are_refused(
    latencies: tuple[int, ...], durations: tuple[int, ...]
) -> None:
    with pytest.raises(IllegalArgumentError, match="latency_max_ms"):
        LatencyTables(latencies, durations)


def test_a_failed_broker_is_left_alone_for_ten_seconds(faults: LatencyFaults, clock: Clock) -> None:
    faults.note("a", 0.001, failed=True, reachable=True)
    assert not faults.available("a")
    chosen = {faults.choose(route("a", "b"), None).broker_name for _ in range(10)}
    assert chosen == {"b"}
    clock.now_s += 9.9
    assert not faults.available("a")
    clock.now_s += 0.2
    assert faults.available("a")


def test_a_success_ends_no_pause_and_a_shorter_pause_ends_none(
    faults: LatencyFaults, clock: Clock
) -> None:
    faults.note("a", 0, failed=True, reachable=True)
    faults.note("a", 0.01, failed=False, reachable=True)
    faults.note("a", 0.6, failed=False, reachable=True)
    clock.now_s += 9
    assert not faults.available("a")


def test_a_slow_broker_is_left_alone_as_long_as_its_latency_says(
    faults: LatencyFaults, clock: Clock
) -> None:
    faults.note("a", 0.6, failed=False, reachable=True)
    assert not faults.available("a")
    clock.now_s += 2.1
    assert faults.available("a")


def test_when_none_is_available_one_that_does_not_refuse_is_taken(faults: LatencyFaults) -> None:
    faults.note("a", 0, failed=True, reachable=False)
    faults.note("b", 0, failed=True, reachable=True)
    assert {faults.choose(route("a", "b"), None).broker_name for _ in range(6)} == {"b"}
    # Between one that refused and the one just tried, any will do.
    turns = route("a", "b")
    assert {faults.choose(turns, "b").broker_name for _ in range(6)} == {"a", "b"}


def test_the_broker_to_avoid_is_avoided_while_another_is_there(faults: LatencyFaults) -> None:
    assert {faults.choose(route("a", "b"), "a").broker_name for _ in range(6)} == {"b"}
    assert faults.choose(route("a"), "a").broker_name == "a"


def test_the_queues_of_what_is_available_take_turns(faults: LatencyFaults) -> None:
    faults.note("b", 0, failed=True, reachable=True)
    turns = route("a", "b", "c")
    chosen = [faults.choose(turns, None) for _ in range(8)]
    assert len(set(chosen)) == 4
    assert chosen[:4] == chosen[4:]
