"""Test what operators ask of consumers by way of a broker: codes 222, 223, 307 and 309."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from tests.waits import WAIT_S, until

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt, MessageQueue
from cometmq.aio import LitePullConsumer, Producer, PushConsumer
from cometmq.broker.groups.client_relay import ClientRelay
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand, request
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.fastjson.queue_table import decode_queue_table
from cometmq.protocol.header import Header
from cometmq.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from cometmq.protocol.messages.record import decode_record
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.server import RemotingServer
from cometmq.testing.cluster import Cluster

QUEUE = MessageQueue("t", "broker-a", 0)
FIRST = ConsumeFromWhere.FIRST_OFFSET
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
_Statuses = dict[str, dict[str, dict[str, int]]]


class Desk:
    """Acts as an operator beside a broker that has ten messages in one queue."""

    def __init__(self, cluster: Cluster, remoting: RemotingClient) -> None:
        self.cluster = cluster
        self.heard: list[int] = []
        self.messages: list[MessageExt] = []
        self._remoting = remoting

    async def listen(self, messages: list[MessageExt]) -> ConsumeResult:
        self.heard += [message.queue_offset for message in messages]
        self.messages += messages
        return ConsumeResult.SUCCESS

    def consumer(self, group: str = "g", **options: Any) -> PushConsumer:
        consumer = PushConsumer(
            group, self.listen, namesrv=self.cluster.namesrv, consume_from=FIRST, **options
        )
        consumer.subscribe("t")
        return consumer

    async def ask(
        self, code: int, header: Header, *, language: str = "JAVA", address: str = ""
    ) -> RemotingCommand:
        command = request(code, header)
        command.language = language
        return await self._remoting.call(address or self.cluster.brokers[0].address, command, 60.0)

    def committed(self, group: str = "g") -> int:
        return self.cluster.brokers[0].offsets.query(group, "t", 0)

    async def consumed(self, group: str = "g") -> None:
        """Wait until the broker knows that the group has consumed all ten."""
        await until(lambda: self.committed(group) == 10)
        for queue_id in range(1, 4):  # as its members commit when their first pulls came back
            self.cluster.brokers[0].offsets.commit(group, "t", queue_id, 0)

    async def joined(self, members: int, group: str = "g") -> None:
        """Wait for `members`: one that starts before its topic is routed joins a moment later."""
        clients = self.cluster.brokers[0].clients
        await until(lambda: len(clients.consumer_ids(group)) == members)

    @contextmanager
    def as_version(self, version: int) -> Iterator[None]:
        """Have the broker take its group's members for clients of that version."""
        group = self.cluster.brokers[0].clients.consumer_group("g")
        assert group is not None
        members = list(group.members.values())
        versions = [member.version for member in members]
        for member in members:
            member.version = version
        yield
        for member, former in zip(members, versions, strict=True):
            member.version = former


@pytest.fixture(autouse=True)
def committing_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.client.consuming.push_member.PERSIST_INTERVAL_S", 0.05)


async def opened(**properties: str) -> AsyncIterator[Desk]:
    settings = {"accessMessageInMemoryMaxRatio": "0", **properties}
    async with Cluster(properties=settings) as cluster:
        async with Producer("p", namesrv=cluster.namesrv) as producer:
            for i in range(10):
                await producer.send(Message("t", b"%d" % i), queue=QUEUE)
        remoting = RemotingClient()
        try:
            yield Desk(cluster, remoting)
        finally:
            await remoting.close()


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async for desk in opened():
        yield desk


@pytest.fixture
async def pushing() -> AsyncIterator[Desk]:
    """Run a broker as Java's before 5.0: it pushes resets to the members."""
    async for desk in opened(useServerSideResetOffset="false"):
        yield desk


def by_time(timestamp_ms: int, *, group: str = "g", force: bool = True) -> ResetOffsetRequestHeader:
    return ResetOffsetRequestHeader(group, "t", timestamp_ms, force)


# Resets that the broker keeps


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_reset_reaches_a_consumer_that_waits_for_messages(
    desk: Desk, orderly: bool
) -> None:
    async with desk.consumer(orderly=orderly):
        await desk.consumed()
        desk.heard.clear()
        answer = await desk.ask(RESET, by_time(0))
        assert answer.code == 0
        assert decode_queue_table(bytes(answer.body), "offsetTable", int)[QUEUE] == 0
        await until(lambda: len(desk.heard) >= 10)
        assert sorted(desk.heard) == list(range(10))
        await desk.consumed()


