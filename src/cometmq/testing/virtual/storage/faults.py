"""Decide which operations of a disk in memory fail, and how much room it has."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

ANY: Final = "any"
_WRITING: Final = (
    "allocate",
    "append",
    "cut",
    "link",
    "make_directory",
    "overwrite",
    "remove",
    "rename",
    "reserve",
    "sync",
    "sync_directory",
    "write",
    "write_at",
)
# The operations that `fail` can make fail.
OPERATIONS: Final = (ANY, *sorted((*_WRITING, "lock", "map", "read", "read_into")))
# These need no room, so a full disk does them.
_WITHOUT_ROOM: Final = ("lock", "map", "read", "read_into", "remove", "sync", "sync_directory")
_CODES: Final = {name: code for code, name in errno.errorcode.items()}
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class _Rule:
    operation: str
    code: int
    path: str
    passing: int
    left: int | None

    def strikes(self, operation: str, path: Path) -> bool:
        """Count a call, and say whether it fails."""
        fits = self.operation == operation or (self.operation == ANY and operation in _WRITING)
        if not fits or not (fnmatchcase(str(path), self.path) or fnmatchcase(path.name, self.path)):
            return False
        if self.passing:
            self.passing -= 1
            return False
        if self.left is None:
            return True
        self.left -= 1
        return self.left >= 0


class DiskFaults:
    """Holds the rules by which operations fail. `counts` is how often each was done so far."""

    def __init__(self, record: Callable[[str], None]) -> None:
        self._rules: list[_Rule] = []
        self._record = record
        self.counts: dict[str, int] = {}
        self.strikes: list[str] = []

    def add(self, operation: str, error: str, after: int, times: int | None, path: str) -> None:
        if operation not in OPERATIONS:
            raise ValueError(
                f"a disk has no operation {operation!r}; it has {', '.join(OPERATIONS)}"
            )
        code = _CODES.get(error)
        if code is None:
            raise ValueError(f"there is no error {error!r}; name one as errno does, such as EIO")
        if after < 0 or (times is not None and times < 1):
            raise ValueError(
                f"after={after} and times={times}: `after` is 0 or more, `times` 1 or more, "
                "or None for all calls"
            )
        self._rules.append(_Rule(operation, code, path, after, times))

    def clear(self) -> None:
        self._rules.clear()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let nothing fail meanwhile."""
        rules, self._rules = self._rules, []
        try:
            yield
        finally:
            self._rules = rules

    def strike(self, operation: str, path: Path) -> None:
        """Count an operation. Raises OSError if it is to fail."""
        self.counts[operation] = self.counts.get(operation, 0) + 1
        # Each rule counts each call, also one that another rule makes fail.
        codes = [rule.code for rule in self._rules if rule.strikes(operation, path)]
        if codes:
            is_full = codes[0] in _FULL and operation in _WITHOUT_ROOM
            self.raise_error(errno.EIO if is_full else codes[0], operation, path)

    def raise_error(self, code: int, operation: str, path: Path) -> None:
        self.strikes.append(f"{errno.errorcode[code]} {operation} {path.name}")
        self._record(f"disk fails: {errno.errorcode[code]} {operation} {path}")
        raise OSError(code, os.strerror(code), str(path))
