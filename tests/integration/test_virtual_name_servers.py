"""Several name servers: what brokers, clients and administrators notice of those that fail."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest
import structlog.testing
from tests.integration.routes import until_routed
from tests.waits import until

from cometmq import ConsumeResult, Message, MessageExt
from cometmq.aio import AdminClient, Producer, PushConsumer
from cometmq.client.cluster import namesrv_api
from cometmq.errors import CometMQError, RemotingError, RouteNotFoundError
from cometmq.remoting import client as remoting_client
from cometmq.testing import Cluster

TOPIC: Final = "orders"
# What a silent name server may cost a client: its connect timeout or its time for an answer.
ONE_TIMEOUT_S: Final = 3.0
REFRESH_S: Final = 35.0
APP: Final = "app-1"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what other tests need: here it counts how long a client waits for a name server."""
    monkeypatch.setattr(namesrv_api, "ASK_TIMEOUT_S", ONE_TIMEOUT_S)
    monkeypatch.setattr(remoting_client, "CONNECT_TIMEOUT_S", ONE_TIMEOUT_S)


def play(scene: Callable[[Cluster], Coroutine[Any, Any, None]], **kwargs: Any) -> None:
    with Cluster(clock="virtual", seed=3, **{"name_servers": 3, **kwargs}) as cluster:
        cluster.run(scene(cluster))


@asynccontextmanager
async def producer(cluster: Cluster, namesrv: str | None = None) -> AsyncIterator[Producer]:
    with cluster.node(APP) as node:
        made = Producer(
            "shop", namesrv=namesrv or cluster.namesrv, instance_name="p", send_timeout_ms=20_000
        )
        await node.run_in(made.start())
        try:
            yield made
        finally:
            await node.run_in(made.close())


async def took_s(work: Coroutine[Any, Any, Any]) -> float:
    began_s = asyncio.get_running_loop().time()
    await work
    return asyncio.get_running_loop().time() - began_s


async def waits_for_no_silent_server(work: Coroutine[Any, Any, Any]) -> None:
    """Do some work, which must ask no name server that does not answer: each costs its whole time-out."""
    assert await took_s(work) < ONE_TIMEOUT_S


def addresses(cluster: Cluster) -> list[str]:
    return cluster.namesrv.split(";")


def brokers_known(cluster: Cluster) -> list[set[str]]:
    return [{live.broker_name for live in each.table.live()} for each in cluster.name_servers]


def all_know_the_broker(cluster: Cluster) -> bool:
    return brokers_known(cluster) == [{"broker-a"}] * 3


# Clients


@pytest.mark.parametrize("fault", ["blackhole", "pause"])
def test_a_silent_name_server_costs_its_timeout_once(fault: str) -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.node(APP)
        for name in cluster.nodes.name_servers[:2]:
            if fault == "blackhole":
                cluster.blackhole(APP, name)
            else:
                cluster.pause(name)
        async with producer(cluster) as made:
            spent_s = 0.0
            for number in range(10):
                # The broker, too, waits a second for them, once. Each new topic has its route looked up.
                spent_s += await took_s(made.send(Message(f"orders-{number}", b"x")))
            assert spent_s < 3 * ONE_TIMEOUT_S

    play(scene, brokers=1)


def test_calls_at_the_same_time_pass_over_the_same_dead_name_server() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.kill("namesrv-0")
        # Two calls that fail together must not skip the living one together.
        for first in range(2):
            async with producer(cluster) as made:
                await asyncio.gather(
                    *(made.send(Message(f"orders-{first}-{n}", b"x")) for n in range(8))
                )

    play(scene, name_servers=2)


# A broker goes on waiting for an answer of a machine that lost its power.
@pytest.mark.parametrize(("fault", "known_within_s"), [("kill", 1.5), ("power_off", 30.0)])
def test_sends_and_consumption_go_on_without_any_name_server(
    fault: str, known_within_s: float
) -> None:
    async def scene(cluster: Cluster) -> None:
        got: list[bytes] = []

        async def listen(messages: list[MessageExt]) -> ConsumeResult:
            got.extend(bytes(each.body) for each in messages)
            return ConsumeResult.SUCCESS

        async with producer(cluster) as made:
            await made.send(Message(TOPIC, b"0"))
            consumer = PushConsumer("billing", listen, namesrv=cluster.namesrv)
            consumer.subscribe(TOPIC)
            async with consumer:
                await until(lambda: b"0" in got, wait_s=60, pause_s=0.1)
                for name in cluster.nodes.name_servers:
                    getattr(cluster, fault)(name)
                for minutes in (1, 11):
                    await asyncio.sleep(60 * minutes)
                    body = b"%d" % minutes
                    await waits_for_no_silent_server(made.send(Message(TOPIC, body)))
                    await until(lambda: got[-1] == body, wait_s=60, pause_s=0.1)  # noqa: B023 - in this round
                with pytest.raises(RemotingError, match="none of 3 name servers answered"):
                    await made.send(Message("unknown", b"x"))
                # A restarted name server has lost its tables.
                for name in cluster.nodes.name_servers:
                    await cluster.restart(name)
                known_again = partial(all_know_the_broker, cluster)
                await until(known_again, wait_s=known_within_s, pause_s=0.1)
                await made.send(Message("unknown", b"x"))

    play(scene)


