"""Test the proxy with plain gRPC calls, each with good and with bad input, in front of a cluster of its own."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import time
import zlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.integration.grpc_client import GrpcClient
from tests.integration.routes import until_routed
from tests.waits import WAIT_S, until

from cometmq import Message
from cometmq.aio import AdminClient, Producer
from cometmq.errors import CometMQError
from cometmq.proxy.calls import ADMIN, MESSAGING
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.methods.consistent_hash import bucket_of
from cometmq.proxy.server import Proxy
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.testing import Cluster

pytestmark = pytest.mark.real_time

TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
ENDPOINTS = wire.Endpoints(
    scheme=wire.IPv4, addresses=[wire.Address(host="127.0.0.1", port=18_081)]
)
# A time that protobuf does not allow, and a duration above every limit.
NO_TIME = {"seconds": 2**62}
CUT_OFF = gzip.compress(b"x" * 5000)[:-6]


class Client(GrpcClient):
    """Calls a proxy as the client `client_id`, and keeps a Telemetry stream."""

    def __init__(self, port: int, client_id: str | None = "client-1") -> None:
        others = (("x-mq-language", "KLINGON"), ("x-mq-protocol", "v2"))
        super().__init__(f"127.0.0.1:{port}", client_id=client_id, metadata=others)
        self.stream: Any = None

    async def answers(self, name: str, /, timeout_s: float = 8.0, **fields: Any) -> list[Any]:
        # A receive polls for as long as its deadline allows.
        return await super().answers(name, timeout_s, **fields)

    async def open(self, settings: wire.Settings) -> wire.TelemetryCommand:
        self.stream = self.telemetry()
        await self.stream.write(wire.TelemetryCommand(settings=settings))
        answer: wire.TelemetryCommand = await self.read()
        return answer

    async def read(self) -> Any:
        async with asyncio.timeout(WAIT_S):
            return await self.stream.read()

    async def consume(self, topic: str, group: str = "billing") -> wire.TelemetryCommand:
        entry = wire.SubscriptionEntry(topic=wire.Resource(name=topic))
        subscription = wire.Subscription(group=wire.Resource(name=group), subscriptions=[entry])
        return await self.open(
            wire.Settings(client_type=wire.SIMPLE_CONSUMER, subscription=subscription)
        )

    async def send(self, *messages: wire.Message) -> wire.SendMessageResponse:
        answer: wire.SendMessageResponse = await self.call("SendMessage", messages=messages)
        return answer

    async def receive(
        self,
        topic: str,
        group: str = "billing",
        *,
        invisible_s: int = 10,
        broker: str = "broker-a",
        **fields: Any,
    ) -> list[wire.Message]:
        fields.setdefault("invisible_duration", {"seconds": invisible_s})
        answers = await self.answers(
            "ReceiveMessage",
            group={"name": group},
            message_queue={"topic": {"name": topic}, "broker": {"name": broker}},
            batch_size=16,
            **fields,
        )
        assert answers[0].WhichOneof("content") == "status"
        assert answers[-1].WhichOneof("content") == "delivery_timestamp"
        messages = [each.message for each in answers[1:-1]]
        expected = wire.OK if messages else wire.MESSAGE_NOT_FOUND
        assert answers[0].status.code == expected, answers[0]
        return messages

    async def receive_some(self, topic: str, group: str = "billing") -> list[wire.Message]:
        async with asyncio.timeout(WAIT_S):
            while not (messages := await self.receive(topic, group)):
                pass
        return messages

    async def ack(
        self, message: wire.Message, group: str = "billing", handle: str | None = None
    ) -> wire.AckMessageResponse:
        system = message.system_properties
        entry = {"message_id": system.message_id, "receipt_handle": handle or system.receipt_handle}
        answer: wire.AckMessageResponse = await self.call(
            "AckMessage", group={"name": group}, topic=message.topic, entries=[entry]
        )
        return answer


def message_to(topic: str, body: bytes = b"paid", **system: Any) -> wire.Message:
    system.setdefault("message_id", f"id-{time.monotonic_ns()}")
    return wire.Message(topic=wire.Resource(name=topic), body=body, system_properties=system)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    properties = {
        "recallMessageEnable": "true",
        "transactionCheckInterval": "500",
        "transactionTimeOut": "500",
    }
    async with Cluster(properties=properties) as cluster:
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            for kind in TYPES:
                await admin.topics.create(
                    kind.lower(),
                    read_queues=4,
                    write_queues=4,
                    cluster="DefaultCluster",
                    attributes={"message.type": kind},
                )
                await until_routed(cluster, kind.lower(), "broker-a")
        yield cluster


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[Proxy]:
    addresses = [cluster.namesrv] if isinstance(cluster.namesrv, str) else list(cluster.namesrv)
    proxy = Proxy(ProxyConfig(addresses, port=0, drain_s=0.5))
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    client = Client(proxy.port)
    yield client
    if client.stream is not None:
        client.stream.cancel()
    await client.channel.close()


async def test_a_call_without_a_client_id_is_refused(proxy: Proxy) -> None:
    client = Client(proxy.port, None)
    answer = await client.call("QueryRoute", topic={"name": "normal"})
    assert answer.status.code == wire.CLIENT_ID_REQUIRED
    await client.channel.close()


async def test_a_route_has_the_clients_endpoints_and_the_types(client: Client) -> None:
    for kind in TYPES:
        answer = await client.call("QueryRoute", topic={"name": kind.lower()}, endpoints=ENDPOINTS)
        assert answer.status.code == wire.OK
        assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
        for queue in answer.message_queues:
            assert queue.broker.endpoints == ENDPOINTS
            assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
            assert queue.permission == wire.READ_WRITE
            assert queue.accept_message_types == [wire.MessageType.Value(kind)]


async def test_routes_of_no_topic_and_of_illegal_names_are_refused(client: Client) -> None:
    answer = await client.call("QueryRoute", topic={"name": "missing"})
    assert answer.status.code == wire.TOPIC_NOT_FOUND
    answer = await client.call("QueryRoute", topic={"name": "a b"})
    assert answer.status.code == wire.ILLEGAL_TOPIC


async def test_an_assignment_is_one_for_each_broker_and_for_ordered_groups_each_queue(
    client: Client, cluster: Cluster
) -> None:
    async def ids(group: str) -> list[int]:
        answer = await client.call(
            "QueryAssignment", topic={"name": "fifo"}, group={"name": group}, endpoints=ENDPOINTS
        )
        assert answer.status.code == wire.OK
        return [each.message_queue.id for each in answer.assignments]

    assert await ids("billing") == [-1]
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.groups.create(
            "in-order", consume_message_orderly=True, cluster="DefaultCluster"
        )
    assert await ids("in-order") == [0, 1, 2, 3]
    answer = await client.call(
        "QueryAssignment", topic={"name": "fifo"}, group={"name": "a b"}, endpoints=ENDPOINTS
    )
    assert answer.status.code == wire.ILLEGAL_CONSUMER_GROUP


async def test_settings_of_a_producer_come_back_complete(client: Client) -> None:
    topics = [wire.Resource(name="normal")]
    answer = await client.open(
        wire.Settings(client_type=wire.PRODUCER, publishing=wire.Publishing(topics=topics))
    )
    assert answer.status.code == wire.OK
    settings = answer.settings
    assert settings.publishing.max_body_size == 4 * 1024 * 1024
    assert settings.publishing.validate_message_type
    assert list(settings.publishing.topics) == topics
    assert settings.backoff_policy.max_attempts == 3
    assert settings.backoff_policy.exponential_backoff.max.ToMilliseconds() == 1000
    assert settings.HasField("metric")
    assert not settings.metric.on


async def test_settings_of_a_consumer_come_back_complete(client: Client) -> None:
    settings = (await client.consume("normal")).settings
    assert settings.subscription.receive_batch_size == 32
    assert settings.subscription.long_polling_timeout.ToSeconds() == 20
    assert not settings.subscription.fifo
    assert settings.backoff_policy.max_attempts == 17
    delays = settings.backoff_policy.customized_backoff.next
    assert delays[0].ToSeconds() == 1
    assert delays[-1].ToSeconds() == 7200


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (wire.Settings(client_type=wire.PRODUCER), "neither publishing nor subscription"),
        (
            wire.Settings(
                client_type=wire.LITE_PUSH_CONSUMER,
                subscription=wire.Subscription(group=wire.Resource(name="billing")),
            ),
            "lite topics",
        ),
        (
            wire.Settings(
                client_type=wire.SIMPLE_CONSUMER,
                subscription=wire.Subscription(group=wire.Resource(name="a b")),
            ),
            "group name",
        ),
    ],
)
async def test_bad_settings_end_the_stream_with_the_reason(
    client: Client, settings: wire.Settings, reason: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.open(settings)
    assert reason in str(caught.value.details())


async def test_heartbeat_and_termination_want_a_known_client(client: Client) -> None:
    answer = await client.call("Heartbeat", client_type=wire.SIMPLE_CONSUMER)
    assert answer.status.code == wire.UNRECOGNIZED_CLIENT_TYPE
    await client.consume("normal")
    assert (await client.call("Heartbeat")).status.code == wire.OK
    assert (await client.call("NotifyClientTermination")).status.code == wire.OK
    answer = await client.call("NotifyClientTermination")
    assert answer.status.code == wire.UNRECOGNIZED_CLIENT_TYPE


async def test_a_message_comes_as_it_was_sent_and_not_again_once_acknowledged(
    client: Client,
) -> None:
    await client.consume("normal")
    sent = message_to("normal", tag="paid", keys=["K1", "K2"], trace_context="trace")
    sent.user_properties["colour"] = "red"
    answer = await client.send(sent)
    assert answer.status.code == wire.OK
    assert answer.entries[0].message_id == sent.system_properties.message_id
    (message,) = await client.receive_some("normal")
    system = message.system_properties
    assert (message.body, dict(message.user_properties)) == (b"paid", {"colour": "red"})
    assert (system.tag, list(system.keys), system.trace_context) == ("paid", ["K1", "K2"], "trace")
    assert (system.message_type, system.delivery_attempt) == (wire.NORMAL, 1)
    assert system.body_digest.checksum == hashlib.md5(b"paid").hexdigest().upper()
    assert (await client.ack(message)).status.code == wire.OK
    assert await client.receive("normal") == []


async def test_messages_of_one_group_lie_in_one_queue_in_order(client: Client) -> None:
    answers = [
        await client.send(message_to("fifo", b"%d" % number, message_group="G"))
        for number in range(4)
    ]
    assert [each.entries[0].offset for each in answers] == [0, 1, 2, 3]
    queue = {"topic": {"name": "fifo"}, "broker": {"name": "broker-a"}, "id": bucket_of("G", 4)}
    answer = await client.call("QueryOffset", message_queue=queue, query_offset_policy=wire.END)
    assert answer.offset == 4


async def test_a_body_in_gzip_reaches_consumers_plain(client: Client) -> None:
    await client.consume("normal")
    sent = message_to("normal", gzip.compress(b"x" * 5000), body_encoding=wire.GZIP)
    assert (await client.send(sent)).status.code == wire.OK
    (message,) = await client.receive_some("normal")
    assert message.body == b"x" * 5000
    assert message.system_properties.body_encoding == wire.IDENTITY


@pytest.mark.parametrize(
    ("body", "received", "encoding"),
    [(zlib.compress(b"x" * 5000), b"x" * 5000, wire.IDENTITY), (b"plain", b"plain", wire.GZIP)],
)
async def test_a_body_that_is_not_the_gzip_of_its_encoding_is_taken_as_by_javas_proxy(
    body: bytes, received: bytes, encoding: int, client: Client
) -> None:
    """Apache's GrpcBaseIT sends plain text in this way. Consumers get zlib unpacked, and other bytes as they were sent."""
    await client.consume("normal")
    sent = message_to("normal", body, body_encoding=wire.GZIP)
    assert (await client.send(sent)).status.code == wire.OK
    (message,) = await client.receive_some("normal")
    assert message.body == received
    assert message.system_properties.body_encoding == encoding
    answer = await client.send(sent, message_to("normal"))
    assert answer.status.code == wire.MESSAGE_CORRUPTED
    assert "by itself" in answer.status.message


