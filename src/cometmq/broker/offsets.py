"""How far each group has consumed each queue (Java: ConsumerOffsetManager)."""

from __future__ import annotations

from cometmq.protocol.bodies import ConsumerOffsetSerializeWrapper

_SEPARATOR = "@"


class ConsumerOffsetManager:
    """Offsets by topic, group and queue. For the loop's thread only.

    An offset is that of the next message to consume. A smaller offset than the stored one is taken,
    as Java takes it: a client may have been reset.
    """

    def __init__(self, table: ConsumerOffsetSerializeWrapper | None = None) -> None:
        self.table = table or ConsumerOffsetSerializeWrapper()
        self.changed = False

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.table.offset_table.setdefault(_key(topic, group), {})[queue_id] = offset
        self.changed = True

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
            del self.table.offset_table[key]
            self.changed = True


def _key(topic: str, group: str) -> str:
    return f"{topic}{_SEPARATOR}{group}"


def _split(key: str) -> tuple[str, str]:
    topic, _, group = key.partition(_SEPARATOR)
    return topic, group
