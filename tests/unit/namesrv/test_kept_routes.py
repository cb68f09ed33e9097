"""A kept route is what would be encoded now, whatever has changed the table meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.namesrv.route_table_fixtures import FakeLink, new_table, registration

from cometmq.model.route import QueueData
from cometmq.model.topic import TopicConfig
from cometmq.namesrv import kept_routes
from cometmq.namesrv.kept_routes import KeptRoutes
from cometmq.namesrv.route_json import route_json
from cometmq.namesrv.route_table import BrokerKey, RouteTable

LINK = FakeLink()
KEY = BrokerKey("C", "10.0.0.1:10911")


def again(table: RouteTable, **changed: Any) -> None:
    table.register(registration(**changed), LINK)


CHANGES: dict[str, Callable[[RouteTable], object]] = {
    "a topic has other queues": lambda table: again(
        table,
        topics={
            "t1": TopicConfig("t1", read_queue_nums=3, write_queue_nums=3),
            "t2": TopicConfig("t2"),
        },
        counter=2,
    ),
    "a slave comes": lambda table: again(table, broker_id=1, address="10.0.0.2:10911"),
    "another broker comes": lambda table: again(table, name="broker-b", address="10.0.0.3:10911"),
    "filter servers come": lambda table: again(table, filter_servers=["10.0.0.4:1"]),
    "a slave may act as master": lambda table: again(table, acting=True),
    "the broker has another address": lambda table: again(table, address="10.0.0.9:10911"),
    "the broker goes": lambda table: table.unregister("broker-a", KEY),
    "its connection closes": lambda table: table.link_closed(LINK),
    "its writes are forbidden": lambda table: table.wipe_write_perm("broker-a"),
    "an operator sets queues": lambda table: table.register_topic(
        "t1", [QueueData("broker-a", 1, 1, 6, 0)]
    ),
    "the topic is deleted": lambda table: table.delete_topic("t1"),
}


def encoded(table: RouteTable) -> bytes | None:
    route = table.route("t1")
    return None if route is None else route_json(route)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_the_table_drops_what_was_kept(change: Callable[[RouteTable], object]) -> None:
    table, kept = new_table(support_acting_master=True), KeptRoutes()
    again(table)
    before = encoded(table)
    assert before is not None
    assert kept.of(table.changes) == {}
    kept.keep("t1", before)
    again(table)  # as brokers do every 30 seconds
    assert kept.of(table.changes) == {"t1": before}
    change(table)
    assert kept.of(table.changes).get("t1") in (None, encoded(table))


def test_routes_that_would_take_too_much_memory_are_kept_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_routes, "MAX_KEPT_ROUTE_BYTES", 10)
    kept = KeptRoutes()
    kept.of(0)
    kept.keep("one", b"123456")
    kept.keep("other", b"123456")
    assert kept.of(0) == {"other": b"123456"}