async def test_a_small_body_that_unpacks_to_a_large_one_is_refused(client: Client) -> None:
    bomb = gzip.compress(bytes(64 * 1024 * 1024))
    answer = await client.send(message_to("normal", bomb, body_encoding=wire.GZIP))
    assert answer.status.code == wire.MESSAGE_BODY_TOO_LARGE
    assert "maxMessageSize" in answer.status.message


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (message_to("normal", b""), wire.MESSAGE_BODY_EMPTY),
        (message_to("normal", bytes(4 * 1024 * 1024 + 1)), wire.MESSAGE_BODY_TOO_LARGE),
        (message_to("normal", b"\x1f\x8b?", body_encoding=wire.GZIP), wire.MESSAGE_CORRUPTED),
        (message_to("normal", CUT_OFF, body_encoding=wire.GZIP), wire.MESSAGE_CORRUPTED),
        (message_to("normal", message_id=" "), wire.ILLEGAL_MESSAGE_ID),
        (message_to("normal", tag="a|b"), wire.ILLEGAL_MESSAGE_TAG),
        (message_to("normal", keys=["a\x01b"]), wire.ILLEGAL_MESSAGE_KEY),
        (message_to("fifo", message_group="g" * 65), wire.ILLEGAL_MESSAGE_GROUP),
        (message_to("normal", message_group="g"), wire.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message_to("fifo"), wire.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message_to("normal", lite_topic="x"), wire.UNSUPPORTED),
        (message_to("missing"), wire.TOPIC_NOT_FOUND),
        (message_to("delay", delivery_timestamp={"seconds": 2**33}), wire.ILLEGAL_DELIVERY_TIME),
        (message_to("delay", delivery_timestamp=NO_TIME), wire.ILLEGAL_DELIVERY_TIME),
        (message_to("normal", born_timestamp=NO_TIME), wire.BAD_REQUEST),
        (
            message_to(
                "transaction",
                message_type=wire.TRANSACTION,
                orphaned_transaction_recovery_duration=NO_TIME,
            ),
            wire.BAD_REQUEST,
        ),
        (
            message_to(
                "transaction",
                message_type=wire.TRANSACTION,
                orphaned_transaction_recovery_duration={"seconds": 3601},
            ),
            wire.BAD_REQUEST,
        ),
    ],
)
async def test_a_message_that_breaks_a_rule_is_refused(
    client: Client, message: wire.Message, code: wire.Code
) -> None:
    assert (await client.send(message)).status.code == code


