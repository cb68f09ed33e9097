"""Findings about the place of a store before a broker starts there."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from cometmq.model.reports.finding import Finding, Severity, worst
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk, DiskUsage
from cometmq.store.offline.checkup import check_place, existing

MIB = 2**20


class SizedDisk(Disk):
    """A disk of 1,000 MiB, of which so many are free."""

    def __init__(self, free_mib: int) -> None:
        super().__init__()
        self.free_mib = free_mib

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(1000 * MIB, self.free_mib * MIB)


def config(path: Path, **settings: int | bool | Path) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=path,
        mapped_file_size_commit_log=MIB,
        **settings,  # type: ignore[arg-type]  # of several types
    )


def findings(
    settings: StoreConfig, free_mib: int = 900, step_s: float = 0.001
) -> dict[str, Finding]:
    now = iter(range(10_000))
    found = check_place(settings, monotonic=lambda: next(now) * step_s, disk=SizedDisk(free_mib))
    return {finding.check: finding for finding in found}


def test_a_place_that_is_not_there_yet_is_judged_and_left_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "a" / "store"
    found = findings(config(place))
    assert worst(found.values()) is Severity.OK
    assert found.keys() == {
        "store: access",
        "store: space",
        "store: preallocation",
        "store: sync",
    }
    assert existing(place) == tmp_path.resolve()
    assert list(tmp_path.iterdir()) == []


def test_what_may_not_be_looked_at_counts_as_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit keeps the broker's directory from other users; tests that root runs cannot."""
    closed = tmp_path.resolve() / "closed"
    closed.mkdir()
    real = {name: getattr(os, name) for name in ("stat", "lstat")}

    def refusing(name: str) -> Callable[..., os.stat_result]:
        def look(path: Any, *args: Any, **options: Any) -> os.stat_result:
            if closed in Path(path).parents:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return cast(os.stat_result, real[name](path, *args, **options))

        return look

    for name in real:
        monkeypatch.setattr(os, name, refusing(name))
    assert existing(closed / "store" / "commitlog") == closed


@pytest.mark.parametrize(
    ("free_mib", "severity", "key"),
    [
        (300, Severity.OK, "diskMaxUsedSpaceRatio=75"),
        (240, Severity.WARNING, "diskMaxUsedSpaceRatio=75"),
        (140, Severity.ERROR, "diskSpaceCleanForciblyRatio=85"),
        (90, Severity.ERROR, "diskSpaceWarningLevelRatio=90"),
        (1, Severity.ERROR, "the next one"),
    ],
)
def test_free_space_is_held_against_the_ratios(
    tmp_path: Path, free_mib: int, severity: Severity, key: str
) -> None:
    found = findings(config(tmp_path), free_mib)["store: space"]
    assert found.severity is severity
    assert key in found.limit


def test_nothing_is_deleted_early_where_that_is_forbidden(tmp_path: Path) -> None:
    found = findings(config(tmp_path, clean_file_forcibly_enable=False), 140)["store: space"]
    assert found.severity is Severity.WARNING


def test_a_directory_of_somebody_else_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    found = findings(config(file))
    assert found.keys() == {"store: access"}
    assert found["store: access"].severity is Severity.ERROR
    assert "storePathRootDir" in found["store: access"].remedy


def test_a_store_that_cannot_be_used_here_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "consumequeue").mkdir()
    (tmp_path / "consumequeue" / "CURRENT").write_text("")
    found = findings(config(tmp_path))["store: layout"]
    assert found.severity is Severity.ERROR
    assert "RocksDB" in found.value


def test_a_file_system_without_fallocate_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    assert findings(config(tmp_path))["store: preallocation"].severity is Severity.ERROR


def test_a_disk_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    found = findings(config(tmp_path))["store: disk"]
    assert found.severity is Severity.ERROR
    assert "Input/output error" in found.value


def test_a_slow_sync_is_a_warning(tmp_path: Path) -> None:
    assert findings(config(tmp_path), step_s=0.2)["store: sync"].severity is Severity.WARNING


def test_a_commit_log_elsewhere_is_judged_too(tmp_path: Path) -> None:
    settings = config(tmp_path / "store", store_path_commit_log=tmp_path / "log")
    found = check_place(settings, monotonic=time.monotonic, disk=SizedDisk(900))
    assert [f.value.split(":")[0] for f in found if f.check == "store: space"] == [
        str(tmp_path / "store"),
        str(tmp_path / "log"),
    ]
