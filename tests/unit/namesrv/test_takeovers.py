"""Attempts to take over the routes of a living broker: the name server's handlers without
sockets.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.namesrv.route_table_fixtures import FakeClock, wrapper
from tests.unit.remoting.line import Line, answer_to
from tests.waits import WAIT_S

from cometmq.model.route import QueueData, TopicRouteData
from cometmq.namesrv import route_handlers
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.kv_config import KvConfig
from cometmq.namesrv.route_handlers import RouteHandlers
from cometmq.namesrv.route_table import RouteTable
from cometmq.protocol import headers
from cometmq.protocol.bodies.cluster import RegisterBrokerBody
from cometmq.protocol.bodies.registration import body_crc, encode_register_body
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, encode_command, request
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import Header
from cometmq.remoting.access import AdminAccess
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.state_files.state_writer import StateWriter

HERE = "10.1.0.1:10911"
THERE = "10.6.6.6:10911"
TAKEN = ResponseCode.SUCCESS
REFUSED = ResponseCode.NO_PERMISSION


class Site:
    """A name server's table behind its handlers; peers are connections from an address."""

    def __init__(self, directory: Path, admin_from: str = "") -> None:
        self.clock = FakeClock()
        self.peers: list[Peer] = []
        config = NamesrvConfig()
        self.table = RouteTable(config, self.clock)
        access = AdminAccess(admin_from)
        self.handlers = Handlers(access)
        RouteHandlers(
            config,
            self.table,
            KvConfig(directory / "kvConfig.json", StateWriter()),
            access,
            self.clock,
        ).register(self.handlers)

    def peer(self, ip: str) -> Peer:
        peer = Peer(self, ip)
        self.peers.append(peer)
        return peer

    def addresses(self) -> dict[int, str]:
        route = self.table.route("t1")
        return {} if route is None else route.broker_datas[0].broker_addrs


