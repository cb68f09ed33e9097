"""Filter data of groups: which version counts, when it is forgotten, and what a restart makes of
the file.
"""

from __future__ import annotations

import pytest
from tests.json_text import pretty

from cometmq.broker.filters.consumer_filters import (
    BloomFilterData,
    ConsumerFilterManager,
    ConsumerFilterTable,
    compile_expression,
)
from cometmq.errors import FilterExpressionError
from cometmq.filtering import sql92
from cometmq.filtering.bloom import BloomFilter
from cometmq.filtering.sql92 import outcomes
from cometmq.model.measures.work import WorkBudget
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.store.queues.consume_queue_ext import ExtUnit

BLOOM = BloomFilter.create(20, 32)
DAY_MS = 24 * 3600 * 1000


class ManualClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def filters(clock: ManualClock) -> ConsumerFilterManager:
    return ConsumerFilterManager(clock, BLOOM, DAY_MS)


def sql(topic: str, expression: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic, expression, sub_version=version, expression_type="SQL92")


def expression_of(filters: ConsumerFilterManager, topic: str, group: str) -> str | None:
    data = filters.get(topic, group)
    return None if data is None else data.expression


def reloaded(
    filters: ConsumerFilterManager, clock: ManualClock, bloom: BloomFilter = BLOOM
) -> ConsumerFilterManager:
    text = pretty(filters.table())
    return ConsumerFilterManager(
        clock, bloom, DAY_MS, decode_body(text.encode(), ConsumerFilterTable)
    )


def test_expressions_are_kept_by_topic_and_group(filters: ConsumerFilterManager) -> None:
    filters.register("g", [sql("t", "a = 1"), sql("u", "a = 2"), SubscriptionData("v")])
    filters.register("h", [sql("t", "a = 3")])
    assert [expression_of(filters, topic, "g") for topic in "tuv"] == ["a = 1", "a = 2", None]
    assert sorted(data.consumer_group for data in filters.of_topic("t")) == ["g", "h"]
    assert list(filters.of_topic("v")) == []
    assert filters.changed


def test_the_newest_version_counts(filters: ConsumerFilterManager) -> None:
    filters.register("g", [sql("t", "a = 1", 5)])
    filters.register("g", [sql("t", "a = 2", 4)])
    filters.register("g", [sql("t", "a = 3", 5)])
    assert expression_of(filters, "t", "g") == "a = 1"
    filters.register("g", [sql("t", "a = 4", 6)])
    assert expression_of(filters, "t", "g") == "a = 4"


def test_a_repeated_heartbeat_changes_nothing(filters: ConsumerFilterManager) -> None:
    filters.register("g", [sql("t", "a = 1")])
    filters.changed = False
    filters.register("g", [sql("t", "a = 1")])
    assert not filters.changed


def test_the_same_expression_of_a_newer_version_keeps_its_birth(
    filters: ConsumerFilterManager, clock: ManualClock
) -> None:
    filters.register("g", [sql("t", "a = 1", 1)])
    born = clock.ms
    clock.ms += 1000
    filters.register("g", [sql("t", "a = 1", 2)])
    data = filters.get("t", "g")
    assert data is not None
    assert (data.born_time, data.client_version) == (born, 2)
    filters.register("g", [sql("t", "a = 2", 3)])
    changed = filters.get("t", "g")
    assert changed is not None
    assert changed.born_time == clock.ms


def test_an_expression_that_does_not_parse_takes_the_older_one_away(
    filters: ConsumerFilterManager,
) -> None:
    filters.register("g", [sql("t", "a = 1", 1)])
    filters.register("g", [sql("t", "a =", 2)])
    assert filters.get("t", "g") is None
    filters.register("g", [SubscriptionData("t", "x", sub_version=3, expression_type="XPATH")])
    assert filters.get("t", "g") is None


def test_what_a_group_gives_up_dies_and_comes_back(
    filters: ConsumerFilterManager, clock: ManualClock
) -> None:
    filters.register("g", [sql("t", "a = 1"), sql("u", "a = 2")])
    filters.register("g", [sql("t", "a = 1")])
    kept, given_up = filters.get("t", "g"), filters.get("u", "g")
    assert kept is not None
    assert given_up is not None
    assert (kept.dead, given_up.dead, given_up.dead_time) == (False, True, clock.ms)
    filters.unregister("g")
    assert kept.dead
    filters.register("g", [sql("t", "a = 1"), sql("u", "a = 2", 2)])
    assert (kept.dead, kept.dead_time, given_up.dead) == (False, 0, False)


