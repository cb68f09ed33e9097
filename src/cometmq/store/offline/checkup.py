"""Judge the place of a store: access, free space, and whether its disk does what the store needs.

Works for a directory that is not there yet. Nothing of a store is changed: the probe of the disk is
a file without a name, which is gone when it is closed, whatever ends the process.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.errors import StoreError, StoreUnusableError
from cometmq.model.reports.finding import Finding, error, ok, warning
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.layout import check_usable
from cometmq.store.retention.retention import Policy

_PROBE_BYTES: Final = 16 * 1024 * 1024
_SYNCS: Final = 5
_PAGE: Final = bytes(4096)
# A disk of its own syncs in less than a millisecond, one across a network in a few.
_SLOW_SYNC_S: Final = 0.05
# The file in use and the next one, which is made ahead of need.
_FILES_AHEAD: Final = 2


def check_place(
    config: StoreConfig, *, monotonic: Callable[[], float], disk: Disk | None = None
) -> list[Finding]:
    """Judge the directories of a store. Blocks for as long as the disk does."""
    disk = disk or Disk()
    findings = []
    places = [config.store_path_root_dir]
    if config.store_path_commit_log is not None:
        places.append(config.store_path_commit_log)
    for place in places:
        if fault := disk.access_fault(place, write=True):
            what, _, remedy = fault.partition(": ")
            findings.append(error("store: access", what, remedy))
            continue
        findings.append(ok("store: access", f"{place} can be written"))
        try:
            if place == config.store_path_root_dir:
                check_usable(config, disk)
            findings.append(_space(place, config, disk))
            findings += _probe(existing(place), config, monotonic)
        except StoreUnusableError as fault:
            what, _, remedy = str(fault).partition(": ")
            findings.append(error("store: layout", what, remedy or "move it away"))
        except (OSError, StoreError) as failure:
            findings.append(
                error("store: disk", str(failure), "repair the disk, or name another directory")
            )
    return findings


def existing(path: Path) -> Path:
    """Return `path`, or the nearest directory above it that exists; absolute and without links.

    A path in a directory that this user may not look into counts as missing.
    """
    path = path.resolve()
    while not os.path.lexists(path):  # `Path.exists` raises where it may not look
        path = path.parent
    return path


def _space(place: Path, config: StoreConfig, disk: Disk) -> Finding:
    check, policy, usage = "store: space", Policy.of(config), disk.usage(place)
    ratio = 1 - usage.free_bytes / usage.total_bytes if usage.total_bytes else 1.0
    value = f"{place}: {usage.free_bytes / 2**30:.1f} GiB free, {ratio:.0%} used"
    limit = f"below diskMaxUsedSpaceRatio={policy.max_used_ratio * 100:.0f}"
    needed = _FILES_AHEAD * config.mapped_file_size_commit_log
    if usage.free_bytes < needed:
        return error(
            check,
            value,
            f"the log preallocates files of {config.mapped_file_size_commit_log / 2**20:.0f} MiB: "
            "free or add space, or lower mappedFileSizeCommitLog for a new store",
            f"{needed / 2**30:.1f} GiB for the file in use and the next one",
        )
    if ratio >= policy.warning_ratio:
        return error(
            check,
            value,
            "the broker refuses messages: free or add space",
            f"below diskSpaceWarningLevelRatio={policy.warning_ratio * 100:.0f}",
        )
    if ratio >= policy.forcibly_ratio and policy.may_force:
        return error(
            check,
            value,
            "the broker deletes the oldest messages before their time: free or add space, or lower "
            "fileReservedTime",
            f"below diskSpaceCleanForciblyRatio={policy.forcibly_ratio * 100:.0f}",
        )
    if ratio >= policy.max_used_ratio:
        return warning(
            check,
            value,
            "expired files are deleted at any hour, not at deleteWhen only: free or add space, or "
            "lower fileReservedTime",
            limit,
        )
    return ok(check, value, limit)


def _probe(directory: Path, config: StoreConfig, monotonic: Callable[[], float]) -> list[Finding]:
    """Preallocate a file, and write and sync pages of it."""
    size = min(_PROBE_BYTES, config.mapped_file_size_commit_log)
    with tempfile.TemporaryFile(dir=directory, prefix=".cometmq-doctor-") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as failure:
            if failure.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            return [
                error(
                    "store: preallocation",
                    f"the file system of {directory} cannot preallocate: {failure.strerror}",
                    "a full disk would kill the broker: put the store on ext4, xfs or another file "
                    "system that has fallocate",
                )
            ]
        took = []
        for page in range(_SYNCS):
            os.pwrite(file.fileno(), _PAGE, page * len(_PAGE) % size)
            began = monotonic()
            os.fdatasync(file.fileno())
            took.append(monotonic() - began)
    typical = sorted(took)[_SYNCS // 2]
    check, value = "store: sync", f"fdatasync of a page takes {typical * 1000:.1f} ms"
    found = [ok("store: preallocation", f"{directory} has fallocate")]
    if typical < _SLOW_SYNC_S:
        return [*found, ok(check, value)]
    return [
        *found,
        warning(
            check,
            value,
            "with flushDiskType=SYNC_FLUSH every send waits for one: use a faster disk, or one that "
            "others use less",
            f"below {_SLOW_SYNC_S * 1000:.0f} ms",
        ),
    ]
