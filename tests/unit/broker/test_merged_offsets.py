"""How a slave merges the offsets of its master with those that consumers committed to it."""

from __future__ import annotations

from cometmq.broker.groups.offsets import ConsumerOffsetManager
from cometmq.protocol.bodies.cluster import ConsumerOffsetSerializeWrapper


def slave(max_count: int = 100) -> ConsumerOffsetManager:
    offsets = ConsumerOffsetManager(max_count=max_count)
    offsets.is_copy = True
    return offsets


def merge(offsets: ConsumerOffsetManager, asked_at: int | None = None, **queues: int) -> None:
    """Merge the offsets of group g in queue 0 of topics, asked for just now by default."""
    table = {f"{topic}@g": {0: offset} for topic, offset in queues.items()}
    master = ConsumerOffsetSerializeWrapper(offset_table=table)
    for _ in offsets.merge(master, offsets.commits_here if asked_at is None else asked_at):
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


def test_a_commit_here_stays_when_the_master_was_asked_before_it() -> None:
    """A master answered 14 and was lost; its consumer committed 15 here; the copy, which waited for the
    log, then turned that back: seed 6001741.
    """
    offsets = slave()
    merge(offsets, a=12, b=12, c=12)
    asked_at = offsets.commits_here
    for topic in ("a", "b", "c", "d"):
        assert offsets.commit("g", topic, 0, 15)
    # Where the master went on, it is behind; where it was reset, it is not.
    merge(offsets, asked_at, a=14, b=3, c=17, d=0)
    assert [offsets.query("g", topic, 0) for topic in ("a", "b", "c", "d")] == [15, 3, 17, 15]
    merge(offsets, a=14)
    assert offsets.query("g", "a", 0) == 15
    merge(offsets, a=13)
    assert offsets.query("g", "a", 0) == 13


def test_a_commit_here_of_less_than_the_master_has_gives_way() -> None:
    """A member that no route led to the master goes on from what it knew before others committed."""
    offsets = slave()
    merge(offsets, a=5)
    assert offsets.commit("g", "a", 0, 3)
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
