"""A broker's registrations with name servers: at the start, at changes, periodically, after an outage
and at the end. Name servers and the network lie in memory, and time is simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

import pytest
from structlog.testing import capture_logs
from tests.simulated import LoopClock, MemoryNetwork

from cometmq.broker.config import BrokerConfig
from cometmq.broker.operation import registration as module
from cometmq.broker.operation.registration import Registration
from cometmq.broker.topics.topics import TopicManager
from cometmq.model.route import QueueData, TopicRouteData
from cometmq.model.sysflag import PERM_READ, PERM_RW
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.protocol import headers, requests
from cometmq.protocol.bodies.registration import TopicQueues, check_body_crc, decode_register_body
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.server import RemotingServer
from cometmq.runtime.tasks import TaskOwner
from cometmq.testing.virtual import VirtualLoop

FIRST, SECOND = 9876, 9877
BOTH = f"ns1:{FIRST}; ns2:{SECOND}"
ADDRESS, HA_ADDRESS = "10.0.0.1:10911", "10.0.0.1:10912"
HEADER = {
    "brokerName": "b",
    "brokerAddr": ADDRESS,
    "clusterName": "C",
    "brokerId": "0",
}


class NetworkedLoop(VirtualLoop):
    """Simulated time, in which connections of the machine lead into a network in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.network = MemoryNetwork()

    async def getaddrinfo(self, host: Any, *_: Any, **__: Any) -> Any:
        return [(None, None, None, None, (host, 0))]

    async def create_connection(  # type: ignore[override]  # what a `TcpNetwork` asks for
        self, new_protocol: Callable[[], asyncio.Protocol], host: str, port: int, **_: object
    ) -> tuple[None, asyncio.Protocol]:
        return None, await self.network.connect(new_protocol, host, port, tls=None)


class FakeNameServer:
    """Takes down what brokers say: the time, the topics of a registration, and their version."""

    def __init__(self, network: MemoryNetwork, port: int) -> None:
        self._network = network
        self._port = port
        self._server: RemotingServer | None = None
        self.silent = False
        self.refuses = False
        self.headers: list[dict[str, str]] = []
        self.filter_servers: list[list[str]] = []
        self.tables: list[dict[str, TopicQueues]] = []
        self.versions: list[DataVersion] = []
        self.times: list[float] = []
        self.gone: list[dict[str, str]] = []
        self.single: list[tuple[str, TopicRouteData]] = []
        self.known_version: DataVersion | None = None

    async def start(self) -> Self:
        handlers = Handlers()
        handlers.register(requests.REGISTER_BROKER, self._register)
        handlers.register(requests.UNREGISTER_BROKER, self._unregister)
        handlers.register(requests.QUERY_DATA_VERSION, self._version)
        handlers.register(requests.REGISTER_TOPIC_IN_NAMESRV, self._register_topic)
        self._server = RemotingServer("ns", self._port, handlers, network=self._network)
        await self._server.start()
        return self

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
            self._server = None

    def forget(self) -> None:
        for heard in (self.headers, self.tables, self.versions, self.times):
            heard.clear()

    def _register(
        self, _connection: Connection, call: Request[headers.RegisterBrokerRequestHeader]
    ) -> RemotingCommand | None:
        header = call.header
        data = bytes(call.body)
        check_body_crc(data, header.body_crc32)
        body = decode_register_body(data, compressed=header.compressed, version=call.version)
        wrapper = body.topic_config_serialize_wrapper
        self.headers.append(_ext(header))
        self.filter_servers.append(body.filter_server_list)
        self.tables.append(wrapper.topic_config_table)
        self.versions.append(wrapper.data_version)
        self.times.append(asyncio.get_running_loop().time())
        return self._answer()

    def _unregister(
        self, _connection: Connection, call: Request[headers.UnRegisterBrokerRequestHeader]
    ) -> RemotingCommand | None:
        self.gone.append(_ext(call.header))
        return self._answer()

    def _register_topic(
        self, _connection: Connection, call: Request[headers.RegisterTopicRequestHeader]
    ) -> RemotingCommand | None:
        route = requests.REGISTER_TOPIC_IN_NAMESRV.body.decode(call.body)
        self.single.append((call.header.topic, route))
        return self._answer()

    def _version(
        self, _connection: Connection, call: Request[headers.QueryDataVersionRequestHeader]
    ) -> RemotingCommand | None:
        theirs = requests.QUERY_DATA_VERSION.body.decode(call.body)
        return response(
            ResponseCode.SUCCESS,
            header=headers.QueryDataVersionResponseHeader(changed=theirs != self.known_version),
            body=b"" if self.known_version is None else encode_body(self.known_version),
        )

    def _answer(self) -> RemotingCommand | None:
        if self.silent:
            return None
        code = ResponseCode.SYSTEM_BUSY if self.refuses else ResponseCode.SUCCESS
        return response(code, "too busy" if self.refuses else None)


