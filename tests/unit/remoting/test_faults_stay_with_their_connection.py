"""A fault, of a peer's bytes or of ours, ends the connection that met it and harms no other."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from tests.unit.remoting.line import (
    ECHO_REQUEST,
    INSPECT_REQUEST,
    EchoHeader,
    Line,
    echo,
    inspect,
)
from tests.waits import until

from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.frame import encode_frame
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.turns import ADMINISTRATION, FEW, MANY, SLICE_COST, ServingTurns

BAD_FRAMES = {
    "no JSON": encode_frame(b'{"code":D}'),
    "a list": encode_frame(b"[]"),
    "empty": encode_frame(b""),
    "no text": encode_frame(b'{"code":\xff}'),
    "deep": encode_frame(b"[" * 100_000),
    "short binary": encode_frame(b"\0\1", serialize_type=1),
    "unknown type": encode_frame(b"{}", serialize_type=7),
}


def handlers() -> Handlers:
    def serve(_: Connection, request: Request[EchoHeader]) -> RemotingCommand:
        return response(0)

    made = Handlers()
    made.register(ECHO_REQUEST, serve)
    made.register(INSPECT_REQUEST, serve)
    return made


class Server:
    """Serves lines that share their turns."""

    def __init__(self) -> None:
        self.handlers = handlers()
        self.turns = ServingTurns()

    def line(self, ip: str) -> Line:
        return Line(self.handlers, turns=self.turns, peer=(ip, 4711))


@pytest.mark.parametrize("name", BAD_FRAMES)
@pytest.mark.parametrize("before", [0, 1, 8, 3 * SLICE_COST])
@pytest.mark.parametrize("administers", [False, True])
async def test_a_frame_that_is_no_command_stops_nobody_else(
    name: str, before: int, administers: bool
) -> None:
    """Eight requests of administration and `{"code":D}` stopped everybody who pipelines."""
    server = Server()
    one = inspect if administers else echo
    attacker, other = server.line("10.0.0.1"), server.line("10.0.0.2")
    other.feed(b"".join(echo(opaque=n) for n in range(300)))
    attacker.feed(b"".join([*(one(opaque=n) for n in range(before)), BAD_FRAMES[name], one()]))
    late = server.line("10.0.0.3")
    late.feed(b"".join(echo(opaque=n) for n in range(100)))

    await until(lambda: attacker.connection.closed)
    await until(lambda: len(other.received()) == 300)
    await until(lambda: len(late.received()) == 100)
    # Its requests in front of the bad frame are served, those behind it are not.
    answered = [answer.opaque for answer in attacker.received() if answer.code == 0]
    assert answered == list(range(before))
    assert server.turns.count == 0


@pytest.mark.parametrize("at", [1, 7, 11, 14])
async def test_a_frame_that_is_no_command_ends_its_connection_wherever_a_read_is_cut(
    at: int,
) -> None:
    server = Server()
    attacker = server.line("10.0.0.1")
    bytes_of_all = b"".join(inspect(opaque=n) for n in range(8)) + BAD_FRAMES["no JSON"]
    cut = len(bytes_of_all) - at
    attacker.feed(bytes_of_all[:cut], bytes_of_all[cut:])
    await until(lambda: attacker.connection.closed)
    assert [answer.opaque for answer in attacker.received()] == list(range(8))


class FailingHookError(Exception):
    pass


class Waiting:
    """Waits for its turn with some requests. Its hook `failing` raises, if it has one."""

    def __init__(self, turns: ServingTurns, failing: str, line: int):
        self.debt_s = 0.0
        self.left = 3
        self.is_closed = False
        self.was_flushed = False
        self._turns = turns
        self._failing = failing
        self._line = line

    def join(self) -> None:
        self._turns.begin_read(self, self._turns.monotonic())
        self._turns.join(self, self._line)

    def flush(self) -> None:
        if self._failing == "flush":
            raise FailingHookError
        self.was_flushed = True

    def serve_slice(self) -> bool:
        if self._failing == "serve_slice":
            raise FailingHookError
        self.left -= 1
        if self.left:
            self._turns.join(self, self._line)
        return True

    def fail(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("failing", ["serve_slice", "flush"])
@pytest.mark.parametrize("line", [FEW, MANY, ADMINISTRATION])
async def test_whichever_hook_of_a_connection_raises_the_others_are_served(
    failing: str, line: int
) -> None:
    turns = ServingTurns()
    first, bad, last = (Waiting(turns, hook, line) for hook in ("", failing, ""))
    for guest in (first, bad, last):
        guest.join()
    await until(lambda: first.left <= 0 and last.left <= 0)
    assert bad.is_closed
    assert first.was_flushed
    assert last.was_flushed
    assert turns.count == 0


async def test_a_collector_that_raises_ends_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def fail() -> None:
        nonlocal calls
        calls += 1
        raise FailingHookError

    monkeypatch.setattr("cometmq.remoting.turns.collect_young", fail)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop reports what a callback raises
    server = Server()
    line = server.line("10.0.0.1")
    line.feed(b"".join(echo(opaque=n) for n in range(300)))
    await until(lambda: len(line.received()) == 300)
    assert calls >= 1


async def test_a_write_that_raises_keeps_no_answer_of_others() -> None:
    turns = ServingTurns()
    made = handlers()
    lines = [Line(made, turns=turns, peer=(f"10.0.0.{n}", 1)) for n in range(3)]

    def fail(_: object) -> None:
        raise FailingHookError

    lines[1].transport.writelines = fail  # type: ignore[assignment,method-assign]  # a transport that fails
    with structlog.testing.capture_logs() as logged:
        for line in lines:
            line.feed(echo(opaque=4))
        await until(lambda: lines[1].connection.closed)
    assert [[answer.opaque for answer in line.received()] for line in lines] == [
        [4],
        [],
        [4],
    ]
    assert [line["event"] for line in logged] == ["connection closed: it cannot be served"]
