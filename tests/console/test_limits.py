"""The worst that a client can do: large and slow requests, many connections, streams and sessions."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from tests.console.running import Served, Visitor, running_console
from tests.waits import WAIT_S, eventually, until
from uvicorn.protocols.http.h11_impl import H11Protocol

from cometmq import AdminClient, Message, Producer
from cometmq.admin.messages.pages import PagedMessages
from cometmq.console import state
from cometmq.console.pages import messages
from cometmq.console.schemas import bodies
from cometmq.console.web import connections, guard
from cometmq.console.web.connections import Connection
from cometmq.console.web.cookies import cookies_of
from cometmq.errors import CometMQError
from cometmq.testing import Cluster

FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def strict(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A console that waits less long."""
    monkeypatch.setattr(Connection, "check_s", 0.1)
    monkeypatch.setattr(Connection, "request_s", 0.3)
    with running_console(cluster.namesrv, tmp_path) as served:
        yield served


def connected(
    served: Served, *, receives: int | None = None, source: str = "127.0.0.1"
) -> socket.socket:
    sock = socket.socket()
    sock.bind((source, 0))
    if receives is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    sock.settimeout(WAIT_S)
    sock.connect(("127.0.0.1", served.port))
    return sock


def rest_of(sock: socket.socket) -> bytes:
    """Return what comes until the console ends the connection; a time-out fails the test."""
    got = b""
    try:
        while piece := sock.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got


# Forms and headers


@pytest.mark.parametrize(
    ("body", "kind", "status", "says"),
    [
        ("a=" + "x" * (1 << 20), None, 413, "the limit MAX_FORM_BYTES is 1048576; give less"),
        (
            "&".join(f"f{number}=1" for number in range(2001)),
            None,
            400,
            "MAX_FORM_FIELDS is 2000; choose",
        ),
        ("why=" + "x" * 200_000, None, 400, "the limit MAX_FIELD is 131072; give a shorter"),
        ("a=%ff", None, 400, "cannot be read"),
        (b"a=\xff", None, 400, "cannot be read"),
        ("{}", "application/json", 415, "must be a form"),
        ("a", "multipart/form-data; boundary=x", 415, "must be a form"),
        ("a", "", 415, "must be a form"),
    ],
)
def test_a_form_has_limits(
    operator: Visitor, body: str | bytes, kind: str | None, status: int, says: str
) -> None:
    answer = operator.send_body("/topics/delete", body, FORM if kind is None else kind)
    assert answer.status == status
    assert says in answer.text


def test_a_login_is_short(served: Served) -> None:
    answer = Visitor(served, None).log_in("operator", "x" * 20_000)
    assert answer.status == 413


def test_values_of_one_field_are_joined_in_a_time_that_their_length_deserves(
    operator: Visitor,
) -> None:
    answer = operator.post("/topics/delete", name=["x" * 500] * 1900, confirm="no")
    assert answer.status == 400


def test_a_long_address_is_refused(operator: Visitor) -> None:
    answer = operator.get("/topics", q="x" * 9000)
    assert answer.status == 414


def test_long_headers_are_refused(served: Served) -> None:
    with connected(served) as sock:
        sock.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000)
        got = rest_of(sock)
    assert b" 431 " in got.splitlines()[0]
    assert b"the limit MAX_HEADER_BYTES is 32768; send fewer" in got


def test_a_long_path_is_refused(operator: Visitor) -> None:
    answer = operator.get("/static" + "/a" * 1000)
    assert answer.status == 414
    assert "MAX_PATH_BYTES" in answer.text


def test_many_headers_are_refused(served: Served) -> None:
    """h11 was given a read of 256 KiB in one piece: 60,000 of them held the console for 3.4 s."""
    with connected(served) as sock:
        sock.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 300)
        got = rest_of(sock)
    assert b" 431 " in got.splitlines()[0]
    assert b"the limit MAX_HEADERS is 200; send fewer" in got


def test_the_time_for_cookies_grows_with_their_length() -> None:
    """They were unquoted in a time that grows with its square: 30 KiB held the console for 4 s."""

    def cost(count: int) -> float:
        value = '"' + "\\a" * count + '"'
        scope = {"type": "http", "headers": [(b"cookie", f"a={value}; b=1".encode())]}
        began_s = time.thread_time()
        assert dict(cookies_of(Request(scope))) == {"a": value, "b": "1"}
        return time.thread_time() - began_s

    assert min(cost(16_000) for _ in range(3)) < 0.1


