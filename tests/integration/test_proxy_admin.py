"""Test the service Admin of the proxy by plain gRPC calls, in front of two brokers."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import grpc
import grpc.aio
import pytest
import structlog
from tests.integration.grpc_client import GrpcClient
from tests.integration.routes import until_routed
from tests.integration.test_proxy import Client, message_to
from tests.integration.test_proxy_access import GUARDED, guarded, signed
from tests.waits import PROCESS_WAIT_S, WAIT_S, until

from cometmq import ConsumeResult, Credentials, Message
from cometmq._version import __version__
from cometmq.admin.access.records import AclEntry
from cometmq.admin.messages.reading import decompress_body
from cometmq.aio import AdminClient, Producer, PushConsumer
from cometmq.broker.operation.registration import Registration
from cometmq.errors import CometMQError
from cometmq.logs.setup import configure_logging
from cometmq.model.message import MessageExt
from cometmq.proxy.access.admin_rights import ADMIN_RIGHTS
from cometmq.proxy.administration import members, messages
from cometmq.proxy.administration.asking import Inquiry
from cometmq.proxy.calls import ADMIN
from cometmq.proxy.configuration import config
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.local import LocalProxy
from cometmq.proxy.server import Proxy
from cometmq.proxy.wire import admin_pb2 as admin
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.testing import Cluster

pytestmark = pytest.mark.real_time

TOPIC: Final = {"name": "orders"}
GROUP: Final = {"name": "billing"}
BROKERS: Final = ("broker-a", "broker-b")
METHODS: Final = admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(brokers=2) as cluster:
        async with AdminClient(namesrv=cluster.namesrv) as tool:
            await tool.topics.create(
                "orders", read_queues=2, write_queues=2, cluster="DefaultCluster"
            )
        await until_routed(cluster, "orders", "broker-a", "broker-b")
        yield cluster


@asynccontextmanager
async def serving(cluster: Cluster) -> AsyncIterator[Proxy]:
    proxy = Proxy(ProxyConfig([str(cluster.namesrv)], port=0, drain_s=0.2))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[Proxy]:
    async with serving(cluster) as proxy:
        yield proxy


@asynccontextmanager
async def calling(proxy: Proxy, client_id: str = "client-1") -> AsyncIterator[Client]:
    client = Client(proxy.port, client_id)
    try:
        yield client
    finally:
        if client.stream is not None:
            client.stream.cancel()
        await client.channel.close()


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    async with calling(proxy) as client:
        yield client


@pytest.fixture
async def tool(cluster: Cluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(namesrv=cluster.namesrv) as tool:
        yield tool


@pytest.fixture
async def producer(cluster: Cluster) -> AsyncIterator[Producer]:
    async with Producer("senders", namesrv=cluster.namesrv) as producer:
        yield producer


class Pushed:
    """A consumer of RocketMQ's own protocol; `got` has the bodies that it consumed."""

    def __init__(self, cluster: Cluster, group: str = "billing", expression: str = "*") -> None:
        self.got: list[bytes] = []
        self.consumer = PushConsumer(group, namesrv=cluster.namesrv, listener=self._listen)
        self.consumer.subscribe("orders", expression)

    def _listen(self, messages: list[MessageExt]) -> ConsumeResult:
        self.got += [message.body for message in messages]
        return ConsumeResult.SUCCESS


@asynccontextmanager
async def pushed(
    cluster: Cluster, tool: AdminClient, group: str = "billing", expression: str = "*"
) -> AsyncIterator[tuple[Pushed, str]]:
    """Run a consumer until brokers know it; yield it with its client id."""
    each = Pushed(cluster, group, expression)
    async with each.consumer:

        async def ids() -> list[str]:
            try:
                found = await tool.groups.connections(group)
            except CometMQError:  # none is online yet
                return []
            return [at.client_id for at in found.clients if at.client_id.count("proxy") == 0]

        (client_id,) = await until(ids)
        yield each, client_id


async def refusal(client: GrpcClient, name: str, code: wire.Code, **fields: Any) -> str:
    """Make a call that is refused; return the reason."""
    status = (await client.admin(name, **fields)).status
    assert status.code == code, status
    text: str = status.message
    return text


def ok(answer: Any) -> Any:
    assert answer.status.code == wire.OK, answer.status
    return answer


# Topics


async def test_a_route_is_that_of_the_name_servers(client: Client) -> None:
    route = json.loads(ok(await client.admin("GetTopicRoute", topic=TOPIC)).topic_route_data)
    assert sorted(each["brokerName"] for each in route["queueDatas"]) == [*BROKERS]
    assert all(each["readQueueNums"] == 2 for each in route["queueDatas"])
    text = await refusal(client, "GetTopicRoute", wire.TOPIC_NOT_FOUND, topic={"name": "missing"})
    assert "missing" in text
    await refusal(client, "GetTopicRoute", wire.ILLEGAL_TOPIC)


