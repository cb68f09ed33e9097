"""Which file system holds a path, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.model.reports.finding import Severity
from cometmq.runtime.host.mounts import (
    check_code_mount,
    check_store_mount,
    mount_of,
    read_mount_table,
)

TABLE = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:40 / /data rw shared:1 - xfs /dev/vdb rw
41 27 0:41 / /data/tmp rw,nosuid,noexec master:2 propagate_from:3 - tmpfs tmpfs rw
42 27 0:42 / /mnt/my\040disk rw - nfs4 host:/export rw
43 27 0:43 / /over rw - ext4 /dev/vdc rw
44 43 0:44 / /over rw - overlay overlay rw
45 27 0:45 / /sshfs rw - fuse.sshfs host: rw
a line of no form
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/x", "ext4"),
        ("/data/store", "xfs"),
        ("/database", "ext4"),
        ("/data/tmp/x", "tmpfs"),
        ("/mnt/my disk/store", "nfs4"),
        ("/over/store", "overlay"),
    ],
)
def test_the_nearest_mount_point_above_a_path_holds_it(path: str, kind: str) -> None:
    mount = mount_of(Path(path), TABLE)
    assert mount is not None
    assert mount.kind == kind


@pytest.mark.parametrize(
    ("path", "severity", "said"),
    [
        ("/data/store", Severity.OK, "xfs"),
        ("/data/tmp", Severity.WARNING, "memory"),
        ("/mnt/my disk", Severity.WARNING, "another machine"),
        ("/sshfs/x", Severity.WARNING, "another machine"),
        ("/over", Severity.WARNING, "container"),
    ],
)
def test_a_store_belongs_on_a_local_disk(path: str, severity: Severity, said: str) -> None:
    finding = check_store_mount(Path(path), mount_of(Path(path), TABLE))
    assert finding.severity is severity
    assert said in finding.value


def test_without_a_table_nothing_is_said_against_a_place(tmp_path: Path) -> None:
    assert read_mount_table(tmp_path / "none") == ""
    assert mount_of(tmp_path, "") is None
    assert check_store_mount(tmp_path, None).severity is Severity.OK
    assert check_code_mount(tmp_path, None) is None


def test_code_on_a_file_system_without_exec_cannot_be_loaded() -> None:
    found = check_code_mount(Path("/data/tmp/p"), mount_of(Path("/data/tmp/p"), TABLE))
    assert found is not None
    assert found.severity is Severity.WARNING
    assert check_code_mount(Path("/data/p"), mount_of(Path("/data/p"), TABLE)) is None
