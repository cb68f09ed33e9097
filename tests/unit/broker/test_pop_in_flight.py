"""Test the messages in flight of a queue against a plain dictionary."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.pop import changes as c
from cometmq.broker.pop.changes import Key
from cometmq.broker.pop.in_flight import Hidden, InFlight
from cometmq.broker.pop.table import Table

MINUTE = 60_000
FEW, MANY, BATCH = 32_000, 1_000_000, 32
KEY: Key = ("g", "t", 0)


def contents(in_flight: InFlight) -> dict[int, tuple[int, int]]:
    listed = list(in_flight)
    assert [each.offset for each in listed] == sorted({each.offset for each in listed})
    assert len(listed) == len(in_flight)
    return {each.offset: (each.popped_ms, each.until_ms) for each in listed}


Step = tuple[str, int, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["pop", "pop", "again", "ack", "ack", "ack", "stale", "hide", "drop", "due"]),
        st.integers(0, 4_000),
        st.integers(0, 700),
        st.integers(1, 50),
    ),
    max_size=60,
)  # fmt: skip


@given(steps)
def test_it_does_what_a_dictionary_does(steps: list[Step]) -> None:
    in_flight, model = InFlight(), dict[int, tuple[int, int]]()
    next_offset = 0
    for now_ms, (kind, place, size, more) in enumerate(steps, 1):
        times = (now_ms, now_ms + more)
        if kind in ("pop", "again"):
            begin = next_offset if kind == "pop" else place
            offsets = range(begin, begin + size, 1 + size % 2)
            in_flight.add(offsets, *times)
            model |= dict.fromkeys(offsets, times)
            next_offset = max(next_offset, begin + size)
        elif kind in ("ack", "stale"):
            for offset in range(place, place + size, 1 + more % 3):
                known = model.get(offset)
                right = kind == "ack" and known is not None
                assert in_flight.remove(offset, known[0] if known and right else -1) is right
                if right:
                    del model[offset]
        elif kind == "hide":
            assert in_flight.hide(place, *times) is (place in model)
            if place in model:
                model[place] = times
        elif kind == "drop":
            begin, end = place, None if more < 10 else place + size
            hidden = [Hidden(place + each, *times) for each in range(min(size, more))]
            in_flight.replace(begin, end, hidden)
            model = {
                offset: known
                for offset, known in model.items()
                if offset < begin or (end is not None and offset >= end)
            }
            # `hidden` must lie in the range; keep what does.
            for each in hidden:
                if end is not None and each.offset >= end:
                    raise AssertionError("a part reaches beyond its end")
                model[each.offset] = times
        due = sorted(offset for offset, (_, until_ms) in model.items() if until_ms <= now_ms)
        assert in_flight.due(now_ms, 10_000) == due
        assert in_flight.next_due_ms <= min((until for _, until in model.values()), default=2**63)
        assert in_flight.lowest == min(model, default=None)
        assert contents(in_flight) == model


def test_parts_are_all_of_it_in_order() -> None:
    in_flight = InFlight()
    in_flight.add(range(0, 9_000, 3), 1, 2)
    found: list[Hidden] = []
    begin: int | None = 0
    while begin is not None:
        part, begin = in_flight.part(begin, 1_000)
        assert len(part) == 1_000
        found += part
    assert found == list(in_flight)


def test_what_becomes_visible_comes_in_order_and_again_until_it_is_removed() -> None:
    in_flight = InFlight()
    in_flight.add(range(100), 0, MINUTE)
    in_flight.add(range(100, 200), 0, MINUTE - 1)
    assert in_flight.due(MINUTE - 2, 10) == []
    assert in_flight.due(MINUTE - 1, 10) == list(range(100, 110))
    assert in_flight.due(MINUTE, 3) == [0, 1, 2]
    in_flight.hide(0, MINUTE, 2 * MINUTE)
    in_flight.remove(1)
    assert in_flight.due(MINUTE, 3) == [2, 3, 4]


def test_messages_that_stay_behind_take_little_memory() -> None:
    """One in 512 stays, so a chunk would be left for each of them if small chunks were not joined."""
    in_flight = InFlight()
    for begin in range(0, 512 * 1_000, 512):
        in_flight.add(range(begin, begin + 512), 0, MINUTE)
        for offset in range(begin, begin + 511):
            assert in_flight.remove(offset, 0)
    assert len(in_flight) == 1_000
    assert in_flight.chunk_count < 20


def popped_table(count: int) -> Table:
    """Return a table of a queue of which `count` messages are in flight, popped in full batches."""
    table = Table()
    for begin in range(0, count, BATCH):
        pop(table, begin)
    return table


def pop(table: Table, begin: int) -> None:
    table.apply(c.Popped(KEY, begin, begin + MINUTE, begin + BATCH, [begin, BATCH]))


def acknowledge(table: Table, offset: int) -> None:
    table.apply(c.Acknowledged(KEY, offset - offset % BATCH, [offset]))
    assert table.states[KEY].committed >= 0


def steps_of(work: Callable[[], object]) -> int:
    """Return how many lines of Python some work runs, and how many functions it calls, including those in C."""
    steps = 0

    def count(*_: Any) -> Any:
        nonlocal steps
        steps += 1
        return count

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(count)
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return steps


def test_a_million_in_flight_take_little_memory() -> None:
    """The limit is 200 MB; an object for each message would keep it, and takes more than this."""
    tracemalloc.start()
    try:
        table = popped_table(MANY)
        assert table.count == MANY
        assert tracemalloc.get_traced_memory()[0] < 50_000_000
    finally:
        tracemalloc.stop()


def test_a_pop_and_an_acknowledgement_do_as_much_among_a_million_as_among_few() -> None:
    most: dict[int, tuple[int, int]] = {}
    for count in (FEW, MANY):
        table = popped_table(count)
        # A chunk has a bounded size, and the work of C code on it is not counted below.
        chunks = table.states[KEY].hidden.chunk_count
        assert count / 512 <= chunks <= count / 512 + 1
        # Messages here and there, and all of some chunks, which are joined or dropped.
        spread = [*range(7, count, count // 64), *range(count // 2, count // 2 + 2_048)]
        acknowledged = [steps_of(partial(acknowledge, table, offset)) for offset in spread]
        pops = [steps_of(partial(pop, table, count + BATCH * each)) for each in range(64)]
        most[count] = max(pops), max(acknowledged)
    # They differ only by the ends of chunks. A look at each chunk would take 31 times as many steps.
    for few, many in zip(most[FEW], most[MANY], strict=True):
        assert many < 2 * few < 400
