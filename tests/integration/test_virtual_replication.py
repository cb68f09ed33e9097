"""The log of a master on its slaves: in virtual time, under every fault of links, disks and hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
from tests.waits import until

from cometmq import Message
from cometmq.aio import AdminClient, Producer
from cometmq.broker.server import Broker
from cometmq.errors import RemoteError
from cometmq.model.results import SendStatus
from cometmq.replication.master import ReplicationMaster
from cometmq.testing import Cluster

MASTER: Final = "broker-a"
SLAVE: Final = "broker-a-slave-1"
SECOND_SLAVE: Final = "broker-a-slave-2"
TOPIC: Final = "orders"
# Small files, so that copies pass from one to the next.
SMALL: Final = {
    "mappedFileSizeCommitLog": "65536",
    "defaultTopicQueueNums": "1",
    "metricsExporterType": "DISABLE",
}
OK, TIMEOUT, NOBODY = (
    SendStatus.SEND_OK,
    SendStatus.FLUSH_SLAVE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE,
)
# A slave that has lost its master tries again after five seconds, and finds it at once then.
AGAIN_S: Final = 12.0

Story = Callable[[Cluster], Coroutine[Any, Any, None]]


def play(story: Story, *, properties: dict[str, str] | None = None, **options: Any) -> None:
    given = {**SMALL, **(properties or {})}
    options.setdefault("slaves", 1)
    with Cluster(clock="virtual", properties=given, **options) as cluster:
        cluster.run(story(cluster))


def master_of(cluster: Cluster) -> ReplicationMaster:
    master = cluster.broker(MASTER).copies.master
    assert master is not None
    return master


def log_of(broker: Broker) -> bytes:
    """All bytes of a broker's commit log, from its first file on."""
    log = broker.store.commit_log
    return b"".join(
        bytes(file.view[: min(log.end - file.base, file.size)]) for file in log.files.files
    )


def is_copied(cluster: Cluster, node: str = SLAVE) -> bool:
    master, slave = cluster.broker(MASTER).store, cluster.broker(node).store
    return slave.commit_log.end == master.commit_log.end and not slave.queues_lack_records


async def copied(cluster: Cluster, node: str = SLAVE, within_s: float = AGAIN_S) -> None:
    """Wait until a slave has all, and check that it is the same."""
    await until(lambda: is_copied(cluster, node), wait_s=within_s, pause_s=0.05)
    master, slave = cluster.broker(MASTER), cluster.broker(node)
    theirs, own = log_of(master), log_of(slave)
    assert own == theirs[len(theirs) - len(own) :]
    for topic, queue_ids in master.store.topics().items():
        for queue_id in queue_ids:
            assert slave.store.max_offset(topic, queue_id) == master.store.max_offset(
                topic, queue_id
            )


async def send(producer: Producer, count: int, size: int = 700) -> list[SendStatus]:
    return [
        (await producer.send(Message(TOPIC, b"%06d" % number + b"x" * size))).status
        for number in range(count)
    ]


def test_a_slave_copies_all_files_of_its_master_byte_by_byte() -> None:
    async def story(cluster: Cluster) -> None:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await send(producer, 300)
            await copied(cluster, within_s=1)
        slave = cluster.broker(SLAVE)
        assert len(slave.store.commit_log.files.files) > 3
        assert slave.store.max_offset(TOPIC, 0) == 300

    play(story)


def test_a_slave_that_comes_late_gets_the_whole_log_and_not_only_its_last_file() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.kill(SLAVE)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            # More than is sent from memory.
            await send(producer, 700, size=4000)
        cluster.wipe(SLAVE)
        await cluster.restart(SLAVE)
        await copied(cluster)
        assert cluster.broker(SLAVE).store.commit_log.min_offset == 0

    play(story)


def test_with_sync_from_last_file_an_empty_slave_gets_what_java_would_send() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.kill(SLAVE)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await send(producer, 200)
        cluster.wipe(SLAVE)
        await cluster.restart(SLAVE)
        master = cluster.broker(MASTER).store.commit_log
        await until(lambda: is_copied(cluster), wait_s=AGAIN_S, pause_s=0.05)
        begin = cluster.broker(SLAVE).store.commit_log.min_offset
        assert begin == master.end - master.end % master.file_size > 0
        assert log_of(cluster.broker(SLAVE)) == log_of(cluster.broker(MASTER))[begin:]

    play(story, properties={"syncFromLastFile": "true"})


@pytest.mark.parametrize("seed", range(6))
def test_cuts_at_any_byte_lose_nothing_and_repeat_nothing(seed: int) -> None:
    async def story(cluster: Cluster) -> None:
        # Slow enough that each cut leaves a part of a frame, or of a record, behind.
        cluster.slow(MASTER, SLAVE, 20_000)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(8):
                await send(producer, 12, size=300 * number + 1)
                await asyncio.sleep(0.17 * (seed + 1))
                cluster.reset_connections(MASTER, SLAVE)
        cluster.heal_all()
        await copied(cluster)

    play(story, seed=seed)