async def test_the_status_of_a_topic_has_its_type_and_attributes(
    client: Client, tool: AdminClient
) -> None:
    answer = ok(await client.admin("DescribeTopicStatus", topic=TOPIC))
    assert answer.topic_message_type == wire.NORMAL
    assert not answer.HasField("create_timestamp")
    await tool.topics.update("orders", attributes={"message.type": "FIFO"})
    answer = ok(await client.admin("DescribeTopicStatus", topic=TOPIC))
    assert (answer.topic_message_type, answer.tags["message.type"]) == (wire.FIFO, "FIFO")
    await tool.topics.update("orders", attributes={"message.type": "DELAY"}, broker="broker-b")
    answer = await client.admin("DescribeTopicStatus", topic=TOPIC)
    assert answer.status.code == wire.MULTIPLE_RESULTS
    assert "FIFO" in answer.status.message
    assert "DELAY" in answer.status.message
    assert answer.topic_message_type == wire.MESSAGE_TYPE_UNSPECIFIED
    await refusal(client, "DescribeTopicStatus", wire.TOPIC_NOT_FOUND, topic={"name": "missing"})


# Members and subscriptions


async def test_members_are_those_of_brokers_and_the_proxys_own_clients(
    client: Client, cluster: Cluster, tool: AdminClient
) -> None:
    text = await refusal(client, "ListConsumerConnection", wire.NOT_FOUND, group=GROUP)
    assert "no member of group billing is online" in text
    await client.consume("orders")
    async with pushed(cluster, tool) as (_, client_id):
        answer = ok(await client.admin("ListConsumerConnection", group=GROUP))
        by_id = {each.client_id: each for each in answer.client_info}
        assert by_id.keys() == {client_id, "client-1"}
        assert by_id[client_id].language == "PYTHON"
        assert by_id["client-1"].egress_ip == "127.0.0.1"
        assert all(each.message_model == admin.CLUSTERING for each in answer.client_info)
        answer = ok(await client.admin("ListConsumerConnection", group=GROUP, topic=TOPIC))
        assert len(answer.client_info) == 2
        other = {"name": "other"}
        answer = ok(await client.admin("ListConsumerConnection", group=GROUP, topic=other))
        assert not answer.client_info
    await refusal(client, "ListConsumerConnection", wire.UNSUPPORTED, group=GROUP, liteTopic="lite")


async def test_subscriptions_are_listed_by_group_and_by_topic(
    client: Client, cluster: Cluster, tool: AdminClient
) -> None:
    await refusal(client, "ListSubscription", wire.BAD_REQUEST)
    async with pushed(cluster, tool, "paid-only", "paid"), pushed(cluster, tool, "all"):
        (found,) = ok(
            await client.admin("ListSubscription", group={"name": "paid-only"})
        ).subscription_info
        assert (found.group.name, found.topic.name) == ("paid-only", "orders")
        assert found.expression == wire.FilterExpression(type=wire.TAG, expression="paid")
        assert found.online
        assert found.subscription_consistency
        assert found.message_model == admin.CLUSTERING
        assert abs(found.last_update_timestamp.ToSeconds() - time.time()) < 3600

        async def groups() -> set[str]:
            listed = ok(await client.admin("ListSubscription", topic=TOPIC)).subscription_info
            return {each.group.name for each in listed}

        await until(groups, lambda found: found == {"paid-only", "all"})


async def test_a_group_whose_members_are_gone_is_listed_as_offline(
    client: Client, cluster: Cluster, tool: AdminClient, producer: Producer
) -> None:
    async with pushed(cluster, tool) as (each, _):
        await producer.send(Message("orders", b"one"))
        await until(lambda: each.got)
    (found,) = ok(await client.admin("ListSubscription", group=GROUP)).subscription_info
    assert (found.topic.name, found.online) == ("orders", False)
    await refusal(client, "DescribeSubscription", wire.NOT_FOUND, group=GROUP)
    await refusal(
        client, "ListSubscription", wire.CONSUMER_GROUP_NOT_FOUND, group={"name": "nobody"}
    )


async def test_members_with_other_subscriptions_are_found(
    client: Client, cluster: Cluster, tool: AdminClient
) -> None:
    async with pushed(cluster, tool, expression="paid") as (_, client_id):
        await client.consume("orders")
        asked: list[dict[str, Any]] = [{"group": GROUP}, {"topic": TOPIC}]
        for fields in (*asked, {"group": GROUP, "topic": TOPIC}):
            answer = ok(await client.admin("DescribeSubscription", **fields))
            said = {
                each.client_info.client_id: each.subscription_info.expression.expression
                for each in answer.client_subscription_info
            }
            assert said == {client_id: "paid", "client-1": "*"}
            assert not any(
                each.subscription_info.subscription_consistency
                for each in answer.client_subscription_info
            )
        (found,) = ok(await client.admin("ListSubscription", group=GROUP)).subscription_info
        assert not found.subscription_consistency


