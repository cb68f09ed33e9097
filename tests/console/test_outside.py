"""A console that other machines reach: by TLS, behind a proxy, with accounts that change."""

# ruff: noqa: RUF001 - Chinese has a punctuation of its own

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.certificates import Authority, Pair, client_hello
from tests.console.running import Served, Visitor, running_console
from tests.waits import CLOCK, WAIT_S, eventually

from cometmq.console import state
from cometmq.console.users.accounts import hashed, load_accounts
from cometmq.console.web import certificate, connections, encrypted, guard
from cometmq.errors import ConfigError
from cometmq.runtime.sockets.address_list import AddressList
from cometmq.testing import Cluster

TRUSTED = AddressList("trusted_proxies", "127.0.0.1,10.0.0.0/8")
PASSWORD = "a long password"
DAMAGED = "the new certificate cannot be used; the last one stays"


# TLS


@pytest.fixture(scope="module")
def encrypting(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("encrypted")
    pair = Authority(root / "tls").sign("console", "IP:127.0.0.1")
    with running_console(
        cluster.namesrv, root, certificate=pair.certificate, certificate_key=pair.key
    ) as served:
        yield served


def asked(served: Served, path: str = "/healthz") -> int:
    """Ask by TLS; return the status, 0 if the console ends the connection."""
    return _answer_by_tls(served, path)[0]


def reported(served: Served, path: str) -> str:
    """Ask by TLS; return what the answer says, "" if the console ends the connection."""
    return _answer_by_tls(served, path)[1]


def _answer_by_tls(served: Served, path: str) -> tuple[int, str]:
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection(
        "127.0.0.1", served.port, context=context, timeout=WAIT_S
    )
    with closing(connection):
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (ConnectionError, ssl.SSLError):
            return 0, ""


def connected(served: Served) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", served.port), WAIT_S)
    sock.settimeout(WAIT_S)
    return sock


def is_kept(sock: socket.socket) -> bool:
    """Whether the console has not closed a connection that said nothing."""
    sock.setblocking(False)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        sock.settimeout(WAIT_S)


def filled(stack: ExitStack, served: Served, count: int) -> list[socket.socket]:
    """Hold so many silent connections, the oldest first, that there is no room for another one.

    Connections of the test before may still count for a moment: who was refused for them comes again.
    """
    silent: list[socket.socket] = []

    def is_full() -> bool:
        silent[:] = [sock for sock in silent if is_kept(sock)]
        while len(silent) < count:
            silent.append(stack.enter_context(connected(served)))
        return asked(served) == 0 and all(is_kept(sock) for sock in silent)

    eventually(is_full)
    return silent


def test_pages_are_served_by_tls(encrypting: Served) -> None:
    assert asked(encrypting) == 200
    assert asked(encrypting, "/login") == 200


def test_who_calls_a_tls_port_by_http_is_told(encrypting: Served) -> None:
    with connected(encrypting) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        assert answer.status == 400
        assert answer.read().decode().splitlines() == [
            "The console speaks TLS at this port: call it by https://.",
            "控制台在此端口使用 TLS：请以 https:// 访问。",
        ]


def test_what_connects_and_shakes_no_hands_is_counted_and_makes_room(
    encrypting: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections before their handshake were in no limit: a thousand of them cost nothing."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    with ExitStack() as stack:
        monkeypatch.setattr(encrypted, "_SILENT_AT_LEAST_S", 3600.0)
        silent = filled(stack, encrypting, 3)
        monkeypatch.setattr(encrypted, "_SILENT_AT_LEAST_S", 0.0)
        # The one that came first goes.
        assert asked(encrypting) == 200
        assert silent[0].recv(1) == b""
    eventually(lambda: asked(encrypting) == 200)


def test_one_address_has_so_many_handshakes_and_connections(
    encrypting: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address with too many connections of its own had the oldest waiting one of all addresses
    closed.
    """
    monkeypatch.setattr(connections, "MAX_OF_ADDRESS", 2)
    monkeypatch.setattr(encrypted, "_SILENT_AT_LEAST_S", 0.0)
    with ExitStack() as stack:
        silent = filled(stack, encrypting, 2)
        assert all(is_kept(sock) for sock in silent)
    eventually(lambda: asked(encrypting) == 200)


def test_a_flood_of_handshakes_is_rationed_and_others_are_served(encrypting: Served) -> None:
    """Each ClientHello costs a signature: they wait for their turn, and addresses take turns."""
    hello = client_hello()

    def is_served() -> bool:
        with ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(connected(encrypting)).sendall(hello)
            return asked(encrypting) == 200

    # Again: a machine that stands still for HANDSHAKE_S ends the handshake of whoever asks, too.
    eventually(is_served, passing=(TimeoutError,))


@pytest.mark.parametrize(
    ("limit", "values"),
    [
        ("MAX_TLS_HANDSHAKES", {"MAX_TLS_HANDSHAKES": 4}),
        ("MAX_TLS_HANDSHAKES_PER_SECOND", {"MAX_TLS_HANDSHAKES_PER_SECOND": 5}),
        ("HANDSHAKE_S", {"HANDSHAKE_S": 0.5}),
    ],
)
def test_the_limits_of_handshakes_are_counted(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    values: Mapping[str, float],
) -> None:
    for name, value in values.items():
        monkeypatch.setattr(encrypted, name, value)
    pair = Authority(tmp_path / "tls").sign("console", "IP:127.0.0.1")
    hello = client_hello()
    pattern = re.compile(rf'limit="{limit}"}} ([1-9][0-9]*)$', re.MULTILINE)
    with running_console(
        cluster.namesrv, tmp_path, certificate=pair.certificate, certificate_key=pair.key
    ) as served:

        def is_counted() -> bool:
            # Again and again: on a busy machine a dozen may not come within a second.
            with ExitStack() as stack:
                for _ in range(12):
                    stack.enter_context(connected(served)).sendall(hello)
                stack.enter_context(connected(served))
                text = reported(served, "/metrics")
                if limit == "HANDSHAKE_S" and not pattern.search(text):
                    CLOCK.sleep(0.5)
                    text = reported(served, "/metrics")
                return pattern.search(text) is not None

        eventually(is_counted, wait_s=60)


def test_a_new_certificate_is_served_without_a_restart(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(certificate, "LOOK_S", 0.05)
    authority = Authority(tmp_path / "tls")
    first, second = (authority.sign(name, "IP:127.0.0.1") for name in ("first", "second"))
    put = tmp_path / "served.pem", tmp_path / "served.key"

    def serve(pair: Pair) -> None:
        for path, source in zip(put, (pair.certificate, pair.key), strict=True):
            written = path.with_suffix(".new")
            written.write_bytes(source.read_bytes())
            written.replace(path)

    serve(first)
    with running_console(
        cluster.namesrv, tmp_path, certificate=put[0], certificate_key=put[1]
    ) as served:
        with served_tls(served, authority) as before:
            assert name_of(before) == "first"
            put[1].write_text("no key")
            eventually(lambda: DAMAGED in caplog.text)
            with served_tls(served, authority) as sock:
                assert name_of(sock) == "first"
            serve(second)

            def is_new() -> bool:
                with served_tls(served, authority) as sock:
                    return name_of(sock) == "second"

            eventually(is_new)
            # It was open before, and goes on.
            before.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in before.recv(4096)
        assert caplog.text.count(DAMAGED) == 1


def served_tls(served: Served, authority: Authority) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=authority.certificate)
    return context.wrap_socket(connected(served), server_hostname="127.0.0.1")


def name_of(sock: ssl.SSLSocket) -> str:
    reported: Any = sock.getpeercert()
    [[(_, name)]] = reported["subject"]
    return str(name)


@pytest.mark.parametrize("wrong", ["no certificate", "another's key", "encrypted", "missing"])
def test_a_certificate_that_cannot_be_used_is_told_at_the_start(tmp_path: Path, wrong: str) -> None:
    authority = Authority(tmp_path / "tls")
    pair = authority.sign("console", "IP:127.0.0.1")
    says = {"no certificate": "cannot be used", "another's key": "not that of the certificate"}
    if wrong == "no certificate":
        pair.certificate.write_text("x")
    elif wrong == "another's key":
        pair = Pair(pair.certificate, authority.sign("other").key)
    elif wrong == "encrypted":
        pair = authority.encrypted(pair)
    else:
        pair.key.unlink()
    says |= {"encrypted": "is encrypted: give one that is not", "missing": "No such file"}
    with (
        pytest.raises(ConfigError, match=says[wrong]),
        running_console(
            "127.0.0.1:1", tmp_path, certificate=pair.certificate, certificate_key=pair.key
        ),
    ):
        pass


# Limits of connections


def test_too_many_connections_are_told_in_each_language(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_OF_ADDRESS", 0)
    english, chinese = Visitor(served, None).get("/healthz").html.splitlines()
    assert (
        "0 connections of 127.0.0.1 are open, the limit MAX_OF_ADDRESS is 0; close some" in english
    )
    assert chinese.startswith(
        "控制台拒绝此连接：127.0.0.1 已打开 0 个连接，上限 MAX_OF_ADDRESS 为 0；请关闭一些"
    )
    monkeypatch.undo()
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 0)
    english, chinese = Visitor(served, None).get("/healthz").html.splitlines()
    assert "0 connections are open, the limit MAX_CONNECTIONS is 0; close some" in english
    assert chinese.startswith(
        "控制台拒绝此连接：已打开 0 个连接，上限 MAX_CONNECTIONS 为 0；请关闭一些"
    )


def test_few_open_files_are_told_with_the_remedy(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "descriptors_for_connections", lambda: (0, 64))
    answer = Visitor(served, None).get("/healthz")
    assert answer.status == 503
    assert "64 files may be open at once (RLIMIT_NOFILE)" in answer.html
    assert "ulimit -n" in answer.html
    assert "最多可同时打开 64 个文件（RLIMIT_NOFILE），其中保留 64 个；请提高该限制" in answer.html


# Proxies


@pytest.fixture(scope="module")
def behind(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A console whose proxy is on this machine."""
    root = tmp_path_factory.mktemp("behind")
    with running_console(cluster.namesrv, root, trusted_proxies=TRUSTED) as served:
        yield served


def addresses(served: Served) -> list[str]:
    lines = (served.root / "audit.jsonl").read_text().splitlines()
    return [json.loads(line)["address"] for line in lines]


def tried(served: Served, headers: Mapping[str, str], password: str = "wrong") -> Any:
    return Visitor(served, None).send(
        "POST", "/login", {"name": "reader", "password": password}, headers
    )


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("203.0.113.7", "203.0.113.7"),
        # What stands before the proxy's own entry was written by the client.
        ("8.8.8.8, 203.0.113.8", "203.0.113.8"),
        ("203.0.113.9, 10.1.2.3", "203.0.113.9"),
        ("[2001:db8::7]:443", "2001:db8::7"),
        ("203.0.113.10:50000", "203.0.113.10"),
        ("nonsense", "127.0.0.1"),
        ("203.0.113.11, nonsense, 10.1.2.4", "10.1.2.4"),
        ("<script>", "127.0.0.1"),
    ],
)
def test_the_log_has_the_client_that_a_trusted_proxy_tells(
    behind: Served, forwarded: str, address: str
) -> None:
    assert tried(behind, {"X-Forwarded-For": forwarded}, behind.passwords["reader"]).status == 303
    assert addresses(behind)[-1] == address


def test_nobody_else_tells_where_a_request_comes_from(served: Served) -> None:
    headers = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
    answer = tried(served, headers, served.passwords["reader"])
    assert answer.status == 303
    assert addresses(served)[-1] == "127.0.0.1"
    assert "secure" not in answer.headers["set-cookie"].lower()


def test_a_cookie_that_came_by_tls_to_the_proxy_stays_on_tls(behind: Served) -> None:
    headers = {"X-Forwarded-For": "203.0.113.20", "X-Forwarded-Proto": "https"}
    answer = tried(behind, headers, behind.passwords["reader"])
    assert "secure" in answer.headers["set-cookie"].lower()
    headers["X-Forwarded-Proto"] = "http"
    answer = tried(behind, headers, behind.passwords["reader"])
    assert "secure" not in answer.headers["set-cookie"].lower()


def test_who_guesses_behind_a_proxy_slows_down_nobody_else(behind: Served) -> None:
    """All people behind a proxy had one address, and one of them locked out the others."""
    guesser, other = {"X-Forwarded-For": "203.0.113.30"}, {"X-Forwarded-For": "203.0.113.31"}
    statuses = [tried(behind, guesser).status for _ in range(7)]
    assert statuses[-1] == 429
    assert tried(behind, other, behind.passwords["reader"]).status == 303


def test_a_client_behind_a_proxy_has_so_many_requests(
    behind: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MAX_OF_ADDRESS", 2)
    monkeypatch.setattr(connections, "MAX_OF_ADDRESS", 1)  # it does not bound the proxy
    reader = Visitor(behind, "reader")
    cookies = "; ".join(f"{name}={value}" for name, value in reader.cookies.items())
    request = (
        "GET /events HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 203.0.113.40\r\n"
        f"Cookie: {cookies}\r\n\r\n"
    )
    with ExitStack() as stack:
        for _ in range(2):
            sock = stack.enter_context(connected(behind))
            sock.sendall(request.encode())
            assert b" 200 " in sock.recv(4096)
        refused = reader.send("GET", "/", headers={"X-Forwarded-For": "203.0.113.40"})
        assert refused.status == 429
        assert (
            "2 requests of 203.0.113.40 are under way, the limit MAX_OF_ADDRESS is 2"
            in refused.html
        )
        assert reader.send("GET", "/", headers={"X-Forwarded-For": "203.0.113.41"}).status == 200


def test_figures_are_for_the_own_machine_and_whom_an_option_names(
    cluster: Cluster, tmp_path: Path
) -> None:
    with running_console(
        cluster.namesrv,
        tmp_path,
        trusted_proxies=TRUSTED,
        metrics_from=AddressList("--metrics-from", "203.0.113.40"),
    ) as served:
        stranger = Visitor(served, None)

        def asked_from(visitor: Visitor, address: str) -> int:
            return visitor.send("GET", "/metrics", headers={"X-Forwarded-For": address}).status

        assert stranger.get("/metrics").status == 200
        assert asked_from(stranger, "203.0.113.40") == 200
        refused = stranger.send("GET", "/metrics", headers={"X-Forwarded-For": "203.0.113.41"})
        assert (refused.status, "--metrics-from" in refused.text) == (403, True)
        assert asked_from(Visitor(served, "reader"), "203.0.113.41") == 200


# Accounts that change


def accounts_file(path: Path, **roles: str) -> Path:
    stored = hashed(PASSWORD)
    entries = [{"name": name, "role": role, "password": stored} for name, role in roles.items()]
    made = path.with_suffix(".new")
    made.write_text(json.dumps(entries))
    made.chmod(0o600)
    made.replace(path)
    return path


def test_accounts_are_read_again_and_end_the_sessions_of_who_is_gone(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who was taken out of the file kept a session, and could log in until a restart."""
    monkeypatch.setattr(state, "ACCOUNTS_LOOK_S", 0.05)
    file = accounts_file(tmp_path / "accounts.json", ada="operator", ben="operator", eve="reader")
    with running_console(
        cluster.namesrv, tmp_path / "console", accounts=load_accounts(file), accounts_file=file
    ) as served:
        visitors = {name: Visitor(served, None) for name in ("ada", "ben", "eve")}
        assert "printed its passwords" not in visitors["ada"].get("/login").text
        for name, visitor in visitors.items():
            assert visitor.log_in(name, PASSWORD).status == 303
        file.write_text("[")
        # A file that is broken changes nothing, and what follows it does.
        assert visitors["ben"].get("/audit").status == 200
        accounts_file(file, eve="operator", zoe="reader")
        for name in ("ada", "ben", "eve"):
            eventually(lambda name=name: visitors[name].get("/audit").status == 303)  # type: ignore[misc]  # mypy knows no type of it
        assert visitors["ben"].log_in("ben", PASSWORD).status == 401
        assert visitors["ben"].log_in("zoe", PASSWORD).status == 303
        assert visitors["eve"].log_in("eve", PASSWORD).status == 303
        assert "eve (operator)" in visitors["eve"].get("/").text


def test_an_action_whose_form_comes_slowly_is_not_done_once_its_account_is_gone(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session was looked up when the head of the request came, up to 30 s before its end."""
    monkeypatch.setattr(state, "ACCOUNTS_LOOK_S", 0.05)
    file = accounts_file(tmp_path / "accounts.json", ada="operator", ben="operator")
    with running_console(
        cluster.namesrv, tmp_path / "console", accounts=load_accounts(file), accounts_file=file
    ) as served:
        ada = Visitor(served, None)
        assert ada.log_in("ada", PASSWORD).status == 303
        form = urlencode(
            {"csrf": ada.token(), "name": "late", "kind": "avro", "text": '"string"'}
        ).encode()
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=WAIT_S)
        connection.putrequest("POST", "/schemas/give")
        for name, value in {
            "content-type": "application/x-www-form-urlencoded",
            "content-length": str(len(form)),
            "cookie": "; ".join(f"{name}={value}" for name, value in ada.cookies.items()),
        }.items():
            connection.putheader(name, value)
        connection.endheaders(form[:-1])
        accounts_file(file, ben="operator")
        eventually(lambda: ada.get("/audit").status == 303)
        connection.send(form[-1:])
        answer = connection.getresponse()
        assert answer.status == 401
        assert b"Your session has ended" in answer.read()
        connection.close()
        log = (tmp_path / "console" / "audit.jsonl").read_text()
        assert "late" not in log
        assert not (tmp_path / "console" / "schemas.json").exists()
