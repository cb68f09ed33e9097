"""Every fault of a cluster in virtual time: what its clients notice of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.integration.routes import until_routed

from cometmq import LocalTransactionState, Message, MessageExt, MessageQueue, SendResult, SendStatus
from cometmq.aio import AdminClient, LitePullConsumer, Producer, TransactionProducer
from cometmq.errors import CometMQError
from cometmq.model.names import TRANS_HALF_TOPIC
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.surroundings import current
from cometmq.testing import (
    FAULTS,
    Cluster,
    Fault,
    FaultError,
    draw_faults,
    faults_from_json,
    faults_to_json,
)

SYNC = {"flushDiskType": "SYNC_FLUSH"}
APP = "app"
TOPIC = "orders"
MINUTE = 60


class App:
    """A user's producer and consumer on a node of their own, and an administrator elsewhere."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node = cluster.node(APP)
        self.admin = AdminClient(namesrv=cluster.namesrv)
        with self.node:
            self.producer = Producer(
                "shop", namesrv=cluster.namesrv, send_timeout_ms=2000, instance_name="app"
            )
            self.consumer = LitePullConsumer("billing", namesrv=cluster.namesrv)
        self.queue = MessageQueue(TOPIC, "broker-a", 0)

    async def send(self, body: bytes = b"x") -> SendResult:
        return await self.node.run_in(self.producer.send(Message(TOPIC, body), queue=self.queue))

    async def send_took_s(self) -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self.send()
        return loop.time() - began_s

    async def sent_at_last(self, within_s: float = 5 * MINUTE) -> SendResult:
        """Send as a user does who does not give up."""
        async with asyncio.timeout(within_s):
            while True:
                try:
                    return await self.send()
                except CometMQError:
                    await asyncio.sleep(1)

    async def bodies(self) -> list[bytes]:
        """Return what the queue has."""
        begin = await self.consumer.min_offset(self.queue)
        end = await self.consumer.max_offset(self.queue)
        found: list[bytes] = []
        while begin < end:
            result = await self.consumer.pull(self.queue, begin)
            found += [message.body for message in result.messages]
            if result.next_begin_offset <= begin:
                break
            begin = result.next_begin_offset
        return found

    async def bodies_at_last(self, wanted: list[bytes]) -> None:
        """Wait until the queue has these, in any order, and nothing else."""
        async with asyncio.timeout(3 * MINUTE):
            while sorted(await self.bodies()) != wanted:  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(1)


Story = Callable[[App], Awaitable[Any]]


def play(story: Story, *, properties: dict[str, str] | None = None, **options: Any) -> Any:
    """Run a story in virtual time, twice, and return its result, which must be the same."""

    def once() -> tuple[Any, Any]:
        with Cluster(clock="virtual", properties=properties, **options) as cluster:

            async def main() -> Any:
                app = App(cluster)
                async with app.admin:
                    await app.admin.topics.create(TOPIC, read_queues=1, write_queues=1)
                    await until_routed(cluster, TOPIC, *cluster.nodes.brokers)
                    await app.node.run_in(app.producer.start())
                    await app.node.run_in(app.consumer.start())
                    await app.send(b"first")
                    result = await story(app)
                    if not app.node.is_killed:
                        await app.node.run_in(app.producer.close())
                        await app.node.run_in(app.consumer.close())
                return result

            result = cluster.run(main())
        return result, cluster.world.history

    first = once()
    assert once() == first
    return first[0]


# Links


def test_a_cut_link_refuses_and_heals() -> None:
    async def story(app: App) -> None:
        app.cluster.cut(APP, "broker-a")
        with pytest.raises(CometMQError):
            await app.send()
        app.cluster.heal(APP, "broker-a")
        await app.sent_at_last()

    play(story)


