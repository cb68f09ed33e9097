"""Access control of a cluster's brokers, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.routes import until_routed
from tests.waits import WAIT_S, until

from cometmq import ConsumeResult, LocalTransactionState, Message, MessageExt
from cometmq.admin.client import AdminClient
from cometmq.aio import Producer, PushConsumer, TransactionProducer
from cometmq.errors import AccessDeniedError, CometMQError, ServersFailedError
from cometmq.model.subscription import ProducerData
from cometmq.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from cometmq.protocol import requests
from cometmq.protocol.bodies.access import DeleteAccessConfigRequestHeader
from cometmq.protocol.bodies.cluster import HeartbeatData
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import GetMaxOffsetRequestHeader, PullMessageRequestHeader
from cometmq.remoting.client import RemotingClient
from cometmq.runtime.surroundings import current
from cometmq.testing import Account, Cluster, run

SHOP = Account("shop-service", topics={"orders": "PUB"})
BILLING = Account("billing-service", topics={"orders": "SUB"}, groups={"billing": "SUB"})
ELSE = Account("other-service", topics={"letters": "PUB|SUB"}, groups={"letters": "SUB"})


def guarded(main: Callable[[Cluster], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def inside() -> None:
        async with Cluster(clock="virtual", accounts=[SHOP, BILLING, ELSE], **options) as cluster:
            await main(cluster)

    run(inside(), seed=1)


async def sent(cluster: Cluster, account: Account | None, topic: str = "orders") -> str:
    """Send a message; return the id by which it lies at its broker."""
    credentials = None if account is None else account.credentials
    async with Producer("shop", namesrv=cluster.namesrv, credentials=credentials) as producer:
        result = await producer.send(Message(topic, b"tea", keys=["O-1"]))
        await until_routed(cluster, topic, result.queue.broker_name)
        return result.offset_msg_id


def test_who_may_send_sends_and_who_may_consume_consumes() -> None:
    async def main(cluster: Cluster) -> None:
        await sent(cluster, SHOP)
        bodies: list[bytes] = []

        async def bill(messages: list[Any]) -> ConsumeResult:
            bodies.extend(message.body for message in messages)
            return ConsumeResult.SUCCESS if len(bodies) > 1 else ConsumeResult.RECONSUME_LATER

        billing = PushConsumer(
            "billing", bill, namesrv=cluster.namesrv, credentials=BILLING.credentials
        )
        billing.subscribe("orders")
        async with billing:
            await cluster.wait_consumed("billing")
        assert bodies == [b"tea", b"tea"]

    guarded(main)


@pytest.mark.parametrize(
    ("account", "said"),
    [
        (None, "No accessKey is configured"),
        (Account("shop-service", "not-the-secret"), "Check signature failed"),
        (Account("nobody-here"), "No acl config for nobody-here"),
        (BILLING, "No permission for topic:orders"),
        (ELSE, "No default permission for topic:orders"),
    ],
)
def test_all_others_are_refused(account: Account | None, said: str) -> None:
    async def main(cluster: Cluster) -> None:
        with pytest.raises(AccessDeniedError, match=said) as raised:
            await sent(cluster, account)
        assert "a-secret-of-this-test" not in str(raised.value)
        assert await cluster.messages("orders") == []

    guarded(main)


def test_who_may_not_consume_does_not_start() -> None:
    async def main(cluster: Cluster) -> None:
        await sent(cluster, SHOP)

        async def never(_messages: list[Any]) -> ConsumeResult:
            raise AssertionError("a message came")

        spy = PushConsumer("letters", never, namesrv=cluster.namesrv, credentials=ELSE.credentials)
        spy.subscribe("orders")
        with pytest.raises(AccessDeniedError):
            await spy.start()
        await spy.close()

    guarded(main)


def test_a_refused_heartbeat_is_told_once() -> None:
    async def main(cluster: Cluster) -> None:
        await sent(cluster, SHOP)
        spy = Producer("spy", namesrv=cluster.namesrv, credentials=BILLING.credentials)
        member = PushConsumer(
            "letters", _take_all, namesrv=cluster.namesrv, credentials=BILLING.credentials
        )
        member.subscribe("orders")
        with capture_logs() as lines:
            async with spy:
                with pytest.raises(AccessDeniedError):
                    await member.start()
            await member.close()
        refused = [line for line in lines if line["event"] == "heartbeat refused"]
        assert len(refused) == 1, refused

    guarded(main)


async def _take_all(_messages: list[Any]) -> ConsumeResult:
    return ConsumeResult.SUCCESS


def test_a_message_is_not_read_by_its_place_without_a_right_to_its_topic() -> None:
    async def main(cluster: Cluster) -> None:
        msg_id = await sent(cluster, SHOP)
        async with AdminClient(cluster.namesrv, credentials=cluster.administrator) as admin:
            assert (await admin.messages.by_id(msg_id, topic="orders")).body == b"tea"
        async with AdminClient(cluster.namesrv, credentials=ELSE.credentials) as admin:
            # The topic that the request names is the sender's choice.
            for topic in ("orders", "letters"):
                with pytest.raises(AccessDeniedError, match="topic:orders"):
                    await admin.messages.by_id(msg_id, topic=topic)

    guarded(main)


def test_administrators_requests_are_for_administrators() -> None:
    async def main(cluster: Cluster) -> None:
        async with AdminClient(cluster.namesrv, credentials=SHOP.credentials) as admin:
            with pytest.raises((AccessDeniedError, ServersFailedError), match="Need admin perm"):
                await admin.topics.create("more", cluster="DefaultCluster")

    guarded(main)


def test_accounts_are_changed_by_requests_and_survive_a_restart() -> None:
    async def main(cluster: Cluster) -> None:
        async with AdminClient(cluster.namesrv, credentials=cluster.administrator) as admin:
            await admin.access.put_account(
                "new-service",
                "another-secret",
                topic_permissions={"orders": "PUB"},
                cluster="DefaultCluster",
            )
            new = Account("new-service", "another-secret")
            await sent(cluster, new)
            [files] = (await admin.access.account_files(cluster="DefaultCluster")).values()
            assert files.version.counter == 1
            await cluster.restart_broker()
            await sent(cluster, new)
            await admin.access.delete_account("new-service", cluster="DefaultCluster")
            with pytest.raises(AccessDeniedError, match="No acl config for new-service"):
                await sent(cluster, new)
            await sent(cluster, SHOP)

    guarded(main)


def test_a_white_listed_address_needs_no_signature() -> None:
    async def main(cluster: Cluster) -> None:
        with pytest.raises(AccessDeniedError):
            await sent(cluster, None)
        async with AdminClient(cluster.namesrv, credentials=cluster.administrator) as admin:
            await admin.access.set_white_addresses(["10.0.*.*"], cluster="DefaultCluster")
            await sent(cluster, None)
            await admin.access.set_white_addresses([], cluster="DefaultCluster")
        with pytest.raises(AccessDeniedError):
            await sent(cluster, None)

    guarded(main)


def test_a_changed_file_is_read_and_a_damaged_one_is_not_taken() -> None:
    async def main(cluster: Cluster) -> None:
        files = cluster.node("broker-a").disk.files
        path = cluster.directory / "accounts" / "broker-a" / "conf" / "plain_acl.yml"
        good = files.read(path)

        def write(data: bytes) -> None:
            files.write_new(path, [data])

        write(good.replace(b"orders=PUB", b"others=PUB"))
        await asyncio.sleep(6)
        with pytest.raises(AccessDeniedError):
            await sent(cluster, SHOP)
        write(good)
        await asyncio.sleep(6)
        await sent(cluster, SHOP)
        write(b"accounts: [{accessKey: short")
        await asyncio.sleep(6)
        await sent(cluster, SHOP)

    guarded(main)


def test_a_clock_that_is_wrong_is_named() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.skew_clock("broker-a", 3_600_000)
        with pytest.raises(AccessDeniedError, match="3600 s behind this server's") as raised:
            await sent(cluster, SHOP)
        assert "signatureMaxAgeSeconds is 300" in str(raised.value)

    guarded(main)


def test_no_request_shows_a_secret() -> None:
    async def main(cluster: Cluster) -> None:
        async with AdminClient(cluster.namesrv, credentials=cluster.administrator) as admin:
            address = cluster.brokers[0].address
            [config] = (await admin.brokers.config(broker=address)).values()
            assert config["aclEnable"] == "true"
            assert "hidden" not in str(config)
            with pytest.raises(CometMQError, match="aclEnable"):
                await admin.brokers.update_config({"aclEnable": "false"}, broker=address)

    guarded(
        main,
        properties={
            "innerClientAuthenticationCredentials": '{"accessKey":"a","secretKey":"hidden-one"}'
        },
    )


def test_a_cluster_without_accounts_serves_everybody() -> None:
    async def inside() -> None:
        async with Cluster(clock="virtual") as cluster:
            await sent(cluster, None)
            await sent(cluster, SHOP)

    run(inside(), seed=1)


def test_real_servers_take_accounts_too(tmp_path: Path) -> None:
    with Cluster(accounts=[SHOP], directory=tmp_path) as cluster:

        async def main() -> None:
            await sent(cluster, SHOP)
            with pytest.raises(AccessDeniedError):
                await sent(cluster, None)
            assert len(await cluster.messages("orders", 1)) == 1

        cluster.run(main())


class _Judge:
    """Leaves each transaction open, and notes what it is asked about."""

    def __init__(self, verdict: LocalTransactionState) -> None:
        self.asked: list[bytes] = []
        self._verdict = verdict

    async def execute(self, _message: Message, _arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    async def check(self, message: MessageExt) -> LocalTransactionState:
        self.asked.append(message.body)
        return self._verdict


def test_only_who_may_publish_to_a_topic_is_asked_about_its_transactions() -> None:
    """Any account may say to be a member of any producers' group."""

    async def main(cluster: Cluster) -> None:
        honest = _Judge(LocalTransactionState.COMMIT)
        spy = _Judge(LocalTransactionState.ROLLBACK)
        posing = TransactionProducer(
            "shop", listener=spy, namesrv=cluster.namesrv, credentials=ELSE.credentials
        )
        asking = TransactionProducer(
            "shop", listener=honest, namesrv=cluster.namesrv, credentials=SHOP.credentials
        )
        transactions = cluster.brokers[0].transactions
        async with posing, asking:
            await posing.send(Message("letters", b"a"))
            for number in range(4):
                await asking.send_in_transaction(Message("orders", b"tea %d" % number))
            await until(lambda: len(cluster.brokers[0].clients.producers("shop")) == 2)
            await until(lambda: transactions.unresolved_count == 0, wait_s=60, pause_s=0.1)
        assert len(honest.asked) == 4
        assert spy.asked == []
        assert len(await cluster.messages("orders")) == 4

    guarded(
        main,
        properties={"transactionTimeOut": "100", "transactionCheckInterval": "150"},
    )


