"""Renew messages that clients consume, for hours: a proxy's handles, receives and acknowledgements in virtual time.

The proxies have no port here, because gRPC's own library does not run in virtual time. Clients have a Telemetry
stream, receive and acknowledge by the functions that serve their calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import grpc.aio
import pytest
from tests.waits import until

from cometmq.aio import AdminClient, Producer
from cometmq.client.instance import acquire_instance, release_instance
from cometmq.errors import RemoteError
from cometmq.metrics.limit_hits import LimitHits
from cometmq.model.message import Message
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.pop.bodies import PoppedMessage
from cometmq.protocol.pop.handle import PopHandle
from cometmq.protocol.pop.headers import PopProgressRequestHeader
from cometmq.proxy.calls import Caller, Calls, Context
from cometmq.proxy.clients.clients import Clients
from cometmq.proxy.clients.handles import Handles
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.metadata import Metadata
from cometmq.proxy.methods.acknowledgements import AckCalls
from cometmq.proxy.methods.receives import Receives
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.runtime.surroundings import current
from cometmq.runtime.tasks import TaskOwner
from cometmq.testing import Cluster

GROUP, TOPIC = "billing", "orders"
MINUTE_S = 60
LONGEST_S = 3 * 60 * MINUTE_S
SCAN_S = 5
# In virtual time hours pass in a second.
wait = partial(until, wait_s=2 * LONGEST_S, pause_s=1.0)


class Stream:
    """A client's side of a Telemetry stream, open until `end` is called."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._ended = asyncio.Event()
        self._has_sent = False
        self.commands: list[wire.TelemetryCommand] = []

    def end(self) -> None:
        self._ended.set()

    async def read(self) -> object:
        if self._has_sent:
            await self._ended.wait()
            return grpc.aio.EOF
        self._has_sent = True
        entry = wire.SubscriptionEntry(topic=wire.Resource(name=TOPIC))
        subscription = wire.Subscription(group=wire.Resource(name=GROUP), subscriptions=[entry])
        settings = wire.Settings(client_type=wire.PUSH_CONSUMER, subscription=subscription)
        return wire.TelemetryCommand(settings=settings).SerializeToString()

    async def write(self, command: wire.TelemetryCommand) -> None:
        self.commands.append(command)

    async def send_initial_metadata(self, _metadata: object) -> None:
        """Do nothing: this client does not wait for headers."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-mq-client-id", self._client_id),)

    def peer(self) -> str:
        return "10.0.0.9:4711"

    def time_remaining(self) -> float | None:
        return None


class PortlessProxy:
    """A proxy without its port, with one client, `client-1` at each proxy."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        here = current()
        self.instance = acquire_instance(
            [cluster.namesrv], name, "proxy",
            clock=here.clock, randomness=here.randomness, network=here.network,
        )  # fmt: skip
        settings = ProxySettings()
        self.tasks = TaskOwner(name)
        calls = Calls(lambda peer: peer, LimitHits())
        metadata = Metadata(self.instance)
        self.clients = Clients(self.instance, metadata, self.tasks, lambda _: None, settings, calls)
        self.handles = Handles(self.instance, metadata, self.clients, settings)
        self.receives = Receives(
            self.instance, metadata, self.clients, self.handles, self.tasks, settings
        )
        self.acks = AckCalls(self.instance, metadata, self.handles, settings)
        self.caller = Caller("client-1", "5.1.0", "10.0.0.9:4711", None)
        self.stream = Stream("client-1")

    async def start(self) -> None:
        context = cast("Context", self.stream)
        self.tasks.spawn(self.clients.telemetry(None, context), "stream")
        await until(lambda: self.stream.commands)
        self.tasks.every(SCAN_S, self.handles.scan, "renew-handles")

    async def close(self) -> None:
        self.stream.end()
        await self.tasks.close()
        await release_instance(self.instance)

    async def receive(self) -> list[wire.Message]:
        request = wire.ReceiveMessageRequest(
            group=wire.Resource(name=GROUP),
            message_queue=wire.MessageQueue(topic=wire.Resource(name=TOPIC)),
            batch_size=16,
            auto_renew=True,
        )
        answers = [each async for each in self.receives.receive(self.caller, request)]
        return [each.message for each in answers if each.HasField("message")]

    async def ack(self, message: wire.Message) -> wire.Code:
        handle = message.system_properties.receipt_handle
        entry = wire.AckMessageEntry(receipt_handle=handle)
        answer = await self.acks.ack(
            self.caller,
            wire.AckMessageRequest(
                group=wire.Resource(name=GROUP), topic=wire.Resource(name=TOPIC), entries=[entry]
            ),
        )
        code: wire.Code = answer.status.code
        return code

    async def hide(
        self, message: wire.Message, seconds: int
    ) -> wire.ChangeInvisibleDurationResponse:
        request = wire.ChangeInvisibleDurationRequest(
            group=wire.Resource(name=GROUP),
            topic=wire.Resource(name=TOPIC),
            receipt_handle=message.system_properties.receipt_handle,
        )
        request.invisible_duration.FromSeconds(seconds)
        return await self.acks.change(self.caller, request)

    async def at_broker(self, message: wire.Message) -> PoppedMessage:
        """Return the broker's report of a message that was received."""
        handle = PopHandle.decode(message.system_properties.receipt_handle)
        address = self.instance.need_master(handle.broker_name, TOPIC)
        header = PopProgressRequestHeader(GROUP, TOPIC, handle.queue_id, handle.offset)
        found = await self.instance.brokers.popped_message(address, header)
        assert found is not None
        return found

    def now_ms(self) -> int:
        return self.instance.clock.now_ms()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(clock="virtual", seed=363) as cluster:
        yield cluster


