"""Compare the sums of all readers with the log, and show them in one table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.spark.table_proof.engines import Found, Reader, Snapshot, Sums
from tests.spark.table_proof.log import Log, Queue, QueueSums

_EQUAL: Final = "="


class Comparison:
    """Compares the snapshots of one moment, as each reader reads them."""

    def __init__(self, title: str, log: Log, snapshots: Sequence[Snapshot]) -> None:
        self._title = title
        self._log = log
        self._snapshots = snapshots
        self._cells: dict[str, list[str]] = {}
        # By the first reader: where each queue of a snapshot ends.
        self._wanted: list[Sums] = []
        self.faults: list[str] = []

    def read(self, archive: Path, readers: Sequence[Reader]) -> None:
        for reader in readers:
            say(f"{self._title}: {reader.name} reads {len(self._snapshots)} snapshots")
            try:
                found = reader.read(archive, self._snapshots)
            except RuntimeError as error:
                self._cells[reader.name] = ["failed"] * (len(self._snapshots) + 1)
                self.faults.append(f"{self._title}: {reader.name} failed: {error}")
                continue
            if not self._wanted:
                self._wanted = [_beginnings(self._log, sums) for sums in found.sums]
                self._check_ends()
            self._compare(reader.name, found)

    def show(self) -> None:
        """Print a line for each snapshot, and one for the bodies of the newest."""
        heads = ["commit", "messages", "sum of offsets", "sum of checksums", *self._cells]
        rows = [heads]
        for at, snapshot in enumerate(self._snapshots):
            total = _total(self._wanted[at]) if self._wanted else QueueSums(0, 0, 0, 0, 0)
            figures = (snapshot.commit, total.rows, total.offsets, total.crcs)
            rows.append([*(f"{one:,}" for one in figures), *self._column(at)])
        bodies = self._log.bodies
        sums = (bodies.rows, bodies.bytes, bodies.bodies)
        rows.append(["bodies", *(f"{one:,}" for one in sums), *self._column(len(self._snapshots))])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(f"{one:>{w}}" for one, w in zip(row, widths, strict=True)) for row in rows
        ]
        sys.stdout.write("\n".join([self._title, *lines, ""]) + "\n")
        sys.stdout.flush()

    # Inside

    def _column(self, at: int) -> list[str]:
        return [cells[at] for cells in self._cells.values()]

    def _compare(self, name: str, found: Found) -> None:
        cells = []
        for snapshot, wanted, sums in zip(self._snapshots, self._wanted, found.sums, strict=True):
            if sums == wanted:
                cells.append(_EQUAL)
                continue
            total = _total(sums)
            cells.append(f"{total.rows:,}/{total.offsets:,}/{total.crcs:,}")
            differ = [f"{queue}: {one}" for queue, one in sums.items() if wanted.get(queue) != one]
            differ += [f"{queue}: missing" for queue in wanted.keys() - sums.keys()]
            self.faults.append(
                f"{self._title}: {name} differs at commit {snapshot.commit}: {differ[:3]}"
            )
        if found.bodies == self._log.bodies:
            cells.append(_EQUAL)
        else:
            cells.append(f"{found.bodies.rows:,}/{found.bodies.bytes:,}/{found.bodies.bodies:,}")
            self.faults.append(
                f"{self._title}: {name} has other bodies or keys: {found.bodies}, and the log {self._log.bodies}"
            )
        self._cells[name] = cells

    def _check_ends(self) -> None:
        """Check that each snapshot has all messages of the one before, and the newest the whole log."""
        before: dict[Queue, int] = {}
        for snapshot, sums in zip(self._snapshots, self._wanted, strict=True):
            ends = {queue: one.rows for queue, one in sums.items()}
            shrunk = [queue for queue, end in before.items() if ends.get(queue, 0) < end]
            if shrunk:
                self.faults.append(
                    f"{self._title}: commit {snapshot.commit} has less of {shrunk[:3]} than the one before"
                )
            before = ends
        rows = _total(self._wanted[-1]).rows if self._wanted else 0
        if rows != self._log.rows:
            self.faults.append(
                f"{self._title}: the newest snapshot has {rows:,} messages, and the log {self._log.rows:,}"
            )


def _beginnings(log: Log, sums: Sums) -> Sums:
    """Return the beginnings of the log's queues that end where those of a snapshot end."""
    return {
        queue: log.queues[queue].beginning(min(one.high + 1, log.queues[queue].bodies.rows))
        for queue, one in sums.items()
        if queue in log.queues
    }


def _total(sums: Sums) -> QueueSums:
    found = list(sums.values())
    return QueueSums(
        sum(one.rows for one in found), 0, 0,
        sum(one.offsets for one in found), sum(one.crcs for one in found),
    )  # fmt: skip


def say(text: str) -> None:
    """Write a line of progress."""
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n")
    sys.stderr.flush()
