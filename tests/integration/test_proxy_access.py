"""Test who may call the proxy, in front of brokers with users and policies (ACL 2.0)."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from tests.integration.grpc_client import GrpcClient
from tests.integration.routes import until_routed
from tests.waits import WAIT_S, until

from cometmq import Credentials
from cometmq.access.config import AccessConfig
from cometmq.admin.access.records import AclEntry
from cometmq.aio import AdminClient
from cometmq.errors import ConfigError
from cometmq.proxy.access import accounts
from cometmq.proxy.access.gate import RIGHTS
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.configuration.front_config import FrontConfig
from cometmq.proxy.server import Proxy
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.testing import Cluster

pytestmark = pytest.mark.real_time

ADMIN: Final = Credentials("admin", "admin-secret")
INNER: Final = '{"accessKey":"inner","secretKey":"inner-secret"}'
GUARDED: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
    "innerClientAuthenticationCredentials": INNER,
}
NOW: Final = "20261129T170000Z"
TOPIC: Final = {"name": "orders"}
GROUP: Final = {"name": "billing"}
QUEUE: Final = {"topic": TOPIC, "broker": {"name": "broker-a"}}


def signed(
    user: str,
    secret: str,
    date: str = NOW,
    *,
    credential: str = "{}",
    spell: Callable[[str], str] = str,
) -> tuple[tuple[str, str], ...]:
    signature = spell(hmac.new(secret.encode(), date.encode(), "sha1").hexdigest())
    value = (
        f"MQv2-HMAC-SHA1 Credential={credential.format(user)}, SignedHeaders=x-mq-date-time, "
        f"Signature={signature}"
    )
    return ("authorization", value), ("x-mq-date-time", date)


@asynccontextmanager
async def guarded(
    cluster: Cluster, front: FrontConfig | None = None, *, authorizes: bool = True
) -> AsyncIterator[Proxy]:
    config = ProxyConfig(
        [str(cluster.namesrv)],
        port=0,
        drain_s=0.2,
        front=front or FrontConfig(),
        control=AccessConfig(
            authentication_enabled=True,
            authorization_enabled=authorizes,
            inner_client_authentication_credentials=INNER,
        ),
    )
    proxy = Proxy(config)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(properties=GUARDED, namesrv_properties=GUARDED) as cluster:
        async with AdminClient(namesrv=cluster.namesrv, credentials=ADMIN) as admin:
            await admin.topics.create("orders", cluster="DefaultCluster")
            await until_routed(cluster, "orders", "broker-a")
            for user in ("seller", "buyer", "nobody"):
                await admin.access.create_user(user, f"{user}-secret", cluster="DefaultCluster")
            await admin.access.create_acl(
                "User:seller", [AclEntry("Topic:orders", ("Pub",))], cluster="DefaultCluster"
            )
            await admin.access.create_acl(
                "User:buyer",
                [AclEntry("Topic:orders", ("Sub",)), AclEntry("Group:billing", ("Sub",))],
                cluster="DefaultCluster",
            )
        yield cluster


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[Proxy]:
    async with guarded(cluster) as proxy:
        yield proxy


def client(proxy: Proxy, *metadata: tuple[str, str], client_id: str = "client-1") -> GrpcClient:
    return GrpcClient(f"127.0.0.1:{proxy.port}", client_id=client_id, metadata=metadata)


def of(proxy: Proxy, user: str, client_id: str = "client-1") -> GrpcClient:
    return client(proxy, *signed(user, f"{user}-secret"), client_id=client_id)


MESSAGE: Final = {"topic": TOPIC, "body": b"x", "system_properties": {"message_id": "m-1"}}
# Each call with what it needs at least, by the user who has the rights.
CALLS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "SendMessage": ("seller", {"messages": [MESSAGE]}),
    "RecallMessage": ("seller", {"topic": TOPIC, "recall_handle": "x"}),
    "EndTransaction": ("seller", {"topic": TOPIC, "transaction_id": "x"}),
    "QueryRoute": ("seller", {"topic": TOPIC}),
    "QueryAssignment": ("buyer", {"topic": TOPIC, "group": GROUP}),
    "AckMessage": ("buyer", {"topic": TOPIC, "group": GROUP, "entries": [{"message_id": "x"}]}),
    "ForwardMessageToDeadLetterQueue": ("buyer", {"topic": TOPIC, "group": GROUP}),
    "ChangeInvisibleDuration": ("buyer", {"topic": TOPIC, "group": GROUP}),
    "Heartbeat": ("buyer", {"group": GROUP}),
    "NotifyClientTermination": ("buyer", {"group": GROUP}),
    "SyncLiteSubscription": ("buyer", {"topic": TOPIC, "group": GROUP}),
    "UpdateOffset": ("buyer", {"group": GROUP, "message_queue": QUEUE}),
    "GetOffset": ("buyer", {"group": GROUP, "message_queue": QUEUE}),
    "QueryOffset": ("buyer", {"message_queue": QUEUE}),
}
STREAMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "ReceiveMessage": ("buyer", {"group": GROUP, "message_queue": QUEUE}),
    "PullMessage": ("buyer", {"group": GROUP, "message_queue": QUEUE}),
}
REFUSED: Final = (wire.UNAUTHORIZED, wire.FORBIDDEN)


def test_each_call_has_its_rights() -> None:
    assert RIGHTS.keys() == CALLS.keys() | STREAMS.keys() | {"Telemetry"}


async def test_each_call_needs_its_rights(proxy: Proxy) -> None:
    async def status(name: str, metadata: tuple[tuple[str, str], ...]) -> wire.Status:
        async with client(proxy, *metadata) as caller:
            if name in STREAMS:
                answers = await caller.answers(name, **STREAMS[name][1])
                found: wire.Status = answers[0].status
            else:
                found = (await caller.call(name, **CALLS[name][1])).status
            return found

    for name, (user, _) in {**CALLS, **STREAMS}.items():
        assert (await status(name, signed(user, f"{user}-secret"))).code not in REFUSED, name
        assert (await status(name, ())).code == wire.UNAUTHORIZED, name
        refused = await status(name, signed("nobody", "nobody-secret"))
        assert refused.code == wire.FORBIDDEN, name
        assert "User:nobody has no right" in refused.message
        assert "Topic:orders" in refused.message or "Group:billing" in refused.message
    assert proxy.gate is not None
    assert proxy.gate.refusals == {
        "unsigned": len(CALLS) + len(STREAMS),
        "permission": len(CALLS) + len(STREAMS),
    }


async def test_a_seller_may_not_read_and_a_buyer_not_sell(proxy: Proxy) -> None:
    async with of(proxy, "seller") as seller, of(proxy, "buyer", "client-2") as buyer:
        answer = await seller.call("AckMessage", **CALLS["AckMessage"][1])
        assert answer.status.code == wire.FORBIDDEN
        assert "Sub to Group:billing" in answer.status.message
        answer = await buyer.call("SendMessage", **CALLS["SendMessage"][1])
        assert answer.status.code == wire.FORBIDDEN
        assert "Pub to Topic:orders" in answer.status.message


@pytest.mark.parametrize(
    "metadata",
    [
        signed("seller", "seller-secret", spell=str.upper),
        signed("seller", "seller-secret", spell=str.lower),
        signed("seller", "seller-secret", credential="{}//Rocketmq"),
        signed("seller", "seller-secret", credential="{}/region/service"),
        signed("seller", "seller-secret", "2026-11-29T17:00:00.123456+01:00"),
        signed("seller", "seller-secret", "any text"),
    ],
)
async def test_signatures_of_all_clients_are_taken(
    proxy: Proxy, metadata: tuple[tuple[str, str], ...]
) -> None:
    async with client(proxy, *metadata) as caller:
        assert await caller.route("orders") == wire.OK


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (signed("seller", "wrong"), "signature of User:seller is wrong"),
        (signed("stranger", "x"), "User:stranger is not known"),
        (signed("x" * 500, "x"), "is not known"),
        (signed("", ""), "not signed"),
        (signed("seller", "seller-secret")[:1], "signature of User:seller is wrong"),
        (signed("seller", "seller-secret", spell=lambda _: "no hex"), "signature of"),
        ((("authorization", "Bearer x"),), "not signed"),
        ((("authorization", "MQv2-HMAC-SHA1 Credential=" + "x" * 2000),), "not signed"),
    ],
)
async def test_other_calls_are_not_authentic(
    proxy: Proxy, metadata: tuple[tuple[str, str], ...], reason: str
) -> None:
    async with client(proxy, *metadata) as caller:
        answer = await caller.call("QueryRoute", topic=TOPIC)
    assert answer.status.code == wire.UNAUTHORIZED
    assert reason in answer.status.message
    assert "secret-" not in answer.status.message


def publishing() -> wire.TelemetryCommand:
    topics = wire.Publishing(topics=[wire.Resource(name="orders")])
    return wire.TelemetryCommand(
        settings=wire.Settings(client_type=wire.PRODUCER, publishing=topics)
    )


async def test_telemetry_needs_the_rights_of_its_settings(proxy: Proxy) -> None:
    async with of(proxy, "seller") as seller:
        stream = seller.telemetry()
        await stream.write(publishing())
        assert (await stream.read()).status.code == wire.OK
        stream.cancel()
    for metadata in ((), signed("buyer", "buyer-secret")):
        async with client(proxy, *metadata) as other:
            stream = other.telemetry()
            await stream.write(publishing())
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await stream.read()
            assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "User:buyer" in str(failure.value.details()) or not metadata


async def test_a_client_id_belongs_to_its_user(proxy: Proxy) -> None:
    async with of(proxy, "seller") as seller, of(proxy, "buyer") as thief:
        stream = seller.telemetry()
        await stream.write(publishing())
        assert (await stream.read()).status.code == wire.OK
        answer = await thief.call("NotifyClientTermination")
        assert answer.status.code == wire.FORBIDDEN
        assert "another user" in answer.status.message
        assert (await seller.call("Heartbeat")).status.code == wire.OK
        stream.cancel()


async def test_a_super_user_may_do_all_and_a_disabled_user_nothing(
    proxy: Proxy, cluster: Cluster
) -> None:
    async with client(proxy, *signed("admin", "admin-secret")) as caller:
        assert (await caller.call("SendMessage", messages=[MESSAGE])).status.code == wire.OK
    async with AdminClient(namesrv=cluster.namesrv, credentials=ADMIN) as admin:
        await admin.access.update_user("nobody", state="disable", cluster="DefaultCluster")
    async with of(proxy, "nobody") as caller:
        answer = await caller.call("QueryRoute", topic=TOPIC)
    assert answer.status.code == wire.UNAUTHORIZED
    assert "User:nobody is disabled" in answer.status.message


async def test_a_change_of_rights_is_in_force_when_the_old_ones_are_forgotten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "REMEMBER_S", 0.2)
    async with guarded(cluster) as proxy, of(proxy, "seller") as seller:
        assert await seller.route("orders") == wire.OK
        async with AdminClient(namesrv=cluster.namesrv, credentials=ADMIN) as admin:
            await admin.access.delete_acl("User:seller", cluster="DefaultCluster")
            await until(lambda: seller.route("orders"), lambda code: code == wire.FORBIDDEN)
            await admin.access.delete_user("seller", cluster="DefaultCluster")
            await until(lambda: seller.route("orders"), lambda code: code == wire.UNAUTHORIZED)


async def test_a_user_is_not_served_when_no_broker_answers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "REMEMBER_S", 0.2)
    async with guarded(cluster) as proxy, of(proxy, "seller") as seller:
        assert await seller.route("orders") == wire.OK
        address = cluster.broker("broker-a").address
        await cluster.stop_broker("broker-a")

        async def status() -> wire.Status:
            found: wire.Status = (await seller.call("QueryRoute", topic=TOPIC)).status
            return found

        refused = await until(status, lambda found: found.code == wire.PROXY_TIMEOUT)
    assert "user seller" in refused.message
    assert "unknown" in refused.message
    assert address in refused.message or "no cluster" in refused.message


async def test_a_proxy_without_the_rights_to_read_users_says_so(cluster: Cluster) -> None:
    config = ProxyConfig(
        [str(cluster.namesrv)],
        port=0,
        drain_s=0.2,
        control=AccessConfig(
            authentication_enabled=True,
            inner_client_authentication_credentials='{"accessKey":"buyer","secretKey":"buyer-secret"}',
        ),
    )
    proxy = Proxy(config)
    await proxy.start()
    async with of(proxy, "seller") as seller:
        answer = await seller.call("QueryRoute", topic=TOPIC)
    await proxy.close()
    assert answer.status.code == wire.PROXY_TIMEOUT
    assert "unknown" in answer.status.message


async def test_without_authorisation_each_user_may_do_all(cluster: Cluster) -> None:
    config = ProxyConfig(
        [str(cluster.namesrv)],
        port=0,
        drain_s=0.2,
        control=AccessConfig(
            authentication_enabled=True, inner_client_authentication_credentials=INNER
        ),
    )
    proxy = Proxy(config)
    await proxy.start()
    async with of(proxy, "nobody") as caller:
        assert (await caller.call("SendMessage", messages=[MESSAGE])).status.code == wire.OK
    await proxy.close()


async def test_names_without_a_user_cost_brokers_a_bounded_number_of_questions(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "MAX_NEW_ACCOUNTS_PER_SECOND", 0)
    async with of(proxy, "seller") as seller:
        answer = await seller.call("QueryRoute", topic=TOPIC)
    assert answer.status.code == wire.TOO_MANY_REQUESTS
    assert "limit MAX_NEW_ACCOUNTS_PER_SECOND is 0; " in answer.status.message
    assert proxy.limit_hits.counts["MAX_NEW_ACCOUNTS_PER_SECOND"] == 1


def written(offset: timedelta = timedelta()) -> str:
    return (datetime.now(UTC) + offset).strftime("%Y%m%dT%H%M%SZ")


async def test_old_signatures_are_refused_if_a_window_is_set(cluster: Cluster) -> None:
    async with guarded(cluster, FrontConfig(grpc_signature_max_age_seconds=60)) as proxy:
        rfc_3339 = datetime.now(timezone(timedelta(hours=5))).isoformat()
        for date in (written(), rfc_3339):
            async with client(proxy, *signed("seller", "seller-secret", date)) as caller:
                assert await caller.route("orders") == wire.OK
        for date in (written(-timedelta(minutes=5)), written(timedelta(hours=2)), NOW, "soon"):
            async with client(proxy, *signed("seller", "seller-secret", date)) as caller:
                answer = await caller.call("QueryRoute", topic=TOPIC)
            assert answer.status.code == wire.UNAUTHORIZED, date
            assert "grpcSignatureMaxAgeSeconds" in answer.status.message
        assert proxy.limit_hits.counts["grpcSignatureMaxAgeSeconds"] == 4


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"acl_enable": True}, "aclEnable"),
        ({"authorization_enabled": True}, "authenticationEnabled"),
    ],
)
async def test_access_control_that_a_proxy_cannot_do_is_refused(
    given: dict[str, Any], reason: str
) -> None:
    config = ProxyConfig(["127.0.0.1:1"], port=0, control=AccessConfig(**given))
    with pytest.raises(ConfigError, match=reason):
        await Proxy(config).start()


async def test_an_unknown_cluster_is_named(cluster: Cluster) -> None:
    front = FrontConfig(rocketmq_cluster_name="Other")
    async with guarded(cluster, front) as proxy, of(proxy, "seller") as seller:
        answer = await seller.call("QueryRoute", timeout_s=WAIT_S, topic=TOPIC)
    assert answer.status.code == wire.PROXY_TIMEOUT
    assert "rocketMQClusterName" in answer.status.message