async def prepare(cluster: Cluster, *, ordered: bool = False) -> None:
    """Make topic and group, with one message."""
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.topics.create(TOPIC, read_queues=1, write_queues=1, cluster="DefaultCluster")
        await admin.groups.create(GROUP, consume_message_orderly=ordered, cluster="DefaultCluster")
    async with Producer("shop", namesrv=cluster.namesrv) as producer:
        await producer.send(Message(TOPIC, b"long"))


async def reset(cluster: Cluster) -> None:
    """Have the group begin again with the first message."""
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.offsets.reset_to_time(GROUP, TOPIC, 0, cluster="DefaultCluster")


@asynccontextmanager
async def running(cluster: Cluster, *names: str) -> AsyncIterator[list[PortlessProxy]]:
    proxies = [PortlessProxy(cluster, name) for name in names]
    for proxy in proxies:
        await proxy.start()
    try:
        yield proxies
    finally:
        for proxy in proxies:
            await proxy.close()


def run(
    cluster: Cluster, scenario: Callable[[PortlessProxy], Awaitable[None]], *, ordered: bool = False
) -> None:
    async def all_of_it() -> None:
        await prepare(cluster, ordered=ordered)
        async with running(cluster, "proxy-1") as (proxy,):
            await scenario(proxy)

    cluster.run(all_of_it())


async def received(proxy: PortlessProxy) -> wire.Message:
    messages: list[wire.Message] = []
    while not messages:
        messages = await proxy.receive()
    (message,) = messages
    return message


async def stopped(proxy: PortlessProxy) -> None:
    """Stop a proxy as `Proxy.close` does, without its port."""
    proxy.clients.drain()
    await proxy.handles.leave(10.0)


async def is_over(proxy: PortlessProxy, message: wire.Message) -> None:
    """Wait until the time in a message's handle is over."""
    handle = PopHandle.decode(message.system_properties.receipt_handle)
    left_ms = handle.pop_time + handle.invisible_time - proxy.now_ms()
    await asyncio.sleep(max(left_ms, 0) / 1000 + 1)


def test_a_message_is_renewed_for_1_3_5_10_30_and_60_minutes_and_given_up_after_three_hours(
    cluster: Cluster,
) -> None:
    async def scenario(proxy: PortlessProxy) -> None:
        message = await received(proxy)
        begun_ms = proxy.now_ms()
        first = await proxy.at_broker(message)
        minutes, until_ms = [1], first.until_ms
        while len(proxy.handles) and proxy.now_ms() - begun_ms < 2 * LONGEST_S * 1000:
            await asyncio.sleep(SCAN_S)
            found = await proxy.at_broker(message)
            assert found.state == "HIDDEN"
            if found.until_ms != until_ms:
                until_ms = found.until_ms
                minutes.append(-(-(until_ms - proxy.now_ms()) // (MINUTE_S * 1000)))
        # The last change hides it for the delay of the first retry, 10 s.
        assert minutes == [1, 1, 3, 5, 10, 30, 60, 60, 60, 1]
        assert len(proxy.handles) == 0
        assert 10_000 - SCAN_S * 1000 <= until_ms - proxy.now_ms() <= 10_000
        age_s = (proxy.now_ms() - begun_ms) / 1000
        assert LONGEST_S < age_s < LONGEST_S + 60 * MINUTE_S
        assert proxy.handles.outcomes == {"renewed": 8, "failed": 0, "given_up": 1}

        again = await received(proxy)
        assert again.system_properties.delivery_attempt == 2
        assert proxy.now_ms() - until_ms < 2_000
        assert await proxy.ack(again) == wire.OK

    run(cluster, scenario)


def test_a_message_is_given_up_with_the_delay_of_its_groups_next_retry(cluster: Cluster) -> None:
    policy = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 20_000, "max": 90_000, "multiplier": 3},
    }

    async def scenario(proxy: PortlessProxy) -> None:
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.groups.create(GROUP, group_retry_policy=policy, cluster="DefaultCluster")
        message = await received(proxy)
        assert (await proxy.hide(message, 1)).status.code == wire.OK
        # Its second retry waits for a minute.
        again = await received(proxy)
        assert again.system_properties.delivery_attempt == 2
        await wait(lambda: not len(proxy.handles))
        given_up_ms = proxy.now_ms()
        third = await received(proxy)
        assert third.system_properties.delivery_attempt == 3
        assert 60_000 - SCAN_S * 1000 <= proxy.now_ms() - given_up_ms < 62_000

    run(cluster, scenario)


