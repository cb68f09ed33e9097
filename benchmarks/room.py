"""Look whether a disk has room for what a benchmark stores, before it begins."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.frames import BenchmarkError

_GIB = 1 << 30
STORED_BYTES_PER_SECOND = 60_000_000
"""More than all brokers of this machine's two cores ever stored together."""
CLEANED_FROM = 0.85
"""So full a file system has brokers delete what they store (diskSpaceCleanForciblyRatio); from 0.9 on
they refuse all sends."""


def check_room(directory: Path, needed_bytes: int) -> None:
    """Raise BenchmarkError unless brokers can store so many bytes there and still take sends."""
    usage = shutil.disk_usage(directory)
    if usage.free < needed_bytes:
        raise BenchmarkError(
            f"{directory} has {usage.free / _GIB:.0f} GiB free, the stores of this run may need "
            f"{needed_bytes / _GIB:.0f} GiB: free some, pass --directory, or ask for fewer rounds"
        )
    # As `df` and brokers count it: without what is kept for root.
    total = usage.used + usage.free
    full = (usage.used + needed_bytes) / total
    if full >= CLEANED_FROM:
        raise BenchmarkError(
            f"{directory} would be {full:.0%} full with the {needed_bytes / _GIB:.0f} GiB that this run "
            f"may need; from {CLEANED_FROM:.0%} on brokers delete messages, and from 90% on they "
            "refuse them: free some, pass --directory, or ask for fewer rounds"
        )
