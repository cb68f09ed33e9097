"""Requests that a slave serves and refuses, and tables that it copies, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.waits import WAIT_S

from cometmq import ConsumeResult, LocalTransactionState, Message, MessageExt
from cometmq.aio import AdminClient, Producer, PushConsumer, TransactionProducer
from cometmq.broker.delays.state_handlers import DelayStateHandlers
from cometmq.broker.server import Broker
from cometmq.errors import ConfigError
from cometmq.metrics.exposition import Exposition
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.subscription import SubscriptionData
from cometmq.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND, TRANSACTION_COMMIT
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import DelayOffsetSerializeWrapper, KVTable
from cometmq.protocol.bodies.overview import HARuntimeInfo
from cometmq.protocol.codes import OwnRequestCode, RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.fastjson.dialect import decode_body, encode_body
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    DeleteTopicRequestHeader,
    EndTransactionRequestHeader,
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    SendMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from cometmq.protocol.messages.record import decode_records
from cometmq.remoting.client import RemotingClient
from cometmq.replication.slave import ReplicationSlave
from cometmq.runtime.surroundings import current
from cometmq.testing import Cluster

Story = Callable[[Cluster], Coroutine[Any, Any, Any]]
ONE_QUEUE = {"defaultTopicQueueNums": "1"}
# Tables are copied every 10 s, and offsets wait for the log besides.
COPY_S = 25.0


def play(story: Story, *, slaves: int = 1, **properties: str) -> Any:
    with Cluster(
        slaves=slaves, clock="virtual", seed=7, properties={**ONE_QUEUE, **properties}
    ) as cluster:
        return cluster.run(story(cluster))


async def until(met: Callable[[], bool], within_s: float = 60.0) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not met():
        assert loop.time() < deadline, "not within the time"
        await asyncio.sleep(0.1)


async def in_step(cluster: Cluster) -> None:
    master, slave = cluster.brokers[0], cluster.slaves[0]
    await until(
        lambda: (
            slave.store.commit_log.end == master.store.commit_log.end
            and slave.topics.data_version == master.topics.data_version
        )
    )


async def send(cluster: Cluster, *messages: Message) -> None:
    async with Producer("producers", namesrv=cluster.namesrv) as producer:
        for message in messages:
            await producer.send(message)


async def ask(broker: Broker, command: RemotingCommand) -> RemotingCommand:
    client = RemotingClient(network=current().network)
    try:
        return await client.call(broker.address, command, 60.0)
    finally:
        await client.close()


def pull(
    offset: int,
    *,
    group: str = "g",
    wait_ms: int = 0,
    expression: str = "*",
    kind: str = "TAG",
) -> RemotingCommand:
    return requests.PULL_MESSAGE.command(
        PullMessageRequestHeader(
            consumer_group=group,
            topic="t",
            queue_id=0,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=wait_ms,
            subscription=expression,
            expression_type=kind,
            sub_version=1,
        )
    )


SEND = requests.SEND_MESSAGE.command(
    SendMessageRequestHeader(
        producer_group="p",
        topic="t",
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
    ),
    b"x",
)


# -- rules --


REFUSED_BY_SLAVES = {
    RequestCode.SEND_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.SEND_MESSAGE_V2: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.SEND_BATCH_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.SEND_REPLY_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.SEND_REPLY_MESSAGE_V2: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.RECALL_MESSAGE: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.END_TRANSACTION: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ResponseCode.SYSTEM_ERROR,
    RequestCode.CONSUMER_SEND_MSG_BACK: ResponseCode.SYSTEM_ERROR,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResponseCode.SYSTEM_ERROR,
    RequestCode.CLONE_GROUP_OFFSET: ResponseCode.SYSTEM_ERROR,
    30001: ResponseCode.SYSTEM_ERROR,
    30003: ResponseCode.SYSTEM_ERROR,
    30004: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_AND_CREATE_TOPIC: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: ResponseCode.SYSTEM_ERROR,
    RequestCode.DELETE_TOPIC_IN_BROKER: ResponseCode.SUCCESS,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ResponseCode.SYSTEM_ERROR,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: ResponseCode.SYSTEM_ERROR,
    RequestCode.CLEAN_UNUSED_TOPIC: ResponseCode.SUCCESS,
    RequestCode.POP_MESSAGE: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.ACK_MESSAGE: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.BATCH_ACK_MESSAGE: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.PEEK_MESSAGE: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.NOTIFICATION: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.POLLING_INFO: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.SET_MESSAGE_REQUEST_MODE: ResponseCode.SLAVE_NOT_AVAILABLE,
    OwnRequestCode.GET_POP_PROGRESS: ResponseCode.SLAVE_NOT_AVAILABLE,
}


def test_the_request_table_says_what_a_slave_refuses() -> None:
    found = {
        code: row.on_slave for code, row in requests.REQUESTS.items() if row.on_slave is not None
    }
    assert found == REFUSED_BY_SLAVES


def test_a_slave_refuses_what_is_for_the_master_and_says_where_that_is() -> None:
    async def story(cluster: Cluster) -> None:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        # A broker serves the same requests whatever its role is: none is unknown to a slave.
        assert slave.handlers.request_types.keys() == master.handlers.request_types.keys()
        answer = await ask(slave, SEND)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark is not None
        assert "this broker is a slave, brokerId=1 of broker-a" in answer.remark
        assert f"Ask the master, {master.address}" in answer.remark
        verdict = EndTransactionRequestHeader(
            producer_group="p",
            tran_state_table_offset=0,
            commit_log_offset=0,
            commit_or_rollback=TRANSACTION_COMMIT,
            msg_id="id",
        )
        answer = await ask(slave, requests.END_TRANSACTION.command(verdict))
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert slave.store.commit_log.end == 0

    play(story)


def test_a_slave_does_not_stop_javas_tools_that_delete_topics_at_it_too() -> None:
    async def story(cluster: Cluster) -> None:
        slave = cluster.slaves[0]
        kept = {topic.topic_name for topic in slave.topics.all()}
        name = next(iter(kept))
        deletion = DeleteTopicRequestHeader(topic=name)
        for command in (
            requests.DELETE_TOPIC_IN_BROKER.command(deletion),
            requests.CLEAN_UNUSED_TOPIC.command(NoHeader()),
        ):
            answer = await ask(slave, command)
            assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        assert {topic.topic_name for topic in slave.topics.all()} == kept

    play(story)


def test_a_slave_says_what_javas_says_of_itself() -> None:
    async def story(cluster: Cluster) -> None:
        for broker, active in ((cluster.brokers[0], "true"), (cluster.slaves[0], "false")):
            answer = await ask(broker, requests.GET_BROKER_RUNTIME_INFO.command(NoHeader()))
            assert decode_body(bytes(answer.body), KVTable).table["brokerActive"] == active
        answer = await ask(cluster.slaves[0], requests.GET_BROKER_HA_STATUS.command(NoHeader()))
        reported = decode_body(bytes(answer.body), HARuntimeInfo).ha_client_runtime_info
        assert reported.master_flush_offset == 0

    play(story)


def test_a_slave_is_registered_beside_its_master_and_changes_no_route() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"x"))
        master, slave = cluster.brokers[0], cluster.slaves[0]
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            route = await admin.topics.route("t")
        assert route.broker_datas[0].broker_addrs == {0: master.address, 1: slave.address}
        assert [queue.broker_name for queue in route.queue_datas] == ["broker-a"]

    play(story)


def test_name_servers_lead_to_the_slave_while_the_master_is_gone() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"x"))
        await in_step(cluster)
        slave = cluster.slaves[0]

        async def reached() -> dict[int, str]:
            async with AdminClient(namesrv=cluster.namesrv) as admin:
                route = await admin.topics.route("t")
            assert [queue.perm for queue in route.queue_datas] == [6]
            return route.broker_datas[0].broker_addrs

        cluster.kill("broker-a")
        await asyncio.sleep(1)
        assert await reached() == {1: slave.address}
        # One that has forgotten all learns the topics from the slave.
        await cluster.restart_name_server()
        await asyncio.sleep(5)
        assert await reached() == {1: slave.address}
        await cluster.start_broker("broker-a")
        assert await reached() == {0: cluster.brokers[0].address, 1: slave.address}

    play(story)


# -- reading --


def test_a_slave_tells_the_lag_of_groups_only_while_its_master_cannot() -> None:
    """Sums over brokers, as of dashboards and autoscalers, would have it twice."""

    def lags(broker: Broker) -> bool:
        out = Exposition(broker.monitoring.base)
        for collect in broker.monitoring.collectors:
            for _ in collect(out):
                pass
        return b'consumer_group="readers"' in bytes(out.text())

    async def story(cluster: Cluster) -> None:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        master.groups.put(SubscriptionGroupConfig(group_name="readers"))
        await send(cluster, Message("t", b"x"))
        master.offsets.commit("readers", "t", 0, 0)
        await in_step(cluster)
        await asyncio.sleep(COPY_S)
        assert lags(master)
        assert not lags(slave)
        await cluster.stop_broker(0)
        await until(lambda: lags(slave))

    play(story, metricsExporterType="PROM", metricsPromExporterPort="0")


def test_a_pull_at_a_slave_waits_for_a_replicated_message() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"first"))
        await in_step(cluster)
        slave = cluster.slaves[0]
        waiting = asyncio.ensure_future(ask(slave, pull(1, wait_ms=30_000)))
        await asyncio.sleep(5)
        assert not waiting.done()
        await send(cluster, Message("t", b"second"))
        answer = await asyncio.wait_for(waiting, 2)
        assert answer.code == ResponseCode.SUCCESS
        assert b"second" in bytes(answer.body)
        assert answer.header(PullMessageResponseHeader).suggest_which_broker_id == 0

    play(story)


def test_a_slave_finds_messages_by_key_id_and_time_and_by_what_they_say() -> None:
    async def story(cluster: Cluster) -> None:
        clock = current().clock
        messages = [
            Message(
                "t",
                b"%d" % n,
                keys=[f"K{n}"],
                tags="even" if n % 2 == 0 else "odd",
                properties={"size": str(n)},
            )
            for n in range(6)
        ]
        await send(cluster, *messages[:3])
        await asyncio.sleep(5)
        later_ms = clock.now_ms()
        await send(cluster, *messages[3:])
        await in_step(cluster)
        slave = cluster.slaves[0]
        asked = QueryMessageRequestHeader(
            topic="t", key="K4", max_num=8, begin_timestamp=0, end_timestamp=later_ms + 60_000
        )
        answer = await ask(slave, requests.QUERY_MESSAGE.command(asked))
        assert [record.body for record in decode_records(answer.body)] == [b"4"]
        place = next(iter(decode_records(answer.body))).physical_offset
        answer = await ask(
            slave, requests.VIEW_MESSAGE_BY_ID.command(ViewMessageRequestHeader(offset=place))
        )
        assert [record.body for record in decode_records(answer.body)] == [b"4"]
        by_time = SearchOffsetRequestHeader(topic="t", queue_id=0, timestamp=later_ms)
        answer = await ask(slave, requests.SEARCH_OFFSET_BY_TIMESTAMP.command(by_time))
        assert answer.header(OffsetResponseHeader).offset == 3
        for text, kind, bodies in (
            ("odd", "TAG", [b"1", b"3", b"5"]),
            ("size > 3", "SQL92", [b"4", b"5"]),
        ):
            answer = await ask(slave, pull(0, expression=text, kind=kind))
            assert [record.body for record in decode_records(answer.body)] == bodies

    play(story, enablePropertyFilter="true")


def test_a_slave_that_lacks_messages_does_not_say_that_there_are_none() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"first"))
        await in_step(cluster)
        slave = cluster.slaves[0]
        began = asyncio.get_running_loop().time()
        answer = await ask(slave, pull(900, wait_ms=8_000))
        assert asyncio.get_running_loop().time() - began >= 8
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        header = answer.header(PullMessageResponseHeader)
        assert (header.next_begin_offset, header.suggest_which_broker_id) == (900, 0)
        # The master knows better, and a slave may be told that it does.
        answer = await ask(cluster.brokers[0], pull(900))
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED

    play(story)


def test_a_slave_corrects_offsets_when_it_is_told_to() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"first"))
        await in_step(cluster)
        answer = await ask(cluster.slaves[0], pull(900))
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.header(PullMessageResponseHeader).next_begin_offset == 1

    play(story, offsetCheckInSlave="true")


# -- tables --


def test_topics_and_groups_become_those_of_the_master() -> None:
    async def story(cluster: Cluster) -> None:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        master.topics.put(TopicConfig(topic_name="kept", read_queue_nums=3))
        master.topics.put(TopicConfig(topic_name="gone"))
        master.groups.put(SubscriptionGroupConfig(group_name="readers", consume_enable=False))
        await until(lambda: slave.topics.get("gone") is not None)
        master.topics.remove("gone")
        master.topics.put(TopicConfig(topic_name="kept", read_queue_nums=5))
        await until(lambda: slave.topics.get("gone") is None)
        assert dict(slave.topics.table.topic_config_table) == master.topics.table.topic_config_table
        assert slave.topics.data_version == master.topics.data_version
        assert slave.groups.get("readers") == master.groups.get("readers")
        assert slave.groups.table.data_version == master.groups.table.data_version
        await cluster.restart_broker("broker-a-slave-1")
        assert cluster.slaves[0].topics.get("kept") == master.topics.get("kept")

    play(story)


def test_what_a_slave_makes_itself_leaves_the_version_of_the_table() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"x"))
        await in_step(cluster)
        slave = cluster.slaves[0]
        version = slave.groups.table.data_version
        assert (await ask(slave, pull(0, group="new"))).code == ResponseCode.SUCCESS
        assert slave.groups.get("new") is not None
        assert slave.groups.table.data_version == version

    play(story)


async def commit(broker: Broker, offset: int) -> RemotingCommand:
    return await ask(
        broker,
        requests.UPDATE_CONSUMER_OFFSET.command(
            UpdateConsumerOffsetRequestHeader(
                consumer_group="g", topic="t", queue_id=0, commit_offset=offset
            )
        ),
    )


async def committed(broker: Broker) -> int:
    return broker.offsets.query("g", "t", 0)


def test_offsets_committed_at_a_slave_stay_until_the_master_knows_better() -> None:
    async def story(cluster: Cluster) -> None:
        master = cluster.brokers[0]
        await send(cluster, *(Message("t", b"%d" % n) for n in range(10)))
        master.groups.find("g")
        assert (await commit(master, 4)).code == ResponseCode.SUCCESS
        await in_step(cluster)
        slave = cluster.slaves[0]
        await until(lambda: slave.offsets.query("g", "t", 0) == 4)
        cluster.kill("broker-a")
        assert (await commit(slave, 7)).code == ResponseCode.SUCCESS
        await cluster.start_broker("broker-a")
        await asyncio.sleep(2 * COPY_S)
        assert cluster.brokers[0].offsets.query("g", "t", 0) == 4
        assert slave.offsets.query("g", "t", 0) == 7
        # A reset on the master is news.
        assert (await commit(cluster.brokers[0], 2)).code == ResponseCode.SUCCESS
        await until(lambda: slave.offsets.query("g", "t", 0) == 2)

    play(story)


@pytest.mark.parametrize("slave_restarts", [False, True])
def test_a_master_that_lost_its_disk_does_not_empty_the_tables_of_its_slave(
    slave_restarts: bool,
) -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"x"))
        cluster.brokers[0].groups.put(SubscriptionGroupConfig(group_name="readers"))
        await in_step(cluster)
        await until(lambda: cluster.slaves[0].groups.get("readers") is not None)
        cluster.wipe("broker-a")
        await cluster.start_broker("broker-a")
        if slave_restarts:
            await cluster.restart_broker("broker-a-slave-1")
        slave = cluster.slaves[0]
        await asyncio.sleep(COPY_S)
        assert slave.copies.divergence is not None
        assert slave.topics.get("t") is not None
        assert slave.groups.get("readers") is not None

    play(story)


@pytest.mark.parametrize("gap_s", [0.0, COPY_S])
def test_offsets_of_a_topic_that_is_made_again_do_not_stay_on_the_slave(gap_s: float) -> None:
    async def story(cluster: Cluster) -> None:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        await send(cluster, *(Message("t", b"%d" % n) for n in range(10)))
        master.groups.find("g")
        assert (await commit(master, 10)).code == ResponseCode.SUCCESS
        await until(lambda: slave.offsets.query("g", "t", 0) == 10)
        async with AdminClient(cluster.namesrv) as admin:
            await admin.topics.delete("t")
        await asyncio.sleep(gap_s)
        await send(cluster, *(Message("t", b"new %d" % n) for n in range(20)))
        await in_step(cluster)
        await asyncio.sleep(COPY_S)
        assert slave.store.max_offset("t", 0) == 20
        # A group that begins here must not pass over the first ten.
        assert slave.offsets.query("g", "t", 0) == -1

    play(story)


def test_a_lost_master_is_one_line_for_each_kind_of_table(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(cluster: Cluster) -> None:
        slave = cluster.slaves[0]
        await send(cluster, Message("t", b"x"))
        await in_step(cluster)
        cluster.kill("broker-a")
        await asyncio.sleep(300)
        await cluster.start_broker("broker-a")
        await send(cluster, Message("later", b"x"))
        await until(lambda: slave.topics.get("later") is not None)

    play(story)
    lines = [record.getMessage() for record in caplog.records]
    for what in ("tables", "offsets"):
        assert sum("not copied from the master" in line and what in line for line in lines) == 1


def test_expressions_of_consumers_are_copied() -> None:
    async def story(cluster: Cluster) -> None:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        master.parts.filters.manager.register(
            "readers", [SubscriptionData("t", "a > 5", expression_type="SQL92", sub_version=3)]
        )
        manager = slave.parts.filters.manager
        await until(lambda: manager.get("t", "readers") is not None)
        data = manager.get("t", "readers")
        assert data is not None
        assert (data.expression, data.client_version, data.dead) == ("a > 5", 3, True)

    play(story, enablePropertyFilter="true")


# -- promotion --


async def promote(cluster: Cluster) -> None:
    """Switch by hand after the master was lost."""
    cluster.kill("broker-a")
    await asyncio.sleep(10)
    await cluster.promote("broker-a-slave-1")


def stop_replication(cluster: Cluster) -> None:
    """Have the slave get no more of the log; it goes on with the tables."""
    slave = cluster.slaves[0].copies.slave
    assert slave is not None
    slave.follow(None)


@pytest.mark.parametrize("with_tables", [True, False])
def test_a_promoted_slave_delivers_each_delayed_message_once_and_none_early(
    with_tables: bool,
) -> None:
    async def story(cluster: Cluster) -> None:
        clock = current().clock
        got: list[tuple[bytes, float]] = []

        async def listen(messages: list[MessageExt]) -> ConsumeResult:
            got.extend((m.body, clock.now_ms() / 1000) for m in messages)
            return ConsumeResult.SUCCESS

        consumer = PushConsumer("readers", listen, namesrv=cluster.namesrv)
        consumer.subscribe("t")
        began_s = clock.now_ms() / 1000
        due_s: dict[bytes, float] = {}
        messages = []
        # 10 s and 1 min; timers of 20 and 90 s.
        for number, (level, delay_s) in enumerate([(3, 10), (5, 60), (0, 20), (0, 90)] * 3):
            body = b"%d" % number
            due_s[body] = began_s + delay_s
            if level:
                messages.append(Message("t", body, delay_level=level))
            else:
                messages.append(Message("t", body, deliver_at_ms=int(due_s[body] * 1000)))
        async with consumer:
            await send(cluster, *messages)
            await asyncio.sleep(40 if with_tables else 22)
            if not with_tables:
                # As a slave that never learned a table from its master: the log must do.
                slave = cluster.slaves[0]
                slave.parts.disk.remove(
                    slave.store_config.store_path_root_dir / "config" / "delayOffset.json"
                )
            await promote(cluster)
            await until(lambda: len(got) >= len(messages), 200)
            await asyncio.sleep(120)
        assert sorted(body for body, _ in got) == sorted(due_s)
        assert all(at_s >= due_s[body] - 1 for body, at_s in got)

    play(story)


def as_java_answers(
    handlers: DelayStateHandlers, _connection: object, _request: object
) -> RemotingCommand:
    state = handlers._capture()
    body = encode_body(DelayOffsetSerializeWrapper(state.data_version, state.offset_table))
    return response(ResponseCode.SUCCESS, body=body)


@pytest.mark.parametrize("of_java", [False, True])
def test_offsets_of_delays_wait_for_the_log_that_they_speak_of(
    of_java: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave with the master's new offsets and without its last messages would lose messages."""
    if of_java:
        monkeypatch.setattr(DelayStateHandlers, "delay_offsets", as_java_answers)

    async def story(cluster: Cluster) -> None:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        await send(cluster, *(Message("t", b"%d" % n, delay_level=5) for n in range(5)))
        await in_step(cluster)
        stop_replication(cluster)
        await asyncio.sleep(120)
        assert master.store.max_offset("t", 0) == 5
        assert slave.store.max_offset("t", 0) == 0
        # Topics and groups do not wait with the offsets.
        master.topics.put(TopicConfig(topic_name="new"))
        await until(lambda: slave.topics.get("new") is not None)
        await promote(cluster)
        promoted = cluster.slaves[0]
        await until(lambda: promoted.store.max_offset("t", 0) == 5, 100)

    play(story)


