"""A server that serves TLS: by the first byte, to whom it trusts, and not to those who only ask."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.certificates import PASSWORD, Authority, Pair, client_hello
from tests.unit.remoting.line import ECHO_REQUEST, EchoHeader, echo
from tests.unit.remoting.test_client import call
from tests.waits import WAIT_S, until

from cometmq.broker.operation.settings_check import check_settings
from cometmq.errors import ConfigError, RemotingError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import (
    FLAG_ONEWAY,
    RemotingCommand,
    Request,
    encode_answer,
    encode_command,
)
from cometmq.protocol.frame import SerializeType
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handler, Handlers
from cometmq.remoting.protected import ProtectedMode
from cometmq.remoting.server import ConnectionCounts, RemotingServer
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.configuration.config import from_properties
from cometmq.runtime.tasks import TaskOwner
from cometmq.tls.config import TlsConfig, with_tls_file
from cometmq.tls.contexts import Tls
from cometmq.tls.handshakes import MOST_STRANGERS, Handshakes
from cometmq.tls.records import RecordTurns
from cometmq.tls.server import ServerTls, server_tls


class Files:
    def __init__(self, directory: Path) -> None:
        ours = Authority(directory / "ours")
        self.trusted = str(ours.certificate)
        self.server = ours.sign("server", "IP:127.0.0.1", "IP:::1", "DNS:localhost")
        self.other = ours.sign("other", "IP:127.0.0.1")
        self.client = ours.sign("client")
        self.locked = ours.encrypted(self.server)
        self.stranger = Authority(directory / "theirs").sign("stranger")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


class Served:
    def __init__(self, server: RemotingServer, tls: ServerTls, handlers: Handlers) -> None:
        self.server = server
        self.tls = tls
        self.handlers = handlers
        self.address = f"127.0.0.1:{server.port}"

    @property
    def outcomes(self) -> dict[str, int]:
        return self.tls.handshakes.outcomes

    @property
    def hits(self) -> dict[str, int]:
        return self.handlers.limit_hits.counts


def config_of(pair: Pair, **keys: Any) -> TlsConfig:
    return TlsConfig(tls_server_cert_path=pair.certificate, tls_server_key_path=pair.key, **keys)


@asynccontextmanager
async def serving(
    config: TlsConfig, host: str = "127.0.0.1", echo: Handler[Any] | None = None, **options: Any
) -> AsyncIterator[Served]:
    def serve(connection: Connection, asked: Request[EchoHeader]) -> None:
        head = encode_answer(asked.opaque, b"", body_length=len(asked.body))
        connection.reply_encoded(asked, head, [memoryview(asked.body)])

    handlers = Handlers()
    handlers.register(ECHO_REQUEST, echo or serve)
    tls = server_tls(config, SYSTEM_CLOCK)
    assert tls is not None
    await tls.load()
    server = RemotingServer(host, 0, handlers, tls=tls, **options)
    await server.start()
    try:
        yield Served(server, tls, handlers)
    finally:
        async with asyncio.timeout(WAIT_S):
            await server.close()
        assert tls.handshakes.open_count == 0


async def answer_of(address: str, tls: Tls | None) -> int:
    client = RemotingClient(tls=tls, connect_timeout_s=WAIT_S)
    try:
        return (await client.call(address, call(), WAIT_S)).code
    finally:
        async with asyncio.timeout(WAIT_S):
            await client.close()


def shows(files: Files, pair: Pair) -> Tls:
    """Return the settings of a client with a certificate."""
    return Tls(ca_file=files.trusted, cert_file=str(pair.certificate), key_file=str(pair.key))


@asynccontextmanager
async def peers(address: str, count: int, first: bytes) -> AsyncIterator[list[socket.socket]]:
    """Connect so often, and send `first`."""
    host, _, port = address.rpartition(":")
    made = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sock.setblocking(False)
            made.append(sock)
            await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
            if first:
                sock.send(first)
        yield made
    finally:
        for sock in made:
            sock.close()


# -- modes --


async def test_permissive_serves_both_at_one_port(files: Files) -> None:
    async with serving(config_of(files.server)) as served:
        assert await answer_of(served.address, Tls(ca_file=files.trusted)) == 0
        assert await answer_of(served.address, None) == 0
        assert served.outcomes["completed"] == 1


async def test_enforcing_closes_plain_connections_and_counts_them(files: Files) -> None:
    config = config_of(files.server, tls_server_mode="enforcing")
    async with serving(config) as served:
        with pytest.raises(RemotingError, match="may require TLS"):
            await answer_of(served.address, None)
        assert served.outcomes["plain_refused"] == 1
        assert await answer_of(served.address, Tls(ca_file=files.trusted)) == 0


async def test_all_addresses_of_both_families_serve_tls(files: Files) -> None:
    async with serving(config_of(files.server), host="::") as served:
        for host in ("127.0.0.1", "::1"):
            address = f"{host}:{served.server.port}"
            assert await answer_of(address, Tls(ca_file=files.trusted)) == 0


def test_without_a_certificate_nothing_is_served_and_nothing_costs() -> None:
    for mode in ("", "permissive", "disabled"):
        assert server_tls(TlsConfig(tls_server_mode=mode), SYSTEM_CLOCK) is None


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"tls.server.mode": "enforcing"}, "needs a certificate"),
        ({"tls.server.mode": "strict"}, "must be one of disabled, permissive, enforcing"),
        ({"tls.server.keyPath": "/k"}, "has no certificate"),
        (
            {"tls.server.certPath": "/c", "tls.server.need.client.auth": "require"},
            "set tls.server.trustCertPath",
        ),
        (
            {"tls.server.certPath": "/c", "tls.server.authClient": "true"},
            "checks nobody",
        ),
        ({"tls.client.keyPath": "/k"}, "set tls.client.certPath"),
    ],
)
def test_settings_that_promise_more_than_they_do_are_refused(
    keys: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        from_properties(TlsConfig, keys)


def test_the_keys_may_lie_in_javas_file(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.certPath=/of/the/file\ntls.enable=true\n")
    given = with_tls_file({"tls.enable": "false"}, file)
    config = from_properties(TlsConfig, given)
    assert (config.tls_server_cert_path, config.tls_enable) == (Path("/of/the/file"), False)
    assert with_tls_file({"a": "b"}, tmp_path / "none") == {"a": "b"}
    with pytest.raises(ConfigError, match="cannot be read"):
        with_tls_file({"tls.config.file": str(tmp_path / "none")})
    file.write_text("listenPort=1\n")
    with pytest.raises(ConfigError, match="listenPort"):
        with_tls_file({"tls.config.file": str(file)})


def test_a_password_is_not_shown() -> None:
    assert "hidden" not in repr(TlsConfig(tls_server_key_password="hidden"))


# -- certificates --


async def test_a_key_may_be_encrypted(files: Files) -> None:
    config = config_of(files.locked, tls_server_key_password=PASSWORD)
    async with serving(config) as served:
        assert await answer_of(served.address, Tls(ca_file=files.trusted)) == 0
    for password, complaint in ((None, "set tls.server.keyPassword"), ("no", "cannot be used")):
        tls = ServerTls(config_of(files.locked, tls_server_key_password=password), SYSTEM_CLOCK)
        with pytest.raises(ConfigError, match=complaint):
            await tls.load()


async def test_a_client_needs_a_certificate_of_the_right_authority(files: Files) -> None:
    config = config_of(
        files.server,
        tls_server_need_client_auth="require",
        tls_server_trust_cert_path=Path(files.trusted),
    )
    async with serving(config) as served:
        assert await answer_of(served.address, shows(files, files.client)) == 0
        for tls in (Tls(ca_file=files.trusted), shows(files, files.stranger)):
            with pytest.raises(RemotingError):
                await answer_of(served.address, tls)
        await until(lambda: served.outcomes["failed"] == 2)


async def test_optional_certificates_are_checked_where_they_are_given(files: Files) -> None:
    config = config_of(
        files.server,
        tls_server_need_client_auth="optional",
        tls_server_trust_cert_path=Path(files.trusted),
    )
    async with serving(config) as served:
        assert await answer_of(served.address, Tls(ca_file=files.trusted)) == 0
        with pytest.raises(RemotingError):
            await answer_of(served.address, shows(files, files.stranger))


async def test_new_files_are_taken_and_damaged_ones_are_not(files: Files, tmp_path: Path) -> None:
    pair = Pair(tmp_path / "c.pem", tmp_path / "k.pem")

    def put(other: Pair) -> None:
        shutil.copy(other.key, pair.key)
        shutil.copy(other.certificate, pair.certificate)

    async def subject() -> str:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", served.server.port, ssl=ssl.create_default_context(cafile=files.trusted)
        )
        reported = writer.get_extra_info("peercert")
        writer.transport.abort()
        return str(dict(part[0] for part in reported["subject"])["commonName"])

    put(files.server)
    async with serving(config_of(pair)) as served:
        assert await subject() == "server"
        pair.certificate.write_text("half a certificate")
        await served.tls.look()
        assert "cannot be used" in served.tls.fault
        assert await subject() == "server"
        # Half of a pair, as while it is being replaced.
        shutil.copy(files.other.certificate, pair.certificate)
        await served.tls.look()
        assert "not that of the certificate" in served.tls.fault
        assert await subject() == "server"
        put(files.other)
        await served.tls.look()
        assert served.tls.fault == ""
        assert await subject() == "other"


@pytest.mark.parametrize("place", ["certificate", "key", "trusted"])
@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
async def test_what_is_no_file_does_not_end_the_looks(
    files: Files, tmp_path: Path, place: str, kind: str
) -> None:
    good = {
        "certificate": files.server.certificate,
        "key": files.server.key,
        "trusted": Path(files.trusted),
    }
    paths = {name: tmp_path / name for name in good}
    for name, path in paths.items():
        shutil.copy(good[name], path)
    config = TlsConfig(
        tls_server_cert_path=paths["certificate"],
        tls_server_key_path=paths["key"],
        tls_server_trust_cert_path=paths["trusted"],
        tls_server_need_client_auth="require",
        tls_enable=True,
    )
    tls = ServerTls(config, SYSTEM_CLOCK)
    await tls.load()
    path = paths[place]
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    async with asyncio.timeout(WAIT_S):
        await tls.look()
    assert "not a file" in tls.fault
    with pytest.raises(ConfigError, match="not a file"):
        await ServerTls(config, SYSTEM_CLOCK).load()
    path.rmdir() if kind == "directory" else path.unlink()
    shutil.copy(good[place], path)
    await tls.look()
    assert tls.fault == ""


async def test_files_that_could_not_be_used_are_read_until_they_can(
    files: Files, tmp_path: Path
) -> None:
    pair = Pair(tmp_path / "c.pem", tmp_path / "k.pem")
    shutil.copy(files.server.certificate, pair.certificate)
    shutil.copy(files.server.key, pair.key)
    tls = ServerTls(config_of(pair), SYSTEM_CLOCK)
    await tls.load()
    good = pair.key.read_bytes()
    pair.key.write_bytes(bytes(len(good)))
    seen = pair.key.stat()
    await tls.look()
    assert tls.fault != ""
    # As when rights are given, or descriptors are there again: time, size and number stay.
    pair.key.write_bytes(good)
    os.utime(pair.key, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    await tls.look()
    assert tls.fault == ""


async def test_the_files_are_looked_at_again_and_again(files: Files, tmp_path: Path) -> None:
    pair = Pair(tmp_path / "c.pem", files.server.key)
    shutil.copy(files.server.certificate, pair.certificate)
    tls = ServerTls(config_of(pair), SYSTEM_CLOCK)
    await tls.load()
    owner = TaskOwner("test")
    with structlog.testing.capture_logs() as lines:
        tls.start(owner)
        try:
            pair.certificate.touch()
            await until(
                lambda: any(line["event"] == "new certificates are in force" for line in lines)
            )
        finally:
            await owner.close()


async def test_the_end_of_the_certificate_is_known(files: Files, tmp_path: Path) -> None:
    tls = ServerTls(config_of(files.server), SYSTEM_CLOCK)
    await tls.load()
    left_s = tls.expires_in_s
    assert left_s is not None
    assert 86_400 < left_s <= 2 * 86_400


# -- handshakes --


async def test_a_slow_handshake_is_ended_and_harms_nobody(files: Files) -> None:
    config = config_of(files.server)
    async with serving(config) as served:
        handshakes = served.tls.handshakes
        begun = client_hello()
        # The limit holds for the other client as well, and its handshake may take long on a busy machine.
        handshakes.timeout_s = WAIT_S
        async with peers(served.address, 50, begun[:1]) as slow:
            for sock in slow:
                sock.send(begun[1:2])
            await until(lambda: handshakes.open_count == 50)
            assert await answer_of(served.address, Tls(ca_file=files.trusted)) == 0
            assert handshakes.open_count == 50
            handshakes.timeout_s = 0.3
            async with peers(served.address, 50, begun[:1]):
                await until(lambda: served.outcomes["timed_out"] == 50)
            assert handshakes.open_count == 50
        assert served.hits["tlsHandshakeTimeoutSeconds"] == 50


async def test_what_looks_like_tls_and_is_none_is_closed(files: Files) -> None:
    async with serving(config_of(files.server)) as served:
        nonsense = (b"\x16\x07\x07\xff\xff", b"\x16\x03\x01\x00\x05hello")
        async with peers(served.address, 1, nonsense[0]), peers(served.address, 1, nonsense[1]):
            await until(lambda: served.outcomes["failed"] == 2)
        assert await answer_of(served.address, None) == 0


async def test_so_many_handshakes_begin_in_a_second(files: Files) -> None:
    config = config_of(files.server, max_tls_handshakes_per_second=5)
    async with serving(config) as served:
        served.tls.handshakes.timeout_s = 1.0
        async with peers(served.address, 100, client_hello()):
            await until(lambda: served.hits.get("tlsHandshakeTimeoutSeconds", 0) > 80)
            # A burst of two, five more in the second; nobody of them has answered.
            assert served.tls.handshakes.running_count <= 10
        assert served.hits["maxTlsHandshakesPerSecond"] > 80


async def test_a_handshake_that_takes_long_has_the_next_one_wait(files: Files) -> None:
    """As of a client that shows a hundred certificates, whoever signed them."""
    loop = asyncio.get_running_loop()
    async with serving(config_of(files.server)) as served:
        works_s = itertools.count(step=0.02)
        served.tls.handshakes.turns = RecordTurns(lambda: next(works_s))
        trusting = Tls(ca_file=files.trusted)
        began = loop.time()
        for _ in range(4):  # the first two are a burst
            assert await answer_of(served.address, trusting) == 0
        assert loop.time() - began > 0.1


async def test_who_does_not_go_on_makes_room_for_others(files: Files) -> None:
    config = config_of(files.server, max_tls_handshakes=2)
    async with serving(config) as served:
        async with peers(served.address, 2, client_hello()):
            await until(lambda: served.tls.handshakes.running_count == 2)
            assert await answer_of(served.address, Tls(ca_file=files.trusted)) == 0
            assert served.outcomes["crowded_out"] >= 1
        assert served.hits["maxTlsHandshakes"] >= 1


async def test_connections_in_handshake_have_places(files: Files) -> None:
    counts = ConnectionCounts(max_per_address=3)
    async with serving(config_of(files.server), counts=counts) as served:
        async with peers(served.address, 5, client_hello()[:50]):
            await until(lambda: served.hits.get("maxConnectionsPerAddress", 0) == 2)
            assert counts.taken == 3
        await until(lambda: counts.taken == 0)


async def test_a_silent_guest_makes_room_after_a_second(files: Files) -> None:
    counts = ConnectionCounts(max_in_all=2)

    async def is_served() -> bool:
        try:
            return await answer_of(served.address, None) == 0
        except RemotingError:
            return False

    config = config_of(files.server)
    async with serving(config, counts=counts) as served, peers(served.address, 2, b""):
        await until(lambda: counts.taken == 2)
        await until(is_served)


async def test_what_comes_before_tls_is_set_up_is_handed_to_it(files: Files) -> None:
    """Also more than a hello: a handshake that fails has sent so much, and nothing waits for a
    limit.
    """
    async with (
        serving(config_of(files.server)) as served,
        peers(served.address, 1, client_hello() + bytes(100_000)),
    ):
        await until(lambda: served.outcomes["failed"] == 1)
        assert await answer_of(served.address, Tls(ca_file=files.trusted)) == 0


async def test_a_connection_over_tls_may_keep_no_more_in_the_kernel_than_a_plain_one(
    files: Files,
) -> None:
    """To hold the hello back the receive buffer once grew from 128 KiB to 2 MiB, for good."""
    sizes: list[int] = []

    def look(connection: Connection) -> None:
        with socket.socket(fileno=os.dup(connection.descriptor)) as sock:
            sizes.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))

    async with serving(config_of(files.server), on_connect=look) as served:
        assert await answer_of(served.address, None) == 0
        assert await answer_of(served.address, Tls(ca_file=files.trusted)) == 0
    assert sizes[0] == sizes[1]


async def test_addresses_take_turns() -> None:
    began: list[str] = []

    class Guest:
        began_at = 0.0
        closed = False

        def __init__(self, ip: str) -> None:
            self.arrival = self
            self.peer_ip = ip
            self.has_left = False

        def shake_hands(self) -> None:
            began.append(self.peer_ip)
            self.began_at = asyncio.get_running_loop().time()
            if self is not first:
                handshakes.ended(self)  # type: ignore[arg-type]  # it has what is used

        def meets(self, _limit: str) -> None: ...

    handshakes = Handshakes(at_once=1, per_second=1_000_000, timeout_s=1)
    first = Guest("10.0.0.9")
    handshakes.wait(first)  # type: ignore[arg-type]  # the same
    for ip in ["10.0.0.1"] * 20 + ["10.0.0.2", "2001:db8::1", "2001:db8::2"]:
        handshakes.wait(Guest(ip))  # type: ignore[arg-type]  # the same
    assert began == ["10.0.0.9"]
    handshakes.ended(first)  # type: ignore[arg-type]  # the same
    await until(lambda: len(began) == 24)
    # Both addresses of one /64 share their turn.
    assert began[1:6] == ["10.0.0.1", "10.0.0.2", "2001:db8::1", "10.0.0.1", "2001:db8::2"]


class OthersOnly(ProtectedMode):
    """Takes every peer for another machine, and counts them."""

    taken = 0

    def note_refusal(self, peer: str) -> None:
        self.taken += 1
        super().note_refusal(peer)

    def admits(self, peer_ip: str, local_ip: str) -> bool:
        assert (peer_ip, local_ip) == ("127.0.0.1", "127.0.0.1")
        return False


async def test_no_handshake_is_spent_on_a_stranger(files: Files) -> None:
    protection = OthersOnly("this broker", "remedy")
    counts = ConnectionCounts()
    async with serving(config_of(files.server), protection=protection, counts=counts) as served:
        with pytest.raises(RemotingError, match="protectedMode"):
            await answer_of(served.address, Tls(ca_file=files.trusted))
        assert served.outcomes["completed"] == 0
        assert await answer_of(served.address, None) == ResponseCode.NO_PERMISSION
        await until(lambda: counts.taken == 0)


async def test_strangers_that_say_nothing_take_no_place(files: Files) -> None:
    """They connect to a port that serves TLS, and whether they want TLS is never known."""
    protection = OthersOnly("this broker", "remedy")
    counts = ConnectionCounts(max_in_all=2)
    async with (
        serving(config_of(files.server), protection=protection, counts=counts) as served,
        peers(served.address, MOST_STRANGERS + 8, b"") as silent,
    ):
        await until(lambda: protection.taken == 8)
        assert counts.taken == 0
        assert served.tls.handshakes.open_count <= MOST_STRANGERS
        # The first ones made room; who comes now still reads why it is not served.
        await until(lambda: sum(_is_closed(sock) for sock in silent) == 8)
        assert await answer_of(served.address, None) == ResponseCode.NO_PERMISSION


def _is_closed(sock: socket.socket) -> bool:
    try:
        return not sock.recv(1)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


# -- flow --


async def test_a_reader_that_sleeps_is_seen_behind_tls(files: Files) -> None:
    """The transport of a loop hides what waits beneath it."""
    async with serving(config_of(files.server)) as served:
        context = ssl.create_default_context(cafile=files.trusted)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", served.server.port, ssl=context, limit=1024
        )
        asked = call()
        asked.body = b"x" * 1_000_000
        frame = asked_bytes(asked)
        for _ in range(30):
            writer.write(frame)
        holdings = served.server.holdings

        def unsent() -> int:
            holdings.measure()
            return holdings.unsent_bytes

        await until(lambda: unsent() > 2_000_000)
        (connection,) = served.server.connections
        await until(lambda: connection.congested)
        connection.cut("the test ends", limit="maxBytesInFlight")
        await until(lambda: not served.server.connections)
        writer.transport.abort()
        del reader


async def test_one_way_requests_are_served_before_the_farewell_of_tls(files: Files) -> None:
    count = 0

    def serve(_connection: Connection, _: Request[EchoHeader]) -> None:
        nonlocal count
        count += 1

    async with serving(config_of(files.server), echo=serve) as served:
        context = ssl.create_default_context(cafile=files.trusted)
        _, writer = await asyncio.open_connection(
            "127.0.0.1", served.server.port, ssl=context, limit=1024
        )
        writer.write(echo(flag=FLAG_ONEWAY) * 2_000)
        writer.close()
        await until(lambda: served.outcomes["completed"] == 1 and not served.server.open_count)
        assert count == 2_000


@pytest.mark.parametrize("farewell", [True, False])
@pytest.mark.parametrize("asks", [True, False])
async def test_who_leaves_right_behind_the_handshake_is_forgotten(
    files: Files, *, asks: bool, farewell: bool
) -> None:
    """All that ends the connection comes with the last bytes of the handshake, in one read."""
    served_count = 0

    def serve(_connection: Connection, _: Request[EchoHeader]) -> None:
        nonlocal served_count
        served_count += 1

    context = ssl.create_default_context(cafile=files.trusted)
    loop = asyncio.get_running_loop()
    async with serving(config_of(files.server), echo=serve) as served:
        # So many that the last ones come up in a later turn, when their end has been read as well.
        async with peers(served.address, 24, b"") as socks:
            last: list[bytes] = []
            for sock in socks:
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
                while True:
                    try:
                        tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        await loop.sock_sendall(sock, outgoing.read())
                        incoming.write(await loop.sock_recv(sock, 65536))
                if asks:
                    tls.write(echo(flag=FLAG_ONEWAY))
                if farewell:
                    with suppress(ssl.SSLWantReadError):
                        tls.unwrap()
                last.append(outgoing.read())
            for sock, data in zip(socks, last, strict=True):
                sock.send(data)
        await until(lambda: not served.server.open_count and not served.server.connections)
        await until(lambda: not served.tls.handshakes.open_count)
        # Some are reset while they wait for the turn of their handshake.
        assert served_count == (served.outcomes["completed"] if asks else 0)
        assert served.outcomes["completed"] + served.outcomes["failed"] == len(last)


def asked_bytes(command: RemotingCommand) -> bytes:
    return bytes(encode_command(command, SerializeType.JSON))


def test_doctor_names_the_end_of_a_certificate_and_files_that_do_not_fit(files: Files) -> None:
    def reported(key: Path) -> str:
        given = {
            "tls.server.certPath": str(files.server.certificate),
            "tls.server.keyPath": str(key),
        }
        findings, _ = check_settings(given)
        (found,) = [each for each in findings if each.check == "tls.server.certPath"]
        return f"{found.severity} {found.value}"

    assert "the certificate expires in" in reported(files.server.key)
    assert "not that of the certificate" in reported(files.other.key)