def test_a_black_hole_swallows_until_the_client_gives_up() -> None:
    async def story(app: App) -> float:
        app.cluster.blackhole(APP, "broker-a")
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(CometMQError):
            await app.send(b"lost")
        took_s = asyncio.get_running_loop().time() - began_s
        app.cluster.heal(APP, "broker-a")
        await app.sent_at_last()
        return took_s

    # A client reads once more before it gives up, a millisecond later.
    assert play(story) == pytest.approx(2, abs=0.002)


def test_a_one_way_black_hole_stores_what_nobody_acknowledges() -> None:
    async def story(app: App) -> list[bytes]:
        app.cluster.blackhole("broker-a", APP, one_way=True)
        with pytest.raises(CometMQError):
            await app.send(b"stored")
        app.cluster.heal("broker-a", APP)
        await app.sent_at_last()
        return await app.node.run_in(app.bodies())

    assert b"stored" in play(story)


def test_a_delayed_link_takes_its_time() -> None:
    async def story(app: App) -> tuple[float, float]:
        fast_s = await app.send_took_s()
        app.cluster.delay(APP, "broker-a", min_s=0.4, max_s=0.5)
        return fast_s, await app.send_took_s()

    fast_s, slow_s = play(story)
    # Less than one way takes, and less than three.
    assert fast_s < 0.4
    assert 0.8 <= slow_s < 1.2


def test_a_slow_link_carries_so_many_bytes_a_second() -> None:
    async def story(app: App) -> float:
        app.cluster.slow(APP, "broker-a", bytes_per_s=10_000)
        began_s = asyncio.get_running_loop().time()
        await app.send(Randomness(1).randbytes(10_000))
        return asyncio.get_running_loop().time() - began_s

    assert 1.0 <= play(story) <= 1.5


def test_reset_connections_are_made_anew() -> None:
    async def story(app: App) -> SendStatus:
        app.cluster.reset_connections(APP, "broker-a")
        return (await app.sent_at_last()).status

    assert play(story) is SendStatus.SEND_OK


def test_a_partition_separates_sides() -> None:
    async def story(app: App) -> None:
        app.cluster.partition([APP, "namesrv-0"], ["broker-a"])
        with pytest.raises(CometMQError):
            await app.send()
        app.cluster.heal_all()
        await app.sent_at_last()

    play(story)


# Nodes


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_killed_broker_keeps_what_was_written(flush: str) -> None:
    async def story(app: App) -> list[bytes]:
        await app.send(b"kept")
        app.cluster.kill("broker-a")
        with pytest.raises(CometMQError):
            await app.send()
        await app.cluster.restart("broker-a")
        await app.sent_at_last()
        return await app.node.run_in(app.bodies())

    assert play(story, properties={"flushDiskType": flush})[:2] == [b"first", b"kept"]


def test_a_broker_without_power_keeps_what_was_synced() -> None:
    async def story(app: App) -> list[bytes]:
        await app.send(b"kept")
        app.cluster.power_off("broker-a")
        await app.cluster.restart("broker-a")
        await app.sent_at_last()
        return await app.node.run_in(app.bodies())

    assert play(story, properties=SYNC)[:2] == [b"first", b"kept"]


def test_a_loss_of_power_can_lose_what_was_not_synced() -> None:
    async def story(app: App) -> int:
        for number in range(50):
            await app.send(b"%d" % number * 500)
        app.cluster.power_off("broker-a")
        await app.cluster.restart("broker-a")
        await app.sent_at_last()
        return len(await app.node.run_in(app.bodies()))

    kept = [
        play(story, seed=seed, properties={"flushIntervalCommitLog": "100000"}) for seed in range(5)
    ]
    assert min(kept) < 52, "nothing was ever lost"


def test_a_killed_name_server_is_missed_only_by_those_who_ask() -> None:
    async def story(app: App) -> None:
        app.cluster.kill("namesrv-0")
        await app.send(b"by the route that is known")
        late = Producer("late", namesrv=app.cluster.namesrv)
        async with late:
            with pytest.raises(CometMQError):
                await late.send(Message(TOPIC, b"x"))
            await app.cluster.restart("namesrv-0")
            await asyncio.sleep(MINUTE)  # the broker registers again every 30 s
            await late.send(Message(TOPIC, b"x"))

    play(story)


