"""Clients in Java, Go, JavaScript and Python that sign, and Apache's mqadmin, at our guarded servers.

Both servers want signatures, the broker and the name server, by ACL 1.0 or by ACL 2.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.access.actors import OWNER
from tests.access.matrix import Question, ask_all, signed
from tests.access.servers import SERVERS, Guarded, guarded_cluster
from tests.interop.clients import (
    ClientProgram,
    CometClient,
    Event,
    GoClient,
    JavaClient,
    NodeClient,
    RunningClient,
)
from tests.interop.conftest import need
from tests.interop.mqadmin.runner import MqAdmin, Printed
from tests.interop.peers import PeerError
from tests.waits import eventually

from cometmq import Credentials

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

APP: Final = Credentials("app-account", "secret-of-app")
DENIED_TOPIC, DENIED_GROUP = "denied-topic", "denied-group"
CREATE_USER, CREATE_ACL, UPDATE_ACL, CREATE_TOPIC = 3001, 3006, 3007, 17
COUNT: Final = 8
QUICK: Final = {
    "messageDelayLevel": "1s 1s 1s 1s 1s 1s",
    "transactionTimeOut": "100",
    "transactionCheckInterval": "150",
    "traceTopicEnable": "true",
}
_MAX_OFFSET: Final = {"topic": "some-topic", "queueId": "0"}
JAVA4, JAVA5, GO, NODE, OURS = JavaClient(4), JavaClient(5), GoClient(), NodeClient(), CometClient()
CLIENTS: Final[tuple[ClientProgram, ...]] = (JAVA4, JAVA5, GO, NODE, OURS)


class Servers(NamedTuple):
    """Our servers, and an account of theirs that may use all but a topic and a group."""

    guarded: Guarded

    def options(self, credentials: Credentials = APP) -> dict[str, Any]:
        return {
            "namesrv": self.guarded.namesrv,
            "access_key": credentials.access_key,
            "secret_key": credentials.secret_key,
        }

    def make_topic(self, name: str) -> None:
        """Make a topic with four queues; who has no right to TBW102 cannot have one made."""
        ext = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": "4",
            "writeQueueNums": "4",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
        }
        self.as_owner("broker", CREATE_TOPIC, ext)

    def as_owner(self, server: str, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        question = Question("owner", code, signed(ext, body, OWNER.credentials), body)
        with self.guarded.connecting():
            [(_, reported)] = ask_all(self.guarded.address(server), [question])
        assert reported.code == 0, reported

    def put_account(self, who: Credentials, *, allowed: bool) -> None:
        """Have both servers know an account that may use all but what is denied, or nothing."""
        if self.guarded.acl == 1:
            self._put_account_1(who, allowed=allowed)
            return
        user = {"username": who.access_key, "password": who.secret_key, "userType": "Normal"}
        subject = f"User:{who.access_key}"
        for server in SERVERS:
            self._post(server, CREATE_USER, {"username": who.access_key}, user)
            self._post(server, CREATE_ACL, {"subject": subject}, _policies(subject, allowed))

    def change_account(self, who: Credentials, *, allowed: bool) -> None:
        """Let an account in, or take back what it may do; return when both servers do so."""
        if self.guarded.acl == 1:
            self._put_account_1(who, allowed=allowed)
        else:
            subject = f"User:{who.access_key}"
            for server in SERVERS:
                self._post(server, UPDATE_ACL, {"subject": subject}, _policies(subject, allowed))
        eventually(lambda: _knows(self, who) == (allowed, allowed))

    def _post(self, server: str, code: int, ext: dict[str, str], value: Any) -> None:
        self.as_owner(server, code, ext, json.dumps(value).encode())

    def _put_account_1(self, who: Credentials, *, allowed: bool) -> None:
        """Add an account at the end of the file, or instead of the one that is there."""
        path = self.guarded.accounts
        before = path.read_text().split(f"- accessKey: {who.access_key}\n")[0]
        # As an editor does it: the servers never see half a file.
        new = path.with_suffix(".new")
        new.write_text(before + _account_1(who, allowed=allowed))
        new.replace(path)


def _account_1(who: Credentials, *, allowed: bool) -> str:
    """Return an account of ACL 1.0 that may use all but what is denied, or nothing."""
    topics, groups = ("PUB|SUB", "SUB") if allowed else ("DENY", "DENY")
    return (
        f"- accessKey: {who.access_key}\n"
        f"  secretKey: {who.secret_key}\n"
        f"  admin: false\n"
        f"  defaultTopicPerm: {topics}\n"
        f"  defaultGroupPerm: {groups}\n"
        f"  topicPerms:\n  - {DENIED_TOPIC}=DENY\n"
        f"  groupPerms:\n  - {DENIED_GROUP}=DENY\n"
    )


def _policies(subject: str, allowed: bool) -> dict[str, Any]:
    decision = "Allow" if allowed else "Deny"
    entries = [
        {"resource": "Topic:*", "actions": ["Pub", "Sub", "Get"], "decision": decision},
        {"resource": "Group:*", "actions": ["Sub", "Get"], "decision": decision},
        {"resource": f"Topic:{DENIED_TOPIC}", "actions": ["All"], "decision": "Deny"},
        {"resource": f"Group:{DENIED_GROUP}", "actions": ["All"], "decision": "Deny"},
    ]
    return {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}


@contextmanager
def _servers(acl: int, home: Path) -> Iterator[Servers]:
    account = _account_1(APP, allowed=True)
    with guarded_cluster(acl, home, accounts=account, properties=QUICK) as guarded:
        made = Servers(guarded)
        made.make_topic(DENIED_TOPIC)
        if acl == 2:
            made.put_account(APP, allowed=True)
        eventually(lambda: all(_knows(made, APP)))
        yield made


@pytest.fixture(scope="module")
def acl1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with _servers(1, tmp_path_factory.mktemp("acl1")) as made:
        yield made


@pytest.fixture(scope="module")
def acl2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with _servers(2, tmp_path_factory.mktemp("acl2")) as made:
        yield made


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Servers with ACL 2.0 that refuse plain connections."""
    home = tmp_path_factory.mktemp("encrypted")
    with guarded_cluster(2, home, tls=True, properties=QUICK) as guarded:
        made = Servers(guarded)
        made.put_account(APP, allowed=True)
        yield made


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Servers:
    made: Servers = request.getfixturevalue(f"acl{request.param}")
    return made


