"""The calls that wait for answers: what it costs to look for those that are over."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from tests.unit.remoting.line import Line

from cometmq.errors import RequestTimeoutError
from cometmq.remoting.calls import Calls
from cometmq.testing.virtual import run

LONG: Final = 10_000


async def looks_for(timeouts_ms: list[int]) -> tuple[int, list[float]]:
    """Return how often calls with these timeouts had a look at them among LONG other ones, and how late
    each ended, in seconds.
    """
    loop = asyncio.get_running_loop()
    calls, peer = Calls(2 * LONG), Line().connection
    long = [calls.begin(peer, calls.take_opaque(), 3600) for _ in range(LONG)]
    began_s, looked_at, late_s = loop.time(), set[float](), []

    async def ended(waiting: asyncio.Future[Any], timeout_s: float) -> None:
        with pytest.raises(RequestTimeoutError):
            await waiting
        looked_at.add(loop.time())
        late_s.append(loop.time() - began_s - timeout_s)

    async with asyncio.TaskGroup() as group:
        for timeout_ms in timeouts_ms:
            timeout_s = timeout_ms / 1000
            waiting = calls.begin(peer, calls.take_opaque(), timeout_s)
            group.create_task(ended(waiting, timeout_s))
    for one in long:
        one.cancel()
    calls.lost(peer, None)
    return len(looked_at), late_s


def test_many_calls_with_timeouts_of_their_own_cost_few_looks() -> None:
    looks, late_s = run(looks_for(list(range(1, 1001))))
    # Every 5 ms and more: 10,000 calls wait, and each of them adds half a microsecond.
    assert looks <= 200
    assert max(late_s) < 0.01
    # A timer of uvloop may fire a millisecond early, so a look takes that much for the deadline.
    assert min(late_s) > -0.0011