def test_the_other_name_server_serves() -> None:
    async def story(app: App) -> SendStatus:
        app.cluster.power_off("namesrv-0")
        async with Producer("late", namesrv=app.cluster.namesrv) as late:
            return (await late.send(Message(TOPIC, b"x"))).status

    assert play(story, name_servers=2) is SendStatus.SEND_OK


def test_a_paused_broker_answers_when_it_resumes() -> None:
    async def story(app: App) -> float:
        app.cluster.pause("broker-a")
        asyncio.get_running_loop().call_later(1.0, app.cluster.resume, "broker-a")
        return await app.send_took_s()

    assert 1.0 <= play(story) <= 1.2


def test_a_wiped_broker_starts_with_nothing() -> None:
    async def story(app: App) -> list[bytes]:
        app.cluster.wipe("broker-a")
        await app.cluster.restart("broker-a")
        with pytest.raises(CometMQError):  # its connection led to the machine without power
            await app.admin.topics.create(TOPIC)
        await app.admin.topics.create(TOPIC, read_queues=1, write_queues=1)
        await app.sent_at_last()
        return await app.node.run_in(app.bodies())

    assert play(story, properties=SYNC) == [b"x"]


def test_a_clean_restart_loses_nothing() -> None:
    async def story(app: App) -> list[bytes]:
        await app.cluster.restart("broker-a")
        await app.sent_at_last()
        return await app.node.run_in(app.bodies())

    assert play(story) == [b"first", b"x"]


def test_a_killed_node_of_clients_does_nothing_more() -> None:
    async def story(app: App) -> list[str]:
        said: list[str] = []

        async def says_at_its_end() -> None:
            try:
                await asyncio.sleep(MINUTE)
            finally:
                said.append("ended")

        with app.node:
            task = asyncio.get_running_loop().create_task(says_at_its_end())
        await asyncio.sleep(1)
        app.cluster.kill(APP)
        await asyncio.sleep(2 * MINUTE)
        assert not task.done()
        await app.cluster.restart(APP)
        node = app.cluster.node(APP)
        with node:
            # Of the same name as in the process before, which can do nothing for it.
            producer = Producer("shop", namesrv=app.cluster.namesrv, instance_name="app")
        await node.run_in(producer.start())
        await node.run_in(producer.send(Message(TOPIC, b"again"), queue=app.queue))
        await node.run_in(producer.close())
        return list(said)

    assert play(story) == []


# Disks


def test_a_failed_sync_is_no_acknowledgement() -> None:
    async def story(app: App) -> list[bytes]:
        app.cluster.fail_disk("broker-a", "sync", "EIO")
        with pytest.raises(CometMQError):
            await app.send(b"not acknowledged")
        app.cluster.mend_disk("broker-a")
        await app.cluster.restart("broker-a")
        await app.sent_at_last()
        return await app.node.run_in(app.bodies())

    bodies = play(story, properties=SYNC)
    assert (bodies[0], bodies[-1]) == (b"first", b"x")


def test_what_is_acknowledged_after_a_failed_sync_survives_a_loss_of_power() -> None:
    """The kernel takes pages for written that a failed sync lost: later syncs do not write them."""

    async def story(app: App) -> list[bytes]:
        app.cluster.fail_disk("broker-a", "sync", "EIO")
        with pytest.raises(CometMQError):
            await app.send(Randomness(1).randbytes(100_000))
        app.cluster.mend_disk("broker-a")
        await app.cluster.restart("broker-a")
        await app.sent_at_last()
        await app.send(b"acknowledged")
        app.cluster.power_off("broker-a")
        await app.cluster.restart("broker-a")
        await app.sent_at_last()
        return await app.node.run_in(app.bodies())

    for seed in range(3):
        assert b"acknowledged" in play(story, seed=seed, properties=SYNC)