class Peer:
    def __init__(self, site: Site, ip: str) -> None:
        self.line = Line(site.handlers, peer=(ip, 4711))
        self._site = site
        self._answered = 0
        # Whether its power is gone: it answers nothing, and its connection stays open.
        self.is_lost = False

    async def ask(self, code: int, header: Header, body: bytes = b"") -> RemotingCommand:
        before = len(self.line.received())
        self.line.feed(encode_command(request(code, header, body)))
        await self.line.flushed()
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while len(self.line.received()) == before:
            assert asyncio.get_running_loop().time() < deadline, "no answer"
            for peer in self._site.peers:
                peer.answer()
            await asyncio.sleep(0.001)
        return self.line.received()[-1]

    def answer(self) -> None:
        """Answer what the name server asks, as a broker does that does not know the question."""
        received = self.line.received()
        for command in received[self._answered :]:
            if not self.is_lost and not command.is_response:
                self.line.feed(answer_to(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
        self._answered = len(received)

    async def register(
        self,
        address: str,
        *,
        name: str = "broker-a",
        broker_id: int = 0,
        cluster: str = "C",
        state_version: int = 0,
    ) -> int:
        topics = wrapper(["t1", "t2"], state_version=state_version)
        body = encode_register_body(RegisterBrokerBody([], topics), compressed=False)
        header = headers.RegisterBrokerRequestHeader(
            broker_name=name,
            broker_addr=address,
            cluster_name=cluster,
            ha_server_addr="",
            broker_id=broker_id,
            compressed=False,
            body_crc32=body_crc(body),
        )
        return (await self.ask(RequestCode.REGISTER_BROKER, header, body)).code

    async def unregister(self, address: str, *, cluster: str = "C") -> int:
        header = headers.UnRegisterBrokerRequestHeader(
            broker_name="broker-a", broker_addr=address, cluster_name=cluster, broker_id=0
        )
        return (await self.ask(RequestCode.UNREGISTER_BROKER, header)).code


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    # On a busy machine a live broker may answer late.
    monkeypatch.setattr(route_handlers, "_ANSWERS_WITHIN_S", WAIT_S)
    return Site(tmp_path)


async def test_another_address_does_not_take_the_routes_of_a_living_broker(site: Site) -> None:
    broker, stranger = site.peer("10.1.0.1"), site.peer("10.6.6.6")
    assert await broker.register(HERE) == TAKEN
    assert await stranger.register(THERE) == REFUSED
    assert await stranger.register(THERE, state_version=9) == REFUSED
    # Not by its own address under another name either, nor to change its topics or its timeout.
    assert await stranger.register(HERE) == REFUSED
    assert await stranger.register(HERE, name="broker-b") == REFUSED
    assert await stranger.register(HERE, cluster="D") == REFUSED
    assert site.addresses() == {0: HERE}


async def test_not_even_from_the_same_machine(site: Site) -> None:
    one, other = site.peer("127.0.0.1"), site.peer("127.0.0.1")
    assert await one.register("127.0.0.1:10911") == TAKEN
    assert await other.register("127.0.0.1:20911") == REFUSED
    assert site.addresses() == {0: "127.0.0.1:10911"}


async def test_a_refusal_names_the_broker_and_the_remedy(site: Site) -> None:
    await site.peer("10.1.0.1").register(HERE)
    stranger = site.peer("10.6.6.6")
    await stranger.register(THERE)
    remark = stranger.line.received()[-1].remark
    assert remark is not None
    for word in ("103", "broker-a", HERE, "10.6.6.6:4711", "brokerName", "adminFrom"):
        assert word in remark


async def test_a_broker_whose_power_is_gone_makes_room_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_handlers, "_ANSWERS_WITHIN_S", 0.05)
    master, slave = site.peer("10.1.0.1"), site.peer("10.1.0.2")
    await master.register(HERE)
    await slave.register("10.1.0.2:10911", broker_id=1)
    master.is_lost = True
    assert await slave.register("10.1.0.2:10911") == TAKEN
    assert site.addresses() == {0: "10.1.0.2:10911"}


async def test_a_broker_that_left_makes_room(site: Site) -> None:
    broker, heir = site.peer("10.1.0.1"), site.peer("10.1.0.2")
    await broker.register(HERE)
    assert await broker.unregister(HERE) == TAKEN
    assert await heir.register("10.1.0.2:10911") == TAKEN
    assert site.addresses() == {0: "10.1.0.2:10911"}


async def test_a_broker_that_is_silent_for_too_long_makes_room(site: Site) -> None:
    heir = site.peer("10.1.0.2")
    await site.peer("10.1.0.1").register(HERE)
    assert await heir.register("10.1.0.2:10911") == REFUSED
    site.clock.now_s += 121
    list(site.table.expire())
    assert await heir.register("10.1.0.2:10911") == TAKEN


async def test_a_broker_whose_connection_is_closed_makes_room_at_once(site: Site) -> None:
    broker = site.peer("10.1.0.1")
    await broker.register(HERE)
    broker.line.connection.close()
    assert await site.peer("10.1.0.2").register("10.1.0.2:10911") == TAKEN


async def test_a_broker_comes_back_over_a_new_connection_and_may_move(site: Site) -> None:
    first, second = site.peer("10.1.0.1"), site.peer("10.1.0.1")
    assert await first.register(HERE) == TAKEN
    assert await second.register(HERE) == TAKEN
    # The connection that registered it says where it is now, behind another port or address.
    assert await second.register("10.1.0.1:20911") == TAKEN
    assert site.addresses() == {0: "10.1.0.1:20911"}


async def test_brokers_behind_one_address_keep_apart(site: Site) -> None:
    # As behind a NAT, or in containers that announce another address than they connect from.
    a, b = site.peer("172.17.0.1"), site.peer("172.17.0.1")
    assert await a.register(HERE) == TAKEN
    assert await b.register("10.1.0.2:10911", name="broker-b") == TAKEN
    assert await a.register(HERE) == TAKEN
    assert await a.register("10.1.0.3:10911", broker_id=1) == TAKEN


async def test_a_slave_that_was_elected_takes_over_where_its_address_was_named(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, "10.1.0.0/24")
    master, slave = site.peer("10.1.0.1"), site.peer("10.1.0.2")
    await master.register(HERE, state_version=1)
    await slave.register("10.1.0.2:10911", broker_id=2, state_version=1)
    assert await slave.register("10.1.0.2:10911", state_version=1) == REFUSED
    assert await slave.register("10.1.0.2:10911", state_version=2) == TAKEN
    assert site.addresses()[0] == "10.1.0.2:10911"


async def test_a_slave_takes_over_when_its_master_became_a_slave(site: Site) -> None:
    master, slave = site.peer("10.1.0.1"), site.peer("10.1.0.2")
    await master.register(HERE)
    await slave.register("10.1.0.2:10911", broker_id=1)
    assert await master.register(HERE, broker_id=2) == TAKEN
    assert await slave.register("10.1.0.2:10911") == TAKEN
    assert site.addresses() == {0: "10.1.0.2:10911", 2: HERE}


async def test_a_broker_without_an_id_takes_no_topics_from_a_living_master(site: Site) -> None:
    await site.peer("10.1.0.1").register(HERE)
    table = site.table
    before = table.route("t1")
    assert before is not None
    await site.peer("10.6.6.6").register(THERE, broker_id=-1)
    after = table.route("t1")
    assert after is not None
    assert after.queue_datas == before.queue_datas


@pytest.mark.parametrize("cluster", ["C", "D"])
async def test_a_broker_is_unregistered_by_its_host_and_by_administrators_only(
    site: Site, cluster: str
) -> None:
    await site.peer("10.1.0.1").register(HERE)
    assert await site.peer("10.6.6.6").unregister(HERE, cluster=cluster) == REFUSED
    assert site.addresses() == {0: HERE}
    # What nobody holds is nobody's.
    assert await site.peer("10.6.6.6").unregister(THERE) == TAKEN
    assert await site.peer("127.0.0.1").unregister(HERE) == TAKEN
    assert site.addresses() == {}


async def test_a_topic_is_set_by_the_broker_that_serves_it(site: Site) -> None:
    broker = site.peer("10.1.0.1")
    await broker.register(HERE)
    await site.peer("10.1.0.2").register("10.1.0.2:10911", name="broker-b")
    header = headers.RegisterTopicRequestHeader(topic="t9")
    route = TopicRouteData(queue_datas=[QueueData("broker-a", 4, 4, 6, 0)])
    code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
    for stranger in ("10.6.6.6", "10.1.0.2"):
        answer = await site.peer(stranger).ask(code, header, encode_body(route))
        assert answer.code == REFUSED
    assert "t9" not in site.table.topics()
    assert (await broker.ask(code, header, encode_body(route))).code == TAKEN
    assert "t9" in site.table.topics()


async def test_a_stranger_keeps_no_silent_broker_alive(site: Site) -> None:
    broker, stranger = site.peer("10.1.0.1"), site.peer("10.6.6.6")
    await broker.register(HERE)
    header = headers.BrokerHeartbeatRequestHeader(
        cluster_name="C", broker_addr=HERE, broker_name="broker-a"
    )
    for peer, alive in ((broker, True), (stranger, False)):
        site.clock.now_s += 100
        assert (await peer.ask(RequestCode.BROKER_HEARTBEAT, header)).code == TAKEN
        site.clock.now_s += 100
        assert bool(list(site.table.expire())) is not alive