async def test_properties_of_a_message_are_bounded(client: Client) -> None:
    message = message_to("normal")
    message.user_properties["TRAN_MSG"] = "true"
    assert (await client.send(message)).status.code == wire.ILLEGAL_MESSAGE_PROPERTY_KEY
    message = message_to("normal")
    message.user_properties["a"] = "x" * 16_384
    assert (await client.send(message)).status.code == wire.MESSAGE_PROPERTIES_TOO_LARGE
    message = message_to("normal")
    message.user_properties.update({f"p{number}": "x" for number in range(129)})
    assert (await client.send(message)).status.code == wire.MESSAGE_PROPERTIES_TOO_LARGE


async def test_several_messages_are_a_batch_of_one_topic(client: Client) -> None:
    await client.consume("normal")
    answer = await client.send(*(message_to("normal", b"%d" % number) for number in range(3)))
    assert answer.status.code == wire.OK
    assert len(answer.entries) == 3
    bodies: set[bytes] = set()
    async with asyncio.timeout(WAIT_S):
        while len(bodies) < 3:
            bodies |= {each.body for each in await client.receive("normal")}
    assert bodies == {b"0", b"1", b"2"}
    answer = await client.send(message_to("normal"), message_to("fifo", message_group="g"))
    assert answer.status.code == wire.MESSAGE_CORRUPTED
    assert (await client.send()).status.code == wire.MESSAGE_CORRUPTED


