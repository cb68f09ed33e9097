"""Judge what clients saw of lost nodes against what the files of the stores hold.

`History` is what the clients of `lost_nodes_member` wrote down. `stored_in` reads commit-log files by the
layout of their records. Nothing here asks the broker's own code, which would believe itself.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.crash.lost_nodes_member import TOPIC, number_of

# A stored record up to its body: size, magic, crc, queue, flag, queue offset, place, sysflag, born.
_HEAD = struct.Struct(">iIiiiqqiq")
_MAGIC = 0xDAA320A7
_BLANK = 0xCBD43194
# The hosts (IPv4), store time, times of consumption and place of the prepared transaction.
_MIDDLE_BYTES = 8 + 8 + 8 + 4 + 8

# Group, queue id, queue offset.
Place = tuple[str, int, int]


@dataclass
class History:
    """The clients' observations, read from the file so far."""

    # All acknowledgements, in their order: number, sender, status, place.
    acknowledged: list[tuple[int, int, str, Place]] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    # By consumer: place and number in their order.
    received: dict[str, list[tuple[Place, int]]] = field(
        default_factory=lambda: {"push": [], "pull": []}
    )

    # How much of the file is read.
    position: int = 0

    @classmethod
    def read(cls, path: Path) -> Self:
        history = cls()
        history.go_on(path)
        return history

    @classmethod
    def of(cls, lines: Iterable[str]) -> Self:
        history = cls()
        history.take(lines)
        return history

    @classmethod
    def from_now(cls, path: Path) -> Self:
        """A history that takes only what is written from now on."""
        return cls(position=path.stat().st_size)

    def go_on(self, path: Path) -> None:
        """Read what has been written since. The last line may be on its way."""
        with path.open("rb") as file:
            file.seek(self.position)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self.position += len(data)
        # A history that begins in the middle of a line has nothing of that line.
        self.take(line for line in data.decode().splitlines() if line[:2] in ("A ", "F ", "R "))

    def take(self, lines: Iterable[str]) -> None:
        for line in lines:
            kind, *words = line.split(" ")
            if kind == "A":
                number, sender, status, group, queue, offset = words
                place = (group, int(queue), int(offset))
                self.acknowledged.append((int(number), int(sender), status, place))
            elif kind == "F":
                self.failed.add(int(words[0]))
            elif kind == "R":
                consumer, group, queue, offset, number = words
                place = (group, int(queue), int(offset))
                self.received[consumer].append((place, int(number)))

    def sure(self) -> dict[Place, int]:
        """The messages that a SYNC_MASTER acknowledged as being on its slave: number by place."""
        found: dict[Place, int] = {}
        for number, _, status, place in self.acknowledged:
            if status == "SEND_OK":
                assert place not in found, (
                    f"offset {place} is given twice: {found[place]}, {number}"
                )
                found[place] = number
        return found


def stored_in(store: Path) -> tuple[dict[tuple[int, int], int], int]:
    """The numbers of the topic's messages by queue and offset, and where the log ends.

    AssertionError unless the offsets of each queue are dense and every record lies where it says.
    """
    found: dict[tuple[int, int], int] = {}
    following: dict[int, int] = defaultdict(int)
    end = 0
    for file in sorted((store / "commitlog").iterdir()):
        data, at = file.read_bytes(), 0
        base = int(file.name)
        if base != end and data[:4] == bytes(4):
            break  # the next file, made ahead
        assert base == end, f"the log has a gap before {file.name}"
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == _BLANK and size > 0:
                at = len(data)
                break
            if magic != _MAGIC or size <= 0:
                break
            queue, queue_offset, place, topic, body = _record(data, at)
            assert place == base + at, f"the record at {base + at} says that it is at {place}"
            if topic == TOPIC:
                assert queue_offset == following[queue], "a gap or a repetition"
                following[queue] += 1
                found[queue, queue_offset] = number_of(body)
            at += size
        end = base + at
        if at < len(data):
            break
    return found, end


def raw_log(store: Path, end: int) -> bytes:
    """The bytes of the log up to `end`; its first file is the one at 0."""
    files = sorted((store / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[:end]


def _record(data: bytes, at: int) -> tuple[int, int, int, str, bytes]:
    _, _, _, queue, _, queue_offset, place, system_flag, _ = _HEAD.unpack_from(data, at)
    assert system_flag & 0x30 == 0, "a host with an IPv6 address"
    at += _HEAD.size + _MIDDLE_BYTES
    (body_size,) = struct.unpack_from(">i", data, at)
    body = data[at + 4 : at + 4 + body_size]
    at += 4 + body_size
    return queue, queue_offset, place, data[at + 1 : at + 1 + data[at]].decode(), body


def check_promoted(history: History, group: str, store: Path) -> int:
    """Every acknowledgement of the group's SYNC_MASTER is in the store; return how many there are."""
    found, _ = stored_in(store)
    sure = {place: number for place, number in history.sure().items() if place[0] == group}
    missing = [(place, number) for place, number in sure.items() if found.get(place[1:]) != number]
    assert not missing, f"{len(missing)} acknowledged messages are not on the slave: {missing[:5]}"
    return len(sure)


def check_order(history: History) -> None:
    """Offsets that a sender got of a queue never go back."""
    last: dict[tuple[int, str, int], int] = {}
    for _, sender, status, (group, queue, offset) in history.acknowledged:
        if status == "SEND_OK":
            key = (sender, group, queue)
            assert last.get(key, -1) < offset, f"offsets of {key} go back to {offset}"
            last[key] = offset


def missed(history: History, consumer: str) -> dict[Place, int]:
    """The sure messages that a consumer has not got."""
    got = {number for _, number in history.received[consumer]}
    return {place: number for place, number in history.sure().items() if number not in got}


def check_received(history: History, consumer: str) -> int:
    """Each sure message came at least once; return how many are excused: the consumer had read another
    message at the place, one that was never acknowledged as safe, and that went with the old master.
    """
    seen: dict[Place, set[int]] = defaultdict(set)
    for place, number in history.received[consumer]:
        seen[place].add(number)
    left = missed(history, consumer)
    lost = {place: number for place, number in left.items() if not seen[place]}
    assert not lost, f"{consumer} never got {len(lost)} messages: {list(lost.items())[:5]}"
    return len(left)


def check_queue_order(history: History, consumer: str) -> None:
    """First deliveries come in the order of the queue."""
    first: set[tuple[Place, int]] = set()
    last: dict[tuple[str, int], int] = {}
    sure = history.sure()
    for place, number in history.received[consumer]:
        if (place, number) in first:
            continue
        first.add((place, number))
        if sure.get(place) != number:
            continue
        group, queue, offset = place
        before = last.get((group, queue), -1)
        assert before < offset, f"{consumer} got {place} behind offset {before}"
        last[group, queue] = offset
