"""Rates, on a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.pipelines.resending.pacing import Pacer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def paced(rate: float | None) -> tuple[Pacer, Clock]:
    clock = Clock()
    return Pacer(rate, clock, clock.sleep), clock


async def test_messages_take_their_time() -> None:
    pacer, clock = paced(10)
    for _ in range(21):
        await pacer.take(1)
    assert clock.now == pytest.approx(102)


async def test_a_wait_is_not_caught_up_with() -> None:
    pacer, clock = paced(10)
    await pacer.take(5)
    clock.now += 60
    begin = clock.now
    for _ in range(11):
        await pacer.take(1)
    assert clock.now - begin == pytest.approx(1)


async def test_without_a_rate_there_is_no_wait() -> None:
    pacer, clock = paced(None)
    await pacer.take(10**9)
    assert clock.now == 100.0
    assert pacer.most(128) == 128


def test_batches_are_as_small_as_the_rate_wants() -> None:
    assert paced(10**6)[0].most(128) == 128
    assert paced(100)[0].most(128) == 25
    assert paced(0.1)[0].most(128) == 1


@given(
    st.floats(0.5, 10_000),
    st.lists(st.tuples(st.integers(1, 200), st.floats(0, 2)), min_size=1, max_size=30),
)
async def test_no_stretch_of_time_gets_more_than_its_rate_and_one_batch(
    rate: float, steps: list[tuple[int, float]]
) -> None:
    pacer, clock = paced(rate)
    sent: list[tuple[float, int]] = []
    for count, pause in steps:
        await pacer.take(count)
        sent.append((clock.now, count))
        clock.now += pause
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            messages = sum(count for _, count in sent[first:last])
            assert messages <= rate * (sent[last][0] - sent[first][0]) + 1e-6 * rate + 1e-6
