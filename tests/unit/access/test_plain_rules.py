"""Verdicts of ACL 1.0: those of Java's PlainAccessValidator 5.2.0, and ours where it checks nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.waits import WAIT_S

from cometmq.access.access_request import AccessRequest
from cometmq.access.config import AccessConfig
from cometmq.access.plain.accounts import SUB, Account, PlainAccount
from cometmq.access.plain.rules import PlainRules, _check_permission
from cometmq.access.rules import Identity
from cometmq.errors import AccessRefusedError, ConfigError
from cometmq.model.subscription import ConsumerData, SubscriptionData
from cometmq.protocol import headers as h
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import HeartbeatData
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, RequestDecoder, encode_command
from cometmq.protocol.frame import FrameDecoder, SerializeType
from cometmq.protocol.header import Header, NoHeader
from cometmq.protocol.request_type import AnyRequestType, ResourceKind
from cometmq.remoting.credentials import Credentials, Signer, signature
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.state_files.files import SYSTEM_FILES
from cometmq.runtime.workers import THREADS

SECRET = "12345678"
ACCOUNTS = """
globalWhiteRemoteAddresses: [10.9.*.*]
accounts:
- {accessKey: administrator, secretKey: 12345678, admin: true, topicPerms: [orders=DENY]}
- accessKey: RocketMQ
  secretKey: 12345678
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [denied=DENY, both=PUB|SUB, read=SUB, write=PUB]
  groupPerms: [denied=DENY, both=PUB|SUB, read=SUB, write=PUB]
