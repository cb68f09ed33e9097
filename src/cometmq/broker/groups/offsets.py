"""Keep how far each group has consumed each queue (Java: ConsumerOffsetManager)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cometmq.broker.refusal import Refused
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.protocol.bodies.cluster import ConsumerOffsetSerializeWrapper
from cometmq.protocol.codes import ResponseCode

log = get_logger(__name__)

_SEPARATOR = "@"
# How many corrections a log line names.
_EXAMPLES: Final = 5
# After this many answers with a reset's offset on one connection, a member that still pulls from
# another offset counts as one that chooses its offsets itself, like programs that store them
# elsewhere.
_ANSWERS_TO_A_RESET: Final = 3
# (topic, queue id) -> the offset that the queue's next message gets; None if there is no such queue
EndOf = Callable[[str, int], int | None]


def check_clients_may_commit(group: str) -> None:
    """Raise Refused for the group that holds the broker's own offsets. A start finds the open
    transactions by these offsets: with wrong ones it would forget some transactions, and commit
    others once more.
    """
    if group == names.TRANSACTION_GROUP:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the offsets of group {group} are the broker's own: it finds its transactions by them, so "
            "nobody else may set them",
        )


class Correction(NamedTuple):
    """A stored offset that is wrong. `end` is where its queue ends; None if there is no queue."""

    key: str
    queue_id: int
    offset: int
    end: int | None

    def __str__(self) -> str:
        return f"{self.key} queue {self.queue_id} at {self.offset}, its end is {self.end}"


class _Committed(NamedTuple):
    """A commit to a slave: what the master had said before, and the commit's number, which grows."""

    before: int | None
    number: int