def test_a_promoted_slave_asks_for_transactions_that_it_does_not_know_the_end_of() -> None:
    async def story(cluster: Cluster) -> None:
        asked: list[bytes] = []

        class Tellers:
            def execute(self, message: Message, _arg: object) -> LocalTransactionState:
                known = message.body == b"known"
                return LocalTransactionState.COMMIT if known else LocalTransactionState.UNKNOWN

            def check(self, message: MessageExt) -> LocalTransactionState:
                asked.append(message.body)
                return LocalTransactionState.COMMIT

        producer = TransactionProducer("tellers", Tellers(), namesrv=cluster.namesrv)
        async with producer:
            await producer.send_in_transaction(Message("t", b"known"))
            await producer.send_in_transaction(Message("t", b"open"))
            await in_step(cluster)
            await asyncio.sleep(5)
            await promote(cluster)
            promoted = cluster.slaves[0]
            await until(lambda: promoted.store.max_offset("t", 0) == 2, 200)
            await asyncio.sleep(100)
            assert promoted.store.max_offset("t", 0) == 2
        assert asked == [b"open"]

    play(story)


def test_a_promoted_slave_asks_for_a_transaction_whose_end_it_lacks() -> None:
    async def story(cluster: Cluster) -> None:
        asked: list[bytes] = []

        class Tellers:
            async def execute(self, _message: Message, _arg: object) -> LocalTransactionState:
                await in_step(cluster)
                stop_replication(cluster)
                return LocalTransactionState.COMMIT

            async def check(self, message: MessageExt) -> LocalTransactionState:
                asked.append(message.body)
                return LocalTransactionState.COMMIT

        async with TransactionProducer("tellers", Tellers(), namesrv=cluster.namesrv) as producer:
            await producer.send_in_transaction(Message("t", b"half"))
            master, slave = cluster.brokers[0], cluster.slaves[0]
            # The master has put down that the transaction has ended, and says so in its offsets.
            await asyncio.sleep(60)
            assert master.offsets.query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0) == 1
            assert slave.store.max_offset("t", 0) == 0
            await promote(cluster)
            promoted = cluster.slaves[0]
            await until(lambda: promoted.store.max_offset("t", 0) == 1, 200)
        assert asked == [b"half"]

    play(story)