def _knows(servers: Servers, who: Credentials) -> tuple[bool, bool]:
    """Whether the name server lets the account in, and whether the broker does."""
    question = Question("app", 105, signed({"topic": "any"}, b"", who), b"")
    [(_, reported)] = ask_all(servers.guarded.address("namesrv"), [question])
    [(_, at_broker)] = ask_all(servers.guarded.address("broker"), [_of_group(who)])
    return reported.code == 17, at_broker.code not in (1, 16)


def _of_group(who: Credentials) -> Question:
    ext = {"consumerGroup": "any-group", "topic": "any", "queueId": "0"}
    return Question("app", 14, signed(ext, b"", who), b"")


def _at(acl1: Iterable[ClientProgram], acl2: Iterable[ClientProgram]) -> pytest.MarkDecorator:
    """Run a test at the servers with ACL 1.0 by some clients, at those with ACL 2.0 by others.

    Clients sign for both alike, so fewer say enough of the second.
    """
    cases = [(1, client) for client in acl1] + [(2, client) for client in acl2]
    return pytest.mark.parametrize(
        ("servers", "client"),
        cases,
        ids=[f"acl{acl}-{client.label}" for acl, client in cases],
        indirect=True,
    )


@pytest.fixture
def client(request: pytest.FixtureRequest) -> ClientProgram:
    program: ClientProgram = request.param
    need(*program.tools)
    return program


def _messages(events: list[Event]) -> list[Event]:
    return [event for event in events if event["event"] == "message"]


def _error(events: list[Event]) -> str:
    """The error that the user of a client got."""
    failed = [event for event in events if event["event"] == "failed"]
    assert failed, events
    return f"{failed[0]['error']} {failed[0].get('cause')}"


