"""Find the file system on which a path lies, as Linux lists it in `/proc/self/mountinfo`.

A line of that file, divided by blanks:

    36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue

The mount point is the fifth field. Behind the single hyphen stand the type and the source. Blanks
and backslashes in names are written as octal escapes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.model.reports.finding import Finding, ok, warning

_TABLE: Final = Path("/proc/self/mountinfo")
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_OF_A_CONTAINER: Final = frozenset({"overlay", "aufs"})
_OVER_THE_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "virtiofs"}
)


class Mount(NamedTuple):
    """A mounted file system: where, its type, its source and its options."""

    point: str
    kind: str
    source: str
    options: frozenset[str]


def read_mount_table(path: Path = _TABLE) -> str:
    """Return the text of the table of mounts, an empty one if the system has none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def mount_of(path: Path, table: str) -> Mount | None:
    """Return the mount that holds an absolute path without links, None if no line names it."""
    best: Mount | None = None
    for line in table.splitlines():
        mount = _parse(line)
        if mount is None or not path.is_relative_to(mount.point):
            continue
        # Of two mounts at the same point the later one hides the earlier.
        if best is None or len(mount.point) >= len(best.point):
            best = mount
    return best


def check_store_mount(path: Path, mount: Mount | None) -> Finding:
    """Judge the file system that holds a store directory."""
    check = "store: file system"
    if mount is None:
        return ok(check, f"{path} is on a file system of unknown type")
    value = f"{path} is on {mount.kind}, mounted at {mount.point}"
    limit = "a local disk (ext4, xfs)"
    if mount.kind in _IN_MEMORY:
        return warning(
            check,
            f"{value}: it is memory",
            "messages are lost when the machine restarts: put storePathRootDir on a disk",
            limit,
        )
    if mount.kind in _OF_A_CONTAINER:
        return warning(
            check,
            f"{value}: it is the container's own layer",
            "messages are lost with the container: mount a volume at storePathRootDir",
            limit,
        )
    if mount.kind in _OVER_THE_NETWORK or mount.kind.startswith("fuse"):
        return warning(
            check,
            f"{value}: files may lie on another machine",
            "mapped files and syncs over a network stall the broker when the network does: put "
            "storePathRootDir on a local disk or a block device",
            limit,
        )
    # `noexec` is no fault here: nothing in a store is executed.
    return ok(check, value)


def check_code_mount(path: Path, mount: Mount | None) -> Finding | None:
    """Judge the file system that holds compiled modules; None if nothing keeps them from loading."""
    if mount is None or "noexec" not in mount.options:
        return None
    return warning(
        "compiled modules",
        f"{path} is on a file system that is mounted noexec at {mount.point}",
        "compiled modules cannot be loaded from there: install CometMQ on another file system, or "
        "mount this one without noexec",
    )


def _parse(line: str) -> Mount | None:
    head, hyphen, tail = line.partition(" - ")
    fields, rest = head.split(" "), tail.split(" ")
    if not hyphen or len(fields) < 6 or len(rest) < 2:
        return None
    options = fields[5].split(",")
    return Mount(_plain(fields[4]), rest[0], _plain(rest[1]), frozenset(options))


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