# -- mistakes --


def test_a_slave_does_not_follow_a_broker_of_another_name() -> None:
    async def story(cluster: Cluster) -> None:
        stranger = cluster.brokers[1]
        wrong, right = cluster.slaves
        async with Producer("producers", namesrv=cluster.namesrv) as producer:
            for number in range(4):
                await producer.send(Message("t", b"%d" % number))
        await until(lambda: right.store.commit_log.end == stranger.store.commit_log.end > 0)
        assert wrong.config.broker_name == "broker-a"
        assert wrong.store.commit_log.end == 0
        assert wrong.topics.get("t") is None
        assert wrong.copies.slave is not None
        assert (
            f"the broker at {stranger.address} has brokerName=broker-b, this slave "
            "brokerName=broker-a"
        ) in (wrong.copies.slave.reason or "")

    with Cluster(
        brokers=2,
        slaves=1,
        clock="virtual",
        seed=7,
        properties={**ONE_QUEUE, "haMasterAddress": "10.0.0.4:10912"},
    ) as cluster:
        assert cluster.brokers[1].address == "10.0.0.4:10911"
        cluster.run(story(cluster))


def test_a_second_master_of_a_name_does_not_start_beside_the_first() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"x"))
        await in_step(cluster)
        with pytest.raises(ConfigError) as raised:
            await cluster.promote("broker-a-slave-1")
        master = cluster.brokers[0].address
        assert (
            f"brokerName=broker-a with brokerId=0 runs already, at {master} "
            "(brokerRole=ASYNC_MASTER)"
        ) in str(raised.value)
        cluster.kill("broker-a")
        await cluster.start_broker("broker-a-slave-1")
        await send(cluster, Message("t", b"y"))

    play(story)