def test_a_half_open_link_is_given_up_by_both_and_made_anew() -> None:
    async def story(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        copies = master_of(cluster)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await send(producer, 10)
            await copied(cluster, within_s=1)
            [before] = copies.slaves
            cluster.blackhole(MASTER, SLAVE)
            began_s = loop.time()
            await send(producer, 10)
            await until(lambda: not copies.slaves, wait_s=30, pause_s=0.5)
            assert 14 < loop.time() - began_s <= 21
            await asyncio.sleep(10)
            cluster.heal_all()
            await copied(cluster, within_s=30)
        [after] = copies.slaves
        assert after is not before

    play(story)


def test_a_slave_that_does_not_read_holds_up_nobody_and_costs_a_bounded_buffer() -> None:
    async def story(cluster: Cluster) -> None:
        copies = master_of(cluster)
        async with Producer(
            "shop", namesrv=cluster.namesrv, compress_over_bytes=1 << 20
        ) as producer:
            await send(producer, 2)
            await copied(cluster, within_s=1)
            cluster.pause(SLAVE)
            # Fewer than the seconds after which the master gives the slave up.
            await send(producer, 250, size=16_000)
            end = cluster.broker(MASTER).store.commit_log.end
            [slave] = copies.slaves
            assert slave.unsent_bytes <= 2 * 256 * 1024
            assert end - slave.position > 3_000_000
            cluster.resume(SLAVE)
            await copied(cluster, within_s=30)

    play(story)


@pytest.mark.parametrize("victim", [MASTER, SLAVE])
@pytest.mark.parametrize("how", ["kill", "power_off"])
def test_a_host_that_is_lost_and_comes_back_goes_on_where_it_was(victim: str, how: str) -> None:
    async def story(cluster: Cluster) -> None:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await send(producer, 60)
            await copied(cluster, within_s=2)
            # What both have on disk, both have again.
            await asyncio.sleep(20)
            getattr(cluster, how)(victim)
            if victim == SLAVE:
                await send(producer, 60)
            await cluster.restart(victim)
            await asyncio.sleep(35)
            await send(producer, 60)
            await copied(cluster, within_s=40)

    play(story)


def test_a_slave_whose_disk_is_full_waits_and_goes_on() -> None:
    async def story(cluster: Cluster) -> None:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await send(producer, 10)
            await copied(cluster, within_s=1)
            cluster.fill_disk(SLAVE)
            await send(producer, 300)
            await asyncio.sleep(60)
            slave = cluster.broker(SLAVE).copies.slave
            assert slave is not None
            assert "no room" in (slave.reason or ""), slave.reason
            assert slave.is_connected
            assert not is_copied(cluster)
            cluster.free_disk(SLAVE)
            await copied(cluster, within_s=5)
            assert slave.reason is None

    play(story)


def test_nothing_polls_while_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: Cluster) -> None:
        copies = master_of(cluster)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await send(producer, 1)
            await copied(cluster, within_s=1)
            [slave] = copies.slaves
            went_on = 0
            go_on = slave.go_on

            def counted() -> None:
                nonlocal went_on
                went_on += 1
                go_on()

            monkeypatch.setattr(slave, "go_on", counted)
            before = slave.speed.total
            await asyncio.sleep(60)
            # Only what brokers write by themselves wakes the transfer.
            assert slave.speed.total == before
            assert went_on == 0
            await send(producer, 20)
            await copied(cluster, within_s=1)
            assert 0 < went_on <= 20

    play(story)


