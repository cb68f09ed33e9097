"""Test the proxy's port: plain text and TLS, certificates that change, limits of connections, slow peers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import shutil
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.certificates import Authority, client_hello
from tests.integration.grpc_client import GrpcClient
from tests.integration.routes import until_routed
from tests.waits import WAIT_S, until

from cometmq.aio import AdminClient
from cometmq.errors import ConfigError
from cometmq.metrics.limit_hits import LimitHits
from cometmq.proxy.calls import MESSAGING
from cometmq.proxy.configuration import front_config
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.configuration.front_config import FrontConfig
from cometmq.proxy.port import front as front_module
from cometmq.proxy.port.front import Front
from cometmq.proxy.server import Proxy
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.tasks import TaskOwner
from cometmq.testing import Cluster
from cometmq.tls.server import ServerTls

pytestmark = pytest.mark.real_time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


class Certificates:
    """Holds the files of a server, and the authority that signed them."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "authority")
        self.certificate, self.key = directory / "server.pem", directory / "server.key"
        self.renew("first")

    @property
    def trusted(self) -> bytes:
        return self.authority.certificate.read_bytes()

    def renew(self, name: str) -> bytes:
        """Put a new certificate and its key in place, and return it in DER format."""
        pair = self.authority.sign(name, "DNS:localhost", "IP:127.0.0.1")
        shutil.copy(pair.key, self.key)
        shutil.copy(pair.certificate, self.certificate)
        return ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())

    def config(self, mode: str = "permissive", **more: Any) -> FrontConfig:
        return FrontConfig(
            tls_server_mode=mode,
            tls_server_cert_path=self.certificate,
            tls_server_key_path=self.key,
            **more,
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@asynccontextmanager
async def serving(cluster: Cluster, front: FrontConfig | None = None) -> AsyncIterator[Proxy]:
    config = ProxyConfig([str(cluster.namesrv)], port=0, drain_s=0.2, front=front or FrontConfig())
    proxy = Proxy(config)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


def client_context(certificates: Certificates, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.authority.certificate))
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