def test_a_name_server_that_is_lost_with_the_master_does_not_hide_the_next_master() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"x"))

        def end(node: str) -> int:
            return cluster.broker(node).store.commit_log.end

        promoted, other = "broker-a-slave-1", "broker-a-slave-2"
        await until(lambda: end("broker-a") == end(promoted) == end(other) > 0)
        cluster.kill("broker-a")
        cluster.kill("namesrv-0")
        await cluster.promote(promoted)
        await send(cluster, Message("t", b"y"))
        await until(lambda: end(other) == end(promoted), 120)

    with Cluster(
        name_servers=2, slaves=2, clock="virtual", seed=7, properties=ONE_QUEUE
    ) as cluster:
        cluster.run(story(cluster))


def test_a_slave_that_is_given_no_master_says_so_and_goes_on() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.kill("broker-a")
        await cluster.restart_broker("broker-a-slave-1")
        slave = cluster.slaves[0]
        answer = await ask(slave, SEND)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "No name server knows its master" in (answer.remark or "")
        await cluster.start_broker("broker-a")
        await send(cluster, Message("t", b"x"))
        # It need not wait for its next registration.
        await until(lambda: slave.store.commit_log.end > 0, 15)

    play(story)


def test_a_former_master_with_messages_of_its_own_serves_no_reads_as_a_slave() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"first"))
        await in_step(cluster)
        stop_replication(cluster)
        await send(cluster, Message("t", b"the old master's"))
        await promote(cluster)
        await send(cluster, Message("t", b"the new master's"))
        await cluster.demote("broker-a")
        former = cluster.brokers[0]
        await until(lambda: former.copies.divergence is not None)
        answer = await ask(former, pull(1))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "this slave serves no reads now: the log has diverged" in (answer.remark or "")
        assert (await commit(former, 2)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        # Readers take the ends of ranges from these.
        place = {"topic": "t", "queueId": "0", "timestamp": "0"}
        for code in (
            RequestCode.GET_MAX_OFFSET,
            RequestCode.GET_MIN_OFFSET,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        ):
            reported = await ask(former, RemotingCommand(code, ext=place))
            assert reported.code == ResponseCode.SERVICE_NOT_AVAILABLE
            reported = await ask(cluster.slaves[0], RemotingCommand(code, ext=place))
            assert reported.code == ResponseCode.SUCCESS
        assert (await ask(cluster.slaves[0], pull(1))).code == ResponseCode.SUCCESS

        # Nor when the master is away, and not even after a restart.
        cluster.kill("broker-a-slave-1")
        replication_of(former).follow(None)  # as when no name server knows it any more
        assert (await ask(former, pull(1))).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await cluster.restart("broker-a")
        former = cluster.brokers[0]
        answer = await ask(former, pull(1))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the log was not compared with that of the present master yet" in (
            answer.remark or ""
        )

    play(story)


