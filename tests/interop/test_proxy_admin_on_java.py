"""The service Admin of our proxy in front of the newest Java broker."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest
from tests.integration.test_proxy import Client, message_to
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker, JavaNamesrv
from tests.waits import until

from cometmq import ConsumeResult
from cometmq.aio import AdminClient, PushConsumer
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.server import Proxy
from cometmq.proxy.wire import messaging_pb2 as wire

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC: Final = {"name": "orders"}
GROUP: Final = {"name": "billing"}


async def call(client: Client, name: str, **fields: Any) -> Any:
    answer = await client.admin(name, **fields)
    assert answer.status.code == wire.OK, (name, answer.status)
    return answer


async def administer(client: Client, namesrv: str) -> None:
    got: list[bytes] = []

    def listen(messages: list[Any]) -> ConsumeResult:
        got.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    route = json.loads((await call(client, "GetTopicRoute", topic=TOPIC)).topic_route_data)
    assert [each["brokerName"] for each in route["queueDatas"]] == ["broker-a"]
    status = await call(client, "DescribeTopicStatus", topic=TOPIC)
    assert status.topic_message_type == wire.NORMAL
    missing = await client.admin("DescribeGroupAccumulation", group={"name": "nobody"})
    assert missing.status.code == wire.CONSUMER_GROUP_NOT_FOUND, missing.status
    missing = await client.admin("ListConsumerConnection", group={"name": "nobody"})
    assert missing.status.code == wire.NOT_FOUND, missing.status
    consumer = PushConsumer("billing", namesrv=namesrv, listener=listen)
    consumer.subscribe("orders")
    async with consumer:

        async def members() -> list[str]:
            answer = await client.admin("ListConsumerConnection", group=GROUP)
            return [each.client_id for each in answer.client_info]

        (client_id,) = await until(members)
        sent = await call(client, "AdminSendMessage", topic=TOPIC, key="o-1", body=b"by hand")
        await until(lambda: got == [b"by hand"])
        member = {"group": GROUP, "client_id": client_id}
        info = (await call(client, "GetConsumerRunningInfo", **member)).consumer_running_info
        assert info.subscriptions["orders"].expression == "*"
        stacks = await call(client, "PrintThreadStackTrace", **member)
        assert "MainThread" in stacks.thread_stack_trace
        for name in ("ListSubscription", "DescribeSubscription"):
            assert (await call(client, name, group=GROUP)).ListFields()[1:]

        async def found() -> Any:
            return await client.admin("QueryMessage", topic=TOPIC, message_key="o-1")

        answer = await until(found, lambda found: found.messages)
        assert [each.body for each in answer.messages] == [b"by hand"]
        await call(client, "VerifyMessage", topic=TOPIC, message_id=sent.message_id, **member)
        assert got == [b"by hand"] * 2

        async def waiting() -> int:
            answer = await client.admin("DescribeGroupAccumulation", group=GROUP, topics=[TOPIC])
            if answer.status.code != wire.OK:
                return -1
            count: int = answer.topic_accumulation["orders"].accumulation
            return count

        await until(waiting, lambda count: count == 0)
        spans = (await call(client, "QueryTimeSpan", group=GROUP)).queue_time_span_list
        assert {at.message_queue.broker.name for at in spans} == {"broker-a"}
    await call(client, "ResetGroupOffset", group=GROUP, topic=TOPIC, reset_timestamp={"seconds": 1})
    await client.send(message_to("orders", b"another"))

    async def again() -> int:
        answer = await client.admin("DescribeGroupAccumulation", group=GROUP, topics=[TOPIC])
        count: int = answer.topic_accumulation["orders"].accumulation
        return count

    assert await until(again, lambda count: count == 2) == 2


def test_the_service_admin_in_front_of_java() -> None:
    need("java", "mvn")

    async def main(namesrv: str) -> None:
        async with AdminClient(namesrv=namesrv) as tool:
            await tool.topics.create("orders", read_queues=1, write_queues=1)
            await tool.groups.create("billing")
        proxy = Proxy(ProxyConfig([namesrv], port=0, drain_s=0.2))
        await proxy.start()
        client = Client(proxy.port)
        try:
            await administer(client, namesrv)
        finally:
            await client.channel.close()
            await proxy.close()

    with JavaNamesrv() as names, JavaBroker(names.address):
        asyncio.run(main(names.address))