async def shaken(proxy: Proxy, context: ssl.SSLContext) -> tuple[bytes | None, str | None]:
    """Shake hands; return the server's certificate and the protocol that was agreed."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", proxy.port, ssl=context, server_hostname="localhost"
    )
    tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
    found = tls.getpeercert(binary_form=True), tls.selected_alpn_protocol()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return found


async def test_plain_and_tls_share_the_port(cluster: Cluster, certificates: Certificates) -> None:
    async with serving(cluster, certificates.config()) as proxy:
        async with GrpcClient(f"127.0.0.1:{proxy.port}") as plain:
            assert await plain.route() == wire.TOPIC_NOT_FOUND
        async with GrpcClient(f"localhost:{proxy.port}", certificates.trusted) as encrypted:
            assert await encrypted.route() == wire.TOPIC_NOT_FOUND
            body = b"x" * 4_000_000
            message = {
                "topic": {"name": "orders"},
                "body": body,
                "system_properties": {"message_id": "big"},
            }
            async with AdminClient(namesrv=cluster.namesrv) as admin:
                await admin.topics.create("orders", cluster="DefaultCluster")
            await until_routed(cluster, "orders", "broker-a")
            answer = await encrypted.call("SendMessage", messages=[message])
            assert answer.status.code == wire.OK, answer
        _, agreed = await shaken(proxy, client_context(certificates, "http/1.1", "h2"))
        assert agreed == "h2"


async def test_a_client_that_does_not_trust_the_certificate_is_not_served(
    cluster: Cluster, certificates: Certificates, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other").certificate.read_bytes()
    async with serving(cluster, certificates.config()) as proxy:
        async with GrpcClient(f"localhost:{proxy.port}", other) as client:
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await client.route(timeout_s=2)
            assert proxy.tls is not None
            outcomes = proxy.tls.handshakes.outcomes
            await until(lambda: outcomes["failed"] > 0)
        assert failure.value.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
        async with GrpcClient(f"localhost:{proxy.port}", certificates.trusted) as client:
            assert await client.route() == wire.TOPIC_NOT_FOUND


async def test_an_enforcing_port_refuses_plain_text(
    cluster: Cluster, certificates: Certificates
) -> None:
    async with serving(cluster, certificates.config("enforcing")) as proxy:
        async with GrpcClient(f"127.0.0.1:{proxy.port}") as plain:
            with pytest.raises(grpc.aio.AioRpcError):
                await plain.route(timeout_s=2)
            assert proxy.tls is not None
            outcomes = proxy.tls.handshakes.outcomes
            await until(lambda: outcomes["plain_refused"] > 0)
        async with GrpcClient(f"localhost:{proxy.port}", certificates.trusted) as encrypted:
            assert await encrypted.route() == wire.TOPIC_NOT_FOUND


async def test_a_port_without_tls_says_so_of_a_client_that_begins_a_handshake(
    cluster: Cluster, certificates: Certificates, log_lines: Any
) -> None:
    async with serving(cluster) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(client_hello())
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        assert any("serves no TLS" in str(line) for line in log_lines)


async def test_new_certificates_are_served_without_a_restart(
    cluster: Cluster, certificates: Certificates
) -> None:
    async with (
        serving(cluster, certificates.config()) as proxy,
        GrpcClient(f"localhost:{proxy.port}", certificates.trusted) as open_before,
    ):
        assert await open_before.route() == wire.TOPIC_NOT_FOUND
        made = certificates.renew("second")
        assert proxy.tls is not None
        await proxy.tls.look()
        served, _ = await shaken(proxy, client_context(certificates, "h2"))
        assert served == made
        # Connections that were open before are still served.
        assert await open_before.route() == wire.TOPIC_NOT_FOUND


async def test_the_own_connections_get_new_certificates_without_a_restart(
    cluster: Cluster, certificates: Certificates
) -> None:
    config = FrontConfig(
        tls_enable=True,
        tls_client_cert_path=certificates.certificate,
        tls_client_key_path=certificates.key,
        tls_client_trust_cert_path=certificates.authority.certificate,
    )
    async with serving(cluster, config) as proxy:
        assert proxy.tls is not None
        next_context = proxy.instance.access.tls
        assert callable(next_context)
        before = next_context()
        assert next_context() is before
        certificates.renew("third")
        await proxy.tls.look()
        assert next_context() is not before


async def test_the_test_mode_serves_a_certificate_that_nobody_has_signed(cluster: Cluster) -> None:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    anybody.set_alpn_protocols(["h2"])
    async with serving(cluster, FrontConfig(tls_test_mode_enable=True)) as proxy:
        _, protocol = await shaken(proxy, anybody)
        assert protocol == "h2"
        async with GrpcClient(f"127.0.0.1:{proxy.port}") as plain:
            assert await plain.route() == wire.TOPIC_NOT_FOUND
        assert proxy.tls is not None
        made = proxy.tls.config.tls_server_cert_path
        assert made is not None
        assert made.exists()
    assert not made.parent.exists()


@pytest.mark.parametrize(
    "header", [b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"]
)
async def test_the_header_of_a_stranger_is_refused_by_its_name(
    cluster: Cluster, header: bytes, log_lines: Any
) -> None:
    async with serving(cluster) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(header + PREFACE)
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), WAIT_S)  # gRPC's server speaks first
        writer.close()
        assert any("HAProxy" in str(line) and "haproxyFrom" in str(line) for line in log_lines)
        await until(lambda: proxy.front.open_count == 0)


FROM_4 = "192.0.2.1:4567"
FROM_6 = "[2001:db8::7]:4567"


def header_2(source: str, port: int = 4567, more: bytes = b"") -> bytes:
    """Return the header of version 2 that names a client."""
    packed = ip_address(source).packed
    family = b"\x11" if len(packed) == 4 else b"\x21"
    rest = packed * 2 + struct.pack(">HH", port, 8081) + more
    return b"\r\n\r\n\0\r\nQUIT\n\x21" + family + struct.pack(">H", len(rest)) + rest


HEADERS = {
    "text": (b"PROXY TCP4 192.0.2.1 192.0.2.2 4567 8081\r\n", FROM_4),
    "text of version 6": (b"PROXY TCP6 2001:db8::7 2001:db8::8 4567 8081\r\n", FROM_6),
    "bytes": (header_2("192.0.2.1"), FROM_4),
    "bytes of version 6": (header_2("2001:db8::7"), FROM_6),
    "bytes with more fields": (header_2("192.0.2.1", more=b"\x02\0\x03abc"), FROM_4),
}


@asynccontextmanager
async def balancer(port: int, header: bytes) -> AsyncIterator[int]:
    """Relay connections to a proxy's port, each behind a header; give the port."""
    relays = TaskOwner("balancer")
    writers: list[asyncio.StreamWriter] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_proxy, to_proxy = await asyncio.open_connection("127.0.0.1", port)
        writers.append(to_proxy)
        # A header may come in pieces.
        for part in (header[:7], header[7:]):
            to_proxy.write(part)
            await to_proxy.drain()
        relays.spawn(pipe(from_proxy, writer), "down")
        await pipe(reader, to_proxy)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        relays.spawn(relay(reader, writer), "up", log_failure=False)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await relays.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", HEADERS)
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
async def test_a_trusted_balancer_names_the_client(
    cluster: Cluster, certificates: Certificates, kind: str, *, encrypted: bool
) -> None:
    header, client_address = HEADERS[kind]
    async with (
        serving(cluster, certificates.config(haproxy_from="127.0.0.0/8")) as proxy,
        balancer(proxy.port, header) as port,
        GrpcClient(f"localhost:{port}", certificates.trusted if encrypted else None) as client,
    ):
        assert await client.route() == wire.TOPIC_NOT_FOUND
        assert {relay.peer for relay in proxy.front._relays.values()} == {client_address}


