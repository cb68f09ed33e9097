"""Signatures are Java's, and nothing shows secrets."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from tests.unit.remoting.line import ECHO, ECHO_REQUEST, EchoHeader
from tests.unit.remoting.test_client import call, far_and_client
from tests.waits import WAIT_S, until

from cometmq.client.access import Access, access_of
from cometmq.errors import AccessDeniedError, IllegalArgumentError, RemoteError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, ext_of, request, response
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.connection import Connection
from cometmq.remoting.credentials import Credentials, refused, signature
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.hooks import RpcHook
from cometmq.remoting.server import RemotingServer

SECRET = "a-secret-of-tests"
TOKEN = "a-token"
# What AclClientRPCHook of the Java clients 4.9.8 and 5.3.3 made of the same.
EXT = {"a": "group", "b": "grün € 😀", "B": "upper", "queueId": "3", "empty": ""}
BODY = "größe".encode()
SIGNED = EXT | {"AccessKey": "AK-of-tests", "SecurityToken": TOKEN}
OF_SIGNED = "TftgZa8hwGEYoWKY4BuicWRfKFc="
OF_SHORT = "XhvkWO3HoK0Z+eVEFUbtL5fQdCA="


def test_java_makes_the_same_signatures() -> None:
    assert signature(SIGNED, BODY, SECRET) == OF_SIGNED
    assert signature(SIGNED | {"Signature": "an old one"}, memoryview(BODY), SECRET) == OF_SIGNED
    assert signature({"a": "group", "AccessKey": "AK-of-tests"}, b"", SECRET) == OF_SHORT
    # Of the test of Java's AclSigner.
    assert signature({"all": "RocketMQ"}, b"", "12345678") == "IUc8rrO/0gDch8CjObLQsW2rsiA="


class Notary:
    """A server that notes the ext fields of its requests."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        handlers = Handlers()
        handlers.register(ECHO_REQUEST, self._serve)
        self.server = RemotingServer("127.0.0.1", 0, handlers)

    def _serve(self, _connection: Connection, asked: Request[EchoHeader]) -> RemotingCommand:
        self.seen.append(ext_of(asked))
        return response(0)


class AddsAField(RpcHook):
    def before_request(self, address: str, command: RemotingCommand) -> None:
        command.ext["added"] = "by a hook"


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_every_kind_of_call_is_signed_with_what_hooks_put_into_it(token: str | None) -> None:
    notary = Notary()
    await notary.server.start()
    client = RemotingClient(credentials=Credentials("AK-of-tests", SECRET, token))
    client.rpc_hooks.add(AddsAField())
    address = f"127.0.0.1:{notary.server.port}"
    again = request(ECHO, EchoHeader(number=1), b"body")
    try:
        await client.call(address, again, WAIT_S)
        await client.call(address, again, WAIT_S)  # at another name server, say
        await client.send_oneway(address, request(ECHO, EchoHeader(number=2), b"body"))
        await client.send_oneway_bounded(
            address, request(ECHO, EchoHeader(number=3), b"body"), WAIT_S
        )
        await until(lambda: len(notary.seen) == 4)
    finally:
        await client.close()
        await notary.server.close()
    for ext in notary.seen:
        assert ext["AccessKey"] == "AK-of-tests"
        assert ext.get("SecurityToken") == token
        assert ext["added"] == "by a hook"
        assert ext["Signature"] == signature(ext, b"body", SECRET)


async def test_without_credentials_nothing_is_added() -> None:
    async with far_and_client() as (far, client):
        command = call(1)
        await client.call(far.address, command, WAIT_S)
        assert command.ext == {"number": "1"}
        assert not client.rpc_hooks


def test_credentials_do_not_show_their_secrets() -> None:
    credentials = Credentials("AK-of-tests", SECRET, TOKEN)
    shown = f"{credentials} {credentials!r} {Access(credentials)} {[credentials]}"
    assert "AK-of-tests" in shown
    assert SECRET not in shown
    assert TOKEN not in shown


@pytest.mark.parametrize("leave", [pickle.dumps, copy.deepcopy, copy.copy])
def test_credentials_do_not_leave_their_process(leave: Any) -> None:
    with pytest.raises(TypeError, match="create them in the process that uses them") as error:
        leave(Credentials("AK-of-tests", SECRET, TOKEN))
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (("", SECRET), "access_key is empty"),
        (("key", ""), "secret_key is empty"),
        (("key", "  "), "secret_key is empty"),
        (("key", f"{SECRET}\n"), "secret_key has white space around it"),
        (("key", SECRET.encode()), "secret_key is a bytes"),
        (("key", SECRET, ""), "security_token is empty"),
        ((7, SECRET), "access_key is a int"),
    ],
)
def test_what_no_server_knows_is_refused_without_showing_it(given: Any, fault: str) -> None:
    with pytest.raises(IllegalArgumentError, match=fault) as error:
        Credentials(*given)
    assert SECRET not in str(error.value)


def test_what_is_passed_for_credentials_is_not_shown() -> None:
    with pytest.raises(IllegalArgumentError, match="credentials is a str; pass") as error:
        access_of(SECRET, None)
    assert SECRET not in str(error.value)


# As the servers say it: 5.2 and older (code 1), 5.3 (code 16).
DENIALS = [
    (1, "[x]AclException: No accessKey is configured, org.apache", "pass credentials="),
    (16, "username cannot be null.", "pass credentials="),
    (1, "AclException: Check signature failed for accessKey=a", "check secret_key"),
    (16, "check signature failed.", "check secret_key"),
    (1, "AclException: No acl config for a", "check access_key"),
    (16, "User:a is not found.", "check access_key"),
    (16, "User:a not found.", "check access_key"),
    (16, "User:a is disabled.", "check access_key"),
    (1, "AclException: No default permission for topic:t", "may not do this"),
    (1, "AclException: Need admin permission for request code=17", "may not do this"),
    (16, "User:a has no permission to access Topic:t from 1.2.3.4, no matched", "may not do this"),
]


@pytest.mark.parametrize(("code", "remark", "remedy"), DENIALS)
def test_whoever_is_refused_learns_why(code: int, remark: str, remedy: str) -> None:
    error = refused(response(code, remark), "127.0.0.1:10911", "the pull")
    assert isinstance(error, AccessDeniedError)
    assert remedy in str(error)
    assert remark.rstrip(".") in str(error)
    assert (error.code, error.remark, error.address) == (code, remark, "127.0.0.1:10911")


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.NO_PERMISSION, "the broker[1.2.3.4] sending message is forbidden"),
        (ResponseCode.SYSTEM_ERROR, "the offset is not found"),
        (ResponseCode.SYSTEM_ERROR, None),
        (ResponseCode.TOPIC_NOT_EXIST, "User:a is not found."),
        (12345, "whatever"),
    ],
)
def test_other_refusals_do_not_blame_the_asker(code: int, remark: str | None) -> None:
    error = refused(response(code, remark), "127.0.0.1:10911", "the pull")
    assert type(error) is RemoteError
