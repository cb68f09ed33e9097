"""How a machine's limits are read and judged; none of this machine's are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cometmq.model.reports.finding import Severity, worst
from cometmq.runtime.host.machine import Machine, check_machine, read_machine, size_text

GIB = 2**30
GOOD = Machine(
    open_files=655_350,
    mappings=655_360,
    overcommit=1,
    swappiness=1,
    swap_bytes=GIB,
    memory_bytes=8 * GIB,
    container_memory_bytes=None,
)


def machine_files(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_machine_made_for_brokers_has_no_faults() -> None:
    assert worst(check_machine(GOOD)) is Severity.OK


@pytest.mark.parametrize(
    ("changes", "check", "severity"),
    [
        ({"open_files": 4096}, "open files", Severity.WARNING),
        ({"open_files": 256}, "open files", Severity.ERROR),
        ({"mappings": 10_000}, "vm.max_map_count", Severity.WARNING),
        ({"overcommit": 2}, "vm.overcommit_memory", Severity.WARNING),
        ({"swappiness": 60}, "vm.swappiness", Severity.WARNING),
        ({"memory_bytes": 400 * 2**20}, "memory", Severity.WARNING),
        ({"container_memory_bytes": 64 * 2**20}, "memory", Severity.ERROR),
    ],
)
def test_each_limit_that_is_too_low_is_found(
    changes: dict[str, Any], check: str, severity: Severity
) -> None:
    found = check_machine(dataclasses.replace(GOOD, **changes))
    bad = [finding for finding in found if finding.severity]
    assert [(finding.check, finding.severity) for finding in bad] == [(check, severity)]
    assert bad[0].limit
    assert bad[0].remedy


def test_swappiness_does_not_matter_without_swap() -> None:
    without = dataclasses.replace(GOOD, swappiness=60, swap_bytes=0)
    assert worst(check_machine(without)) is Severity.OK


def test_what_a_machine_does_not_tell_is_left_out(tmp_path: Path) -> None:
    machine = read_machine(tmp_path)
    assert machine.mappings is machine.memory_bytes is machine.container_memory_bytes is None
    assert [f.check for f in check_machine(machine)] == ["open files", "memory"]


def test_the_kernels_files_are_read(tmp_path: Path) -> None:
    root = machine_files(
        tmp_path,
        proc__sys__vm__max_map_count="65530\n",
        proc__sys__vm__overcommit_memory="2\n",
        proc__sys__vm__swappiness="10\n",
        proc__meminfo="MemTotal:       2048 kB\nSwapTotal:      0 kB\nHugePages_Total: 3\n",
    )
    machine = read_machine(root)
    assert (machine.mappings, machine.overcommit, machine.swappiness) == (65530, 2, 10)
    assert (machine.memory_bytes, machine.swap_bytes) == (2048 * 1024, 0)


def test_the_lowest_limit_of_the_control_groups_counts(tmp_path: Path) -> None:
    root = machine_files(
        tmp_path,
        proc__self__cgroup="0::/pods/broker\n",
        proc__meminfo=f"MemTotal: {GIB // 1024} kB\n",
    )
    group = root / "sys/fs/cgroup/pods"
    (group / "broker").mkdir(parents=True)
    (group / "memory.max").write_text(f"{GIB // 2}\n")
    (group / "broker" / "memory.max").write_text("max\n")
    assert read_machine(root).usable_memory_bytes == GIB // 2
    (group / "broker" / "memory.max").write_text(f"{GIB // 4}\n")
    assert read_machine(root).usable_memory_bytes == GIB // 4


@pytest.mark.parametrize(("limit", "read"), [("9223372036854771712", None), ("1073741824", GIB)])
def test_the_first_version_of_control_groups_is_read(
    tmp_path: Path, limit: str, read: int | None
) -> None:
    root = machine_files(tmp_path, proc__self__cgroup="5:cpu:/x\n4:memory:/x\n0::/\n")
    group = root / "sys/fs/cgroup/memory/x"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(limit)
    assert read_machine(root).container_memory_bytes == read


def test_sizes_are_written_as_people_do() -> None:
    assert [size_text(n) for n in (12, 1536, 24 * GIB)] == ["12 B", "1.5 KiB", "24 GiB"]
