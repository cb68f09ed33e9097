"""Pulls that are ahead of their heartbeat: who is served when."""

from __future__ import annotations

import asyncio

from cometmq.broker import awaited_heartbeats
from cometmq.broker.awaited_heartbeats import AwaitedHeartbeats, Serve


class Pulls:
    """Pulls that are ahead until `known` reaches their version."""

    def __init__(self) -> None:
        self.known = 1
        self.served: list[str] = []
        self.all_served = asyncio.Event()

    def pull(self, version: int) -> Serve:
        def serve(final: bool) -> bool:
            if version > self.known and not final:
                return False
            self.served.append(f"{version}{' refused' if version > self.known else ''}")
            return True

        return serve


async def test_a_heartbeat_lets_those_go_whose_version_it_brings() -> None:
    awaited, pulls = AwaitedHeartbeats(), Pulls()
    for group, version in (("g", 2), ("g", 3), ("h", 2)):
        assert awaited.hold(group, pulls.pull(version))
    awaited.heard("g", [])
    pulls.known = 2  # by the end of the turn, as the broker takes a heartbeat in
    assert pulls.served == []
    await asyncio.sleep(0)
    assert pulls.served == ["2"]
    pulls.known = 3
    awaited.heard("unknown", [])
    awaited.heard("g", [])
    awaited.heard("g", [])
    await asyncio.sleep(0)
    assert pulls.served == ["2", "3"]
    awaited.heard("h", [])
    await asyncio.sleep(0)
    assert pulls.served == ["2", "3", "2"]


async def test_what_waited_long_enough_is_refused() -> None:
    awaited, pulls = AwaitedHeartbeats(), Pulls()
    awaited.hold("g", pulls.pull(9))
    awaited.hold("g", pulls.pull(2))
    pulls.known = 2
    awaited.heard("g", [])
    async with asyncio.timeout(60):
        while len(pulls.served) < 2:  # noqa: ASYNC110 - nobody signals it
            await asyncio.sleep(0.01)
    assert pulls.served == ["2", "9 refused"]
    awaited.heard("g", [])  # nothing is left


async def test_there_is_a_limit() -> None:
    awaited, pulls = AwaitedHeartbeats(), Pulls()
    limit = awaited_heartbeats.MAX_WAITING
    assert all(awaited.hold(f"g{i % 7}", pulls.pull(2)) for i in range(limit))
    assert not awaited.hold("g", pulls.pull(2))
    pulls.known = 2
    awaited.heard("g0", [])
    await asyncio.sleep(0)
    assert awaited.hold("g", pulls.pull(2))
