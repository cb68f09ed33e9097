"""Addresses that brokers advertise: a loopback address that leads clients to themselves, mapped
ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
import structlog.testing

from cometmq import Message
from cometmq.aio import AdminClient, Producer
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.testing import Cluster

TOPIC: Final = "orders"
WARNING: Final = "a peer elsewhere is sent to a loopback address"
NAMESRV_WARNING: Final = "a broker elsewhere registered a loopback address"


def play(
    scene: Callable[[Cluster], Coroutine[Any, Any, None]], **properties: str
) -> list[dict[str, Any]]:
    """Play a scene in a cluster; return what was logged."""
    with (
        structlog.testing.capture_logs() as lines,
        Cluster(clock="virtual", seed=5, properties=properties) as cluster,
    ):
        cluster.run(scene(cluster))
    return [dict(line) for line in lines]


async def connect(cluster: Cluster, node: str, port: int = 10911) -> None:
    """Connect a peer to the broker, as a client does that somebody gave the right address."""
    there = cluster.world.node("broker-a").host
    network = cluster.node(node).surroundings.network
    await network.connect(asyncio.Protocol, there, port, tls=None)
    await asyncio.sleep(1)


@pytest.mark.parametrize("reported", ["127.0.0.1", "::1", "localhost", "[::1]"])
def test_a_loopback_address_is_told_once_for_each_network(reported: str) -> None:
    async def scene(cluster: Cluster) -> None:
        for _ in range(3):
            await connect(cluster, "app-1")
        await connect(cluster, "app-2")

    lines = play(scene, brokerIP1=reported, bindAddress="0.0.0.0")
    # All nodes are in one network, and the first of them is the name server.
    [line] = [line for line in lines if line["event"] == WARNING]
    assert line["advertised"] == ("[::1]:10911" if "::" in reported else f"{reported}:10911")
    assert "brokerIP1" in line["remedy"]
    assert len([line for line in lines if line["event"] == NAMESRV_WARNING]) == 1


def test_a_right_address_is_no_reason_to_warn() -> None:
    async def scene(cluster: Cluster) -> None:
        await connect(cluster, "app-1")

    lines = play(scene)
    assert not [line for line in lines if line["event"] in (WARNING, NAMESRV_WARNING)]


def test_clients_on_the_own_machine_may_be_sent_to_a_loopback_address() -> None:
    async def scene(cluster: Cluster) -> None:
        await connect(cluster, "broker-a")

    lines = play(scene, brokerIP1="127.0.0.1", bindAddress="0.0.0.0", namesrvAddr="")
    assert not [line for line in lines if line["event"] == WARNING]


class Forwarder(asyncio.Protocol):
    """Passes the bytes of a connection on to another port, as NAT does."""

    def __init__(self, network: Any, host: str, port: int, pair: Forwarder | None = None) -> None:
        self._to = network, host, port
        self._pair = pair
        self._early = bytearray()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self._pair is None:
            self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        network, host, port = self._to
        pair = await network.connect(
            lambda: Forwarder(network, host, port, self), host, port, tls=None
        )
        self._pair = pair
        pair.transport.write(bytes(self._early))

    def data_received(self, data: bytes) -> None:
        if self._pair is None:
            self._early += data
        else:
            self._pair.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pair is not None:
            self._pair.transport.close()


def test_a_broker_behind_a_port_mapping_is_reached_by_the_mapped_port() -> None:
    async def scene(cluster: Cluster) -> None:
        gate, inside = cluster.node("gate"), cluster.world.node("broker-a").host
        network = gate.surroundings.network
        with gate:
            listener = await network.listen(
                lambda: Forwarder(network, inside, 10911),
                gate.host,
                30911,
                backlog=16,
            )
        await listener.start()
        cluster.blackhole("main", "broker-a")
        async with Producer("shop", namesrv=cluster.namesrv) as made:
            sent = await made.send(Message(TOPIC, b"x"))
        place = parse_offset_id(sent.offset_msg_id or "")
        assert (place.host, place.port) == (gate.host, 30911)
        async with AdminClient(cluster.namesrv) as admin:
            [at] = await admin.brokers.addresses()
            assert at.address == f"{gate.host}:30911"
            found = await admin.messages.by_id(sent.offset_msg_id)
            assert found.body == b"x"
        live = cluster.name_servers[0].table.live()[0]
        assert live.ha_address == f"{gate.host}:30912"
        cluster.heal_all()
        listener.close()

    play(scene, brokerIP1="10.0.0.4", advertisedPort="30911", advertisedHaPort="30912")