async def test_a_delayed_message_is_recalled_once(client: Client) -> None:
    later = {"seconds": int(time.time()) + 600}
    sent = await client.send(message_to("delay", delivery_timestamp=later))
    handle = sent.entries[0].recall_handle
    assert handle
    answer = await client.call("RecallMessage", topic={"name": "delay"}, recall_handle=handle)
    assert (answer.status.code, answer.message_id) == (wire.OK, sent.entries[0].message_id)
    answer = await client.call("RecallMessage", topic={"name": "delay"}, recall_handle="none")
    assert answer.status.code == wire.INTERNAL_SERVER_ERROR
    answer = await client.call("RecallMessage", topic={"name": "normal"}, recall_handle=handle)
    assert answer.status.code == wire.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def half_of(client: Client) -> wire.SendResultEntry:
    sent = await client.send(message_to("transaction", message_type=wire.TRANSACTION))
    assert sent.status.code == wire.OK
    return sent.entries[0]


async def test_another_proxy_ends_a_transaction(
    client: Client, proxy: Proxy, cluster: Cluster
) -> None:
    """Java's proxy can end only transactions that it started itself, for 30 s."""
    await client.consume("transaction")
    entry = await half_of(client)
    other = Proxy(ProxyConfig(proxy.config.namesrv, port=0, drain_s=0.5))
    await other.start()
    stranger = Client(other.port)
    answer = await stranger.call(
        "EndTransaction",
        topic={"name": "transaction"},
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=wire.COMMIT,
        source=wire.SOURCE_CLIENT,
    )
    assert answer.status.code == wire.OK
    (message,) = await client.receive_some("transaction")
    assert message.system_properties.message_id == entry.message_id
    await stranger.channel.close()
    await other.close()