def test_a_slave_copies_the_tables_as_soon_as_it_reaches_its_master_again() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"first"))
        await in_step(cluster)
        master, slave = cluster.brokers[0], cluster.slaves[0]
        cluster.cut("broker-a", "broker-a-slave-1")
        await until(lambda: not replication_of(slave).is_connected)
        await send(cluster, Message("made-meanwhile", b"x"))
        await until(lambda: master.topics.get("made-meanwhile") is not None)
        cluster.heal("broker-a", "broker-a-slave-1")
        await until(lambda: replication_of(slave).is_connected, 60)
        # It may be promoted at any time, and serves then the topics that it has.
        await until(lambda: slave.topics.get("made-meanwhile") is not None, 0.5)

    play(story)


def test_a_slave_copies_the_tables_as_soon_as_it_has_a_message_of_an_unknown_topic() -> None:
    async def story(cluster: Cluster) -> None:
        slave = cluster.slaves[0]
        for number in range(3):
            topic = f"made-{number}"
            await send(cluster, Message(topic, b"x"))
            await until(lambda: slave.store.max_offset(topic, 0) == 1, 1)  # noqa: B023 - awaited here
            # The next round is up to 10 s away, and the master may be lost before.
            await until(lambda: slave.topics.get(topic) is not None, 1)  # noqa: B023 - awaited here

    play(story)


