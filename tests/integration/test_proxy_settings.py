"""Test that the settings of a proxy change how it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.integration.routes import until_routed
from tests.integration.test_proxy import Client, message_to

from cometmq.aio import AdminClient
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.server import Proxy
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.testing import Cluster

pytestmark = pytest.mark.real_time


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.topics.create(
                "normal", read_queues=1, write_queues=1, cluster="DefaultCluster"
            )
        await until_routed(cluster, "normal", "broker-a")
        yield cluster


@asynccontextmanager
async def _client(cluster: Cluster, settings: ProxySettings) -> AsyncIterator[Client]:
    proxy = Proxy(ProxyConfig([cluster.namesrv], port=0, drain_s=0.5, settings=settings))
    await proxy.start()
    client = Client(proxy.port)
    try:
        yield client
    finally:
        if client.stream is not None:
            client.stream.cancel()
        await client.channel.close()
        await proxy.close()


async def test_sends_obey_the_settings(cluster: Cluster) -> None:
    settings = ProxySettings(
        max_message_size=10,
        user_property_max_num=1,
        max_user_property_size=20,
        max_message_group_size=3,
        max_delay_time_mills=1000,
        max_transaction_recovery_second=5,
        enable_topic_message_type_check=False,
    )
    at = wire.SystemProperties()
    at.delivery_timestamp.GetCurrentTime()
    at.delivery_timestamp.seconds += 60
    async with _client(cluster, settings) as client:
        for message, code, limit in (
            (message_to("normal", bytes(11)), wire.MESSAGE_BODY_TOO_LARGE, "maxMessageSize of 10"),
            (message_to("normal", b""), wire.MESSAGE_BODY_EMPTY, "at least one byte"),
            (message_to("normal", message_group="long"), wire.ILLEGAL_MESSAGE_GROUP, "is 3"),
            (message_to("normal", tag="x" * 21), wire.MESSAGE_PROPERTIES_TOO_LARGE, "is 20"),
            (
                message_to("normal", delivery_timestamp=at.delivery_timestamp),
                wire.ILLEGAL_DELIVERY_TIME,
                "maxDelayTimeMills is 1000",
            ),
            (
                message_to(
                    "normal",
                    message_type=wire.TRANSACTION,
                    orphaned_transaction_recovery_duration={"seconds": 6},
                ),
                wire.BAD_REQUEST,
                "maxTransactionRecoverySecond is 5",
            ),
        ):
            status = (await client.send(message)).status
            assert status.code == code, status
            assert limit in status.message
        many = message_to("normal")
        many.user_properties.update({"a": "1", "b": "2"})
        status = (await client.send(many)).status
        assert "userPropertyMaxNum is 1" in status.message
        # The topic is of the type NORMAL.
        assert (await client.send(message_to("normal", message_group="abc"))).status.code == wire.OK


async def test_receives_and_clients_obey_the_settings(cluster: Cluster) -> None:
    settings = ProxySettings(
        grpc_client_consumer_min_long_polling_timeout_millis=0,
        grpc_client_consumer_max_long_polling_timeout_millis=300,
        grpc_client_consumer_long_polling_batch_size=2,
        min_invisible_time_mills_for_recv=100,
        max_invisible_time_mills=20_000,
        grpc_client_producer_max_attempts=7,
    )
    async with _client(cluster, settings) as client:
        taken = (await client.consume("normal")).settings.subscription
        assert taken.receive_batch_size == 2
        assert taken.long_polling_timeout.ToMilliseconds() == 300
        assert await client.receive("normal", long_polling_timeout={"seconds": 60}) == []
        for body in (b"1", b"2", b"3"):
            await client.send(message_to("normal", body))
        messages = await client.receive(
            "normal", invisible_s=0, invisible_duration={"nanos": 100_000_000}
        )
        assert len(messages) == 2
        answers = await client.answers(
            "ReceiveMessage",
            group={"name": "billing"},
            message_queue={"topic": {"name": "normal"}},
            invisible_duration={"seconds": 21},
        )
        assert answers[0].status.code == wire.ILLEGAL_INVISIBLE_TIME
        assert "100 to 20000 ms" in answers[0].status.message
        producer = wire.Settings(
            client_type=wire.PRODUCER,
            publishing=wire.Publishing(topics=[wire.Resource(name="normal")]),
        )
        policy = (await client.open(producer)).settings.backoff_policy
        assert policy.max_attempts == 7


async def test_a_proxy_that_renews_nothing_hides_for_the_time_of_the_request(
    cluster: Cluster,
) -> None:
    async with _client(cluster, ProxySettings(enable_proxy_auto_renew=False)) as client:
        await client.consume("normal")
        await client.send(message_to("normal"))
        [message] = await client.receive("normal", invisible_s=15, auto_renew=True)
        handle = message.system_properties.receipt_handle.split(" ")
        assert handle[2] == "15000"


async def test_an_empty_body_is_left_to_the_broker_where_the_proxy_does_not_check_it(
    cluster: Cluster,
) -> None:
    settings = ProxySettings(enable_message_body_empty_check=False)
    async with _client(cluster, settings) as client:
        # Java's brokers take it.
        status = (await client.send(message_to("normal", b""))).status
        assert "MESSAGE_ILLEGAL" in status.message