def test_a_full_disk_refuses_and_takes_again_once_there_is_room() -> None:
    async def story(app: App) -> int:
        app.cluster.fill_disk("broker-a")
        sent = 0
        try:
            while sent < 200:
                await app.send(Randomness(sent).randbytes(20_000))
                sent += 1
        except CometMQError:
            app.cluster.free_disk("broker-a")
        await app.sent_at_last()
        return sent

    assert play(story) < 200


def test_what_waits_while_the_disk_is_full_comes_once_there_is_room() -> None:
    """The transient pool takes messages while their queues have no room: they cannot be read yet, and
    are not lost."""

    class Shop:
        asked = 0

        async def execute(self, _message: Message, _arg: object) -> LocalTransactionState:
            return LocalTransactionState.UNKNOWN

        async def check(self, _message: MessageExt) -> LocalTransactionState:
            self.asked += 1
            return LocalTransactionState.COMMIT

    async def story(app: App) -> None:
        with app.node:
            seller = TransactionProducer("sellers", Shop(), namesrv=app.cluster.namesrv)
        await app.node.run_in(seller.start())
        await app.bodies_at_last([b"first"])
        await app.node.run_in(seller.send_in_transaction(Message(TOPIC, b"asked about meanwhile")))
        app.cluster.fill_disk("broker-a")
        for message in (
            Message(TOPIC, b"by level", delay_level=2),
            Message(TOPIC, b"by time", delay_ms=8000),
        ):
            await app.node.run_in(app.producer.send(message, queue=app.queue))
        await app.node.run_in(seller.send_in_transaction(Message(TOPIC, b"in a transaction")))
        await asyncio.sleep(MINUTE)
        assert await app.bodies() == [b"first"]
        app.cluster.free_disk("broker-a")
        await app.bodies_at_last(
            [b"asked about meanwhile", b"by level", b"by time", b"first", b"in a transaction"]
        )
        await app.node.run_in(seller.close())
        # Each of the two and a copy for its check, and one more at most for the checks in vain.
        assert app.cluster.broker("broker-a").store.max_offset(TRANS_HALF_TOPIC, 0) <= 6

    pool = {"transientStorePoolEnable": "true", "transactionTimeOut": "3000"}
    play(story, properties={**pool, "transactionCheckInterval": "5000"})


def test_a_slow_disk_makes_sends_slow() -> None:
    async def story(app: App) -> tuple[float, float]:
        fast_s = await app.send_took_s()
        app.cluster.slow_disk("broker-a", 1.0)
        slow_s = await app.send_took_s()
        app.cluster.slow_disk("broker-a", 0)
        return fast_s, slow_s

    fast_s, slow_s = play(story, properties=SYNC)
    assert fast_s < 1.0 <= slow_s


def test_a_flipped_bit_is_never_delivered_as_if_it_were_whole() -> None:
    body = b"the whole body" * 200

    async def second(app: App) -> list[bytes]:
        try:
            result = await app.node.run_in(app.consumer.pull(app.queue, 1))
        except CometMQError:
            return []
        return [message.body for message in result.messages]

    async def story(app: App) -> list[list[bytes]]:
        bit = 8 * 1500  # in the middle of the second record's body
        await app.send(body)
        app.cluster.flip_bit("broker-a", "commitlog", bit)
        # The broker that wrote the record has it in memory.
        received = [await second(app)]
        await app.cluster.restart("broker-a")
        received.append(await second(app))
        # Recovery has ended the log in front of the record.
        await app.send(body)
        await app.cluster.restart("broker-a")
        received.append(await second(app))
        app.cluster.flip_bit("broker-a", "commitlog", bit)
        received.append(await second(app))
        return received

    assert play(story, properties=SYNC) == [[body], [], [body], []]


