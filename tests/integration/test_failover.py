"""Clients that lose a master: who takes over, what it costs, and what comes twice. In virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import pytest

from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    SendResult,
    SendStatus,
)
from cometmq.aio import (
    AdminClient,
    LitePullConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
)
from cometmq.bulk.range_reader import RangeReader
from cometmq.client.hooks import SendContext, SendMessageHook
from cometmq.errors import CometMQError, RouteNotFoundError
from cometmq.testing import Cluster

T = TypeVar("T")

TOPIC: Final = "orders"
GROUP: Final = "billing"
APP: Final = "app"
MASTER: Final = "broker-a"
SLAVE: Final = "broker-a-slave-1"
# A slave copies topics and offsets every ten seconds.
COPIED_S: Final = 25.0
# What a consumer holds while its listener waits is pulled already; the rest is not.
ONE_AT_A_TIME: Final[dict[str, Any]] = {"pull_batch_size": 1, "pull_threshold_for_queue": 1}


class Rig:
    """A cluster with slaves, a topic that they have, and clients on a node of their own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node = cluster.node(APP)
        # What the listener has got, in its order.
        self.got: list[MessageExt] = []
        self.acknowledged: list[bytes] = []
        self.may_consume = asyncio.Event()
        self.may_consume.set()
        self._count = 0

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]

    def producer(self, **options: Any) -> Producer:
        with self.node:
            # The suite gives its producers more time than users have.
            given = {"send_timeout_ms": 3_000, **options}
            return Producer("shop", namesrv=self.cluster.namesrv, **given)

    def consumer(self, **options: Any) -> PushConsumer:
        with self.node:
            made = PushConsumer(GROUP, self.listen, namesrv=self.cluster.namesrv, **options)
        made.subscribe(TOPIC)
        return made

    async def listen(self, messages: list[MessageExt]) -> ConsumeResult:
        await self.may_consume.wait()
        self.got += messages
        return ConsumeResult.SUCCESS

    async def send(self, producer: Producer, count: int, **options: Any) -> list[SendResult]:
        """Send `count` messages whose bodies are numbers, one after the other."""
        results = []
        for _ in range(count):
            self._count += 1
            body = b"%d" % self._count
            results.append(await producer.send(Message(TOPIC, body), **options))
            self.acknowledged.append(body)
        return results

    async def got_all(self, within_s: float = 60.0) -> None:
        """Wait until the listener has got all that was acknowledged."""
        missing: set[bytes] = set()

        def has_all() -> bool:
            nonlocal missing
            missing = set(self.acknowledged) - set(self.bodies())
            return not missing

        await until(has_all, within_s, lambda: f"not consumed: {sorted(missing, key=int)}")

    async def in_step(self, group: str = "a") -> None:
        """Wait until the slave has the whole log of its master."""
        master = self.cluster.broker(f"broker-{group}").store
        slave = self.cluster.broker(f"broker-{group}-slave-1").store
        await until(lambda: slave.commit_log.end == master.commit_log.end)

    def repeated(self) -> dict[bytes, int]:
        return {body: count for body, count in Counter(self.bodies()).items() if count > 1}

    def check_order(self) -> None:
        """Check that what came for the first time from each queue came in the queue's order."""
        last: dict[MessageQueue, int] = {}
        seen: set[bytes] = set()
        for message in self.got:
            if message.body not in seen:
                seen.add(message.body)
                queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
                assert message.queue_offset > last.get(queue, -1), (queue, message.queue_offset)
                last[queue] = message.queue_offset


Story = Callable[[Rig], Awaitable[T]]


async def until(
    met: Callable[[], bool], within_s: float = 60.0, say: Callable[[], str] = lambda: ""
) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not met():
        assert loop.time() < deadline, say() or f"not within {within_s:g} s"
        await asyncio.sleep(0.05)


