"""The JavaScript client at our broker: it sends one by one and consumes."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest
from tests.interop.clients import NOTE, CometClient, NodeClient, body_pattern
from tests.interop.conftest import need

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT = 20


def test_it_produces_and_consumes(comet_servers: Namesrv, fresh: Callable[[str], str]) -> None:
    need("node", "npm")
    base = {"namesrv": comet_servers, "topic": fresh("topic"), "size": 5000}
    ours, node = CometClient(), NodeClient()
    # This client gives up on a topic without a route, so ours makes it.
    ours.produce(**base, count=COUNT, tags="ours")
    sent = node.produce(**base, count=COUNT, first=COUNT, tags="TagA,标签")
    assert [event["status"] for event in sent] == ["SEND_OK"] * COUNT
    for reader in (node, ours):
        events = reader.run(
            "consume",
            namesrv=comet_servers,
            topic=base["topic"],
            group=fresh(f"by-{reader.label}"),
            expected=2 * COUNT,
        )
        received = [event for event in events if event["event"] == "message"]
        indexes = [int(event["properties"]["index"]) for event in received]
        assert sorted(indexes) == list(range(2 * COUNT))
        for index, event in zip(indexes, received, strict=True):
            assert event["crc32"] == zlib.crc32(body_pattern(index, 5000))
            assert event["properties"]["note"] == NOTE
            tags = "ours" if index < COUNT else ("TagA", "标签")[index % 2]
            assert event["tags"] == tags


def test_a_tag_selects(comet_servers: Namesrv, fresh: Callable[[str], str]) -> None:
    need("node", "npm")
    base = {"namesrv": comet_servers, "topic": fresh("topic")}
    CometClient().produce(**base, count=20, tags="TagA,TagB")
    with NodeClient().start(
        "consume", **base, group=fresh("group"), expression="TagB", until_stdin=True
    ) as consumer:
        consumer.wait_messages(10)
        received = [event for event in consumer.finish() if event["event"] == "message"]
    assert {event["tags"] for event in received} == {"TagB"}
