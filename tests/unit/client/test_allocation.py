"""Allocation strategies: complete, disjoint, stable, and equal to Java's for each queue."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.allocation import (
    AllocateByConfig,
    AllocateByMachineRoom,
    AllocateConsistentHash,
    AllocateMachineRoomNearby,
    AllocationStrategy,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from cometmq.errors import IllegalArgumentError
from cometmq.model.queue import MessageQueue


def room_of_broker(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_client(client_id: str) -> str:
    return "room1" if client_id.startswith(("10.0.0.1", "10.0.0.2")) else "room2"


NEARBY = AllocateMachineRoomNearby(allocate_averagely, room_of_broker, room_of_client)
EVERY_QUEUE: dict[str, AllocationStrategy] = {
    "averagely": allocate_averagely,
    "circle": allocate_averagely_by_circle,
    "hash": AllocateConsistentHash(),
    "rooms": AllocateByMachineRoom({"room1", "room2", "room3"}),
    "nearby": NEARBY,
}
# Computed by Java's strategies (5.3.3) for the 24 queues and 4 members of `golden`.
JAVA_QUEUES = sorted(
    MessageQueue("orders", broker, i) for broker in ("room1@a", "room2@b", "c") for i in range(8)
)
JAVA_IDS = ["10.0.0.1@7#1", "10.0.0.2@9#5", "10.0.0.3@11#7", "10.0.0.4@x"]
JAVA_SHARES = {
    "circle": [
        [0, 4, 8, 12, 16, 20],
        [1, 5, 9, 13, 17, 21],
        [2, 6, 10, 14, 18, 22],
        [3, 7, 11, 15, 19, 23],
    ],
    "hash": [
        [9, 10, 15, 20, 21],
        [0, 3, 5, 12, 14, 16, 19, 23],
        [1, 7, 8],
        [2, 4, 6, 11, 13, 17, 18, 22],
    ],
    "nearby": [
        [8, 9, 10, 11, 0, 1],
        [12, 13, 14, 15, 2, 3],
        [16, 17, 18, 19, 4, 5],
        [20, 21, 22, 23, 6, 7],
    ],
}

topics = st.lists(
    st.builds(
        MessageQueue,
        st.just("t"),
        st.sampled_from(["room1@a", "room1@b", "room2@a", "room3@z"]),
        st.integers(0, 15),
    ),
    max_size=40,
    unique=True,
).map(sorted)
groups = st.lists(
    st.integers(0, 255).map(lambda n: f"10.0.0.{n}@{n}"), min_size=1, max_size=12, unique=True
).map(sorted)


def shares_of(
    strategy: AllocationStrategy, queues: Sequence[MessageQueue], ids: Sequence[str]
) -> list[list[MessageQueue]]:
    return [list(strategy("g", client_id, queues, ids)) for client_id in ids]


def java(index: int, all_queues: list[MessageQueue], clients: int) -> list[MessageQueue]:
    """The rule of AllocateMessageQueueAveragely as the reference states it."""
    n, c, i = len(all_queues), clients, index
    m = n % c
    size = 1 if n <= c else n // c + (1 if m > 0 and i < m else 0)
    start = i * size if m > 0 and i < m else i * size + m
    return all_queues[start : start + max(0, min(size, n - start))]


@given(st.integers(0, 40), st.integers(1, 30))
def test_average_shares_are_those_of_java(count: int, clients: int) -> None:
    queues = [MessageQueue("t", f"b{i // 4}", i % 4) for i in range(count)]
    ids = [f"c{i:02}" for i in range(clients)]
    shares = shares_of(allocate_averagely, queues, ids)
    assert shares == [java(i, queues, clients) for i in range(clients)]
    assert [queue for share in shares for queue in share] == queues


@pytest.mark.parametrize("name", sorted(JAVA_SHARES))
def test_shares_are_those_that_java_computed(name: str) -> None:
    shares = shares_of(EVERY_QUEUE[name], JAVA_QUEUES, JAVA_IDS)
    assert [[JAVA_QUEUES.index(q) for q in share] for share in shares] == JAVA_SHARES[name]


def test_machine_rooms_are_shared_as_java_shares_them() -> None:
    both = AllocateByMachineRoom(["room1", "room2"])
    shares = shares_of(both, JAVA_QUEUES[:-1], JAVA_IDS)
    assert [[JAVA_QUEUES.index(q) for q in share] for share in shares] == [
        [8, 9, 10, 20],
        [11, 12, 13, 21],
        [14, 15, 16, 22],
        [17, 18, 19],
    ]
    one = shares_of(AllocateByMachineRoom(["room1"]), JAVA_QUEUES, JAVA_IDS[:3])
    assert [[JAVA_QUEUES.index(q) for q in share] for share in one] == [
        [8, 9, 14],
        [10, 11, 15],
        [12, 13],
    ]


@pytest.mark.parametrize("name", sorted(EVERY_QUEUE))
@given(queues=topics, ids=groups)
def test_every_queue_has_exactly_one_owner(
    name: str, queues: list[MessageQueue], ids: list[str]
) -> None:
    shares = shares_of(EVERY_QUEUE[name], queues, ids)
    assert sorted(queue for share in shares for queue in share) == queues
    # Stable: whoever asks again, with what was given unchanged, gets the same.
    assert shares_of(EVERY_QUEUE[name], queues, ids) == shares


@pytest.mark.parametrize("name", ["averagely", "circle", "rooms"])
@given(queues=topics, ids=groups)
def test_shares_differ_by_one_queue_at_most(
    name: str, queues: list[MessageQueue], ids: list[str]
) -> None:
    sizes = [len(share) for share in shares_of(EVERY_QUEUE[name], queues, ids)]
    assert max(sizes) - min(sizes) <= 1


@given(queues=topics, ids=groups, leaver=st.integers(0, 11))
def test_who_leaves_a_hash_circle_moves_only_its_own_queues(
    queues: list[MessageQueue], ids: list[str], leaver: int
) -> None:
    gone = ids[leaver % len(ids)]
    rest = [client_id for client_id in ids if client_id != gone]
    strategy = AllocateConsistentHash()
    for client_id in rest:
        before = set(strategy("g", client_id, queues, ids))
        assert before <= set(strategy("g", client_id, queues, rest))


@given(queues=topics, ids=groups)
def test_nearby_members_have_their_rooms_queues(queues: list[MessageQueue], ids: list[str]) -> None:
    rooms = {room_of_client(client_id) for client_id in ids}
    for client_id in ids:
        for queue in NEARBY("g", client_id, queues, ids):
            room = room_of_broker(queue)
            assert room == room_of_client(client_id) or room not in rooms


@pytest.mark.parametrize("name", sorted(EVERY_QUEUE))
def test_a_stranger_gets_nothing(name: str) -> None:
    assert EVERY_QUEUE[name]("g", "x", JAVA_QUEUES[8:], ["10.0.0.1@a", "b"]) == []


def test_configured_queues_are_taken_topic_by_topic() -> None:
    mine = [MessageQueue("t", "a", 1), MessageQueue("u", "a", 0)]
    strategy = AllocateByConfig(mine)
    assert strategy("g", "x", [MessageQueue("t", "a", i) for i in range(3)], ["y"]) == mine[:1]
    assert strategy("g", "x", [MessageQueue("u", "a", 0)], ["y"]) == mine[1:]


def test_what_cannot_be_allocated_is_told() -> None:
    with pytest.raises(IllegalArgumentError, match="virtual_nodes is 0"):
        AllocateConsistentHash(0)
    lost = AllocateMachineRoomNearby(allocate_averagely, lambda _: "", lambda _: "r")
    with pytest.raises(IllegalArgumentError, match="no machine room is known for t@a:0"):
        lost("g", "c", [MessageQueue("t", "a", 0)], ["c"])
