"""Requests that change policies: in the order in which they come, beside the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.remoting.line import Line
from tests.waits import WAIT_S

from cometmq.access.config import AccessConfig
from cometmq.access.control import AccessControl
from cometmq.access.rules import Identity
from cometmq.access.users.rules import UserRules
from cometmq.protocol import headers as h
from cometmq.protocol import requests
from cometmq.protocol.bodies.access import (
    AclInfo,
    AclRequestHeader,
    DeleteAclRequestHeader,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
    UserRequestHeader,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, encode_command, response
from cometmq.remoting.connection import AnyRequest, Connection
from cometmq.remoting.credentials import Credentials, Signer
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.state_files.files import SYSTEM_FILES
from cometmq.runtime.workers import THREADS

ADMIN = Credentials("admin", "admin-secret")
AMY = Credentials("amy", "amy-secret")
INIT = '{"username":"admin","password":"admin-secret"}'


class Server:
    """A server with a Super user and amy, of whom no policy says anything."""

    def __init__(self, rules: UserRules) -> None:
        self.rules = rules
        self.handlers = Handlers(AccessControl(rules, SYSTEM_CLOCK))
        rules.register(self.handlers)
        self.handlers.register(requests.PULL_MESSAGE, self.pulled)

    def pulled(self, _connection: Connection, _request: AnyRequest) -> RemotingCommand:
        return response(ResponseCode.SUCCESS)

    def resources(self) -> list[str | None]:
        acl = self.rules.store.book.acls.get("User:amy")
        return [
            entry.resource
            for policy in (acl and acl.policies) or ()
            for entry in policy.entries or ()
        ]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    rules = UserRules(
        AccessConfig(
            authentication_enabled=True, authorization_enabled=True, init_authentication_user=INIT
        ),
        directory=tmp_path,
        identity=lambda: Identity("c1", "broker-a", "10.0.0.1:10911"),
        clock=SYSTEM_CLOCK,
        files=SYSTEM_FILES,
        workers=THREADS,
    )
    await rules.open()
    await rules.store.change(lambda book: book.create_user(UserInfo("amy", AMY.secret_key)))
    yield Server(rules)
    await rules.close()


def acl(count: int, *, addresses: int = 1, subject: str = "User:amy") -> AclInfo:
    ips = [f"10.0.0.{number}" for number in range(addresses)]
    entries = [
        PolicyEntryInfo(f"Topic:t-{number}", ["Sub"], ips, "Allow") for number in range(count)
    ]
    return AclInfo(subject, [PolicyInfo("Custom", entries)])


def signed(command: RemotingCommand, credentials: Credentials = ADMIN) -> bytes:
    Signer(credentials).sign(command)
    return encode_command(command)


def create(info: AclInfo) -> bytes:
    return signed(requests.AUTH_CREATE_ACL.command(AclRequestHeader(info.subject or ""), info))


async def answers(line: Line, count: int) -> tuple[list[RemotingCommand], float]:
    """Return the answers, and the processor time that the longest turn of the loop took meanwhile."""
    longest_s = 0.0
    async with asyncio.timeout(WAIT_S):
        while len(found := line.received()) < count:
            before_s = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - before_s)
    return found, longest_s


async def test_a_thousand_entries_held_the_loop_while_they_were_checked(server: Server) -> None:
    info = acl(1_000, addresses=10)
    body = requests.AUTH_CREATE_ACL.body.encode(info)
    began_s = time.thread_time()
    server.rules.store.book.put_acl(requests.AUTH_CREATE_ACL.body.decode(body))
    work_s = time.thread_time() - began_s

    line, frame = Line(server.handlers), create(info)
    began_s = time.thread_time()
    line.feed(frame)
    fed_s = time.thread_time() - began_s
    (answer,), longest_s = await answers(line, 1)
    assert answer.code == 0, answer.remark
    assert len(server.resources()) == 1_000
    assert max(fed_s, longest_s) < work_s / 4

    header = h.PullMessageRequestHeader("billing", "t-999", 0, 0, 32, 0, 0, 0, 0)
    frame = signed(requests.PULL_MESSAGE.command(header), AMY)
    began_s = time.thread_time()
    line.feed(frame)  # the first of a user whose policies have changed
    assert time.thread_time() - began_s < work_s / 4


async def test_changes_are_made_in_the_order_in_which_they_come(server: Server) -> None:
    line = Line(server.handlers)
    header = DeleteAclRequestHeader("User:amy", "Custom", "Topic:t-0")
    bob = UserInfo("bob", "bob-secret")
    line.feed(
        create(acl(500)),
        signed(requests.AUTH_DELETE_ACL.command(header)),
        # Of a user that is made by a request before it.
        signed(requests.AUTH_CREATE_USER.command(UserRequestHeader("bob"), bob)),
        create(acl(1, subject="User:bob")),
        create(acl(2)),
        signed(requests.AUTH_DELETE_ACL.command(header)),
    )
    found, _ = await answers(line, 6)
    assert [answer.code for answer in found] == [0] * 6
    assert sorted(map(str, server.resources())) == sorted(f"Topic:t-{n}" for n in range(1, 500))
    assert "User:bob" in server.rules.store.book.acls


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (acl(1, subject="User:nobody"), "The subject of User:nobody is not exist."),
        # What is wrong with the subject comes first, as in Java.
        (AclInfo("User:nobody", []), "The subject of User:nobody is not exist."),
        (AclInfo("User:amy", []), "The body of acl is null"),
        (acl(1_001), "MAX_ENTRIES_PER_USER"),
    ],
)
async def test_what_cannot_be_said_is_refused(server: Server, info: AclInfo, words: str) -> None:
    line = Line(server.handlers)
    line.feed(create(info), create(acl(1)))
    found, _ = await answers(line, 2)
    refused, taken = sorted(found, key=lambda answer: not answer.code)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert words in (refused.remark or "")
    assert taken.code == 0
    assert server.resources() == ["Topic:t-0"]


async def test_a_body_that_is_no_policy_is_refused_and_holds_up_no_other_change(
    server: Server,
) -> None:
    line = Line(server.handlers)
    command = requests.AUTH_CREATE_ACL.command(AclRequestHeader("User:amy"))
    command.body = b'{"policies":7}'
    line.feed(signed(command), create(acl(1)))
    found, _ = await answers(line, 2)
    assert sorted(bool(answer.code) for answer in found) == [False, True]
    assert server.resources() == ["Topic:t-0"]
