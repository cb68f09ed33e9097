"""How a slave merges the offsets of its master with those that consumers committed to it."""

from __future__ import annotations

from cometmq.broker.groups.offsets import ConsumerOffsetManager
from cometmq.protocol.bodies import ConsumerOffsetSerializeWrapper


def slave(max_count: int = 100) -> ConsumerOffsetManager:
    offsets = ConsumerOffsetManager(max_count=max_count)
    offsets.is_copy = True
    return offsets


def merge(offsets: ConsumerOffsetManager, **queues: int) -> None:
    """Merge the offsets of group g in queue 0 of topics."""
    table = {f"{topic}@g": {0: offset} for topic, offset in queues.items()}
    for _ in offsets.merge(ConsumerOffsetSerializeWrapper(offset_table=table)):
        pass


def test_offsets_become_the_masters() -> None:
    offsets = slave()
    merge(offsets, a=5, b=7)
    assert (offsets.query("g", "a", 0), offsets.query("g", "b", 0)) == (5, 7)
    assert (offsets.count, offsets.changed) == (2, True)
    assert offsets.topics_of("g") == {"a", "b"}
    offsets.changed = False
    merge(offsets, a=5, b=7)
    assert not offsets.changed
    merge(offsets, a=2)  # reset
    assert (offsets.query("g", "a", 0), offsets.query("g", "b", 0)) == (2, 7)


def test_a_commit_here_stays_while_the_master_says_what_it_said_before() -> None:
    offsets = slave()
    merge(offsets, a=5)
    assert offsets.commit("g", "a", 0, 9)
    assert offsets.commit("g", "a", 0, 12)
    merge(offsets, a=5)
    assert offsets.query("g", "a", 0) == 12
    merge(offsets, a=6)
    assert offsets.query("g", "a", 0) == 6
    # What was committed here before no longer counts.
    merge(offsets, a=5)
    assert offsets.query("g", "a", 0) == 5


def test_a_commit_here_of_what_the_master_does_not_have_stays_until_it_has_it() -> None:
    offsets = slave()
    assert offsets.commit("g", "a", 0, 9)
    merge(offsets, b=1)
    assert offsets.query("g", "a", 0) == 9
    merge(offsets, a=3)
    assert offsets.query("g", "a", 0) == 3


def test_a_file_of_before_a_restart_gives_way() -> None:
    """Which commits were made here is not written down; the master's offsets are safe to take."""
    offsets = ConsumerOffsetManager(ConsumerOffsetSerializeWrapper(offset_table={"a@g": {0: 9}}))
    offsets.is_copy = True
    merge(offsets, a=5)
    assert offsets.query("g", "a", 0) == 5


def test_no_more_offsets_are_taken_than_are_allowed() -> None:
    offsets = slave(max_count=2)
    merge(offsets, a=1, b=2, c=3)
    assert offsets.count == 2
    merge(offsets, a=4, b=5, c=6)
    assert (offsets.query("g", "a", 0), offsets.query("g", "c", 0)) == (4, -1)
