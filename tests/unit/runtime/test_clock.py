"""The broker's clock: it follows the wall clock forward and never goes back."""

from __future__ import annotations

from typing import TypeVar

import pytest
from structlog.testing import capture_logs

from cometmq.runtime.clock import SYSTEM_CLOCK, SteadyClock, ahead_ms

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000

T = TypeVar("T", int, float)


class SetClock:
    """A machine whose wall clock can be set."""

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.seconds = 50.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float, /) -> None:
        self.pass_ms(int(seconds * 1000))

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.seconds += ms / 1000


@pytest.fixture
def machine() -> SetClock:
    return SetClock()


@pytest.fixture
def steady(machine: SetClock) -> SteadyClock:
    return SteadyClock(machine)


def test_it_tells_the_wall_clocks_time(machine: SetClock, steady: SteadyClock) -> None:
    for ms in (0, 1, 50, 99, 100, 5_000, HOUR_MS):
        machine.pass_ms(ms)
        assert steady.now_ms() == pytest.approx(machine.wall_ms, abs=1)
    assert steady.ahead_ms() == 0


def test_a_clock_set_back_three_hours_held_up_delayed_messages(
    machine: SetClock, steady: SteadyClock
) -> None:
    machine.wall_ms -= 3 * HOUR_MS
    machine.pass_ms(10_000)
    # Ten seconds have passed, less the hundredth that lets the clocks meet again.
    assert START_MS + 9_800 <= steady.now_ms() <= START_MS + 10_000
    assert steady.ahead_ms() == pytest.approx(3 * HOUR_MS, abs=200)
    assert ahead_ms(steady) == steady.ahead_ms()


def test_a_clock_set_forward_is_followed(machine: SetClock, steady: SteadyClock) -> None:
    machine.wall_ms += HOUR_MS
    machine.pass_ms(100)
    assert steady.now_ms() == machine.wall_ms
    assert steady.ahead_ms() == 0


def test_the_clocks_meet_again_and_time_never_goes_back(
    machine: SetClock, steady: SteadyClock
) -> None:
    machine.wall_ms -= 60_000
    last = steady.now_ms()
    for _ in range(6_200 * 4):
        machine.pass_ms(250)
        now = steady.now_ms()
        assert 247 <= now - last <= 251
        last = now
    assert steady.ahead_ms() == 0
    assert last == pytest.approx(machine.wall_ms, abs=6)


def test_steps_to_and_fro_move_it_forward_only(machine: SetClock, steady: SteadyClock) -> None:
    last = steady.now_ms()
    for step in (5, -3 * HOUR_MS, 7, 4 * HOUR_MS, -10, -24 * HOUR_MS, 30, 2 * HOUR_MS, -1):
        machine.wall_ms += step
        for _ in range(7):
            machine.pass_ms(33)
            assert steady.now_ms() >= last
            last = steady.now_ms()


def test_a_step_is_said_once(machine: SetClock, steady: SteadyClock) -> None:
    with capture_logs() as said:
        machine.wall_ms -= 3 * HOUR_MS
        for _ in range(100):
            machine.pass_ms(1_000)
            steady.now_ms()
    (line,) = said
    assert "was set back" in line["event"]
    assert line["by"].startswith(("3:00:00", "2:59:59"))


def test_after_a_restart_it_goes_on_from_what_the_log_says(
    machine: SetClock, steady: SteadyClock
) -> None:
    steady.start_from(START_MS + 3 * HOUR_MS)
    assert steady.now_ms() == START_MS + 3 * HOUR_MS
    machine.pass_ms(1_000)
    assert steady.now_ms() == pytest.approx(START_MS + 3 * HOUR_MS + 990, abs=2)


def test_an_older_log_changes_nothing(machine: SetClock, steady: SteadyClock) -> None:
    with capture_logs() as said:
        steady.start_from(START_MS - HOUR_MS)
        steady.start_from(0)
    assert steady.now_ms() == machine.wall_ms
    assert said == []


class HeldUp(SetClock):
    """A machine that holds up the thread for `ms` once, behind its `after`th reading of a clock."""

    after = 0
    ms = 0

    def now_ms(self) -> int:
        return self._held_up(super().now_ms())

    def monotonic(self) -> float:
        return self._held_up(super().monotonic())

    def _held_up(self, reading: T) -> T:
        self.after -= 1
        if self.after == 0:
            self.pass_ms(self.ms)
        return reading


@pytest.mark.parametrize("ms", [400, 1500])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_thread_held_up_between_two_readings_set_the_clock_ahead(after: int, ms: int) -> None:
    machine = HeldUp()
    steady = SteadyClock(machine)
    machine.pass_ms(200)
    machine.after, machine.ms = after, ms
    with capture_logs() as said:
        for _ in range(5):
            steady.now_ms()
            machine.pass_ms(200)
    assert steady.now_ms() == pytest.approx(machine.wall_ms, abs=2)
    assert said == []


def test_the_wall_clock_itself_is_never_ahead() -> None:
    assert ahead_ms(SYSTEM_CLOCK) == 0
