"""Messages in flight, in a scrape and in the answer about a group's progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.pop_peer import ACK, CHANGE, POP, pop_ext, popped
from tests.integration.raw_client import send_ext
from tests.unit.broker.broker_box import GROUP, Client, running
from tests.waits import until

from cometmq.broker.metrics.pops import PopMessages
from cometmq.broker.metrics.series import PairSlots
from cometmq.broker.server import Broker
from cometmq.errors import StoreFullError
from cometmq.metrics.catalogue import BASE_LABELS
from cometmq.metrics.exposition import Exposition
from cometmq.protocol.pop.handle import pop_retry_topic
from cometmq.store.queues.consume_queue import ConsumeQueue

SEND, CONSUME_STATS = 10, 208
RETRY = pop_retry_topic(GROUP, "orders")


def scrape(broker: Broker, group: str = GROUP) -> dict[str, float]:
    """Return a group's value of each metric."""
    pairs = PairSlots()
    pairs.begin(10)
    out = Exposition(dict.fromkeys(BASE_LABELS, "x"))
    for _ in PopMessages(broker.parts, broker.pops.state, pairs).collect(out):
        pass
    found = {}
    for family in text_string_to_metric_families(out.text().decode()):
        for sample in family.samples:
            assert sample.labels["topic"] == "orders"
            if sample.labels["consumer_group"] == group:
                found[sample.name] = sample.value
    return found


async def test_what_a_group_has_in_flight_is_told_with_its_retries(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        assert "cometmq_pop_inflight_messages" not in scrape(broker)
        for _ in range(5):
            await client.ask(SEND, send_ext("orders", queueId=0), b"x")
        messages = popped(await client.ask(POP, pop_ext(maxMsgNums=4)))
        await client.ask(ACK, messages[0].ext())
        reported = scrape(broker)
        assert reported["cometmq_pop_inflight_messages"] == 3
        assert 0 <= reported["cometmq_pop_oldest_age_seconds"] < 60
        assert reported["cometmq_pop_revive_late_seconds"] == 0
        await client.ask(CHANGE, messages[1].ext(invisibleTime=0))
        await until(lambda: broker.pops.revival.revived_count == 1)
        assert len(popped(await client.ask(POP, pop_ext(queueId=1)))) == 1
        reported = scrape(broker)
        # One of them in the retry topic.
        assert reported["cometmq_pop_inflight_messages"] == 3
        assert reported["rocketmq_pop_revive_retry_messages_total"] == 1


async def test_a_revival_that_is_held_up_is_late_in_its_own_group_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try hides the messages for a second more, so the metric never showed more than a second."""
    late = "cometmq_pop_revive_late_seconds"
    async with running(tmp_path) as broker:
        client = Client(broker)
        await client.ask(SEND, send_ext("orders", queueId=0), b"x")
        append = broker.store.append

        def full(queue: ConsumeQueue, *args: Any, **more: Any) -> tuple[int, int]:
            if queue.topic == RETRY:
                raise StoreFullError("the disk is full")
            return append(queue, *args, **more)

        monkeypatch.setattr(broker.store, "append", full)
        for group, hidden_ms in ((GROUP, 40), ("other", 600_000)):
            ext = pop_ext(consumerGroup=group, invisibleTime=hidden_ms)
            assert len(popped(await client.ask(POP, ext), group)) == 1
        await until(lambda: scrape(broker)[late] > 2.2, wait_s=20)
        assert scrape(broker, "other")[late] == 0
        assert scrape(broker)["cometmq_pop_inflight_messages"] == 1

        monkeypatch.setattr(broker.store, "append", append)
        await until(lambda: scrape(broker)[late] == 0)
        assert scrape(broker)["rocketmq_pop_revive_retry_messages_total"] == 1
        # The next message of the queue is late by its own time.
        await client.ask(SEND, send_ext("orders", queueId=0), b"y")
        await client.ask(POP, pop_ext(queueId=0))
        assert scrape(broker)[late] == 0


async def test_progress_says_after_a_start_too_up_to_where_a_group_has_popped(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        for _ in range(5):
            await client.ask(SEND, send_ext("orders", queueId=0), b"x")
        messages = popped(await client.ask(POP, pop_ext(maxMsgNums=4)))
        await client.ask(ACK, messages[0].ext())
    async with running(tmp_path) as broker:
        ext = {"consumerGroup": GROUP, "topic": "orders"}
        answer = await Client(broker).ask(CONSUME_STATS, ext)
        body = bytes(answer.body)
        assert b'"brokerOffset":5,"consumerOffset":1' in body
        assert b'"pullOffset":4' in body
