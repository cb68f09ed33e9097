"""Count what a store holds: messages and bytes by topic and queue, sizes, tags, span of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from cometmq.model.properties import TAGS
from cometmq.protocol.messages.properties import find_property
from cometmq.store.log.scan import ScannedRecord
from cometmq.store.offline.store import Damage, OfflineStore, Progress


@dataclass
class QueueStats:
    """The figures of one queue; times in ms, sizes in bytes of whole records."""

    queue_id: int
    message_count: int = 0
    byte_count: int = 0
    largest_bytes: int = 0
    first_offset: int = 0
    last_offset: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0

    def add(self, record: ScannedRecord) -> None:
        if not self.message_count:
            self.first_offset = record.queue_offset
            self.first_timestamp = record.store_timestamp
        self.message_count += 1
        self.byte_count += record.size
        self.largest_bytes = max(self.largest_bytes, record.size)
        self.last_offset = record.queue_offset
        self.last_timestamp = record.store_timestamp


@dataclass
class TopicStats:
    """The figures of one topic; `tags` counts messages by their tags, "" for those without."""

    topic: str
    queues: dict[int, QueueStats] = field(default_factory=dict)
    tags: Counter[str] = field(default_factory=Counter)

    def add(self, record: ScannedRecord) -> None:
        queue = self.queues.get(record.queue_id)
        if queue is None:
            queue = self.queues[record.queue_id] = QueueStats(record.queue_id)
        queue.add(record)
        self.tags[find_property(record.properties.decode("utf-8", "replace"), TAGS) or ""] += 1

    @property
    def message_count(self) -> int:
        return sum(queue.message_count for queue in self.queues.values())

    @property
    def byte_count(self) -> int:
        return sum(queue.byte_count for queue in self.queues.values())

    @property
    def largest_bytes(self) -> int:
        return max(queue.largest_bytes for queue in self.queues.values())

    @property
    def first_timestamp(self) -> int:
        return min(queue.first_timestamp for queue in self.queues.values())

    @property
    def last_timestamp(self) -> int:
        return max(queue.last_timestamp for queue in self.queues.values())


@dataclass
class StoreStats:
    """The figures of a store. `allocated_bytes` is the size of the log's files, `damaged_bytes` how
    many of these bytes belong to no record.
    """

    topics: dict[str, TopicStats] = field(default_factory=dict)
    log_file_count: int = 0
    allocated_bytes: int = 0
    damaged_bytes: int = 0

    def by_size(self) -> Iterator[TopicStats]:
        """Iterate over the topics, largest first."""
        return iter(sorted(self.topics.values(), key=lambda topic: -topic.byte_count))

    @property
    def message_count(self) -> int:
        return sum(topic.message_count for topic in self.topics.values())

    @property
    def byte_count(self) -> int:
        return sum(topic.byte_count for topic in self.topics.values())


def collect(store: OfflineStore, progress: Progress | None = None) -> StoreStats:
    """Collect the figures of a store; this reads the whole log."""
    stats = StoreStats(log_file_count=len(store.log_files), allocated_bytes=store.log_bytes)
    for found in store.records(progress):
        if isinstance(found, Damage):
            stats.damaged_bytes += found.end_position - found.position
            continue
        topic = stats.topics.get(found.topic)
        if topic is None:
            topic = stats.topics[found.topic] = TopicStats(found.topic)
        topic.add(found)
    return stats