async def test_an_invented_transaction_id_is_refused(client: Client) -> None:
    for text in ("", "x", "1@2@", "a@b@broker-a@x", "9" * 30 + "@1@broker-a@x"):
        answer = await client.call(
            "EndTransaction", topic={"name": "transaction"}, transaction_id=text
        )
        assert answer.status.code == wire.INVALID_TRANSACTION_ID


async def test_operators_get_the_stacks_of_clients_and_have_one_consume_a_message(
    client: Client, proxy: Proxy, cluster: Cluster
) -> None:
    await client.consume("normal")
    verdicts = [
        wire.Status(code=wire.OK),
        wire.Status(code=wire.FAILED_TO_CONSUME_MESSAGE, message="no stock"),
        wire.Status(code=wire.UNSUPPORTED, message="a simple consumer"),
    ]

    async def answer() -> None:
        while (command := await client.stream.read()) is not grpc.aio.EOF:
            if command.HasField("print_thread_stack_trace_command"):
                nonce = command.print_thread_stack_trace_command.nonce
                # The proxy drops an answer that nobody asked for.
                for each, text in (("other", "forged"), (nonce, "main: waits")):
                    trace = wire.ThreadStackTrace(nonce=each, thread_stack_trace=text)
                    await client.stream.write(wire.TelemetryCommand(thread_stack_trace=trace))
            elif command.HasField("verify_message_command"):
                assert command.verify_message_command.message.body == b"again"
                result = wire.VerifyMessageResult(nonce=command.verify_message_command.nonce)
                await client.stream.write(
                    wire.TelemetryCommand(status=verdicts.pop(0), verify_message_result=result)
                )

    answering = asyncio.create_task(answer())
    own = proxy.instance.client_id
    async with (
        AdminClient(namesrv=cluster.namesrv) as admin,
        Producer("senders", namesrv=cluster.namesrv) as producer,
    ):
        sent = await producer.send(Message("normal", b"again"))

        async def is_announced() -> bool:
            with contextlib.suppress(CometMQError):
                await admin.groups.running_info("billing", own)
                return True
            return False

        await until(is_announced)
        found = await admin.groups.running_info("billing", own, stacks=True)
        assert found.stacks == "gRPC client client-1:\nmain: waits\n"
        assert found.properties["grpcClients"] == "1: client-1"
        assert [each.topic for each in found.subscriptions] == ["normal"]
        outcomes = [
            await admin.messages.consume_directly("billing", own, sent.offset_msg_id)
            for _ in range(3)
        ]
    assert [(each.result, each.remark) for each in outcomes] == [
        ("CR_SUCCESS", None),
        ("CR_LATER", "gRPC client client-1: FAILED_TO_CONSUME_MESSAGE no stock"),
        ("CR_THROW_EXCEPTION", "gRPC client client-1: UNSUPPORTED a simple consumer"),
    ]
    answering.cancel()