def play(
    story: Story[T],
    *,
    brokers: int = 1,
    master_role: str = "ASYNC_MASTER",
    queues: int = 2,
    seed: int = 5,
    properties: Mapping[str, str] | None = None,
) -> T:
    with Cluster(
        clock="virtual",
        seed=seed,
        brokers=brokers,
        slaves=1,
        master_role=master_role,
        properties=properties,
    ) as cluster:

        async def main() -> T:
            rig = Rig(cluster)
            async with AdminClient(cluster.namesrv) as admin:
                await admin.topics.create(TOPIC, read_queues=queues, write_queues=queues)
            await asyncio.sleep(COPIED_S)
            return await rig.node.run_in(as_coroutine(story(rig)))

        return cluster.run(main())


async def as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def took_s(work: Coroutine[Any, Any, Any]) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await work
    return loop.time() - began_s


# The cluster of a test: what can happen to a master, and what ends it.

LOSSES: Final[Mapping[str, tuple[Callable[[Cluster], None], Callable[[Cluster], Any]]]] = {
    "kill": (lambda c: c.kill(MASTER), lambda c: c.restart(MASTER)),
    "power_off": (lambda c: c.power_off(MASTER), lambda c: c.restart(MASTER)),
    "pause": (lambda c: c.pause(MASTER), lambda c: c.resume(MASTER)),
    "cut from clients": (lambda c: c.cut(APP, MASTER), lambda c: c.heal(APP, MASTER)),
    "silent for clients": (lambda c: c.blackhole(APP, MASTER), lambda c: c.heal(APP, MASTER)),
    "half open": (
        lambda c: c.blackhole(MASTER, APP, one_way=True),
        lambda c: c.heal(APP, MASTER),
    ),
    "cut from all": (
        lambda c: c.partition([MASTER], [APP, SLAVE, "namesrv-0"]),
        lambda c: c.heal_all(),
    ),
}


async def ended(end: Any) -> None:
    if asyncio.iscoroutine(end):
        await end