async def test_what_a_silent_member_subscribes_to_stays_unknown(
    client: Client, cluster: Cluster, tool: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.consume("orders")
    async with pushed(cluster, tool) as (_, client_id):
        ok(await client.admin("DescribeSubscription", group=GROUP))
        monkeypatch.setattr(members, "MEMBER_ANSWER_S", 0.0)
        answer = await client.admin("DescribeSubscription", group=GROUP)
        assert answer.status.code == wire.MULTIPLE_RESULTS
        assert client_id in answer.status.message
        assert "did not answer within 0 s" in answer.status.message
        said = {
            each.client_info.client_id: each.HasField("subscription_info")
            for each in answer.client_subscription_info
        }
        assert said == {client_id: False, "client-1": True}
        answer = await client.admin("ListSubscription", group=GROUP)
        assert answer.status.code == wire.MULTIPLE_RESULTS
        assert "whether the members of group billing agree is unknown" in answer.status.message


async def test_the_questions_of_a_call_are_counted_together(
    client: Client, cluster: Cluster, tool: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.consume("orders")
    async with pushed(cluster, tool):
        for most, code in ((2, wire.OK), (1, wire.BAD_REQUEST)):
            monkeypatch.setattr(config, "MAX_ADMIN_QUESTIONS", most)
            answer = await client.admin("DescribeSubscription", group=GROUP)
            assert answer.status.code == code, answer.status
        assert "2 questions, the limit MAX_ADMIN_QUESTIONS is 1" in answer.status.message


@pytest.mark.parametrize("name", ["DescribeGroupAccumulation", "QueryTimeSpan"])
async def test_topics_are_counted_before_their_names_are_checked(client: Client, name: str) -> None:
    topics = [{"name": "!"}] * (config.MAX_ADMIN_QUESTIONS + 1)
    text = await refusal(client, name, wire.BAD_REQUEST, group=GROUP, topics=topics)
    assert "with 257 topics the call asks 257 questions" in text


async def test_what_members_subscribe_to_is_bounded(
    client: Client, cluster: Cluster, tool: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.consume("orders")
    async with pushed(cluster, tool):
        ok(await client.admin("ListConsumerConnection", group=GROUP, topic=TOPIC))
        monkeypatch.setattr(config, "MAX_ADMIN_ANSWER_BYTES", 100)
        text = await refusal(
            client, "ListConsumerConnection", wire.PAYLOAD_TOO_LARGE, group=GROUP, topic=TOPIC
        )
        assert "the subscriptions of members take" in text


async def test_no_question_is_under_way_after_a_failure() -> None:
    ended: list[str] = []

    async def ask(name: str) -> None:
        if name == "bad":
            raise CometMQError("bad")
        for _ in range(10):
            await asyncio.sleep(0)
        ended.append(name)

    with pytest.raises(CometMQError, match="bad"):
        await Inquiry().each(["a", "bad", "b"], "names", ask)
    assert ended == ["a", "b"]


async def test_a_subscription_is_not_deleted_and_the_reason_is_said(client: Client) -> None:
    text = await refusal(
        client, "DeleteSubscription", wire.NOT_IMPLEMENTED, group=GROUP, topic=TOPIC
    )
    assert "deleteSubGroup" in text


async def test_a_member_reports_its_state_and_its_stacks(
    client: Client, cluster: Cluster, tool: AdminClient
) -> None:
    await client.consume("orders")
    async with pushed(cluster, tool) as (_, client_id):
        fields: dict[str, Any] = {"group": GROUP, "client_id": client_id}

        async def queues() -> int:
            answer = ok(await client.admin("GetConsumerRunningInfo", **fields))
            info = answer.consumer_running_info
            assert info.subscriptions["orders"].expression == "*"
            return len(info.message_queue_table)

        await until(queues, lambda count: count >= 1)
        stacks = ok(await client.admin("PrintThreadStackTrace", **fields)).thread_stack_trace
        assert "MainThread" in stacks
    own: dict[str, Any] = {"group": GROUP, "client_id": "client-1"}
    info = ok(await client.admin("GetConsumerRunningInfo", **own)).consumer_running_info
    assert info.properties["clientType"] == "SIMPLE_CONSUMER"
    assert info.subscriptions["orders"].expression == "*"

    async def answer_stacks() -> None:
        nonce = (await client.read()).print_thread_stack_trace_command.nonce
        trace = wire.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: waits")
        await client.stream.write(wire.TelemetryCommand(thread_stack_trace=trace))

    asked, _ = await asyncio.gather(client.admin("PrintThreadStackTrace", **own), answer_stacks())
    assert ok(asked).thread_stack_trace == "main: waits"
    for name in ("GetConsumerRunningInfo", "PrintThreadStackTrace"):
        answer = await client.admin(name, group=GROUP, client_id="stranger")
        assert answer.status.code != wire.OK
        assert "stranger" in answer.status.message
        await refusal(client, name, wire.CLIENT_ID_REQUIRED, group=GROUP)


# Progress of groups


async def test_the_accumulation_counts_what_is_in_flight_and_what_waits(
    client: Client, tool: AdminClient, cluster: Cluster
) -> None:
    await refusal(
        client, "DescribeGroupAccumulation", wire.CONSUMER_GROUP_NOT_FOUND, group={"name": "none"}
    )
    # If a group has never popped from a queue, the number of its waiting messages there is unknown.
    await tool.topics.create("single", read_queues=1, write_queues=1, broker="broker-a")
    await until_routed(cluster, "single", "broker-a")
    await client.consume("single")
    (first,) = await sent_and_received(client, b"first")
    ok(await client.ack(first))
    await sent_and_received(client, b"held")
    for body in (b"waits", b"too"):
        ok(await client.send(message_to("single", body)))
    single = {"name": "single"}

    async def counts() -> tuple[int, int, int]:
        answer = await client.admin("DescribeGroupAccumulation", group=GROUP, topics=[single])
        found = answer.topic_accumulation["single"]
        return found.inflight_messages, found.ready_messages, found.accumulation

    await until(counts, lambda found: found == (1, 2, 3))
    answer = await client.admin(
        "DescribeGroupAccumulation", group=GROUP, topics=[{"name": "unread"}]
    )
    assert answer.status.code == wire.MULTIPLE_RESULTS
    assert "topic unread" in answer.status.message
    assert not answer.topic_accumulation
    await refusal(
        client, "DescribeGroupAccumulation", wire.UNSUPPORTED, group=GROUP, lite_topic="lite"
    )


async def sent_and_received(client: Client, body: bytes) -> list[wire.Message]:
    ok(await client.send(message_to("single", body)))
    async with asyncio.timeout(WAIT_S):
        while not (found := await client.receive("single", invisible_s=60)):
            pass
    assert [message.body for message in found] == [body]
    return found


async def test_times_and_resets_of_a_group(
    client: Client, cluster: Cluster, tool: AdminClient, producer: Producer
) -> None:
    async with pushed(cluster, tool) as (each, _):
        for body in (b"one", b"two"):
            await producer.send(Message("orders", body))
        await until(lambda: len(each.got) == 2)
    asked: list[dict[str, Any]] = [{}, {"topics": [TOPIC]}]
    for fields in asked:
        answer = ok(await client.admin("QueryTimeSpan", group=GROUP, **fields))
        spans = answer.queue_time_span_list
        names = {(at.message_queue.broker.name, at.message_queue.id) for at in spans}
        assert names == {(broker, number) for broker in BROKERS for number in (0, 1)}
        full = [at for at in spans if at.max_timestamp > 0]
        assert full
        assert all(at.delay_time_ms == 0 for at in full)
    text = await refusal(client, "ResetGroupOffset", wire.BAD_REQUEST, group=GROUP, topic=TOPIC)
    assert "reset_timestamp" in text
    for seconds in (-5, 2**62):
        text = await refusal(
            client,
            "ResetGroupOffset",
            wire.BAD_REQUEST,
            group=GROUP,
            topic=TOPIC,
            reset_timestamp={"seconds": seconds},
        )
        assert "reset_timestamp" in text
    ok(
        await client.admin(
            "ResetGroupOffset", group=GROUP, topic=TOPIC, reset_timestamp={"seconds": 1}
        )
    )
    async with pushed(cluster, tool) as (again, _):
        await until(lambda: sorted(again.got) == [b"one", b"two"])


# Messages


async def test_messages_are_found_by_id_and_key(client: Client, producer: Producer) -> None:
    bodies = [f"{number}".encode() * 8_000 for number in range(3)]  # compressed by the producer
    sent = [await producer.send(Message("orders", body, keys=["o-1"])) for body in bodies]
    for msg_id in (sent[0].msg_id, sent[0].offset_msg_id):

        async def one(msg_id: str = msg_id) -> Any:
            return await client.admin("QueryMessage", topic=TOPIC, message_id=msg_id)

        answer = await until(one, lambda found: found.status.code == wire.OK)
        assert [each.body for each in answer.messages] == [bodies[0]]
        assert answer.messages[0].topic.name == "orders"

    async def several() -> Any:
        return await client.admin("QueryMessage", topic=TOPIC, message_key="o-1")

    answer = await until(several, lambda found: len(found.messages) == 3)
    assert [each.body for each in ok(answer).messages] == bodies
    answer = await client.admin(
        "QueryMessage", topic=TOPIC, message_key="o-1", max_message_nums=1, broker_name="broker-a"
    )
    assert len(answer.messages) <= 1
    await refusal(client, "QueryMessage", wire.MESSAGE_NOT_FOUND, topic=TOPIC, message_key="o-2")
    long_ago = {"seconds": 10}
    await refusal(
        client,
        "QueryMessage",
        wire.MESSAGE_NOT_FOUND,
        topic=TOPIC,
        message_key="o-1",
        end_timestamp=long_ago,
    )


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({}, wire.BAD_REQUEST, "nothing"),
        ({"subscription": "*"}, wire.UNSUPPORTED, "subscription"),
        ({"lite_topic": "x"}, wire.UNSUPPORTED, "lite_topic"),
        ({"message_key": "x", "page_num": 1}, wire.UNSUPPORTED, "page_num"),
        ({"message_key": "x", "scroll_id": "1"}, wire.UNSUPPORTED, "scroll_id"),
        ({"message_key": "a b"}, wire.BAD_REQUEST, "white space"),
        ({"message_key": "x", "max_message_nums": -1}, wire.BAD_REQUEST, "MAX_QUERIED_MESSAGES"),
    ],
)
async def test_searches_that_brokers_cannot_make_are_refused(
    client: Client, fields: dict[str, Any], code: wire.Code, reason: str
) -> None:
    assert reason in await refusal(client, "QueryMessage", code, topic=TOPIC, **fields)


async def test_bodies_that_inflate_beyond_the_answer_are_left_out_and_counted(
    client: Client, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "MAX_ADMIN_ANSWER_BYTES", 100_000)
    await producer.send(Message("orders", bytes(1_000_000), keys=["o-1"]))  # 1 kB as stored
    await producer.send(Message("orders", b"small", keys=["o-1"]))

    async def found() -> Any:
        return await client.admin("QueryMessage", topic=TOPIC, message_key="o-1")

    answer = await until(found, lambda found: len(found.messages) == 1)
    answer = await until(found, lambda found: found.status.code == wire.MULTIPLE_RESULTS)
    assert [each.body for each in answer.messages] == [b"small"]
    assert "1 messages are left out" in answer.status.message
    assert "MAX_ADMIN_ANSWER_BYTES of 100000" in answer.status.message


async def test_the_loop_goes_on_while_bodies_are_inflated(
    client: Client, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def waits(message: MessageExt, max_body_bytes: int) -> bool:
        begun.set()
        assert go_on.wait(WAIT_S), "the loop stood still"
        return decompress_body(message, max_body_bytes)

    async def let_go() -> None:
        await until(begun.is_set)
        go_on.set()

    monkeypatch.setattr(messages, "decompress_body", waits)
    body = b"x" * 100_000
    sent = await producer.send(Message("orders", body))
    found, _ = await asyncio.gather(
        client.admin("QueryMessage", topic=TOPIC, message_id=sent.offset_msg_id), let_go()
    )
    assert [each.body for each in found.messages] == [body]


async def test_a_message_is_sent_as_by_a_producer(client: Client, tool: AdminClient) -> None:
    answer = ok(
        await client.admin(
            "AdminSendMessage",
            topic=TOPIC,
            tag="paid",
            key="o-1",
            body=b"by hand",
            user_properties={"colour": "red"},
        )
    )
    (stored,) = await until(lambda: tool.messages.by_unique_id("orders", answer.message_id))
    assert (stored.body, stored.tags, stored.keys) == (b"by hand", "paid", ("o-1",))
    assert stored.properties["colour"] == "red"
    system = {"message_type": wire.TRANSACTION}
    await refusal(
        client,
        "AdminSendMessage",
        wire.UNSUPPORTED,
        topic=TOPIC,
        body=b"x",
        system_properties=system,
    )
    await refusal(client, "AdminSendMessage", wire.MESSAGE_BODY_EMPTY, topic=TOPIC)
    await refusal(
        client, "AdminSendMessage", wire.ILLEGAL_MESSAGE_TAG, topic=TOPIC, body=b"x", tag="a|b"
    )


async def test_one_member_consumes_a_stored_message_again(
    client: Client, cluster: Cluster, tool: AdminClient, producer: Producer
) -> None:
    sent = await producer.send(Message("orders", b"again" * 2_000))
    fields: dict[str, Any] = {"topic": TOPIC, "group": GROUP, "message_id": sent.msg_id}
    async with pushed(cluster, tool) as (each, client_id):
        before = len(each.got)

        async def verified() -> Any:
            return await client.admin("VerifyMessage", client_id=client_id, **fields)

        await until(verified, lambda found: found.status.code == wire.OK)
        assert len(each.got) > before
    await client.consume("orders")
    failed = wire.FAILED_TO_CONSUME_MESSAGE
    no_stock = wire.Status(code=failed, message="no stock")
    no_code = wire.Status(code=failed, message="the client answered the code 0")
    own_code = wire.Status(code=failed, message="the client answered the code 77777 no stock")
    verdicts = [
        (wire.Status(code=wire.OK), wire.Status(code=wire.OK)),
        (no_stock, no_stock),
        (wire.Status(), no_code),
        (wire.Status(code=cast("wire.Code", 77_777), message="no stock"), own_code),
    ]
    for verdict, expected in verdicts:

        async def answer(verdict: wire.Status = verdict) -> None:
            command = (await client.read()).verify_message_command
            assert command.message.body == b"again" * 2_000
            result = wire.VerifyMessageResult(nonce=command.nonce)
            await client.stream.write(
                wire.TelemetryCommand(status=verdict, verify_message_result=result)
            )

        said, _ = await asyncio.gather(
            client.admin("VerifyMessage", client_id="client-1", **fields), answer()
        )
        assert said.status == expected
    unknown = {**fields, "message_id": "0" * 32}
    await refusal(client, "VerifyMessage", wire.MESSAGE_NOT_FOUND, client_id="client-1", **unknown)


# The process


async def test_the_figures_are_those_of_the_process(client: Client, proxy: Proxy) -> None:
    await client.consume("orders")
    for number in range(4):
        ok(await client.send(message_to("orders", f"{number}".encode())))
    answer = ok(await client.admin("GetProxyRuntimeStats"))
    assert answer.version == __version__
    assert answer.proxy_name.endswith(f":{proxy.port}")
    assert answer.connections >= 1
    assert (answer.producers, answer.consumers) == (0, 1)
    assert answer.in_tps > 0
    assert proxy.calls.throughput.stored == 4


@pytest.fixture
def own_log() -> Iterator[None]:
    """Set up our log in the process, as `cometmq proxy` does, and restore the former state afterwards."""
    before = structlog.get_config()
    handlers = logging.getLogger().handlers[:]
    with Path("/dev/null").open("w") as nowhere:
        configure_logging("info", stream=nowhere)
        yield
    structlog.configure(**before)
    logging.getLogger().handlers[:] = handlers


def takes(method: str) -> bool:
    """Say whether lines of a level are written."""
    bound = structlog.get_config()["wrapper_class"]
    return "nop" not in getattr(bound, method).__name__


@pytest.mark.usefixtures("own_log")
async def test_the_level_of_the_log_changes(client: Client) -> None:
    for level, is_debugging in (
        ("TRACE", True),
        ("ERROR", False),
        ("DEBUG", True),
        ("INFO", False),
    ):
        answer = await client.admin(
            "ChangeLogLevel", level=admin.ChangeLogLevelRequest.Level.Value(level)
        )
        assert "other processes are unchanged" in answer.remark
        assert takes("debug") is is_debugging
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.admin("ChangeLogLevel", level=17)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "TRACE, DEBUG, INFO, WARN, ERROR" in str(caught.value.details())


async def test_the_level_of_a_log_that_is_not_ours_stays(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.admin("ChangeLogLevel", level=admin.ChangeLogLevelRequest.DEBUG)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "set up its log itself" in str(caught.value.details())


@pytest.mark.usefixtures("own_log")
async def test_another_machine_does_not_change_the_log_without_access_control(
    client: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.calls, "_peer_of", lambda _: "192.0.2.7:4711")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.admin("ChangeLogLevel", level=admin.ChangeLogLevelRequest.DEBUG)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "192.0.2.7" in str(caught.value.details())
    assert not takes("debug")


# All calls


def test_a_start_imports_neither_the_handlers_nor_the_rooms_behind_them() -> None:
    program = (
        "import sys, cometmq.proxy.server; "
        "sys.exit(any(name.startswith('cometmq.admin') or name == 'cometmq.proxy.administration.handlers' "
        "for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PROCESS_WAIT_S)


def test_the_table_of_rights_has_each_call_of_the_interface() -> None:
    assert ADMIN_RIGHTS.keys() == {*METHODS}


async def test_another_deployment_is_refused(client: Client) -> None:
    text = await refusal(
        client, "GetTopicRoute", wire.BAD_REQUEST, topic=TOPIC, deployment_name="Other"
    )
    assert "DefaultCluster" in text
    ok(await client.admin("GetTopicRoute", topic=TOPIC, deployment_name="DefaultCluster"))


async def test_a_call_without_a_client_id_is_refused(proxy: Proxy) -> None:
    async with GrpcClient(f"127.0.0.1:{proxy.port}", client_id=None) as nobody:
        await refusal(nobody, "GetTopicRoute", wire.CLIENT_ID_REQUIRED, topic=TOPIC)


async def test_a_damaged_request_is_refused(client: Client) -> None:
    made: Any = client.channel.unary_unary(
        f"/{ADMIN}/GetTopicRoute",
        response_deserializer=admin.GetTopicRouteResponse.FromString,
    )
    answer = await made(b"\xff\xff\xff", metadata=client.metadata)
    assert answer.status.code == wire.BAD_REQUEST


# While a broker is away, some calls return a part of their answer, and others fail.
PARTIAL: Final[dict[str, dict[str, Any]]] = {
    "ListSubscription": {"group": GROUP},
    "DescribeSubscription": {"group": GROUP},
    "DescribeTopicStatus": {"topic": TOPIC},
    "QueryMessage": {"topic": TOPIC, "message_key": "o-1"},
    "QueryTimeSpan": {"group": GROUP, "topics": [TOPIC]},
}
UNKNOWN: Final[dict[str, dict[str, Any]]] = {
    "DescribeGroupAccumulation": {"group": GROUP},
    "ResetGroupOffset": {"group": GROUP, "topic": TOPIC, "reset_timestamp": {"seconds": 1}},
}


async def test_what_a_broker_that_is_away_knows_stays_unknown(
    client: Client,
    cluster: Cluster,
    tool: AdminClient,
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def keep_silent(*_: object) -> None:
        """Close without unregistering, like a broker that is killed."""

    monkeypatch.setattr(Registration, "_unregister", keep_silent)
    stored: dict[str, str] = {}
    for number in range(8):
        sent = await producer.send(Message("orders", b"x", keys=[f"o-{number}"]))
        stored[sent.queue.broker_name] = sent.msg_id
    async with pushed(cluster, tool) as (each, client_id):
        await until(lambda: len(each.got) == 8)
        await until_routed(cluster, "%RETRY%billing", "broker-a", "broker-b")
        await cluster.stop_broker("broker-b")

        async def listed() -> Any:
            return await client.admin("ListConsumerConnection", group=GROUP)

        answer = await until(listed, lambda found: found.status.code == wire.MULTIPLE_RESULTS)
        assert "broker-b" in answer.status.message
        assert [each.client_id for each in answer.client_info] == [client_id]
        for name, fields in PARTIAL.items():
            answer = await client.admin(name, **fields)
            assert answer.status.code == wire.MULTIPLE_RESULTS, (name, answer.status)
            assert "broker-b" in answer.status.message, name
        # A message of the broker that is here is found.
        asked: dict[str, Any] = {"group": GROUP, "topic": TOPIC, "client_id": client_id}
        ok(await client.admin("VerifyMessage", message_id=stored["broker-a"], **asked))
        asked["message_id"] = stored["broker-b"]
        unknown = {**UNKNOWN, "VerifyMessage": asked}
        for name, fields in unknown.items():
            answer = await client.admin(name, **fields)
            assert answer.status.code not in (wire.OK, wire.MULTIPLE_RESULTS), name
            assert "broker-b" in answer.status.message, name
            assert not answer.ListFields()[1:], name


async def test_a_local_proxy_administers_its_broker_and_the_others(cluster: Cluster) -> None:
    local = LocalProxy(cluster.brokers[0], ProxyConfig([], port=0))
    await local.start()
    async with calling(local.proxy) as client:
        ok(await client.admin("AdminSendMessage", topic=TOPIC, body=b"x", key="o-1"))
        route = ok(await client.admin("GetTopicRoute", topic=TOPIC)).topic_route_data
        assert all(broker in route for broker in BROKERS)

        async def found() -> Any:
            return await client.admin("QueryMessage", topic=TOPIC, message_key="o-1")

        assert [each.body for each in (await until(found, lambda it: it.messages)).messages] == [
            b"x"
        ]
        await client.consume("orders")
        (member,) = ok(await client.admin("ListConsumerConnection", group=GROUP)).client_info
        assert member.client_id == "client-1"


# Rights

ROOT: Final = Credentials("admin", "admin-secret")
RIGHTS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "ChangeLogLevel": (("Cluster:DefaultCluster", "Update"),),
    "DescribeTopicStatus": (("Topic:orders", "Get"),),
    "ListSubscription": (("Topic:orders", "Get"), ("Group:billing", "Get")),
    "DescribeSubscription": (("Topic:orders", "Get"), ("Group:billing", "Get")),
    "DeleteSubscription": (("Group:billing", "Delete"),),
    "DescribeGroupAccumulation": (("Group:billing", "Get"), ("Topic:orders", "Get")),
    "ListConsumerConnection": (("Topic:orders", "Get"), ("Group:billing", "Get")),
    "ResetGroupOffset": (("Topic:orders", "Update"), ("Group:billing", "Update")),
    "QueryMessage": (("Topic:orders", "Get"),),
    "PrintThreadStackTrace": (("Group:billing", "Get"),),
    "VerifyMessage": (("Topic:orders", "Sub"), ("Group:billing", "Sub")),
    "AdminSendMessage": (("Topic:orders", "Pub"),),
    "GetConsumerRunningInfo": (("Group:billing", "Get"),),
    "GetTopicRoute": (("Topic:orders", "Get"),),
    "QueryTimeSpan": (("Topic:orders", "Get"), ("Group:billing", "Get")),
    "GetProxyRuntimeStats": (("Cluster:DefaultCluster", "Get"),),
}
REFUSED: Final = (wire.UNAUTHORIZED, wire.FORBIDDEN)


def complete(name: str) -> dict[str, Any]:
    """Return the fields of a call that names all its topics and groups."""
    fields = METHODS[name].input_type.fields_by_name
    return {
        key: value
        for key, value in (("topic", TOPIC), ("group", GROUP), ("topics", [TOPIC]))
        if key in fields
    }


@pytest.fixture
async def users() -> AsyncIterator[Cluster]:
    async with Cluster(properties=GUARDED, namesrv_properties=GUARDED) as cluster:
        async with AdminClient(namesrv=cluster.namesrv, credentials=ROOT) as tool:
            await tool.topics.create("orders", cluster="DefaultCluster")
            await until_routed(cluster, "orders", "broker-a")
            await tool.access.create_user("nobody", "nobody-secret", cluster="DefaultCluster")
            for name, rights in RIGHTS.items():
                await tool.access.create_user(name, f"{name}-secret", cluster="DefaultCluster")
                entries = [AclEntry(resource, (action,)) for resource, action in rights]
                await tool.access.create_acl(f"User:{name}", entries, cluster="DefaultCluster")
        yield cluster


async def code_of(proxy: Proxy, name: str, user: str) -> tuple[int, str]:
    """Make a call as a user; return its code and its message."""
    metadata = signed(user, f"{user}-secret") if user else ()
    async with GrpcClient(f"127.0.0.1:{proxy.port}", metadata=metadata) as caller:
        try:
            answer = await caller.admin(name, **complete(name))
        except grpc.aio.AioRpcError as error:
            codes = {
                grpc.StatusCode.UNAUTHENTICATED: wire.UNAUTHORIZED,
                grpc.StatusCode.PERMISSION_DENIED: wire.FORBIDDEN,
            }
            return codes.get(error.code(), wire.OK), str(error.details())
        if name == "ChangeLogLevel":
            return wire.OK, answer.remark
        return answer.status.code, answer.status.message


async def test_each_call_needs_the_rights_of_its_request(users: Cluster) -> None:
    assert RIGHTS.keys() == ADMIN_RIGHTS.keys()
    async with guarded(users) as proxy:
        for name, rights in RIGHTS.items():
            code, text = await code_of(proxy, name, name)
            assert code not in REFUSED, (name, text)
            code, text = await code_of(proxy, name, "")
            assert code == wire.UNAUTHORIZED, (name, text)
            code, text = await code_of(proxy, name, "nobody")
            assert code == wire.FORBIDDEN, (name, text)
            assert any(f"{action} " in text and resource in text for resource, action in rights)


async def test_each_resource_of_a_call_needs_a_right(users: Cluster) -> None:
    async with (
        AdminClient(namesrv=users.namesrv, credentials=ROOT) as tool,
        guarded(users) as proxy,
    ):
        several = [(name, rights) for name, rights in RIGHTS.items() if len(rights) > 1]
        for name, rights in several:
            for number, (resource, action) in enumerate(rights):
                user = f"{name}{number}"
                await tool.access.create_user(user, f"{user}-secret", cluster="DefaultCluster")
                await tool.access.create_acl(
                    f"User:{user}", [AclEntry(resource, (action,))], cluster="DefaultCluster"
                )
                code, text = await code_of(proxy, name, user)
                assert code == wire.FORBIDDEN, (name, resource, text)


async def test_topics_are_counted_before_their_rights_are_checked(users: Cluster) -> None:
    topics = [TOPIC] * (config.MAX_ADMIN_QUESTIONS + 1)
    async with (
        guarded(users) as proxy,
        GrpcClient(f"127.0.0.1:{proxy.port}", metadata=signed("nobody", "nobody-secret")) as caller,
    ):
        text = await refusal(caller, "QueryTimeSpan", wire.BAD_REQUEST, group=GROUP, topics=topics)
    assert "MAX_ADMIN_QUESTIONS" in text


async def test_a_topic_lists_only_groups_that_the_caller_may_see(users: Cluster) -> None:
    consumer = PushConsumer(
        "secret", namesrv=users.namesrv, credentials=ROOT, listener=lambda _: ConsumeResult.SUCCESS
    )
    consumer.subscribe("orders")
    user = "ListSubscription"
    metadata = signed(user, f"{user}-secret")
    async with guarded(users) as proxy, consumer:
        target = f"127.0.0.1:{proxy.port}"
        async with GrpcClient(target, metadata=metadata) as caller:

            async def listed() -> Any:
                return await caller.admin("ListSubscription", topic=TOPIC)

            answer = await until(listed, lambda found: found.status.code != wire.OK)
    assert answer.status.code == wire.FORBIDDEN
    assert "Group:secret" in answer.status.message
    assert not answer.subscription_info


async def test_without_authorisation_the_process_takes_a_super_user(users: Cluster) -> None:
    async with guarded(users, authorizes=False) as proxy:
        for name in ("ChangeLogLevel", "GetProxyRuntimeStats"):
            code, text = await code_of(proxy, name, "nobody")
            assert code == wire.FORBIDDEN, name
            assert "Super user" in text
            assert (await code_of(proxy, name, "admin"))[0] not in REFUSED
        assert (await code_of(proxy, "GetTopicRoute", "nobody"))[0] == wire.OK