def test_the_id_of_a_connected_client_stays_that_of_its_account() -> None:
    """Replies go to whoever is connected by the id that a request names."""

    async def main(cluster: Cluster) -> None:
        async with Producer(
            "shop", namesrv=cluster.namesrv, credentials=SHOP.credentials, instance_name="one"
        ) as asking:
            await asking.send(Message("orders", b"tea"))
            clients = cluster.brokers[0].clients
            await until(lambda: len(clients.producers("shop")) == 1)
            [member] = clients.producers("shop")
            thief = RemotingClient(credentials=ELSE.credentials, network=current().network)
            body = HeartbeatData(
                client_id=member.client_id, producer_data_set=[ProducerData("letters")]
            )
            try:
                answer = await thief.call(
                    cluster.brokers[0].address,
                    requests.HEART_BEAT.command(NoHeader(), body),
                    WAIT_S,
                )
            finally:
                await thief.close()
            # All trace producers of Java on one machine have one id, so this is no failure.
            assert answer.code == 0
            assert clients.producer_of(member.client_id) is member
            assert clients.producers("shop") == [member]
            # The account itself may come over another connection.
            own = RemotingClient(credentials=SHOP.credentials, network=current().network)
            try:
                answer = await own.call(
                    cluster.brokers[0].address,
                    requests.HEART_BEAT.command(NoHeader(), body),
                    WAIT_S,
                )
                assert answer.code == 0
            finally:
                await own.close()

    guarded(main)


