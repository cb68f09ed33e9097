"""Show the disks of this process as 80 % full: `PYTHONPATH=tests/full_disk` does so to tests and to the
processes that they start.

A broker deletes old files above 75 % (`diskMaxUsedSpaceRatio`). A test that fails so depends on how full
the disk of its machine happens to be. COMETMQ_DISK_USED is another percentage.
"""

from __future__ import annotations

import os
from typing import Final

_USED: Final = float(os.environ.get("COMETMQ_DISK_USED", "80")) / 100
_real = os.statvfs


def _statvfs(path: int | str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> os.statvfs_result:
    """Return what the file system says, with as many free blocks as such a disk would have left."""
    found = list(_real(path))
    # f_blocks, f_bfree and f_bavail.
    found[3] = found[4] = int(found[2] * (1 - _USED))
    return os.statvfs_result(found)


os.statvfs = _statvfs
