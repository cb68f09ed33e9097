"""Until when tables are complete."""

from __future__ import annotations

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.layout import QueueState
from cometmq.pipelines.table.board import Board
from cometmq.pipelines.table.completeness import Completeness
from cometmq.pipelines.table.notes import Figures, TopicFigures
from cometmq.runtime.clock import SystemClock

A, B = (MessageQueue("orders", "broker-a", at) for at in (0, 1))
LOOKED_MS = 1_000_000


def state(queue: MessageQueue, to: int, stored_ms: int | None) -> QueueState:
    mark = None if stored_ms is None else (to - 1, stored_ms)
    return QueueState(*queue, first=0, to=to, proved_to=0, mark=mark)


def until_ms(
    one: Completeness,
    states: list[QueueState],
    ends: dict[MessageQueue, int],
    published: bool = True,
) -> int:
    return one.until_ms(states, ends, LOOKED_MS, are_published=published)["orders"]


def test_a_queue_at_its_end_is_complete_until_the_look() -> None:
    found = until_ms(Completeness(), [state(A, 5, 900_000), state(B, 0, None)], {A: 5, B: 0})
    assert found == LOOKED_MS


def test_a_topic_is_as_complete_as_the_last_message_of_its_slowest_queue() -> None:
    found = until_ms(Completeness(), [state(A, 5, 900_000), state(B, 5, 700_000)], {A: 5, B: 9})
    assert found == 700_000


def test_a_queue_whose_broker_is_away_stays_as_complete_as_it_was() -> None:
    one = Completeness()
    states = [state(A, 5, 900_000)]
    # The first driver of all knows its last message only.
    assert until_ms(one, states, {}) == 900_000
    assert until_ms(one, states, {A: 5}) == LOOKED_MS
    assert until_ms(one, states, {}) == LOOKED_MS


def test_messages_that_no_table_has_do_not_count() -> None:
    one = Completeness()
    assert until_ms(one, [state(A, 5, 800_000)], {A: 9}) == 800_000
    assert until_ms(one, [state(A, 9, 900_000)], {A: 9}, published=False) == 800_000
    assert until_ms(one, [state(A, 9, 900_000)], {A: 9}) == LOOKED_MS


class Clock(SystemClock):
    def now_ms(self) -> int:
        return LOOKED_MS + 5000


def test_a_driver_that_knows_less_than_the_one_before_takes_nothing_back() -> None:
    board = Board(60.0, Clock())

    def take(until_ms: int | None) -> None:
        board.take(Figures((TopicFigures("orders", 1, 0, 0, until_ms, 1, 1),), (), 1, 0))

    take(None)
    assert board.shown().until_ms == {}
    take(LOOKED_MS)
    take(900_000)
    assert board.shown().until_ms == {"orders": LOOKED_MS}
    assert board.age_s(LOOKED_MS) == 5.0
