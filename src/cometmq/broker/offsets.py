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

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = _key(topic, group)
        if self.resets and queue_id in self.resets.get(key, ()):
            return
        self.table.offset_table.setdefault(key, {})[queue_id] = offset
        self.changed = True

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Have the group go on at `offset` (Java: assignResetOffset)."""
        key = _key(topic, group)
        self.table.offset_table.setdefault(key, {})[queue_id] = offset
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
        return {topic for topic, name in map(_split, self.table.offset_table) if name == group}

    def groups_of(self, topic: str) -> set[str]:
        return {group for name, group in map(_split, self.table.offset_table) if name == topic}

    def remove_topic(self, topic: str) -> None:
        self._remove([key for key in self.table.offset_table if _split(key)[0] == topic])

    def remove_group(self, group: str) -> None:
        self._remove([key for key in self.table.offset_table if _split(key)[1] == group])

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            self.resets.pop(key, None)
            del self.table.offset_table[key]
            self.changed = True


def _key(topic: str, group: str) -> str:
    return f"{topic}{_SEPARATOR}{group}"


def _split(key: str) -> tuple[str, str]:
    topic, _, group = key.partition(_SEPARATOR)
    return topic, group
