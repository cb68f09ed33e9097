"""Keep `queues.json` beside the log: facts that no other file of the store has.

{"deleted": {TOPIC: P},
 "queues": {TOPIC: {QUEUE_ID: [MIN, FIRST, NEXT, LAST]}},
 "index": {FILE: END}}

deleted  the topic was deleted when the log ended at commit-log offset P. A rebuild leaves out its
         records below P: else they would come back, at queue offsets that the topic's new messages
         have got meanwhile
queues   how far each queue was at a start or stop: its first and its next queue offset, and the
         commit-log offsets of its first and its last message. A queue only grows at one end and
         only shrinks with the log at the other. So a queue that is shorter than noted was removed,
         cut or replaced by hand
index    commit-log offset of the last message that an index file has an entry for
replica  true if the log, or a part of it, is a copy of a master's. Then a queue whose first message
         comes again was deleted by the master; a master notes its deletions above
ownEnd   true if this store has been a master's since, so that its log may have an end that is no
         copy; a slave removes it once its log was found to continue its master's

Java has no counterpart. A store without the file, such as Java leaves, is used as Java would use
it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from cometmq.errors import StoreError
from cometmq.logs.loggers import get_logger
from cometmq.store.files.disk import Disk
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, ConsumeQueue
from cometmq.store.queues.queue_table import QueueTable

log = get_logger(__name__)

QueueKey = tuple[str, int]
_QUEUE_FIELDS: Final = 4


class KnownQueue(NamedTuple):
    """A queue's noted state: queue offsets of the first and the next message, and commit-log
    offsets of the first and the last.
    """

    min_offset: int
    first_physical: int
    next_offset: int
    last_physical: int


class QueueLedger:
    """Holds the file's contents. For the store's thread."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._saving = threading.Lock()
        self.deleted: dict[str, int] = {}
        self.queues: dict[QueueKey, KnownQueue] = {}
        self.index: dict[str, int] = {}
        # The log is a copy of a master's. `has_own_end`: a copy to which this store has since added.
        self.is_replica = False
        self.has_own_end = False

    # -- the file --

    def load(self) -> None:
        """Read the file; a file with invalid contents counts as none."""
        self.deleted, self.queues, self.index = {}, {}, {}
        self.is_replica = self.has_own_end = False
        if self._disk.size(self.path) is None:
            return
        try:
            found = json.loads(self._disk.read(self.path))
            deleted = _offsets(found["deleted"])
            index = _offsets(found["index"])
            is_replica = bool(found.get("replica"))
            has_own_end = bool(found.get("ownEnd"))
            queues = {
                (topic, int(queue_id)): _known(values)
                for topic, ids in found["queues"].items()
                for queue_id, values in ids.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning(
                "the record of deleted topics and of queues is lost",
                path=str(self.path),
                reason=repr(error),
            )
            return
        self.deleted, self.queues, self.index = deleted, queues, index
        self.is_replica, self.has_own_end = is_replica, has_own_end

    def save(self) -> None:
        """Replace the file as a whole, durably. Raises StoreError; the file is then as before."""
        by_topic: dict[str, dict[str, KnownQueue]] = {}
        for (topic, queue_id), known in self.queues.items():
            by_topic.setdefault(topic, {})[str(queue_id)] = known
        contents: dict[str, object] = {
            "deleted": self.deleted, "queues": by_topic, "index": self.index,
        }  # fmt: skip
        if self.is_replica:
            contents["replica"] = True
        if self.has_own_end:
            contents["ownEnd"] = True
        text = json.dumps(contents)
        temporary = self.path.with_name(self.path.name + ".tmp")
        # On a slave the loop's thread notes queues, and another thread the deletions of its master.
        with self._saving:
            self._disk.write(temporary, text.encode())
            self._disk.rename(temporary, self.path)
            self._disk.sync_directory(self.path.parent)

    # -- deleted topics --

    def delete(self, topics: Iterable[str], log_end: int) -> None:
        """Note that the records of `topics` below `log_end` belong to deleted topics.

        Raises StoreError; then nothing is noted.
        """
        self._delete(dict.fromkeys(topics, log_end))

    def note_deletions(self, deleted: Mapping[str, int]) -> None:
        """Note deletions that the master noted for the log that this store copies, as `delete`
        does.
        """
        known = self.deleted
        news = {topic: at for topic, at in deleted.items() if at > known.get(topic, 0)}
        if news:
            self._delete(news)

    def _delete(self, deleted: Mapping[str, int]) -> None:
        before = self.deleted
        self.deleted = {**before, **deleted}
        try:
            self.save()
        except StoreError:
            self.deleted = before
            raise

    def follow_log(self, min_offset: int, end: int) -> bool:
        """Forget deletions whose records have left the log; cut those noted behind its end.

        Returns whether any was noted behind the end. After a power loss the log may end before the
        offset of a deletion. Records written there next are new messages of the topic.
        """
        is_behind = any(offset > end for offset in self.deleted.values())
        self.deleted = {
            topic: min(offset, end) for topic, offset in self.deleted.items() if offset > min_offset
        }
        return is_behind

    def left_over(self, queues: QueueTable, log_end: int) -> list[QueueKey]:
        """Return the queues of deleted topics that are still there, because a crash came after the
        deletion was noted and before the queues were removed.
        """
        found = []
        for queue in queues:
            deleted_at = self.deleted.get(queue.topic, 0)
            if deleted_at:
                queue.recover(log_end)
                ends = (queue.unit(queue.first_offset), queue.last_message())
                if any(
                    unit is not None
                    and unit.size != PLACEHOLDER_SIZE
                    and unit.physical_offset < deleted_at
                    for unit in ends
                ):
                    found.append((queue.topic, queue.queue_id))
        return found

    # -- queues and index --

    def begin_replica(self) -> None:
        """Note that a master's log is copied from now on. Raises StoreError; then it is not noted."""
        self.is_replica = True
        try:
            self.save()
        except StoreError:
            self.is_replica = False
            raise

    def note_own_end(self, *, there: bool) -> None:
        """Note whether this store adds to the log that it copied. Raises StoreError; then it is not
        noted.
        """
        self.has_own_end = there
        try:
            self.save()
        except StoreError:
            self.has_own_end = not there
            raise

    def forget(self, topic: str, queue_id: int) -> None:
        """Forget a queue that is about to be removed. If this raises StoreError, the queue stays
        known.
        """
        if (topic, queue_id) not in self.queues:
            return
        before = self.queues
        self.queues = {key: known for key, known in before.items() if key != (topic, queue_id)}
        try:
            self.save()
        except StoreError:
            self.queues = before
            raise

    def take(self, queues: QueueTable, index: Mapping[str, int]) -> None:
        """Note how far queues and index files are; all of it must be on disk already."""
        self.queues = {}
        for queue in queues:
            known = _state(queue)
            if known is not None:
                self.queues[queue.topic, queue.queue_id] = known
            if queue.is_idle:
                queue.release()
        self.index = dict(index)

    def fallen_short(self, queues: QueueTable, log_min_offset: int, log_end: int) -> list[QueueKey]:
        """Return the queues that are shorter than noted, although the log still holds the messages
        that they lack.
        """
        return [
            key
            for key, known in self.queues.items()
            if max(log_min_offset, self.deleted.get(key[0], 0)) <= known.last_physical < log_end
            and not _holds(queues.find(*key), known, log_min_offset)
        ]


def _state(queue: ConsumeQueue) -> KnownQueue | None:
    first, last = queue.unit(queue.min_offset), queue.last_message()
    if first is None or last is None:
        return None
    return KnownQueue(
        queue.min_offset, first.physical_offset, queue.next_offset, last.physical_offset
    )


def _holds(queue: ConsumeQueue | None, known: KnownQueue, log_min_offset: int) -> bool:
    if queue is None:
        return False
    last = queue.unit(known.next_offset - 1)
    if last is None or last.physical_offset != known.last_physical:
        return False
    if known.first_physical < log_min_offset:
        return True
    first = queue.unit(known.min_offset)
    return first is not None and first.physical_offset == known.first_physical


def _offsets(found: Any) -> dict[str, int]:
    return {str(name): int(offset) for name, offset in found.items()}


def _known(values: Any) -> KnownQueue:
    if len(values) != _QUEUE_FIELDS:
        raise ValueError(f"{values!r} is no state of a queue")
    return KnownQueue(*map(int, values))