@pytest.mark.parametrize("slave_read", ["false", "true"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_consumer_reads_on_at_the_slave_and_comes_back(loss: str, slave_read: str) -> None:
    begin, end = LOSSES[loss]

    async def story(rig: Rig) -> dict[bytes, int]:
        async with rig.producer() as producer, rig.consumer(**ONE_AT_A_TIME):
            await rig.send(producer, 10)
            await rig.got_all()
            rig.may_consume.clear()
            await rig.send(producer, 10)
            await rig.in_step()
            begin(rig.cluster)
            rig.may_consume.set()
            # A silent master is found by the commit of offsets, in 8 s; the rest is pulling.
            await rig.got_all(within_s=40)
            await asyncio.sleep(20)
            await ended(end(rig.cluster))
            await rig.send(producer, 10, timeout_ms=60_000)
            await rig.got_all()
            await asyncio.sleep(40)
            assert await rig.cluster.lag(GROUP) == 0
        rig.check_order()
        return rig.repeated()

    properties = {"slaveReadEnable": slave_read, "flushDiskType": "SYNC_FLUSH"}
    assert play(story, properties=properties) == {}


@pytest.mark.parametrize("loss", ["kill", "pause"])
def test_what_the_slave_lacks_is_waited_for_and_nothing_is_skipped(loss: str) -> None:
    begin, end = LOSSES[loss]

    async def story(rig: Rig) -> dict[bytes, int]:
        async with rig.producer() as producer, rig.consumer():
            await rig.send(producer, 4)
            await rig.got_all()
            await rig.in_step()
            rig.cluster.cut(MASTER, SLAVE)
            await rig.send(producer, 10)
            await rig.got_all()  # from the master: the consumer is ahead of the slave now
            begin(rig.cluster)
            await asyncio.sleep(60)
            rig.cluster.heal_all()
            await ended(end(rig.cluster))
            await rig.send(producer, 4, timeout_ms=60_000)
            await rig.got_all(within_s=120)
        rig.check_order()
        return rig.repeated()

    assert play(story) == {}


def test_a_consumer_that_starts_without_a_master_begins_where_its_group_was() -> None:
    async def story(rig: Rig) -> tuple[int, int]:
        async with rig.producer() as producer:
            async with rig.consumer():
                await rig.send(producer, 10)
                await rig.got_all()
            await asyncio.sleep(COPIED_S)
            await rig.send(producer, 10)
            await rig.in_step()
            rig.cluster.kill(MASTER)
            await asyncio.sleep(5)
            async with rig.consumer():
                await rig.got_all()
            at_slave = sum(rig.repeated().values())
            # What was committed at the slave counts for the next member there.
            async with rig.consumer():
                await asyncio.sleep(20)
            again_at_slave = sum(rig.repeated().values())
            await rig.cluster.restart(MASTER)
            # Nobody committed to the master meanwhile, so what the slave gave comes once more.
            async with rig.consumer():
                await rig.send(producer, 10, timeout_ms=60_000)
                await rig.got_all()
        assert set(rig.repeated().values()) <= {2}
        assert set(rig.repeated()) <= {b"%d" % number for number in range(11, 21)}
        return at_slave, again_at_slave

    assert play(story) == (0, 0)


def test_a_group_that_the_slave_does_not_know_yet_begins_when_the_master_is_back() -> None:
    """A slave without an offset is no proof that there is none: the group might skip messages."""

    async def story(rig: Rig) -> None:
        async with rig.producer() as producer:
            async with rig.consumer():
                await rig.send(producer, 10)
                await rig.got_all()
            # The group's first commits have reached the master only.
            await rig.send(producer, 5)
            rig.cluster.kill(MASTER)
            async with rig.consumer():
                await asyncio.sleep(30)
                assert len(rig.got) == 10
                await rig.cluster.restart(MASTER)
                await rig.got_all()
        # The master was killed before its disk had the commits.
        assert len(rig.repeated()) <= 10

    play(story)


def test_orderly_consumption_waits_for_a_master_and_keeps_its_order() -> None:
    async def story(rig: Rig) -> None:
        async with rig.producer() as producer, rig.consumer(orderly=True, **ONE_AT_A_TIME):
            await rig.send(producer, 6)
            await rig.got_all()
            rig.may_consume.clear()
            await rig.send(producer, 6)
            await rig.in_step()
            rig.cluster.kill(MASTER)
            await asyncio.sleep(1)  # the consumer notices that its locks are gone
            rig.may_consume.set()
            await asyncio.sleep(60)
            before = len(rig.got)
            await rig.cluster.promote(SLAVE)
            await rig.send(producer, 6, timeout_ms=60_000)
            await rig.got_all()
        # The locks of the master's connection ended with it, and slaves give none.
        assert before <= 6 + 2, "each queue had one message at its listener"
        assert rig.repeated() == {}
        rig.check_order()

    play(story)


def test_broadcasting_goes_on_at_the_slave(tmp_path: Any) -> None:
    async def story(rig: Rig) -> dict[bytes, int]:
        options = {"message_model": MessageModel.BROADCASTING, "local_offset_dir": tmp_path}
        options |= ONE_AT_A_TIME
        async with rig.producer() as producer, rig.consumer(**options):
            await rig.send(producer, 5)
            await rig.got_all()
            rig.may_consume.clear()
            await rig.send(producer, 5)
            await rig.in_step()
            rig.cluster.kill(MASTER)
            rig.may_consume.set()
            await rig.got_all()
            await rig.cluster.restart(MASTER)
            await rig.send(producer, 5, timeout_ms=60_000)
            await rig.got_all()
        return rig.repeated()

    assert play(story) == {}


def test_messages_that_a_slave_lacks_are_not_gone_for_range_readers() -> None:
    async def story(rig: Rig) -> None:
        queue = MessageQueue(TOPIC, MASTER, 0)
        async with rig.producer() as producer:
            await rig.send(producer, 5, queue=queue)
            await rig.in_step()
            rig.cluster.cut(MASTER, SLAVE)
            await rig.send(producer, 5, queue=queue)
        rig.cluster.kill(MASTER)
        with rig.node:
            reader = RangeReader(namesrv=rig.cluster.namesrv)
        async with reader:
            assert await reader.queues(TOPIC) == [queue]
            # A stream that has read the ten would take the queue for one that was made again.
            failure = (await reader.offsets_or_failures([queue], {queue: 10}))[queue]
            assert isinstance(failure, RouteNotFoundError)
            assert (await reader.offsets_or_failures([queue], {queue: 5}))[queue] == (0, 5)
            await rig.cluster.restart(MASTER)
            found: Any = None
            for _ in range(30):
                found = (await reader.offsets_or_failures([queue], {queue: 10}))[queue]
                await asyncio.sleep(1)
            assert found == (0, 10)

    play(story, queues=1)


def test_lite_pull_reads_searches_and_commits_at_the_slave() -> None:
    async def story(rig: Rig) -> None:
        queue = MessageQueue(TOPIC, MASTER, 0)
        async with rig.producer() as producer:
            sent = await rig.send(producer, 5, queue=queue)
            await asyncio.sleep(1)
            await rig.send(producer, 5, queue=queue)
        assert [result.queue_offset for result in sent] == list(range(5))
        await rig.in_step()
        with rig.node:
            consumer = LitePullConsumer(GROUP, namesrv=rig.cluster.namesrv, auto_commit=False)
        consumer.assign([queue])
        async with consumer:
            await consumer.seek_to_begin(queue)
            first = await consumer.poll(5_000)
            born_ms = first[-1].store_timestamp_ms
            rig.cluster.kill(MASTER)
            await asyncio.sleep(1)
            await consumer.seek(queue, 3)
            assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 10)
            assert 5 <= await consumer.offset_for_timestamp(queue, born_ms) < 10
            found: list[MessageExt] = []
            while len(found) < 7:
                found += await consumer.poll(20_000)
            assert [message.queue_offset for message in found] == list(range(3, 10))
            pulled = await consumer.pull(queue, 8)
            assert [message.queue_offset for message in pulled.messages] == [8, 9]
            await consumer.commit({queue: 7})
            assert await consumer.committed(queue) == 7
            await asyncio.sleep(30)  # the route names the slave only
            # A name server may be lost together with the master.
            rig.cluster.kill("namesrv-0")
            assert (await consumer.pull(queue, 8)).next_begin_offset == 10
            await consumer.seek(queue, 3)
            assert await consumer.max_offset(queue) == 10
            await rig.cluster.restart("namesrv-0")
            await asyncio.sleep(10)
        async with AdminClient(rig.cluster.namesrv) as admin:
            stored = [message async for message in admin.messages.stored(TOPIC)]
        assert len(stored) == 10
        assert await rig.cluster.lag(GROUP, TOPIC) == 3

    play(story, queues=1)


def test_administrators_are_told_at_the_slave_what_they_ask() -> None:
    async def story(rig: Rig) -> None:
        async with rig.producer() as producer, rig.consumer():
            [*_, sent] = await rig.send(producer, 6)
            await rig.got_all()
            await asyncio.sleep(COPIED_S)
            rig.cluster.kill(MASTER)
            await asyncio.sleep(2)
            async with AdminClient(rig.cluster.namesrv) as admin:
                assert sum(at.max_offset for at in await admin.offsets.of_topic(TOPIC)) == 6
                [found] = await admin.messages.find(sent.msg_id, topic=TOPIC)
                assert found.body == rig.acknowledged[-1]
                why_behind = await admin.explain.group(GROUP)
                why_lost = await admin.explain.message(sent.msg_id, topic=TOPIC)
                why_refused = await admin.explain.write(TOPIC)
        assert [reason.cause.value for reason in why_behind.reasons] == ["caught-up"]
        assert "consumed" in [reason.cause.value for reason in why_lost.reasons]
        assert "made the master" in why_refused.reasons[0].remedy

    play(story)


# Producers


class Attempts(SendMessageHook):
    """Notes the broker and the outcome of each attempt to send."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def before_send(self, context: SendContext) -> None:
        self.made.append(context.queue.broker_name)

    def after_send(self, context: SendContext) -> None:
        """Keep nothing: the sends return their outcome."""


@pytest.mark.parametrize("latency_faults", [False, True])
@pytest.mark.parametrize("loss", ["kill", "cut from clients"])
def test_a_producer_goes_to_the_other_group_within_one_retry(
    loss: str, latency_faults: bool
) -> None:
    async def story(rig: Rig) -> None:
        attempts = Attempts()
        producer = rig.producer(send_latency_fault_enable=latency_faults)
        producer.add_hook(attempts)
        async with producer:
            await rig.send(producer, 8)
            assert set(attempts.made) == {"broker-a", "broker-b"}
            attempts.made.clear()
            LOSSES[loss][0](rig.cluster)
            # A timeout would take three seconds.
            assert max([await took_s(rig.send(producer, 1)) for _ in range(12)]) < 1.0
        assert attempts.made.count("broker-a") <= 1
        assert len(attempts.made) <= 13

    play(story, brokers=2)


@pytest.mark.parametrize("latency_faults", [False, True])
@pytest.mark.parametrize("loss", ["power_off", "pause", "silent for clients", "half open"])
def test_a_silent_master_costs_a_producer_one_attempt(loss: str, latency_faults: bool) -> None:
    """No connection is reset, so only the attempt's timeout says that nobody is there."""

    async def story(rig: Rig) -> None:
        attempts = Attempts()
        producer = rig.producer(
            send_latency_fault_enable=latency_faults, max_timeout_per_request_ms=500
        )
        producer.add_hook(attempts)
        async with producer:
            await rig.send(producer, 8)
            attempts.made.clear()
            LOSSES[loss][0](rig.cluster)
            times_s = [await took_s(rig.send(producer, 1)) for _ in range(12)]
        assert attempts.made.count("broker-a") == 1
        assert sorted(times_s)[-2] < 0.5
        assert 0.5 <= max(times_s) < 1.0

    play(story, brokers=2)


def test_a_send_that_may_use_its_whole_timeout_at_a_silent_master_fails_alone() -> None:
    async def story(rig: Rig) -> list[str]:
        outcomes = []
        async with rig.producer() as producer:
            await rig.send(producer, 8)
            rig.cluster.pause(MASTER)
            for _ in range(12):
                try:
                    [result] = await rig.send(producer, 1)
                except CometMQError as error:
                    outcomes.append(type(error).__name__)
                else:
                    outcomes.append(result.queue.broker_name)
        return outcomes

    outcomes = play(story, brokers=2)
    assert Counter(outcomes) == {"broker-b": 11, "RequestTimeoutError": 1}


def test_a_group_of_slaves_only_gets_no_sends() -> None:
    async def story(rig: Rig) -> None:
        attempts = Attempts()
        async with rig.producer() as producer:
            producer.add_hook(attempts)
            await rig.send(producer, 1)
            rig.cluster.kill(MASTER)
            await asyncio.sleep(5)
            attempts.made.clear()
            with pytest.raises(RouteNotFoundError, match="lacks its master"):
                await rig.send(producer, 1)
        assert attempts.made == []

    play(story)


def test_an_acknowledgement_without_a_slave_can_be_tried_at_another_group() -> None:
    async def story(rig: Rig) -> None:
        at_a = MessageQueue(TOPIC, MASTER, 0)
        careful = rig.producer(retry_another_broker_when_not_store_ok=True, instance_name="careful")
        async with rig.producer() as producer, careful:
            await rig.in_step()
            await rig.send(producer, 2)
            rig.cluster.pause(SLAVE)
            [late] = await rig.send(producer, 1, queue=at_a)
            assert late.status is SendStatus.FLUSH_SLAVE_TIMEOUT
            rig.cluster.resume(SLAVE)
            rig.cluster.kill(SLAVE)
            await asyncio.sleep(2)
            [alone] = await rig.send(producer, 1, queue=at_a)
            assert alone.status is SendStatus.SLAVE_NOT_AVAILABLE
            found = await rig.send(careful, 8)
        assert {(result.status, result.queue.broker_name) for result in found} == {
            (SendStatus.SEND_OK, "broker-b")
        }

    play(story, brokers=2, master_role="SYNC_MASTER", properties={"slaveTimeout": "500"})


def test_a_transaction_is_asked_for_by_the_slave_that_became_master() -> None:
    async def story(rig: Rig) -> list[str]:
        asked: list[str] = []

        class Listener:
            async def execute(self, _message: Message, _arg: Any) -> LocalTransactionState:
                rig.cluster.kill(MASTER)  # the verdict does not reach it
                return LocalTransactionState.COMMIT

            async def check(self, message: MessageExt) -> LocalTransactionState:
                asked.append(message.body.decode())
                return LocalTransactionState.COMMIT

        with rig.node:
            producer = TransactionProducer("pay", Listener(), namesrv=rig.cluster.namesrv)
        async with producer, rig.consumer():
            await producer.send_in_transaction(Message(TOPIC, b"1"))
            rig.acknowledged.append(b"1")
            await asyncio.sleep(5)
            await rig.cluster.promote(SLAVE)
            await rig.got_all(within_s=180)
        return asked

    asked = play(
        story,
        master_role="SYNC_MASTER",
        properties={"transactionTimeOut": "1000", "transactionCheckInterval": "5000"},
    )
    assert asked


# The switch by hand


@pytest.mark.parametrize("loss", ["kill", "power_off", "stop"])
def test_a_switch_under_load_loses_nothing_that_a_sync_master_acknowledged(
    loss: str,
) -> None:
    async def story(rig: Rig) -> dict[SendStatus, int]:
        statuses: Counter[SendStatus] = Counter()
        numbers = iter(range(10_000))
        ends_s = asyncio.get_running_loop().time() + 50

        async def load() -> None:
            while asyncio.get_running_loop().time() < ends_s:
                body = b"%d" % next(numbers)
                try:
                    result = await producer.send(Message(TOPIC, body))
                except CometMQError:
                    continue
                statuses[result.status] += 1
                if result.status is SendStatus.SEND_OK:
                    rig.acknowledged.append(body)
                await asyncio.sleep(0.5)

        async def switch() -> None:
            await asyncio.sleep(5)
            if loss == "stop":
                await rig.cluster.stop_broker(MASTER)
            else:
                LOSSES[loss][0](rig.cluster)
            await asyncio.sleep(10)
            await rig.cluster.promote(SLAVE)
            await asyncio.sleep(10)
            await rig.cluster.demote(MASTER)

        async with (
            rig.producer(max_timeout_per_request_ms=1_000) as producer,
            rig.consumer(),
            rig.consumer(instance_name="other"),
        ):
            await asyncio.gather(switch(), load(), load())
            await rig.got_all(within_s=120)
        await check_copies(rig, MASTER, SLAVE)
        return statuses

    statuses = play(
        story,
        brokers=2,
        master_role="SYNC_MASTER",
        properties={"flushDiskType": "SYNC_FLUSH"},
    )
    assert statuses[SendStatus.SEND_OK] > 100


async def check_copies(rig: Rig, *nodes: str) -> None:
    """Wait until the brokers have the same log."""
    ends = [rig.cluster.broker(node).store.commit_log for node in nodes]
    await until(lambda: len({log.end for log in ends}) == 1, 120)


def test_a_switch_from_an_async_master_loses_what_the_slave_lacked_and_only_that() -> None:
    async def story(rig: Rig) -> None:
        async with rig.producer() as producer:
            await rig.send(producer, 10)
            await rig.in_step()
            rig.cluster.cut(MASTER, SLAVE)
            await rig.send(producer, 5)
            lost = rig.acknowledged[10:]
            rig.cluster.kill(MASTER)
            await asyncio.sleep(1)
            await rig.cluster.promote(SLAVE)
            rig.cluster.heal_all()
            rig.acknowledged = rig.acknowledged[:10]
            await rig.send(producer, 10, timeout_ms=60_000)
            first = rig.consumer(consume_from=ConsumeFromWhere.FIRST_OFFSET)
            async with first:
                await rig.got_all()
        assert not set(lost) & set(rig.bodies())
        assert rig.repeated() == {}

    play(story)