- {accessKey: whitelisted, secretKey: 12345678, whiteRemoteAddress: 10.7.7.7}
- {accessKey: generous, secretKey: 12345678, defaultTopicPerm: PUB|SUB, defaultGroupPerm: DENY}
"""


@pytest.fixture
async def rules(tmp_path: Path) -> AsyncIterator[PlainRules]:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    rules = PlainRules(
        AccessConfig(acl_enable=True, rocketmq_home=tmp_path),
        clock=SYSTEM_CLOCK,
        files=SYSTEM_FILES,
        workers=THREADS,
        identity=lambda: Identity("C", "", ""),
    )
    await rules.open()
    yield rules
    await rules.close()


def asked_for(
    row: AnyRequestType,
    header: Header,
    body: Any = None,
    *,
    account: str | None = "RocketMQ",
    ip: str = "10.0.0.1",
    secret: str = SECRET,
    serialize_type: SerializeType = SerializeType.JSON,
    change: dict[str, str] | None = None,
) -> AccessRequest:
    """Return a request as it arrives; `change` is what somebody did to it on its way."""
    command: RemotingCommand = row.command(header, body)
    if account is not None:
        Signer(Credentials(account, secret)).sign(command)
    command.ext.update(change or {})
    return asked_of(row, command, ip, serialize_type)


def asked_of(
    row: AnyRequestType,
    command: RemotingCommand,
    ip: str = "10.0.0.1",
    serialize_type: SerializeType = SerializeType.JSON,
) -> AccessRequest:
    decoder = RequestDecoder()
    decoder.register(row.code, row.header)
    (frame,) = FrameDecoder(1 << 24).feed(encode_command(command, serialize_type))
    return AccessRequest(row, decoder.decode(frame, row.code), f"{ip}:4711", ip)


def test_a_field_that_is_left_out_names_nothing() -> None:
    """The compiled form took only texts: a producer that left its
    group got a TypeError."""
    for group, named in ((None, []), ("billing", ["billing"])):
        header = h.UnregisterClientRequestHeader(client_id="c", consumer_group=group)
        asked = asked_for(requests.UNREGISTER_CLIENT, header)
        assert [name for _, name in asked.resources()] == named


def send(topic: str, **options: Any) -> AccessRequest:
    header = h.SendMessageRequestHeaderV2(
        producer_group="shop",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
    )
    return asked_for(requests.SEND_MESSAGE_V2, header, b"tea", **options)


def pull(topic: str, group: str, **options: Any) -> AccessRequest:
    header = h.PullMessageRequestHeader(
        consumer_group=group,
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=0,
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
    )
    return asked_for(requests.PULL_MESSAGE, header, **options)


def heartbeat(group: str, *topics: str, **options: Any) -> AccessRequest:
    subscriptions = [SubscriptionData(topic=topic) for topic in topics]
    data = ConsumerData(group_name=group, subscription_data_set=subscriptions)
    beat = HeartbeatData(client_id="c", consumer_data_set=[data])
    return asked_for(requests.HEART_BEAT, NoHeader(), beat, **options)


def route(topic: str, **options: Any) -> AccessRequest:
    header = h.GetRouteInfoRequestHeader(topic=topic)
    return asked_for(requests.GET_ROUTEINFO_BY_TOPIC, header, **options)


def members(group: str) -> AccessRequest:
    header = h.GetConsumerListByGroupRequestHeader(consumer_group=group)
    return asked_for(requests.GET_CONSUMER_LIST_BY_GROUP, header)


async def test_topics_and_groups_have_the_permissions_of_java(rules: PlainRules) -> None:
    allowed = [
        send("both"),
        send("write"),
        send("%RETRY%both"),
        send("%RETRY%read"),
        send("%RETRY%unlisted"),
        send("RMQ_SYS_TRACE_TOPIC"),
        pull("both", "both"),
        pull("read", "unlisted"),
        pull("%RETRY%read", "read"),
        heartbeat("read", "both", "%RETRY%read"),
        members("both"),
        members("unlisted"),
    ]
    for asked in allowed:
        rules.check(asked)
    refused = {
        "No permission for topic:denied": send("denied"),
        "No permission for topic:read": send("read"),
        "No default permission for topic:unlisted": send("unlisted"),
        "No permission for group:denied": send("%RETRY%denied"),
        "No permission for group:write": send("%RETRY%write"),
        "No permission for topic:write": pull("write", "both"),
        "No permission for group:denied:": pull("both", "denied"),
        "No default permission for topic:more": heartbeat("both", "read", "more"),
        "No permission for group:write:": heartbeat("write", "read"),
        "No permission for group:denied: ": members("denied"),
    }
    for said, asked in refused.items():
        with pytest.raises(AccessRefusedError, match=said) as raised:
            rules.check(asked)
        assert raised.value.code == ResponseCode.SYSTEM_ERROR
        assert raised.value.reason == "permission"
        assert SECRET not in str(raised.value)


async def test_defaults_are_denied_unless_said_otherwise(rules: PlainRules) -> None:
    rules.check(send("anything", account="generous"))
    with pytest.raises(AccessRefusedError, match="No default permission for group:some"):
        rules.check(pull("anything", "some", account="generous"))
    with pytest.raises(AccessRefusedError, match="No default permission for topic:anything"):
        rules.check(send("anything", account="whitelisted"))


async def test_an_administrator_may_do_everything(rules: PlainRules) -> None:
    # Java 5.2 looks at no permission of an admin account; 4.9.8 did, if it had any.
    rules.check(send("orders", account="administrator"))
    more = requests.CLEAN_UNUSED_TOPIC
    rules.check(asked_for(more, NoHeader(), account="administrator"))
    with pytest.raises(AccessRefusedError, match="Need admin permission for request code=316"):
        rules.check(asked_for(more, NoHeader()))


async def test_what_only_tells_of_a_topic_is_for_whoever_may_use_it(rules: PlainRules) -> None:
    for topic in ("both", "read", "write", "TBW102", "C_REPLY_TOPIC", "RMQ_SYS_TRACE_TOPIC"):
        rules.check(route(topic))
    for topic in ("denied", "unlisted"):
        with pytest.raises(AccessRefusedError):
            rules.check(route(topic))


async def test_replies_are_free_to_the_topic_of_the_own_cluster_only(rules: PlainRules) -> None:
    def reply(topic: str) -> AccessRequest:
        header = h.SendMessageRequestHeaderV2(
            producer_group="shop",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
        )
        return asked_for(requests.SEND_REPLY_MESSAGE_V2, header, b"tea")

    rules.check(reply("C_REPLY_TOPIC"))
    with pytest.raises(AccessRefusedError):
        rules.check(reply("orders_REPLY_TOPIC"))
    with pytest.raises(AccessRefusedError):
        rules.check(send("C_REPLY_TOPIC"))


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"]
)
async def test_a_default_does_not_open_the_topics_where_others_messages_wait(topic: str) -> None:
    def account(**more: Any) -> Account:
        plain = PlainAccount("RocketMQ", SECRET, default_topic_perm="SUB", **more)
        return Account(plain)

    row = requests.PULL_MESSAGE
    _check_permission(account(), row, SUB, ResourceKind.TOPIC, "orders")
    with pytest.raises(AccessRefusedError, match="No default permission"):
        _check_permission(account(), row, SUB, ResourceKind.TOPIC, topic)
    listed = account(topic_perms=(f"{topic}=SUB",))
    _check_permission(listed, row, SUB, ResourceKind.TOPIC, topic)


async def test_a_signature_fits_no_other_form_of_the_request(rules: PlainRules) -> None:
    """The signed text is the values alone, without their names, lengths, or the code."""
    asked = send("both")
    ext = asked.ext
    nonce = ext["Nonce"]
    bare = {name: text for name, text in ext.items() if name not in ("Nonce", "SignedAt")}
    body = "".join(ext[name] for name in sorted(ext) if name not in ("AccessKey", "Signature"))
    only = {name: ext[name] for name in ("AccessKey", "Signature")}
    settings = requests.UPDATE_BROKER_CONFIG
    for row, form, data in (
        (asked.row, {**bare, "N": nonce, "SignedAu": ext["SignedAt"]}, asked.body),
        (asked.row, {**ext, "Nonce": nonce[:-1], "O": nonce[-1]}, asked.body),
        (asked.row, {**ext, "a": ext["a"] + ext["b"][:1], "b": ext["b"][1:]}, asked.body),
        (asked.row, {**ext, "empty": ""}, asked.body),
        (asked.row, {**ext, "o": "t"}, asked.body[1:]),
        (settings, only, body.encode() + asked.body),
    ):
        command = RemotingCommand(row.code, ext=form, body=data)
        assert signature(form, data, SECRET) == ext["Signature"], "the same signature fits"
        with pytest.raises(AccessRefusedError, match="Check signature failed") as raised:
            rules.check(asked_of(row, command))
        assert raised.value.reason == "signature"
    batch = requests.SEND_BATCH_MESSAGE
    other = RemotingCommand(batch.code, ext=dict(ext), body=asked.body)
    with pytest.raises(AccessRefusedError, match="its code"):
        rules.check(asked_of(batch, other))
    rules.check(asked)


async def test_white_addresses_need_no_signature(rules: PlainRules) -> None:
    rules.check(send("denied", account=None, ip="10.9.1.1"))
    rules.check(send("denied", account="nobody-here", ip="10.9.1.1"))
    # The address of an account counts for whoever names the account, as in Java.
    rules.check(send("denied", account="whitelisted", secret="something-else", ip="10.7.7.7"))
    rules.check_resource(send("x", account=None, ip="10.9.1.1"), ResourceKind.TOPIC, "denied")
    with pytest.raises(AccessRefusedError, match="No accessKey is configured"):
        rules.check(send("denied", account=None, ip="10.7.7.7"))
    with pytest.raises(AccessRefusedError, match="Check signature failed"):
        rules.check(send("denied", account="whitelisted", secret="something-else"))


async def test_what_an_account_may_do_is_known_without_a_request_of_its_own(
    rules: PlainRules,
) -> None:
    def may(account: str, topic: str, ip: str = "10.1.1.1") -> bool:
        return rules.permits(account, ip, requests.END_TRANSACTION, ResourceKind.TOPIC, topic)

    assert may("RocketMQ", "write")
    assert not may("RocketMQ", "read")
    assert may("administrator", "denied")
    assert not may("nobody-here", "write")
    assert not may("whitelisted", "denied")
    assert may("whitelisted", "denied", ip="10.7.7.7")
    # Whoever a white list lets in has no name that can be believed.
    assert rules.sender_of(send("denied", account="RocketMQ", ip="10.9.1.1")) == ""
    assert rules.sender_of(send("write")) == "RocketMQ"


@pytest.mark.parametrize("serialize_type", list(SerializeType))
async def test_who_is_not_known_is_refused(
    rules: PlainRules, serialize_type: SerializeType
) -> None:
    rules.check(send("both", serialize_type=serialize_type))
    for said, asked in {
        "No accessKey is configured": send("both", account=None),
        "No acl config for nobody-here": send("both", account="nobody-here"),
        "Check signature failed for accessKey=RocketMQ": send("both", secret="87654321"),
        "Check signature failed": send("both", change={"b": "write"}),
        "Check signature failed ": send("both", change={"more": "x"}),
        "Check signature failed  ": send("both", change={"Signature": ""}),
        "Check signature failed   ": send("both", change={"Signature": "é"}),
    }.items():
        with pytest.raises(AccessRefusedError, match=said.strip()):
            rules.check(asked_of(asked.row, _again(asked), serialize_type=serialize_type))


def _again(asked: AccessRequest) -> RemotingCommand:
    return RemotingCommand(asked.row.code, ext=dict(asked.ext), body=asked.body)


async def test_a_body_is_signed_too(rules: PlainRules) -> None:
    command = _again(send("both"))
    command.body = b"milk"
    with pytest.raises(AccessRefusedError, match="Check signature failed"):
        rules.check(asked_of(requests.SEND_MESSAGE_V2, command))


async def test_a_request_is_taken_once(rules: PlainRules) -> None:
    asked = send("both")
    rules.check(asked)
    with pytest.raises(AccessRefusedError, match=r"^not fresh: .*come already") as raised:
        rules.check(asked)
    assert raised.value.reason == "stale"
    # What finds a resource later is not the request again.
    rules.check_resource(asked, ResourceKind.TOPIC, "write")
    with pytest.raises(AccessRefusedError):
        rules.check_resource(asked, ResourceKind.TOPIC, "read")


async def test_clients_of_java_sign_without_a_time(rules: PlainRules) -> None:
    asked = send("both")
    command = _again(asked)
    for name in ("SignedAt", "Nonce", "Signature"):
        del command.ext[name]
    command.ext["SecurityToken"] = "a token"
    command.ext["Signature"] = signature(command.ext, command.body, SECRET)
    for _ in range(2):
        rules.check(asked_of(asked.row, command))


async def test_old_clients_add_a_field_after_they_have_signed(rules: PlainRules) -> None:
    header = h.QueryMessageRequestHeader(
        topic="read", key="k", max_num=1, begin_timestamp=0, end_timestamp=1
    )
    for account_signs_it in (False, True):
        command = requests.QUERY_MESSAGE.command(header)
        if account_signs_it:  # as clients since 4.9.4
            command.ext["_UNIQUE_KEY_QUERY"] = "true"
        command.ext["AccessKey"] = "RocketMQ"
        command.ext["Signature"] = signature(command.ext, command.body, SECRET)
        command.ext["_UNIQUE_KEY_QUERY"] = "true"
        rules.check(asked_of(requests.QUERY_MESSAGE, command))


async def test_a_body_is_decoded_for_a_right_signature_only(
    rules: PlainRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = heartbeat("both", "read", secret="87654321")
    monkeypatch.setattr(
        type(requests.HEART_BEAT.body), "decode", lambda *_: pytest.fail("it was decoded")
    )
    with pytest.raises(AccessRefusedError):
        rules.check(asked)


@pytest.mark.parametrize(
    "values", [{"rocketmq_home": None}, {"rocketmq_home": Path("/nowhere/at/all")}]
)
async def test_without_a_file_there_is_no_start(values: dict[str, Any]) -> None:
    config = AccessConfig(acl_enable=True, **values)

    async def opened() -> None:
        rules = PlainRules(
            config,
            clock=SYSTEM_CLOCK,
            files=SYSTEM_FILES,
            workers=THREADS,
            identity=lambda: Identity("", "", ""),
        )
        try:
            await rules.open()
        finally:
            await rules.close()

    with pytest.raises(ConfigError, match="rocketmqHome"):
        await opened()


async def test_files_beneath_conf_acl_count_and_change(rules: PlainRules, tmp_path: Path) -> None:
    more = tmp_path / "conf" / "acl" / "teams"
    more.mkdir(parents=True)
    (more / "a.yaml").write_text(
        "# of team A\naccounts:\n- {accessKey: team-account, secretKey: 0123456789abc, own: kept,"
        " defaultTopicPerm: PUB}\n- {accessKey: RocketMQ, secretKey: of-the-team}\n"
    )
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: not-an-account\n")
    await rules.look()
    rules.check(send("x", account="team-account", secret="0123456789abc"))
    # Of two, the first counts: those beneath conf/acl, as in Java.
    with pytest.raises(AccessRefusedError, match="No default permission for topic:both"):
        rules.check(send("both", secret="of-the-team"))
    with pytest.raises(AccessRefusedError, match="Check signature"):
        rules.check(send("both"))
    # A change leaves alone what it does not concern, and the comment above.
    path = rules.table.file_of["team-account"]

    def edit(values: dict[str, Any]) -> None:
        values["accounts"][0]["defaultTopicPerm"] = "DENY"

    await rules.change(path, edit)
    text = path.read_text()
    assert text.startswith("# of team A\n")
    assert "own: kept" in text
    assert "counter: 1" in text
    assert path.with_name("a.yaml.bak").exists()
    with pytest.raises(AccessRefusedError, match="No default permission"):
        rules.check(send("x", account="team-account", secret="0123456789abc"))
    # A damaged file keeps what it said; the others count on.
    path.write_text("accounts: [")
    await rules.look()
    assert list(rules.table.faults) == [path]
    assert "a.yaml, line 1" in rules.table.faults[path]
    with pytest.raises(AccessRefusedError, match="No default permission"):
        rules.check(send("x", account="team-account", secret="0123456789abc"))
    with pytest.raises(ConfigError, match="line 1"):
        await rules.change(path, edit)
    assert path.read_text() == "accounts: ["
    # And one that is gone takes its accounts along.
    path.unlink()
    await rules.look()
    assert rules.table.faults == {}
    with pytest.raises(AccessRefusedError, match="No acl config for team-account"):
        rules.check(send("x", account="team-account", secret="0123456789abc"))
    rules.check(send("both"))


async def test_a_file_that_others_may_read_or_change_is_told_of(
    rules: PlainRules, tmp_path: Path
) -> None:
    path = tmp_path / "conf" / "plain_acl.yml"

    async def reported(mode: int) -> tuple[str, ...]:
        path.chmod(mode)
        await rules.look()
        return rules.table.warnings

    assert await reported(0o640) == ()
    [warning] = await reported(0o644)
    assert "every user of this machine may read it (mode 644): chmod 640" in warning
    [warning] = await reported(0o660)
    assert "its group may change it" in warning
    # A server starts with it all the same.
    assert len(rules.table.accounts) == 4


async def test_a_file_that_vanishes_for_a_moment_stays_in_force(
    rules: PlainRules, tmp_path: Path
) -> None:
    path = tmp_path / "conf" / "plain_acl.yml"
    text = path.read_text()
    path.unlink()
    await rules.look()
    assert list(rules.table.faults) == [path]
    rules.check(send("both"))
    path.write_text(text)
    await rules.look()
    assert rules.table.faults == {}


@pytest.mark.parametrize("text", ["", "\n", "# being written\n"])
async def test_a_file_that_is_empty_for_a_moment_stays_in_force(
    rules: PlainRules, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "conf" / "plain_acl.yml"
    path.write_text(text)
    await rules.look()
    [fault] = rules.table.faults.values()
    assert fault == f"{path} is empty; to take all accounts back write `accounts: []`"
    rules.check(send("both"))
    path.write_text("accounts: []\n")
    await rules.look()
    assert rules.table.faults == {}
    with pytest.raises(AccessRefusedError, match="No acl config for RocketMQ"):
        rules.check(send("both"))


async def test_a_pipe_in_the_place_of_a_file_does_not_end_the_looks(
    rules: PlainRules, tmp_path: Path
) -> None:
    path = tmp_path / "conf" / "plain_acl.yml"
    path.unlink()
    os.mkfifo(path)
    async with asyncio.timeout(WAIT_S):
        await rules.look()
    assert list(rules.table.faults) == [path]
    writer = os.open(path, os.O_RDWR)  # who has written nothing yet
    async with asyncio.timeout(WAIT_S):
        await rules.look()
    os.close(writer)
    assert list(rules.table.faults) == [path]
    rules.check(send("both"))
