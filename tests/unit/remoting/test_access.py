from __future__ import annotations

import pytest
from tests.unit.remoting.line import Line

from cometmq.errors import ConfigError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, encode_command, response
from cometmq.protocol.header import NoHeader
from cometmq.protocol.request_type import AnyRequestType, Right
from cometmq.protocol.requests import GET_BROKER_CONFIG, REQUESTS, UPDATE_BROKER_CONFIG
from cometmq.remoting.access import AdminAccess
from cometmq.remoting.connection import Connection
from cometmq.remoting.credentials import refused
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.sockets.address_list import AddressList

ADMIN = UPDATE_BROKER_CONFIG
ANYBODY = GET_BROKER_CONFIG


def done(_connection: Connection, _request: Request[NoHeader]) -> RemotingCommand:
    return response(ResponseCode.SUCCESS)


async def answers(
    peer: str, request_type: AnyRequestType, admin_from: str = ""
) -> list[RemotingCommand]:
    handlers = Handlers(AdminAccess(admin_from))
    handlers.register(request_type, done)
    line = Line(handlers, peer=(peer, 4711))
    line.feed(encode_command(request_type.command(NoHeader())))
    return await line.flushed()


@pytest.mark.parametrize(
    ("peer", "admin_from"),
    [
        ("127.0.0.1", ""),
        ("127.3.2.1", ""),
        ("::1", ""),
        ("10.0.0.1", ""),  # the server's own address
        ("10.0.0.9", "10.0.0.9"),
        ("10.0.0.9", "192.168.0.1; 10.0.0.0/24"),
        ("10.0.0.9", "192.168.0.1,10.0.0.9"),
        ("fe80::1%eth0", "fe80::/10"),
        ("10.0.0.9", "0.0.0.0/0,::/0"),
    ],
)
async def test_administrators_are_taken_from_this_machine_and_named_addresses(
    peer: str, admin_from: str
) -> None:
    (answer,) = await answers(peer, ADMIN, admin_from)
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize("admin_from", ["", "10.0.0.8", "10.0.1.0/24", "::/0"])
async def test_administrators_from_elsewhere_are_refused(admin_from: str) -> None:
    (answer,) = await answers("10.0.0.9", ADMIN, admin_from)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark is not None
    for word in ("25", "UPDATE_BROKER_CONFIG", "10.0.0.9:4711", "adminFrom", "restart"):
        assert word in answer.remark


async def test_our_client_tells_such_a_refusal_from_other_failures() -> None:
    (answer,) = await answers("10.0.0.9", ADMIN)
    error = refused(answer, "10.0.0.1:10911", "the update")
    assert type(error).__name__ == "AccessDeniedError"


async def test_what_anybody_may_send_is_not_looked_at() -> None:
    (answer,) = await answers("10.0.0.9", ANYBODY)
    assert answer.code == ResponseCode.SUCCESS
    # Not even a call more.
    assert AdminAccess().guarded(ANYBODY, done) is done


@pytest.mark.parametrize("text", ["nowhere", "10.0.0.1/8", "10.0.0.300", "10.0.0.1:80"])
def test_what_is_no_list_of_networks_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=f"adminFrom={text} does not fit"):
        AddressList("adminFrom", text)


def test_administrators_alone_send_what_changes_a_server() -> None:
    assert {
        17, 18, 25, 50, 51, 52, 53, 200, 207, 215, 225, 306, 316, 329, 401, 100, 102, 205, 216, 318, 327, 353,
        908,
        *range(3001, 3011),
    } == {code for code, row in REQUESTS.items() if row.right is Right.ADMIN}  # fmt: skip
