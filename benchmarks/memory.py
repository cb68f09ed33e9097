"""Read what a process holds in memory, as the kernel accounts it.

| figure | meaning |
| --- | --- |
| peak resident (VmHWM) | most pages ever mapped in at once, log files included |
| anonymous (RssAnon) | heap, stacks, code cache: memory that belongs to this process alone |
| file-backed (RssFile) | pages of mapped files: the commit log itself and shared libraries; the kernel takes them back under pressure |
| proportional (Pss) | resident, every shared page divided by the number of processes that map it |

A broker maps its log, so its resident size grows with what was stored, whatever language it is
written in. The anonymous part is what it costs to run one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

SAMPLE_INTERVAL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Memory:
    """Holds the figures of one look at a process, all in KiB."""

    peak_resident_kib: int
    resident_kib: int
    anonymous_kib: int
    file_backed_kib: int
    proportional_kib: int


def read_memory(pid: int) -> Memory:
    """Read the figures of a process. Raises OSError when the process is gone."""
    status = _kib_fields(Path(f"/proc/{pid}/status"))
    return Memory(
        peak_resident_kib=status["VmHWM"],
        resident_kib=status["VmRSS"],
        anonymous_kib=status["RssAnon"],
        file_backed_kib=status["RssFile"],
        proportional_kib=_kib_fields(Path(f"/proc/{pid}/smaps_rollup"))["Pss"],
    )


class AnonymousPeak:
    """Samples RssAnon of a process from a thread; the kernel keeps no high-water mark of it."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="anonymous-peak", daemon=True)
        self.peak_kib = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            try:
                self.peak_kib = max(self.peak_kib, _kib_fields(self._status)["RssAnon"])
            except (OSError, KeyError):
                return  # the process ended: the caller that waits for its answers reports that
            if self._ended.wait(SAMPLE_INTERVAL_SECONDS):
                return


def _kib_fields(path: Path) -> dict[str, int]:
    fields: dict[str, int] = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            fields[name] = int(value.split()[0])
    return fields
