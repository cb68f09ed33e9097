"""Define the changes of the messages that groups have in flight, and encode them for the log.

Each change is a line of an internal topic before it counts. So the last round of snapshots and the
changes since then give the table again, after a kill and on a slave that becomes the master. A
record of that topic has some changes, and the queue offset at which the last complete round begins:
the reading starts there.

The encoding is MessagePack, an array for each change. A broker refuses records of a version that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cometmq.errors import StoreError

VERSION: Final = 1

# A group, a topic (its own name, so that of a retry topic there), a queue id.
Key = tuple[str, str, int]


class Change(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Base of all changes: of which group and queue."""

    key: Key


class Popped(Change, tag=1, frozen=True):
    """Messages were handed out. `runs` has first offsets, each followed by the number of offsets in a row."""

    popped_ms: int
    until_ms: int
    next_offset: int
    runs: list[int]


class Acknowledged(Change, tag=2, frozen=True):
    """Messages that were popped at that time are done."""

    popped_ms: int
    offsets: list[int]


class Hidden(Change, tag=3, frozen=True):
    """A message that was popped at `popped_ms` counts as popped at `since_ms`, and is hidden until `until_ms`."""

    offset: int
    popped_ms: int
    since_ms: int
    until_ms: int


class Moved(Change, tag=4, frozen=True):
    """Copies of messages follow in the log, in this topic and queue, from that queue offset on. A message
    whose copy is there is done.
    """

    offsets: list[int]
    topic: str
    queue_id: int
    queue_offset: int


class Gone(Change, tag=5, frozen=True):
    """Messages are done without an acknowledgement: the log has them no more."""

    offsets: list[int]


class Postponed(Change, tag=6, frozen=True):
    """Messages could not be moved; they stay hidden."""

    offsets: list[int]
    until_ms: int


class Reset(Change, tag=7, frozen=True):
    """The group goes on at an offset. Messages in flight from there on are forgotten."""

    next_offset: int


class Dropped(Change, tag=8, frozen=True):
    """The queue or the group is deleted."""


class OrderPopped(Change, tag=9, frozen=True):
    """The batch in flight was replaced; see `Ordered.pop`."""

    popped_ms: int
    until_ms: int
    next_offset: int
    offsets: list[int]
    counts: list[int]
    attempt_id: str


class OrderAcknowledged(Change, tag=10, frozen=True):
    offsets: list[int]


class OrderHidden(Change, tag=11, frozen=True):
    offset: int
    until_ms: int


class Snapshot(Change, tag=12, frozen=True):
    """This is all that is in flight of a queue from offset `begin` to before `end`, None for the last part.

    The first offset stands for itself, each of the others for its distance from the one before; times are
    counted from those of the first.
    """

    next_offset: int
    begin: int
    end: int | None
    offsets: list[int]
    popped: list[int]
    until: list[int]


class OrderSnapshot(Change, tag=13, frozen=True):
    """These are the messages of a queue that are in flight in order."""

    popped_ms: int
    next_offset: int
    offsets: list[int]
    until: list[int]
    counts: list[int]
    done: list[int]
    later: dict[int, int]
    attempt_id: str
    # 0 in records of older versions: the same as `popped_ms`.
    first_popped_ms: int = 0


AnyChange = (
    Popped
    | Acknowledged
    | Hidden
    | Moved
    | Gone
    | Postponed
    | Reset
    | Dropped
    | OrderPopped
    | OrderAcknowledged
    | OrderHidden
    | Snapshot
    | OrderSnapshot
)


class Line(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """The body of a record. `start` is where the last complete round begins."""

    version: int
    start: int
    changes: list[AnyChange]


class _Head(msgspec.Struct, array_like=True, gc=False, frozen=True):
    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Line).decode
_decode_head = msgspec.msgpack.Decoder(_Head).decode


def encode_line(start: int, changes: list[AnyChange]) -> bytes:
    return _encode(Line(VERSION, start, changes))


def decode_line(body: bytes | memoryview) -> Line:
    """Return what a record says. Raises StoreError if this version of CometMQ cannot know it."""
    try:
        version = _decode_head(body).version
        if version != VERSION:
            raise StoreError(
                f"a record of what groups have popped has version {version}, this broker reads version "
                f"{VERSION}; start the version of CometMQ that wrote it, or a newer one"
            )
        return _decode(body)
    except msgspec.DecodeError as error:
        raise StoreError(f"a record of what groups have popped is damaged: {error}") from error


def runs_of(offsets: Sequence[int]) -> list[int]:
    """Return ascending offsets as first offsets, each followed by how many stand in a row."""
    first, last = offsets[0], offsets[-1]
    if last - first == len(offsets) - 1:
        return [first, len(offsets)]
    runs: list[int] = []
    begin = before = first
    for offset in offsets[1:]:
        if offset != before + 1:
            runs += (begin, before + 1 - begin)
            begin = offset
        before = offset
    runs += (begin, before + 1 - begin)
    return runs


def offsets_of(runs: Sequence[int]) -> Sequence[int]:
    """Return the offsets that `runs_of` was given."""
    if len(runs) == 2:
        return range(runs[0], runs[0] + runs[1])
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return [offset for first, count in pairs for offset in range(first, first + count)]
