"""Keep a node's files in memory, and do to them what real disks do: lose, tear, fail, fill, rot.

A file has two states. The page cache is what running code sees, through mappings, too. The platter
is what certainly survives a loss of power: the pages that a sync has written, and the names that
the sync of a directory has. `crash_process` keeps the page cache, `lose_power` does not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cometmq.runtime.clock import Clock
from cometmq.runtime.files import Files
from cometmq.runtime.randomness import Randomness
from cometmq.store.files.disk import Disk

# What `fail` can make fail; "any" stands for all that write.
OPERATIONS = (
    "any",
    "allocate",
    "append",
    "cut",
    "link",
    "lock",
    "make_directory",
    "map",
    "overwrite",
    "read",
    "read_into",
    "remove",
    "rename",
    "reserve",
    "sync",
    "sync_directory",
    "write",
    "write_at",
)


class VirtualDisk(Disk):
    """The disk of one simulated node; pass it to `Broker(disk=...)`.

    State files lie on it, too: `files` is for `NameServer(files=...)`, and a broker takes it from
    its disk. Times of change come from `clock`. `record(event)` is called for each fault that
    strikes. Nothing here waits or starts a thread; a seed gives the same losses each time.
    """

    files: Files

    def __init__(
        self,
        randomness: Randomness,
        clock: Clock | None = None,
        *,
        capacity_bytes: int = 1 << 40,
        record: Callable[[str], None] = lambda event: None,
    ) -> None:
        raise NotImplementedError

    # What happens to the node

    def crash_process(self) -> None:
        """End the process that uses the disk: its locks go, the page cache stays."""
        raise NotImplementedError

    def lose_power(self) -> None:
        """End the machine: of what no sync has written any part may be lost, torn at sectors."""
        raise NotImplementedError

    # Faults

    def fail(
        self,
        operation: str,
        error: str = "EIO",
        *,
        after: int = 0,
        times: int | None = 1,
        path: str = "*",
    ) -> None:
        """Fail an operation with the error of that name (`EIO`, `ENOSPC`, `EMFILE`, ...).

        The first `after` calls pass, the following `times` fail (None: all, until `mend`). `path`
        is a pattern for the whole path or the last part of it. Raises ValueError for an unknown
        name. A failed sync loses pages as Linux does: it takes them for written.
        """
        raise NotImplementedError

    def mend(self) -> None:
        """End what `fail`, `fill` and `slow` have begun."""
        raise NotImplementedError

    def fill(self, left_bytes: int = 0) -> None:
        """Leave only so much room."""
        raise NotImplementedError

    def free(self) -> None:
        """Give back the room that `fill` took."""
        raise NotImplementedError

    def slow(self, seconds: float) -> None:
        """Let each operation that reaches the disk take so much longer; 0 ends it."""
        raise NotImplementedError

    def take_delay_s(self) -> float:
        """Return by how long the operations since the last call were slowed in all.

        A worker asks after each piece of work, and reports the work done only when that has passed.
        """
        raise NotImplementedError

    def flip_bit(self, path: Path, offset: int, bit: int | None = None) -> None:
        """Flip one bit of the byte at `offset`, in cache and on the platter; any if none is named."""
        raise NotImplementedError

    def wipe(self) -> None:
        """Remove everything, durably."""
        raise NotImplementedError

    # To and from real directories

    @classmethod
    def load(
        cls, directory: Path, randomness: Randomness, clock: Clock | None = None
    ) -> VirtualDisk:
        """Make a disk with a copy of a real directory, under the same path; all of it is durable."""
        raise NotImplementedError

    def save(self, directory: Path, *, root: Path | None = None) -> None:
        """Write what running code sees below `root` (default: everything) into a real directory."""
        raise NotImplementedError
