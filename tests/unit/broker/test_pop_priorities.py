"""In which order pops read queues: by priority, at random, and with retries first or last (Java: PopPriorityIT)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.integration.pop_peer import ACK, CHANGE, POP, Popped, pop_ext, popped
from tests.integration.raw_client import properties, send_ext
from tests.unit.broker.broker_box import GROUP, Client, running
from tests.waits import until

from cometmq.broker.server import Broker
from cometmq.model import properties as p
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.pop.handle import mark_of, pop_retry_topic, pop_retry_topic_v2

SEND, PULL, CREATE_TOPIC, UPDATE_GROUP = 10, 11, 17, 200
LONG = 600_000
QUEUES = 8


async def make(client: Client, topic: str = "urgent", queues: int = QUEUES) -> None:
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        "attributes": "+message.type=PRIORITY",
    }
    answer = await client.ask(CREATE_TOPIC, ext)
    assert answer.code == 0, answer.remark


async def send(client: Client, priority: int | str, topic: str = "urgent", **more: str) -> int:
    """Send a message; return the queue that it went to."""
    text = properties({p.PRIORITY: str(priority), **more})
    answer = await client.ask(SEND, send_ext(topic, queueId=1, properties=text), b"x")
    assert answer.code == 0, answer.remark
    return int(answer.ext["queueId"])


async def pop(client: Client, topic: str = "urgent", **fields: Any) -> list[Popped]:
    return popped(await client.ask(POP, pop_ext(topic, **fields)))


async def come_again(client: Client, messages: list[Popped], broker: Broker) -> None:
    """Have messages delivered again now."""
    before = broker.pops.revival.revived_count
    for message in messages:
        assert (await client.ask(CHANGE, message.ext(invisibleTime=0))).code == 0
    await until(lambda: broker.pops.revival.revived_count == before + len(messages))


def queues_of(messages: list[Popped]) -> list[int]:
    return [each.record.queue_id for each in messages]


@pytest.mark.parametrize("topic", ["urgent", "orders"])
async def test_a_priority_is_the_number_of_a_queue(tmp_path: Path, topic: str) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker, host="127.0.0.1")
        await make(client, queues=4)
        assert await send(client, 2, topic) == 2
        assert await send(client, 9, topic) == 3
        assert await send(client, 10**30, topic) == 3
        # What is no priority leaves the message where its sender wanted it.
        for nothing in (-1, "x", "²"):
            assert await send(client, nothing, topic) == 1


@pytest.mark.parametrize(
    "more",
    [
        {p.SHARDING_KEY: "k"},
        {p.TRANSACTION_PREPARED: "true", p.PRODUCER_GROUP: "g"},
        {p.DELAY_TIME_LEVEL: "0"},
    ],
)
async def test_a_message_of_another_kind_has_no_priority(
    tmp_path: Path, more: dict[str, str]
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker, host="127.0.0.1")
        await make(client)
        assert await send(client, 5, **more) == 1
        for message in await pop(client):
            assert p.PRIORITY not in decode_properties(message.record.properties)


@pytest.mark.parametrize("ascending", [False, True])
async def test_higher_priorities_are_popped_first(tmp_path: Path, ascending: bool) -> None:
    async with running(tmp_path, priority_order_asc=not ascending) as broker:
        client = Client(broker, host="127.0.0.1")
        await make(client)
        for priority in range(QUEUES):
            assert await send(client, priority) == priority
        found = [queues_of(await pop(client, maxMsgNums=1)) for _ in range(QUEUES)]
        wanted = [[queue_id] for queue_id in range(QUEUES)]
        assert found == (wanted if ascending else wanted[::-1])


async def test_a_group_may_be_without_priorities(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker, host="127.0.0.1")
        await make(client)
        group = {"groupName": GROUP, "attributes": {"+priority.factor": "0"}}
        assert (await client.ask(UPDATE_GROUP, {}, json.dumps(group).encode())).code == 0
        for priority in range(QUEUES):
            for _ in range(40):
                await send(client, priority)
        taken = Counter(queues_of([(await pop(client, maxMsgNums=1))[0] for _ in range(160)]))
        assert len(taken) == QUEUES
        assert max(taken.values()) < 40


@pytest.mark.parametrize("probability", [0, 100])
async def test_retries_come_last_or_first(tmp_path: Path, probability: int) -> None:
    async with running(tmp_path, pop_from_retry_probability_for_priority=probability) as broker:
        client = Client(broker, host="127.0.0.1")
        await make(client)
        for priority in range(QUEUES):
            await send(client, priority)
        [first] = await pop(client, maxMsgNums=1, invisibleTime=LONG)
        await come_again(client, [first], broker)
        times = [each.record.reconsume_times for each in await pop(client)]
        assert times == ([1, *[0] * 7] if probability else [*[0] * 7, 1])


async def test_10350_retries_keep_their_queues(tmp_path: Path) -> None:
    """A message that failed lost its priority: Java's issue 10350."""
    async with running(
        tmp_path, use_separate_retry_queue=True, pop_from_retry_probability_for_priority=100
    ) as broker:
        client = Client(broker, host="127.0.0.1")
        await make(client)
        for priority in range(QUEUES):
            await send(client, priority)
        await come_again(client, await pop(client), broker)
        retry = broker.topics.get(pop_retry_topic(GROUP, "urgent"))
        assert retry is not None
        assert retry.read_queue_nums == QUEUES
        messages = await pop(client)
        assert queues_of(messages) == list(range(QUEUES))[::-1]
        assert {each.record.queue_offset for each in messages} == {0}
        # The topic gets more queues, and so does that of its retries.
        await make(client, queues=2 * QUEUES)
        assert await send(client, 15) == 15
        await come_again(client, messages, broker)
        *_, highest = await pop(client)
        await come_again(client, [highest], broker)
        assert queues_of(await pop(client)) == [15]