def test_a_slave_makes_the_topic_of_messages_that_came_before_its_master_was_lost() -> None:
    async def story(cluster: Cluster) -> None:
        slave = cluster.slaves[0]
        await in_step(cluster)
        held = slave.copies.tables
        assert held is not None
        await held._copying.acquire()
        await send(cluster, *(Message("late", b"x") for _ in range(3)))
        await until(
            lambda: slave.store.commit_log.end == cluster.brokers[0].store.commit_log.end, 5
        )
        cluster.kill("broker-a")
        held._copying.release()
        await until(lambda: slave.topics.get("late") is not None, 60)
        made = slave.topics.get("late")
        assert made is not None
        assert made.read_queue_nums == max(slave.store.topics()["late"]) + 1
        # The master knows better.
        await cluster.restart("broker-a")
        await until(lambda: slave.topics.get("late") == cluster.brokers[0].topics.get("late"), 60)

    play(story)


def test_a_slave_whose_log_once_differed_serves_no_reads_before_it_is_compared_again() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"first"))
        await in_step(cluster)
        cluster.power_off("broker-a")  # what was not flushed yet is gone there
        await cluster.restart("broker-a")
        await send(cluster, Message("t", b"other"))
        await until(lambda: cluster.slaves[0].copies.divergence is not None, 120)
        cluster.kill("broker-a")
        await cluster.restart("broker-a-slave-1")
        answer = await ask(cluster.slaves[0], pull(0))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the log was not compared with that of the present master yet" in (
            answer.remark or ""
        )

    play(story)


