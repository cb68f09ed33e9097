"""How far each group has consumed each queue (Java: ConsumerOffsetManager)."""

from __future__ import annotations

from cometmq.protocol.bodies import ConsumerOffsetSerializeWrapper

_SEPARATOR = "@"


class ConsumerOffsetManager:
    """Offsets by topic, group and queue. For the loop's thread only.

    An offset is that of the next message to consume. A smaller offset than the stored one is taken,
    as Java takes it: a client may have been reset.

    A reset is stored at once and kept in `resets` too until the next pull of the queue was told of
    it: what its consumer commits before it knows counts for nothing.
    """

    def __init__(self, table: ConsumerOffsetSerializeWrapper | None = None) -> None:
        self.table = table or ConsumerOffsetSerializeWrapper()
        self.changed = False
        self.resets: dict[str, dict[int, int]] = {}
        # Both ways through the table, whose keys are texts of both.
        self._topics: dict[str, set[str]] = {}
        self._groups: dict[str, set[str]] = {}
        for key in self.table.offset_table:
            self._note(*_split(key))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = _key(topic, group)
        if self.resets and queue_id in self.resets.get(key, ()):
            return
        self._queues_of(topic, group)[queue_id] = offset
        self.changed = True

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Have the group go on at `offset` (Java: assignResetOffset)."""
        key = _key(topic, group)
        self._queues_of(topic, group)[queue_id] = offset
        self.resets.setdefault(key, {})[queue_id] = offset
        self.changed = True

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset of a reset that no pull has been told of; told now (Java:
        queryThenEraseResetOffset)."""
        key = _key(topic, group)
        pending = self.resets.get(key)
        if pending is None:
            return None
        offset = pending.pop(queue_id, None)
        if not pending:
            del self.resets[key]
        return offset

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The stored offset, -1 if there is none."""
        return self.table.offset_table.get(_key(topic, group), {}).get(queue_id, -1)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """The stored offsets of a group by queue id of a topic."""
        return dict(self.table.offset_table.get(_key(topic, group), {}))

    def topics_of(self, group: str) -> set[str]:
        return set(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        return set(self._groups.get(topic, ()))

    def remove_topic(self, topic: str) -> None:
        for group in self.groups_of(topic):
            self._remove(topic, group)

    def remove_group(self, group: str) -> None:
        for topic in self.topics_of(group):
            self._remove(topic, group)

    def _remove(self, topic: str, group: str) -> None:
        key = _key(topic, group)
        self.resets.pop(key, None)
        self.table.offset_table.pop(key, None)
        self._topics[group].discard(topic)
        self._groups[topic].discard(group)
        if not self._topics[group]:
            del self._topics[group]
        if not self._groups[topic]:
            del self._groups[topic]
        self.changed = True

    def _queues_of(self, topic: str, group: str) -> dict[int, int]:
        key = _key(topic, group)
        queues = self.table.offset_table.get(key)
        if queues is None:
            queues = self.table.offset_table[key] = {}
            self._note(topic, group)
        return queues

    def _note(self, topic: str, group: str) -> None:
        self._topics.setdefault(group, set()).add(topic)
        self._groups.setdefault(topic, set()).add(group)


def _key(topic: str, group: str) -> str:
    return f"{topic}{_SEPARATOR}{group}"


def _split(key: str) -> tuple[str, str]:
    topic, _, group = key.partition(_SEPARATOR)
    return topic, group
