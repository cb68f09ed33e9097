"""The entries that the consume queues of a store must hold, found by reading its log from end to
end.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from cometmq.store.log.scan import LogScan
from cometmq.store.queues.dispatch import tags_code_of
from cometmq.store.store import MessageStore

# Queue offset, commit-log offset, size, tags code.
ExpectedUnit = tuple[int, int, int, int]


def replayed(
    store: MessageStore, deleted: Mapping[str, int] | None = None
) -> dict[tuple[str, int], list[ExpectedUnit]]:
    """The units by queue; offsets of each queue are dense.

    Of a topic in `deleted` only the records at that commit-log offset and behind count.
    """
    log = store.commit_log
    expected: dict[tuple[str, int], list[ExpectedUnit]] = {}
    for scanned in LogScan(log.files, log.min_offset, check_crc=True):
        if scanned.offset < (deleted or {}).get(scanned.topic, 0):
            continue
        units = expected.setdefault((scanned.topic, scanned.queue_id), [])
        assert not units or scanned.queue_offset == units[-1][0] + 1, "a gap or a repetition"
        tags_code = tags_code_of(scanned, ())
        units.append((scanned.queue_offset, scanned.offset, scanned.size, tags_code))
    return expected


def compare(store: MessageStore, topic: str, queue_id: int, expected: list[ExpectedUnit]) -> None:
    """Fail unless the queue holds exactly the units expected."""
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    queue = store.queue(topic, queue_id)
    found = [(n, *(queue.unit(n) or ())) for n in range(low, high)]
    differing = [pair for pair in itertools.zip_longest(found, expected) if pair[0] != pair[1]]
    assert not differing, (topic, queue_id, differing[:3], len(differing))