def replication_of(broker: Broker) -> ReplicationSlave:
    slave = broker.copies.slave
    assert slave is not None
    return slave


def test_a_former_master_serves_reads_once_its_log_was_compared() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"first"))
        await in_step(cluster)
        stop_replication(cluster)
        await promote(cluster)
        await cluster.demote("broker-a")
        await until_served(cluster.brokers[0])
        # What was compared once need not be compared again to serve while the master is away.
        cluster.kill("broker-a-slave-1")
        await cluster.restart("broker-a")
        assert (await ask(cluster.brokers[0], pull(0))).code == ResponseCode.SUCCESS

    async def until_served(broker: Broker) -> None:
        async with asyncio.timeout(WAIT_S):
            while (await ask(broker, pull(0))).code != ResponseCode.SUCCESS:  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(1)

    play(story)


def test_a_table_that_came_from_a_former_master_is_not_taken_for_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(cluster: Cluster) -> None:
        tables = cluster.broker("broker-a-slave-1").copies.tables
        assert tables is not None
        await until(lambda: tables.master is not None and bool(tables.copied))
        decoded = tables._decoded

        async def slow(*given: Any) -> Any:
            tables.trust("10.0.0.99:10911")
            return await decoded(*given)

        monkeypatch.setattr(tables, "_decoded", slow)
        address = tables.master
        assert address is not None
        tables._known.clear()
        await tables._copy_from(address)
        assert requests.GET_ALL_TOPIC_CONFIG.code not in tables.copied

    play(story)
