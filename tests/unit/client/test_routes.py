"""The route cache: default topic, round robin, renewal, brokers that come back."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.fakes import NAMESRV, FakeInstance, refuse, route
from tests.waits import until

from cometmq.client.cluster import routes as routes_module
from cometmq.client.cluster.namesrv_api import NamesrvApi
from cometmq.client.cluster.routes import PublishRoute
from cometmq.errors import ConnectError, RemoteError, RouteNotFoundError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def queues(*names: str) -> list[MessageQueue]:
    return [MessageQueue("t", name, i) for name in names for i in range(2)]


def test_queues_take_turns() -> None:
    publish = PublishRoute(queues("a", "b"), 3)
    chosen = [publish.choose() for _ in range(8)]
    assert chosen == queues("a", "b") * 2


def test_a_broker_that_failed_is_avoided_where_there_is_another() -> None:
    publish = PublishRoute(queues("a", "b"), 0)
    assert {publish.choose("a").broker_name for _ in range(6)} == {"b"}
    alone = PublishRoute(queues("a"), 0)
    assert {alone.choose("a") for _ in range(4)} == set(queues("a"))
    assert publish.has_other_broker("a")
    assert not alone.has_other_broker("a")


async def test_a_topic_is_fetched_once_for_many(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a", "b")
    publish = await asyncio.gather(
        *(fake.instance.routes.need_publish_route("t", 4) for _ in range(10))
    )
    assert len(set(map(id, publish))) == 1
    assert fake.remoting.called(ROUTE) == [NAMESRV]
    assert len(publish[0].queues) == 8
    assert fake.instance.routes.master_address("b") == "b:1"


async def test_an_unknown_topic_gets_the_default_topics_queues(fake: FakeInstance) -> None:
    fake.remoting.routes["TBW102"] = route("a", queues=8, perm=7)
    publish = await fake.instance.routes.need_publish_route("new", 3)
    assert publish.created_on_demand
    assert publish.queues == [MessageQueue("new", "a", i) for i in range(3)]
    fake.remoting.routes["new"] = route("a", queues=5)
    await fake.instance.routes.refresh("new")
    publish = await fake.instance.routes.need_publish_route("new", 3)
    assert not publish.created_on_demand
    assert len(publish.queues) == 5


async def test_no_route_at_all_names_topic_and_remedy(fake: FakeInstance) -> None:
    with pytest.raises(RouteNotFoundError, match="route of topic t; create the topic"):
        await fake.instance.routes.need_publish_route("t", 4)


async def test_a_topic_without_write_permission_cannot_be_sent_to(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a", perm=4)
    with pytest.raises(RouteNotFoundError, match="lacks write permission"):
        await fake.instance.routes.need_publish_route("t", 4)


async def test_a_route_that_cannot_be_renewed_stays_in_use(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a")
    await fake.instance.routes.refresh("t")
    del fake.remoting.routes["t"]
    with pytest.raises(RouteNotFoundError):
        await fake.instance.routes.refresh("t")
    fake.remoting.down.add(NAMESRV)
    with pytest.raises(ConnectError):
        await fake.instance.routes.refresh("t")
    assert (await fake.instance.routes.need_publish_route("t", 4)).queues


async def test_a_failed_route_is_asked_for_until_it_is_known(fake: FakeInstance) -> None:
    fake.instance.routes.refresh_soon("t")
    fake.instance.routes.refresh_soon("t")
    await until(lambda: len(fake.remoting.called(ROUTE)) == 2)
    fake.remoting.routes["t"] = route("a")
    await until(lambda: fake.instance.routes.route("t") is not None)
    asked = len(fake.remoting.called(ROUTE))
    await asyncio.sleep(0.3)
    assert len(fake.remoting.called(ROUTE)) == asked


async def test_a_broker_that_left_a_route_is_noticed_when_it_returns(
    fake: FakeInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "WATCH_INTERVAL_S", 0.01)
    fake.remoting.routes["t"] = route("a", "b")
    await fake.instance.routes.refresh("t")
    fake.remoting.routes["t"] = route("b")
    await fake.instance.routes.refresh("t")
    assert fake.instance.routes.master_address("a") is None
    await asyncio.sleep(0.03)
    fake.remoting.routes["t"] = route("a", "b")
    await until(lambda: fake.instance.routes.master_address("a") == "a:1")


async def test_pulls_go_to_the_broker_that_was_suggested(fake: FakeInstance) -> None:
    known = route("a")
    known.broker_datas[0].broker_addrs = {0: "m:1", 2: "s:2"}
    fake.remoting.routes["t"] = known
    await fake.instance.routes.refresh("t")
    addresses = fake.instance.routes.read_addresses
    assert [addresses("a", i)[0] for i in (0, 1, 2, 5)] == ["m:1", "s:2", "s:2", "m:1"]
    assert addresses("a") == ["m:1", "s:2"]
    assert addresses("unknown") == []
    assert fake.instance.routes.addresses(masters_only=True) == {"m:1"}
    assert fake.instance.routes.addresses(masters_only=False) == {"m:1", "s:2"}


async def test_a_master_that_left_while_its_slave_stayed_is_noticed_when_it_returns(
    fake: FakeInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "WATCH_INTERVAL_S", 0.01)
    both, alone = route("a"), route("a")
    both.broker_datas[0].broker_addrs = {0: "a:1", 1: "s:1"}
    alone.broker_datas[0].broker_addrs = {1: "s:1"}
    for known in (both, alone):
        fake.remoting.routes["t"] = known
        await fake.instance.routes.refresh("t")
    assert fake.instance.routes.publish_route("t") is None
    fake.remoting.routes["t"] = both
    await until(lambda: fake.instance.routes.master_address("a") == "a:1")


async def test_name_servers_are_tried_in_turn_and_the_good_one_is_kept(fake: FakeInstance) -> None:
    fake.remoting.routes["t"] = route("a")
    fake.remoting.down |= {"n1:1", "n2:1"}
    namesrv = NamesrvApi(fake.remoting, ["n1:1", "n2:1", "n3:1"])
    await namesrv.topic_route("t")
    await namesrv.topic_route("t")
    assert fake.remoting.called(ROUTE) == ["n1:1", "n2:1", "n3:1", "n3:1"]
    fake.remoting.down.add("n3:1")
    with pytest.raises(ConnectError):
        await namesrv.topic_route("t")


async def test_another_refusal_of_a_name_server_is_told(fake: FakeInstance) -> None:
    fake.remoting.answers[ROUTE] = refuse(2)
    with pytest.raises(RemoteError, match="code 2"):
        await fake.instance.routes.refresh("t")