@_at(CLIENTS, (JAVA5, OURS))
def test_what_signed_clients_send_is_consumed(
    client: ClientProgram, servers: Servers, fresh: Callable[[str], str]
) -> None:
    topic, group = fresh("topic"), fresh("group")
    servers.make_topic(topic)
    base = {**servers.options(), "topic": topic}
    sends: list[dict[str, Any]] = [{"mode": "sync", "delays": "level:1,", "trace": True}]
    if client is not NODE:
        sends += [{"mode": "batch"}, {"mode": "async", "size": 6000}, {"mode": "oneway"}]
    for number, send in enumerate(sends):
        client.produce(**base, **send, count=COUNT, first=number * COUNT)
    expected = len(sends) * COUNT
    # The first of each four fails once and comes again by its group's retry topic.
    fails = {"fail_times": "1,0,0,0"} if client is not NODE else {}
    again = expected // 4 if fails else 0
    events = client.run(
        "consume", **base, group=group, expected=expected + again, trace=True, **fails
    )
    indexes = [int(event["properties"]["index"]) for event in _messages(events)]
    assert set(indexes) == set(range(expected))
    assert len(indexes) >= expected + again


@_at((JAVA5, GO, OURS), (JAVA5,))
def test_signed_clients_lock_queues_and_consume_in_order(
    client: ClientProgram, servers: Servers, fresh: Callable[[str], str]
) -> None:
    topic = fresh("topic")
    servers.make_topic(topic)
    base = {**servers.options(), "topic": topic}
    client.produce(**base, count=COUNT, queue=0)
    events = client.run("consume", **base, group=fresh("group"), expected=COUNT, orderly=True)
    indexes = [int(event["properties"]["index"]) for event in _messages(events)]
    assert list(dict.fromkeys(indexes)) == list(range(COUNT))


@_at((JAVA4, JAVA5, OURS), (JAVA5,))
def test_signed_transactions_are_decided_and_checked(
    client: ClientProgram, servers: Servers, fresh: Callable[[str], str]
) -> None:
    topic = fresh("topic")
    servers.make_topic(topic)
    base = {**servers.options(), "topic": topic}
    with client.start(
        "transact",
        **base,
        group=fresh("senders"),
        count=3,
        verdicts="commit,rollback,unknown",
        check="commit",
    ) as sender:
        events = client.run("consume", **base, group=fresh("group"), expected=2)
        sender.finish()
    assert {int(event["properties"]["index"]) for event in _messages(events)} == {0, 2}


@pytest.mark.parametrize("client", [JAVA4, JAVA5, OURS], ids=["java4", "java5", "ours"])
def test_signatures_and_tls_go_together(
    client: ClientProgram, encrypted: Servers, fresh: Callable[[str], str]
) -> None:
    topic = fresh("topic")
    encrypted.make_topic(topic)
    base = {**encrypted.options(), "topic": topic, "tls": True}
    client.produce(**base, count=COUNT, trace=True)
    expected = set(range(COUNT))
    with ExitStack() as stack:
        if client is JAVA5:
            # Of one that is rolled back nobody hears, and the broker asks about the third.
            sender = client.start(
                "transact",
                **base,
                group=fresh("senders"),
                first=COUNT + 1,
                count=3,
                verdicts="commit,rollback,unknown",
                check="commit",
            )
            stack.callback(stack.enter_context(sender).finish)
            expected |= {COUNT + 1, COUNT + 3}
        events = client.run("consume", **base, group=fresh("group"), expected=len(expected))
    assert {int(event["properties"]["index"]) for event in _messages(events)} == expected
    stranger = {**base, "secret_key": "not-the-secret"}
    events = client.run("produce", **stranger, count=1, may_fail=True)
    assert _error(events)


@_at((JAVA4,), (JAVA5,))
def test_signed_clients_pull(
    client: ClientProgram, servers: Servers, fresh: Callable[[str], str]
) -> None:
    topic = fresh("topic")
    servers.make_topic(topic)
    base = {**servers.options(), "topic": topic}
    client.produce(**base, count=COUNT)
    assert len(client.pull(**base)) == COUNT