async def test_a_client_is_asked_about_a_transaction_that_nobody_ended(
    client: Client, proxy: Proxy
) -> None:
    consumer = Client(proxy.port, "client-2")
    await consumer.consume("transaction")
    publishing = wire.Publishing(topics=[wire.Resource(name="transaction")])
    await client.open(wire.Settings(client_type=wire.PRODUCER, publishing=publishing))
    entry = await half_of(client)
    command = (await client.read()).recover_orphaned_transaction_command
    assert command.message.system_properties.message_id == entry.message_id
    answer = await client.call(
        "EndTransaction",
        topic={"name": "transaction"},
        message_id=entry.message_id,
        transaction_id=command.transaction_id,
        resolution=wire.COMMIT,
        source=wire.SOURCE_SERVER_CHECK,
    )
    assert answer.status.code == wire.OK
    (message,) = await consumer.receive_some("transaction")
    assert message.system_properties.message_id == entry.message_id
    consumer.stream.cancel()
    await consumer.channel.close()


async def test_a_renewed_receive_wants_settings_and_each_a_legal_time(client: Client) -> None:
    fields: dict[str, Any] = {
        "group": {"name": "billing"},
        "message_queue": {"topic": {"name": "normal"}, "broker": {"name": "broker-a"}},
    }
    # Its handles would not be renewed.
    answers = await client.answers("ReceiveMessage", **fields, auto_renew=True)
    assert answers[0].status.code == wire.UNRECOGNIZED_CLIENT_TYPE
    assert answers[-1].WhichOneof("content") == "delivery_timestamp"
    await client.consume("normal")
    for duration in ({"seconds": 9}, NO_TIME):
        answers = await client.answers("ReceiveMessage", **fields, invisible_duration=duration)
        assert answers[0].status.code == wire.ILLEGAL_INVISIBLE_TIME
    answers = await client.answers(
        "ReceiveMessage", 3.0, **fields, invisible_duration={"seconds": 10}
    )
    assert answers[0].status.code == wire.ILLEGAL_POLLING_TIME
    fields["invisible_duration"] = {"seconds": 10}
    fields["filter_expression"] = {"type": wire.TAG, "expression": "||"}
    answers = await client.answers("ReceiveMessage", **fields)
    assert answers[0].status.code == wire.ILLEGAL_FILTER_EXPRESSION


async def test_a_message_that_is_hidden_for_no_time_comes_again(client: Client) -> None:
    await client.consume("normal")
    await client.send(message_to("normal"))
    (message,) = await client.receive_some("normal")
    system = message.system_properties
    fields: dict[str, Any] = {
        "group": {"name": "billing"},
        "topic": message.topic,
        "message_id": system.message_id,
        "receipt_handle": system.receipt_handle,
    }
    answer = await client.call("ChangeInvisibleDuration", **fields, suspend=True)
    assert answer.status.code == wire.UNSUPPORTED
    for duration in ({"seconds": 13 * 3600}, NO_TIME):
        answer = await client.call("ChangeInvisibleDuration", **fields, invisible_duration=duration)
        assert answer.status.code == wire.ILLEGAL_INVISIBLE_TIME
    answer = await client.call("ChangeInvisibleDuration", **fields)
    assert answer.status.code == wire.OK
    assert answer.receipt_handle != system.receipt_handle
    (again,) = await client.receive_some("normal")
    assert again.system_properties.message_id == system.message_id
    assert again.system_properties.delivery_attempt == 2