def test_a_body_in_chunks_of_one_byte_is_read_in_pieces(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """h11 takes some microseconds for each: a read of 256 KiB held the console for a quarter of a second."""
    longest = 0

    def counted(connection: Connection, data: bytes) -> None:
        nonlocal longest
        longest = max(longest, len(data))
        read(connection, data)

    read = H11Protocol.data_received
    monkeypatch.setattr(H11Protocol, "data_received", counted)
    form = b"name=operator&password=" + b"x" * 10_000
    with connected(served) as sock:
        sock.sendall(
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\nContent-Type: " + FORM.encode() + b"\r\n\r\n"
            + b"".join(b"1\r\n%c\r\n" % byte for byte in form)
            + b"0\r\n\r\n"
        )  # fmt: skip
        assert b" 401 " in rest_of(sock).splitlines()[0]
    assert 0 < longest <= 2048


def test_what_is_asked_behind_a_large_form_is_answered_in_its_order(served: Served) -> None:
    form = b"name=operator&password=" + b"x" * 10_000
    head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + FORM.encode()
    first = head + b"\r\nContent-Length: %d\r\n\r\n" % len(form) + form
    second = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = second.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with connected(served) as sock:
        sock.sendall(first + second * 100 + last)
        got = rest_of(sock)
    assert got.startswith(b"HTTP/1.1 401 ")
    assert got.count(b"HTTP/1.1 200 OK") == 101


def test_a_body_is_laid_out_beside_the_loop(
    cluster: Cluster, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some bodies of 256 KiB take a tenth of a second, and who sends them chooses that."""
    threads = []

    def noted(*given: Any, **options: Any) -> bodies.Shown:
        with suppress(RuntimeError):
            threads.append(asyncio.get_running_loop())
        return show(*given, **options)

    show = bodies.show
    monkeypatch.setattr(bodies, "show", noted)
    with Producer("p", namesrv=cluster.namesrv) as producer:
        sent = producer.send(Message("laid-out", b"[" + b"[]," * 1000 + b"[]]"))
    answer = operator.get("/message", id=sent.offset_msg_id, topic="laid-out")
    assert "[]" in answer.text
    assert threads == [], "the loop's thread has a running loop"


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0\0\0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: x\r\n\r\n",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_is_no_http_is_refused_and_not_logged(
    served: Served, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with connected(served) as sock:
        sock.sendall(sent + b"\r\n\r\n")
        assert b" 400 " in rest_of(sock).splitlines()[0]
    assert capfd.readouterr().err == ""


# Slow clients


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /login HTTP/1.1\r\nHost: local",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nContent-Type: "
        + FORM.encode()
        + b"\r\n\r\nname=",
        # It is refused before its body has come.
        b"POST /topics/delete HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
    ],
)
def test_a_request_that_does_not_come_whole_is_given_up(strict: Served, begun: bytes) -> None:
    with connected(strict) as sock:
        sock.sendall(begun)
        rest_of(sock)


def test_a_request_that_trickles_is_given_up(strict: Served) -> None:
    with connected(strict) as sock:
        sock.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\n")
        sock.settimeout(0.05)
        for _ in range(400):
            try:
                sock.sendall(b"X: y\r\n")
                if sock.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                return
        pytest.fail("the console still waits")


def test_a_client_that_does_not_read_is_given_up(strict: Served) -> None:
    visitor = Visitor(strict)
    cookies = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    request = f"GET /why HTTP/1.1\r\nHost: localhost\r\nCookie: {cookies}\r\n\r\n".encode()
    with connected(strict, receives=1024) as sock:
        sock.setblocking(False)
        # It asks until the console takes no more, and reads nothing.
        sent = 0

        def is_given_up() -> bool:
            nonlocal sent
            try:
                with suppress(BlockingIOError):
                    sent += sock.send(request * 20)
            except (ConnectionResetError, BrokenPipeError):
                return True
            return False

        eventually(is_given_up)
    assert visitor.get("/why").status == 200


def test_the_console_answers_while_slow_clients_wait(strict: Served) -> None:
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connected(strict)).sendall(b"GET / HT")
        assert Visitor(strict).get("/").status == 200


# Floods


def test_an_address_has_so_many_connections(
    strict: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_OF_ADDRESS", 3)
    monkeypatch.setattr(Connection, "request_s", 60.0)
    with ExitStack() as stack:
        first = [stack.enter_context(connected(strict)) for _ in range(3)]
        eventually(lambda: _is_refused(strict))
        first[0].close()
        eventually(lambda: not _is_refused(strict))


def _is_refused(served: Served) -> bool:
    with connected(served) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        got = rest_of(sock)
    return b" 200 " not in got


def test_an_account_has_so_many_live_pages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_STREAMS_OF_ACCOUNT", 2)
    reader, operator = Visitor(served, "reader"), Visitor(served)
    with ExitStack() as stack:
        live = [stack.enter_context(_stream(served, reader)) for _ in range(2)]
        assert all(b" 200 " in sock.recv(4096) for sock in live)
        refused = reader.get("/events")
        assert refused.status == 429
        assert (
            "the account reader has 2 live pages, the limit MAX_STREAMS_OF_ACCOUNT is 2;"
            in refused.text
        )
        assert reader.get("/").status == 200
        other = stack.enter_context(_stream(served, operator))
        assert b" 200 " in other.recv(4096)
        for sock in live:
            sock.close()

        def is_free() -> bool:
            with _stream(served, reader) as sock:
                return b" 200 " in sock.recv(4096)

        eventually(is_free)


def _stream(served: Served, visitor: Visitor) -> socket.socket:
    cookies = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    sock = connected(served)
    sock.sendall(f"GET /events HTTP/1.1\r\nHost: localhost\r\nCookie: {cookies}\r\n\r\n".encode())
    return sock


def test_of_many_connections_one_is_read_in_a_turn_of_the_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that had a request were served in one turn: 1,000 of them kept others out for three seconds."""
    in_turn = most = 0

    def ended() -> None:
        nonlocal in_turn
        in_turn = 0

    def counted(connection: Connection, data: bytes) -> None:
        nonlocal in_turn, most
        if not in_turn:
            connection.loop.call_soon(ended)
        in_turn += 1
        most = max(most, in_turn)
        if data.startswith(b"GET /healthz?first"):
            time.sleep(0.3)  # the others come meanwhile
        read(connection, data)

    read = H11Protocol.data_received
    monkeypatch.setattr(H11Protocol, "data_received", counted)
    with ExitStack() as stack:
        socks = [stack.enter_context(connected(served)) for _ in range(50)]
        rest = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        socks[0].sendall(b"GET /healthz?first" + rest)
        for sock in socks[1:]:
            sock.sendall(b"GET /healthz" + rest)
        assert all(b" 200 " in rest_of(sock).splitlines()[0] for sock in socks)
    assert most <= 2


def test_the_network_with_most_connections_makes_room_for_another(
    strict: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with an IPv4 and an IPv6 address could keep everybody else out."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 5)
    monkeypatch.setattr(Connection, "request_s", 60.0)
    with ExitStack() as stack:
        first, *_ = [_kept(stack, strict, f"127.0.0.{number}") for number in (2, 3, 3, 2, 2)]
        # Of those that have most, the one that has asked for nothing for longest goes.
        _kept(stack, strict, "127.0.0.1")
        assert rest_of(first) == b""
        # Now there are two, two and one: a second one of the last would have as many as the others.
        assert _is_refused(strict)


def _kept(stack: ExitStack, served: Served, source: str) -> socket.socket:
    """Return a connection that has been served and stays open."""
    sock = stack.enter_context(connected(served, source=source))
    sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    got = b""
    while not got.endswith(b"ok\n"):  # the header and the body may come apart
        piece = sock.recv(4096)
        assert piece, got
        got += piece
    assert b" 200 " in got
    return sock


# The audit log


@contextmanager
def full_log(path: Path) -> Iterator[None]:
    """Have no byte find room in the log meanwhile."""
    kept = path.with_suffix(".kept")
    if path.exists():
        path.rename(kept)
    path.symlink_to("/dev/full")
    try:
        yield
    finally:
        path.unlink()
        if kept.exists():
            kept.rename(path)


def test_an_action_that_cannot_be_written_down_is_not_done(
    admin: AdminClient, served: Served
) -> None:
    """A full disk stops who would change something, and nobody who looks."""
    admin.topics.create("stays-without-log")
    operator = Visitor(served)
    name = "stays-without-log"
    with full_log(served.root / "audit.jsonl"):
        answer = operator.post("/topics/delete", name=name, confirm=name)
    assert answer.status == 503
    assert "nothing was done" in answer.text
    assert name in admin.topics.names()
    reader = Visitor(served, "reader")
    assert reader.get("/").status == 200
    refused = reader.post("/topics/delete", name=name, confirm=name)
    assert refused.status == 403


def test_a_reader_cannot_push_others_out_of_the_log(served: Served) -> None:
    """Each line is written to the disk, and only so many are kept."""
    reader = Visitor(served, "reader")
    token = reader.token()
    for _ in range(20):
        fields = {"csrf": token, "name": "x"}
        assert reader.send("POST", "/topics/delete", fields).status == 403
    lines = [json.loads(line) for line in (served.root / "audit.jsonl").read_text().splitlines()]
    refused = [
        line for line in lines if line["what"] == "delete topic" and line["role"] == "reader"
    ]
    assert len(refused) == 1


def test_an_account_has_few_pages_that_read_messages_made_at_once(
    admin: AdminClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty searches through large messages, of one reader, filled 2.6 GB."""
    admin.topics.create("t")
    admin.groups.create("g")
    at_once = most = 0
    may_end = threading.Event()

    async def page(*_: object, **__: object) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await until(may_end.is_set)
        at_once -= 1
        raise CometMQError("none")

    monkeypatch.setattr(PagedMessages, "page", page)
    reader = Visitor(served, "reader")
    eventually(lambda: reader.get("/topic", name="t").status, lambda status: status == 200)
    paths = ("/messages?topic=t&text=x", "/letters?group=g&key=x", "/messages/tail?topic=t&text=x")
    with ExitStack() as stack:
        for path in paths * 5:
            sock = stack.enter_context(connected(served))
            cookies = "; ".join(f"{name}={value}" for name, value in reader.cookies.items())
            sock.sendall(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookies}\r\n\r\n".encode()
            )
        eventually(lambda: at_once, lambda count: count == state.MESSAGE_READS_AT_ONCE)
        may_end.set()
        assert reader.get("/messages", topic="t").status == 200
    assert most == state.MESSAGE_READS_AT_ONCE


def test_large_messages_are_not_kept(cluster: Cluster, served: Served) -> None:
    """For two seconds up to 512 of them were: 2 GB of 4 MiB each."""
    with Producer("large", namesrv=cluster.namesrv) as producer:
        sent = [producer.send(Message("kept", random.randbytes(size))) for size in (3 << 20, 100)]
    reader = Visitor(served, "reader")
    tracemalloc.start()
    try:
        for each in sent:
            place = {
                "topic": "kept",
                "broker": each.queue.broker_name,
                "queue": each.queue.queue_id,
                "offset": each.queue_offset,
            }
            assert len(reader.get("/message/body", **place).body) in (3 << 20, 100)

        def traced() -> int:
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        # The thread of the server lets go of what it has written a moment after that has come.
        eventually(traced, lambda size: size < 2 << 20, wait_s=1.0)
    finally:
        tracemalloc.stop()


def test_a_reader_leaves_places_to_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """One who held all of them kept everybody from following a topic, from exports and reports."""
    monkeypatch.setattr(messages, "MAX_TAILS", 4)
    reader = Visitor(served, "reader")
    cookies = "; ".join(f"{name}={value}" for name, value in reader.cookies.items())
    request = f"GET /messages/tail?topic=t HTTP/1.1\r\nHost: localhost\r\nCookie: {cookies}\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(2):
            sock = stack.enter_context(connected(served))
            sock.sendall(request.encode())
            got = b""
            while b"retry:" not in got:
                got += sock.recv(65536)
        refused = reader.get("/messages/tail", topic="t")
        assert refused.status == 503
        assert "2 of them by the account reader, the limit MAX_TAILS is 4" in refused.text
        operator = Visitor(served)
        with connected(served) as sock:
            cookies = "; ".join(f"{name}={value}" for name, value in operator.cookies.items())
            sock.sendall(
                f"GET /messages/tail?topic=t HTTP/1.1\r\nHost: localhost\r\nCookie: {cookies}\r\n\r\n".encode()
            )
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
