"""Writes down each action of the console: who did what to what, why, and how it ended."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cometmq.runtime.clock import Clock
from cometmq.runtime.durable import make_directories
from cometmq.runtime.loggers import get_logger

log = get_logger(__name__)

FILE_BYTES: Final = 16 * 1024 * 1024
SHOWN: Final = 10_000
_MAX_TEXT: Final = 2000


@dataclass(frozen=True, slots=True)
class Entry:
    """Is a line of the audit log. `outcome` is begun, done or failed; `said` is its sentence."""

    at_ms: int
    who: str
    role: str
    address: str
    what: str
    target: str
    outcome: str
    why: str = ""
    said: str = ""
    details: dict[str, Any] = field(default_factory=dict)


class AuditLog:
    """Appends entries to `audit.jsonl`, a JSON object a line, and keeps the newest ones in memory.

    An action that changes something is written before it begins and again when it has ended, each
    time to the disk. A file that is full becomes `audit.jsonl.1`. For the loop's thread only; a
    thread of its own writes.
    """

    def __init__(self, root: Path, clock: Clock) -> None:
        self.path = root / "audit.jsonl"
        self.entries: deque[Entry] = deque(maxlen=SHOWN)
        self._clock = clock
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        """Read the newest entries. Raises OSError if the file cannot be used."""
        self.entries.extend(await asyncio.to_thread(self._read))

    async def write(
        self,
        who: str,
        role: str,
        address: str,
        what: str,
        target: str,
        outcome: str,
        *,
        why: str = "",
        said: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Append an entry; return when it is on the disk. Raises OSError."""
        entry = Entry(
            self._clock.now_ms(),
            _short(who),
            _short(role),
            _short(address),
            _short(what),
            _short(target),
            outcome,
            _short(why),
            _short(said),
            dict(details or {}),
        )
        async with self._writing:
            await asyncio.to_thread(self._append, entry)
        self.entries.append(entry)

    def _read(self) -> list[Entry]:
        make_directories(self.path.parent)
        newest: deque[Entry] = deque(maxlen=SHOWN)
        for path in (self.path.with_name("audit.jsonl.1"), self.path):
            if not path.exists():
                continue
            with path.open("rb") as file:
                for line in file:
                    try:
                        newest.append(Entry(**json.loads(line)))
                    except (ValueError, TypeError):
                        # The last line of a console that was killed while it wrote.
                        log.warning("line of the audit log left out", path=str(path))
        return list(newest)

    def _append(self, entry: Entry) -> None:
        make_directories(self.path.parent)
        if self.path.exists() and self.path.stat().st_size > FILE_BYTES:
            self.path.replace(self.path.with_name("audit.jsonl.1"))
        line = json.dumps(asdict(entry), ensure_ascii=False, default=str).encode() + b"\n"
        # Only the console's own user reads it.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            written = os.write(descriptor, line)
            if written != len(line):
                raise OSError(f"{self.path}: only {written} of {len(line)} bytes were written")
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"