async def test_a_forwarded_message_is_a_dead_letter(client: Client, cluster: Cluster) -> None:
    await client.consume("normal")
    await client.send(message_to("normal", b"poison"))
    (message,) = await client.receive_some("normal")
    system = message.system_properties
    answer = await client.call(
        "ForwardMessageToDeadLetterQueue",
        group={"name": "billing"},
        topic=message.topic,
        receipt_handle=system.receipt_handle,
        message_id=system.message_id,
        delivery_attempt=1,
        max_delivery_attempts=1,
    )
    assert answer.status.code == wire.OK
    await until_routed(cluster, "%DLQ%billing", "broker-a")
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        letters = (await admin.topics.stats("%DLQ%billing")).queues
    assert sum(each.max_offset for each in letters) == 1
    assert await client.receive("normal") == []


async def test_handles_that_are_none_or_expired_are_refused(client: Client) -> None:
    await client.consume("normal")
    message = message_to("normal")
    for handle in ("none", "0 1 1 0 0 broker-a 0 0 0", "0 1 1 0 7 broker-a 0 0"):
        answer = await client.ack(message, handle=handle)
        assert answer.status.code == wire.INVALID_RECEIPT_HANDLE
        assert answer.entries[0].status.code == wire.INVALID_RECEIPT_HANDLE
    answer = await client.call("AckMessage", group={"name": "billing"}, topic=message.topic)
    assert answer.status.code == wire.BAD_REQUEST


async def test_what_a_lost_client_consumed_comes_again(client: Client, proxy: Proxy) -> None:
    await client.consume("normal")
    await client.send(message_to("normal"))
    (message,) = await client.receive("normal", auto_renew=True)
    client.stream.cancel()
    other = Client(proxy.port, "client-2")
    await other.consume("normal")
    (again,) = await other.receive_some("normal")
    assert again.system_properties.message_id == message.system_properties.message_id
    other.stream.cancel()
    await other.channel.close()


async def test_pulls_and_offsets_are_served(client: Client) -> None:
    await client.send(message_to("fifo", b"one", message_group="G"))
    queue = {"topic": {"name": "fifo"}, "broker": {"name": "broker-a"}, "id": bucket_of("G", 4)}
    fields: dict[str, Any] = {"group": {"name": "billing"}, "message_queue": queue}
    answers = await client.answers("PullMessage", **fields, batch_size=8)
    kinds = [each.WhichOneof("content") for each in answers]
    assert kinds == ["status", "message", "next_offset"]
    assert (answers[1].message.body, answers[2].next_offset) == (b"one", 1)
    first_ms = answers[1].message.system_properties.store_timestamp.ToMilliseconds()
    answers = await client.answers("PullMessage", **fields, offset=-1)
    assert answers[0].status.code == wire.ILLEGAL_OFFSET
    assert (await client.call("GetOffset", **fields)).status.code == wire.OFFSET_NOT_FOUND
    assert (await client.call("UpdateOffset", **fields, offset=1)).status.code == wire.OK
    assert (await client.call("GetOffset", **fields)).offset == 1
    answer = await client.call("UpdateOffset", **fields, offset=-1)
    assert answer.status.code == wire.ILLEGAL_OFFSET
    await until(lambda: SYSTEM_CLOCK.now_ms() > first_ms)
    between_ms = SYSTEM_CLOCK.now_ms()
    await until(lambda: SYSTEM_CLOCK.now_ms() > between_ms)
    for body in (b"two", b"three"):
        await client.send(message_to("fifo", body, message_group="G"))
    by_policy = partial(client.call, "QueryOffset", message_queue=queue)
    for asked, offset in (
        ({"query_offset_policy": wire.BEGINNING}, 0),
        ({"query_offset_policy": wire.END}, 3),
        (at_time(between_ms), 1),
        (at_time(between_ms - 3_600_000), 0),
        (at_time(between_ms + 3_600_000), 3),
    ):
        answer = await by_policy(**asked)
        assert (answer.status.code, answer.offset) == (wire.OK, offset), asked
    for timestamp in (None, NO_TIME):
        answer = await by_policy(query_offset_policy=wire.TIMESTAMP, timestamp=timestamp)
        assert answer.status.code == wire.BAD_REQUEST
    queue["broker"] = {"name": "broker-z"}
    answer = await client.call("QueryOffset", message_queue=queue)
    assert answer.status.code == wire.BAD_REQUEST