def test_flow_control_holds_a_slave_to_its_bytes_per_second() -> None:
    async def story(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        cluster.kill(SLAVE)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await send(producer, 500, size=1000)
        size = cluster.broker(MASTER).store.commit_log.end
        await cluster.restart(SLAVE)
        began_s = loop.time()
        await until(lambda: is_copied(cluster), wait_s=60, pause_s=0.05)
        assert size / 50_000 - 3 <= loop.time() - began_s <= size / 50_000 + 8

    play(
        story,
        properties={"haFlowControlEnable": "true", "maxHaTransferByteInSecond": "50000"},
    )


def test_a_sync_master_answers_when_a_slave_has_the_message() -> None:
    async def story(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        slave = cluster.broker(SLAVE).store
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await until(lambda: master_of(cluster).slaves, pause_s=0.1)
            for number in range(20):
                result = await producer.send(Message(TOPIC, b"%d" % number))
                assert result.status is OK
                assert slave.commit_log.end == cluster.broker(MASTER).store.commit_log.end
            # And it is woken: no answer waits for a timer.
            began_s = loop.time()
            await send(producer, 20)
            assert loop.time() - began_s < 1.0

    play(story, master_role="SYNC_MASTER")


def test_a_sync_master_says_how_safe_a_message_is_without_slaves() -> None:
    async def story(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        async with Producer("shop", namesrv=cluster.namesrv, send_timeout_ms=9000) as producer:
            await until(lambda: master_of(cluster).slaves, pause_s=0.1)
            assert await send(producer, 2) == [OK, OK]
            cluster.blackhole(MASTER, SLAVE)
            began_s = loop.time()
            assert await send(producer, 1) == [TIMEOUT]
            assert loop.time() - began_s == pytest.approx(3.0, abs=0.2)
            # A slave that goes while sends wait: they wait for their time, it may come back.
            waiting = asyncio.ensure_future(send(producer, 1))
            await asyncio.sleep(0.5)
            cluster.kill(SLAVE)
            assert await waiting == [TIMEOUT]
            cluster.heal_all()
            await until(lambda: not master_of(cluster).slaves, wait_s=60)
            began_s = loop.time()
            assert await send(producer, 1) == [NOBODY]
            assert loop.time() - began_s < 1.0
            no_wait = Message(TOPIC, b"does not wait", wait_store_ok=False)
            assert (await producer.send(no_wait)).status is OK
            await cluster.restart(SLAVE)
            await copied(cluster, within_s=60)
            assert await send(producer, 1) == [OK]
            # All were stored.
            assert cluster.broker(MASTER).store.max_offset(TOPIC, 0) == 7

    play(story, master_role="SYNC_MASTER")


def test_a_slave_that_lacks_too_much_does_not_count() -> None:
    async def story(cluster: Cluster) -> None:
        async with Producer("shop", namesrv=cluster.namesrv, send_timeout_ms=9000) as producer:
            await until(lambda: master_of(cluster).slaves, pause_s=0.1)
            assert await send(producer, 1) == [OK]
            cluster.pause(SLAVE)
            found = [(await producer.send(Message(TOPIC, b"x" * 900))).status for _ in range(4)]
            assert found[0] is TIMEOUT
            assert found[-1] is NOBODY
            cluster.resume(SLAVE)
            await copied(cluster)
            assert await send(producer, 1) == [OK]

    play(story, master_role="SYNC_MASTER", properties={"haMaxGapNotInSync": "2500"})


def test_with_three_copies_the_slower_slave_decides() -> None:
    async def story(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        master = master_of(cluster)
        async with Producer("shop", namesrv=cluster.namesrv, send_timeout_ms=9000) as producer:
            await until(lambda: len(master.slaves) == 2, pause_s=0.1)
            assert await send(producer, 1) == [OK]
            cluster.delay(MASTER, SECOND_SLAVE, 0.5, 0.5)
            began_s = loop.time()
            assert await send(producer, 1) == [OK]
            assert loop.time() - began_s >= 1.0
            cluster.kill(SECOND_SLAVE)
            await until(lambda: len(master.slaves) == 1, wait_s=30, pause_s=0.1)
            assert await send(producer, 1) == [NOBODY]
            async with AdminClient(namesrv=cluster.namesrv) as admin:
                address = cluster.broker(MASTER).address
                await admin.brokers.update_config({"inSyncReplicas": "2"}, broker=address)
                assert await send(producer, 1) == [OK]
                await admin.brokers.update_config({"minInSyncReplicas": "3"}, broker=address)
            end = cluster.broker(MASTER).store.max_offset(TOPIC, 0)
            with pytest.raises(RemoteError, match="in-sync replicas not enough: 2 brokers"):
                await send(producer, 1)
            assert cluster.broker(MASTER).store.max_offset(TOPIC, 0) == end

    play(story, slaves=2, master_role="SYNC_MASTER", properties={"inSyncReplicas": "3"})


def test_ha_status_tells_the_truth_of_a_master_and_of_a_slave() -> None:
    async def story(cluster: Cluster) -> None:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await send(producer, 5)
            await copied(cluster, within_s=1)
            await asyncio.sleep(6)
        end = cluster.broker(MASTER).store.commit_log.end
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            master, slave = cluster.broker(MASTER), cluster.broker(SLAVE)
            found = (await admin.brokers.replication(broker=master.address))[master.address]
            assert str(end) in repr(found)
            assert "in_sync=True" in repr(found)
            found = (await admin.brokers.replication(broker=slave.address))[slave.address]
            assert master.ha_address in repr(found)
            assert str(end) in repr(found)

    play(story)


def test_a_stop_gives_slaves_what_waits_in_the_transient_pool() -> None:
    async def story(cluster: Cluster) -> None:
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await send(producer, 3)
            await copied(cluster)
            log = cluster.broker(MASTER).store.commit_log
            sent = 3
            # A pool is emptied five times a second, which may be just behind a send.
            while log.readable_end == log.end:
                await send(producer, 1)
                sent += 1
            await cluster.stop_broker(MASTER)
        slave = cluster.broker(SLAVE).store
        assert slave.commit_log.end == log.end
        assert slave.max_offset(TOPIC, 0) == sent

    pool = {"transientStorePoolEnable": "true", "transientStorePoolSize": "2"}
    play(story, node_properties={MASTER: pool})
