"""Users and policies at brokers and name servers, with slaves: in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
import structlog
from tests.waits import until

from cometmq import Credentials, Message, MessageExt
from cometmq.access.users.store import UserStore
from cometmq.admin.access.records import AclEntry
from cometmq.aio import AdminClient, Producer, PushConsumer
from cometmq.errors import AccessDeniedError, CometMQError, ConfigError
from cometmq.model.results import ConsumeResult
from cometmq.testing import Cluster

MASTER: Final = "broker-a"
SLAVE: Final = "broker-a-slave-1"
TOPIC: Final = "orders"
ADMIN: Final = Credentials("admin", "admin-secret")
SHOP: Final = Credentials("shop", "shop-secret")
GUARDED: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
}
# Until a slave has the tables of its master.
COPIED_S: Final = 15.0

Story = Callable[[Cluster], Coroutine[Any, Any, None]]


def play(
    story: Story,
    *,
    properties: dict[str, str] | None = None,
    namesrv: dict[str, str] | None = None,
    **options: Any,
) -> None:
    with Cluster(
        clock="virtual",
        properties={"defaultTopicQueueNums": "1", **GUARDED, **(properties or {})},
        namesrv_properties=GUARDED if namesrv is None else namesrv,
        **options,
    ) as cluster:
        cluster.run(story(cluster))


def admin(cluster: Cluster, credentials: Credentials | None = ADMIN) -> AdminClient:
    return AdminClient(cluster.namesrv, credentials=credentials)


def shop(cluster: Cluster, credentials: Credentials | None = SHOP) -> Producer:
    return Producer("shop", namesrv=cluster.namesrv, credentials=credentials, retry_times=0)


def users_at(cluster: Cluster, node: str) -> UserStore:
    users = cluster.broker(node).users
    assert users is not None
    return users


async def are_copied(cluster: Cluster) -> None:
    def are_equal() -> bool:
        slave, master = (users_at(cluster, node).book for node in (SLAVE, MASTER))
        return (slave.users, slave.acls) == (master.users, master.acls)

    await until(are_equal, wait_s=COPIED_S, pause_s=0.1)


async def make_users(client: AdminClient, **where: str) -> None:
    access = client.access
    await access.create_user("shop", SHOP.secret_key, **where)
    await access.create_acl("User:shop", [AclEntry("Topic:orders", ("Pub",))], **where)
    await access.create_user("billing", "billing-secret", **where)
    await access.create_acl(
        "User:billing",
        [AclEntry("Topic:orders", ("Sub",)), AclEntry("Group:billing", ("Sub",))],
        **where,
    )


async def bring_users(client: AdminClient, cluster: Cluster) -> None:
    """Make the users at the brokers, and bring them to the name server."""
    await client.topics.create(TOPIC, cluster="DefaultCluster")
    await make_users(client, cluster="DefaultCluster")
    await client.access.copy_users(MASTER, cluster.namesrv)
    await client.access.copy_acls(MASTER, cluster.namesrv)


def test_users_do_what_policies_say_from_an_empty_directory_on() -> None:
    async def story(cluster: Cluster) -> None:
        async with admin(cluster) as client:
            await bring_users(client, cluster)
        got: list[bytes] = []

        async def listen(messages: list[MessageExt]) -> ConsumeResult:
            got.extend(message.body for message in messages)
            return ConsumeResult.SUCCESS

        billing = Credentials("billing", "billing-secret")
        consumer = PushConsumer("billing", listen, namesrv=cluster.namesrv, credentials=billing)
        consumer.subscribe(TOPIC)
        async with consumer, shop(cluster) as producer:
            await producer.send(Message(TOPIC, b"one"))
            await until(lambda: got == [b"one"], wait_s=30, pause_s=0.1)
            with pytest.raises(CometMQError, match=r"User:shop has no permission .*Topic:stock"):
                await producer.send(Message("stock", b"two"))
        for stranger in (None, Credentials("shop", "wrong-secret"), Credentials("eve", "secret")):
            async with shop(cluster, stranger) as producer:
                with pytest.raises(CometMQError):
                    await producer.send(Message(TOPIC, b"three"))
        async with admin(cluster, SHOP) as client:
            with pytest.raises(AccessDeniedError, match="User:shop has no permission"):
                await client.topics.create("mine", cluster="DefaultCluster")

    play(story)


def test_a_change_counts_at_once_and_stays_over_a_kill() -> None:
    async def story(cluster: Cluster) -> None:
        async with admin(cluster) as client, shop(cluster) as producer:
            await bring_users(client, cluster)
            await producer.send(Message(TOPIC, b"one"))
            deny = [AclEntry("Topic:orders", ("Pub",), "Deny")]
            await client.access.update_acl("User:shop", deny, broker=MASTER)
            with pytest.raises(CometMQError, match="the decision is deny"):
                await producer.send(Message(TOPIC, b"two"))
            cluster.kill(MASTER)
            await cluster.restart(MASTER)
            with pytest.raises(CometMQError, match="the decision is deny"):
                await producer.send(Message(TOPIC, b"three"))
            await client.access.delete_acl("User:shop", "Topic:orders", broker=MASTER)
            with pytest.raises(CometMQError, match="no matched policies"):
                await producer.send(Message(TOPIC, b"four"))
            await client.access.delete_user("shop", broker=MASTER)
            with pytest.raises(CometMQError, match="User:shop is not found"):
                await producer.send(Message(TOPIC, b"five"))

    play(story)


def test_a_password_is_rotated_and_the_old_one_refused() -> None:
    async def story(cluster: Cluster) -> None:
        async with admin(cluster) as client:
            await bring_users(client, cluster)
            for broker in (MASTER, cluster.namesrv):
                await client.access.update_user("shop", password="new-secret", broker=broker)
        async with shop(cluster, Credentials("shop", "new-secret")) as producer:
            await producer.send(Message(TOPIC, b"one"))
        async with shop(cluster) as producer:
            with pytest.raises(CometMQError, match="check signature failed"):
                await producer.send(Message(TOPIC, b"two"))

    play(story)


def test_the_file_is_for_its_owner_and_no_request_and_no_log_shows_a_secret() -> None:
    async def story(cluster: Cluster) -> None:
        with structlog.testing.capture_logs() as logs:
            async with admin(cluster) as client:
                await bring_users(client, cluster)
                configured = await client.brokers.config(broker=MASTER)
                at_namesrv = await client.name_servers.config()
        for reported in (configured, at_namesrv, logs):
            for secret in ("admin-secret", "inner-secret", "shop-secret"):
                assert secret not in repr(reported)
        path = users_at(cluster, MASTER).path
        files = cluster.broker(MASTER).parts.files
        assert files.permissions(path) == 0o600
        assert {user["username"] for user in json.loads(files.read(path))["users"]} == {
            "admin",
            "inner",
            "shop",
            "billing",
        }

    play(story)


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"users":[{"username":"eve"}]}', None])
def test_a_damaged_file_keeps_the_broker_from_starting_though_there_is_a_backup(
    damage: bytes | None,
) -> None:
    async def story(cluster: Cluster) -> None:
        async with admin(cluster) as client:
            await make_users(client, broker=MASTER)
        path = users_at(cluster, MASTER).path
        files = cluster.broker(MASTER).parts.files
        await cluster.stop_broker(MASTER)
        good = files.read(path)
        assert files.exists(path.with_name("users.json.bak"))
        files.remove(path)
        if damage is not None:
            files.write_new(path, [damage])
        with pytest.raises(ConfigError, match=r"users.json.* (damaged|missing).*users.json.bak"):
            await cluster.restart(MASTER)
        files.write_new(path, [good])
        await cluster.restart(MASTER)
        assert "shop" in users_at(cluster, MASTER).book.users

    play(story)


def test_a_slave_has_the_users_of_its_master_and_keeps_them_as_the_master() -> None:
    async def story(cluster: Cluster) -> None:
        async with admin(cluster) as client, shop(cluster) as producer:
            await bring_users(client, cluster)
            await are_copied(cluster)
            await client.access.delete_user("billing", broker=MASTER)
            await client.access.update_user("shop", password="new-secret", broker=MASTER)
            await are_copied(cluster)
            assert "billing" not in users_at(cluster, SLAVE).book.users
            await client.access.update_user("shop", password=SHOP.secret_key, broker=MASTER)
            await are_copied(cluster)
            await producer.send(Message(TOPIC, b"one"))
            cluster.kill(MASTER)
            await asyncio.sleep(10)
            await cluster.promote(SLAVE)
            await producer.send(Message(TOPIC, b"two"))
            with pytest.raises(CometMQError, match="User:shop has no permission"):
                await producer.send(Message("stock", b"three"))
            # What changes now is on the former master when that comes back as a slave.
            new_master = cluster.broker(SLAVE).address
            await client.access.update_user("shop", state="disable", broker=new_master)
            await cluster.demote(MASTER)
            await are_copied(cluster)
            assert users_at(cluster, MASTER).book.users["shop"].user_status == "disable"

    play(story, slaves=1)


def test_a_change_at_a_slave_is_made_by_the_master_for_whoever_may_ask_it() -> None:
    async def story(cluster: Cluster) -> None:
        slave = cluster.broker(SLAVE).address
        async with admin(cluster) as client:
            await bring_users(client, cluster)
            await are_copied(cluster)
            await client.access.create_user("amy", "amy-secret", broker=slave)
            assert "amy" in users_at(cluster, MASTER).book.users
            await are_copied(cluster)
            # As `mqadmin -c` does, to master and slave.
            await client.access.create_user("bob", "bob-secret", cluster="DefaultCluster")
            await client.access.delete_user("bob", cluster="DefaultCluster")
            with pytest.raises(CometMQError, match="The user is not exist"):
                await client.access.update_user("carl", state="disable", broker=slave)
            # The master judges: the slave does not know yet that amy has become nobody.
            await client.access.create_acl(
                "User:amy", [AclEntry("Cluster:*", ("Update",))], broker=MASTER
            )
            await are_copied(cluster)
            await client.access.delete_user("amy", broker=MASTER)
            async with admin(cluster, Credentials("amy", "amy-secret")) as amy:
                with pytest.raises(CometMQError, match="User:amy is not found"):
                    await amy.access.create_user("eve", "eve-secret", broker=slave)
            assert "eve" not in users_at(cluster, MASTER).book.users

    play(story, slaves=1)


def test_a_broker_with_wrong_credentials_says_who_refuses_it_and_registers_when_it_may() -> None:
    async def story(cluster: Cluster) -> None:
        live = cluster.name_servers[0].table.live
        async with admin(cluster) as client:
            at = cluster.namesrv
            with structlog.testing.capture_logs() as logs:
                await client.access.update_user("inner", password="rotated", broker=at)
                # Java's name servers forget a silent broker as late, too.
                await until(lambda: not live(), wait_s=200, pause_s=1)
                await asyncio.sleep(60)
            refused = [line for line in logs if line["event"] == "registration refused"]
            assert len(refused) == 1
            assert refused[0]["name_server"] == cluster.namesrv
            for words in ("check signature failed", "set innerClientAuthenticationCredentials"):
                assert words in refused[0]["reason"]
            assert "inner-secret" not in repr(logs)
            # The broker serves on meanwhile.
            await client.access.users(broker=cluster.broker(MASTER).address)
            await client.access.update_user("inner", password="inner-secret", broker=at)
            await until(live, wait_s=60, pause_s=1)

    play(story)


def test_a_slave_whose_master_refuses_it_says_so_and_keeps_what_it_has() -> None:
    async def story(cluster: Cluster) -> None:
        async with admin(cluster) as client:
            await bring_users(client, cluster)
            await are_copied(cluster)
            with structlog.testing.capture_logs() as logs:
                await client.access.update_user("inner", password="rotated", broker=MASTER)
                await client.access.delete_user("billing", broker=MASTER)
                await asyncio.sleep(60)
            reported = [
                line
                for line in logs
                if line["event"] == "not copied from the master" and line["what"] == "tables"
            ]
            assert len(reported) == 1
            assert "check signature failed" in reported[0]["reason"]
            assert "innerClientAuthenticationCredentials" in reported[0]["remedy"]
            assert "billing" in users_at(cluster, SLAVE).book.users
            await client.access.update_user("inner", password="inner-secret", broker=MASTER)
            await are_copied(cluster)

    play(story, slaves=1)


def test_a_normal_user_cannot_become_more_and_sees_no_passwords() -> None:
    async def story(cluster: Cluster) -> None:
        async with admin(cluster) as client:
            await bring_users(client, cluster)
            everything = [AclEntry("Cluster:*", ("All",))]
            await client.access.create_acl("User:shop", everything, broker=MASTER)
        async with admin(cluster, SHOP) as client:
            access = client.access
            for attempt in (
                access.create_user("eve", "eve-secret", kind="Super", broker=MASTER),
                access.update_user("shop", kind="Super", broker=MASTER),
                access.update_user("admin", password="mine-now", broker=MASTER),
                access.delete_user("inner", broker=MASTER, missing_ok=True),
            ):
                with pytest.raises(CometMQError, match="The super user can only be"):
                    await attempt
            (users,) = (await access.users(broker=MASTER)).values()
            assert {user.name: user.password for user in users} == dict.fromkeys(
                ("admin", "billing", "inner", "shop")
            )
            await access.create_user("amy", "amy-secret", broker=MASTER)

    play(story)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"authenticationEnabled": "false"}, "authorizationEnabled=true needs"),
        ({"aclEnable": "true"}, "exclude each other"),
        ({"initAuthenticationUser": "admin:top-secret"}, "initAuthenticationUser must be"),
        ({"innerClientAuthenticationCredentials": "{}"}, "innerClient.* must be"),
        ({"authenticationWhitelist": "10,3001"}, "authenticationWhitelist has 3001"),
        ({"authorizationWhitelist": "10;11"}, "authorizationWhitelist=10;11 does not fit"),
        ({"migrateAuthFromV1Enabled": "true"}, "rocketmqHome"),
        ({"authenticationMetadataProvider": "com.acme.Ldap"}, "class of Java"),
    ],
)
def test_settings_that_would_not_protect_keep_a_server_from_starting(
    settings: dict[str, str], words: str
) -> None:
    async def story(_cluster: Cluster) -> None:
        pass

    with pytest.raises(ConfigError, match=words) as caught:
        play(story, properties=settings)
    assert "top-secret" not in str(caught.value)
