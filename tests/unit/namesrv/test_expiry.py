"""A name server drops silent brokers beside its other work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.namesrv.route_table_fixtures import FakeLink, registration
from tests.waits import CLOCK, until

from cometmq.namesrv import route_table
from cometmq.namesrv.route_table import RouteTable
from cometmq.testing import Cluster


async def test_what_silent_brokers_served_is_forgotten_beside_the_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred brokers with 10,000 topics each held a name server for 40 ms."""
    released: list[int] = []
    plain = RouteTable.release

    def counted(self: RouteTable) -> Iterator[None]:
        steps = 0
        for _ in plain(self):
            steps += 1
            yield
        released.append(steps)

    monkeypatch.setattr(RouteTable, "release", counted)
    # The table remembers the topics of lost brokers until there are too many of them.
    monkeypatch.setattr(route_table, "MAX_LOST_BROKERS", 0)
    async with Cluster() as cluster:
        server = cluster.name_servers[0]
        links = [FakeLink() for _ in range(3)]
        for number, link in enumerate(links):
            topics = [f"of-many-{n:05}" for n in range(3_000)]
            given = registration(
                topics, name=f"silent-{number}", address=f"10.0.0.{number}:1", timeout_ms=1
            )
            assert server.table.register(given, link) is not None
        before = server.table.topic_count
        began_s = CLOCK.monotonic()
        await until(lambda: CLOCK.monotonic() > began_s + 0.002)
        await server.scan()
        assert all(link.closed for link in links)
        assert server.table.topic_count == before - 3_000
        await until(lambda: sum(released) >= 3 * 3_000 // 256)
        assert [live.broker_name for live in server.table.live()] == ["broker-a"]
