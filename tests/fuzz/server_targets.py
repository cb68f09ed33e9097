"""Fuzz targets of whole servers: bytes into a connection of a broker, a name server, a port for
slaves, a port for monitoring, with real handlers behind it.

A cluster in virtual time serves many inputs, each on a connection of its own, and a well-behaved
client beside it. After an input: no error reached an outermost edge but a CometMQError; what came
back are frames; nothing of the input is held; the other client is served. The first byte of an
input says how the rest is cut into reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

import msgspec
from tests.fuzz import log_watch
from tests.fuzz.frames import mutate_frames
from tests.fuzz.mutation import cuts, mutate
from tests.fuzz.samples import sample
from tests.fuzz.target import Target
from tests.fuzz.wire_targets import PROPERTIES

from cometmq.broker.server import Broker
from cometmq.errors import CometMQError
from cometmq.namesrv.server import NameServer
from cometmq.protocol import requests as r
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand, decode_command, encode_command, request
from cometmq.protocol.frame import FrameDecoder, SerializeType
from cometmq.protocol.header import Header
from cometmq.protocol.messages.batch import BatchEntry, encode_batch
from cometmq.protocol.replication import encode_report
from cometmq.protocol.request_type import AnyRequestType, RawBody
from cometmq.testing.servers import ClusterPlan
from cometmq.testing.virtual.servers import VirtualServers
from cometmq.testing.virtual.world import World

_INPUTS_OF_A_CLUSTER: Final = 200
_BROKER, _NAME_SERVER = "broker-a", "namesrv-0"
_PORTS: Final = {_BROKER: 10911, _NAME_SERVER: 9876, "ha": 10912, "http": 5557}
# Virtual seconds for which an input's connection stays: longer than the sample's pull waits.
_STAYS_S: Final = 1.0
# A server closes connections that rest for two minutes, as while other servers are fuzzed.
_IDLE_AT_MOST_S: Final = 60.0
_MOST_ANSWERED_BYTES: Final = 8 * 1024 * 1024


class _Client(asyncio.Protocol):
    """Keeps what a server sends."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.is_lost = False
        self.transport: asyncio.Transport | None = None
        self.more = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # it is no other kind

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.more.set()


class _Cluster:
    """A name server and a broker in virtual time, and a client that behaves well."""

    def __init__(self) -> None:
        self.world = World(seed=1)
        plan = ClusterPlan(properties={"metricsExporterType": "PROM"})
        self.servers = VirtualServers(self.world, plan)
        self.inputs = 0
        self.failures: list[BaseException] = []
        self.world.loop.set_exception_handler(self._failed)
        self.world.run(self.servers.start())
        self.nice: dict[str, _Client] = {}
        self.asked_at_s: dict[str, float] = {}

    def _failed(self, _: object, context: dict[str, Any]) -> None:
        self.failures.append(context.get("exception") or AssertionError(context["message"]))

    def server(self, name: str) -> Broker | NameServer:
        return self.servers.servers[name]

    async def _connect(self, port: str) -> _Client:
        name = port if port in self.servers.servers else _BROKER
        host = self.servers.node(name).host
        network = self.world.node("hostile").surroundings.network
        return await network.connect(_Client, host, _PORTS[port], tls=None)

    async def serve(self, port: str, reads: Sequence[bytes]) -> bytes:
        """Send the reads on a connection of their own; return what came back."""
        client = await self._connect(port)
        assert client.transport is not None
        for read in reads:
            if not client.is_lost:
                client.transport.write(read)
            await asyncio.sleep(0.01)
        await asyncio.sleep(_STAYS_S)
        client.transport.close()
        await asyncio.sleep(0.2)
        return bytes(client.received)

    async def is_served(self, name: str) -> None:
        """Ask as a well-behaved client that has been connected for long."""
        client = self.nice.get(name)
        if client is None or self.world.loop.now_s - self.asked_at_s[name] > _IDLE_AT_MOST_S:
            client = self.nice[name] = await self._connect(name)
        assert not client.is_lost, f"{name} has closed the connection of another client"
        self.asked_at_s[name] = self.world.loop.now_s
        assert client.transport is not None
        client.more.clear()
        had = len(client.received)
        client.transport.write(encode_command(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)))
        async with asyncio.timeout(5):
            while len(client.received) == had:
                client.more.clear()
                await client.more.wait()
        client.received.clear()

    def close(self) -> None:
        with suppress(CometMQError):
            self.world.__exit__(RuntimeError, RuntimeError(), None)


class _Current:
    """Holds the cluster that serves now."""

    cluster: _Cluster | None = None


def _cluster() -> _Cluster:
    cluster = _Current.cluster
    if cluster is None or cluster.inputs >= _INPUTS_OF_A_CLUSTER:
        renew()
        log_watch.faults.clear()
        cluster = _Current.cluster = _Cluster()
    cluster.inputs += 1
    return cluster


def renew() -> None:
    """Let the next input meet a new cluster, as one does that is replayed alone."""
    if _Current.cluster is not None:
        _Current.cluster.close()
        _Current.cluster = None


