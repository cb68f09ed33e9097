"""The C++ client at our broker, by the library that the PyPI package `rocketmq` 0.4.4 ships.

Its heartbeats have ordinals in the place of enums' names. Clients in several languages wrap it.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.clients import CppClient
from tests.interop.conftest import need_cpp
from tests.interop.cpp_client import text_body
from tests.waits import eventually

from cometmq import (
    AdminClient,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from cometmq.admin.groups.records import GroupConnections
from cometmq.errors import CometMQError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interop.clients import RunningClient
    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT = 24


@pytest.fixture(autouse=True)
def _library() -> None:
    need_cpp()


@pytest.fixture
def base(comet_servers: Namesrv, fresh: Callable[[str], str]) -> dict[str, Any]:
    """Name the servers, a topic that has a route, and a group."""
    base = {"namesrv": comet_servers, "topic": fresh("topic"), "group": fresh("group")}
    with Producer("cpp-routes", namesrv=comet_servers) as producer:
        producer.send(
            Message(base["topic"], b"none of the count", tags="early", properties={"index": "-1"})
        )
    return base


def send(base: dict[str, Any], count: int = COUNT) -> None:
    with Producer("cpp-tests", namesrv=base["namesrv"]) as producer:
        for index in range(count):
            producer.send(
                Message(
                    base["topic"],
                    text_body(index).encode(),
                    tags="TagA",
                    keys=(f"m-{index}",),
                    properties={"index": str(index)},
                )
            )


def indexes(*consumers: RunningClient) -> list[int]:
    return [each["index"] for one in consumers for each in one.named("message")]


def test_clustering_consumers_of_cpp_get_messages(base: dict[str, Any]) -> None:
    with (
        CppClient().start("consume", **base, member="one", expression="TagA") as one,
        CppClient().start("consume", **base, member="two", expression="TagA") as two,
    ):
        one.wait_started()
        two.wait_started()
        with AdminClient(base["namesrv"]) as admin:
            online = eventually(
                lambda: _online(admin, base["group"]),
                lambda got: got is not None and len(got.clients) == 2,
            )
        assert online is not None
        assert (online.consume_type, online.message_model, online.consume_from_where) == (
            "CONSUME_PASSIVELY",
            "CLUSTERING",
            "CONSUME_FROM_LAST_OFFSET",
        )
        send(base)
        eventually(lambda: set(indexes(one, two)) == set(range(COUNT)))
        for event in one.named("message") + two.named("message"):
            assert event["body"] == text_body(event["index"])
            assert (event["tags"], event["keys"]) == ("TagA", f"m-{event['index']}")
        one.finish()
        two.finish()


def test_a_message_that_a_cpp_consumer_fails_comes_again(base: dict[str, Any]) -> None:
    with CppClient().start("consume", **base, fail=True, expression="TagA") as consumer:
        consumer.wait_started()
        send(base, 1)
        consumer.wait_messages(2)
        assert [each["reconsumeTimes"] for each in consumer.named("message")] == [0, 1]
        consumer.finish()


def test_orderly_and_broadcasting_consumers_of_cpp_get_messages(base: dict[str, Any]) -> None:
    many = {**base, "group": base["group"] + "-all"}
    with (
        CppClient().start("consume", **base, orderly=True, expression="TagA") as orderly,
        CppClient().start(
            "consume", **many, model="BROADCASTING", member="b1", expression="TagA"
        ) as one,
        CppClient().start(
            "consume", **many, model="BROADCASTING", member="b2", expression="TagA"
        ) as two,
    ):
        for each in (orderly, one, two):
            each.wait_started()
        # A broadcasting member begins at the end that its queues have when it has found them.
        for each in (one, two):
            eventually(partial(_reaches, base, each))
        send(base)
        for each in (orderly, one, two):
            eventually(partial(_has_all, each))
            each.finish()


def _online(admin: AdminClient, group: str) -> GroupConnections | None:
    try:
        return admin.groups.connections(group)
    except CometMQError:  # no member yet
        return None


def _has_all(consumer: RunningClient) -> bool:
    return set(range(COUNT)) <= set(indexes(consumer))


def _reaches(base: dict[str, Any], consumer: RunningClient) -> bool:
    """Send a message and say whether a consumer has had any."""
    send(base, 1)
    return bool(consumer.named("message"))


def test_messages_of_a_cpp_producer_are_read(base: dict[str, Any]) -> None:
    sent = CppClient().produce(**{**base, "count": COUNT})
    assert [each["status"] for each in sent] == [0] * COUNT
    got: Counter[str] = Counter()

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        for one in messages:
            assert one.tags == "TagA"
            got[one.body.decode()] += 1
        return ConsumeResult.SUCCESS

    with PushConsumer(base["group"], listen, namesrv=base["namesrv"]) as consumer:
        consumer.subscribe(base["topic"], "TagA")
        eventually(lambda: set(got) == {text_body(index) for index in range(COUNT)})