def test_a_pull_that_waits_gets_nothing_once_its_account_is_removed() -> None:
    async def main(cluster: Cluster) -> None:
        await sent(cluster, SHOP)
        broker = cluster.brokers[0].address
        network = current().network
        billing = RemotingClient(credentials=BILLING.credentials, network=network)
        admin = RemotingClient(credentials=cluster.administrator, network=network)
        flags = PULL_SUBSCRIPTION | PULL_SUSPEND
        headers = [
            PullMessageRequestHeader(
                "billing", "orders", queue, 0, 32, flags, 0, 60_000, 0, "*", "TAG"
            )
            for queue in range(4)
        ]
        try:
            for header in headers:
                command = requests.GET_MAX_OFFSET.command(
                    GetMaxOffsetRequestHeader("orders", header.queue_id)
                )
                answer = await billing.call(broker, command, WAIT_S)
                header.queue_offset = int(answer.ext["offset"])
            pulls = [
                asyncio.ensure_future(
                    billing.call(broker, requests.PULL_MESSAGE.command(header), 90)
                )
                for header in headers
            ]
            await asyncio.sleep(1)
            assert not any(pull.done() for pull in pulls)
            command = requests.DELETE_ACL_CONFIG.command(
                DeleteAccessConfigRequestHeader("billing-service")
            )
            assert (await admin.call(broker, command, WAIT_S)).code == 0
            for _ in headers:
                await sent(cluster, SHOP)
            answers = await asyncio.gather(*pulls)
        finally:
            await billing.close()
            await admin.close()
        assert not any(answer.body for answer in answers)
        assert all("billing-service" in (answer.remark or "") for answer in answers)

    guarded(main)
