"""Every limit of the proxy's catalogue is hit once: the refusal names it, its value and the remedy, it is
counted in `/metrics`, and other clients are still served. Constants are patched to small values.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from tests.certificates import client_hello
from tests.integration import test_proxy_access, test_proxy_port
from tests.integration.grpc_client import GrpcClient
from tests.integration.test_metrics import check_catalogue, parsed, value
from tests.integration.test_proxy_port import Certificates
from tests.waits import until

from cometmq.aio import AdminClient
from cometmq.metrics.catalogue import Server
from cometmq.proxy import calls
from cometmq.proxy.clients import clients, handles
from cometmq.proxy.configuration import config, front_config
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.configuration.front_config import FrontConfig
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.limit_catalogue import PROXY_LIMITS
from cometmq.proxy.methods import acknowledgements, receives, sends, transactions
from cometmq.proxy.server import Proxy
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.remoting.http import http_server
from cometmq.testing import Cluster

pytestmark = pytest.mark.real_time

# Limits of connections, and of users.
HIT_ELSEWHERE: Final = {
    **dict.fromkeys(
        (
            "maxConnections",
            "maxConnectionsPerAddress",
            "SILENT_TIMEOUT_S",
            "UNREAD_TIMEOUT_S",
            "MAX_UNSENT_BYTES",
            "MAX_CANCELS_PER_SECOND",
            "MAX_EMPTY_FRAMES_PER_SECOND",
        ),
        test_proxy_port.__file__,
    ),
    "MAX_NEW_ACCOUNTS_PER_SECOND": test_proxy_access.__file__,
    "grpcSignatureMaxAgeSeconds": test_proxy_access.__file__,
}
Act = Callable[[Proxy, GrpcClient], Awaitable[str]]
CASES: Final[dict[str, tuple[Act, tuple[tuple[Any, str, Any], ...], dict[str, Any]]]] = {}


def case(name: str, *patches: tuple[Any, str, Any], **settings: Any) -> Callable[[Act], Act]:
    """Declare how a limit is hit: `act` returns what is said of it, "" if nothing is."""

    def take(act: Act) -> Act:
        assert name not in CASES
        CASES[name] = act, patches, settings
        return act

    return take


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(properties={"transactionCheckInterval": "500", "transactionTimeOut": "500"}) as it:

        async def make() -> None:
            async with AdminClient(namesrv=it.namesrv) as admin:
                for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION"):
                    await admin.topics.create(
                        kind.lower(),
                        read_queues=1,
                        write_queues=1,
                        cluster="DefaultCluster",
                        attributes={"message.type": kind},
                    )

        it.run(make())
        yield it


@asynccontextmanager
async def serving(
    cluster: Cluster, front: FrontConfig, settings: dict[str, Any]
) -> AsyncIterator[Proxy]:
    front.metrics_exporter_type, front.metrics_prom_exporter_port = "PROM", 0
    proxy = Proxy(
        ProxyConfig(
            [str(cluster.namesrv)],
            port=0,
            drain_s=0.2,
            front=front,
            settings=ProxySettings(**settings),
        )
    )
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


def message(topic: str, body: bytes = b"x", **more: Any) -> dict[str, Any]:
    system = {"message_id": f"id-{time.monotonic_ns()}", **more.pop("system", {})}
    return {"topic": {"name": topic}, "body": body, "system_properties": system, **more}


def sending(*messages: dict[str, Any]) -> Act:
    async def act(_proxy: Proxy, client: GrpcClient) -> str:
        answer = await client.call("SendMessage", messages=messages)
        text: str = answer.status.message
        return text

    return act


case("maxMessageSize", max_message_size=10)(sending(message("normal", bytes(11))))
case("userPropertyMaxNum", user_property_max_num=1)(
    sending(message("normal", user_properties={"a": "1", "b": "2"}))
)
case("maxUserPropertySize", max_user_property_size=20)(
    sending(message("normal", user_properties={"a": "x" * 30}))
)
case("maxMessageGroupSize", max_message_group_size=3)(
    sending(message("fifo", system={"message_group": "long"}))
)
case("maxDelayTimeMills", max_delay_time_mills=1000)(
    sending(message("delay", system={"delivery_timestamp": {"seconds": int(time.time()) + 86_000}}))
)
case("maxTransactionRecoverySecond", max_transaction_recovery_second=5)(
    sending(
        message(
            "transaction",
            system={
                "message_type": wire.TRANSACTION,
                "orphaned_transaction_recovery_duration": {"seconds": 60},
            },
        )
    )
)
case("MAX_ENTRIES", (sends, "MAX_ENTRIES", 1), (acknowledgements, "MAX_ENTRIES", 1))(
    sending(message("normal"), message("normal"))
)
case("MAX_CALLS", (calls, "MAX_CALLS", 0))(sending(message("normal")))
case("MAX_REQUEST_BYTES", (front_config, "MAX_REQUEST_BYTES", 1_000))(
    sending(message("normal", bytes(1_000)))
)
case("MAX_DETAIL_BYTES", (config, "MAX_DETAIL_BYTES", 1_000))(
    sending(message("normal", user_properties={"a": "x" * 1_000}))
)
case("MAX_REMEMBERED", (transactions, "MAX_REMEMBERED", 0))(
    sending(message("transaction", system={"message_type": wire.TRANSACTION}))
)


def administering(name: str, **fields: Any) -> Act:
    async def act(_proxy: Proxy, client: GrpcClient) -> str:
        status = (await client.admin(name, **fields)).status
        assert status.code != wire.OK
        text: str = status.message
        return text

    return act


_ROUTE: Final = administering("GetTopicRoute", topic={"name": "normal"})
_TIMES: Final = administering("QueryTimeSpan", group={"name": "any"}, topics=[{"name": "normal"}])
case("MAX_ADMIN_CALLS", (config, "MAX_ADMIN_CALLS", 0))(_ROUTE)
case("ADMIN_CALL_TIMEOUT_S", (config, "ADMIN_CALL_TIMEOUT_S", 0.0))(_ROUTE)
case("MAX_REPORT_BYTES", (config, "MAX_REPORT_BYTES", 10))(_ROUTE)
case("MAX_ADMIN_ANSWER_BYTES", (config, "MAX_ADMIN_ANSWER_BYTES", 10))(_ROUTE)
case("MAX_ADMIN_QUESTIONS", (config, "MAX_ADMIN_QUESTIONS", 0))(_TIMES)
case("MAX_ADMIN_ITEMS", (config, "MAX_ADMIN_ITEMS", 0))(_TIMES)
case("MAX_QUERIED_MESSAGES", (config, "MAX_QUERIED_MESSAGES", 1))(
    administering("QueryMessage", topic={"name": "normal"}, message_key="x", max_message_nums=2)
)


def settings_of(topic: str, consumes: bool = False) -> wire.TelemetryCommand:
    resource = wire.Resource(name=topic)
    if not consumes:
        publishing = wire.Publishing(topics=[resource])
        settings = wire.Settings(client_type=wire.PRODUCER, publishing=publishing)
    else:
        entry = wire.SubscriptionEntry(topic=resource)
        subscription = wire.Subscription(group=wire.Resource(name="billing"), subscriptions=[entry])
        settings = wire.Settings(client_type=wire.SIMPLE_CONSUMER, subscription=subscription)
    return wire.TelemetryCommand(settings=settings)


async def refused_stream(client: GrpcClient) -> str:
    stream = client.telemetry()
    await stream.write(settings_of("normal"))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stream.read()
    return str(failure.value.details())


for _limit in ("MAX_CLIENTS", "MAX_STREAMS_PER_CLIENT", "MAX_TOPICS_OF_CLIENT"):

    @case(_limit, (clients, _limit, 0))
    async def _stream(_proxy: Proxy, client: GrpcClient) -> str:
        return await refused_stream(client)


def receiving(**fields: Any) -> Act:
    async def act(_proxy: Proxy, client: GrpcClient) -> str:
        stream = client.telemetry()
        await stream.write(settings_of("normal", consumes=True))
        assert (await stream.read()).status.code == wire.OK
        queue = {"topic": {"name": "normal"}, "broker": {"name": "broker-a"}}
        answers = await client.answers(
            "ReceiveMessage",
            group={"name": "billing"},
            message_queue=queue,
            invisible_duration={"seconds": 10},
            **fields,
        )
        stream.cancel()
        assert answers[0].status.code == wire.TOO_MANY_REQUESTS
        text: str = answers[0].status.message
        return text

    return act


case("MAX_WAITING_RECEIVES", (receives, "MAX_WAITING_RECEIVES", 0))(receiving())
case("MAX_RENEWED_HANDLES", (handles, "MAX_RENEWED_HANDLES", 0))(receiving(auto_renew=True))


@case("MAX_WAITING_COMMANDS")
async def _unread_commands(proxy: Proxy, client: GrpcClient) -> str:
    stream = client.telemetry()
    await stream.write(settings_of("transaction"))
    assert (await stream.read()).status.code == wire.OK
    (known,) = [each for each in proxy.clients._by_id.values() if each.streams]
    # As a client that reads nothing, and whose stream has taken all that it can. Large commands fill what the library
    # reads ahead before the broker has asked as often as it does.
    large = wire.TelemetryCommand(
        verify_message_command=wire.VerifyMessageCommand(nonce="x" * 60_000)
    )
    while known.streams[-1].send(large):
        pass
    answer = await client.call(
        "SendMessage",
        messages=[message("transaction", system={"message_type": wire.TRANSACTION})],
    )
    assert answer.status.code == wire.OK

    async def fill() -> bool:
        while known.streams and known.streams[-1].send(large):
            pass
        return "MAX_WAITING_COMMANDS" in proxy.limit_hits.counts

    await until(fill)
    stream.cancel()
    return ""


@case("RLIMIT_NOFILE")
async def _descriptors(proxy: Proxy, _client: GrpcClient) -> str:
    most, proxy.front._most_descriptors = proxy.front._most_descriptors, 0
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    proxy.front._most_descriptors = most
    return ""


@case("MAX_HEAD_BYTES")
async def _long_head(proxy: Proxy, _client: GrpcClient) -> str:
    host, _, port = str(proxy.metrics_address).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.1\r\nx: " + b"x" * 100_000)
    assert b"431" in await reader.read(1000)
    writer.close()
    return ""


@case("MAX_HTTP_CONNECTIONS")
async def _many_scrapers(proxy: Proxy, _client: GrpcClient) -> str:
    host, _, port = str(proxy.metrics_address).rpartition(":")
    writers = []
    for _ in range(http_server.MAX_HTTP_CONNECTIONS + 1):
        _, writer = await asyncio.open_connection(host, int(port))
        writers.append(writer)
    await until(lambda: proxy.limit_hits.counts.get("MAX_HTTP_CONNECTIONS"))
    for writer in writers:
        writer.close()
    return ""


async def _hellos(proxy: Proxy, limit: str) -> str:
    writers = []
    for _ in range(8):
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(client_hello())
        writers.append(writer)
    await until(lambda: proxy.limit_hits.counts.get(limit))
    for writer in writers:
        writer.close()
    return ""


TLS: Final[dict[str, dict[str, Any]]] = {
    "tlsHandshakeTimeoutSeconds": {"tls_handshake_timeout_seconds": 1},
    "maxTlsHandshakes": {"max_tls_handshakes": 1},
    "maxTlsHandshakesPerSecond": {"max_tls_handshakes_per_second": 1},
}
for _name in TLS:

    @case(_name)
    async def _shake(proxy: Proxy, _client: GrpcClient, name: str = _name) -> str:
        return await _hellos(proxy, name)


def test_every_limit_is_hit_by_a_test() -> None:
    assert CASES.keys().isdisjoint(HIT_ELSEWHERE)
    assert PROXY_LIMITS.keys() == CASES.keys() | HIT_ELSEWHERE.keys()
    for name, file in HIT_ELSEWHERE.items():
        assert f'"{name}"' in Path(file).read_text()


@pytest.mark.parametrize("name", CASES)
async def test_a_limit_refuses_says_so_and_counts(
    name: str, cluster: Cluster, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, patches, settings = CASES[name]
    front = certificates.config(**TLS[name]) if name in TLS else FrontConfig()
    async with serving(cluster, front, settings) as proxy:
        target = f"127.0.0.1:{proxy.port}"
        async with GrpcClient(target, client_id="other") as other, GrpcClient(target) as client:
            assert await other.route("normal") == wire.OK
            with monkeypatch.context() as patched:
                for module, constant, small in patches:
                    assert isinstance(module, ModuleType)
                    patched.setattr(module, constant, small)
                said = await act(proxy, client)
            assert await other.route("normal") == wire.OK
        assert proxy.limit_hits.counts[name] > 0
        assert set(proxy.limit_hits.counts) <= PROXY_LIMITS.keys()
        assert proxy.monitoring is not None
        text = (await proxy.monitoring.scrape()).decode()
    if said:
        assert name in said
        assert "; " in said, f"no remedy: {said}"
    assert value(parsed(text), "cometmq_limit_hits_total", limit=name) > 0


async def test_metrics_have_all_that_the_catalogue_declares(cluster: Cluster) -> None:
    async with (
        serving(cluster, FrontConfig(), {}) as proxy,
        GrpcClient(f"127.0.0.1:{proxy.port}") as client,
    ):
        assert await client.route("normal") == wire.OK
        assert await client.route("missing") == wire.TOPIC_NOT_FOUND
        stream = client.telemetry()
        await stream.write(settings_of("normal"))
        assert (await stream.read()).status.code == wire.OK
        host, _, port = str(proxy.metrics_address).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = (await reader.read()).decode()
        writer.close()
        stream.cancel()
    head, _, text = answer.partition("\r\n\r\n")
    assert re.match(r"HTTP/1\.[01] 200", head)
    check_catalogue(text, Server.PROXY)
    samples = parsed(text)
    calls_of = "cometmq_proxy_calls_total"
    assert value(samples, calls_of, call="QueryRoute", status="OK") == 1
    assert value(samples, calls_of, call="QueryRoute", status="TOPIC_NOT_FOUND") == 1
    assert value(samples, "cometmq_proxy_telemetry_streams") == 1
    assert value(samples, "cometmq_proxy_clients") == 1
    assert value(samples, "cometmq_connections") == 1