def test_the_dead_are_dropped_after_their_time(
    filters: ConsumerFilterManager, clock: ManualClock
) -> None:
    filters.register("g", [sql("t", "a = 1")])
    filters.register("h", [sql("t", "a = 1")])
    filters.unregister("g")
    clock.ms += DAY_MS - 1
    assert filters.table().filter_data_by_topic["t"].group_filter_data.keys() == {"g", "h"}
    filters.changed = False
    clock.ms += 1
    assert filters.table().filter_data_by_topic["t"].group_filter_data.keys() == {"h"}
    assert filters.changed
    filters.unregister("h")
    clock.ms += DAY_MS
    assert filters.table().filter_data_by_topic == {}
    filters.unregister("h")  # nothing left to die


def test_after_a_restart_everybody_is_dead_until_heard_of(
    filters: ConsumerFilterManager, clock: ManualClock
) -> None:
    filters.register("g", [sql("t", "a = 1")])
    clock.ms += 10_000
    again = reloaded(filters, clock)
    data = again.get("t", "g")
    assert data is not None
    assert (data.dead, data.dead_time) == (True, data.born_time)
    clock.ms += 60_000
    data = reloaded(filters, clock).get("t", "g")
    assert data is not None
    assert data.dead_time == clock.ms - 30_000
    again.register("g", [sql("t", "a = 1")])
    assert expression_of(again, "t", "g") == "a = 1"
    data = again.get("t", "g")
    assert data is not None
    assert not data.dead


def test_other_bloom_parameters_make_old_bit_maps_worthless(
    filters: ConsumerFilterManager, clock: ManualClock
) -> None:
    filters.register("g", [sql("t", "a = 1")])
    clock.ms += 60_000
    data = reloaded(filters, clock, BloomFilter.create(10, 128)).get("t", "g")
    assert data is not None
    assert data.born_time == clock.ms
    assert data.bloom_filter_data is not None
    assert data.bloom_filter_data.bit_num == BloomFilter.create(10, 128).bit_count


def test_a_file_of_java_is_read(clock: ManualClock) -> None:
    # Written by the 5.3.3 broker, but for the second group.
    text = """{
	"filterDataByTopic":{
		"t":{
			"groupFilterData":{
				"g":{
					"bloomFilterData":{
						"bitNum":112,
						"bitPos":[22,87,58]
					},
					"bornTime":1699999000000,
					"clientVersion":1795176781515,
					"consumerGroup":"g",
					"dead":true,
					"deadTime":1699999000188,
					"expression":"a > 5 AND b IS NOT NULL",
					"expressionType":"SQL92",
					"topic":"t"
				},
				"h":{"bornTime":1,"clientVersion":7,"consumerGroup":"h","dead":false,"deadTime":0,
				"expression":"a >","expressionType":"SQL92","topic":"t"}
			},
			"topic":"t"
		}
	}
}"""
    table = decode_body(text.encode(), ConsumerFilterTable)
    filters = ConsumerFilterManager(clock, BLOOM, DAY_MS, table)
    data = filters.get("t", "g")
    assert data is not None
    assert (data.expression, data.client_version) == ("a > 5 AND b IS NOT NULL", 1795176781515)
    assert (data.born_time, data.dead_time, data.dead) == (1699999000000, 1699999000188, True)
    assert data.bloom_filter_data == BloomFilterData(112, [22, 87, 58])
    assert data.condition({"a": "6", "b": "x"}) is True
    assert filters.get("t", "h") is None


def test_only_sql92_is_compiled() -> None:
    for kind in ("XPATH", "", None, "sql92"):
        with pytest.raises(FilterExpressionError, match="use TAG or SQL92"):
            compile_expression("a = 1", kind)


def test_a_bit_map_holds_who_wants_the_message(
    filters: ConsumerFilterManager, clock: ManualClock
) -> None:
    assert filters.bit_map("t", b"") is None
    filters.register("g", [sql("t", "a > 5")])
    filters.register("h", [sql("t", "a <= 5")])
    filters.unregister("h")  # the dead count too: they may come back
    wanted = {}
    for value in ("6", "5", "x"):
        bits = filters.bit_map("t", f"a\x01{value}\x02".encode())
        assert bits is not None
        unit = ExtUnit(0, clock.ms + 1, bits)
        wanted[value] = [group for group in "gh" if may_match(filters, group, unit)]
    assert wanted == {"6": ["g"], "5": ["h"], "x": []}