# What the users of each client are told where the name server or the broker refuses.
NOT_ALLOWED: Final = {
    "java4": r"No route info of this topic|[Nn]o (default )?permission",
    "java5": r"No route info of this topic|[Nn]o (default )?permission",
    "go": r"route info not found|[Nn]o (default )?permission|topic not exist",
    "node": r"[Nn]o (default )?permission|[Nn]o route info",
    "cometmq": r"AccessDeniedError: .*known but may not do this",
}


@_at(CLIENTS, (JAVA5, OURS))
def test_whoever_may_not_send_is_told(client: ClientProgram, servers: Servers) -> None:
    events = client.run("produce", **servers.options(), topic=DENIED_TOPIC, count=1, may_fail=True)
    assert re.search(NOT_ALLOWED[client.label], _error(events)), events


@_at(CLIENTS, (JAVA5, OURS))
def test_whoever_has_another_secret_is_told(client: ClientProgram, servers: Servers) -> None:
    forged = servers.options(Credentials(APP.access_key, "not-the-secret"))
    events = client.run("produce", **forged, topic=DENIED_TOPIC, count=1, may_fail=True)
    said = _error(events)
    if client.label == "cometmq":
        assert "check secret_key" in said
    else:
        assert re.search(rf"[Cc]heck signature failed|{NOT_ALLOWED[client.label]}", said), said


@pytest.mark.parametrize("servers", [1, 2], ids=["acl1", "acl2"], indirect=True)
def test_whoever_is_let_in_later_needs_no_restart(
    servers: Servers, fresh: Callable[[str], str]
) -> None:
    need("java", "mvn")
    topic = fresh("topic")
    servers.make_topic(topic)
    late = Credentials("late-account", "secret-of-late")
    servers.put_account(late, allowed=True)
    eventually(lambda: all(_knows(servers, late)))
    base = {**servers.options(late), "topic": topic}
    programs = [JAVA5, OURS]
    with ExitStack() as stack:

        def consuming(program: ClientProgram, name: str) -> RunningClient:
            group = fresh(f"{program.label}-{name}")
            running = program.start("consume", **base, group=group, until_stdin=True)
            return stack.enter_context(running)

        ran_before = [consuming(program, "before") for program in programs]
        for consumer in ran_before:
            consumer.wait_started()
        servers.change_account(late, allowed=False)
        for program in programs:
            events = program.run("produce", **base, count=1, may_fail=True)
            assert re.search(NOT_ALLOWED[program.label] + "|AccessDenied", _error(events)), events
        # Java's consumer starts and waits for its rights; ours says at its start that it has none.
        waiting = consuming(JAVA5, "late")
        waiting.wait_started()
        with pytest.raises(PeerError, match=r"AccessDeniedError: .*late-account"):
            consuming(OURS, "late").wait_started()
        servers.change_account(late, allowed=True)
        for number, program in enumerate(programs):
            program.produce(**base, count=COUNT, first=number * COUNT)
        for consumer in [*ran_before, waiting]:
            messages = consumer.wait_messages(len(programs) * COUNT)
            indexes = {int(event["properties"]["index"]) for event in messages}
            assert indexes == set(range(len(programs) * COUNT))
            consumer.finish()


class Tools(NamedTuple):
    """Apache's mqadmin with the owner's keys in its tools.yml."""

    admin: MqAdmin
    servers: Servers

    def run(self, command: str, *args: str) -> Printed:
        return self.admin.run(self.servers.guarded.namesrv, command, *args)

    def done(self, command: str, *args: str) -> str:
        """Run a command that must succeed; return what it printed."""
        printed = self.run(command, *args)
        said = printed.out + printed.err
        assert not re.search(r"Exception|not permission|[Nn]o (default )?permission", said), said
        return printed.out