async def test_retries_go_to_topics_of_version_2_where_that_is_set(tmp_path: Path) -> None:
    async with running(tmp_path, enable_retry_topic_v2=True) as broker:
        client = Client(broker, host="127.0.0.1")
        await make(client)
        await send(client, 3)
        await come_again(client, await pop(client), broker)
        assert broker.topics.get(pop_retry_topic_v2(GROUP, "urgent")) is not None
        assert broker.topics.get(pop_retry_topic(GROUP, "urgent")) is None
        [message] = await pop(client)
        assert (message.handle.mark, message.record.topic) == ("2", "urgent")


@pytest.mark.parametrize("was_v2", [True, False])
async def test_what_failed_before_a_change_of_the_version_is_popped_after_it(
    tmp_path: Path, was_v2: bool
) -> None:
    """Messages in the retry topic of the other version are read, and new failures go to the topic of this one."""
    topics = pop_retry_topic(GROUP, "urgent"), pop_retry_topic_v2(GROUP, "urgent")
    async with running(tmp_path, enable_retry_topic_v2=was_v2) as broker:
        client = Client(broker, host="127.0.0.1")
        await make(client)
        for _ in range(3):
            await send(client, 3)
        await come_again(client, await pop(client), broker)
        [held] = await pop(client, maxMsgNums=1, invisibleTime=LONG)
    old, new = topics[was_v2], topics[not was_v2]
    async with running(tmp_path, enable_retry_topic_v2=not was_v2) as broker:
        client = Client(broker, host="127.0.0.1")
        left = await pop(client)
        assert [describe(each) for each in left] == [(mark_of(old), "urgent", 1)] * 2
        for message in (held, left[0]):
            assert (await client.ask(ACK, message.ext())).code == 0
        await come_again(client, left[1:], broker)
        assert (broker.store.max_offset(old, 0), broker.store.max_offset(new, 0)) == (3, 1)
        [failed] = await pop(client)
        assert describe(failed) == (mark_of(new), "urgent", 2)
        assert failed.record.queue_offset == 0
        assert (await client.ask(ACK, failed.ext())).code == 0
        assert broker.pops.state.table.count == 0


def describe(message: Popped) -> tuple[str, str, int]:
    """Return from which kind of topic a message came, the topic that it shows, and how often it failed."""
    return message.handle.mark, message.record.topic, message.record.reconsume_times


async def test_a_retry_may_be_shown_with_its_own_topic(tmp_path: Path) -> None:
    async with running(tmp_path, pop_response_return_actual_retry_topic=True) as broker:
        client = Client(broker, host="127.0.0.1")
        await make(client)
        await send(client, 3)
        await come_again(client, await pop(client), broker)
        [message] = await pop(client)
        assert message.record.topic == pop_retry_topic(GROUP, "urgent")
        assert p.POP_CK not in decode_properties(message.record.properties)
        assert message.handle.mark == "1"


async def test_no_more_pops_wait_than_are_allowed(tmp_path: Path) -> None:
    async with running(tmp_path, pop_polling_size=1) as broker:
        client = Client(broker)
        client.send(POP, pop_ext(pollTime=LONG))
        answer = await client.ask(POP, pop_ext(pollTime=LONG))
        assert (answer.code, "popPollingSize=1" in str(answer.remark)) == (209, True)


async def test_a_group_begins_at_the_end_of_a_new_topic_too_where_that_is_set(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, init_pop_offset_by_check_msg_in_mem=False) as broker:
        client = Client(broker, host="127.0.0.1")
        await make(client, queues=2)
        for _ in range(3):
            await send(client, 0)
        assert [each.record.queue_offset for each in await pop(client, initMode=1)] == [2]