async def test_calls_know_the_client_behind_a_balancer(cluster: Cluster) -> None:
    message = {
        "topic": {"name": "balanced"},
        "body": b"x",
        "system_properties": {"message_id": "balanced-1"},
    }
    async with (
        AdminClient(namesrv=cluster.namesrv) as admin,
        serving(cluster, FrontConfig(haproxy_from="127.0.0.1")) as proxy,
        balancer(proxy.port, header_2("192.0.2.1")) as port,
        GrpcClient(f"127.0.0.1:{port}") as client,
    ):
        await admin.topics.create("balanced", cluster="DefaultCluster")
        await until_routed(cluster, "balanced", "broker-a")
        answer = await client.call("SendMessage", messages=[message])
        assert answer.status.code == wire.OK
        (found,) = await admin.messages.by_unique_id("balanced", "balanced-1")
        assert found.properties["__BORNHOST"] == FROM_4


async def test_limits_count_the_clients_of_a_balancer(cluster: Cluster) -> None:
    front = FrontConfig(haproxy_from="127.0.0.1", max_connections_per_address=1)
    async with (
        serving(cluster, front) as proxy,
        balancer(proxy.port, header_2("192.0.2.1")) as one,
        balancer(proxy.port, header_2("192.0.2.2")) as two,
        GrpcClient(f"127.0.0.1:{one}") as first,
        GrpcClient(f"127.0.0.1:{two}") as second,
        GrpcClient(f"127.0.0.1:{two}") as third,
    ):
        assert await first.route() == wire.TOPIC_NOT_FOUND
        assert await second.route() == wire.TOPIC_NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError):
            await third.route(timeout_s=1)
        # If this process stands still, the call may end before the proxy sees its connection.
        await until(lambda: proxy.limit_hits.counts["maxConnectionsPerAddress"] > 0)