def _inspect(tools: Tools) -> None:
    """Run commands that are about other things than accounts."""
    broker = tools.servers.guarded.address("broker")
    assert "broker-a" in tools.done("clusterList")
    assert "success" in tools.done("updateTopic", "-b", broker, "-t", "made-by-mqadmin")
    assert "made-by-mqadmin" in tools.done("topicList")
    assert "broker-a" in tools.done("topicRoute", "-t", "made-by-mqadmin")
    assert "brokerVersion" in tools.done("brokerStatus", "-b", broker)
    assert "listenPort" in tools.done("getBrokerConfig", "-b", broker)
    assert "success" in tools.done("updateSubGroup", "-b", broker, "-g", "made-by-mqadmin")
    assert "SEND_OK" in tools.done("sendMessage", "-t", "made-by-mqadmin", "-p", "hello")
    assert "success" in tools.done("deleteTopic", "-c", "DefaultCluster", "-t", "made-by-mqadmin")


@pytest.mark.parametrize("servers", [1], ids=["acl1"], indirect=True)
def test_mqadmin_of_4_9_administers_accounts(servers: Servers) -> None:
    need("java", "mvn")
    broker = servers.guarded.address("broker")
    made = Credentials("made-by-mqadmin", "secret-by-mqadmin")
    with MqAdmin(4, OWNER.credentials) as admin:
        tools = Tools(admin, servers)
        _inspect(tools)
        keys = ("-a", made.access_key, "-s", made.secret_key)
        rights = ("-t", "some-topic=PUB|SUB", "-g", "some-group=SUB", "-i", "DENY", "-u", "SUB")
        assert "success" in tools.done("updateAclConfig", "-b", broker, *keys, *rights)
        [question] = [Question("", 30, signed(_MAX_OFFSET, b"", made), b"")]
        [(_, reported)] = ask_all(broker, [question])
        assert reported.code != 1, reported
        assert "broker-a" in tools.done("clusterAclConfigVersion", "-c", "DefaultCluster")
        assert "success" in tools.done("updateGlobalWhiteAddr", "-b", broker, "-g", "10.99.99.*")
        assert "success" in tools.done("deleteAccessConfig", "-b", broker, "-a", made.access_key)
        [(_, reported)] = ask_all(broker, [question])
        assert "No acl config for" in reported.remark


def test_mqadmin_of_5_3_administers_users_and_policies_over_tls(encrypted: Servers) -> None:
    need("java", "mvn")
    broker = encrypted.guarded.address("broker")
    at, who = ("-b", broker), ("-u", "made-by-mqadmin")
    subject = ("-s", "User:made-by-mqadmin")
    with MqAdmin(5, OWNER.credentials, tls=True) as admin, encrypted.guarded.connecting():
        tools = Tools(admin, encrypted)
        _inspect(tools)
        tools.done("createUser", *at, *who, "-p", "secret-by-mqadmin", "-t", "Normal")
        assert "made-by-mqadmin" in tools.done("getUser", *at, *who)
        tools.done("updateUser", *at, *who, "-s", "disable")
        assert "disable" in tools.done("listUser", *at, "-f", "made-by")
        tools.done("updateUser", *at, *who, "-s", "enable")
        resource = ("-r", "Topic:some-topic", "-a", "Get", "-d", "Allow")
        tools.done("createAcl", *at, *subject, *resource)
        assert "Topic:some-topic" in tools.done("getAcl", *at, *subject)
        made = Credentials("made-by-mqadmin", "secret-by-mqadmin")
        question = Question("", 30, signed(_MAX_OFFSET, b"", made), b"")
        [(_, reported)] = ask_all(broker, [question])
        assert reported.code != 16, reported
        tools.done("updateAcl", *at, *subject, *resource[:5], "Deny")
        assert "Deny" in tools.done("listAcl", *at, "-s", "made-by")
        [(_, reported)] = ask_all(broker, [question])
        assert "the decision is deny" in reported.remark
        tools.done("deleteAcl", *at, *subject)
        tools.done("deleteUser", *at, *who)
        [(_, reported)] = ask_all(broker, [question])
        assert "is not found" in reported.remark