async def test_one_queue_is_reset_to_an_offset(desk: Desk) -> None:
    async with desk.consumer():
        await desk.consumed()
        desk.heard.clear()
        answer = await desk.ask(RESET, ResetOffsetRequestHeader("g", "t", 0, True, 0, 7))
        assert decode_queue_table(bytes(answer.body), "offsetTable", int) == {QUEUE: 7}
        await until(lambda: len(desk.heard) >= 3)
        assert sorted(desk.heard) == [7, 8, 9]
        beyond = await desk.ask(RESET, ResetOffsetRequestHeader("g", "t", 0, True, 0, 12))
        assert (beyond.code, beyond.remark) == (
            1,
            "Target offset 12 not in consume queue range [0-10]",
        )
        # One further than the end would skip the next message. Java accepts it.
        assert (await desk.ask(RESET, ResetOffsetRequestHeader("g", "t", 0, True, 0, 11))).code == 1
        unknown = await desk.ask(RESET, ResetOffsetRequestHeader("g", "t", 0, True, 2**31 - 1, -1))
        assert (unknown.code, unknown.remark) == (
            1,
            "queueId[2147483647] is illegal: topic[t] has no such queue",
        )


async def test_a_group_that_is_away_finds_its_reset(desk: Desk) -> None:
    async with desk.consumer():
        await desk.consumed()
    assert (await desk.ask(RESET, by_time(0))).code == 0
    assert desk.committed() == 0
    desk.heard.clear()
    async with desk.consumer():
        await until(lambda: len(desk.heard) >= 10)
        await desk.consumed()


async def test_a_reset_to_the_end_passes_over_what_waits(desk: Desk) -> None:
    async with desk.consumer():
        await desk.consumed()
    await desk.ask(RESET, by_time(0))
    answer = await desk.ask(RESET, by_time(-1))
    assert decode_queue_table(bytes(answer.body), "offsetTable", int)[QUEUE] == 10
    assert desk.committed() == 10


async def test_a_lite_pull_consumer_follows_a_reset(desk: Desk) -> None:
    lite = LitePullConsumer("lite", namesrv=desk.cluster.namesrv, consume_from=FIRST)
    lite.subscribe("t")
    async with lite:
        polled: list[int] = []
        while len(polled) < 10:
            polled += [message.queue_offset for message in await lite.poll()]
        await lite.commit()
        await desk.ask(RESET, ResetOffsetRequestHeader("lite", "t", 0, True, 0, 8))
        again = await lite.poll(60_000)
        assert [message.queue_offset for message in again] == [8, 9]


async def test_resets_of_what_is_not_there_are_refused(desk: Desk) -> None:
    missing = await desk.ask(RESET, ResetOffsetRequestHeader("g", "no-topic", 0, True))
    assert (missing.code, "no topic in this broker" in str(missing.remark)) == (17, True)
    unknown = await desk.ask(RESET, by_time(0, group="nobody"))
    assert (unknown.code, unknown.remark) == (26, "Group nobody does not exist")


# Resets that the broker pushes


@pytest.mark.parametrize("language", ["JAVA", "CPP"])
async def test_a_pushed_reset_reaches_the_members(pushing: Desk, language: str) -> None:
    async with pushing.consumer():
        await pushing.consumed()
        pushing.heard.clear()
        # The answer is a map for everybody; only the clients get the list that C++ asks for.
        answer = await pushing.ask(RESET, by_time(0), language=language)
        assert decode_queue_table(bytes(answer.body), "offsetTable", int)[QUEUE] == 0
        await until(lambda: len(pushing.heard) >= 10)
        assert sorted(pushing.heard) == list(range(10))


async def test_a_pushed_reset_goes_forward_only_by_force(pushing: Desk) -> None:
    async with pushing.consumer():
        await pushing.consumed()
        for force, expected in ((False, 0), (True, 10)):
            await pushing.ask(RESET, by_time(0))
            async with asyncio.timeout(WAIT_S):
                while True:
                    # Now and then the consumer's own commit comes in between.
                    pushing.cluster.brokers[0].offsets.commit("g", "t", 0, 0)
                    answer = await pushing.ask(RESET, by_time(-1, force=force))
                    offsets = decode_queue_table(bytes(answer.body), "offsetTable", int)
                    if offsets[QUEUE] == expected:
                        break


async def test_pushed_resets_need_offsets_and_members(pushing: Desk) -> None:
    answer = await pushing.ask(RESET, by_time(0))
    assert (answer.code, answer.remark) == (1, "THe consumer group <g> not exist")
    async with pushing.consumer():
        await pushing.consumed()
        with pushing.as_version(27):
            answer = await pushing.ask(RESET, by_time(0))
        assert (answer.code, "V3_0_7_SNAPSHOT (28) is needed" in str(answer.remark)) == (1, True)
    answer = await pushing.ask(RESET, by_time(0))
    assert (answer.code, "Consumer not online" in str(answer.remark)) == (206, True)


