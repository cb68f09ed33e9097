"""Judge signed requests by users and policies, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cometmq.access.access_request import AccessRequest
from cometmq.access.config import AccessConfig
from cometmq.access.rules import Identity
from cometmq.access.users.rules import UserRules
from cometmq.access.users.store import UserStore
from cometmq.errors import AccessRefusedError, CometMQError, ConfigError
from cometmq.model.subscription import ConsumerData, SubscriptionData
from cometmq.protocol import headers as h
from cometmq.protocol import requests
from cometmq.protocol.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.bodies.cluster import HeartbeatData, TopicConfigList
from cometmq.protocol.command import RemotingCommand, RequestDecoder, encode_command
from cometmq.protocol.frame import FrameDecoder
from cometmq.protocol.header import NoHeader
from cometmq.protocol.request_type import AnyRequestType, ResourceKind
from cometmq.remoting.credentials import Credentials, Signer
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.state_files.files import SYSTEM_FILES
from cometmq.runtime.workers import THREADS

ADMIN = Credentials("admin", "admin-secret")
AMY = Credentials("amy", "amy-secret")
INIT = '{"username":"admin","password":"admin-secret"}'
Make = Callable[..., Awaitable[UserRules]]


def asked(
    row: AnyRequestType,
    command: RemotingCommand,
    credentials: Credentials | None = AMY,
    ip: str = "10.0.0.7",
) -> AccessRequest:
    """Return a request as a server gets it."""
    if credentials is not None:
        Signer(credentials).sign(command)
    (frame,) = FrameDecoder().feed(encode_command(command))
    decoder = RequestDecoder()
    decoder.register(row.code, row.header)
    return AccessRequest(row, decoder.decode(frame, row.code), f"{ip}:4711", ip)


def is_taken(rules: UserRules, request: AccessRequest) -> bool:
    try:
        rules.check(request)
    except AccessRefusedError:
        return False
    return True


def say(*entries: str) -> AclInfo:
    """Read entries such as `Topic:orders Pub`."""
    reported = [
        PolicyEntryInfo(resource, actions.split(","), None, "Allow")
        for resource, actions in (entry.split() for entry in entries)
    ]
    return AclInfo("User:amy", [PolicyInfo("Custom", reported)])


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[UserRules] = []

    async def new(*entries: str, **settings: Any) -> UserRules:
        settings.setdefault("authorization_enabled", True)
        config = AccessConfig(
            authentication_enabled=True, init_authentication_user=INIT, **settings
        )
        rules = UserRules(
            config,
            directory=tmp_path,
            identity=lambda: Identity("c1", "broker-a", "10.0.0.1:10911"),
            clock=SYSTEM_CLOCK,
            files=SYSTEM_FILES,
            workers=THREADS,
        )
        made.append(rules)
        await rules.open()
        if "amy" not in rules.store.book.users:
            await rules.store.change(lambda book: book.create_user(UserInfo("amy", AMY.secret_key)))
        if entries:
            await rules.store.change(lambda book: book.put_acl(say(*entries)))
        return rules

    yield new
    for rules in made:
        await rules.close()


def pull(topic: str = "orders", group: str = "billing", **more: Any) -> AccessRequest:
    header = h.PullMessageRequestHeader(group, topic, 0, 0, 32, 0, 0, 0, 0)
    return asked(requests.PULL_MESSAGE, requests.PULL_MESSAGE.command(header), **more)


def send(topic: str = "orders", producer_group: str = "shop", **more: Any) -> AccessRequest:
    header = h.SendMessageRequestHeaderV2(
        producer_group=producer_group,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
    )
    return asked(requests.SEND_MESSAGE_V2, requests.SEND_MESSAGE_V2.command(header, b"x"), **more)


def reply(topic: str) -> AccessRequest:
    header = h.SendMessageRequestHeaderV2(
        producer_group="shop",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
    )
    row = requests.SEND_REPLY_MESSAGE_V2
    return asked(row, row.command(header, b"x"))


def route(topic: str) -> AccessRequest:
    row = requests.GET_ROUTEINFO_BY_TOPIC
    return asked(row, row.command(h.GetRouteInfoRequestHeader(topic)))


def configuration(**more: Any) -> AccessRequest:
    return asked(
        requests.UPDATE_BROKER_CONFIG,
        requests.UPDATE_BROKER_CONFIG.command(NoHeader(), b"a=b"),
        **more,
    )


async def test_who_sends_is_found_out_first(make: Make) -> None:
    rules = await make("* All")
    assert is_taken(rules, send())
    for stranger in (None, Credentials("amy", "other-secret"), Credentials("eve", "amy-secret")):
        assert not is_taken(rules, send(credentials=stranger))
    await rules.store.change(lambda book: book.update_user(UserInfo("amy", user_status="disable")))
    with pytest.raises(AccessRefusedError, match="User:amy is disabled"):
        rules.check(send())


@pytest.mark.parametrize(
    ("entries", "request_", "is_allowed"),
    [
        (["Topic:orders Pub"], send, True),
        (["Topic:orders Sub"], send, False),
        (["Topic:orders Sub", "Group:billing Sub"], pull, True),
        (["Topic:orders Sub"], pull, False),
        (["Group:billing Sub"], pull, False),
        # A retry topic is the group's, whatever group the sender says that it is.
        (["Group:billing Sub"], partial(pull, "%RETRY%billing"), True),
        (["Group:billing Sub"], partial(send, "%RETRY%billing", "anything"), True),
        (["Group:billing Sub"], partial(send, "%RETRY%other", "billing"), False),
        (["Group:billing Sub"], partial(pull, "%RETRY%other"), False),
        (["Topic:* Pub"], partial(send, "%RETRY%billing"), False),
        # What waits for its time is everybody's: only its name opens it.
        (["* All"], partial(pull, "SCHEDULE_TOPIC_XXXX"), False),
        (["Topic:SCHED* Sub", "Group:* Sub"], partial(pull, "SCHEDULE_TOPIC_XXXX"), False),
        (
            ["Topic:SCHEDULE_TOPIC_XXXX Sub", "Group:* Sub"],
            partial(pull, "SCHEDULE_TOPIC_XXXX"),
            True,
        ),
        # Whoever is known may answer.
        ([], partial(reply, "c1_REPLY_TOPIC"), True),
        ([], partial(reply, "c2_REPLY_TOPIC"), False),
        ([], partial(send, "c1_REPLY_TOPIC"), False),
        # A topic without a broker, or to be made, has a producer ask for this one.
        ([], partial(route, "TBW102"), True),
        ([], partial(route, "c9_REPLY_TOPIC"), True),
        ([], partial(route, "orders"), False),
        # What changes the server is about its cluster.
        (["Cluster:c1 Update"], configuration, True),
        (["Cluster:* Update"], configuration, True),
        (["Cluster:c2 Update"], configuration, False),
        (["Cluster:c1 Get"], configuration, False),
        (["Topic:* All", "Group:* All"], configuration, False),
    ],
)
async def test_what_may_be_sent(
    make: Make, entries: list[str], request_: Callable[[], AccessRequest], is_allowed: bool
) -> None:
    rules = await make(*entries)
    # Signed now: a signature is good for a quarter of an hour only, and tests are collected long before.
    assert is_taken(rules, request_()) is is_allowed


async def test_every_resource_of_a_body_is_checked(make: Make) -> None:
    rules = await make("Topic:a Sub", "Group:g Sub")

    def heartbeat(*topics: str) -> AccessRequest:
        reported = [SubscriptionData(topic) for topic in topics]
        data = HeartbeatData("client", [ConsumerData("g", subscription_data_set=reported)])
        return asked(requests.HEART_BEAT, requests.HEART_BEAT.command(NoHeader(), data))

    assert is_taken(rules, heartbeat("a", "%RETRY%g"))
    assert not is_taken(rules, heartbeat("a", "b"))
    # A producer's names nothing to consume.
    producer = requests.HEART_BEAT.command(NoHeader(), HeartbeatData("client"))
    assert is_taken(rules, asked(requests.HEART_BEAT, producer))


async def test_an_administrators_request_that_names_nothing_is_about_the_cluster(
    make: Make,
) -> None:
    row = requests.UPDATE_AND_CREATE_TOPIC_LIST
    command = row.command(NoHeader(), TopicConfigList([]))
    assert not is_taken(await make("Topic:* All"), asked(row, command))


async def test_users_without_policies_do_all_but_administer(make: Make) -> None:
    rules = await make(authorization_enabled=False)
    assert is_taken(rules, send())
    assert not is_taken(rules, configuration())
    assert is_taken(rules, configuration(credentials=ADMIN))


async def test_white_lists_open_what_both_have(make: Make) -> None:
    both = await make(authentication_whitelist="310,11", authorization_whitelist="310")
    assert is_taken(both, send(credentials=None))
    # Nobody knows whose policies to ask.
    assert not is_taken(both, pull(credentials=None))
    assert not is_taken(both, pull())


async def test_what_a_user_may_do_is_known_without_a_request_of_his_own(make: Make) -> None:
    rules = await make("Topic:orders Pub")

    def may(user: str, topic: str) -> bool:
        row = requests.END_TRANSACTION
        return rules.permits(user, "10.0.0.1", row, ResourceKind.TOPIC, topic)

    assert may("amy", "orders")
    assert not may("amy", "letters")
    assert may(ADMIN.access_key, "letters")
    assert not may("bob", "orders")
    assert rules.sender_of(send()) == "amy"


async def test_who_needed_no_signature_for_a_heartbeat_was_told_half_messages(make: Make) -> None:
    """A client that proves no account may do only the things that everybody may."""
    white = {"authentication_whitelist": "310", "authorization_whitelist": "310"}
    rules = await make("Topic:orders Pub", **white)
    assert rules.sender_of(send(credentials=None)) == ""
    assert rules.sender_of(send(credentials=Credentials("amy", "no-key-of-hers"))) == ""
    assert rules.sender_of(send()) == "amy"

    def anybody_may(row: AnyRequestType) -> bool:
        return rules.permits("", "10.0.0.1", row, ResourceKind.TOPIC, "orders")

    assert anybody_may(requests.SEND_MESSAGE_V2)
    assert not anybody_may(requests.END_TRANSACTION)


async def test_verdicts_of_names_that_nothing_has_are_not_remembered(make: Make) -> None:
    rules = await make("Topic:* Pub")
    assert is_taken(rules, send("a" * 300))
    assert rules.verdict_count == 1
    assert is_taken(rules, send("a" * 301))
    assert rules.verdict_count == 1
    with pytest.raises(AccessRefusedError) as raised:
        rules.check(pull("a" * 100_000))
    assert len(str(raised.value)) < 1_000


async def test_a_verdict_is_remembered_until_something_changes(make: Make) -> None:
    rules = await make("Topic:orders Pub")
    assert is_taken(rules, send())
    assert rules.verdict_count == 1
    await rules.store.change(lambda book: book.delete_acl("User:amy", None, None))
    assert rules.verdict_count == 0
    assert not is_taken(rules, send())
    rules.most_verdicts = 10
    for number in range(100):
        is_taken(rules, send(f"t{number}"))
    assert rules.verdict_count <= 10


async def test_a_signature_that_says_when_it_was_made_is_taken_once(make: Make) -> None:
    rules = await make("Topic:orders Pub")
    request = send()
    assert is_taken(rules, request)
    with pytest.raises(AccessRefusedError, match=r"^not fresh: .*come already"):
        rules.check(request)


# The file


async def test_a_change_is_in_force_when_the_disk_has_it(tmp_path: Path) -> None:
    store = UserStore(tmp_path, files=SYSTEM_FILES, workers=THREADS)
    await store.open()
    await store.change(lambda book: book.create_user(UserInfo("amy", "secret")))
    again = UserStore(tmp_path, files=SYSTEM_FILES, workers=THREADS)
    assert await again.open()
    assert again.book == store.book
    store.close()
    again.close()


async def test_a_change_that_the_disk_does_not_take_is_not_made(tmp_path: Path) -> None:
    class Full(type(SYSTEM_FILES)):  # type: ignore[misc]  # the protocol's one implementation
        is_full = True

        def write_new(self, *args: Any) -> None:
            if self.is_full:
                raise OSError(28, "No space left on device")
            SYSTEM_FILES.write_new(*args)

    files = Full()
    store = UserStore(tmp_path, files=files, workers=THREADS)
    create = lambda book: book.create_user(UserInfo("amy", "secret"))  # noqa: E731 - used twice
    with pytest.raises(CometMQError, match=r"users.json could not be written.*room"):
        await store.change(create)
    assert store.book.users == {}
    files.is_full = False
    await store.change(create)
    assert list(store.book.users) == ["amy"]
    store.close()


async def test_changes_that_come_together_are_all_made(tmp_path: Path) -> None:
    store = UserStore(tmp_path, files=SYSTEM_FILES, workers=THREADS)

    async def create(number: int) -> None:
        await store.change(lambda book: book.create_user(UserInfo(f"u{number}", "secret")))

    await asyncio.gather(*map(create, range(50)))
    assert len(store.book.users) == 50
    store.close()


# Accounts of ACL 1.0

ACCOUNTS = """
globalWhiteRemoteAddresses: []
accounts:
  - {accessKey: RocketMQ1, secretKey: secret-one, admin: true}
  - accessKey: RocketMQ2
    secretKey: secret-two
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms: [orders=PUB|SUB, stock=DENY, odd=FLY]
    groupPerms: [billing=SUB]
