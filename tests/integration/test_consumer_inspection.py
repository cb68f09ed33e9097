"""Questions of a broker to its consumers: codes 220, 221, 307 and 309, sent over the consumer's
connection.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.waits import until

from cometmq import (
    ConsumeFromWhere,
    ConsumeReport,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
)
from cometmq.aio import LitePullConsumer, Producer, PushConsumer
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand, request
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.fastjson.queue_table import decode_queue_table, encode_queue_table
from cometmq.protocol.header import Header
from cometmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from cometmq.remoting.connection import Connection
from cometmq.testing.cluster import Cluster

QUEUE = MessageQueue("t", "broker-a", 0)
FIRST = ConsumeFromWhere.FIRST_OFFSET


class Box:
    """Keeps a cluster with ten messages in a queue, and one consumer that returns `verdict`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.heard: list[int] = []
        self.verdict: Any = ConsumeResult.SUCCESS

    async def listen(self, messages: list[MessageExt]) -> Any:
        self.heard += [message.queue_offset for message in messages]
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    async def connection(self, group: str) -> Connection:
        """Return the broker's end of the connection to the group's only member, once it has joined.

        A member that starts before its topic is routed joins a moment later.
        """
        clients = self.cluster.brokers[0].clients
        await until(lambda: clients.consumer_ids(group))
        info = clients.consumer_group(group)
        assert info is not None
        (member,) = info.members.values()
        return member.connection

    async def ask(
        self, group: str, code: int, header: Header, body: bytes = b""
    ) -> RemotingCommand:
        connection = await self.connection(group)
        return await connection.call(request(code, header, body), 60.0)

    async def reset(self, group: str, body: bytes, topic: str = "t") -> None:
        header = ResetOffsetRequestHeader(group, topic, -1, True)
        command = request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)
        (await self.connection(group)).send_oneway(command)


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with Cluster(properties={"accessMessageInMemoryMaxRatio": "0"}) as cluster:
        async with Producer("p", namesrv=cluster.namesrv) as producer:
            for i in range(10):
                await producer.send(Message("t", b"%d" % i, tags="x"), queue=QUEUE)
        yield Box(cluster)


def consumer(box: Box, *, orderly: bool = False) -> PushConsumer:
    consumer = PushConsumer(
        "g",
        box.listen,
        namesrv=box.cluster.namesrv,
        consume_from=FIRST,
        orderly=orderly,
        concurrency=3,
    )
    consumer.subscribe("t", "x")
    return consumer


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("for_c", [False, True])
async def test_a_reset_has_the_queue_consumed_from_there(
    box: Box, orderly: bool, for_c: bool
) -> None:
    async with consumer(box, orderly=orderly):
        await until(lambda: len(box.heard) == 10)
        box.heard.clear()
        bean = {"brokerName": "broker-a", "offset": 6, "queueId": 0, "topic": "t"}
        listed = json.dumps({"offsetTable": [bean]}).encode()
        body = listed if for_c else encode_queue_table("offsetTable", {QUEUE: 6})
        await box.reset("g", body)
        await until(lambda: len(box.heard) >= 4)
        assert sorted(box.heard) == [6, 7, 8, 9]
    assert box.cluster.brokers[0].offsets.query("g", "t", 0) == 10


async def test_a_reset_of_something_else_changes_nothing(box: Box) -> None:
    async with consumer(box) as running:
        await until(lambda: len(box.heard) == 10)
        other = MessageQueue("u", "broker-a", 0)
        await box.reset("g", encode_queue_table("offsetTable", {other: 1, QUEUE: 1}), "u")
        await box.reset("g", b"{damaged")
        await box.reset("g", b"")
        # Answered after the resets, on the same connection.
        await box.ask(
            "g",
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            GetConsumerStatusRequestHeader("t", "g"),
        )
        assert QUEUE in running.assigned_queues()
        assert len(box.heard) == 10


async def test_the_status_tells_the_offsets(box: Box) -> None:
    async with consumer(box):
        await until(lambda: len(box.heard) == 10)
        header = GetConsumerStatusRequestHeader("t", "g")
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        answer = await box.ask("g", code, header)
        table = decode_queue_table(bytes(answer.body), "messageQueueTable", int)
        assert (answer.code, table[QUEUE]) == (0, 10)
        unknown = await box.ask("g", code, GetConsumerStatusRequestHeader("t", "nobody"))
        assert (unknown.code, bytes(unknown.body)) == (0, b'{"messageQueueTable":{}}')


