"""Read the limits that a machine sets to a broker, and judge them.

Reading and judging are apart: `read_machine` takes the root of the file system, and
`check_machine` only looks at what it is given, so neither needs a machine of a certain kind to be
tested.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.model.reports.finding import Finding, error, ok, warning
from cometmq.runtime.host.process_limits import ENOUGH_FILES

_MIB: Final = 1024 * 1024
_UNLIMITED: Final = 2**62

# A connection and a queue in use take a descriptor each.
FEWEST_FILES: Final = 1_024
# Linux' default. Each file of the log, of a queue and of the index is a mapping.
ENOUGH_MAPPINGS: Final = 65_530
# A broker took 326 MiB with its pages of the log after 200,000 sends (benchmarks/README.md), of
# which 46 MiB were its own. The kernel takes the pages back, but not the rest.
ENOUGH_MEMORY_BYTES: Final = 512 * _MIB
LEAST_MEMORY_BYTES: Final = 128 * _MIB
MOST_SWAPPINESS: Final = 10


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The limits of this process by the machine and the container; None stands for an unknown one."""

    open_files: int
    mappings: int | None
    overcommit: int | None
    swappiness: int | None
    swap_bytes: int | None
    memory_bytes: int | None
    container_memory_bytes: int | None

    @property
    def usable_memory_bytes(self) -> int | None:
        """The memory that this process may use: the machine's, or less in a container."""
        known = [b for b in (self.memory_bytes, self.container_memory_bytes) if b is not None]
        return min(known, default=None)


def read_machine(root: Path = Path("/")) -> Machine:
    """Read the limits of this process, and the machine's in `/proc` and `/sys`."""
    vm = root / "proc/sys/vm"
    memory = _memory_table(root / "proc/meminfo")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Machine(
        # A server raises its soft limit to the hard one, so the hard one counts.
        open_files=_UNLIMITED if hard == resource.RLIM_INFINITY else hard,
        mappings=_number(vm / "max_map_count"),
        overcommit=_number(vm / "overcommit_memory"),
        swappiness=_number(vm / "swappiness"),
        swap_bytes=memory.get("SwapTotal"),
        memory_bytes=memory.get("MemTotal"),
        container_memory_bytes=_container_memory(root),
    )


def check_machine(machine: Machine) -> list[Finding]:
    """Judge the limits of a machine on which a broker shall run."""
    return [
        _open_files(machine.open_files),
        _memory(machine),
        *([_mappings(machine.mappings)] if machine.mappings is not None else []),
        *([_overcommit(machine.overcommit)] if machine.overcommit is not None else []),
        *([_swappiness(machine)] if machine.swappiness is not None else []),
    ]


def size_text(count: int) -> str:
    """Return a number of bytes as people write it, such as `1.5 GiB`."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"


def _open_files(limit: int) -> Finding:
    check, wanted = "open files", f"at least {ENOUGH_FILES:,} (ulimit -Hn)"
    if limit >= ENOUGH_FILES:
        return ok(check, "no limit" if limit >= _UNLIMITED else f"{limit:,}", wanted)
    remedy = (
        "connections and queues take one each: LimitNOFILE=655350 in a systemd unit, --ulimit "
        "nofile=655350 for a container, or a line in /etc/security/limits.conf"
    )
    judged = warning if limit >= FEWEST_FILES else error
    return judged(check, f"{limit:,}", remedy, wanted)


def _memory(machine: Machine) -> Finding:
    check, wanted = "memory", f"at least {size_text(ENOUGH_MEMORY_BYTES)}"
    usable = machine.usable_memory_bytes
    if usable is None:
        return ok(check, "unknown", wanted)
    of_container = usable == machine.container_memory_bytes
    value = f"{size_text(usable)}{' (limit of the cgroup)' if of_container else ''}"
    if usable >= ENOUGH_MEMORY_BYTES:
        return ok(check, value, wanted)
    remedy = (
        "give the container more memory: the page cache of the log counts, too"
        if of_container
        else "run the broker on a machine with more memory"
    )
    judged = warning if usable >= LEAST_MEMORY_BYTES else error
    return judged(check, value, remedy, wanted)


def _mappings(limit: int) -> Finding:
    check, wanted = "vm.max_map_count", f"at least {ENOUGH_MAPPINGS:,}"
    if limit >= ENOUGH_MAPPINGS:
        return ok(check, f"{limit:,}", wanted)
    return warning(
        check,
        f"{limit:,}",
        "each file of the store is a mapping: sysctl -w vm.max_map_count=655360 (and in "
        "/etc/sysctl.d)",
        wanted,
    )


def _overcommit(mode: int) -> Finding:
    check, wanted = "vm.overcommit_memory", "0 or 1"
    if mode != 2:
        return ok(check, str(mode), wanted)
    return warning(
        check,
        "2 (the kernel refuses memory that it could not back)",
        "memory may be refused while some is free: sysctl -w vm.overcommit_memory=1, as "
        "RocketMQ's os.sh sets it",
        wanted,
    )


def _swappiness(machine: Machine) -> Finding:
    check, wanted = "vm.swappiness", f"at most {MOST_SWAPPINESS} where there is swap"
    if machine.swap_bytes == 0:
        return ok(check, f"{machine.swappiness}, and there is no swap", wanted)
    assert machine.swappiness is not None
    if machine.swappiness <= MOST_SWAPPINESS:
        return ok(check, str(machine.swappiness), wanted)
    return warning(
        check,
        str(machine.swappiness),
        "the page cache of the log pushes the broker's own memory out to disk, and requests wait "
        "for it: sysctl -w vm.swappiness=1, as RocketMQ's os.sh sets it",
        wanted,
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _memory_table(path: Path) -> dict[str, int]:
    """Return the sizes in `/proc/meminfo` in bytes, by name."""
    sizes = {}
    try:
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(":")
            number, _, unit = rest.strip().partition(" ")
            if number.isdecimal() and unit == "kB":
                sizes[name] = int(number) * 1024
    except OSError:
        pass
    return sizes


def _container_memory(root: Path) -> int | None:
    """Return the lowest limit on memory of this process's control group and those above it.

    Version 2 writes `max` where there is no limit, version 1 a number that no machine has.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, group = line.split(":", 2) if line.count(":") >= 2 else ("", "", "/")
        names = controllers.split(",")
        if names == [""]:
            base, file = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in names:
            base, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in group.split("/") if part not in ("", "..")]
        # In a container the group's own directory is often mounted as the root.
        for depth in range(len(parts) + 1):
            limit = _number(base.joinpath(*parts[:depth]) / file)
            if limit is not None and limit < _UNLIMITED:
                limits.append(limit)
    return min(limits, default=None)
