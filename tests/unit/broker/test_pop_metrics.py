"""Messages in flight, in a scrape and in the answer about a group's progress."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.integration.pop_peer import ACK, CHANGE, POP, pop_ext, popped
from tests.integration.raw_client import send_ext
from tests.unit.broker.broker_box import GROUP, Client, running
from tests.waits import until

from cometmq.broker.metrics.pops import PopMessages
from cometmq.broker.metrics.series import PairSlots
from cometmq.broker.server import Broker
from cometmq.metrics.catalogue import BASE_LABELS
from cometmq.metrics.exposition import Exposition

SEND, CONSUME_STATS = 10, 208


def scrape(broker: Broker) -> dict[str, float]:
    """Return what the group has in each metric, in those that are by group and in the one that is not."""
    pairs = PairSlots()
    pairs.begin(10)
    out = Exposition(dict.fromkeys(BASE_LABELS, "x"))
    for _ in PopMessages(broker.parts, broker.pops.state, pairs).collect(out):
        pass
    found = {}
    for family in text_string_to_metric_families(out.text().decode()):
        for sample in family.samples:
            assert sample.labels.get("consumer_group", GROUP) == GROUP
            assert sample.labels.get("topic", "orders") == "orders"
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