@pytest.mark.parametrize("orderly", [False, True])
async def test_the_running_info_tells_queues_properties_and_rates(box: Box, orderly: bool) -> None:
    async with consumer(box, orderly=orderly) as running:
        await until(lambda: len(box.heard) == 10)
        # The retry topic is found a moment after the group has made it.
        await until(lambda: "%RETRY%g" in {queue.topic for queue in running.assigned_queues()})
        header = GetConsumerRunningInfoRequestHeader("g", running.client_id)
        answer = await box.ask("g", RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        assert answer.code == 0
        queues = decode_queue_table(bytes(answer.body), "mqTable", dict[str, Any])
        info = queues[QUEUE]
        assert (info["commitOffset"], info["cachedMsgCount"], info["droped"]) == (10, 0, False)
        assert info["locked"] is orderly
        assert info["lastPullTimestamp"] > 0
        assert info["lastConsumeTimestamp"] > 0
        assert {queue.topic for queue in queues} == {"t", "%RETRY%g"}
        rest = decode_body(bytes(answer.body), dict[str, Any])
        properties = rest["properties"]
        assert properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert properties["PROP_CONSUMEORDERLY"] == ("true" if orderly else "false")
        assert properties["PROP_THREADPOOL_CORE_SIZE"] == "3"
        assert properties["PROP_NAMESERVER_ADDR"] == f"{box.cluster.namesrv};"
        assert int(properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
        assert properties["PROP_CLIENT_VERSION"]
        assert {s["topic"] for s in rest["subscriptionSet"]} == {"t", "%RETRY%g"}
        assert rest["statusTable"]["t"]["consumeOKTPS"] > 0
        assert rest["statusTable"]["t"]["pullTPS"] > 0
        assert rest["statusTable"]["t"]["consumeFailedMsgs"] == 0
        assert "jstack" not in rest


async def test_stacks_come_when_they_are_asked_for(box: Box) -> None:
    async with consumer(box) as running:
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        header = GetConsumerRunningInfoRequestHeader("g", running.client_id, jstack_enable=True)
        answer = await box.ask("g", code, header)
        assert b"MainThread" in bytes(answer.body)
        unknown = GetConsumerRunningInfoRequestHeader("nobody", running.client_id)
        answer = await box.ask("g", code, unknown)
        assert (answer.code, answer.remark) == (
            1,
            "The Consumer Group <nobody> not exist in this consumer",
        )


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    ("verdict", "expected", "remark"),
    [
        (ConsumeResult.SUCCESS, "CR_SUCCESS", None),
        (ConsumeReport(ConsumeResult.SUCCESS), "CR_SUCCESS", None),
        (ConsumeResult.RECONSUME_LATER, "CR_LATER", None),
        (ConsumeResult.SUSPEND, "CR_LATER", None),
        (None, "CR_SUCCESS", None),
        (ValueError("bad"), "CR_THROW_EXCEPTION", "ValueError: bad"),
    ],
)
async def test_a_message_is_consumed_directly(
    box: Box, orderly: bool, verdict: Any, expected: str, remark: str | None
) -> None:
    async with consumer(box, orderly=orderly) as running:
        await until(lambda: len(box.heard) == 10)
        box.heard.clear()
        box.verdict = verdict
        store = box.cluster.brokers[0].store
        record = store.record_at(0)
        assert record is not None
        header = ConsumeMessageDirectlyResultRequestHeader(
            "g", running.client_id, broker_name="broker-a"
        )
        answer = await box.ask("g", RequestCode.CONSUME_MESSAGE_DIRECTLY, header, bytes(record))
        result = json.loads(bytes(answer.body))
        assert answer.code == 0
        assert (result["consumeResult"], result.get("remark")) == (expected, remark)
        assert (result["order"], result["autoCommit"]) == (orderly, True)
        assert result["spentTimeMills"] >= 0
        assert box.heard == [0]
        box.verdict = ConsumeResult.SUCCESS
    # Nothing of this counts for the queue.
    assert box.cluster.brokers[0].offsets.query("g", "t", 0) == 10


async def test_a_lite_pull_consumer_answers_too(box: Box) -> None:
    async with LitePullConsumer(
        "lite", namesrv=box.cluster.namesrv, consume_from=FIRST, pull_batch_size=32
    ) as lite:
        lite.subscribe("t")
        polled: list[int] = []
        while len(polled) < 10:
            polled += [message.queue_offset for message in await lite.poll()]
        await lite.commit()
        status = await box.ask(
            "lite",
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            GetConsumerStatusRequestHeader("t", "lite"),
        )
        assert decode_queue_table(bytes(status.body), "messageQueueTable", int)[QUEUE] == 10
        info = await box.ask(
            "lite",
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            GetConsumerRunningInfoRequestHeader("lite", lite.client_id),
        )
        assert b'"PROP_CONSUME_TYPE":"CONSUME_ACTIVELY"' in bytes(info.body)
        direct = await box.ask(
            "lite",
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            ConsumeMessageDirectlyResultRequestHeader("lite", broker_name="broker-a"),
            bytes(box.cluster.brokers[0].store.record_at(0) or b""),
        )
        assert direct.code == 1
        await box.reset("lite", encode_queue_table("offsetTable", {QUEUE: 7}))
        messages = await lite.poll(60_000)
        assert [message.queue_offset for message in messages] == [7, 8, 9]
