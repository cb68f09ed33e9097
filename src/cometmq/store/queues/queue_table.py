"""Keep all consume queues of a store (Java: ConsumeQueueStore). Files: TOPIC/QUEUE_ID/FILE."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

from cometmq.errors import MessageIllegalError, StoreCorruptError
from cometmq.logs.loggers import get_logger
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.queues.consume_queue import ConsumeQueue, PutTotals
from cometmq.store.queues.consume_queue_ext import BitMapOf, ConsumeQueueExt, ExtendedConsumeQueue

log = get_logger(__name__)

# The longest name of a directory, and also the longest topic that Java's store takes.
MAX_TOPIC_BYTES = 255
# Bounds of how many queues have their files mapped at once. Linux lets a process have 65,530
# mappings.
MIN_MAPPED = 64
MAX_MAPPED = 16_384


@dataclasses.dataclass(frozen=True)
class Extensions:
    """Settings of the consume queues' extensions. A queue that has extension files reads them
    always.

    With `enabled` queues also write them; `bit_map_of` then calculates the bit maps of messages.
    """

    directory: Path
    file_size: int
    enabled: bool
    bit_map_of: BitMapOf | None = None


class QueueTable:
    """The queues by topic and queue id. A queue's files appear with its first message.

    A mapped file costs a descriptor. So at most a quarter of the open files that the process may
    have go to queues that keep their files mapped. Before one more queue is mapped, the one that
    was mapped longest ago gives its mappings up.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        file_size: int,
        *,
        writable: bool = True,
        extensions: Extensions | None = None,
    ) -> None:
        self._disk = disk
        self._extensions = extensions
        self._directory = directory
        self._file_size = file_size
        self._writable = writable
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._counts: Counter[str] = Counter()  # of queues by topic
        # Called with topic and id of a queue that got its first message; not for those that `load` finds.
        self.on_made: list[Callable[[str, int], None]] = []
        # By topic, until the topic has no queues any more.
        self.put_totals: dict[str, PutTotals] = {}
        self._mapped: dict[ConsumeQueue, None] = {}
        self._max_mapped = min(max(disk.open_files_limit() // 4, MIN_MAPPED), MAX_MAPPED)
        # Recovery maps queues in several threads.
        self._mapping = threading.Lock()

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Iterate over a snapshot, so that another thread can do so while queues are added."""
        return iter(list(self._queues.values()))

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, and create it first if there is none.

        Raises MessageIllegalError for a topic that cannot be a directory's name.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if not is_directory_name(topic):
                raise MessageIllegalError(
                    f"topic {topic[:80]!r} of {len(topic.encode())} bytes: a topic has 1 to "
                    f"{MAX_TOPIC_BYTES} bytes and no '/'"
                )
            if queue_id < 0:
                raise MessageIllegalError(f"queue id {queue_id} is negative")
            if self._writable and self._has_files(topic, queue_id):
                # The disk did not let go of a queue that was removed. Its units would count as those
                # of this queue at the next start.
                self.remove_files(topic, queue_id, whole_topic=False)
            queue = self._new(topic, queue_id)
            self._queues[topic, queue_id] = queue
            for listener in self.on_made:
                listener(topic, queue_id)
        return queue

    def flush(self, least_pages: int) -> None:
        """Sync the queues with `least_pages` pages or more to write; with 0 all, in threads."""
        if least_pages:
            for queue in self:
                queue.flush(least_pages)
        else:
            self._disk.side_by_side([partial(queue.flush, 0) for queue in self])

    def _was_mapped(self, queue: ConsumeQueue) -> None:
        with self._mapping:
            self._mapped.pop(queue, None)
            self._mapped[queue] = None
            if len(self._mapped) <= self._max_mapped:
                return
            oldest = next(iter(self._mapped))
            del self._mapped[oldest]
        oldest.release()

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._new_queue(topic, queue_id)
        queue.files.on_map = partial(self._was_mapped, queue)
        self._counts[topic] += 1
        return queue

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        files = self._files(topic, queue_id)
        totals = self.put_totals.get(topic)
        if totals is None:
            totals = self.put_totals[topic] = PutTotals()
        extensions = self._extensions
        if extensions is None:
            return ConsumeQueue(topic, queue_id, files, totals)
        directory = extensions.directory / topic / str(queue_id)
        if not extensions.enabled and not self._disk.names(directory):
            return ConsumeQueue(topic, queue_id, files, totals)
        ext_files = MappedFileQueue(
            self._disk,
            directory,
            extensions.file_size,
            size_key="mappedFileSizeConsumeQueueExt",
            writable=self._writable,
            sparse=True,
        )
        return ExtendedConsumeQueue(
            topic,
            queue_id,
            files,
            totals,
            ConsumeQueueExt(ext_files),
            writes=extensions.enabled,
            bit_map_of=extensions.bit_map_of,
        )

    def load(self, *, repair: bool) -> bool:
        """Find the queues on disk; return whether all of them could be used.

        With `repair` remove a queue with damaged files, which the log can rebuild; without, raise
        StoreCorruptError.
        """
        intact = True
        for topic in self._disk.names(self._directory):
            if not self._disk.is_directory(self._directory / topic):
                continue
            for name in self._disk.names(self._directory / topic):
                if not name.isdecimal():
                    continue
                queue = self._new(topic, int(name))
                try:
                    queue.load(repair=repair)
                except StoreCorruptError as error:
                    if not repair:
                        raise
                    log.warning("a consume queue will be rebuilt", reason=str(error))
                    queue.remove_files()
                    intact = False
                self._queues[topic, int(name)] = queue
        # A store that is opened again has found the queues before.
        self._counts = Counter(topic for topic, _ in self._queues)
        return intact

    def truncate(self, log_end: int) -> None:
        """Drop the units of records at `log_end` and behind from all queues, and sync them."""
        self._disk.side_by_side(
            [partial(queue.truncate, log_end, clear=True) for queue in self._queues.values()]
        )

    def forget_topics(self, topics: Collection[str]) -> None:
        """Let go of the queues of topics; their files stay."""
        for key in [key for key in self._queues if key[0] in topics]:
            queue = self._queues.pop(key)
            queue.release()
            self._mapped.pop(queue, None)
        for topic in topics:
            self._counts.pop(topic, None)
            self.put_totals.pop(topic, None)

    def _has_files(self, topic: str, queue_id: int) -> bool:
        place = Path(topic, str(queue_id))
        if self._disk.names(self._directory / place):
            return True
        extensions = self._extensions
        return extensions is not None and bool(self._disk.names(extensions.directory / place))

    def forget_queue(self, topic: str, queue_id: int) -> None:
        """Let go of one queue, which must exist; its files stay."""
        queue = self._queues.pop((topic, queue_id))
        queue.release()
        self._mapped.pop(queue, None)
        self._counts[topic] -= 1
        if not self._counts[topic]:
            del self._counts[topic]
            self.put_totals.pop(topic, None)

    def remove_files(self, topic: str, queue_id: int, *, whole_topic: bool) -> None:
        """Delete the files of a queue that was let go, or of its topic, which then has no queue.

        Blocks; for any thread.
        """
        if whole_topic:
            self._remove_directory(topic)
            return
        self._disk.remove_tree(self._directory / topic / str(queue_id))
        if self._extensions is not None:
            self._disk.remove_tree(self._extensions.directory / topic / str(queue_id))

    def has_queues(self, topic: str) -> bool:
        return topic in self._counts

    def remove_directories(self, topics: Iterable[str]) -> None:
        """Delete the files of topics whose queues were let go. Blocks; for any thread."""
        for topic in topics:
            if is_directory_name(topic):
                self._remove_directory(topic)

    def _remove_directory(self, topic: str) -> None:
        self._disk.remove_tree(self._directory / topic)
        if self._extensions is not None:
            self._disk.remove_tree(self._extensions.directory / topic)

    def remove_queue(self, topic: str, queue_id: int) -> None:
        """Delete one queue, which must exist, and with the topic's last queue its directory."""
        self.forget_queue(topic, queue_id)
        self.remove_files(topic, queue_id, whole_topic=not self.has_queues(topic))

    def remove_all(self) -> None:
        topics = {queue.topic for queue in self}
        self.forget_topics(topics)
        self.remove_directories(topics)

    def release(self) -> None:
        for queue in self:
            queue.release()

    def _files(self, topic: str, queue_id: int) -> MappedFileQueue:
        return MappedFileQueue(
            self._disk,
            self._directory / topic / str(queue_id),
            self._file_size,
            size_key="mappedFileSizeConsumeQueue",
            writable=self._writable,
            sparse=True,
        )


def is_directory_name(topic: str) -> bool:
    """Return whether a topic can have a directory; one with '/' or '..' would lead elsewhere."""
    is_short = 0 < len(topic.encode()) <= MAX_TOPIC_BYTES
    return is_short and "/" not in topic and "\0" not in topic and topic not in (".", "..")