class ConsumerOffsetManager:
    """Keeps the offsets by topic, group and queue. For the loop's thread only.

    An offset is that of the next message to consume. As in Java, an offset smaller than the stored
    one is accepted: a client may have been reset.

    A reset is stored at once, and also kept in `resets` until a member pulls from the new offset.
    Until then each pull from another offset is answered with the new one, and commits for the queue
    are ignored. The reason: if an answer is lost with its connection, the member goes on, and
    commits, where it was.

    Before committing for a client, the caller must check that the queue exists and reaches that
    far. `max_count` bounds the number of offsets kept; `ignored_count` counts offsets that came
    with a pull and could not be stored.

    With `is_copy`, which a slave sets, the table is that of a master: see `merge`.
    """

    def __init__(
        self, table: ConsumerOffsetSerializeWrapper | None = None, max_count: int = 2**31
    ) -> None:
        self.table = table or ConsumerOffsetSerializeWrapper()
        self.max_count = max_count
        self.count = sum(map(len, self.table.offset_table.values()))
        self.ignored_count = 0
        self.changed = False
        self.is_copy = False
        # Of a slave: which offsets were committed here.
        self._committed_here: dict[tuple[str, int], _Committed] = {}
        self.commits_here = 0
        self.resets: dict[str, dict[int, int]] = self.table.reset_offset_table or {}
        self.table.reset_offset_table = None
        # Members that were given the new offset of a queue: the connection, and how many answers named it.
        self._informed: dict[tuple[str, int], tuple[object, int]] = {}
        # Topics by group and groups by topic: a key of the table is a text made of both.
        self._topics: dict[str, set[str]] = {}
        self._groups: dict[str, set[str]] = {}
        for key in self.table.offset_table:
            self._note(*_split(key))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Store the offset, unless `awaits_pull` says that it is ignored.

        Return False if that would be more than `max_count` offsets.
        """
        if self.awaits_pull(group, topic, queue_id):
            return True
        return self._put(topic, group, queue_id, offset)

    def awaits_pull(self, group: str, topic: str, queue_id: int) -> bool:
        """Return True if no member has followed the queue's reset yet (Java: hasOffsetReset)."""
        return (
            bool(self.resets)
            and not self.is_copy
            and queue_id in self.resets.get(_key(topic, group), ())
        )

    def _put(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        offsets = self.table.offset_table.get(_key(topic, group))
        if (offsets is None or queue_id not in offsets) and self.count >= self.max_count:
            return False
        self._store(topic, group, queue_id, offset)
        return True

    def keep(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset of the broker's own, even beyond `max_count`: there are few of these."""
        self._store(topic, group, queue_id, offset)

    def _store(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        key = _key(topic, group)
        offsets = self.table.offset_table.get(key)
        if offsets is None:
            offsets = self.table.offset_table[key] = {}
            self._note(topic, group)
        elif offsets.get(queue_id) == offset:
            return  # as an idle consumer commits it every few seconds
        if self.is_copy:
            former = self._committed_here.get((key, queue_id))
            before = offsets.get(queue_id) if former is None else former.before
            self.commits_here += 1
            self._committed_here[key, queue_id] = _Committed(before, self.commits_here)
        self.count += queue_id not in offsets
        offsets[queue_id] = offset
        self.changed = True

    def commit_of_pull(self, group: str, topic: str, queue_id: int, offset: int, end: int) -> None:
        """Store the offset that came with a pull of a queue that ends at `end`.

        If the offset cannot be stored, only count it: the pull is served nevertheless.
        """
        if (
            not 0 <= offset <= end
            or group == names.TRANSACTION_GROUP
            or not self.commit(group, topic, queue_id, offset)
        ):
            self.ignored_count += 1

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Have the group go on at `offset` (Java: assignResetOffset).

        Return False if that would be more than `max_count` offsets.
        """
        key = _key(topic, group)
        if not self._put(topic, group, queue_id, offset):
            return False
        self.resets.setdefault(key, {})[queue_id] = offset
        self._informed.pop((key, queue_id), None)
        self.changed = True
        return True

    def clone(self, source: str, group: str, topic: str) -> bool:
        """Replace a group's offsets in a topic by those of another group, if that has any.

        Return False if that would be more than `max_count` offsets; then nothing changes.
        """
        cloned = self.table.offset_table.get(_key(topic, source))
        if cloned is None:
            return True
        key = _key(topic, group)
        more = len(cloned) - len(self.table.offset_table.get(key, ()))
        if more > 0 and self.count + more > self.max_count:
            return False
        self.table.offset_table[key] = dict(cloned)
        self._note(topic, group)
        self.count += more
        self._drop_resets(key)
        self.changed = True
        return True

    def merge(self, master: ConsumerOffsetSerializeWrapper, asked_at: int) -> Iterator[None]:
        """Take over a master's offsets, in steps of one group and topic each (Java:
        SlaveSynchronize.syncConsumerOffset, which takes over all).

        An offset that a consumer committed to this slave stays until the master has another one than
        before that: meanwhile the master was away, or nobody consumed or reset there. A lower one than
        the master's does not stay: a slave is not reset, so it came from a consumer that did not know
        of later commits. Offsets that the master does not have stay, too. Beyond `max_count` no new
        offset is taken.

        `asked_at` is the value that `commits_here` had when the master was asked. Its answer may be
        older than a later commit here, which stays unless the master's consumers were reset.

        Resets that the master's members have not followed yet are kept for the time when this
        broker becomes the master; before that no consumer is reset here.
        """
        resets = master.reset_offset_table or {}
        if resets != self.resets:
            self.resets = {key: dict(queues) for key, queues in resets.items()}
            self.changed = True
        for key, theirs in master.offset_table.items():
            ours = self.table.offset_table.get(key)
            taken: dict[int, int] = {}
            for queue_id, offset in theirs.items():
                own = -1 if ours is None else ours.get(queue_id, -1)
                here = self._committed_here.get((key, queue_id))
                if here is not None and offset <= own:
                    if offset == here.before:
                        continue
                    if here.number > asked_at and offset > (
                        -1 if here.before is None else here.before
                    ):
                        self._committed_here[key, queue_id] = here._replace(before=offset)
                        continue
                self._committed_here.pop((key, queue_id), None)
                if own != offset:
                    taken[queue_id] = offset
            more = len(taken) if ours is None else sum(q not in ours for q in taken)
            if taken and (not more or self.count + more <= self.max_count):
                if ours is None:
                    ours = self.table.offset_table[key] = {}
                    self._note(*_split(key))
                ours.update(taken)
                self.count += more
                self.changed = True
            yield

    def moved_to(
        self, group: str, topic: str, queue_id: int, position: int, connection: object
    ) -> int | None:
        """Return the offset at which a pull from `position` has to go on, because of a reset; None if it
        may be served.

        A member that pulls from the new offset, over the connection by which it learnt of it, has
        followed the reset, which is forgotten. So is one that a member disregards although
        _ANSWERS_TO_A_RESET answers on its connection have named the new offset. (Java forgets a reset
        when it makes the first answer, whether that arrives or not: queryThenEraseResetOffset.)
        """
        key = _key(topic, group)
        offset = self.resets.get(key, {}).get(queue_id)
        if offset is None or self.is_copy:
            return None
        informed, answers = self._informed.get((key, queue_id), (None, 0))
        if informed is not connection:
            answers = 0
        elif position == offset or answers >= _ANSWERS_TO_A_RESET:
            self._drop_reset(key, queue_id)
            if position != offset:
                log.warning(
                    "reset ignored: a member keeps pulling from another offset",
                    group=group,
                    topic=topic,
                    queue_id=queue_id,
                    reset_to=offset,
                    pulls_from=position,
                )
            return None
        self._informed[key, queue_id] = (connection, answers + 1)
        return offset

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return and forget the offset of a reset that nobody has followed yet, None if there is none (Java:
        queryThenEraseResetOffset). For a pop, whose place in the queue the broker keeps itself.
        """
        key = _key(topic, group)
        offset = self.resets.get(key, {}).get(queue_id)
        if offset is not None:
            self._drop_reset(key, queue_id)
        return offset

    def query_of(self, group: str, topic: str, queue_id: int, connection: object) -> int:
        """Return what `query` does, and note that a member on this connection learns of a reset
        from it.
        """
        if self.awaits_pull(group, topic, queue_id):
            self._informed[_key(topic, group), queue_id] = (connection, 1)
        return self.query(group, topic, queue_id)

    def _drop_reset(self, key: str, queue_id: int) -> None:
        self._informed.pop((key, queue_id), None)
        resets = self.resets.get(key)
        if resets is not None and resets.pop(queue_id, None) is not None:
            self.changed = True
            if not resets:
                del self.resets[key]

    def _drop_resets(self, key: str) -> None:
        for queue_id in list(self.resets.get(key, ())):
            self._drop_reset(key, queue_id)

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the stored offset, -1 if there is none."""
        return self.table.offset_table.get(_key(topic, group), {}).get(queue_id, -1)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return the stored offsets of a group on a topic, by queue id."""
        return dict(self.table.offset_table.get(_key(topic, group), {}))

    def marks_of(self, group: str) -> dict[str, dict[int, int]]:
        """Return all offsets of a group, by topic and queue id; not to be changed."""
        table = self.table.offset_table
        return {topic: table.get(_key(topic, group), {}) for topic in self.topics_of(group)}

    def groups(self) -> list[str]:
        """Return the groups that have offsets."""
        return list(self._topics)

    def topics_of(self, group: str) -> set[str]:
        return set(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        return set(self._groups.get(topic, ()))

    def remove_topic(self, topic: str, *, copies_only: bool = False) -> None:
        """Forget what groups have consumed of a topic; with `copies_only` not where a consumer has
        committed to this slave.
        """
        for group in self.groups_of(topic):
            self._remove(topic, group, copies_only)

    def remove_queue(self, topic: str, queue_id: int) -> None:
        """Forget what groups have consumed of one queue."""
        for group in self.groups_of(topic):
            key = _key(topic, group)
            offsets = self.table.offset_table.get(key)
            if offsets is None or queue_id not in offsets:
                continue
            if len(offsets) == 1:
                self._remove(topic, group, copies_only=False)
                continue
            del offsets[queue_id]
            self.count -= 1
            self._committed_here.pop((key, queue_id), None)
            self._drop_reset(key, queue_id)
            self.changed = True

    def remove_group(self, group: str, *, copies_only: bool = False) -> None:
        """Forget what a group has consumed; see `remove_topic`."""
        for topic in self.topics_of(group):
            self._remove(topic, group, copies_only)

    def _remove(self, topic: str, group: str, copies_only: bool) -> None:
        key = _key(topic, group)
        if self._committed_here:  # of a slave: a table of 200,000 queues takes 20 ms to go through
            places = [(key, queue_id) for queue_id in self.table.offset_table.get(key, ())]
            if copies_only and any(place in self._committed_here for place in places):
                return
            for place in places:
                self._committed_here.pop(place, None)
        self._drop_resets(key)
        self.count -= len(self.table.offset_table.pop(key, ()))
        self._forget(topic, group)
        self.changed = True

    def _forget(self, topic: str, group: str) -> None:
        self._topics[group].discard(topic)
        self._groups[topic].discard(group)
        if not self._topics[group]:
            del self._topics[group]
        if not self._groups[topic]:
            del self._groups[topic]

    def _note(self, topic: str, group: str) -> None:
        self._topics.setdefault(group, set()).add(topic)
        self._groups.setdefault(topic, set()).add(group)

    # -- what cannot be --

    def find_impossible(self, end_of: EndOf) -> list[Correction]:
        """Return the offsets that are negative, beyond their queue's end, or without a queue."""
        return [
            Correction(key, queue_id, offset, end)
            for key, offsets in self.table.offset_table.items()
            for queue_id, offset in offsets.items()
            if (end := end_of(_split(key)[0], queue_id)) is None or not 0 <= offset <= end
        ]

    def correct(self, found: list[Correction]) -> None:
        """Set offsets beyond their queue's end back to the end, so that no new message is skipped.

        Forget negative offsets and those without a queue; a group without an offset begins by its
        own policy.
        """
        for key, queue_id, offset, end in found:
            offsets = self.table.offset_table[key]
            if end is not None and offset > end:
                offsets[queue_id] = end
                continue
            del offsets[queue_id]
            self.count -= 1
            if not offsets:
                del self.table.offset_table[key]
                self._forget(*_split(key))
        self.changed = self.changed or bool(found)


def describe(found: list[Correction]) -> dict[str, object]:
    """Return the counts of wrong offsets by kind, and some examples, for the log."""
    return {
        "beyond_the_end": sum(one.end is not None and one.offset > one.end for one in found),
        "negative": sum(one.end is not None and one.offset < 0 for one in found),
        "of_no_queue": sum(one.end is None for one in found),
        "examples": [str(one) for one in found[:_EXAMPLES]],
    }


def _key(topic: str, group: str) -> str:
    return f"{topic}{_SEPARATOR}{group}"


def _split(key: str) -> tuple[str, str]:
    topic, _, group = key.partition(_SEPARATOR)
    return topic, group
