"""The functions with which all other tests wait: they wait long enough, and name a condition that
never came.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.real_sleeps import REASONS, ROOMS, TESTS, RealSleepError, blocking_sleeps
from tests.waits import CLOCK, eventually, until

from cometmq.testing.virtual import run


def test_what_a_thread_does_is_waited_for() -> None:
    seen: list[int] = []
    looks: list[int] = []

    def look() -> list[int]:
        looks.append(1)
        if len(looks) == 3:
            thread.start()
        return seen

    thread = threading.Thread(target=seen.append, args=(7,))
    assert eventually(look) == [7]
    thread.join()
    assert len(looks) >= 3


def test_the_first_answer_that_fits_is_returned() -> None:
    answers = iter([1, 5, 9])
    assert eventually(lambda: next(answers), lambda answer: answer > 4) == 5


def test_errors_that_pass_are_waited_out_and_others_end_the_wait() -> None:
    outcomes: Iterator[int | Exception] = iter([ConnectionError("away"), 0, 3])

    def look() -> int:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert eventually(look, passing=(ConnectionError,)) == 3
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 // 0, passing=(ConnectionError,))


def test_waiting_in_vain_says_for_what_and_what_was_seen() -> None:
    bodies = [b"one", b"two"]
    with pytest.raises(AssertionError) as failure:
        eventually(lambda: len(bodies) == 3, wait_s=0, note="seed 17")
    reported = (
        "lambda: len(bodies) == 3",
        "last seen: False",
        "bodies = [b'one', b'two']",
        "seed 17",
    )
    for part in reported:
        assert part in str(failure.value)

    def fails() -> int:
        raise ConnectionError("still away")

    with pytest.raises(AssertionError, match=r"last seen: ConnectionError\('still away'\)"):
        eventually(fails, wait_s=0, passing=(ConnectionError,))


async def test_a_loop_goes_on_while_its_test_waits() -> None:
    seen: list[str] = []
    asyncio.get_running_loop().call_later(0.001, seen.append, "timer")
    assert await until(lambda: seen) == ["timer"]

    async def asked() -> int:
        await asyncio.sleep(0)
        seen.append("asked")
        return len(seen)

    assert await until(asked, lambda count: count >= 3) == 3


async def test_a_loop_that_waits_in_vain_says_for_what() -> None:
    count = 4
    with pytest.raises(AssertionError) as failure:
        await until(lambda: count > 4, wait_s=0)
    for part in ("lambda: count > 4", "last seen: False", "count = 4"):
        assert part in str(failure.value)

    never = asyncio.Event()
    with pytest.raises(AssertionError, match=r"Event\.wait of .*Event object"):
        await until(never.wait, wait_s=0.01)

    async def raises() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await until(raises)


# No test sleeps for long in real time


async def test_a_coroutine_that_sleeps_a_second_of_real_time_is_refused() -> None:
    with pytest.raises(RealSleepError, match=r"unit/test_waits\.py::test_a_coroutine_that_sleeps"):
        await asyncio.sleep(1)
    await asyncio.sleep(0.001)


def test_a_test_that_sleeps_a_second_of_real_time_is_refused() -> None:
    with pytest.raises(RealSleepError, match=r"sleeps 1\.5 s of real time; run it in virtual time"):
        CLOCK.sleep(1.5)
    CLOCK.sleep(0.001)


def test_virtual_time_may_be_slept_away() -> None:
    run(asyncio.sleep(3600))


# Proves that virtual time refuses such calls.
REFUSED_ANYWAY = "unit/testing/test_virtual_loop.py::"


def test_no_test_calls_time_sleep_for_a_second() -> None:
    found = {
        place
        for room in ROOMS
        for path in sorted((TESTS / room).rglob("*.py"))
        for place in blocking_sleeps(path.read_text(), path.relative_to(TESTS).as_posix())
    }
    assert {place for place in found if not place.startswith(REFUSED_ANYWAY)} <= REASONS.keys()


def test_every_reason_is_still_needed() -> None:
    for place in REASONS:
        file, _, function = place.partition("::")
        assert f"def {function.rpartition('.')[2]}(" in (TESTS / file).read_text()


@pytest.mark.parametrize(
    ("line", "count"),
    [("time.sleep(1)", 1), ("time.sleep(PAUSE_S)", 1), ("sleep(2.5)", 1), ("time.sleep(0.9)", 0)],
)
def test_a_blocking_sleep_is_found_in_the_source(line: str, count: int) -> None:
    source = f"PAUSE_S = 3.0\n\ndef test_x():\n    if True:\n        {line}\n"
    assert list(blocking_sleeps(source, "unit/x.py")) == ["unit/x.py::test_x"] * count
