"""The verdicts of the invariants of groups that pop, on a run that keeps them and on runs that
break one.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.simulation.evidence import Violation
from tests.simulation.history import Delivered, Flush, HandleUsed, Popped, Queue
from tests.unit.simulation.story import BROKER, EPOCH_MS, GROUP, QUEUE, TOPIC, Story

RETRY = Queue(f"%RETRY%{GROUP}_{TOPIC}", BROKER, 0)
DEAD = f"%DLQ%{GROUP}"
# The one message of most stories is the first of the log, which is what its copy names.
FIRST = "1ST_POP_TIME"


class Pops(Story):
    """A run whose group pops."""

    def __init__(self, flush: Flush = "SYNC_FLUSH", **group: Any) -> None:
        super().__init__(flush, pops=True, **group)

    def pop(
        self, number: int, *, hidden_s: int = 10, popped_s: float | None = None, **fields: Any
    ) -> Delivered:
        """Pop a message; by its broker's clock at `popped_s`, else when it comes."""
        delivery = self.deliver(number, None, **fields)
        at_s = delivery.at_s if popped_s is None else popped_s
        popped_ms = EPOCH_MS + int(at_s * 1000)
        self.record(
            Popped,
            delivery=delivery.delivery,
            popped_ms=popped_ms,
            until_ms=popped_ms + hidden_s * 1000,
        )
        return delivery

    def ack(self, delivery: Delivered) -> None:
        for done in (False, True):
            self.record(HandleUsed, delivery=delivery.delivery, use="ack", done=done)

    def copy(self, number: int, *, at_s: float, times: int = 1, topic: str = RETRY.topic) -> None:
        """Store the copy of message 0, which is the first of the log."""
        first_pop: dict[str, Any] = {FIRST: str(EPOCH_MS)}
        self.store.add(
            self.messages[number],
            topic=topic,
            store_ms=EPOCH_MS + int(at_s * 1000),
            reconsume_times=times,
            **first_pop,
        )


def kinds(story: Pops) -> set[str]:
    story.end()
    return {each.invariant for each in judged(story)}


def judged(story: Pops) -> list[Violation]:
    return story.judged()


def test_pops_that_keep_all_invariants_are_not_blamed() -> None:
    story = Pops()
    story.send(0)
    first = story.pop(0, hidden_s=5)
    story.copy(0, at_s=story.now_s + 5)
    story.now_s += 10
    again = story.pop(0, queue=RETRY, offset=0, times=1)
    story.ack(again)
    story.ack(first)  # too late, and agreed to
    assert kinds(story) == set()


def test_a_copy_before_its_time_is_seen() -> None:
    story = Pops()
    story.send(0)
    delivery = story.pop(0, hidden_s=10)
    story.copy(0, at_s=delivery.at_s + 9.999)
    assert kinds(story) == {"popped is hidden"}


def test_a_time_that_was_changed_counts() -> None:
    story = Pops()
    story.send(0)
    delivery = story.pop(0, hidden_s=10)
    until_ms = EPOCH_MS + int(delivery.at_s * 1000) + 60_000
    use: Any = {"delivery": delivery.delivery, "use": "hide"}
    story.record(HandleUsed, **use)
    story.copy(0, at_s=delivery.at_s + 20)
    assert kinds(story) == set()  # nobody knows whether the broker had taken it
    story.events.pop()
    story.record(HandleUsed, **use, done=True, popped_ms=EPOCH_MS, until_ms=until_ms)
    assert kinds(story) == {"popped is hidden"}


def test_a_delivery_behind_an_acknowledgement_is_seen() -> None:
    story = Pops()
    story.send(0)
    delivery = story.pop(0, hidden_s=10)
    story.ack(delivery)
    story.copy(0, at_s=delivery.at_s + 10)
    assert kinds(story) == {"acknowledged pops stay done"}


@pytest.mark.parametrize(("flush", "found"), [("SYNC_FLUSH", True), ("ASYNC_FLUSH", False)])
def test_a_loss_of_power_takes_acknowledgements_without_sync_flush_only(
    flush: Flush, found: bool
) -> None:
    story = Pops(flush)
    story.send(0)
    delivery = story.pop(0, hidden_s=10)
    story.ack(delivery)
    story.fault("power_off")
    story.copy(0, at_s=delivery.at_s + 20)
    assert ("acknowledged pops stay done" in kinds(story)) is found


def test_a_delivery_that_counts_twice_and_a_second_copy_are_seen() -> None:
    for times, copies in ((2, 1), (1, 2)):
        story = Pops()
        story.send(0)
        delivery = story.pop(0)
        for _ in range(copies):
            story.copy(0, at_s=delivery.at_s + 20, times=times)
        assert kinds(story) == {"pops counted"}


def test_a_place_that_is_handed_out_twice_is_seen() -> None:
    story = Pops()
    story.send(0)
    story.pop(0, hidden_s=1)
    story.now_s += 10
    story.pop(0)
    assert kinds(story) == {"pops counted"}


def test_a_dead_letter_before_the_last_delivery_and_none_after_it_are_seen() -> None:
    for topic, last in ((DEAD, 2), (RETRY.topic, 0)):
        story = Pops(max_reconsume_times=last)
        story.send(0)
        delivery = story.pop(0)
        story.copy(0, at_s=delivery.at_s + 20, topic=topic)
        assert kinds(story) == {"pops counted"}


@pytest.mark.parametrize(("behind_s", "is_seen"), [(0.0005, False), (0.002, True)])
def test_a_broker_may_be_a_part_of_a_millisecond_behind(behind_s: float, *, is_seen: bool) -> None:
    """The pop behind an acknowledgement of this millisecond had the number of the one before."""
    story = Pops(is_orderly=True)
    for number in range(2):
        story.send(number)
    first = story.pop(0, hidden_s=100)
    story.now_s = asked_s = 50.0
    story.ack(first)
    # Each event of a story comes a second after the one before.
    story.now_s = asked_s - behind_s
    story.pop(1, hidden_s=100)
    assert ("one batch of a queue at a time" in kinds(story)) is is_seen


def test_a_second_batch_of_a_queue_is_seen() -> None:
    story = Pops(is_orderly=True)
    for number in range(3):
        story.send(number)
    first = story.pop(0, hidden_s=100)
    second = story.pop(1, hidden_s=100)
    story.ack(first)
    assert "one batch of a queue at a time" in kinds(story)
    story.events.pop()
    assert second.queue == QUEUE


def test_an_attempt_that_is_repeated_gets_its_batch() -> None:
    story = Pops(is_orderly=True)
    story.send(0)
    story.pop(0, hidden_s=100)
    story.pop(0, hidden_s=100)
    assert kinds(story) == set()


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_in_order_an_acknowledged_message_comes_again_with_an_earlier_one(
    *, is_acknowledged: bool
) -> None:
    story = Pops(is_orderly=True)
    for number in range(2):
        story.send(number)
    story.now_s = popped_s = 20.0
    story.pop(0, hidden_s=5, popped_s=popped_s)
    second = story.pop(1, hidden_s=100, popped_s=popped_s)
    if is_acknowledged:
        story.ack(second)
    story.now_s = again_s = 40.0
    for number in range(2):
        story.pop(number, popped_s=again_s, times=1, queue=QUEUE, offset=number)
    found = kinds(story)
    assert ("popped is hidden" in found) is not is_acknowledged
    assert "acknowledged pops stay done" not in found