def _ext(header: headers.UnRegisterBrokerRequestHeader | Any) -> dict[str, str]:
    return {
        "brokerName": header.broker_name,
        "brokerAddr": header.broker_addr,
        "clusterName": header.cluster_name,
        "brokerId": str(header.broker_id),
    }


class Site:
    """A broker's topics and registration, and two name servers of which the first is up."""

    def __init__(self, network: MemoryNetwork, **settings: Any) -> None:
        self.config = BrokerConfig(
            **{
                "broker_name": "b",
                "broker_cluster_name": "C",
                "broker_ip1": "10.0.0.1",
                "namesrv_addr": BOTH,
            }
            | settings
        )
        self.topics = TopicManager(self.config, LoopClock())
        self.tasks = TaskOwner("test")
        self.registration = Registration(
            self.config, self.topics, address=ADDRESS, ha_address=HA_ADDRESS, tasks=self.tasks
        )
        self.first = FakeNameServer(network, FIRST)
        self.second = FakeNameServer(network, SECOND)

    @property
    def names(self) -> set[str]:
        return {topic.topic_name for topic in self.topics.all()}

    async def start(self) -> None:
        """Start with both name servers up."""
        await self.first.start()
        await self.second.start()
        await self.start_alone()

    async def start_alone(self) -> None:
        """Start with those name servers that are up; the topics that there are had no change."""
        self.topics.on_change.append(self.registration.topics_changed)
        await self.registration.start()

    def put(self, *names: str, queues: int = 4) -> None:
        for name in names:
            self.topics.put(TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues))


