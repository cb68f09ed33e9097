"""Test that a table read from the log is the one that wrote it, wherever the log ends."""

from __future__ import annotations

import random
from copy import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.pop import changes as c
from cometmq.broker.pop import log as pop_log
from cometmq.broker.pop import table as pop_table
from cometmq.broker.pop.changes import Key, decode_line, encode_line, offsets_of, runs_of
from cometmq.broker.pop.log import PopLog
from cometmq.broker.pop.table import QueueState, Table
from cometmq.errors import StoreError

KEYS: list[Key] = [("g", "t", 0), ("g", "%RETRY%g_t", 0), ("h", "t", 1)]
State = dict[Key, object]


def contents(table: Table) -> State:
    return {key: of_queue(state) for key, state in table.states.items()}


def of_queue(state: QueueState) -> object:
    order = state.order
    in_order = order and {name: copy(getattr(order, name)) for name in order.__slots__}
    return state.next_offset, state.committed, list(state.hidden), in_order


@dataclass
class Store:
    """A queue that keeps bodies, and how often it is read."""

    bodies: list[bytes] = field(default_factory=list)
    is_full: bool = False

    def log(self, table: Table) -> PopLog:
        return PopLog(table, self._append, lambda: len(self.bodies))

    def _append(self, body: bytes) -> None:
        if self.is_full:
            raise StoreError("the disk is full")
        self.bodies.append(body)

    def read(self, end: int) -> Table:
        table = Table()
        log = self.log(table)
        if end:
            log.replay(self.bodies[decode_line(self.bodies[end - 1]).start : end])
        return table


def change(table: Table, now_ms: int, draw: random.Random) -> c.AnyChange | None:
    """Return one of the changes that a broker would make of this table."""
    key = draw.choice(KEYS)
    state = table.get(key) or QueueState(key)
    hidden = list(state.hidden)
    kind = draw.choice(["pop"] * 3 + ["ack"] * 4 + ["hide", "move", "gone", "later", "order"] * 2 + ["reset", "drop"])  # fmt: skip
    until_ms = now_ms + draw.randrange(1, 50)
    if kind == "pop":
        begin = state.unpopped + draw.randrange(2)
        offsets = range(begin, begin + draw.randrange(1, 40), draw.choice([1, 1, 2]))
        next_offset = offsets[-1] + 1 + draw.randrange(2)
        return c.Popped(key, now_ms, until_ms, next_offset, runs_of(offsets))
    if kind == "reset":
        return c.Reset(key, draw.randrange(state.position + 1))
    if kind == "drop":
        return c.Dropped(key) if not draw.randrange(4) else None
    if kind == "order":
        return order_change(state, now_ms, until_ms, draw)
    if not hidden:
        return None
    one = draw.choice(hidden)
    some = sorted({each.offset for each in draw.choices(hidden, k=5)})
    if kind == "ack":
        return c.Acknowledged(key, one.popped_ms + draw.choice([0, 0, 1]), some)
    if kind == "hide":
        return c.Hidden(key, one.offset, one.popped_ms, now_ms, until_ms)
    if kind == "move":
        return c.Moved(key, some, "%RETRY%g_t", 0, now_ms)
    if kind == "gone":
        return c.Gone(key, some)
    return c.Postponed(key, some, until_ms)


def order_change(
    state: QueueState, now_ms: int, until_ms: int, draw: random.Random
) -> c.AnyChange | None:
    order = state.batch()
    kind = draw.choice(["pop", "ack", "ack", "ack", "hide"])
    if kind == "pop":
        begin = order.position
        offsets = [o for o in range(begin, begin + draw.randrange(1, 8)) if o not in order.done]
        counts = order.counts_of(offsets, "")
        return c.OrderPopped(
            state.key, now_ms, until_ms, offsets[-1] + 1, offsets, counts, f"a{now_ms % 3}"
        )
    if not order.pending:
        return None
    one = draw.choice(order.pending)
    if kind == "ack":
        return c.OrderAcknowledged(state.key, [one])
    return c.OrderHidden(state.key, one, until_ms)


@given(st.integers(0, 2**32), st.integers(0, 3))
def test_a_table_read_after_a_kill_is_the_one_before_it(seed: int, rounds: int) -> None:
    draw = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pop_table, "PART", 7)
        store, table = Store(), Table()
        log = store.log(table)
        after = {0: contents(table)}
        starts = 0
        for now_ms in range(1, 120):
            if rounds and draw.randrange(12) < rounds * 3:
                starts += not log.step()
            else:
                made = change(table, now_ms, draw)
                if made is not None:
                    log.write(made)
            after[len(store.bodies)] = contents(table)
        for end, expected in after.items():
            assert contents(store.read(end)) == expected
        if starts:
            assert log.start > 0


def test_a_start_reads_a_tail_that_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_log, "MIN_TAIL_BYTES", 64 * 1024)
    store, table = Store(), Table()
    log = store.log(table)
    key = KEYS[0]
    for batch in range(2_000):
        log.write(c.Popped(key, batch, batch + 1, batch * 32 + 32, [batch * 32, 32]))
        log.write(c.Acknowledged(key, batch, list(range(batch * 32, batch * 32 + 32))))
        while log.wants_round:
            log.step()
    written = sum(map(len, store.bodies))
    read = sum(map(len, store.bodies[decode_line(store.bodies[-1]).start :]))
    assert read < 70 * 1024 < written / 3
    assert contents(store.read(len(store.bodies))) == contents(table)


def test_a_round_of_many_queues_without_messages_is_short() -> None:
    store, table = Store(), Table()
    log = store.log(table)
    for queue_id in range(1_000):
        log.write(c.Popped(("g", "t", queue_id), 1, 1, 32, []))
    while log.step():
        pass
    assert len(store.bodies) < 1_000 + 20
    assert contents(store.read(len(store.bodies))) == contents(table)


def test_the_store_refuses_a_part_and_the_round_begins_anew() -> None:
    store, table = Store(), Table()
    log = store.log(table)
    for queue_id in range(3):
        log.write(c.Popped(("g", "t", queue_id), 1, 2, 2_048, [0, 2_048]))
    assert log.step()
    store.is_full = True
    with pytest.raises(StoreError):
        log.step()
    store.is_full = False
    while log.step():
        pass
    assert log.start == 4
    assert contents(store.read(len(store.bodies))) == contents(table)


def test_a_copy_that_the_log_lacks_leaves_its_message_in_flight() -> None:
    """A kill may come between the record that announces copies, and a copy."""
    key = KEYS[0]
    table = Table(is_copied=lambda change, offset, place: (offset, place) != (2, 8))
    table.apply(c.Popped(key, 1, 2, 4, [0, 4]))
    table.apply(c.Moved(key, [1, 2], "%RETRY%g_t", 0, 7))
    assert [each.offset for each in table.states[key].hidden] == [0, 2, 3]


def test_a_record_of_a_newer_version_is_refused_by_name() -> None:
    newer = encode_line(0, []).replace(bytes([c.VERSION]), bytes([c.VERSION + 1]), 1)
    with pytest.raises(StoreError, match="has version 2, this broker reads version 1"):
        decode_line(newer)
    with pytest.raises(StoreError, match="damaged"):
        decode_line(b"\x93\x01")


@given(st.sets(st.integers(0, 60), min_size=1))
def test_runs_are_the_offsets(offsets: set[int]) -> None:
    assert list(offsets_of(runs_of(sorted(offsets)))) == sorted(offsets)
