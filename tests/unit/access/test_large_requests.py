"""Large requests of a known account: all their names are judged before they take effect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.remoting.line import Line

from cometmq.access.access_request import AccessRequest
from cometmq.access.config import AccessConfig
from cometmq.access.control import AccessControl
from cometmq.access.plain.rules import PlainRules
from cometmq.access.rules import Identity
from cometmq.access.users.rules import UserRules
from cometmq.errors import AccessRefusedError
from cometmq.protocol import requests
from cometmq.protocol.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.bodies.cluster import TopicConfigList
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import (
    RemotingCommand,
    RequestDecoder,
    encode_command,
    request,
    response,
)
from cometmq.protocol.frame import FrameDecoder
from cometmq.protocol.request_type import AnyRequestType
from cometmq.remoting.connection import AnyRequest, Connection
from cometmq.remoting.credentials import Credentials, Signer
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.state_files.files import SYSTEM_FILES
from cometmq.runtime.workers import THREADS

BILLING = Credentials("billing", "billing-secret")
ROWS = (
    requests.HEART_BEAT,
    requests.LOCK_BATCH_MQ,
    requests.UPDATE_AND_CREATE_TOPIC_LIST,
)
DENIED = {1: ResponseCode.SYSTEM_ERROR, 2: ResponseCode.NO_PERMISSION}
PLAIN = """accounts:
- {accessKey: billing, secretKey: billing-secret, defaultTopicPerm: SUB, defaultGroupPerm: SUB,
   topicPerms: [secret=DENY]}
"""


class Server:
    """A guarded server whose handlers note what they serve."""

    def __init__(self, rules: PlainRules | UserRules, acl: int) -> None:
        self.rules = rules
        self.acl = acl
        self.served: list[int] = []
        control = AccessControl(rules, SYSTEM_CLOCK)
        self.refusals = control.refusals
        self.handlers = Handlers(control)
        for row in ROWS:
            self.handlers.register(row, self.serve)

    def serve(self, _connection: Connection, call: AnyRequest) -> RemotingCommand:
        self.served.append(call.code)
        return response(ResponseCode.SUCCESS)

    async def allow(self, *resources: str) -> None:
        """Have the policies of ACL 2.0 allow these, and nothing else."""
        assert isinstance(self.rules, UserRules)
        store = self.rules.store
        await store.change(lambda book: book.without_acl("User:billing"))
        entries = [
            PolicyEntryInfo(each, ["Sub", "Create"], None, "Allow")
            for each in (*resources, "Group:*")
        ]
        acl = AclInfo("User:billing", [PolicyInfo("Custom", entries)])
        await store.change(lambda book: book.put_acl(acl))


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[dict[int, Server]]:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(PLAIN)
    given: dict[str, Any] = {
        "clock": SYSTEM_CLOCK,
        "files": SYSTEM_FILES,
        "workers": THREADS,
        "identity": lambda: Identity("c1", "broker-a", "10.0.0.1:10911"),
    }
    plain = PlainRules(AccessConfig(acl_enable=True, rocketmq_home=tmp_path), **given)
    users = UserRules(
        AccessConfig(authentication_enabled=True, authorization_enabled=True),
        directory=tmp_path,
        **given,
    )
    await plain.open()
    await users.open()
    user = UserInfo(BILLING.access_key, BILLING.secret_key)
    await users.store.change(lambda book: book.create_user(user))
    servers = {1: Server(plain, 1), 2: Server(users, 2)}
    await servers[2].allow("Topic:t-*")
    yield servers
    for rules in (plain, users):
        await rules.close()


@pytest.fixture(params=[1, 2], ids=["acl1", "acl2"])
def server(request: pytest.FixtureRequest, both: dict[int, Server]) -> Server:
    return both[request.param]


def signed(row: AnyRequestType, body: bytes, credentials: Credentials = BILLING) -> bytes:
    command = request(row.code, None, body)
    Signer(credentials).sign(command)
    return encode_command(command)


def heartbeat(topics: Iterable[str], groups: int = 1, **more: str) -> bytes:
    subscriptions = [{"topic": topic, "subString": "*", **more} for topic in topics]
    data = [
        {"groupName": f"g-{number}", "subscriptionDataSet": subscriptions}
        for number in range(groups)
    ]
    return json.dumps({"clientID": "c1", "consumerDataSet": data}).encode()


def asked_by(frame: bytes) -> AccessRequest:
    (parts,) = FrameDecoder().feed(frame)
    decoder = RequestDecoder()
    row = requests.HEART_BEAT
    decoder.register(row.code, row.header)
    return AccessRequest(row, decoder.decode(parts, row.code), "10.0.0.9:4711", "10.0.0.9")


def topics(count: int = 4_000) -> list[str]:
    return [f"t-{number}" for number in range(count)]


@pytest.mark.parametrize("groups", [1, 16], ids=["one-group", "many-groups"])
@pytest.mark.parametrize("place", [0, -1])
async def test_one_name_of_thousands_was_not_allowed(
    server: Server, groups: int, place: int
) -> None:
    named = topics(4_000 // groups)
    for names, code in (
        (named, 0),
        ([*named[:place], "secret", *named[place:]], DENIED[server.acl]),
    ):
        line = Line(server.handlers)
        line.feed(signed(requests.HEART_BEAT, heartbeat(names, groups)))
        (answer,) = await line.flushed()
        assert answer.code == code, answer.remark
        assert not code or "secret" in (answer.remark or "")
    assert server.served == [requests.HEART_BEAT.code]
    assert server.refusals.counts["permission"] == 1


async def test_the_body_of_an_unknown_sender_is_not_decoded(server: Server) -> None:
    line = Line(server.handlers)
    body = b"no heartbeat at all"
    line.feed(signed(requests.HEART_BEAT, body, Credentials("billing", "another-secret")))
    (answer,) = await line.flushed()
    assert answer.code == DENIED[server.acl]
    assert "signature" in (answer.remark or "")
    assert not server.served


async def test_a_request_that_waited_is_judged_by_the_rules_of_now(both: dict[int, Server]) -> None:
    server = both[2]
    rules = server.rules
    assert isinstance(rules, UserRules)
    request_ = asked_by(signed(requests.HEART_BEAT, heartbeat(["t-1"])))
    rules.check(request_)
    rules.judge(request_)  # a second look at the signature would take it for a replay
    await server.allow("Topic:u-*")
    with pytest.raises(AccessRefusedError, match="no permission to access Topic:t-1"):
        rules.judge(request_)
    await rules.store.change(lambda book: book.without_user("billing"))
    with pytest.raises(AccessRefusedError, match="not found"):
        rules.judge(request_)


async def test_too_many_locks_are_refused_before_their_names_are_judged(server: Server) -> None:
    queues = [{"topic": "secret", "brokerName": "b", "queueId": 0}] * 2_049
    body = json.dumps({"consumerGroup": "g", "clientId": "c1", "mqSet": queues}).encode()
    line = Line(server.handlers)
    line.feed(signed(requests.LOCK_BATCH_MQ, body))
    await line.flushed()
    assert "MAX_LOCKS_AT_ONCE" in (line.received()[0].remark or "")
    assert not server.served


async def test_an_administrators_request_that_names_nothing_is_judged_too(server: Server) -> None:
    body = requests.UPDATE_AND_CREATE_TOPIC_LIST.body.encode(TopicConfigList([]))
    line = Line(server.handlers)
    line.feed(signed(requests.UPDATE_AND_CREATE_TOPIC_LIST, body))
    (answer,) = await line.flushed()
    assert answer.code == DENIED[server.acl]
    assert not server.served