# Clocks


def test_a_skewed_clock_is_seen_in_the_times_of_messages() -> None:
    async def story(app: App) -> list[int]:
        app.cluster.skew_clock(APP, 3_600_000)
        before_ms = current().clock.now_ms()
        await app.send(b"from the future")
        result = await app.node.run_in(app.consumer.pull(app.queue, 1))
        (message,) = result.messages
        return [message.born_timestamp_ms - before_ms, message.store_timestamp_ms - before_ms]

    born_ms, stored_ms = play(story)
    assert 3_600_000 <= born_ms <= 3_601_000
    assert 0 <= stored_ms <= 1000


def test_a_brokers_clock_that_jumps_forward_delivers_early_and_back_never() -> None:
    async def story(app: App) -> tuple[float, float]:
        loop = asyncio.get_running_loop()

        async def arrives_after_s(jump_ms: int) -> float:
            offset = await app.node.run_in(app.consumer.max_offset(app.queue))
            began_s = loop.time()
            message = Message(TOPIC, b"later", delay_ms=600_000)
            await app.node.run_in(app.producer.send(message))
            app.cluster.skew_clock("broker-a", jump_ms)
            while await app.node.run_in(app.consumer.max_offset(app.queue)) == offset:  # noqa: ASYNC110 - the offset is asked for
                await asyncio.sleep(1)
            return loop.time() - began_s

        return await arrives_after_s(300_000), await arrives_after_s(-300_000)

    early_s, late_s = play(story)
    assert early_s == pytest.approx(300, abs=3)
    # The broker's clock never goes back; while it is ahead it is 1 % slower.
    assert 600 <= late_s <= 620


def test_a_clock_that_drifts_has_faster_timers() -> None:
    async def story(app: App) -> float:
        app.cluster.drift_clock(APP, 2.0)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await app.node.run_in(asyncio.sleep(60))
        return loop.time() - began_s

    assert play(story) == pytest.approx(30)


# Schedules


def test_each_fault_can_be_drawn_or_ends_one_that_can() -> None:
    endings = {
        name
        for kind in FAULTS.values()
        if kind.draw is not None and kind.end is not None
        for nodes in [Cluster(brokers=2, name_servers=2).nodes]
        if (args := kind.draw(Randomness(1), nodes)) is not None
        for name, _ in kind.end(args)
    }
    drawn = {name for name, kind in FAULTS.items() if kind.draw is not None}
    # A promotion needs the master's end, and a damaged state file a death and a start, so simulated runs
    # draw these as whole plans.
    assert drawn | endings == FAULTS.keys() - {"promote", "demote", "damage_state"}
    with Cluster(clock="virtual", brokers=2, name_servers=2) as cluster:
        cluster.node(APP)
        faults = draw_faults(Randomness(3), cluster, 20_000, every_s=2)
        assert {each.name for each in faults} == drawn | endings
        assert max(each.at_s for each in faults) <= 20_000


def test_a_drawn_schedule_is_the_same_for_a_seed_and_as_json() -> None:
    cluster = Cluster(clock="virtual", brokers=2)
    faults = draw_faults(Randomness(5), cluster, 3600)
    assert faults == draw_faults(Randomness(5), cluster, 3600)
    assert faults != draw_faults(Randomness(6), cluster, 3600)
    assert faults_from_json(faults_to_json(faults)) == faults
    lives = [each for each in faults if FAULTS[each.name].takes_node]
    assert lives, "nothing was drawn"


