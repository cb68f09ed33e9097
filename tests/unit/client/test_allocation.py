"""The average allocation: complete, disjoint, even, and Java's to the queue."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.allocation import allocate_averagely
from cometmq.model.queue import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", f"b{i // 4}", i % 4) for i in range(count)]


def java(index: int, all_queues: list[MessageQueue], clients: int) -> list[MessageQueue]:
    """The rule of AllocateMessageQueueAveragely as the reference states it."""
    n, c, i = len(all_queues), clients, index
    m = n % c
    size = 1 if n <= c else n // c + (1 if m > 0 and i < m else 0)
    start = i * size if m > 0 and i < m else i * size + m
    return all_queues[start : start + max(0, min(size, n - start))]


@given(st.integers(0, 40), st.integers(1, 30))
def test_shares_are_those_of_java_and_cover_all_queues_once(count: int, clients: int) -> None:
    ids = [f"c{i:02}" for i in range(clients)]
    everything = queues(count)
    shares = [allocate_averagely("g", client, everything, ids) for client in ids]
    assert shares == [java(i, everything, clients) for i in range(clients)]
    assert [queue for share in shares for queue in share] == everything
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_a_stranger_gets_nothing() -> None:
    assert allocate_averagely("g", "x", queues(4), ["a", "b"]) == []
