"""Pauses between attempts."""

from __future__ import annotations

import asyncio

from tests.waits import WAIT_S

from cometmq.runtime.back_off import BackOff


def test_pauses_double_up_to_the_longest_and_begin_again() -> None:
    back_off = BackOff(0.25, 1.5)
    assert [back_off.next_s() for _ in range(5)] == [0.25, 0.5, 1.0, 1.5, 1.5]
    back_off.reset()
    assert back_off.next_s() == 0.25


async def test_a_pause_ends_at_the_deadline() -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(WAIT_S):
        await BackOff(3600.0, 3600.0).wait(loop.time() + 0.01)
