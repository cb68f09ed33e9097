"""Which peers each port serves, as machines see it: each node of a virtual world is one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest
import structlog.testing
from tests.waits import WAIT_S

from cometmq import ConsumeResult, Message
from cometmq.access.config import AccessConfig
from cometmq.admin.checkup import ClusterCheckup, probe
from cometmq.aio import Producer, PushConsumer
from cometmq.errors import AccessDeniedError, RemoteError
from cometmq.model.results import SendStatus
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.protocol import requests
from cometmq.protocol.header import NoHeader
from cometmq.protocol.replication import FrameReader, encode_report, encode_token
from cometmq.remoting.client import RemotingClient
from cometmq.replication.admission import UNKNOWN_S
from cometmq.runtime.surroundings import current
from cometmq.testing import Account, Cluster, run
from cometmq.testing.accounts import ADMINISTRATOR

BROKER: Final = "broker-a"
PROTECTED: Final = {"protectedMode": "true", "metricsExporterType": "DISABLE"}
OPEN_LINE: Final = "every host that reaches this port is served"
SLAVES_LINE: Final = "every host that reaches the port for slaves can copy all messages"
METRICS_LINE: Final = "whoever reaches the port for metrics is served"
SENDER: Final = Account("sender-service", topics={"orders": "PUB"})

Scene = Callable[[Cluster], Coroutine[Any, Any, None]]


def play(scene: Scene, **options: Any) -> list[dict[str, Any]]:
    """Play a scene; return what was logged."""
    options.setdefault("properties", PROTECTED)
    with (
        structlog.testing.capture_logs() as lines,
        Cluster(clock="virtual", seed=3, **options) as cluster,
    ):
        cluster.run(scene(cluster))
    return [dict(line) for line in lines]


async def asked(cluster: Cluster, node: str, address: str) -> str:
    """Ask a server from a node for what anybody may ask; return why it refuses, "" if it answers."""

    async def ask() -> str:
        client = RemotingClient(network=cluster.node(node).surroundings.network)
        try:
            row = requests.GET_BROKER_RUNTIME_INFO
            await client.ask(address, row, NoHeader(), what="the state of the broker")
        except RemoteError as error:
            return f"{error.code} {error}"
        finally:
            await client.close()
        return ""

    return await cluster.node(node).run_in(ask())


def test_a_broker_without_access_control_serves_its_own_machine_only() -> None:
    async def scene(cluster: Cluster) -> None:
        address = f"{cluster.world.node(BROKER).host}:10911"
        assert await asked(cluster, BROKER, address) == ""
        for _ in range(50):
            refusal = await asked(cluster, "elsewhere", address)
            assert refusal.startswith("16 ")
            assert "this broker serves only its own machine" in refusal
            assert "protectedMode=false" in refusal

    lines = [line["event"] for line in play(scene)]
    assert lines.count("peer of another machine refused") == 1
    assert "other machines are refused, because there is no access control" in lines


def test_an_open_broker_says_so_at_its_start() -> None:
    async def scene(cluster: Cluster) -> None:
        assert await asked(cluster, "elsewhere", f"{cluster.world.node(BROKER).host}:10911") == ""

    events = [line for line in play(scene, properties={}) if line["event"] == OPEN_LINE]
    assert {line["server"] for line in events} == {"broker", "name server"}
    assert all(line["log_level"] == "warning" for line in events)


@pytest.mark.parametrize("accounts", [[], [SENDER]])
@pytest.mark.parametrize("mode", ["true", "false"])
def test_an_open_port_for_metrics_is_told_at_the_start(mode: str, accounts: list[Account]) -> None:
    async def scene(_cluster: Cluster) -> None:
        """Start and stop."""

    given = {"protectedMode": mode, "metricsExporterType": "PROM"}
    lines = play(scene, properties=given, accounts=accounts)
    events = [line for line in lines if line["event"] == METRICS_LINE]
    assert bool(events) is (mode == "false")
    assert all(line["log_level"] == "warning" for line in events)


def test_a_name_server_without_access_control_serves_its_own_machine_only(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        node = cluster.node("names")

        async def started() -> NameServer:
            config = NamesrvConfig(
                listen_port=9000,
                bind_address=node.host,
                kv_config_path=tmp_path / "kv.json",
                config_store_path=tmp_path / "names.properties",
            )
            server = NameServer(config, AccessConfig())
            await server.start()
            return server

        server = await node.run_in(started())
        address = f"{node.host}:9000"
        producer = Producer("p", namesrv=address)
        with pytest.raises(AccessDeniedError, match="this name server serves only its own machine"):
            async with producer:
                await producer.send(Message("orders", b"x"))
        consumer = PushConsumer("g", lambda _: ConsumeResult.SUCCESS, namesrv=address)
        consumer.subscribe("orders")
        with pytest.raises(AccessDeniedError, match="set protectedMode=false"):
            await consumer.start()  # it began without a word, and consumed nothing
        async with ClusterCheckup([address], network=current().network) as checkup:
            finding = (await checkup.check())[0]
        assert "does not serve this machine" in finding.value
        assert "set protectedMode=false" in (finding.remedy or "")
        await node.run_in(server.close())

    play(scene, properties={})


def test_a_probe_of_another_machine_says_that_it_was_refused() -> None:
    async def scene(cluster: Cluster) -> None:
        node = cluster.node("elsewhere")
        broker = f"{cluster.world.node(BROKER).host}:10911"
        asking = probe("broker", broker, network=node.surroundings.network)
        assert "this broker serves only its own machine" in await node.run_in(asking)

    play(scene)


class Copier(asyncio.Protocol):
    """A peer of the port for slaves that sends given bytes."""

    def __init__(self) -> None:
        self.came = bytearray()
        self.lost = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.came += data

    def connection_lost(self, _exc: Exception | None) -> None:
        self.lost.set_result(None)

    @property
    def copied(self) -> bytes:
        return b"".join(bytes(piece.data) for piece in FrameReader().feed(self.came))


async def copier(cluster: Cluster, node: str, *first: bytes) -> Copier:
    """Connect from a node to the port for slaves, and say something."""
    network = cluster.node(node).surroundings.network
    host = cluster.world.node(BROKER).host
    made: Copier = await network.connect(Copier, host, 10912, tls=None)
    for data in first:
        if not made.lost.done():
            made.transport.write(data)
    await asyncio.sleep(1)
    return made


async def fill(cluster: Cluster) -> None:
    async def send() -> None:
        producer = Producer("p", namesrv=cluster.namesrv)
        async with producer:
            await producer.send(Message("orders", b"secret"))

    await cluster.node(BROKER).run_in(send())


def test_the_log_is_for_slaves_of_the_own_machine_and_listed_ones() -> None:
    listed: list[str] = []

    async def scene(cluster: Cluster) -> None:
        await fill(cluster)
        own = await copier(cluster, BROKER, encode_report(0))
        assert b"secret" in own.copied
        for _ in range(30):
            stranger = await copier(cluster, "elsewhere", encode_report(0))
            assert stranger.lost.done()
            assert not stranger.came

    lines = play(scene)
    refusals = [line for line in lines if line["event"] == "connections for slaves refused"]
    assert len(refusals) == 1
    assert "slavesFrom" in refusals[0]["reason"]

    async def with_a_listed_one(cluster: Cluster) -> None:
        await fill(cluster)
        listed.append(cluster.node("slave").host)
        known = await copier(cluster, "slave", encode_report(0))
        assert b"secret" in known.copied

    play(with_a_listed_one, properties={**PROTECTED, "slavesFrom": "10.0.0.0/8"})


def test_an_open_port_for_slaves_is_told_and_a_list_closes_it() -> None:
    async def anybody(cluster: Cluster) -> None:
        await fill(cluster)
        assert b"secret" in (await copier(cluster, "elsewhere", encode_report(0))).copied

    assert SLAVES_LINE in [line["event"] for line in play(anybody, properties={})]

    async def listed(cluster: Cluster) -> None:
        assert (await copier(cluster, "elsewhere", encode_report(0))).lost.done()

    lines = play(listed, properties={"slavesFrom": "10.99.0.0/16"})
    assert SLAVES_LINE not in [line["event"] for line in lines]


def test_a_strangers_reports_acknowledge_nothing() -> None:
    async def scene(cluster: Cluster) -> None:
        end = cluster.broker(BROKER).store.commit_log.end
        lying = await copier(cluster, "elsewhere", encode_report(end), encode_report(end))
        assert lying.lost.done()
        master = cluster.broker(BROKER).copies.master
        assert master is not None
        assert master.acknowledged_by(1) == -1

    play(scene, properties={**PROTECTED, "brokerRole": "SYNC_MASTER"})


def with_proof(scene: Callable[[Cluster, Any], Awaitable[None]]) -> list[dict[str, Any]]:
    """Play a scene at a master that wants a proof, as one with access control does."""

    async def run(cluster: Cluster) -> None:
        await fill(cluster)
        copies = cluster.broker(BROKER).copies
        assert copies.master is not None
        assert copies.master.admission is not None
        copies.master.admission.needs_proof = True
        await scene(cluster, copies.master.admission)

    return play(run, properties={**PROTECTED, "protectedMode": "false"})


def test_with_access_control_a_token_admits_once_and_for_a_short_time() -> None:
    async def scene(cluster: Cluster, admission: Any) -> None:
        token = encode_token(admission.issue())
        # In parts of any size.
        slave = await copier(cluster, "slave", token[:5], token[5:20], token[20:], encode_report(0))
        assert b"secret" in slave.copied
        again = await copier(cluster, "slave", token + encode_report(0))
        assert again.lost.done()
        assert not again.came
        late = encode_token(admission.issue())
        await asyncio.sleep(11)
        assert (await copier(cluster, "slave", late + encode_report(0))).lost.done()

    with_proof(scene)


@pytest.mark.parametrize("says", [encode_report(0), encode_token(bytes(16)), b"\xff" * 8])
def test_with_access_control_nobody_copies_without_a_proof(says: bytes) -> None:
    async def scene(cluster: Cluster, _: Any) -> None:
        for node in ("elsewhere", BROKER):
            stranger = await copier(cluster, node, says)
            assert stranger.lost.done()
            assert not stranger.came

    lines = with_proof(scene)
    assert [line["event"] for line in lines].count("connections for slaves refused") == 1
    assert "slave disconnected" not in [line["event"] for line in lines]


def test_silent_strangers_go_and_take_no_place_of_slaves() -> None:
    async def scene(cluster: Cluster, admission: Any) -> None:
        silent = [await copier(cluster, "elsewhere") for _ in range(3)]
        many = [
            await cluster.node("elsewhere").surroundings.network.connect(
                Copier, cluster.world.node(BROKER).host, 10912, tls=None
            )
            for _ in range(40)
        ]
        token = encode_token(admission.issue())
        slave = await copier(cluster, "slave", token + encode_report(0))
        assert b"secret" in slave.copied
        await asyncio.sleep(UNKNOWN_S)
        assert all(each.lost.done() for each in (*silent, *many))
        assert not slave.lost.done()

    with_proof(scene)


def test_with_access_control_a_slave_of_ours_proves_itself_and_copies() -> None:
    async def main(cluster: Cluster) -> None:
        master = cluster.broker(BROKER).copies.master
        assert master is not None
        async with asyncio.timeout(WAIT_S):
            while not master.slaves:  # noqa: ASYNC110 - a master tells nobody who has connected
                await asyncio.sleep(0.1)
        async with Producer(
            "p", namesrv=cluster.namesrv, credentials=SENDER.credentials
        ) as producer:
            result = await producer.send(Message("orders", b"secret"))
            # Of a SYNC_MASTER: the slave's reports count.
            assert result.status is SendStatus.SEND_OK
        slave = cluster.broker("broker-a-slave-1")
        assert slave.store.commit_log.end == cluster.broker(BROKER).store.commit_log.end
        for node in ("elsewhere", BROKER, "broker-a-slave-1"):
            stranger = await copier(cluster, node, encode_report(0))
            assert stranger.lost.done()
            assert not stranger.came

    async def inside() -> None:
        async with Cluster(
            clock="virtual",
            accounts=[SENDER],
            slaves=1,
            master_role="SYNC_MASTER",
            properties={
                "metricsExporterType": "DISABLE",
                "inSyncReplicas": "2",
                "innerClientAuthenticationCredentials": json.dumps(
                    {
                        "accessKey": ADMINISTRATOR.credentials.access_key,
                        "secretKey": ADMINISTRATOR.credentials.secret_key,
                    }
                ),
            },
        ) as cluster:
            await main(cluster)

    run(inside(), seed=1)
