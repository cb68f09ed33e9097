"""The list of queues among which keys choose, while brokers come and go."""

from __future__ import annotations

import pytest
from tests.unit.client.fakes import route

from cometmq.client.cluster.keyed_queues import AWAY_FOR_S, KeyedQueues
from cometmq.client.producing.selectors import select_by_hash
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.route import TopicRouteData


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keyed(clock: Clock) -> KeyedQueues:
    return KeyedQueues(clock)


def take(keyed: KeyedQueues, data: TopicRouteData) -> list[MessageQueue]:
    keyed.take(data, data.publish_queues("t"))
    return keyed.queues()


def places(queues: list[MessageQueue]) -> list[MessageQueue]:
    return [select_by_hash(queues, Message("t", b""), f"key-{i}") for i in range(100)]


def test_the_first_route_is_the_list_in_javas_order(keyed: KeyedQueues) -> None:
    queues = take(keyed, route("b", "a", queues=2))
    assert queues == [MessageQueue("t", name, i) for name in "ab" for i in (0, 1)]


def test_every_key_keeps_its_queue_while_brokers_leave_and_come_back(keyed: KeyedQueues) -> None:
    before = places(take(keyed, route("a", "b", "c")))
    assert places(take(keyed, route("a", "c"))) == before
    assert places(take(keyed, route("c"))) == before
    assert places(take(keyed, route("b", "c"))) == before
    assert places(take(keyed, route("a", "b", "c"))) == before


def test_a_broker_without_its_master_keeps_its_places(keyed: KeyedQueues) -> None:
    before = take(keyed, route("a", "b"))
    data = route("a", "b")
    data.broker_datas[1].broker_addrs = {1: "slave:1"}
    assert take(keyed, data) == before


def test_a_broker_that_stays_away_loses_its_places(keyed: KeyedQueues, clock: Clock) -> None:
    take(keyed, route("a", "b"))
    before = take(keyed, route("a"))
    clock.now_s = AWAY_FOR_S - 1
    assert keyed.queues() == before
    clock.now_s = AWAY_FOR_S + 1
    assert {queue.broker_name for queue in keyed.queues()} == {"a"}


def test_new_queues_come_in_and_withdrawn_ones_go_at_once(keyed: KeyedQueues) -> None:
    take(keyed, route("a", queues=2))
    assert len(take(keyed, route("a", queues=4))) == 4
    assert len(take(keyed, route("a", "b", queues=4))) == 8
    assert len(take(keyed, route("a", "b", queues=1))) == 2
    unwritable = route("a", "b", queues=1)
    unwritable.queue_datas[1].perm = 4
    assert take(keyed, unwritable) == [MessageQueue("t", "a", 0)]


def test_a_configured_order_is_the_list(keyed: KeyedQueues) -> None:
    take(keyed, route("a", "b"))
    take(keyed, route("a"))
    ordered = route("a")
    ordered.order_topic_conf = "z:1;a:2"
    assert [str(queue) for queue in take(keyed, ordered)] == ["t@z:0", "t@a:0", "t@a:1"]