@pytest.mark.parametrize(("later_ms", "bit_map"), [(0, bytes(14)), (1, b""), (1, bytes(13))])
def test_a_bit_map_of_before_the_expression_or_of_another_size_decides_nothing(
    filters: ConsumerFilterManager, clock: ManualClock, later_ms: int, bit_map: bytes
) -> None:
    filters.register("g", [sql("t", "a > 5")])
    assert may_match(filters, "g", ExtUnit(0, clock.ms + later_ms, bit_map))
    assert not may_match(filters, "g", ExtUnit(0, clock.ms + 1, bytes(14)))


def may_match(filters: ConsumerFilterManager, group: str, unit: ExtUnit) -> bool:
    data = filters.get("t", group)
    assert data is not None
    matcher = filters.ext_matcher(data)
    assert matcher is not None
    return matcher(unit)


def test_the_bit_map_of_a_message_has_its_work_bounded_however_many_groups_select(
    filters: ConsumerFilterManager,
) -> None:
    count = 2_000
    for number in range(count):
        filters.register(f"g{number}", [sql("t", f"a > {number} OR b CONTAINS 'x{number}'")])
    asked = 0

    class Work(WorkBudget):
        def charge(self, units: int) -> None:
            nonlocal asked
            super().charge(units)
            asked += 1

    filters.work = Work(1_000_000)
    # None: nothing is known, and each pull evaluates its own expression.
    assert filters.bit_map("t", f"a\x010\x02b\x01{'y' * 30_000}\x02".encode()) is None
    assert asked < count / 10
    few = ConsumerFilterManager(ManualClock(), BLOOM, DAY_MS)
    few.register("g", [sql("t", "a > 5")])
    assert few.bit_map("t", b"a\x016\x02") is not None


def test_more_filters_than_the_compiler_remembers_are_not_compiled_for_each_message(
    filters: ConsumerFilterManager,
) -> None:
    for number in range(600):
        filters.register(f"g{number}", [sql("t", f"a = {number}")])
    filters.work = WorkBudget(1 << 60)
    assert filters.bit_map("t", b"a\x017\x02")
    sql92.outcomes.clear()
    assert filters.bit_map("t", b"a\x018\x02")
    assert len(sql92.outcomes) == 0


def test_no_message_waits_until_an_expression_is_compiled(filters: ConsumerFilterManager) -> None:
    """It was compiled by the first message once the compiler had forgotten it: a tenth of a second
    for each of hundreds.
    """
    filters.register("g", [sql("t", "a = 1 OR a = 2")])
    sql92.outcomes.clear()
    assert filters.bit_map("t", b"a\x012\x02")
    assert len(sql92.outcomes) == 0


def test_a_heartbeat_takes_a_step_for_each_expression(filters: ConsumerFilterManager) -> None:
    """256 expressions were registered in one piece, each with a line in the log: 20 ms and more."""
    subscriptions = [sql(f"t{number}", f"a = {number}") for number in range(50)]
    steps = filters.register_steps("g", subscriptions)
    known = []
    for _ in steps:
        known.append(sum(filters.get(one.topic, "g") is not None for one in subscriptions))
    assert known == list(range(1, 51))


def test_expressions_that_were_forgotten_meanwhile_are_compiled_in_steps(
    filters: ConsumerFilterManager,
) -> None:
    long = " OR ".join(f"a = {number}" for number in range(300))
    outcomes.clear()
    assert sum(1 for _ in filters.register_steps("g", [sql("t", long)])) > 10
    assert sum(1 for _ in filters.register_steps("g", [sql("t", long)])) == 1
    assert expression_of(filters, "t", "g") == long


def test_a_snapshot_stays_as_it_was(filters: ConsumerFilterManager) -> None:
    """The table was encoded in one piece, because its values change: 8 MiB of it."""
    filters.register("g", [sql("t", "a = 1")])
    text = pretty(filters.table())
    snapshot = filters.snapshot()
    filters.register("g", [sql("u", "a = 2")])
    assert pretty(filters.table()) != text
    assert pretty(snapshot) == text
