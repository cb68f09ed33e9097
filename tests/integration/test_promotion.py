"""A slave that is made the master by hand, with what the master had answered for, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import pytest
from tests.integration.promotions import MASTER, SLAVE, in_step, play, switch
from tests.waits import until

from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    LocalTransactionState,
    Message,
    MessageExt,
)
from cometmq.aio import (
    AdminClient,
    LitePullConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
)
from cometmq.errors import CometMQError, RemoteError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.results import SendStatus
from cometmq.model.sysflag import PERM_READ, TRANSACTION_ROLLBACK
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import QueryAssignmentRequestBody
from cometmq.protocol.bodies.overview import SetMessageRequestModeRequestBody
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import EndTransactionRequestHeader
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.remoting.client import RemotingClient
from cometmq.runtime.surroundings import current
from cometmq.testing import Cluster

TOPICS: Final = 30


async def readable(cluster: Cluster, topics: list[str]) -> dict[str, set[bytes]]:
    """Return the bodies of each topic that a client finds by its route."""
    found: dict[str, set[bytes]] = {}
    async with LitePullConsumer("reader", namesrv=cluster.namesrv) as reader:
        for topic in topics:
            bodies = found[topic] = set()
            try:
                queues = await reader.queues(topic)
            except CometMQError:
                continue
            for queue in queues:
                end = await reader.max_offset(queue)
                offset = 0
                while offset < end:
                    pulled = await reader.pull(queue, offset)
                    bodies |= {each.body for each in pulled.messages}
                    offset = pulled.next_begin_offset
    return found


@pytest.mark.parametrize("how", ["stop", "kill", "power_off"])
def test_what_was_answered_in_new_topics_is_read_after_both_processes_died(how: str) -> None:
    async def story(cluster: Cluster) -> None:
        await in_step(cluster)
        sent: dict[str, set[bytes]] = {}
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(TOPICS):
                topic = f"new-{number}"
                for body in (b"0", b"1", b"2", b"3"):
                    result = await producer.send(Message(topic, body))
                    assert result.status is SendStatus.SEND_OK
                    sent.setdefault(topic, set()).add(body)
        await switch(cluster, how)
        found = await readable(cluster, list(sent))
        lost = sum(len(sent[topic] - found[topic]) for topic in sent)
        assert not lost, f"{lost} of {4 * TOPICS} are not read"

    play(story, flushDiskType="SYNC_FLUSH")


class Hesitant:
    """Decides on a transaction when it is asked."""

    def execute(self, _message: Message, _arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check(self, _message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT


@pytest.mark.parametrize("how", ["stop", "kill", "power_off"])
@pytest.mark.parametrize("kind", ["delayed", "timed", "half"])
def test_a_first_message_that_waits_has_a_route_after_a_switch(kind: str, how: str) -> None:
    async def story(cluster: Cluster) -> None:
        await in_step(cluster)
        clients = Producer("shop", namesrv=cluster.namesrv)
        reporters = TransactionProducer("tellers", Hesitant(), namesrv=cluster.namesrv)
        async with clients as producer, reporters as teller:
            if kind == "delayed":
                sent = await producer.send(Message("first", b"1", delay_level=4))
            elif kind == "timed":
                sent = await producer.send(Message("first", b"1", delay_ms=30_000))
            else:
                sent = await teller.send_in_transaction(Message("first", b"1"))
            assert sent.status is SendStatus.SEND_OK
            await switch(cluster, how)
            async with LitePullConsumer("reader", namesrv=cluster.namesrv) as reader:
                assert await reader.queues("first"), "no route"
            await asyncio.sleep(150)
            assert await readable(cluster, ["first"]) == {"first": {b"1"}}

    play(story, flushDiskType="SYNC_FLUSH", transactionCheckInterval="10000")


def test_a_queue_that_a_topic_lacks_after_a_switch_is_read_too() -> None:
    async def story(cluster: Cluster) -> None:
        await in_step(cluster)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for body in (b"0", b"1", b"2", b"3"):
                await producer.send(Message("new", body))
        cluster.kill(MASTER)
        # A slave that made it for what had come by then.
        cluster.broker(SLAVE).topics.put(TopicConfig("new", read_queue_nums=3, write_queue_nums=3))
        await asyncio.sleep(5)
        cluster.kill(SLAVE)
        await cluster.promote(SLAVE)
        assert await readable(cluster, ["new"]) == {"new": {b"0", b"1", b"2", b"3"}}

    play(story, flushDiskType="SYNC_FLUSH")


def test_fewer_queues_of_a_topic_stay_fewer_after_a_switch() -> None:
    async def story(cluster: Cluster) -> None:
        await in_step(cluster)
        async with (
            Producer("shop", namesrv=cluster.namesrv) as producer,
            AdminClient(namesrv=cluster.namesrv) as admin,
        ):
            for body in (b"0", b"1", b"2", b"3"):
                await producer.send(Message("shrunk", body))
            await admin.topics.create("shrunk", read_queues=1, write_queues=1)
        await asyncio.sleep(15)
        await switch(cluster, "kill")
        config = cluster.broker(SLAVE).topics.get("shrunk")
        assert config is not None
        assert config.read_queue_nums == 1

    play(story, flushDiskType="SYNC_FLUSH")


def remove(cluster: Cluster, node: str, path: str) -> None:
    disk = cluster.node(node).disk
    whole = cluster.directory / node / path
    if disk.is_directory(whole):
        disk.remove_tree(whole)
    else:
        disk.remove(whole)


@pytest.mark.parametrize("lost", ["config", "config/topics.json", "config/subscriptionGroup.json"])
def test_a_master_that_lost_its_tables_finds_what_has_messages_in_its_log(lost: str) -> None:
    async def story(cluster: Cluster) -> None:
        failed = asyncio.Event()

        async def refuse(messages: list[MessageExt]) -> ConsumeResult:
            failed.set()
            return ConsumeResult.RECONSUME_LATER

        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            consumer = PushConsumer("readers", refuse, namesrv=cluster.namesrv)
            consumer.subscribe("old")
            async with consumer:
                for number in range(TOPICS):
                    await producer.send(Message(f"old-{number}", b"1"))
                await producer.send(Message("old", b"1"))
                await failed.wait()
                await asyncio.sleep(30)
        await cluster.stop_broker(MASTER)
        remove(cluster, MASTER, lost)
        if lost != "config":
            remove(cluster, MASTER, f"{lost}.bak")
        await cluster.start_broker(MASTER)
        broker = cluster.broker(MASTER)
        missing = [f"old-{n}" for n in range(TOPICS) if broker.topics.get(f"old-{n}") is None]
        assert not missing
        assert broker.groups.get("readers") is not None

    play(story, role="ASYNC_MASTER")


# -- tables of a master that lost them --


async def admin_tables(cluster: Cluster, count: int = 200) -> None:
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        address = cluster.broker(MASTER).address
        await admin.topics.create_many(
            [TopicConfig(f"topic-{number}") for number in range(count)], broker=address
        )
        await admin.groups.create_many(
            [SubscriptionGroupConfig(group_name=f"group-{number}") for number in range(count)],
            broker=address,
        )


def kept(cluster: Cluster, count: int = 200) -> tuple[int, int]:
    slave = cluster.broker(SLAVE)
    return (
        sum(slave.topics.get(f"topic-{n}") is not None for n in range(count)),
        sum(slave.groups.get(f"group-{n}") is not None for n in range(count)),
    )


@pytest.mark.parametrize("lost", ["config", "older", "wiped"])
@pytest.mark.parametrize("messages", [0, 5])
def test_a_slave_keeps_its_tables_when_its_master_lost_them(lost: str, messages: int) -> None:
    async def story(cluster: Cluster) -> None:
        await in_step(cluster)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(messages):
                await producer.send(Message("topic-0", b"%d" % number))
        disk = cluster.node(MASTER).disk
        config = cluster.directory / MASTER / "config"
        await admin_tables(cluster, 100)
        await asyncio.sleep(15)
        older = {name: disk.read(config / name) for name in disk.names(config)}
        await admin_tables(cluster)
        await asyncio.sleep(15)
        assert kept(cluster) == (200, 200)
        await cluster.stop_broker(MASTER)
        if lost == "wiped":
            cluster.wipe(MASTER)
        else:
            disk.remove_tree(config)
        if lost == "older":
            disk.make_directory(config)
            for name, data in older.items():
                if name != "tables.json":
                    disk.write(config / name, data)
        await cluster.restart(MASTER)
        await asyncio.sleep(40)
        assert kept(cluster) == (200, 200)
        # Nor does it take them when the master has made more changes than it had.
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.topics.create_many(
                [TopicConfig(f"later-{number}") for number in range(300)],
                broker=cluster.broker(MASTER).address,
            )
        await asyncio.sleep(40)
        assert kept(cluster) == (200, 200)
        await cluster.restart(SLAVE)
        await asyncio.sleep(40)
        assert kept(cluster) == (200, 200)

    play(story, role="ASYNC_MASTER")


def test_a_slave_follows_a_master_whose_tables_were_put_back_from_the_slave() -> None:
    async def story(cluster: Cluster) -> None:
        await in_step(cluster)
        await admin_tables(cluster, 20)
        await asyncio.sleep(15)
        await cluster.stop_broker(MASTER)
        remove(cluster, MASTER, "config")
        await cluster.start_broker(MASTER)
        await asyncio.sleep(30)
        assert kept(cluster, 20) == (20, 20)
        await cluster.stop_broker(MASTER)
        await cluster.stop_broker(SLAVE)
        mine, theirs = cluster.node(MASTER).disk, cluster.node(SLAVE).disk
        there = cluster.directory / SLAVE / "config"
        for name in theirs.names(there):
            if not theirs.is_directory(there / name):
                mine.write(cluster.directory / MASTER / "config" / name, theirs.read(there / name))
        await cluster.start_broker(MASTER)
        await cluster.start_broker(SLAVE)
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.topics.create("after", broker=cluster.broker(MASTER).address)
        await until(lambda: cluster.broker(SLAVE).topics.get("after") is not None, pause_s=0.5)
        assert cluster.broker(MASTER).topics.get("topic-7") is not None

    play(story, role="ASYNC_MASTER")


# -- acknowledged changes of tables --


@pytest.mark.parametrize("seed", range(8))
def test_an_acknowledged_change_of_tables_is_not_undone_by_a_switch(seed: int) -> None:
    async def story(cluster: Cluster) -> None:
        await in_step(cluster)
        async with (
            AdminClient(namesrv=cluster.namesrv) as admin,
            Producer("shop", namesrv=cluster.namesrv) as producer,
        ):
            address = cluster.broker(MASTER).address
            for name in ("deleted", "closed"):
                await admin.topics.create(name, broker=address)
                for body in (b"0", b"1", b"2", b"3"):
                    await producer.send(Message(name, body))
            await admin.groups.create("gone", broker=address)
            await asyncio.sleep(20 + seed)
            await admin.topics.delete("deleted", broker=address)
            await admin.groups.delete("gone", broker=address)
            await admin.topics.update("closed", permission=PERM_READ, broker=address)
            await admin.topics.create("made", broker=address)
            await switch(cluster, "kill")
            broker = cluster.broker(SLAVE)
            assert broker.topics.get("deleted") is None
            assert broker.store.topics().get("deleted") is None
            assert broker.groups.get("gone") is None
            closed = broker.topics.get("closed")
            assert closed is not None
            assert closed.perm == PERM_READ
            assert broker.topics.get("made") is not None

    play(story, seed=seed, flushDiskType="SYNC_FLUSH")


def test_a_change_of_tables_says_that_no_slave_has_confirmed_it() -> None:
    async def story(cluster: Cluster) -> None:
        await in_step(cluster)
        await asyncio.sleep(15)
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            address = cluster.broker(MASTER).address
            cluster.pause(SLAVE)
            with pytest.raises(RemoteError, match="no slave has confirmed it within slaveTimeout"):
                await admin.topics.create("made", broker=address)
            cluster.resume(SLAVE)
            await asyncio.sleep(15)
            await admin.topics.create("again", broker=address)
            # Without a slave nothing is waited for.
            await cluster.stop_broker(SLAVE)
            await asyncio.sleep(15)
            await admin.topics.create("alone", broker=address)

    play(story)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_roll_back_that_was_answered_is_not_asked_for_after_a_kill(flush: str) -> None:
    async def story(cluster: Cluster) -> None:
        asked: list[bytes] = []

        class Tellers(Hesitant):
            def check(self, message: MessageExt) -> LocalTransactionState:
                asked.append(message.body)
                return LocalTransactionState.COMMIT

        reporters = TransactionProducer("tellers", Tellers(), namesrv=cluster.namesrv)
        remoting = RemotingClient(network=current().network)
        async with reporters as teller:
            for number in range(40):
                sent = await teller.send_in_transaction(Message("t", b"%d" % number))
                assert sent.offset_msg_id is not None
                place = parse_offset_id(sent.offset_msg_id).commit_log_offset
                header = EndTransactionRequestHeader(
                    producer_group="tellers",
                    tran_state_table_offset=sent.queue_offset,
                    commit_log_offset=place,
                    commit_or_rollback=TRANSACTION_ROLLBACK,
                    msg_id=sent.msg_id,
                )
                command = requests.END_TRANSACTION.command(header)
                answer = await remoting.call(cluster.broker(MASTER).address, command, 5.0)
                assert answer.code == 0, answer.remark
            cluster.kill(MASTER)
            await cluster.restart(MASTER)
            await asyncio.sleep(100)
        await remoting.close()
        assert not asked, f"{len(asked)} of 40 are asked for"

    play(story, role="ASYNC_MASTER", flushDiskType=flush, transactionCheckInterval="5000")


# -- where clients send and read --


def test_no_send_goes_to_the_dead_address_after_a_power_loss_and_a_promotion() -> None:
    async def story(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        await in_step(cluster)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for _ in range(10):
                await producer.send(Message("orders", b"before"))
            cluster.power_off(MASTER)
            await cluster.promote(SLAVE)
            began_s = loop.time()
            failed = 0
            while loop.time() - began_s < 31:
                try:
                    await producer.send(Message("orders", b"after"))
                except CometMQError:
                    failed += 1
                else:
                    break
            assert failed <= 2, (
                f"{failed} sends failed, the last {loop.time() - began_s:.0f} s later"
            )
            for _ in range(50):
                await producer.send(Message("orders", b"after"))

    play(story)


def test_a_broker_that_answers_keeps_its_place_at_the_name_server() -> None:
    async def story(cluster: Cluster) -> None:
        await in_step(cluster)
        old = cluster.broker(MASTER)
        cluster.cut(MASTER, SLAVE)
        with contextlib.suppress(CometMQError):
            await cluster.promote(SLAVE)
        await asyncio.sleep(70)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await producer.send(Message("orders", b"1"))
        assert sum(old.store.max_offset("orders", n) for n in range(4)) == 1

    play(story)


@pytest.mark.parametrize("where", [ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.LAST_OFFSET])
def test_a_group_that_never_committed_begins_at_the_slave_or_says_why_it_waits(
    where: ConsumeFromWhere, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(cluster: Cluster) -> None:
        await in_step(cluster)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(200):
                await producer.send(Message("orders", b"%d" % number))
        await asyncio.sleep(15)
        cluster.kill(MASTER)
        got: set[bytes] = set()

        async def listen(messages: list[MessageExt]) -> ConsumeResult:
            got.update(each.body for each in messages)
            return ConsumeResult.SUCCESS

        consumer = PushConsumer("readers", listen, namesrv=cluster.namesrv, consume_from=where)
        consumer.subscribe("orders")
        async with consumer:
            await asyncio.sleep(60)
        said = [each for each in caplog.records if "until its master is back" in each.getMessage()]
        if where is ConsumeFromWhere.FIRST_OFFSET:
            assert len(got) == 200
            assert not said
        else:
            assert not got
            assert len(said) == 1

    play(story)


def test_the_choice_which_groups_pop_goes_with_a_switch() -> None:
    """A promoted slave had all groups pull: its members divided the queues that others popped from."""

    async def story(cluster: Cluster) -> None:
        await in_step(cluster)
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            address = cluster.broker(MASTER).address
            await admin.topics.create("orders", broker=address)
            await admin.groups.create("poppers", broker=address)
        chosen = SetMessageRequestModeRequestBody("poppers", "orders", "POP", 0)
        await ask(cluster, MASTER, requests.SET_MESSAGE_REQUEST_MODE, chosen)
        consumer = PushConsumer(
            "poppers", lambda _: ConsumeResult.SUCCESS, namesrv=cluster.namesrv, instance_name="m"
        )
        consumer.subscribe("orders")
        async with consumer:
            asked = QueryAssignmentRequestBody("orders", "poppers", consumer.client_id)
            before = await assigned(cluster, MASTER, asked)
            assert before == [(MASTER, -1, "POP")]
            # Tables are copied every ten seconds.
            await until(lambda: modes_of(cluster, SLAVE), pause_s=0.5)
            await switch(cluster, "kill")
            await until(
                lambda: assigned(cluster, SLAVE, asked), lambda now: now == before, pause_s=0.5
            )

    play(story, flushDiskType="SYNC_FLUSH")


async def ask(cluster: Cluster, name: str, row: Any, body: Any) -> Any:
    remoting = RemotingClient(network=current().network)
    try:
        address = cluster.broker(name).address
        answer = await remoting.ask(address, row, NoHeader(), body, what="a question")
        return answer.body
    finally:
        await remoting.close()


async def assigned(
    cluster: Cluster, name: str, body: QueryAssignmentRequestBody
) -> list[tuple[str, int, str]]:
    """Return broker, queue id and mode of what a member is to consume."""
    answer = await ask(cluster, name, requests.QUERY_ASSIGNMENT, body)
    return [
        (each.message_queue.broker_name, each.message_queue.queue_id, each.mode)
        for each in answer.message_queue_assignments or ()
    ]


def modes_of(cluster: Cluster, name: str) -> bytes:
    """Return the file in which a broker keeps which groups pop, empty if there is none."""
    disk = cluster.node(name).disk
    path = cluster.directory / name / "config" / "messageRequestMode.json"
    with disk.at_peace():
        return disk.read(path) if disk.size(path) else b""