def scene(play: Callable[[Site], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetworkedLoop)
        site = Site(loop.network, **settings)
        try:
            await play(site)
        finally:
            await site.registration.close()
            await site.tasks.close()
            await site.first.close()
            await site.second.close()

    with asyncio.Runner(loop_factory=NetworkedLoop) as runner:
        runner.run(run())


def now_s() -> float:
    return asyncio.get_running_loop().time()


# Single topics


def test_a_changed_topic_is_registered_alone_if_that_is_set() -> None:
    async def play(site: Site) -> None:
        await site.start()
        site.first.forget()
        site.config.enable_single_topic_register = True
        site.put("orders", "bills", queues=3)
        await site.registration.announced()
        for server in (site.first, site.second):
            assert {name for name, _ in server.single} == {"orders", "bills"}
        _, route = site.first.single[0]
        assert route.queue_datas == [QueueData("b", 3, 3, PERM_RW)]
        assert site.first.tables == []
        await asyncio.sleep(60)
        assert site.first.tables[-1].keys() == site.names, "the next registration has all topics"
        site.config.enable_single_topic_register = False
        site.put("more")
        await site.registration.announced()
        assert len(site.first.single) == 2

    scene(play)


def test_a_name_server_that_takes_no_single_topic_stops_nothing() -> None:
    async def play(site: Site) -> None:
        await site.start()
        site.first.refuses = True
        await site.second.close()
        site.config.enable_single_topic_register = True
        with capture_logs() as lines:
            site.put("orders")
            await site.registration.announced()
            await asyncio.sleep(30)
        events = [line["event"] for line in lines]
        assert "topic refused" in events
        assert "topic not registered" in events

    scene(play)


def test_a_name_server_that_was_taken_out_is_not_sought_again() -> None:
    async def play(site: Site) -> None:
        await site.start()
        site.config.namesrv_addr = f"ns1:{FIRST}"
        await site.second.close()
        await asyncio.sleep(5)
        site.second.forget()
        await site.second.start()
        await asyncio.sleep(120)
        assert site.second.tables == []

    scene(play)


# The start


def test_every_name_server_hears_of_the_broker_and_all_its_topics() -> None:
    async def play(site: Site) -> None:
        site.put("orders", queues=7)
        await site.start()
        for server in (site.first, site.second):
            assert server.headers[0] == HEADER
            assert server.tables[0].keys() == site.names
            assert server.tables[0]["orders"].write_queue_nums == 7
            assert server.versions[0] == site.topics.data_version
            assert server.filter_servers == [[]] * len(server.tables)

    scene(play)


def test_without_a_name_server_a_broker_starts_all_the_same() -> None:
    async def play(site: Site) -> None:
        await site.start_alone()
        site.put("orders")
        await asyncio.sleep(60)

    scene(play, namesrv_addr="")


def test_a_registration_may_be_compressed() -> None:
    async def play(site: Site) -> None:
        site.put("orders", queues=7)
        await site.start()
        assert site.first.tables[0].keys() == site.names
        assert site.first.tables[0]["orders"].read_queue_nums == 7

    scene(play, compressed_register=True)


def test_a_broker_with_predicates_is_its_own_filter_server() -> None:
    async def play(site: Site) -> None:
        await site.start()
        assert site.first.filter_servers == [[ADDRESS]]

    scene(play, filter_predicate_modules="shop:is_paid")


def test_name_servers_hear_no_right_that_the_broker_does_not_give() -> None:
    async def play(site: Site) -> None:
        site.put("orders")
        await site.start()
        assert site.first.tables[0]["orders"].perm == PERM_READ
        site.config.broker_permission = PERM_RW
        site.topics.permission_changed()
        await asyncio.sleep(0.1)
        assert site.first.tables[-1]["orders"].perm == PERM_RW
        assert site.first.tables[-1].keys() == site.names, "it concerns all of them"

    scene(play, broker_permission=PERM_READ)


def test_a_silent_name_server_holds_up_neither_the_start_nor_the_others() -> None:
    async def play(site: Site) -> None:
        site.first.silent = True
        await site.start()
        assert now_s() == pytest.approx(3.0, abs=0.1)
        assert site.second.times[0] < 0.1

    scene(play)


# An outage


def test_a_name_server_that_is_down_is_registered_with_once_it_is_up() -> None:
    async def play(site: Site) -> None:
        await site.first.start()
        with capture_logs() as logs:
            await site.start_alone()
            assert now_s() < 0.1
            assert len(site.first.tables) == 1
            await asyncio.sleep(5)
        reported = [line for line in logs if line["event"] == "not registered"]
        assert [line["name_server"] for line in reported] == [f"ns2:{SECOND}"], (
            "one line for an outage"
        )
        site.put("orders")
        await site.second.start()
        await asyncio.sleep(1.1)
        assert "orders" in site.second.tables[0]
        assert site.second.tables[0].keys() == site.names
        count = len(site.second.tables)
        await asyncio.sleep(3)
        assert len(site.second.tables) == count, "it is known, so nothing is tried any more"

    scene(play)


def test_a_name_server_that_restarts_has_forgotten_the_broker() -> None:
    async def play(site: Site) -> None:
        await site.start()
        await site.first.close()
        site.first.forget()
        await asyncio.sleep(2.5)
        await site.first.start()
        await asyncio.sleep(1.1)
        assert site.first.tables[0].keys() == site.names
        assert len(site.second.tables) == 1, "the other one was never away"

    scene(play)


def test_a_name_server_that_times_out_is_tried_again_until_it_answers() -> None:
    async def play(site: Site) -> None:
        site.first.silent = True
        await site.start()
        site.first.silent = False
        await asyncio.sleep(2 + 1.1)
        assert len(site.first.tables) == 2
        await site.registration.close()
        assert site.first.gone

    scene(play, register_broker_timeout_mills=5_000)


def test_a_refused_registration_is_told_and_tried_again_in_the_next_period() -> None:
    async def play(site: Site) -> None:
        site.first.refuses = True
        with capture_logs() as logs:
            await site.start()
        refused = [line for line in logs if line["event"] == "registration refused"]
        assert [(line["name_server"], line["reason"]) for line in refused] == [
            (f"ns1:{FIRST}", "too busy")
        ]
        site.first.refuses = False
        with capture_logs() as logs:
            await asyncio.sleep(10.1)
        assert ("registered", f"ns1:{FIRST}") in {
            (line["event"], line.get("name_server")) for line in logs
        }

    scene(play)


# Changes


def test_topics_that_change_together_are_sent_together_and_alone() -> None:
    async def play(site: Site) -> None:
        site.put("orders", "payments", "audit")
        await site.start()
        site.put("orders", queues=8)
        site.put("refunds")
        site.put("orders", queues=9)
        await asyncio.sleep(0.1)
        for server in (site.first, site.second):
            assert len(server.tables) == 2
            assert server.tables[1].keys() == {"orders", "refunds"}
            assert server.tables[1]["orders"].write_queue_nums == 9
            assert server.versions[1] == site.topics.data_version
            assert server.headers[1] == HEADER

    scene(play)


def test_a_removed_topic_has_the_whole_table_sent() -> None:
    async def play(site: Site) -> None:
        site.put("orders", "payments")
        await site.start()
        site.topics.remove("orders")
        site.put("refunds")
        await asyncio.sleep(0.1)
        assert len(site.first.tables) == 2
        assert site.first.tables[1].keys() == site.names
        assert "orders" not in site.first.tables[1]
        # The next change goes alone again.
        site.put("audit")
        await asyncio.sleep(0.1)
        assert site.first.tables[2].keys() == {"audit"}

    scene(play)


def test_a_new_topic_is_announced_when_name_servers_have_answered() -> None:
    async def play(site: Site) -> None:
        await site.start()
        await site.registration.announced()
        site.put("orders")
        await site.registration.announced()
        assert "orders" in site.first.tables[-1]
        assert "orders" in site.second.tables[-1]
        assert now_s() < 0.1

    scene(play)


def test_who_waits_for_an_announcement_waits_a_second_for_a_silent_name_server() -> None:
    async def play(site: Site) -> None:
        await site.start()
        site.first.silent = True
        site.put("orders")
        begun_s = now_s()
        await site.registration.announced()
        assert now_s() - begun_s == pytest.approx(1.0, abs=0.01)
        assert "orders" in site.second.tables[-1]

    scene(play)


# The period


def test_a_broker_is_registered_after_ten_seconds_and_then_periodically() -> None:
    async def play(site: Site) -> None:
        await site.start()
        await asyncio.sleep(75)
        assert [round(time_s) for time_s in site.first.times] == [0, 10, 30, 50, 70]
        assert all(table.keys() == site.names for table in site.first.tables)

    scene(play, register_name_server_period=20_000)


@pytest.mark.parametrize(("period_ms", "seconds"), [(1, 10), (10**9, 60)])
def test_a_period_is_ten_seconds_to_a_minute(period_ms: int, seconds: int) -> None:
    async def play(site: Site) -> None:
        await site.start()
        await asyncio.sleep(131)
        assert [round(time_s) for time_s in site.first.times[1:3]] == [10, 10 + seconds]

    scene(play, register_name_server_period=period_ms)


# Large tables

AT_ONCE = 10


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOPICS_AT_ONCE", AT_ONCE)


@pytest.mark.usefixtures("in_parts")
def test_a_large_table_goes_in_parts_of_which_the_last_has_its_version() -> None:
    async def play(site: Site) -> None:
        site.put(*(f"t{number:02d}" for number in range(35)))
        await site.start()
        for server in (site.first, site.second):
            tables = server.tables
            assert max(map(len, tables)) == AT_ONCE
            assert sum(map(len, tables)) == len(site.names)
            assert {name for table in tables for name in table} == site.names
            # Or a name server would take the first part for all of it, and skip the others.
            assert len({version.timestamp for version in server.versions}) == len(tables)
            assert server.versions[-1] == site.topics.data_version

    scene(play)


@pytest.mark.usefixtures("in_parts")
def test_a_part_that_is_not_taken_ends_its_round() -> None:
    async def play(site: Site) -> None:
        site.put(*(f"t{number:02d}" for number in range(35)))
        site.first.refuses = True
        await site.start()
        assert len(site.first.tables) == 1
        assert len(site.second.tables) > 3

    scene(play)


@pytest.mark.usefixtures("in_parts")
def test_a_period_sends_the_next_part_to_who_knows_the_version_and_else_all() -> None:
    async def play(site: Site) -> None:
        site.put(*(f"t{number:02d}" for number in range(35)))
        await site.start()
        site.first.known_version = site.topics.data_version
        for server in (site.first, site.second):
            server.forget()
        await asyncio.sleep(5 * 30)
        assert all(len(table) <= AT_ONCE for table in site.first.tables)
        sent = [name for table in site.first.tables for name in table]
        assert set(sent) == site.names, "one part after the other, so all of it in the end"
        assert len(site.first.tables) == 5
        # The second one has never heard of this version.
        assert len(site.second.tables) == 5 * -(-len(site.names) // AT_ONCE)

    scene(play)


# The end


def test_every_name_server_hears_that_the_broker_goes() -> None:
    async def play(site: Site) -> None:
        await site.start()
        await site.registration.close()
        assert site.first.gone == [HEADER]
        assert site.second.gone == [HEADER]
        # And nothing afterwards, which would undo it.
        for server in (site.first, site.second):
            server.forget()
        site.put("orders")
        await site.registration.register_all()
        await asyncio.sleep(120)
        assert site.first.tables == site.second.tables == []

    scene(play)


def test_who_never_took_the_registration_is_not_told() -> None:
    async def play(site: Site) -> None:
        site.second.refuses = True
        await site.start()
        await site.registration.close()
        assert site.first.gone == [HEADER]
        assert site.second.gone == []

    scene(play)


def test_a_name_server_that_went_silent_holds_up_the_end_for_three_seconds() -> None:
    async def play(site: Site) -> None:
        await site.start()
        site.first.silent = True
        begun_s = now_s()
        with capture_logs() as logs:
            await site.registration.close()
        assert now_s() - begun_s == pytest.approx(3.0, abs=0.1)
        assert site.second.gone == [HEADER]
        assert [line["name_server"] for line in logs if line["event"] == "not unregistered"] == [
            f"ns1:{FIRST}"
        ]

    scene(play)


def test_what_is_due_while_the_broker_goes_does_not_bring_it_back() -> None:
    async def play(site: Site) -> None:
        await site.start()
        site.first.silent = True  # so that the end takes a while
        closing = site.tasks.spawn(site.registration.close(), "close")
        await asyncio.sleep(1)
        assert site.second.gone == [HEADER]
        site.second.forget()
        await site.registration.remind()
        site.put("orders")
        await closing
        assert site.second.tables == []

    scene(play)