async def test_a_balancers_own_check_keeps_its_address(cluster: Cluster) -> None:
    local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"
    async with serving(cluster, FrontConfig(haproxy_from="127.0.0.1")) as proxy:
        for header in (local, b"PROXY UNKNOWN\r\n"):
            async with (
                balancer(proxy.port, header) as port,
                GrpcClient(f"127.0.0.1:{port}") as client,
            ):
                assert await client.route() == wire.TOPIC_NOT_FOUND
                ips = {relay.peer_ip for relay in proxy.front._relays.values()}
                assert ips == {"127.0.0.1"}
            await until(lambda: proxy.front.open_count == 0)


@pytest.mark.parametrize(
    "sent",
    [
        PREFACE + EMPTY_SETTINGS,
        b"PROXY TCP4 192.0.2.1 192.0.2.2 4567\r\n" + PREFACE,
        b"PROXY TCP6 192.0.2.1 192.0.2.2 4567 8081\r\n" + PREFACE,
        b"PROXY TCP4 192.0.2.1 192.0.2.2 65536 8081\r\n" + PREFACE,
        b"PROXY TCP4 " + b"1" * 200,
        b"\r\n\r\n\0\r\nQUIT\n\x11\x11\0\x0c" + bytes(12),
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x04" + bytes(4),
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff" + bytes(20),
    ],
    ids=[
        *("no header", "no port", "another version", "no such port", "no end"),
        *("another protocol", "no addresses", "too long"),
    ],
)
async def test_a_balancer_that_names_no_client_is_refused(
    cluster: Cluster, sent: bytes, log_lines: Any
) -> None:
    async with serving(cluster, FrontConfig(haproxy_from="127.0.0.1")) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        assert any("haproxyFrom" in str(line) for line in log_lines)
        assert proxy.front.open_count == 0


async def test_a_balancer_that_sends_no_header_makes_room_and_is_closed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_config, "SILENT_TIMEOUT_S", 0.5)
    async with serving(cluster, FrontConfig(haproxy_from="127.0.0.1", max_connections=1)) as proxy:
        silent = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(2)]
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            writer.close()
        assert proxy.limit_hits.counts["maxConnections"] == 1
        assert proxy.limit_hits.counts["SILENT_TIMEOUT_S"] == 1
        assert proxy.front.open_count == 0


def test_addresses_of_balancers_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match="haproxyFrom=balancer does not fit"):
        FrontConfig(haproxy_from="balancer")


async def test_half_open_handshakes_leave_room_for_whole_ones(
    cluster: Cluster, certificates: Certificates
) -> None:
    async with serving(cluster, certificates.config(tls_handshake_timeout_seconds=2)) as proxy:
        writers = []
        for number in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            # A third says nothing, a third half a hello, a third a whole one and nothing then.
            writer.write(client_hello()[: (0, 40, 100_000)[number % 3]])
            writers.append(writer)
        async with GrpcClient(f"localhost:{proxy.port}", certificates.trusted) as client:

            async def is_served() -> bool:
                # It waits behind others of its address, and may have to come again.
                with contextlib.suppress(grpc.aio.AioRpcError):
                    return await client.route() == wire.TOPIC_NOT_FOUND
                return False

            await until(is_served)
            assert proxy.tls is not None
            outcomes = proxy.tls.handshakes.outcomes
            await until(lambda: outcomes["timed_out"] + outcomes["crowded_out"] >= 100)
            assert await client.route() == wire.TOPIC_NOT_FOUND
        for writer in writers:
            writer.close()
        await until(lambda: proxy.front.open_count == 0)


async def test_connections_beyond_the_limits_are_refused_and_counted(cluster: Cluster) -> None:
    async with serving(cluster, FrontConfig(max_connections_per_address=2)) as proxy:
        await _check_refusal(proxy, "maxConnectionsPerAddress")
    async with serving(cluster, FrontConfig(max_connections=2)) as proxy:
        await _check_refusal(proxy, "maxConnections")


