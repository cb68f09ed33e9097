"""Pulls that arrive before their heartbeat: who is served when."""

from __future__ import annotations

import asyncio

from tests.simulated import in_simulated_time
from tests.waits import until

from cometmq.broker.pulls import awaited_heartbeats
from cometmq.broker.pulls.awaited_heartbeats import AwaitedHeartbeats, Serve
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.tasks import TaskOwner


class Pulls:
    """Holds early pulls until `known` reaches their version."""

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


def a_connection() -> Connection:
    return Connection(Handlers(), TaskOwner("test"))


@in_simulated_time
async def test_a_heartbeat_lets_those_go_whose_version_it_brings() -> None:
    awaited, pulls = AwaitedHeartbeats(), Pulls()
    for group, version in (("g", 2), ("g", 3), ("h", 2)):
        assert awaited.hold(group, a_connection(), pulls.pull(version))
    awaited.heard("g")
    pulls.known = 2  # by the end of the turn, as the broker takes a heartbeat in
    assert pulls.served == []
    await asyncio.sleep(0)
    assert pulls.served == ["2"]
    pulls.known = 3
    awaited.heard("unknown")
    awaited.heard("g")
    awaited.heard("g")
    await asyncio.sleep(0)
    assert pulls.served == ["2", "3"]
    awaited.heard("h")
    await asyncio.sleep(0)
    assert pulls.served == ["2", "3", "2"]


@in_simulated_time
async def test_what_waited_long_enough_is_refused() -> None:
    awaited, pulls = AwaitedHeartbeats(), Pulls()
    awaited.hold("g", a_connection(), pulls.pull(9))
    awaited.hold("g", a_connection(), pulls.pull(2))
    pulls.known = 2
    awaited.heard("g")
    await until(lambda: len(pulls.served) == 2)
    assert pulls.served == ["2", "9 refused"]
    awaited.heard("g")  # nothing is left


@in_simulated_time
async def test_there_is_a_limit() -> None:
    awaited, pulls = AwaitedHeartbeats(), Pulls()
    limit, connection = awaited_heartbeats.MAX_PULLS_AHEAD, a_connection()
    assert all(awaited.hold(f"g{i % 7}", connection, pulls.pull(2)) for i in range(limit))
    assert not awaited.hold("g", a_connection(), pulls.pull(2))
    pulls.known = 2
    awaited.heard("g0")
    await asyncio.sleep(0)
    assert awaited.hold("g", a_connection(), pulls.pull(2))


@in_simulated_time
async def test_heartbeats_do_not_try_all_that_waits_each_time_they_are_sent() -> None:
    awaited, pulls = AwaitedHeartbeats(), Pulls()
    tried = 0

    def ahead(final: bool) -> bool:
        nonlocal tried
        tried += 1
        return final

    count = 1_000
    for _ in range(count):
        awaited.hold("g", a_connection(), ahead)
    awaited.hold("g", a_connection(), pulls.pull(2))
    pulls.known = 2
    for _ in range(100):
        awaited.heard("g")
    await asyncio.sleep(0)
    assert tried == awaited_heartbeats.TRIED_PER_TURN
    for _ in range(100):
        before = tried
        awaited.heard("g")
        await asyncio.sleep(0)
        assert tried - before <= awaited_heartbeats.TRIED_PER_TURN
    # Nor does a heartbeat in each turn begin anew: all have their turn.
    assert pulls.served == ["2"]


@in_simulated_time
async def test_a_pull_that_fails_keeps_no_other_from_its_turn() -> None:
    awaited, pulls = AwaitedHeartbeats(), Pulls()
    tried = 0

    def fail(_final: bool) -> bool:
        nonlocal tried
        tried += 1
        raise RuntimeError("a fault of ours")

    awaited.hold("g", a_connection(), fail)
    awaited.hold("g", a_connection(), pulls.pull(2))
    pulls.known = 2
    awaited.heard("g")
    await asyncio.sleep(0)
    assert pulls.served == ["2"]
    await asyncio.sleep(2 * awaited_heartbeats.HEARTBEAT_WAIT_S)
    assert tried == 1