def _session(port: str, name: str, random: Random, data: bytes) -> bytes:
    cluster = _cluster()
    reads = [data] if random.random() < 0.7 else [part for part in cuts(random, data) if part]
    try:
        answer = cluster.world.run(cluster.serve(port, reads))
        log_watch.raise_fault()
        if cluster.failures:
            raise cluster.failures[0]
        cluster.world.run(cluster.is_served(name))
        server = cluster.server(name)
        holdings = server.holdings
        assert holdings.received_bytes == 0, holdings.received_bytes
        assert len(answer) <= _MOST_ANSWERED_BYTES, len(answer)
    except BaseException:
        log_watch.faults.clear()
        renew()
        raise
    return answer


def _answers_are_frames(answer: bytes, sent: bytes) -> int:
    decoder = FrameDecoder()
    frames = decoder.feed(answer)
    decoder.check()
    assert not decoder.buffered, "an answer is cut"
    for frame in frames:
        decode_command(frame)
    return len(frames)


def run_broker(random: Random, data: bytes) -> object:
    return _answers_are_frames(_session(_BROKER, _BROKER, random, data), data)


def run_name_server(random: Random, data: bytes) -> object:
    return _answers_are_frames(_session(_NAME_SERVER, _NAME_SERVER, random, data), data)


def run_ha(random: Random, data: bytes) -> object:
    return len(_session("ha", _BROKER, random, data))


def run_http(random: Random, data: bytes) -> object:
    answer = _session("http", _BROKER, random, data)
    assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:100]
    return answer[:12]


def _frame(row: AnyRequestType, form: SerializeType = SerializeType.JSON, **fields: Any) -> bytes:
    header: Header = msgspec.structs.replace(sample(row.header), **fields)
    body = b""
    if isinstance(row.body, RawBody):
        body = encode_batch([BatchEntry(0, b"one", PROPERTIES)])
    elif (type_ := getattr(row.body, "type", None)) is not None:
        body = row.body.encode(sample(type_))
    return encode_command(request(row.code, header, body), form)


def _single_requests() -> list[bytes]:
    # A binary header has 16 bits for the code, and those of popping are larger.
    return [
        _frame(row, SerializeType(number % 2 if row.code < 1 << 16 else 0))
        for number, row in enumerate(r.REQUESTS.values())
    ]


def _sequences() -> list[bytes]:
    """Return requests that build on each other."""
    topic, heartbeat = _frame(r.UPDATE_AND_CREATE_TOPIC), _frame(r.HEART_BEAT)
    send, pull = _frame(r.SEND_MESSAGE_V2), _frame(r.PULL_MESSAGE)
    half = _frame(
        r.SEND_MESSAGE_V2, properties="TRAN_MSG\x01true\x02PGROUP\x01billing\x02UNIQ_KEY\x01U\x02"
    )
    late = _frame(r.SEND_MESSAGE_V2, properties="DELAY\x012\x02UNIQ_KEY\x01U\x02")
    return [
        topic + send + pull,
        topic + heartbeat + send * 3 + pull + _frame(r.UPDATE_CONSUMER_OFFSET),
        topic + half + _frame(r.END_TRANSACTION),
        topic + late + _frame(r.CONSUMER_SEND_MSG_BACK) + pull,
        topic
        + _frame(r.SEND_BATCH_MESSAGE)
        + _frame(r.QUERY_MESSAGE)
        + _frame(r.VIEW_MESSAGE_BY_ID),
        heartbeat
        + _frame(r.LOCK_BATCH_MQ)
        + _frame(r.UNREGISTER_CLIENT)
        + _frame(r.GET_CONSUMER_LIST_BY_GROUP),
        _frame(r.REGISTER_BROKER) + _frame(r.GET_ROUTEINFO_BY_TOPIC) + _frame(r.UNREGISTER_BROKER),
        _frame(r.PUT_KV_CONFIG) + _frame(r.GET_KV_CONFIG) + _frame(r.GET_KVLIST_BY_NAMESPACE),
    ]


_REQUESTS: Final = [*_sequences(), *_single_requests()]
_HTTP: Final = [
    b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /ready?a=b&c=%20 HTTP/1.0\r\n\r\n",
    b"GET /lag/billing/orders HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody",
    b"GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    bytes.fromhex("160301020001"),  # the first bytes of TLS
]


def _server(
    name: str,
    corpus: list[bytes],
    run: Callable[[Random, bytes], object],
    change: Callable[[Random, bytes, Sequence[bytes]], bytes],
) -> Target:
    return Target(name, corpus, run, change, cost=20, takes_long=False, is_twin=False)


TARGETS: Final = [
    _server("broker", _REQUESTS, run_broker, mutate_frames),
    _server("name-server", _REQUESTS, run_name_server, mutate_frames),
    _server("ha", [encode_report(0), encode_report(0) * 3, encode_report(2**40)], run_ha, mutate),
    _server("http", _HTTP, run_http, mutate),
]
