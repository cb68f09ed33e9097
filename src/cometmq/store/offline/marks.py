"""Find, in a store's files, the first message that waits for a group's mark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cometmq.store.offline.store import OfflineStore
from cometmq.store.queues.consume_queue import UNIT_SIZE
from cometmq.store.reading.files import QueueFiles, StoreFiles
from cometmq.store.retention.marks import Search, Unmarked
from cometmq.store.retention.retention import Hold


def offline_hold(store: OfflineStore, offsets: Mapping[str, Mapping[int, int]]) -> Hold | None:
    """Return the part of the log that waits for the groups of `cleanFileWaitsForGroups`, None if no
    part does.

    `offsets` are the committed ones: by `topic@group` and queue id.
    """
    config = store.config
    if not config.waited_groups:
        return None

    def marks_of(group: str) -> Mapping[str, Mapping[int, int]]:
        found = {}
        for key, marks in offsets.items():
            topic, _, name = key.partition("@")
            if name == group:
                found[topic] = marks
        return found

    search = Search(config.waited_groups, marks_of, store.disk)
    files = StoreFiles(str(config.store_path_root_dir), [str(config.commit_log_path)])
    marked = {topic for group in config.waited_groups for topic in marks_of(group)}
    for queue in files.queues():
        if queue.topic in marked:
            low, end = queue.bounds(store.min_offset)
            search.look(
                _unmarked(queue, group, offset)
                for group, offset in search.waits_in(queue.topic, queue.queue_id, low, end)
            )
    return search.hold


def _unmarked(queue: QueueFiles, group: str, offset: int) -> Unmarked:
    place = offset * UNIT_SIZE
    path = max(path for path in map(Path, queue.paths) if int(path.name) <= place)
    return Unmarked(group, queue.topic, queue.queue_id, offset, path, place - int(path.name))
