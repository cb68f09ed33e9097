"""Sums of messages by topic and group over a minute, an hour and a day, on a clock that the test
sets.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.broker.delay_box import DelayBox, connection, request
from tests.unit.store.store_box import CLIENT

from cometmq.broker.operation.broker_stats import BrokerStats
from cometmq.broker.refusal import Refused
from cometmq.broker.stats_item import SAMPLE_PERIOD_S
from cometmq.broker.traffic import Traffic
from cometmq.model import names
from cometmq.protocol.bodies.inspection import BrokerStatsData, BrokerStatsItem
from cometmq.protocol.headers import ConsumerSendMsgBackRequestHeader
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.runtime import slices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLUSTER = "c"
NONE = BrokerStatsItem()
SAMPLES_OF_AN_HOUR = 360


class Watched:
    """A store and its statistics, with short ways to put, to take and to let time pass."""

    def __init__(self, delays: DelayBox, **limits: int) -> None:
        self.delays = delays
        self.store = delays.store
        self.traffic = Traffic(delays.clock, delays.store, delays.topics, delays.delayed, **limits)
        self.online: set[tuple[str, str]] = set()
        self.stats = BrokerStats(
            CLUSTER,
            delays.store,
            delays.clock,
            self.traffic,
            lambda group, topic: (group, topic) in self.online,
        )

    def put(self, count: int, topic: str = "t", queue_id: int = 0) -> int:
        """Put messages; return the bytes that they take in the log."""
        before = self.store.commit_log.end
        queue = self.store.queue(topic, queue_id)
        for _ in range(count):
            self.store.append(queue, b"x", b"", 0, 0, CLIENT, now_ms=self.delays.clock.value)
        return self.store.commit_log.end - before

    def take(self, count: int, topic: str = "t", group: str = "g", took_ms: int = 0) -> None:
        began_s = self.traffic.monotonic() - took_ms / 1000
        self.traffic.took(group, topic, 0, count, count, 100 * count, began_s)

    def samples(self, count: int = 1, each: Callable[[], object] = lambda: None) -> None:
        async def run() -> None:
            for _ in range(count):
                each()
                await self.stats.sample()
                self.delays.clock.value += int(SAMPLE_PERIOD_S * 1000)

        asyncio.run(run())

    def refusal(self, name: str, key: str) -> str:
        with pytest.raises(Refused) as raised:
            self.stats.figures(name, key)
        return str(raised.value)


@pytest.fixture
def watched(delays: DelayBox) -> Watched:
    return Watched(delays)


def test_a_topic_counts_messages_bytes_and_times_of_all_its_queues(watched: Watched) -> None:
    size = watched.put(3) + watched.put(2, queue_id=1)
    before = watched.store.commit_log.end
    batch = [BatchEntry(0, b"a", b""), BatchEntry(0, b"b", b""), BatchEntry(0, b"c", b"")]
    watched.store.append_batch(watched.store.queue("t", 0), batch, [0, 0, 0], 0, CLIENT)
    size += watched.store.commit_log.end - before
    assert watched.stats.figures("TOPIC_PUT_NUMS", "t") == BrokerStatsData(NONE, NONE, NONE)
    watched.samples()
    # Eight messages were sent in six requests.
    nums = BrokerStatsItem(8, 0.8, 8 / 6)
    figures = watched.stats.figures("TOPIC_PUT_NUMS", "t")
    assert figures.stats_minute == nums
    assert watched.stats.figures("TOPIC_PUT_SIZE", "t").stats_minute == BrokerStatsItem(
        size, size / 10, size / 6
    )
    # The first sample is one of the hour and of the day, too.
    assert figures.stats_hour == BrokerStatsItem(8, 8 / 600, 8 / 6)
    assert figures.stats_day == BrokerStatsItem(8, 8 / 3600, 8 / 6)
    assert watched.stats.topic_put_tps("t") == 0.8


def test_a_group_counts_what_it_takes_of_its_own_topic_and_how_long_that_took(
    watched: Watched,
) -> None:
    watched.samples()
    watched.take(4, took_ms=3)
    watched.take(2, took_ms=5)
    watched.take(9, topic="u")
    watched.samples()
    minute = {
        name: watched.stats.figures(name, "t@g").stats_minute
        for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_LATENCY")
    }
    assert minute["GROUP_GET_NUMS"] == BrokerStatsItem(6, 0.6, 3.0)
    assert minute["GROUP_GET_SIZE"] == BrokerStatsItem(600, 60.0, 300.0)
    assert minute["GROUP_GET_LATENCY"].sum in (7, 8)
    assert round(minute["GROUP_GET_LATENCY"].avgpt, 2) == 4.0
    assert watched.stats.group_get_tps("g", "t") == 0.6
    assert watched.stats.group_get_tps("g", "other") == watched.stats.group_get_tps("h", "t") == 0.0


def test_a_rate_of_a_minute_fades_while_the_day_remembers(watched: Watched) -> None:
    watched.samples(SAMPLES_OF_AN_HOUR + 1, lambda: watched.take(40))
    figures = watched.stats.figures("GROUP_GET_NUMS", "t@g")
    assert (figures.stats_minute.sum, figures.stats_minute.tps) == (240, 4.0)
    assert (figures.stats_hour.sum, figures.stats_hour.tps) == (14_400, 4.0)
    # Two samples of the day were taken: of the first ten seconds, and of the hour since then.
    assert figures.stats_day.sum == 14_440
    watched.samples(6)
    figures = watched.stats.figures("GROUP_GET_NUMS", "t@g")
    assert (figures.stats_minute.sum, figures.stats_hour.sum) == (0, 14_400)
    watched.samples(SAMPLES_OF_AN_HOUR)
    figures = watched.stats.figures("GROUP_GET_NUMS", "t@g")
    assert (figures.stats_hour.sum, figures.stats_day.sum) == (0, 14_440)


def test_the_broker_counts_all_and_what_is_the_users(watched: Watched) -> None:
    watched.put(5)
    watched.put(2, names.TRANS_HALF_TOPIC)
    watched.take(3)
    watched.take(1, names.TRANS_HALF_TOPIC)
    watched.samples()
    sums = {
        name: watched.stats.figures(name, CLUSTER).stats_minute.sum
        for name in (
            "BROKER_PUT_NUMS",
            "BROKER_GET_NUMS",
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC",
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC",
        )
    }
    assert list(sums.values()) == [7, 4, 5, 3]
    # As in Java nobody counts how many times.
    assert watched.stats.figures("BROKER_PUT_NUMS", CLUSTER).stats_minute.avgpt == 0.0


def test_what_was_not_counted_is_refused_and_says_what_is(watched: Watched) -> None:
    watched.put(1)
    watched.take(1)
    assert watched.refusal("TOPIC_PUT_NUMS", "u").startswith(
        "The stats <TOPIC_PUT_NUMS> <u> not exist; nothing is counted there (figures begin with "
        "the broker's start and end with the topic or group, or after a day of rest); the key is "
        "TOPIC"
    )
    assert watched.refusal("GROUP_GET_NUMS", "t@h").endswith("the key is TOPIC@GROUP")
    assert watched.refusal("SNDBCK_PUT_NUMS", "t@g").startswith("The stats <SNDBCK_PUT_NUMS> <t@g>")
    assert watched.refusal("BROKER_PUT_NUMS", "another").endswith("the name of the cluster")
    assert "this broker keeps TOPIC_PUT_NUMS, TOPIC_PUT_SIZE" in watched.refusal("NO_SUCH", "t")


def test_what_is_sent_back_counts_for_the_topic_it_came_from(delays: DelayBox) -> None:
    watched = Watched(delays)
    delays.topics.create_for_group("orders", 4)
    delays.groups.find("audit")
    place = delays.put({})
    header = ConsumerSendMsgBackRequestHeader(
        offset=place, group="audit", delay_level=0, max_reconsume_times=16
    )
    for _ in range(2):
        delays.retry.send_back(connection(), request(36, header))
    assert delays.sent_back == [("audit", "orders")] * 2
    for pair in delays.sent_back:
        watched.traffic.sent_back(*pair)
    watched.samples()
    assert watched.stats.figures("SNDBCK_PUT_NUMS", "orders@audit").stats_minute.sum == 2
    assert "not exist" in watched.refusal("GROUP_GET_NUMS", "orders@audit")


def test_a_topic_that_is_deleted_and_made_again_begins_at_nothing(watched: Watched) -> None:
    watched.put(5)
    watched.take(5)
    watched.samples(2)
    watched.store.delete_topic("t")
    watched.traffic.topic_removed("t")
    assert "not exist" in watched.refusal("TOPIC_PUT_NUMS", "t")
    assert "not exist" in watched.refusal("GROUP_GET_NUMS", "t@g")
    watched.put(2)
    watched.samples()
    assert watched.stats.figures("TOPIC_PUT_NUMS", "t").stats_minute == BrokerStatsItem(2, 0.2, 1.0)
    watched.store.delete_topic("t")
    watched.samples()
    assert watched.stats.topic_put_tps("t") == 0.0


def test_a_group_that_is_deleted_is_forgotten_with_all_its_topics(watched: Watched) -> None:
    for topic in ("t", "u"):
        watched.take(1, topic)
        watched.take(1, topic, "h")
    watched.traffic.group_removed("g")
    assert watched.traffic.pair_count == 2
    assert "not exist" in watched.refusal("GROUP_GET_NUMS", "t@g")
    assert watched.traffic.pulled_offset("g", "t", 0) == -1
    watched.traffic.topic_removed("t")
    watched.traffic.topic_removed("u")
    assert (watched.traffic.pair_count, watched.traffic.taken) == (0, {})


def test_pairs_beyond_the_limit_are_not_counted_until_others_rest(delays: DelayBox) -> None:
    watched = Watched(delays, max_counted_pairs=2)
    for group in ("g", "h", "i"):
        watched.take(1, group=group)
    assert watched.traffic.transferred_count == 3
    refused = watched.refusal("GROUP_GET_NUMS", "t@i")
    assert "no more than MAX_COUNTED_PAIRS=2 pairs" in refused
    watched.samples(SAMPLES_OF_AN_HOUR + 2, lambda: watched.take(1, group="g"))
    # Group h has rested for an hour, and g has not.
    assert watched.traffic.pair_count == 1
    watched.take(1, group="i")
    watched.samples()
    assert watched.stats.figures("GROUP_GET_NUMS", "t@i").stats_minute.sum == 1


def test_one_sample_forgets_all_pairs_at_rest_when_there_are_too_many(
    delays: DelayBox, log_lines: list[dict[str, Any]]
) -> None:
    watched = Watched(delays, max_counted_pairs=4)
    for group in ("g", "h", "i", "busy"):
        watched.take(1, group=group)
    watched.samples(SAMPLES_OF_AN_HOUR + 2, lambda: watched.take(1, group="busy"))
    assert list(watched.traffic.taken) == ["busy"]
    assert [line["value"] for line in log_lines if "limit" in line] == [4]


def test_a_pair_at_rest_for_a_day_is_forgotten_unless_members_hold_messages(
    watched: Watched,
) -> None:
    watched.take(1)
    watched.take(1, group="online")
    # Tools pull without being members of a group.
    watched.take(1, group="reader")
    watched.online.add(("online", "t"))
    watched.traffic.members_changed("g", [])
    watched.samples(24 * SAMPLES_OF_AN_HOUR)
    assert watched.traffic.pair_count == 3
    watched.samples(2)
    assert list(watched.traffic.taken) == ["online"]
    assert watched.traffic.pulled_offset("online", "t", 0) == 1


def test_delivered_copies_count_for_the_topic_that_they_reach(delays: DelayBox) -> None:
    watched = Watched(delays)
    delays.put({"DELAY": "1"}, topic="later")
    watched.samples()
    assert "not exist" in watched.refusal("TOPIC_PUT_NUMS", "later")
    assert watched.stats.figures("TOPIC_PUT_NUMS", names.SCHEDULE_TOPIC).stats_minute.sum == 1
    delays.run_at(60_000)
    watched.samples()
    assert watched.stats.figures("TOPIC_PUT_NUMS", "later").stats_minute.sum == 1


def test_a_restart_counts_anew(tmp_path: Path) -> None:
    delays = DelayBox(tmp_path)
    Watched(delays).put(3)
    delays.store.close()
    delays.open(None)
    watched = Watched(delays)
    watched.samples()
    assert "not exist" in watched.refusal("TOPIC_PUT_NUMS", "t")
    assert watched.traffic.user_put() == 0
    delays.store.close()


def test_a_sample_of_many_counters_lets_others_have_the_loop(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0)
    for i in range(100):
        watched.put(1, f"t{i}")
        watched.take(1, f"t{i}")

    async def turns() -> int:
        sampling = asyncio.create_task(watched.stats.sample())
        count = 0
        while not sampling.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert asyncio.run(turns()) > 200
    assert watched.stats.topic_put_tps("t99") == watched.stats.group_get_tps("g", "t99") == 0.1
