"""Reads which offsets an answer to a pop names, as Java's client does."""

from __future__ import annotations


def offsets_of(info: str) -> dict[tuple[str, int], list[int]]:
    """Return the offsets by mark and queue id, of the field `msgOffsetInfo`."""
    entries = (entry.split(" ") for entry in info.split(";") if entry)
    return {
        (mark, int(queue_id)): [int(each) for each in offsets.split(",")]
        for mark, queue_id, offsets in entries
    }
