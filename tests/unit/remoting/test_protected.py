"""Peers of other machines at a server that serves its own machine only."""

from __future__ import annotations

from typing import Any

import pytest
import structlog.testing
from tests.unit.remoting.line import ECHO_REQUEST, EchoHeader, Line, answer_to, echo

from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import FLAG_ONEWAY, RemotingCommand, response
from cometmq.remoting.dispatch import UNSERVED, Handlers
from cometmq.remoting.protected import MOST_REFUSALS, ProtectedMode, Strangers
from cometmq.runtime.sockets.address_list import AddressList, is_own_machine
from cometmq.tls.handshakes import MOST_STRANGERS

SERVED: list[int] = []


def handlers() -> Handlers:
    made = Handlers()

    def serve(_connection: Any, request: Any) -> RemotingCommand:
        SERVED.append(request.header.number)
        return response(ResponseCode.SUCCESS, header=EchoHeader(number=request.header.number))

    made.register(ECHO_REQUEST, serve)
    return made


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.8.8.8", "127.0.0.1"),
        ("::1", "::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ("::ffff:7f00:1", "::"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_the_own_machine_is_loopback_and_the_address_that_was_connected_to(
    peer: str, local: str
) -> None:
    assert is_own_machine(peer, local)


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("10.0.0.2", "10.0.0.1"),
        ("172.17.0.1", "172.17.0.2"),  # a container's host, through a published port
        ("::ffff:10.0.0.2", "10.0.0.1"),
        ("::7f00:1", "::1"),
        ("", ""),
        ("a name", "a name"),
    ],
)
def test_every_other_peer_is_another_machine(peer: str, local: str) -> None:
    assert not is_own_machine(peer, local)


def test_listed_addresses_are_admitted_too() -> None:
    protection = ProtectedMode("it", "remedy", AddressList("metricsFrom", "10.1.0.0/16"))
    assert protection.admits("10.1.2.3", "10.0.0.1")
    assert not protection.admits("10.2.2.3", "10.0.0.1")


async def test_a_stranger_is_told_why_and_what_to_do_and_nothing_is_served() -> None:
    SERVED.clear()
    strangers, table = Strangers(ProtectedMode.of_requests("broker")), handlers()
    line = Line(table, server_side=True)
    strangers.take(line.connection)
    line.feed(echo(1, opaque=7), echo(2, opaque=8, flag=FLAG_ONEWAY))
    (answer,) = await line.flushed()
    assert (answer.opaque, answer.code) == (7, ResponseCode.NO_PERMISSION)
    assert answer.remark is not None
    for part in (
        "this broker",
        "10.0.0.9",
        "container",
        "aclEnable",
        "protectedMode=false",
        "--open",
    ):
        assert part in answer.remark
    assert SERVED == []
    assert table.refused == {(UNSERVED, ResponseCode.NO_PERMISSION): 2}


async def test_a_stranger_gets_so_many_refusals_and_is_closed_then() -> None:
    strangers = Strangers(ProtectedMode.of_requests("broker"))
    line = Line(handlers(), server_side=True)
    strangers.take(line.connection)
    line.feed(b"".join(echo(1, opaque=number) for number in range(MOST_REFUSALS + 5)))
    assert len(await line.flushed()) == MOST_REFUSALS
    assert line.transport.ended == "closed"
    assert not strangers.connections


async def test_answers_and_nonsense_of_strangers_leave_no_line() -> None:
    strangers = Strangers(ProtectedMode.of_requests("broker"))
    with structlog.testing.capture_logs() as lines:
        for _ in range(5):
            line = Line(handlers(), server_side=True)
            strangers.take(line.connection)
            line.feed(answer_to(RemotingCommand(1)), b"GET / HTTP/1.1\r\n\r\n")
            assert await line.flushed() == []
            assert line.transport.ended == "closed"
    reported = [line["event"] for line in lines if line["log_level"] != "debug"]
    assert reported == ["peer of another machine refused"]


async def test_the_next_stranger_takes_the_place_of_the_first() -> None:
    strangers = Strangers(ProtectedMode.of_requests("broker"))
    lines = [Line(handlers(), server_side=True) for _ in range(MOST_STRANGERS + 3)]
    for line in lines:
        strangers.take(line.connection)
    assert [line.transport.ended for line in lines[:4]] == ["aborted"] * 3 + [None]
    assert len(strangers.connections) == MOST_STRANGERS