"""


async def test_accounts_are_taken_over_once(make: Make, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    settings = {"migrate_auth_from_v1_enabled": True, "rocketmq_home": tmp_path}
    rules = await make(**settings)
    book = rules.store.book
    assert book.users["RocketMQ1"].user_type == "Super"
    assert book.users["RocketMQ2"].user_type == "Normal"
    assert {
        (one.policy_type, each.resource, ",".join(each.actions or ()), each.decision)
        for one in book.acls["User:RocketMQ2"].policies or []
        for each in one.entries or ()
    } == {
        ("Custom", "Topic:orders", "Pub,Sub", "Allow"),
        ("Custom", "Topic:stock", "All", "Deny"),
        ("Custom", "Topic:odd", "All", "Deny"),
        ("Custom", "Group:billing", "Sub", "Allow"),
        ("Default", "Topic:*", "All", "Deny"),
        ("Default", "Group:*", "Sub", "Allow"),
    }
    await rules.store.change(lambda book: book.without_user("RocketMQ2"))
    assert "RocketMQ2" not in (await make(**settings)).store.book.users


async def test_a_damaged_account_file_is_not_taken_over(make: Make, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text("accounts: [")
    with pytest.raises(ConfigError, match="plain_acl"):
        await make(migrate_auth_from_v1_enabled=True, rocketmq_home=tmp_path)
