"""What a slave serves, refuses and copies, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cometmq import Message
from cometmq.aio import AdminClient, Producer
from cometmq.broker.server import Broker
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND, TRANSACTION_COMMIT
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.headers import (
    EndTransactionRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    SendMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from cometmq.remoting.client import RemotingClient
from cometmq.runtime.surroundings import current
from cometmq.testing import Cluster

Story = Callable[[Cluster], Awaitable[Any]]
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


def pull(offset: int, *, group: str = "g", topic: str = "t", wait_ms: int = 0) -> RemotingCommand:
    return requests.PULL_MESSAGE.command(
        PullMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=0,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=wait_ms,
            subscription="*",
            sub_version=1,
        )
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
    RequestCode.UPDATE_AND_CREATE_TOPIC: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: ResponseCode.SYSTEM_ERROR,
    RequestCode.DELETE_TOPIC_IN_BROKER: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ResponseCode.SYSTEM_ERROR,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ResponseCode.SYSTEM_ERROR,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: ResponseCode.SYSTEM_ERROR,
    RequestCode.CLEAN_UNUSED_TOPIC: ResponseCode.SYSTEM_ERROR,
}


def test_the_request_table_says_what_a_slave_refuses() -> None:
    found = {code: row.on_slave for code, row in requests.REQUESTS.items() if row.on_slave}
    assert found == REFUSED_BY_SLAVES


def test_a_slave_refuses_what_is_for_the_master_and_says_where_that_is() -> None:
    async def story(cluster: Cluster) -> None:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        # A broker serves the same requests whatever its role is: none is unknown to a slave.
        assert slave.handlers.request_types.keys() == master.handlers.request_types.keys()
        command = requests.SEND_MESSAGE.command(
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
        answer = await ask(slave, command)
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


def test_a_slave_is_registered_beside_its_master_and_changes_no_route() -> None:
    async def story(cluster: Cluster) -> None:
        await send(cluster, Message("t", b"x"))
        master, slave = cluster.brokers[0], cluster.slaves[0]
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            route = await admin.topics.route("t")
        assert route.broker_datas[0].broker_addrs == {0: master.address, 1: slave.address}
        assert [queue.broker_name for queue in route.queue_datas] == ["broker-a"]

    play(story)


# -- reading --


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


def test_tables_are_copied_again_when_the_master_comes_back_and_one_line_tells() -> None:
    async def story(cluster: Cluster) -> None:
        slave = cluster.slaves[0]
        await in_step(cluster)
        cluster.kill("broker-a")
        await asyncio.sleep(120)
        await cluster.start_broker("broker-a")
        await send(cluster, Message("later", b"x"))
        await until(lambda: slave.topics.get("later") is not None)

    play(story)