async def _check_refusal(proxy: Proxy, limit: str) -> None:
    target = f"127.0.0.1:{proxy.port}"
    async with GrpcClient(target) as first, GrpcClient(target) as second:
        assert await first.route() == wire.TOPIC_NOT_FOUND
        assert await second.route() == wire.TOPIC_NOT_FOUND
        async with GrpcClient(target) as third:
            with pytest.raises(grpc.aio.AioRpcError):
                await third.route(timeout_s=1)
            # If this process stands still, the call may end before the proxy sees its connection.
            await until(lambda: proxy.limit_hits.counts[limit] > 0)
        assert await first.route() == wire.TOPIC_NOT_FOUND
    await until(lambda: proxy.front.open_count == 0)
    async with GrpcClient(target) as fourth:
        assert await fourth.route() == wire.TOPIC_NOT_FOUND


async def test_a_silent_connection_makes_room(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.proxy.port.front._SILENT_AT_LEAST_S", 0.0)
    async with serving(cluster, FrontConfig(max_connections=1)) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await until(lambda: proxy.front.open_count == 1)
        async with GrpcClient(f"127.0.0.1:{proxy.port}") as client:
            assert await client.route() == wire.TOPIC_NOT_FOUND
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        assert proxy.limit_hits.counts["maxConnections"] == 1
        writer.close()


async def test_connections_that_say_nothing_are_closed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_config, "SILENT_TIMEOUT_S", 0.2)
    async with serving(cluster) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        assert proxy.limit_hits.counts["SILENT_TIMEOUT_S"] == 1
        writer.close()


async def test_the_end_of_what_a_client_sends_ends_its_connection(cluster: Cluster) -> None:
    async with serving(cluster) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(PREFACE + EMPTY_SETTINGS)
        assert await asyncio.wait_for(reader.readexactly(9), WAIT_S)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), WAIT_S)
        await until(lambda: proxy.front.open_count == 0)
        writer.close()


@asynccontextmanager
async def front_before(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ServerTls | None = None,
) -> AsyncIterator[tuple[Front, LimitHits]]:
    """Run a front with `serve` in the place of gRPC's server."""
    hits = LimitHits()
    front = Front(FrontConfig(), tls, hits, longest_request_bytes=1 << 24)
    running: list[tuple[asyncio.Task[None], asyncio.StreamWriter]] = []

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.append((task, writer))
        with contextlib.suppress(asyncio.CancelledError):
            await serve(reader, writer)

    server = await asyncio.start_unix_server(noted, front.address.removeprefix("unix:"))
    await front.bind("127.0.0.1", 0)
    await front.start()
    try:
        yield front, hits
    finally:
        await front.close()
        server.close()
        for task, writer in running:
            task.cancel()
            with contextlib.suppress(AttributeError):  # if the transport is already closed
                writer.transport.abort()
        await asyncio.gather(*(task for task, _ in running), return_exceptions=True)


async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while True:
            writer.write(bytes(65_536))
            await writer.drain()


