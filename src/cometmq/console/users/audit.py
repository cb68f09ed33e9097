"""Write down each action of the console: its account, target, reason and outcome."""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from cometmq.logs.loggers import get_logger
from cometmq.runtime.clock import Clock
from cometmq.runtime.randomness import secret_bytes
from cometmq.runtime.state_files.durable import make_directories

log = get_logger(__name__)

FILE_BYTES: Final = 16 * 1024 * 1024
# The file that is written, and those that are full: audit.jsonl.1 is the newest of them.
FILES: Final = 10
SHOWN: Final = 10_000
# One line says how often an account was refused the same within this time.
REFUSALS_S: Final = 60.0
_MAX_TEXT: Final = 2000
_MAX_DETAILS: Final = 8000
_MAX_LEFT_OUT: Final = 5
_MAX_REFUSED: Final = 1000
_LINES_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """Is a line of the audit log.

    `outcome` is begun, done, failed or refused; `said` is its sentence. The lines of one action have
    the same `action`; one that has begun and has no other line was cut off with the console.
    """

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
    action: str = ""


_DECODER: Final = msgspec.json.Decoder(Entry)


class AuditLog:
    """Appends entries to `audit.jsonl`, a JSON object a line, and keeps the newest ones in memory.

    An action that changes something is written before it begins and again when it has ended, each
    time to the disk. A file that is full becomes `audit.jsonl.1`, and so on; FILES are kept. For the
    loop's thread only; threads write and read the files.
    """

    def __init__(self, root: Path, clock: Clock) -> None:
        self.path = root / "audit.jsonl"
        self.entries: deque[Entry] = deque(maxlen=SHOWN)
        self._clock = clock
        self._writing = asyncio.Lock()
        # By the account and its refused action: when that was written, and how many refusals came
        # since.
        self._refused: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()

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
        action: str = "",
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
            _bounded(details or {}),
            action,
        )
        async with self._writing:
            await asyncio.to_thread(self._append, entry)
        self.entries.append(entry)

    async def refuse(self, who: str, role: str, address: str, what: str) -> None:
        """Append a refusal; repetitions within REFUSALS_S are counted, not written.

        Otherwise an account without any right could fill the log until the actions of others are
        gone. If the log cannot be written, the refusal stands all the same.
        """
        key = (who, address, what)
        now_s = self._clock.monotonic()
        written_s, more = self._refused.get(key, (now_s - REFUSALS_S, 0))
        if now_s - written_s < REFUSALS_S:
            self._refused[key] = written_s, more + 1
            return
        self._refused[key] = now_s, 0
        self._refused.move_to_end(key)
        while len(self._refused) > _MAX_REFUSED:
            self._refused.popitem(last=False)
        said = f"and {more} times more before" if more else ""
        try:
            await self.write(who, role, address, what, "", "refused", said=said)
        except OSError as error:
            log.warning("audit log cannot be written", error=str(error))
            # The next one is written, and counts this one.
            _, since = self._refused.get(key, (now_s, 0))
            self._refused[key] = now_s - REFUSALS_S, more + since + 1

    async def lines(self, wanted: Callable[[Entry], bool]) -> AsyncGenerator[bytes]:
        """Return the wanted entries of the files, the oldest first, as they are written."""
        files: list[BinaryIO] = []
        try:
            await asyncio.to_thread(lambda: files.extend(path.open("rb") for path in self.paths()))
            for file in files:
                goes_on = True
                while goes_on:
                    found, goes_on = await asyncio.to_thread(_part, file, wanted)
                    if found:
                        yield found
        finally:
            for file in files:
                file.close()

    def paths(self) -> list[Path]:
        """Return the files, the oldest first."""
        full = [self._full(number) for number in range(FILES - 1, 0, -1)]
        return [path for path in (*full, self.path) if path.exists()]

    def _full(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _read(self) -> list[Entry]:
        make_directories(self.path.parent)
        newest: deque[Entry] = deque(maxlen=SHOWN)
        for path in self.paths():
            with path.open("rb") as file:
                newest.extend(entry for entry, _ in _entries(file))
        return list(newest)

    def _append(self, entry: Entry) -> None:
        make_directories(self.path.parent)
        if self.path.exists() and self.path.stat().st_size > FILE_BYTES:
            self._turn()
        line = json.dumps(asdict(entry), ensure_ascii=False, default=str).encode(errors="replace")
        # Only the console's own user reads it.
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            end = os.fstat(descriptor).st_size
            if end and os.pread(descriptor, 1, end - 1) != b"\n":
                # A console that was killed while it wrote has left a part of a line.
                line = b"\n" + line
            line += b"\n"
            written = os.write(descriptor, line)
            if written != len(line):
                os.ftruncate(descriptor, end)
                raise OSError(f"{self.path}: only {written} of {len(line)} bytes were written")
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def _turn(self) -> None:
        """Begin a new file; the oldest one goes."""
        for number in range(FILES - 1, 1, -1):
            if self._full(number - 1).exists():
                self._full(number - 1).replace(self._full(number))
        self.path.replace(self._full(1))


def ended(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries without the beginnings of those actions whose end is there, too."""
    kept = list(entries)
    over = {entry.action for entry in kept if entry.action and entry.outcome != "begun"}
    return [entry for entry in kept if entry.outcome != "begun" or entry.action not in over]


def action_id() -> str:
    """Return the key that the lines of one action have in common."""
    return secret_bytes(8).hex()


def _entries(lines: Iterable[bytes]) -> Iterator[tuple[Entry, bytes]]:
    for line in lines:
        try:
            yield _DECODER.decode(line), line
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # The last line of a console that was killed while it wrote.
            log.warning("line of the audit log left out")


def _part(file: BinaryIO, wanted: Callable[[Entry], bool]) -> tuple[bytes, bool]:
    """Return the wanted lines of the next part of a file, and whether there is more."""
    lines = list(islice(file, _LINES_AT_ONCE))
    found = b"".join(line for entry, line in _entries(lines) if wanted(entry))
    return found, bool(lines)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"


def _bounded(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return details with long texts cut and the longest left out; of too many, their number."""
    short = {
        _short(name): _short(value) if isinstance(value, str) else value
        for name, value in details.items()
    }
    lengths = {name: len(json.dumps(value, default=str)) for name, value in short.items()}
    length = sum(lengths.values())
    for name in sorted(lengths, key=lambda name: -lengths[name])[:_MAX_LEFT_OUT]:
        if len(json.dumps(short, default=str)) <= _MAX_DETAILS:
            return short
        short[name] = f"left out: {lengths[name]} characters"
    if len(json.dumps(short, default=str)) <= _MAX_DETAILS:
        return short
    return {"left out": f"{len(details)} details of {length} characters"}