def test_a_schedule_is_replayed_and_leaves_a_cluster_that_works() -> None:
    async def story(app: App) -> int:
        text = faults_to_json(draw_faults(Randomness(9), app.cluster, 600, every_s=20))
        await app.cluster.inject_all(faults_from_json(text))
        await app.sent_at_last()
        return len(text)

    assert play(story, brokers=2, name_servers=2) > 100


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(0, "explode", {}), r"'explode'; faults are .*kill.*power_off"),
        (Fault(0, "kill", {"node": "broker-z"}), r"broker-z.*namesrv-0, broker-a, app"),
        (Fault(0, "kill", {"nodes": "broker-a"}), r"kill\(node\)"),
        (Fault(0, "kill", {}), r"missing.*node.*kill\(node\)"),
        (Fault(0, "delay", {"a": APP, "b": "broker-a", "min_s": "1", "max_s": 2}), "min_s"),
        (Fault(0, "slow", {"a": APP, "b": "broker-a", "bytes_per_s": 0}), "bytes_per_s"),
        (Fault(0, "cut", {"a": APP, "b": APP}), "no link to itself"),
        (Fault(0, "fail_disk", {"node": "broker-a", "operation": "chew"}), r"chew.*sync"),
        (Fault(0, "fail_disk", {"node": "broker-a", "operation": "sync", "error": "EFOO"}), "EFOO"),
        (Fault(0, "partition", {"side": ["broker-a"], "other_side": ["moon"]}), "moon"),
        (Fault(-1, "heal_all", {}), "at_s"),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
def test_a_fault_that_cannot_happen_says_what_can(fault: Fault, says: str) -> None:
    async def main(cluster: Cluster) -> None:
        cluster.node(APP)
        with pytest.raises(FaultError, match=says):
            await cluster.inject(fault)
        if fault.at_s >= 0 and fault.name in FAULTS:
            with pytest.raises(FaultError, match=says):
                getattr(cluster, fault.name)(**fault.args)

    with Cluster(clock="virtual") as cluster:
        cluster.run(main(cluster))


def test_faults_are_refused_in_real_time() -> None:
    with pytest.raises(FaultError, match=r'clock="virtual"'):
        Cluster().kill("broker-a")


def test_a_schedule_that_is_no_json_says_what_one_looks_like() -> None:
    for text in ("{", '{"at_s": 1}', '[{"at_s": 1}]'):
        with pytest.raises(FaultError, match="give a list of objects"):
            faults_from_json(text)
    with pytest.raises(FaultError, match="faults are"):
        faults_from_json('[{"at_s": 1, "name": "explode"}]')


def test_the_node_of_the_test_has_faults_of_links_and_clocks_and_cannot_be_stopped() -> None:
    with Cluster(clock="virtual") as cluster:

        async def main() -> None:
            async with Producer("shop", namesrv=cluster.namesrv, send_timeout_ms=2000) as producer:
                await producer.send(Message(TOPIC, b"x"))
                cluster.partition(["main"], ["broker-a", "namesrv-0"])
                with pytest.raises(CometMQError):
                    await producer.send(Message(TOPIC, b"x"))
                cluster.heal_all()
                before_ms = current().clock.now_ms()
                await cluster.inject(Fault(0, "skew_clock", {"node": "main", "ms": 60_000}))
                assert current().clock.now_ms() - before_ms == 60_000
                for name in ("kill", "power_off", "pause", "wipe"):
                    with pytest.raises(FaultError, match="the test itself runs on main"):
                        getattr(cluster, name)("main")
                cluster.node("main")
                assert "main" not in cluster.nodes.all()  # what is drawn would stop the test

        cluster.run(main())


def test_a_fault_that_nobody_knows_is_named_with_its_line_and_what_may_be_meant() -> None:
    async def main(cluster: Any) -> None:
        with pytest.raises(AttributeError) as caught:
            cluster.blackhol("main", "broker-a")
        reported = str(caught.value)
        assert "no fault or method blackhol, asked for at " in reported
        assert "test_virtual_faults.py:" in reported
        assert reported.endswith("did you mean blackhole?")
        with pytest.raises(AttributeError, match=r"explode, asked for at .*; its faults are "):
            cluster.explode()
        assert not hasattr(cluster, "_explode")

    with Cluster(clock="virtual") as cluster:
        cluster.run(main(cluster))