async def one_that_does_not_read(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    sock.send(b"P")
    return sock


@pytest.mark.parametrize(
    ("limit", "value"), [("UNREAD_TIMEOUT_S", 0.5), ("MAX_UNSENT_BYTES", 1000)]
)
async def test_clients_that_do_not_read_are_closed(
    limit: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_config, limit, value)
    async with front_before(pour) as (front, hits):
        sock = await one_that_does_not_read(front.port)
        await until(lambda: hits.counts.get(limit))
        await until(lambda: front.open_count == 0)
        sock.close()


async def test_a_client_that_begins_requests_and_ends_none_is_closed_while_others_are_served(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_config, "MAX_REQUEST_BYTES", 100_000)
    async with serving(cluster) as proxy, GrpcClient(f"127.0.0.1:{proxy.port}") as other:
        assert await other.route() == wire.TOPIC_NOT_FOUND
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(PREFACE + EMPTY_SETTINGS)
        for number in range(1, 9, 2):
            writer.write(begun_call(number, "SendMessage"))
            # A message of 16 MB, of which 30,000 bytes come.
            part = b"\0" + struct.pack(">I", 16_000_000) + bytes(30_000)
            for begin in range(0, len(part), 16_384):
                writer.write(frame(0, 0, number, part[begin : begin + 16_384]))
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.wait_for(reader.read(65_536), WAIT_S):
                pass
        writer.close()
        assert proxy.limit_hits.counts == {"MAX_REQUEST_BYTES": 1}
        await until(lambda: proxy.front.open_count == 1)
        assert proxy.front.request_bytes == 0
        assert await other.route() == wire.TOPIC_NOT_FOUND


@pytest.mark.parametrize("limit", ["MAX_CANCELS_PER_SECOND", "MAX_EMPTY_FRAMES_PER_SECOND"])
async def test_a_client_that_floods_frames_is_closed_while_others_are_served(
    limit: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy passes on nothing beyond the limit, which holds for all connections of an address together."""
    # The other client sends some frames, too.
    monkeypatch.setattr(front_config, limit, 10)
    ping = frame(6, 0, 0, b"question")
    async with serving(cluster) as proxy, GrpcClient(f"127.0.0.1:{proxy.port}") as other:
        hits = proxy.limit_hits.counts
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(PREFACE + EMPTY_SETTINGS + cancelled_call(1) + cancelled_call(3) + ping)
        await asyncio.wait_for(reader.readuntil(frame(6, 1, 0, b"question")), WAIT_S)
        assert not hits, "some are within the limit"
        for again in range(1, 3):
            if limit == "MAX_CANCELS_PER_SECOND":
                writer.write(b"".join(cancelled_call(number) for number in range(5, 2_005, 2)))
            else:
                writer.write(ping * 1_000)
            with contextlib.suppress(ConnectionResetError):
                while await asyncio.wait_for(reader.read(65_536), WAIT_S):
                    pass
            writer.close()
            assert hits == {limit: again}
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(PREFACE)
        writer.close()
        monkeypatch.setattr(front_config, limit, 10_000)
        assert await other.route() == wire.TOPIC_NOT_FOUND


def cancelled_call(stream: int) -> bytes:
    return begun_call(stream, "QueryRoute") + frame(3, 0, stream, struct.pack(">I", 8))


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def begun_call(stream: int, name: str) -> bytes:
    """Return the headers of a call, as literals without Huffman's code."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/{MESSAGING}/{name}",
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(
        bytes([0, len(key)]) + key.encode() + bytes([len(value)]) + value.encode()
        for key, value in fields.items()
    )
    return frame(1, 4, stream, block)


async def test_a_client_that_does_not_read_is_not_fed() -> None:
    poured = 0

    async def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal poured
        with contextlib.suppress(OSError):
            while True:
                writer.write(bytes(65_536))
                poured += 65_536
                await writer.drain()

    async with front_before(count) as (front, _):
        sock = await one_that_does_not_read(front.port)
        seen = -1
        while poured != seen or not seen:
            seen = poured
            await asyncio.sleep(0.3)
        # The buffers of three sockets, and two reads.
        assert poured < 8 * 1024 * 1024
        sock.close()


async def test_a_server_that_does_not_read_is_not_fed() -> None:
    async def stall(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        await asyncio.Event().wait()

    async with front_before(stall) as (front, _):
        _, writer = await asyncio.open_connection("127.0.0.1", front.port)
        sent = 0
        writer.write(PREFACE)
        with contextlib.suppress(TimeoutError):
            while sent < 64 * 1024 * 1024:
                writer.write(frame(0, 0, 1, bytes(65_527)))
                await asyncio.wait_for(writer.drain(), 1)
                sent += 65_536
        assert sent < 16 * 1024 * 1024
        writer.transport.abort()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_bytes_arrive_whole_in_both_directions(
    encrypted: bool, certificates: Certificates
) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(200_000):
            writer.write(data)
            await writer.drain()
        writer.write(b"end")
        writer.close()

    tls, context = None, None
    if encrypted:
        tls = ServerTls(certificates.config(), SYSTEM_CLOCK, ("h2",))
        await tls.load()
        context = client_context(certificates, "h2")
    sent = random.Random(1).randbytes(20_000_000)
    async with front_before(echo, tls) as (front, _):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", front.port, ssl=context, server_hostname="localhost" if encrypted else None
        )

        async def send() -> None:
            for begin in range(0, len(sent), 77_777):
                writer.write(sent[begin : begin + 77_777])
                await writer.drain()
            if not encrypted:
                writer.write_eof()

        sending = asyncio.create_task(send())
        # TLS has no half-closed connections.
        found = await asyncio.wait_for(reader.readexactly(len(sent)), WAIT_S)
        assert hashlib.sha256(found).digest() == hashlib.sha256(sent).digest()
        await sending
        if not encrypted:
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b"end"
        writer.close()
        await until(lambda: front.open_count == 0)


async def test_what_grpcs_server_wrote_before_it_stopped_reaches_the_client() -> None:
    """The last messages of a proxy that stopped stayed hidden from all consumers for their invisible time."""
    answer = b"the last messages"
    has_stopped = asyncio.Event()

    async def stop_after_an_answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readexactly(1)
        writer.write(answer)
        writer.close()
        has_stopped.set()  # before the front has read anything

    async with front_before(stop_after_an_answer) as (front, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(b"P")
        async with asyncio.timeout(WAIT_S):
            await has_stopped.wait()
            await front.let_answers_leave()
            await front.close()
            assert await reader.read() == answer
        writer.close()


async def test_a_client_that_reads_no_answer_keeps_no_front_from_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(front_module, "_LEAVE_S", 0.05)
    async with front_before(pour) as (front, _):
        sock = await one_that_does_not_read(front.port)
        await until(lambda: front.open_count == 1)
        await asyncio.wait_for(front.let_answers_leave(), WAIT_S)
        await front.close()
        sock.close()


async def test_the_directory_of_the_private_socket_is_for_the_owner_alone_and_goes() -> None:
    async with front_before(pour) as (front, _):
        directory = Path(front.address.removeprefix("unix:")).parent
        assert directory.stat().st_mode & 0o777 == 0o700
    assert not directory.exists()


async def test_calls_know_the_address_of_their_client(cluster: Cluster) -> None:
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.topics.create("born", cluster="DefaultCluster")
        await until_routed(cluster, "born", "broker-a")
        async with serving(cluster) as proxy, GrpcClient(f"127.0.0.1:{proxy.port}") as client:
            message = {
                "topic": {"name": "born"},
                "body": b"x",
                "system_properties": {"message_id": "born-1"},
            }
            answer = await client.call("SendMessage", messages=[message])
            assert answer.status.code == wire.OK
            found = await admin.messages.by_unique_id("born", "born-1")
            peers = {relay.peer for relay in proxy.front._relays.values()}
    assert {each.properties["__BORNHOST"] for each in found} == peers
    assert next(iter(peers)).startswith("127.0.0.1:")


async def test_a_port_that_is_taken_is_named(cluster: Cluster) -> None:
    async with serving(cluster) as proxy:
        other = Proxy(ProxyConfig([str(cluster.namesrv)], port=proxy.port))
        with pytest.raises(ConfigError, match=f"127.0.0.1:{proxy.port}.*another port"):
            await other.start()
        sharing = ProxyConfig([str(cluster.namesrv)], port=0, shares_port=True, drain_s=0.2)
        one = Proxy(sharing)
        await one.start()
        sharing.port = one.port
        two = Proxy(sharing)
        await two.start()
        await two.close()
        await one.close()


async def test_certificates_that_cannot_be_read_are_named(cluster: Cluster, tmp_path: Path) -> None:
    front = FrontConfig(tls_server_cert_path=tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        async with serving(cluster, front):
            pass