def test_a_message_that_is_not_renewed_three_times_in_a_row_is_given_up(cluster: Cluster) -> None:
    async def scenario(proxy: PortlessProxy) -> None:
        outcomes = proxy.handles.outcomes

        async def reached(outcome: str, count: int) -> None:
            await wait(lambda: outcomes[outcome] >= count)

        await received(proxy)
        for times in range(1, 4):
            await reached("renewed", times - 1)
            await cluster.stop_broker(0)
            await reached("failed", times)
            await cluster.restart_broker(0)
            await reached("renewed", times)
        assert outcomes == {"renewed": 3, "failed": 3, "given_up": 0}
        await cluster.stop_broker(0)
        await wait(lambda: not len(proxy.handles))
        assert outcomes == {"renewed": 3, "failed": 6, "given_up": 1}
        await cluster.restart_broker(0)
        again = await received(proxy)
        assert again.system_properties.delivery_attempt == 2

    run(cluster, scenario)


def test_a_message_that_is_no_longer_in_flight_is_not_renewed(cluster: Cluster) -> None:
    """Three more scans asked the broker about it."""

    async def scenario(proxy: PortlessProxy) -> None:
        await received(proxy)
        await reset(cluster)
        again = await received(proxy)
        assert len(proxy.handles) == 2
        await asyncio.sleep(3 * MINUTE_S)
        outcomes = proxy.handles.outcomes
        assert (outcomes["failed"], outcomes["given_up"]) == (1, 1)
        assert outcomes["renewed"] > 1
        assert len(proxy.handles) == 1
        assert await proxy.ack(again) == wire.OK

    run(cluster, scenario)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_renewed_message_is_acknowledged_by_its_first_handle_where_it_was_received(
    cluster: Cluster, ordered: bool
) -> None:
    async def scenario(proxy: PortlessProxy) -> None:
        message = await received(proxy)
        await asyncio.sleep(30 * MINUTE_S)
        assert proxy.handles.outcomes["renewed"] == 5
        assert await proxy.ack(message) == wire.OK
        assert len(proxy.handles) == 0
        assert (await proxy.at_broker(message)).state in ("DONE", "ACKNOWLEDGED")
        await asyncio.sleep(60 * MINUTE_S)
        assert await proxy.receive() == []

    run(cluster, scenario, ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_is_acknowledged_at_another_proxy_after_the_one_that_renewed_it_has_stopped(
    cluster: Cluster, ordered: bool
) -> None:
    async def scenario() -> None:
        await prepare(cluster, ordered=ordered)
        async with running(cluster, "proxy-1", "proxy-2") as (first, second):
            message = await received(first)
            await asyncio.sleep(2 * MINUTE_S)
            assert first.handles.outcomes["renewed"] == 2
            await stopped(first)
            # The last renewal hid it for the next step, 5 minutes.
            await asyncio.sleep(4 * MINUTE_S)
            assert await second.receive() == []
            assert await second.ack(message) == wire.OK
            assert (await second.at_broker(message)).state in ("DONE", "ACKNOWLEDGED")
            await asyncio.sleep(60 * MINUTE_S)
            assert await second.receive() == []

    cluster.run(scenario())


def test_a_message_that_failed_is_given_back_at_another_proxy_and_its_old_handle_is_dead(
    cluster: Cluster,
) -> None:
    async def scenario() -> None:
        await prepare(cluster)
        async with running(cluster, "proxy-1", "proxy-2") as (first, second):
            message = await received(first)
            await asyncio.sleep(2 * MINUTE_S)
            await stopped(first)
            hidden = await second.hide(message, 30)
            assert hidden.status.code == wire.OK
            assert hidden.receipt_handle != message.system_properties.receipt_handle
            assert await second.ack(message) == wire.INVALID_RECEIPT_HANDLE
            again = await received(second)
            assert again.system_properties.delivery_attempt == 2

    cluster.run(scenario())


def test_the_handle_of_a_message_that_is_delivered_again_is_refused_and_acknowledges_nothing(
    cluster: Cluster,
) -> None:
    async def scenario() -> None:
        await prepare(cluster)
        async with running(cluster, "proxy-1", "proxy-2") as (first, second):
            message = await received(first)
            await asyncio.sleep(2 * MINUTE_S)
            await stopped(first)
            again = await received(second)
            assert again.system_properties.delivery_attempt == 2
            assert await second.ack(message) == wire.INVALID_RECEIPT_HANDLE
            assert len(second.handles) == 1
            assert await second.ack(again) == wire.OK

    cluster.run(scenario())


def test_a_handle_from_before_a_reset_does_not_acknowledge_the_delivery_after_it(
    cluster: Cluster,
) -> None:
    """The message then has the same place as before."""

    async def scenario() -> None:
        await prepare(cluster)
        async with running(cluster, "proxy-1", "proxy-2") as (first, second):
            message = await received(first)
            await asyncio.sleep(2 * MINUTE_S)
            await stopped(first)
            await reset(cluster)
            again = await received(second)
            assert again.system_properties.delivery_attempt == 1
            old, new = (
                PopHandle.decode(each.system_properties.receipt_handle) for each in (message, again)
            )
            assert (old.queue_id, old.offset) == (new.queue_id, new.offset)
            await is_over(second, message)
            assert await second.ack(message) == wire.INVALID_RECEIPT_HANDLE
            assert (await second.at_broker(again)).state == "HIDDEN"
            assert await second.ack(again) == wire.OK

    cluster.run(scenario())


def test_a_broker_that_does_not_answer_makes_no_handle_invalid(cluster: Cluster) -> None:
    """A client that gets INVALID_RECEIPT_HANDLE does not try again."""

    async def scenario() -> None:
        await prepare(cluster)
        async with running(cluster, "proxy-1", "proxy-2") as (first, second):
            message = await received(first)
            assert await second.receive() == []
            await asyncio.sleep(2 * MINUTE_S)
            await stopped(first)
            await cluster.stop_broker(0)
            assert await second.ack(message) not in (wire.OK, wire.INVALID_RECEIPT_HANDLE)
            await cluster.restart_broker(0)
            await until(lambda: _is_acknowledged(second, message))

    cluster.run(scenario())


@pytest.mark.parametrize(
    ("refusal", "is_invalid"),
    [
        (ResponseCode.SYSTEM_BUSY, False),
        # Java's brokers.
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, True),
    ],
)
def test_a_broker_that_is_busy_makes_no_handle_invalid(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, refusal: ResponseCode, is_invalid: bool
) -> None:
    async def refuses(*_: object) -> None:
        raise RemoteError("not now", code=refusal)

    async def scenario() -> None:
        await prepare(cluster)
        async with running(cluster, "proxy-1", "proxy-2") as (first, second):
            message = await received(first)
            await asyncio.sleep(2 * MINUTE_S)
            await stopped(first)
            with monkeypatch.context() as patch:
                patch.setattr(second.instance.brokers, "popped_message", refuses)
                code = await second.ack(message)
            assert code != wire.OK
            assert (code == wire.INVALID_RECEIPT_HANDLE) is is_invalid
            assert await second.ack(message) == wire.OK

    cluster.run(scenario())


async def _is_acknowledged(proxy: PortlessProxy, message: wire.Message) -> bool:
    return await proxy.ack(message) == wire.OK


def test_a_stop_renews_nothing_at_brokers_that_would_change_the_handle(cluster: Cluster) -> None:
    """Until a renewal has shown that a broker accepts the old handle, it may be Java's."""

    async def scenario() -> None:
        await prepare(cluster)
        async with running(cluster, "proxy-1", "proxy-2") as (first, second):
            message = await received(first)
            before = await first.at_broker(message)
            await stopped(first)
            assert await first.at_broker(message) == before
            assert first.handles.outcomes["renewed"] == 0
            assert await second.ack(message) == wire.OK

    cluster.run(scenario())
