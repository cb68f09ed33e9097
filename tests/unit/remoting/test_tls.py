"""TLS between the calling side and a server that enforces it, on both loops."""

from __future__ import annotations

import asyncio
import pickle
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import PASSWORD, Authority, Pair
from tests.unit.remoting.line import ECHO, ECHO_REQUEST, EchoHeader
from tests.unit.remoting.test_client import Far, call
from tests.waits import WAIT_S

from cometmq.client.access import access_of
from cometmq.errors import ConfigError, ConnectError, IllegalArgumentError, RemotingError
from cometmq.protocol.command import Request, encode_answer, request
from cometmq.remoting.client import RemotingClient, split_address
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.server import RemotingServer
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.tls.config import TlsConfig
from cometmq.tls.contexts import Tls
from cometmq.tls.server import ServerTls


class Files:
    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "ours")
        self.ca_file = str(self.authority.certificate)
        self.server = self.authority.sign("server", "IP:127.0.0.1")
        self.elsewhere = self.authority.sign("elsewhere", "DNS:elsewhere.example")
        self.client = self.authority.sign("client")
        self.locked = self.authority.encrypted(self.client)
        self.theirs = str(Authority(directory / "theirs").certificate)

    def options(self, own: Pair | None = None) -> dict[str, Any]:
        options: dict[str, Any] = {"ca_file": self.ca_file}
        if own is not None:
            options |= {"cert_file": str(own.certificate), "key_file": str(own.key)}
        return options


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def server(
    files: Files, own: Pair, *, asks_for_own: bool = False, silent_s: float = WAIT_S
) -> AsyncIterator[str]:
    """Run a server that answers with the body's length as remark, and with the body; yield its
    address.
    """
    config = TlsConfig(
        tls_server_mode="enforcing",
        tls_server_cert_path=own.certificate,
        tls_server_key_path=own.key,
        tls_server_trust_cert_path=Path(files.ca_file) if asks_for_own else None,
        tls_server_need_client_auth="require" if asks_for_own else "none",
    )
    served = ServerTls(config, SYSTEM_CLOCK)
    await served.load()

    def serve(connection: Connection, asked: Request[EchoHeader]) -> None:
        size = len(asked.body)
        head = encode_answer(asked.opaque, b"", body_length=size, remark=b"%d" % size)
        # As the records of a pull leave.
        connection.reply_encoded(asked, head, [memoryview(asked.body)])

    handlers = Handlers()
    handlers.register(ECHO_REQUEST, serve)
    listening = RemotingServer("127.0.0.1", 0, handlers, tls=served, silent_timeout_s=silent_s)
    await listening.start()
    try:
        yield f"127.0.0.1:{listening.port}"
    finally:
        async with asyncio.timeout(WAIT_S):
            await listening.close()


@asynccontextmanager
async def client(tls: Tls | None) -> AsyncIterator[RemotingClient]:
    calling = RemotingClient(tls=tls, connect_timeout_s=WAIT_S)
    try:
        yield calling
    finally:
        async with asyncio.timeout(WAIT_S):
            await calling.close()


async def test_calls_and_answers_of_any_size_go_through(files: Files) -> None:
    tls = Tls(**files.options())
    async with server(files, files.server) as address, client(tls) as calling:
        sizes = [1, 1000, 16_384, 16_385, 3_000_000]
        answers = await asyncio.gather(
            *(
                calling.call(address, request(ECHO, EchoHeader(number=1), b"x" * size), WAIT_S)
                for size in sizes
            )
        )
        assert [answer.remark for answer in answers] == list(map(str, sizes))
        assert [len(answer.body) for answer in answers] == sizes


async def test_a_peer_that_never_begins_the_handshake_is_closed(files: Files) -> None:
    async with server(files, files.server, silent_s=0.2) as address:
        host, port = split_address(address)
        reader, writer = await asyncio.open_connection(host, port)
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        writer.close()


async def test_a_peer_without_tls_is_closed_and_harms_nobody(files: Files) -> None:
    async with server(files, files.server) as address, client(Tls(**files.options())) as calling:
        async with client(None) as plain:
            with pytest.raises(RemotingError, match="it may require TLS, or not accept it"):
                await plain.call(address, call(), WAIT_S)
        assert (await calling.call(address, call(), WAIT_S)).code == 0


async def test_a_server_that_asks_for_a_certificate_gets_it(files: Files) -> None:
    async with server(files, files.server, asks_for_own=True) as address:
        locked = Tls(**files.options(files.locked), key_password=PASSWORD)
        for tls in (Tls(**files.options(files.client)), locked):
            async with client(tls) as calling:
                assert (await calling.call(address, call(), WAIT_S)).code == 0
        async with client(Tls(**files.options())) as calling:
            with pytest.raises(RemotingError, match=r"closed before the answer came|handshake"):
                await calling.call(address, call(), WAIT_S)