# Questions


async def test_the_status_of_all_members_or_of_one(desk: Desk) -> None:
    one, two = desk.consumer(instance_name="one"), desk.consumer(instance_name="two")
    async with one, two:
        await desk.joined(2)
        await desk.consumed()
        answer = await desk.ask(STATUS, GetConsumerStatusRequestHeader("t", "g"))
        table = decode_body(bytes(answer.body), _Statuses)["consumerTable"]
        assert (answer.code, set(table)) == (0, {one.client_id, two.client_id})
        single = await desk.ask(STATUS, GetConsumerStatusRequestHeader("t", "g", two.client_id))
        assert set(decode_body(bytes(single.body), _Statuses)["consumerTable"]) == {two.client_id}
    answer = await desk.ask(STATUS, GetConsumerStatusRequestHeader("t", "g"))
    assert (answer.code, answer.remark) == (
        1,
        "No Any Consumer online in the consumer group: [g]",
    )


async def test_the_running_info_comes_from_the_member_named(desk: Desk) -> None:
    one = desk.consumer(instance_name="one", concurrency=7)
    two = desk.consumer(instance_name="two", concurrency=9)
    async with one, two:
        await desk.joined(2)
        for member, concurrency in ((one, "7"), (two, "9")):
            answer = await desk.ask(
                INFO, GetConsumerRunningInfoRequestHeader("g", member.client_id)
            )
            properties = decode_body(bytes(answer.body), dict[str, Any])["properties"]
            assert (answer.code, properties["consumeThreadMax"]) == (0, concurrency)
        stacks = GetConsumerRunningInfoRequestHeader("g", one.client_id, jstack_enable=True)
        assert b"MainThread" in bytes((await desk.ask(INFO, stacks)).body)
        with desk.as_version(61):
            old = await desk.ask(INFO, GetConsumerRunningInfoRequestHeader("g", one.client_id))
        assert (old.code, "V3_1_8_SNAPSHOT (62)" in str(old.remark)) == (1, True)
    gone = await desk.ask(INFO, GetConsumerRunningInfoRequestHeader("g", "somebody"))
    assert (gone.code, gone.remark) == (1, "The Consumer <g> <somebody> not online")


async def test_a_stored_message_is_consumed_directly(desk: Desk) -> None:
    async with desk.consumer() as consumer:
        await desk.consumed()
        fourth = next(message for message in desk.messages if message.queue_offset == 3)
        desk.heard.clear()
        header = ConsumeMessageDirectlyResultRequestHeader(
            "g", consumer.client_id, fourth.offset_msg_id, topic="t"
        )
        answer = await desk.ask(DIRECTLY, header)
        assert json.loads(bytes(answer.body))["consumeResult"] == "CR_SUCCESS"
        assert desk.heard == [3]
        assert desk.messages[-1].broker_name == "broker-a"
        for msg_id in ("", "no id", fourth.offset_msg_id[:-1] + "1"):
            header = ConsumeMessageDirectlyResultRequestHeader("g", consumer.client_id, msg_id)
            answer = await desk.ask(DIRECTLY, header)
            assert (answer.code, desk.heard) == (1, [3])


async def test_a_member_that_does_not_answer_in_time_is_told_of(desk: Desk) -> None:
    broker = desk.cluster.brokers[0]
    relay = ClientRelay(broker.parts, cast("Any", None), call_timeout_s=0.1)
    handlers = Handlers()
    relay.register(handlers)
    server = RemotingServer("127.0.0.1", 0, handlers)
    await server.start()
    go_on = asyncio.Event()

    async def wait(_messages: list[MessageExt]) -> ConsumeResult:
        await go_on.wait()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer("g", wait, namesrv=desk.cluster.namesrv, consume_from=FIRST)
    consumer.subscribe("t")
    async with consumer:
        await desk.joined(1)
        # With a transient store pool the record must leave its buffer first.
        record = await until(lambda: broker.store.record_at(0), lambda record: record is not None)
        msg_id = decode_record(record).to_message("").offset_msg_id
        header = ConsumeMessageDirectlyResultRequestHeader("g", consumer.client_id, msg_id)
        answer = await desk.ask(DIRECTLY, header, address=f"127.0.0.1:{server.port}")
        assert (answer.code, "Timeout" in str(answer.remark)) == (207, True)
        go_on.set()
    await server.close()