def test_a_client_without_any_name_server_says_which_and_goes_on_when_they_come() -> None:
    async def scene(cluster: Cluster) -> None:
        for name in cluster.nodes.name_servers:
            await cluster.stop_name_server(cluster.nodes.name_servers.index(name))
        async with producer(cluster) as made:
            with pytest.raises(RemotingError) as failed:
                await made.send(Message(TOPIC, b"x"))
            for address in addresses(cluster):
                assert address in str(failed.value)
            for index in range(3):
                await cluster.start_name_server(index)
            await asyncio.sleep(1.5)
            await made.send(Message(TOPIC, b"x"))

    play(scene)


def test_a_topic_that_one_name_server_does_not_know_yet_is_found_at_another() -> None:
    async def scene(cluster: Cluster) -> None:
        # The only broker does not reach the first two.
        cluster.blackhole("broker-a", "namesrv-0")
        cluster.blackhole("broker-a", "namesrv-1")
        await asyncio.sleep(150)
        assert brokers_known(cluster) == [set(), set(), {"broker-a"}]
        async with producer(cluster) as made:
            assert await took_s(made.send(Message(TOPIC, b"x"))) < 1.1

    play(scene)


# Name servers that are none


class Stranger(asyncio.Protocol):
    """Answers as something else than a name server."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._kind == "echo":
            self._transport.write(data)
        elif self._kind == "http":
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            self._transport.close()
        elif self._kind == "noise":
            self._transport.write(b"\0\0\0\x10\0\0\0\x08notjson!abcd")


@asynccontextmanager
async def stranger(cluster: Cluster, kind: str) -> AsyncIterator[str]:
    """Run a server of some kind; return its address."""
    if kind == "broker":
        yield f"{cluster.world.node('broker-a').host}:10911"
        return
    if kind == "no name":
        yield "no-such-host:9876"
        return
    if kind == "bad name":
        yield "a..b:9876"
        return
    node = cluster.node("stranger")
    listener = await node.surroundings.network.listen(
        lambda: Stranger(kind),
        node.host,
        9876,
        backlog=16,
    )
    await listener.start()
    try:
        yield f"{node.host}:9876"
    finally:
        listener.close()


STRANGERS: Final = {
    "http": "does not speak RocketMQ's protocol",
    "noise": "does not speak RocketMQ's protocol",
    "echo": "is no name server",
    "broker": "is no name server",
    "silent": "did not answer",
    "no name": "Name or service not known",
    "bad name": "no-such|not known|is not a host name",
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_what_is_no_name_server_is_told_and_the_others_are_used(kind: str) -> None:
    async def scene(cluster: Cluster) -> None:
        async with stranger(cluster, kind) as address:
            async with producer(cluster, address) as made:
                with pytest.raises(CometMQError, match=STRANGERS[kind]):
                    await made.send(Message(TOPIC, b"x"))
            both = f"{address};{cluster.namesrv}"
            async with producer(cluster, both) as made:
                assert await took_s(made.send(Message(TOPIC, b"x"))) < ONE_TIMEOUT_S + 1
                await waits_for_no_silent_server(made.send(Message(TOPIC, b"x")))
            await until_routed(cluster, TOPIC, "broker-a")
            async with AdminClient(both) as admin:
                assert (await admin.topics.route(TOPIC)).broker_datas
                await waits_for_no_silent_server(admin.topics.route(TOPIC))

    play(scene, name_servers=1)


# Brokers


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_broker_tells_what_is_no_name_server_and_registers_with_the_others(kind: str) -> None:
    async def scene(cluster: Cluster) -> None:
        async with stranger(cluster, kind) as address:
            with structlog.testing.capture_logs() as lines:
                # No request changes it, and the stranger's address is known only now.
                cluster.broker("broker-a").config.namesrv_addr = f"{address};{cluster.namesrv}"
                await asyncio.sleep(300)
            assert brokers_known(cluster) == [{"broker-a"}] * 2
            reported = [each["reason"] for each in lines if each.get("name_server") == address]
            assert re.search(STRANGERS[kind], reported[0])
            # One line for an outage, or one for each period.
            assert len(reported) <= 11
            assert len([each for each in lines if each["log_level"] == "warning"]) <= 25

    play(scene, name_servers=2)


def test_a_broker_that_stops_leaves_every_name_server() -> None:
    async def scene(cluster: Cluster) -> None:
        assert brokers_known(cluster) == [{"broker-a", "broker-b"}] * 3
        await cluster.stop_broker(1)
        assert brokers_known(cluster) == [{"broker-a"}] * 3

    play(scene, brokers=2)


# Administrators


def test_a_wiped_broker_gets_no_sends_until_the_permission_is_added() -> None:
    async def scene(cluster: Cluster) -> None:
        async with producer(cluster) as made, AdminClient(cluster.namesrv) as admin:
            await admin.topics.create(TOPIC, read_queues=2, write_queues=2)
            await until_routed(cluster, TOPIC, "broker-a", "broker-b")
            await made.send(Message(TOPIC, b"x"))

            async def used() -> set[str]:
                sent = [await made.send(Message(TOPIC, b"x")) for _ in range(8)]
                return {each.queue.broker_name for each in sent}

            assert await used() == {"broker-a", "broker-b"}
            wiped = await admin.brokers.wipe_write_permission("broker-a")
            assert sorted(wiped) == sorted(addresses(cluster))
            # Longer than brokers take to register again, and clients to renew their routes.
            await asyncio.sleep(2 * REFRESH_S)
            assert await used() == {"broker-b"}
            added = await admin.brokers.add_write_permission("broker-a")
            assert sorted(added) == sorted(addresses(cluster))
            await asyncio.sleep(REFRESH_S)
            assert await used() == {"broker-a", "broker-b"}

    play(scene, brokers=2)


def test_an_administrator_asks_past_a_dead_name_server_once() -> None:
    async def scene(cluster: Cluster) -> None:
        cluster.blackhole("main", "namesrv-0")
        async with AdminClient(cluster.namesrv, timeout_ms=3000) as admin:
            began_s = asyncio.get_running_loop().time()
            for _ in range(10):
                await admin.brokers.addresses()
            assert asyncio.get_running_loop().time() - began_s < 2 * ONE_TIMEOUT_S
            # What is for all name servers says which of them has not got it.
            with pytest.raises(CometMQError, match="failed at 1 of 3 servers"):
                await admin.brokers.wipe_write_permission("broker-a")

    play(scene)


def test_an_ordered_topic_keeps_its_queues_while_a_broker_is_gone() -> None:
    async def scene(cluster: Cluster) -> None:
        async with producer(cluster) as made, AdminClient(cluster.namesrv) as admin:
            await admin.topics.create(TOPIC, read_queues=2, write_queues=2, order=True)
            await until_routed(cluster, TOPIC, "broker-a", "broker-b")
            assert await admin.topics.order_config(TOPIC) == "broker-a:2;broker-b:2"

            async def place(key: str) -> str:
                sent = await made.send(Message(TOPIC, b"x"), key=key)
                return f"{sent.queue.broker_name}:{sent.queue.queue_id}"

            keys = [f"order-{n}" for n in range(12)]
            before = {key: await place(key) for key in keys}
            assert {at.partition(":")[0] for at in before.values()} == {"broker-a", "broker-b"}
            await cluster.stop_broker(1)
            await asyncio.sleep(REFRESH_S)
            for key, at in before.items():
                if at.startswith("broker-a"):
                    assert await place(key) == at
                else:
                    # To another queue the message would overtake those before it.
                    with pytest.raises(RouteNotFoundError, match="no master of broker broker-b"):
                        await place(key)
            await cluster.start_broker(1)
            await asyncio.sleep(REFRESH_S)
            assert {key: await place(key) for key in keys} == before

    play(scene, brokers=2)


def test_a_slave_keeps_the_route_and_takes_no_sends() -> None:
    async def scene(cluster: Cluster) -> None:
        async with producer(cluster) as made, AdminClient(cluster.namesrv) as admin:
            await admin.topics.create(TOPIC, read_queues=2, write_queues=2)
            await until_routed(cluster, TOPIC, "broker-a", "broker-b")

            async def used() -> set[str]:
                sent = [await made.send(Message(TOPIC, b"x")) for _ in range(8)]
                return {each.queue.broker_name for each in sent}

            assert await used() == {"broker-a", "broker-b"}
            # What a slave registers does not bring the permission back.
            await admin.brokers.wipe_write_permission("broker-a")
            await asyncio.sleep(2 * REFRESH_S)
            assert await used() == {"broker-b"}
            await admin.brokers.add_write_permission("broker-a")

            await cluster.stop_broker(0)
            await asyncio.sleep(REFRESH_S)
            for address in addresses(cluster):
                async with AdminClient(address) as one:
                    route = await one.topics.route(TOPIC)
                found = route.broker("broker-a")
                assert found is not None
                assert list(found.broker_addrs) == [1]
                assert {each.queue_id for each in route.subscribe_queues(TOPIC)} == {0, 1}
                assert {q.broker_name for q in route.publish_queues(TOPIC)} == {"broker-b"}
            assert await used() == {"broker-b"}
            await cluster.start_broker(0)
            await asyncio.sleep(REFRESH_S)
            assert await used() == {"broker-a", "broker-b"}

    play(scene, brokers=2, slaves=1, name_servers=2)
