"""A cluster in virtual time, as users' tests use it: hours pass in milliseconds."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest
from tests.integration.routes import until_routed

import cometmq
from cometmq import ConsumeResult, LocalTransactionState, Message, MessageExt
from cometmq.aio import AdminClient, Producer, PushConsumer, TransactionProducer
from cometmq.errors import ClientStateError
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.surroundings import current
from cometmq.testing import Cluster, run
from cometmq.testing.virtual.handles import Callback, Timer

SECOND, MINUTE, HOUR = 1, 60, 3600
# The delays of the levels 3 to 18, which retries use one after the other.
RETRY_DELAYS_S = [
    *(10, 30),
    *(minutes * MINUTE for minutes in range(1, 11)),
    *(20 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR),
]
# Timers of brokers and clients round to a second, and delivery takes a little.
CLOSE_S = 2.0


def now_s() -> float:
    return current().clock.now_ms() / 1000


Story = Callable[[Cluster], Coroutine[Any, Any, list[Any]]]


# With one queue there are fewer pulls to be simulated.
ONE_QUEUE = {"defaultTopicQueueNums": "1"}


def play_once(
    story: Story, *, properties: dict[str, str] | None = None, **options: Any
) -> tuple[list[Any], list[Any]]:
    """Play a story in virtual time; return its result and the history of the world."""
    given = {**ONE_QUEUE, **(properties or {})}
    with Cluster(clock="virtual", properties=given, **options) as cluster:
        result = cluster.run(story(cluster))
    return result, cluster.world.history


def play(story: Story, **options: Any) -> list[Any]:
    """Play a story twice; return its result, which is the same the second time."""
    first = play_once(story, **options)
    assert play_once(story, **options) == first
    return first[0]


class Seen(NamedTuple):
    """A delivery to a listener, with its time."""

    at_s: float
    reconsume_times: int
    msg_id: str
    body: bytes


async def retry_to_the_dead_letters(cluster: Cluster) -> list[Any]:
    attempts: list[Seen] = []
    all_made = asyncio.Event()

    async def fails(messages: list[MessageExt]) -> ConsumeResult:
        attempts.extend(
            Seen(now_s(), each.reconsume_times, each.msg_id, each.body) for each in messages
        )
        if len(attempts) == 17:
            all_made.set()
        return ConsumeResult.RECONSUME_LATER

    consumer = PushConsumer("billing", fails, namesrv=cluster.namesrv)
    consumer.subscribe("orders")
    async with (
        Producer("shop", namesrv=cluster.namesrv) as producer,
        AdminClient(namesrv=cluster.namesrv) as admin,
    ):
        await producer.send(Message("orders", b"order 1"))
        async with consumer:
            await all_made.wait()
            await asyncio.sleep(MINUTE)
            letters = [letter.body async for letter in admin.messages.dead_letters("billing")]
    return [*attempts, *letters]


def test_a_message_is_retried_16_times_and_becomes_a_dead_letter() -> None:
    (*attempts, letter), _ = play_once(retry_to_the_dead_letters, seed=1)
    assert letter == b"order 1"
    assert [seen.reconsume_times for seen in attempts] == list(range(17))
    assert {seen.body for seen in attempts} == {b"order 1"}
    waits_s = [later.at_s - seen.at_s for seen, later in itertools.pairwise(attempts)]
    assert waits_s == pytest.approx(RETRY_DELAYS_S, abs=CLOSE_S)


async def delayed_deliveries(cluster: Cluster) -> list[Any]:
    """Two messages with a delay of two hours: one by the timer, one by delay level 18."""
    consumed: list[Seen] = []

    async def listen(messages: list[MessageExt]) -> ConsumeResult:
        consumed.extend(Seen(now_s(), 0, each.msg_id, each.body) for each in messages)
        return ConsumeResult.SUCCESS

    consumer = PushConsumer("billing", listen, namesrv=cluster.namesrv)
    consumer.subscribe("orders")
    async with Producer("shop", namesrv=cluster.namesrv) as producer, consumer:
        began_s = now_s()
        await producer.send(Message("orders", b"timer", delay_ms=2 * HOUR * 1000))
        await producer.send(Message("orders", b"level", delay_level=18))
        await asyncio.sleep(2 * HOUR - SECOND)
        assert consumed == [], "a message came early"
        await asyncio.sleep(3 * SECOND)
    return [began_s, *sorted(consumed, key=lambda each: each.body)]


def test_delays_of_two_hours_end_after_two_hours() -> None:
    (began_s, level, timer), _ = play_once(delayed_deliveries, seed=2)
    assert (level.body, timer.body) == (b"level", b"timer")
    for seen in (level, timer):
        assert seen.at_s - began_s == pytest.approx(2 * HOUR, abs=CLOSE_S)


def test_an_idle_broker_looked_for_work_25_times_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken_s: set[float] = set()

    async def story(cluster: Cluster) -> list[Any]:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await producer.send(Message("orders", b"order 1"))
        # Until all is on disk, and the index and the checkpoint have it.
        await asyncio.sleep(5 * MINUTE)
        woken_s.clear()
        await asyncio.sleep(5 * MINUTE)
        return [len(woken_s)]

    for kind in (Callback, Timer):

        def noted(handle: Any, run: Callable[[Any], None] = kind.run) -> None:
            if handle.node is not None and handle.node.name == "broker-a":
                woken_s.add(round(handle.node.clock.monotonic(), 6))
            run(handle)

        monkeypatch.setattr(kind, "run", noted)
    (wakes,), _ = play_once(story, seed=5)
    # With the looks at files, for which there is no reason in virtual time, it is below five a second:
    # each second has one more timer, and a thread that it wakes.
    assert 0 < wakes < 5 * MINUTE


async def eviction(cluster: Cluster) -> list[Any]:
    """Say after which time a broker that is paused is in no route any more."""
    async with (
        AdminClient(namesrv=cluster.namesrv) as admin,
        Producer("shop", namesrv=cluster.namesrv) as producer,
    ):
        await admin.topics.create("orders")
        await until_routed(cluster, "orders", "broker-a", "broker-b")

        async def brokers() -> list[str]:
            route = await admin.topics.route("orders")
            return sorted(each.broker_name for each in route.broker_datas)

        assert await brokers() == ["broker-a", "broker-b"]
        cluster.pause("broker-b")
        began_s = now_s()
        while await brokers() != ["broker-a"]:  # noqa: ASYNC110 - a route is asked for
            await asyncio.sleep(SECOND)
        gone_after_s = now_s() - began_s
        await asyncio.sleep(MINUTE)  # clients renew their routes every 30 s
        used = {(await producer.send(Message("orders", b"x"))).queue.broker_name for _ in range(20)}
        cluster.resume("broker-b")
        await asyncio.sleep(MINUTE)
        return [gone_after_s, used, await brokers()]


def test_a_silent_broker_is_evicted_after_120_seconds_and_comes_back() -> None:
    gone_after_s, used, brokers = play(eviction, brokers=2, seed=3)
    # It registers every 30 s, and the name server looks every 5 s.
    assert 120 - 30 <= gone_after_s <= 120 + 5 + CLOSE_S
    assert used == {"broker-a"}
    assert brokers == ["broker-a", "broker-b"]


async def unresolved_transaction(cluster: Cluster) -> list[Any]:
    checked_s: list[float] = []
    consumed: list[bytes] = []

    class Undecided:
        async def execute(self, _message: Message, _arg: object) -> LocalTransactionState:
            return LocalTransactionState.UNKNOWN

        async def check(self, _message: MessageExt) -> LocalTransactionState:
            checked_s.append(now_s())
            return LocalTransactionState.UNKNOWN

    async def listen(messages: list[MessageExt]) -> ConsumeResult:
        consumed.extend(each.body for each in messages)
        return ConsumeResult.SUCCESS

    consumer = PushConsumer("billing", listen, namesrv=cluster.namesrv)
    consumer.subscribe("orders")
    async with (
        TransactionProducer("shop", Undecided(), namesrv=cluster.namesrv) as producer,
        AdminClient(namesrv=cluster.namesrv) as admin,
        consumer,
    ):
        await producer.send_in_transaction(Message("orders", b"half"))
        # The fifteen checks take less than half of this time, so a further one would come.
        await asyncio.sleep(20 * MINUTE)
        given_up = [each.body async for each in admin.messages.given_up_halves()]
    return [checked_s, consumed, given_up]


def test_a_transaction_is_checked_15_times_and_given_up() -> None:
    checked_s, consumed, given_up = play(unresolved_transaction, seed=4)
    assert len(checked_s) == 15
    waits_s = [later - one for one, later in itertools.pairwise(checked_s)]
    assert waits_s == pytest.approx([30.0] * 14, abs=CLOSE_S)
    assert consumed == []
    assert given_up == [b"half"]


async def late_rollback(cluster: Cluster) -> list[Any]:
    """Roll a transaction back when the broker rests. Return how many op records there are until then,
    and four seconds later.
    """
    counts: list[int] = []

    async with AdminClient(namesrv=cluster.namesrv) as admin:

        async def count() -> None:
            counts.append((await admin.topics.stats("RMQ_SYS_TRANS_OP_HALF_TOPIC")).messages)

        class Late:
            async def execute(self, _message: Message, _arg: object) -> LocalTransactionState:
                await asyncio.sleep(20 * SECOND)
                await count()
                return LocalTransactionState.ROLLBACK

            async def check(self, _message: MessageExt) -> LocalTransactionState:
                return LocalTransactionState.UNKNOWN

        async with TransactionProducer("shop", Late(), namesrv=cluster.namesrv) as producer:
            await producer.send_in_transaction(Message("orders", b"half"))
            await asyncio.sleep(4 * SECOND)
            await count()
    return counts


def test_a_rollback_while_the_log_does_not_grow_was_not_written_down() -> None:
    assert play_once(late_rollback, seed=6)[0] == [0, 1]


async def retention(cluster: Cluster) -> list[Any]:
    """Return the first offset that is left after three hours, after five, and the last one."""

    async def min_offset() -> int:
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            (queue,) = await admin.offsets.of_topic("orders")
            return queue.min_offset

    async with Producer("shop", namesrv=cluster.namesrv) as producer:
        for number in range(20):  # more than one file of the log
            last = await producer.send(Message("orders", Randomness(number).randbytes(50_000)))
    await asyncio.sleep(3 * HOUR)
    before = await min_offset()
    await asyncio.sleep(2 * HOUR)
    return [before, await min_offset(), last.queue_offset]


def test_messages_of_full_files_are_deleted_after_four_hours() -> None:
    at_any_hour = ";".join(f"{hour:02}" for hour in range(24))
    (before, after, last), _ = play_once(
        retention, seed=5, properties={"fileReservedTime": "4", "deleteWhen": at_any_hour}
    )
    assert before == 0
    assert 0 < after <= last, "the newest file stays"


def test_another_seed_gives_another_history() -> None:
    def history(seed: int) -> list[Any]:
        with Cluster(clock="virtual", brokers=2, seed=seed) as cluster:
            cluster.run(eviction(cluster))
        return cluster.world.history

    assert history(7) != history(8)


def test_a_cluster_in_async_with_belongs_to_the_run() -> None:
    async def main() -> tuple[float, bytes]:
        async with (
            Cluster(clock="virtual") as cluster,
            Producer("shop", namesrv=cluster.namesrv) as producer,
        ):
            result = await producer.send(Message("orders", b"x"))
            await asyncio.sleep(HOUR / 2)
            return asyncio.get_running_loop().time(), result.msg_id.encode()

    first = run(main(), seed=7)
    assert first[0] > HOUR / 2
    assert run(main(), seed=7) == first != run(main(), seed=8)


def test_a_cluster_inside_of_another_is_refused_with_the_reason() -> None:
    async def main() -> None:
        with pytest.raises(ClientStateError, match="runs a loop of its own"):
            Cluster(clock="virtual").__enter__()
        with pytest.raises(ClientStateError, match="has a cluster already"):
            await Cluster(clock="virtual").start()
        with pytest.raises(ClientStateError, match="cannot run in virtual time"):
            await Cluster().start()
        with pytest.raises(ClientStateError, match="cannot run in virtual time"):
            Cluster().__enter__()

    with Cluster(clock="virtual") as cluster:
        cluster.run(main())


def test_two_virtual_clusters_run_side_by_side() -> None:
    with Cluster(clock="virtual") as one, Cluster(clock="virtual") as other:
        one.run(asyncio.sleep(5))
        other.run(asyncio.sleep(7))
        assert other.world.loop.now_s - one.world.loop.now_s == pytest.approx(2, abs=0.1)


def test_listeners_that_are_functions_run_in_virtual_time() -> None:
    async def main(cluster: Cluster) -> list[bytes]:
        consumed: list[bytes] = []

        def listen(messages: list[MessageExt]) -> ConsumeResult:
            consumed.extend(each.body for each in messages)
            return ConsumeResult.SUCCESS

        consumer = PushConsumer("billing", listen, namesrv=cluster.namesrv)
        consumer.subscribe("orders")
        async with Producer("shop", namesrv=cluster.namesrv) as producer, consumer:
            await producer.send(Message("orders", b"x"))
            await asyncio.sleep(SECOND)
        return consumed

    with Cluster(clock="virtual") as cluster:
        assert cluster.run(main(cluster)) == [b"x"]


def test_blocking_clients_are_refused_in_virtual_time() -> None:
    async def main(cluster: Cluster) -> None:
        for new in (
            lambda: cometmq.Producer("shop", namesrv=cluster.namesrv),
            lambda: cometmq.PushConsumer("billing", namesrv=cluster.namesrv),
            lambda: cometmq.LitePullConsumer("billing", namesrv=cluster.namesrv),
            lambda: cometmq.AdminClient(namesrv=cluster.namesrv),
        ):
            with pytest.raises(ClientStateError, match=r"cometmq\.aio"):
                new()

    with Cluster(clock="virtual") as cluster:
        cluster.run(main(cluster))


@pytest.mark.filterwarnings("ignore:unclosed Producer")
def test_clients_of_a_killed_node_go_with_their_loop() -> None:
    async def kill_a_client() -> weakref.ref[asyncio.AbstractEventLoop]:
        async with Cluster(clock="virtual") as cluster:

            async def send() -> None:
                producer = Producer("shop", namesrv=cluster.namesrv)
                await producer.start()
                await producer.send(Message("orders", b"x"))

            await cluster.node("app").run_in(send())
            cluster.kill("app")
        return weakref.ref(asyncio.get_running_loop())

    loop = run(kill_a_client())
    gc.collect()
    assert loop() is None
