"""Rounds of rebalancing, and the offset at which a queue begins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
import structlog
from tests.unit.client.fakes import NAMESRV, FakeInstance, refuse, route

from cometmq.client.membership import rebalance
from cometmq.client.membership.allocation import allocate_averagely
from cometmq.client.membership.callbacks import QueueCallbacks
from cometmq.client.membership.offset_store import RemoteOffsetStore
from cometmq.client.membership.rebalance import Rebalancer, first_offset
from cometmq.client.namespaces import NO_NAMESPACE
from cometmq.client.pulling.gates import Gates
from cometmq.errors import ConnectError, RemoteError, RouteNotFoundError
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeFromWhere
from cometmq.model.subscription import ConsumerData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import response
from cometmq.protocol.fastjson.dialect import encode_body

MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
ME = "127.0.0.1@test"


class Held:
    """Holds queues; queues in `stuck` cannot begin."""

    def __init__(self) -> None:
        self.queues: set[MessageQueue] = set()
        self.stuck: set[MessageQueue] = set()

    def assigned(self) -> Collection[MessageQueue]:
        return self.queues

    async def take(self, queue: MessageQueue) -> None:
        if queue in self.stuck:
            raise RemoteError("no offset", code=1)
        assert queue not in self.queues
        self.queues.add(queue)

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        assert set(queues) <= self.queues
        self.queues.difference_update(queues)


class Member:
    group = "g"

    def consumer_data(self) -> ConsumerData:
        return ConsumerData("g")

    def rebalance_soon(self) -> None:
        pass


def callbacks() -> QueueCallbacks:
    return QueueCallbacks("g", NO_NAMESPACE, Gates(), None, None, 1.0)


async def rebalancer(fake: FakeInstance, held: Held, topics: dict[str, Any]) -> Rebalancer:
    fake.remoting.routes["t"] = route("a", "b")
    await fake.instance.routes.refresh("t")
    return Rebalancer(fake.instance, "g", allocate_averagely, topics.keys, held, callbacks())


def members(fake: FakeInstance, *ids: str) -> None:
    body = encode_body({"consumerIdList": list(ids)})
    fake.remoting.answers[MEMBERS] = lambda *_: response(0, body=body)


async def test_shares_follow_members_and_queues(fake: FakeInstance) -> None:
    held = Held()
    rounds = await rebalancer(fake, held, {"t": None})
    everything = set(fake.instance.routes.route("t").subscribe_queues("t"))  # type: ignore[union-attr]  # the fake's routes know the topic
    members(fake, ME)
    assert await rounds.round()
    assert held.queues == everything
    members(fake, ME, "zzz")
    assert await rounds.round()
    assert held.queues == {MessageQueue("t", "a", i) for i in range(4)}
    members(fake, "000", ME)
    assert await rounds.round()
    assert held.queues == {MessageQueue("t", "b", i) for i in range(4)}


async def test_a_topic_no_longer_subscribed_is_given_up(fake: FakeInstance) -> None:
    held = Held()
    topics: dict[str, Any] = {"t": None}
    rounds = await rebalancer(fake, held, topics)
    members(fake, ME)
    await rounds.round()
    del topics["t"]
    assert await rounds.round()
    assert held.queues == set()


async def test_a_broker_that_forgot_us_takes_no_queue_away(fake: FakeInstance) -> None:
    held = Held()
    fake.instance.add_consumer(Member())
    rounds = await rebalancer(fake, held, {"t": None})
    members(fake, ME)
    await rounds.round()
    before = set(held.queues)
    members(fake, "someone-else")
    beats = len(fake.remoting.called(RequestCode.HEART_BEAT))
    assert not await rounds.round()
    fake.remoting.answers[MEMBERS] = refuse(1)  # Java's answer when nobody is online
    assert not await rounds.round()
    assert held.queues == before
    assert len(fake.remoting.called(RequestCode.HEART_BEAT)) > beats


async def test_an_unreachable_cluster_takes_no_queue_away(fake: FakeInstance) -> None:
    held = Held()
    rounds = await rebalancer(fake, held, {"t": None})
    members(fake, ME)
    await rounds.round()
    before = set(held.queues)
    fake.remoting.down |= {"a:1", "b:1"}
    assert not await rounds.round()
    assert held.queues == before


async def test_another_broker_is_asked_when_one_is_down(fake: FakeInstance) -> None:
    held = Held()
    rounds = await rebalancer(fake, held, {"t": None})
    members(fake, ME)
    fake.remoting.down.add("a:1")
    assert await rounds.round()
    assert len(held.queues) == 8


async def test_a_queue_that_cannot_be_begun_is_tried_again(fake: FakeInstance) -> None:
    held = Held()
    held.stuck = {MessageQueue("t", "a", 0)}
    rounds = await rebalancer(fake, held, {"t": None})
    members(fake, ME)
    assert not await rounds.round()
    assert len(held.queues) == 7
    held.stuck.clear()
    assert await rounds.round()
    assert len(held.queues) == 8


async def test_a_topic_without_route_waits(fake: FakeInstance) -> None:
    held = Held()
    rounds = await rebalancer(fake, held, {"not-yet": None})
    members(fake, ME)
    assert await rounds.round()
    assert held.queues == set()


STORED, NOT_STORED = 0, 22


@pytest.mark.parametrize(
    ("topic", "where", "stored", "begins"),
    [
        ("t", ConsumeFromWhere.LAST_OFFSET, STORED, 5),
        ("t", ConsumeFromWhere.FIRST_OFFSET, STORED, 5),
        ("t", ConsumeFromWhere.TIMESTAMP, STORED, 5),
        ("t", ConsumeFromWhere.LAST_OFFSET, NOT_STORED, 100),
        ("t", ConsumeFromWhere.FIRST_OFFSET, NOT_STORED, 0),
        ("t", ConsumeFromWhere.TIMESTAMP, NOT_STORED, 50),
        ("%RETRY%g", ConsumeFromWhere.LAST_OFFSET, NOT_STORED, 0),
        ("%RETRY%g", ConsumeFromWhere.FIRST_OFFSET, NOT_STORED, 0),
        ("%RETRY%g", ConsumeFromWhere.TIMESTAMP, NOT_STORED, 100),
    ],
)
async def test_where_a_queue_is_begun(
    fake: FakeInstance, topic: str, where: ConsumeFromWhere, stored: int, begins: int
) -> None:
    fake.remoting.routes["t"] = route("a")
    await fake.instance.routes.refresh("t")
    fake.remoting.answers |= {
        RequestCode.QUERY_CONSUMER_OFFSET: lambda *_: response(stored, ext={"offset": "5"}),
        RequestCode.GET_MAX_OFFSET: lambda *_: response(0, ext={"offset": "100"}),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda *_: response(0, ext={"offset": "50"}),
    }
    offsets = RemoteOffsetStore(fake.instance, "g")
    queue = MessageQueue(topic, "a", 0)
    assert await first_offset(fake.instance, offsets, queue, where, 1234) == begins


async def test_an_offset_that_cannot_be_asked_for_is_not_guessed(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a")
    await fake.instance.routes.refresh("t")
    fake.remoting.answers[RequestCode.QUERY_CONSUMER_OFFSET] = refuse(1)
    offsets = RemoteOffsetStore(fake.instance, "g")
    with pytest.raises(RemoteError):
        await first_offset(
            fake.instance, offsets, MessageQueue("t", "a", 0), ConsumeFromWhere.FIRST_OFFSET, 0
        )


async def test_a_strategy_that_fails_changes_nothing(fake: FakeInstance) -> None:
    held = Held()
    fake.remoting.routes["t"] = route("a")
    await fake.instance.routes.refresh("t")
    ids = encode_body({"consumerIdList": [ME]})
    fake.remoting.answers[MEMBERS] = lambda *_: response(0, body=ids)
    topics = {"t": None}
    queue = MessageQueue("t", "a", 0)
    held.queues = {queue}

    def strategy(*_: Any) -> list[MessageQueue]:
        raise ZeroDivisionError

    broken = Rebalancer(fake.instance, "g", strategy, topics.keys, held, callbacks())
    assert await broken.round() is False
    assert held.queues == {queue}


async def test_without_a_strategy_every_queue_is_taken_and_nobody_asked(
    fake: FakeInstance,
) -> None:
    held = Held()
    fake.remoting.routes["t"] = route("a", "b")
    await fake.instance.routes.refresh("t")
    everything = Rebalancer(fake.instance, "g", None, {"t": None}.keys, held, callbacks())
    assert await everything.round() is True
    assert held.queues == {MessageQueue("t", b, i) for b in "ab" for i in range(4)}
    assert fake.remoting.called(MEMBERS) == []


async def test_a_topic_without_route_is_said_once_and_again_when_it_has_one(
    fake: FakeInstance,
) -> None:
    held = Held()
    rounds = await rebalancer(fake, held, {"late": None, "%RETRY%g": None})
    ids = encode_body({"consumerIdList": [ME]})
    fake.remoting.answers[MEMBERS] = lambda *_: response(0, body=ids)
    with structlog.testing.capture_logs() as logs:
        # Not asked for yet, so that nothing can be said.
        assert await rounds.round()
        with pytest.raises(RouteNotFoundError):
            await fake.instance.routes.refresh("late")
        for _ in range(3):
            assert await rounds.round()
        fake.remoting.routes["late"] = route("a")
        await fake.instance.routes.refresh("late")
        for _ in range(2):
            await rounds.round()
    said = [entry for entry in logs if entry["log_level"] != "debug"]
    assert [
        (entry["topic"], entry["group"], entry["log_level"], entry["event"]) for entry in said
    ] == [
        ("late", "g", "warning", "the topic has no route yet, nothing is consumed from it"),
        ("late", "g", "info", "the topic has a route now"),
        ("late", "g", "info", "queues assigned"),
    ]
    assert "route of topic late" in said[0]["reason"]


async def test_name_servers_that_do_not_answer_are_said_when_it_lasts(
    fake: FakeInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = await rebalancer(fake, Held(), {"late": None})
    fake.remoting.down.add(NAMESRV)
    with structlog.testing.capture_logs() as logs:
        with pytest.raises(ConnectError):
            await fake.instance.routes.refresh("late")
        counts = []
        for lasting in (False, True, True):
            monkeypatch.setattr(rebalance, "UNANSWERED_S", 0 if lasting else 1000)
            await rounds.round()
            counts.append(sum(entry["log_level"] == "warning" for entry in logs))
    assert counts == [0, 1, 1]