def at_time(time_ms: int) -> dict[str, Any]:
    """Return the fields of a question for the first offset at a time."""
    seconds, rest_ms = divmod(time_ms, 1000)
    timestamp = {"seconds": seconds, "nanos": rest_ms * 1_000_000}
    return {"query_offset_policy": wire.TIMESTAMP, "timestamp": timestamp}


async def test_a_namespace_stands_in_front_of_the_names_of_topic_and_group(
    client: Client, cluster: Cluster
) -> None:
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.topics.create("ns%normal", cluster="DefaultCluster")
    await until_routed(cluster, "ns%normal", "broker-a")
    topic = wire.Resource(resource_namespace="ns", name="normal")
    group = wire.Resource(resource_namespace="ns", name="billing")
    subscription = wire.Subscription(
        group=group, subscriptions=[wire.SubscriptionEntry(topic=topic)]
    )
    await client.open(wire.Settings(client_type=wire.SIMPLE_CONSUMER, subscription=subscription))
    fields: dict[str, Any] = {
        "group": group,
        "message_queue": {"topic": topic, "broker": {"name": "broker-a"}},
        "batch_size": 16,
        "invisible_duration": {"seconds": 10},
    }
    # A group begins at the end of a topic, except for the first messages of a new one.
    sent = wire.Message(topic=topic, body=b"inside", system_properties={"message_id": "id-1"})
    assert (await client.send(sent)).status.code == wire.OK
    assert (await client.send(message_to("normal", b"outside"))).status.code == wire.OK
    _, answer, _ = await client.answers("ReceiveMessage", **fields)
    message = answer.message
    assert (message.body, message.topic) == (b"inside", topic)
    entry = {
        "message_id": message.system_properties.message_id,
        "receipt_handle": message.system_properties.receipt_handle,
    }
    answer = await client.call("AckMessage", group=group, topic=topic, entries=[entry])
    assert answer.status.code == wire.OK
    broker = cluster.brokers[0]
    assert sum(broker.store.max_offset("ns%normal", number) for number in range(8)) == 1
    keys = [key[:2] for key in broker.pops.state.table.states]
    assert set(keys) == {("ns%billing", "ns%normal")}
    assert broker.pops.state.table.count == 0
    # A name that has the namespace already stays as it is.
    whole = wire.Resource(resource_namespace="ns", name="ns%normal")
    route = await client.call("QueryRoute", topic=whole)
    assert route.status.code == wire.OK


async def test_what_is_not_served_is_refused_by_name(client: Client) -> None:
    answer = await client.call("SyncLiteSubscription", topic={"name": "normal"})
    assert answer.status.code == wire.NOT_IMPLEMENTED
    for method in (f"/{ADMIN}/Teleport", f"/{MESSAGING}/Teleport"):
        call: Any = client.channel.unary_unary(method)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", metadata=client.metadata)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert method in str(caught.value.details())


async def test_a_proxy_that_stops_has_clients_reconnect(client: Client, proxy: Proxy) -> None:
    await client.consume("normal")
    closing = asyncio.create_task(proxy.close())
    assert (await client.read()).WhichOneof("command") == "reconnect_endpoints_command"
    assert await client.read() is grpc.aio.EOF
    await closing
