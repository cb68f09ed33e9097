"""The figures that a broker keeps about its own traffic, on a clock that the test sets."""

from __future__ import annotations

from tests.unit.broker.delay_box import DelayBox
from tests.unit.store.store_box import CLIENT

from cometmq.broker.groups.offsets import ConsumerOffsetManager
from cometmq.broker.traffic import Traffic
from cometmq.model import names
from cometmq.protocol.bodies.cluster import ConsumerOffsetSerializeWrapper

DAY_MS = 24 * 3600 * 1000


class Watched:
    """The traffic of a store, with short ways to make a second of it."""

    def __init__(self, delays: DelayBox, **limits: int) -> None:
        self.delays = delays
        self.store = delays.store
        self.traffic = Traffic(delays.clock, delays.store, delays.topics, delays.delayed, **limits)

    def put(self, count: int, topic: str = "t") -> None:
        queue = self.store.queue(topic, 0)
        for _ in range(count):
            self.store.append(queue, b"x", b"", 0, 0, CLIENT, now_ms=self.delays.clock.value)

    def take(self, count: int, topic: str = "t", group: str = "g", to: int = 0) -> None:
        self.traffic.took(group, topic, 0, to, count, 100 * count, self.traffic.monotonic())

    def seconds(self, count: int, *, puts: int = 0, takes: int = 0) -> None:
        for _ in range(count):
            self.put(puts)
            if takes:
                self.take(takes)
            self.delays.clock.value += 1000
            self.traffic.sample()


def test_rates_are_of_ten_seconds_a_minute_and_ten_and_unknown_before(delays: DelayBox) -> None:
    watched = Watched(delays)
    watched.traffic.sample()
    watched.seconds(9, puts=3)
    assert watched.traffic.put_rates() == [None, None, None]
    watched.seconds(1, puts=3)
    assert watched.traffic.put_rates() == [3.0, None, None]
    watched.seconds(50, puts=3, takes=2)
    watched.seconds(10)
    assert watched.traffic.put_rates() == [0.0, 2.5, None]
    assert watched.traffic.transferred_rates()[:2] == [0.0, 100 / 60]
    assert watched.traffic.found_rates()[:2] == [0.0, 50 / 60]
    watched.seconds(600, puts=1)
    assert watched.traffic.put_rates() == [1.0, 1.0, 1.0]


def test_what_the_broker_puts_and_takes_for_itself_is_not_the_users(delays: DelayBox) -> None:
    watched = Watched(delays)
    watched.put(5)
    for topic in (names.TRACE_TOPIC, names.TRANS_HALF_TOPIC, names.SCHEDULE_TOPIC, "b"):
        watched.put(2, topic)
        watched.take(2, topic)
    watched.take(3)
    assert watched.store.appended_count == 13
    assert (watched.traffic.user_put(), watched.traffic.user_taken) == (5, 3)
    assert watched.traffic.transferred_count == 11


def test_mornings_remember_two_days_and_a_clock_set_back_makes_none(delays: DelayBox) -> None:
    watched = Watched(delays)
    watched.seconds(1, puts=4, takes=3)
    assert watched.traffic.put_mornings == (0, 0)
    delays.clock.value += DAY_MS
    watched.seconds(1, puts=1, takes=2)
    assert watched.traffic.put_mornings == (0, 5)
    assert watched.traffic.taken_mornings == (0, 5)
    delays.clock.value += DAY_MS
    watched.seconds(1, puts=1)
    assert watched.traffic.put_mornings == (5, 6)
    delays.clock.value -= DAY_MS
    watched.seconds(1, puts=1)
    assert watched.traffic.put_mornings == (5, 6)


def test_a_late_sample_tells_how_long_requests_waited(delays: DelayBox) -> None:
    watched = Watched(delays)
    watched.seconds(2)
    assert watched.traffic.loop_delay_s == 0.0
    delays.clock.value += 400
    watched.seconds(1)
    assert round(watched.traffic.loop_delay_s, 3) == 0.4


def test_slow_puts_of_the_last_minute_are_told_by_their_time(delays: DelayBox) -> None:
    watched = Watched(delays)
    watch = watched.store.page_cache_watch
    for took_ms in (3, 40, 700):
        began = delays.clock.monotonic()
        delays.clock.value += took_ms
        watch.append_took(began)
    watched.seconds(60, puts=5)
    counts = dict(watched.traffic.put_time_counts())
    assert {name: count for name, count in counts.items() if count} == {
        "[<=0ms]": 297,
        "[0~10ms]": 1,
        "[10~50ms]": 1,
        "[500ms~1s]": 1,
    }
    assert watched.store.longest_append_ms == 700
    assert watched.traffic.put_time_ms(0.999) == 700.0
    assert watched.traffic.put_time_ms(0.99) == 0.0
    watched.seconds(60)
    assert not any(dict(watched.traffic.put_time_counts()).values())


def test_what_a_group_was_handed_is_forgotten_with_its_last_member(delays: DelayBox) -> None:
    watched = Watched(delays)
    watched.take(3, to=7)
    watched.traffic.members_changed("g", ["a member"])
    assert watched.traffic.pulled_offset("g", "t", 0) == 7
    watched.traffic.members_changed("g", [])
    assert watched.traffic.pulled_offset("g", "t", 0) == -1


def test_what_was_handed_out_of_too_many_queues_is_not_remembered(
    delays: DelayBox,
) -> None:
    watched = Watched(delays, max_pulled_queues=2)
    for topic in ("t", "u", "v"):
        watched.take(1, topic, to=1)
    watched.take(1, "t", to=2)
    offsets = [watched.traffic.pulled_offset("g", topic, 0) for topic in ("t", "u", "v")]
    assert offsets == [2, 1, -1]
    watched.traffic.members_changed("g", [])
    watched.take(1, "v", to=3)
    assert watched.traffic.pulled_offset("g", "v", 0) == 3


def test_offsets_are_found_by_topic_and_by_group_after_any_change() -> None:
    loaded = {"t@g": {0: 1}, "t@h": {0: 1}, "u@g": {0: 1}}
    offsets = ConsumerOffsetManager(ConsumerOffsetSerializeWrapper(offset_table=loaded))
    offsets.commit("i", "t", 0, 5)
    offsets.reset("g", "v", 1, 5)
    assert offsets.groups_of("t") == {"g", "h", "i"}
    assert offsets.topics_of("g") == {"t", "u", "v"}
    offsets.remove_topic("t")
    assert offsets.groups_of("t") == offsets.topics_of("h") == set()
    offsets.remove_group("g")
    assert offsets.topics_of("g") == offsets.groups_of("v") == set()
    assert offsets.table.offset_table == {}
