"""Note the messages that a read had to leave out when `failOnDataLoss` is false, so that they can
be counted and queried.

Gaps are lines of JSON in small files of the directory that the option `gapLog` names. All Spark
workers must be able to write to it. `spark.read.json(directory)` gives the gaps as a table. Each
range that is read has a file of its own. A task or batch that runs again replaces the file, because
retention may have deleted more in between, and no gap may count twice.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from cometmq.errors import IllegalArgumentError
from cometmq.model.queue import MessageQueue

# In order: the queue is shorter than its offsets said, its topic was deleted and created again,
# retention was faster, the broker skipped records, bytes are not a record.
BEYOND_THE_END = "beyond the end"
MADE_AGAIN = "topic made again"
RETENTION = "retention"
NOT_STORED = "not stored"
DAMAGE = "damage"


# A range of offsets belongs to a place: a message queue, or the commit log of a store.
Place = tuple[object, ...]
P = TypeVar("P", bound=Place)


class Gap(msgspec.Struct, frozen=True):
    """Offsets from `start` to below `end` that gave no message, `count` of them.

    A gap belongs to a message queue, whose broker may be unknown for a store; or to the commit log
    itself, in bytes: then topic and queue_id are None.
    """

    topic: str | None
    broker: str | None
    queue_id: int | None
    start: int
    end: int
    cause: str
    count: int = 0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "count", self.end - self.start)
        # Otherwise each of many decoded gaps would have texts of its own, half of its memory.
        for name in ("topic", "broker", "cause"):
            if (text := getattr(self, name)) is not None:
                msgspec.structs.force_setattr(self, name, sys.intern(text))

    @property
    def place(self) -> tuple[str | None, str | None, int | None]:
        return self.topic, self.broker, self.queue_id

    @property
    def queue(self) -> MessageQueue | None:
        """Return the queue, or None if it is not known."""
        if self.topic is None or self.broker is None or self.queue_id is None:
            return None
        return MessageQueue(self.topic, self.broker, self.queue_id)

    def __str__(self) -> str:
        if self.topic is None:
            return f"{self.count} bytes of the commit log from {self.start} on ({self.cause})"
        where = f"{self.topic}@{self.broker or '?'}:{self.queue_id}"
        return f"offsets {self.start} to {self.end - 1} of {where} ({self.cause})"


def noted_gaps(directory: Path) -> tuple[Gap, ...]:
    """Return all gaps of a gap log, ordered by place. Raise msgspec.DecodeError."""
    # Names that begin with a dot are still being written.
    paths = sorted(path for path in directory.glob("*.json") if not path.name.startswith("."))
    return decoded_gaps(path.read_bytes() for path in paths)


def decoded_gaps(files: Iterable[bytes]) -> tuple[Gap, ...]:
    """Return the gaps of the files of a gap log, ordered by place. Raise msgspec.DecodeError."""
    decoder = msgspec.json.Decoder(Gap)
    found = {decoder.decode(line) for content in files for line in content.splitlines()}
    return tuple(sorted(found, key=lambda gap: (*map(str, gap.place), gap.start, gap.end)))


class GapLog:
    """Takes the gaps of a read. With `directory` None, gaps are not allowed."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory

    @property
    def allowed(self) -> bool:
        return self._directory is not None

    def check(self) -> None:
        """Raise IllegalArgumentError unless gaps can be written here."""
        if self._directory is None:
            return
        try:
            Path(self._directory).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise IllegalArgumentError(
                f"the option gapLog is {self._directory!r}, where no directory can be made: {error}"
            ) from error
        if not os.access(self._directory, os.W_OK):
            raise IllegalArgumentError(
                f"the option gapLog is {self._directory!r}, which cannot be written to"
            )

    def write(self, gap: Gap) -> None:
        """Keep a gap of unchanging data, which every later read finds again."""
        self._write(_digest(msgspec.structs.astuple(gap)), [gap])

    def replace(self, place: Place, start: int, gaps: list[Gap]) -> None:
        """Keep these gaps of a queue or log, read from `start` on, in place of gaps kept earlier for `start`."""
        self._write(f"{_digest(place)}-{start}", gaps)

    def replace_planned(self, place: Place, gap: Gap) -> None:
        """Do as `replace`, for a gap that is known before anything is read."""
        self._write(f"{_digest((*place, 'planned'))}-{gap.start}", [gap])

    def forget(self, ranges: Mapping[P, tuple[int, int]]) -> None:
        """Forget the gaps of ranges that are to be read again, however they were divided before."""
        if self._directory is None:
            return
        by_name = {_digest(place): bounds for place, bounds in ranges.items()}
        for path in Path(self._directory).glob("*-*.json"):
            name, _, at = path.stem.partition("-")
            low, high = by_name.get(name, (0, 0))
            if at.isdecimal() and low <= int(at) < high:
                path.unlink(missing_ok=True)

    def _write(self, name: str, gaps: list[Gap]) -> None:
        assert self._directory is not None, "gaps are allowed"
        directory = Path(self._directory)
        path = directory / f"{name}.json"
        if not gaps:
            path.unlink(missing_ok=True)
            return
        # On a worker of another machine, this may be the first use of the directory.
        directory.mkdir(parents=True, exist_ok=True)
        # Readers pass over names that begin with a dot.
        temporary = path.with_name(f".{name}.{os.getpid()}")
        temporary.write_bytes(msgspec.json.Encoder().encode_lines(gaps))
        temporary.replace(path)


def _digest(name: tuple[object, ...]) -> str:
    return hashlib.sha256(msgspec.json.encode(name)).hexdigest()[:32]
