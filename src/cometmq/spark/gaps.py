"""What a read had to leave out, where `failOnDataLoss` is false: counted, and kept to be queried.

Each gap is a small JSON file in the directory that the option `gapLog` names, one that all of
Spark's workers can write to. `spark.read.json(directory)` gives them as a table; a gap that several
attempts of a task found stands there once.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from cometmq.errors import IllegalArgumentError

# In order: the queue's log is shorter than its offsets said, retention was faster, records that
# the broker passed over, bytes that are no record.
BEYOND_THE_END = "beyond the end"
RETENTION = "retention"
NOT_STORED = "not stored"
DAMAGE = "damage"


class Gap(NamedTuple):
    """Offsets from `start` to below `end` that gave no message.

    Of a message queue, or of the commit log itself, in bytes: then topic and queue_id are None.
    """

    topic: str | None
    broker: str | None
    queue_id: int | None
    start: int
    end: int
    cause: str

    def __str__(self) -> str:
        count = self.end - self.start
        if self.topic is None:
            return f"{count} bytes of the commit log from {self.start} on ({self.cause})"
        where = f"{self.topic}@{self.broker or '?'}:{self.queue_id}"
        return f"offsets {self.start} to {self.end - 1} of {where} ({self.cause})"


class GapLog:
    """Takes the gaps of a read; `directory` None means that there may be none."""

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
        """Keep a gap. The file's name comes from what it says, so a second attempt changes nothing."""
        assert self._directory is not None, "gaps are allowed"
        entry = gap._asdict() | {"count": gap.end - gap.start}
        data = msgspec.json.encode(entry)
        name = hashlib.sha256(data).hexdigest()[:32]
        directory = Path(self._directory)
        # A worker on another machine may be the first there.
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{name}.json"
        # Readers pass over names that begin with a dot.
        temporary = path.with_name(f".{name}.{os.getpid()}")
        temporary.write_bytes(data + b"\n")
        temporary.replace(path)
