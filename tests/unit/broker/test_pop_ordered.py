"""Test pops in order: the rules of Java's ConsumerOrderInfoManager."""

from __future__ import annotations

from cometmq.broker.pop.ordered import MOST_OF_ATTEMPT, Acknowledged, Ordered

SECOND = 1_000


def popped(*offsets: int, at_ms: int = 0, attempt_id: str = "") -> Ordered:
    order = Ordered()
    order.pop(offsets, at_ms, at_ms + SECOND, offsets[-1] + 1, attempt_id, [0] * len(offsets))
    return order


def test_the_group_waits_until_all_of_a_batch_is_done_or_visible() -> None:
    order = popped(5, 6, 7)
    assert order.is_blocked(SECOND - 1, "")
    assert not order.is_blocked(SECOND, "")
    order.hide(6, 3 * SECOND)
    order.acknowledge(7)
    assert order.is_blocked(2 * SECOND, "")
    order.acknowledge(6)
    assert not order.is_blocked(2 * SECOND, "")
    assert order.position == 5
    order.acknowledge(5)
    assert not order.is_blocked(0, "")
    assert order.position == 8


def test_a_repeated_attempt_gets_the_batch_again_and_counts_no_delivery() -> None:
    order = popped(5, 6, attempt_id="one")
    assert order.is_blocked(0, "two")
    assert order.is_blocked(0, "")
    assert not order.is_blocked(0, "one")
    assert order.counts_of([5, 6, 7], "one") == [0, 0, 0]
    assert order.counts_of([5, 6, 7], "two") == [1, 1, 0]


def test_an_acknowledged_message_that_is_handed_out_again_is_in_flight_again() -> None:
    """Java's clients expect it: a pop reads the queue from the first message that is not acknowledged."""
    order = popped(5, 6, 7)
    order.acknowledge(6)
    order.pop([5, 6, 7], 2 * SECOND, 3 * SECOND, 8, "", [1, 1, 1])
    assert order.pending == [5, 6, 7]
    for offset in (5, 6, 7):
        order.acknowledge(offset)
        assert order.position == offset + 1
    assert not order.pending


def test_an_acknowledged_message_behind_a_smaller_batch_is_skipped() -> None:
    order = popped(5, 6, 7, 8)
    order.acknowledge(6)
    order.acknowledge(8)
    assert order.position == 5
    assert order.done == {6, 8}
    # A smaller batch: what is behind it stays acknowledged.
    order.pop([5], 2 * SECOND, 3 * SECOND, 6, "", [1])
    order.acknowledge(5)
    assert order.position == 7
    assert order.done == {8}
    order.pop([7], 4 * SECOND, 5 * SECOND, 8, "", [1])
    order.acknowledge(7)
    assert order.position == 9
    assert not order.done


def test_an_acknowledgement_says_what_it_found() -> None:
    order = popped(5, 6, at_ms=7)
    assert order.check(5, 7) is Acknowledged.DONE
    assert order.check(5, 6) is Acknowledged.POPPED_AGAIN
    assert order.check(9, 7) is Acknowledged.NOT_IN_FLIGHT
    assert Ordered().check(0, 0) is Acknowledged.NOT_IN_FLIGHT


def test_an_acknowledged_message_at_the_front_is_not_forgotten() -> None:
    """The batch went on from its first message for ever, unless that was acknowledged last."""
    order = popped(5, 6, 7)
    order.acknowledge(5)
    assert (order.position, order.pending) == (6, [6, 7])
    order.acknowledge(6)
    order.acknowledge(7)
    assert (order.position, order.pending) == (8, [])
    assert not order.is_blocked(0, "")


def test_a_smaller_batch_keeps_the_counts_of_those_behind_it() -> None:
    """They were handed out as if for the first time (as by Java's broker)."""
    order = popped(5, 6, 7)
    order.pop([5], 2 * SECOND, 3 * SECOND, 6, "", order.counts_of([5], ""))
    order.acknowledge(5)
    assert order.counts_of([6, 7, 8], "") == [1, 1, 0]


def test_a_group_that_pops_without_order_gets_nothing_that_it_acknowledged_in_order() -> None:
    """A smaller batch turned the queue back in front of what a larger one had handed out."""
    order = popped(5, 6, 7)
    order.acknowledge(7)
    order.pop([5], 2 * SECOND, 3 * SECOND, 6, "", [1])
    assert order.handed_out_end == 8


def test_a_repeated_attempt_keeps_the_messages_and_handles_of_its_earlier_answers() -> None:
    order = popped(5, 6, 7, at_ms=10, attempt_id="one")
    order.acknowledge(6)
    order.pop([5], 20, 20 + SECOND, 6, "one", [0])
    assert order.offsets == [5, 6, 7]
    assert order.pending == [5, 7]
    assert order.until == [20 + SECOND, 10 + SECOND, 10 + SECOND]
    assert {order.check(7, at_ms) for at_ms in (10, 20)} == {Acknowledged.DONE}
    assert {order.check(7, at_ms) for at_ms in (9, 21)} == {Acknowledged.POPPED_AGAIN}
    order.pop([5, 6, 7, 8], 30, 30 + SECOND, 9, "two", [1, 1, 1, 0])
    assert order.check(5, 20) is Acknowledged.POPPED_AGAIN


def test_a_repeated_attempt_does_not_make_a_batch_of_any_size() -> None:
    """As with a filter that differs each time."""
    order = popped(0, attempt_id="one")
    for number in range(1, 1_000):
        order.pop([0, number], number, number + SECOND, number + 1, "one", [0, 0])
        assert len(order.offsets) <= MOST_OF_ATTEMPT
    assert order.pending[0] == 0