async def test_a_certificate_that_nobody_vouches_for_is_refused(files: Files) -> None:
    async with server(files, files.server) as address:
        for tls in (Tls(ca_file=files.theirs), Tls()):
            async with client(tls) as calling:
                with pytest.raises(
                    ConnectError, match=r"is refused: .*; pass Tls\(ca_file="
                ) as got:
                    await calling.call(address, call(), WAIT_S)
                assert isinstance(got.value.__cause__, ssl.SSLCertVerificationError)
        async with client(Tls(verify=False)) as calling:
            assert (await calling.call(address, call(), WAIT_S)).code == 0


async def test_a_certificate_of_another_host_is_refused_unless_names_do_not_matter(
    files: Files,
) -> None:
    async with server(files, files.elsewhere) as address:
        async with client(Tls(**files.options())) as calling:
            with pytest.raises(ConnectError, match=r"pass Tls\(check_hostname=False\)"):
                await calling.call(address, call(), WAIT_S)
        async with client(Tls(**files.options(), check_hostname=False)) as calling:
            assert (await calling.call(address, call(), WAIT_S)).code == 0


async def test_a_server_without_tls_is_named_as_a_possible_cause(files: Files) -> None:
    far = Far()
    await far.start()
    try:
        async with client(Tls(**files.options())) as calling:
            with pytest.raises(ConnectError, match=f"no connection to {far.address}: .*TLS"):
                await calling.call(far.address, call(), WAIT_S)
    finally:
        await far.close()


async def test_a_server_that_wants_tls_is_named_as_a_possible_cause(files: Files) -> None:
    async with server(files, files.server) as address, client(None) as calling:
        with pytest.raises(RemotingError, match=r"has never answered.* may require TLS"):
            await calling.call(address, call(), WAIT_S)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"ca_file": "/nowhere/ca.pem"}, "ca_file of Tls is /nowhere/ca.pem.* No such file"),
        ({"cert_file": "/nowhere/own.pem"}, "cert_file of Tls is /nowhere/own.pem"),
        ({"ca_file": __file__}, f"ca_file of Tls is {__file__}, which cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_named(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        Tls(**options).context()


def test_an_encrypted_key_is_opened_by_its_password_only(files: Files) -> None:
    options = files.options(files.locked)
    Tls(**options, key_password=PASSWORD).context()
    with pytest.raises(ConfigError, match="is encrypted; give key_password"):
        Tls(**options).context()
    with pytest.raises(ConfigError, match="cannot be used") as error:
        Tls(**options, key_password="not-the-one").context()
    assert "not-the-one" not in str(error.value)
    other = Tls(ca_file=files.ca_file, cert_file=str(files.server.certificate),
                key_file=str(files.client.key))  # fmt: skip
    with pytest.raises(ConfigError, match="key values mismatch"):
        other.context()


def test_the_password_of_a_key_stays_where_it_is() -> None:
    tls = Tls(cert_file="own.pem", key_password=PASSWORD)
    assert PASSWORD not in repr(tls)
    with pytest.raises(TypeError, match="create it in the process that uses it"):
        pickle.dumps(tls)
    plain = Tls("ca.pem", "own.pem", "own.key", check_hostname=False)
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(IllegalArgumentError, match="private key without its certificate"):
        Tls(key_file="own.key")
    with pytest.raises(IllegalArgumentError, match=r"ca_file is ca.pem, but verify is False"):
        Tls(ca_file="ca.pem", verify=False)
    with pytest.raises(IllegalArgumentError, match="tls is 'yes'; pass True or Tls"):
        access_of(None, "yes")
    assert access_of(None, True).tls == Tls()
    assert access_of(None, False).tls is None


# Names and defaults of TlsSystemConfig, TlsHelper.
JAVAS = {
    "": Tls(verify=False),
    "tls.client.trustCertPath=ca.pem\ntls.client.authServer=true": Tls(verify=False),
    "tls.test.mode.enable=false": Tls(verify=False, check_hostname=False),
    "tls.test.mode.enable=false\ntls.client.authServer=true\ntls.client.trustCertPath=ca.pem": Tls(
        ca_file="ca.pem", check_hostname=False
    ),
    "tls.test.mode.enable=false\ntls.client.trustCertPath=ca.pem\ntls.client.certPath=own.pem\n"
    "tls.client.keyPath=own.key\ntls.client.keyPassword=pass": Tls(
        None, "own.pem", "own.key", "pass", verify=False, check_hostname=False
    ),
}


@pytest.mark.parametrize("text", JAVAS)
def test_the_file_of_a_java_client_means_the_same_here(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(text)
    assert Tls.from_properties(path) == JAVAS[text]


def test_a_missing_file_of_a_java_client_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.properties"):
        Tls.from_properties(tmp_path / "tls.properties")
