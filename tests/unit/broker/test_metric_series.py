"""Which topics and groups have series of their own in a scrape, and what the others sum up to."""

from __future__ import annotations

from collections.abc import Iterable

from cometmq.broker.metrics.series import Pair, PairSlots, Slots, Sums
from cometmq.metrics.catalogue import REST


def scrape(slots: Slots, keys: Iterable[str], limit: int = 2) -> list[str]:
    slots.begin(limit)
    own = [key for key in keys if slots.take(key)]
    slots.end()
    return own


def places(slots: PairSlots, pairs: Iterable[Pair], limit: int) -> list[Pair]:
    slots.begin(limit)
    found = [slots.place(*pair) for pair in pairs]
    slots.end()
    return found


def test_whoever_has_a_series_keeps_it_whatever_the_order() -> None:
    slots = Slots()
    assert scrape(slots, "abc") == ["a", "b"]
    assert slots.left_out == 1
    assert scrape(slots, "cba") == ["b", "a"]


def test_a_series_of_what_is_gone_is_free_in_the_scrape_after_the_next() -> None:
    slots = Slots()
    scrape(slots, "ab")
    assert scrape(slots, "bc") == ["b"]
    assert scrape(slots, "bc") == ["b", "c"]


def test_a_smaller_limit_is_obeyed_in_the_next_scrape() -> None:
    slots = Slots()
    scrape(slots, "abc", 3)
    assert len(scrape(slots, "abc", 1)) == 1
    assert scrape(slots, "abc", 0) == []


def test_there_are_at_most_twice_as_many_series_of_pairs_as_the_limit_and_one() -> None:
    slots = PairSlots()
    pairs = [(f"g{group}", f"t{topic}") for group in range(50) for topic in range(50)]
    found = places(slots, pairs, 40)
    assert len(set(found)) <= 2 * 40 + 1
    assert slots.left_out == sum(REST in labels for labels in found)
    # As before, also if they come in another order.
    again = places(slots, reversed(pairs), 40)
    assert list(reversed(again)) == found


def test_a_pair_that_is_asked_for_several_times_counts_once_in_its_groups_share() -> None:
    slots = PairSlots()
    own = [("g", "a"), ("g", "b")]
    for _ in range(2):
        assert set(places(slots, own * 3, 40)) == set(own)
    assert places(slots, [*own, ("g", "c"), ("g", "d"), ("g", "e")], 40)[2:] == [
        ("g", "c"),
        ("g", "d"),
        ("g", REST),
    ]


def test_one_group_with_many_topics_leaves_series_for_others() -> None:
    slots = PairSlots()
    found = places(slots, [("greedy", f"t{n}") for n in range(1000)] + [("other", "t")], 40)
    assert found[-1] == ("other", "t")
    assert found.count(("greedy", REST)) == 1000 - 40 // 10


def test_a_sum_does_not_fall_when_a_topic_is_deleted() -> None:
    """A monitoring system would take the whole sum as new."""
    sums = Sums()

    def total(*counts: int) -> int:
        sums.begin()
        for count in counts:
            sums.add((REST, ""), [count])
        list(sums.end())
        return sums.rows[REST, ""][0]

    assert total(10, 20) == 30
    assert total(10) == 30
    assert total(25) == 30
    assert total(35) == 35


def test_a_series_of_its_own_begins_anew_with_its_topic() -> None:
    sums = Sums()
    for count in (10, 3):
        sums.begin()
        sums.add(("t", ""), [count])
        list(sums.end())
        assert sums.rows["t", ""] == [count]
