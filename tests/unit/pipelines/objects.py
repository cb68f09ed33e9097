"""An object store on the disk, with the rules of S3: no directories, no renames, whole objects."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

from cometmq.pipelines.locations import Location, RemoteFiles


class Objects(RemoteFiles):
    """Keeps objects as files of `root`. `step` is called in front of each change."""

    def __init__(self, root: Path, step: Callable[[], None] = lambda: None) -> None:
        self._root = root
        self._step = step
        root.mkdir(parents=True, exist_ok=True)

    def at(self, path: str) -> Location:
        return Location(self, f"mem://bucket/{path}")

    def read(self, path: str, /) -> bytes:
        return self._file(path).read_bytes()

    def write(self, path: str, data: bytes, /) -> None:
        self._step()
        self._put(data).replace(self._file(path))

    def create(self, path: str, data: bytes, /) -> None:
        self._step()
        hidden = self._put(data)
        try:
            os.link(hidden, self._file(path))
        finally:
            hidden.unlink()

    def move(self, from_: str, to: str, /) -> None:
        self.write(to, self.read(from_))
        self.remove(from_)

    def remove(self, path: str, /) -> None:
        for name in self._below(path):
            self._step()
            (self._root / name).unlink()

    def sizes(self, directory: str, /) -> dict[str, int]:
        start = len(self._name(directory)) + 1
        below = {name: self._root / name for name in self._below(directory)}
        return {name[start:].replace("~", "/"): path.stat().st_size for name, path in below.items()}

    def exists(self, path: str, /) -> bool:
        return bool(self._below(path))

    def _name(self, path: str) -> str:
        return path.removeprefix("mem://bucket/").replace("/", "~")

    def _file(self, path: str) -> Path:
        return self._root / self._name(path)

    def _below(self, path: str) -> list[str]:
        name = self._name(path)
        there = sorted(path.name for path in self._root.iterdir())
        return [one for one in there if one == name or one.startswith(f"{name}~")]

    def _put(self, data: bytes) -> Path:
        hidden = self._root / f".{uuid.uuid4().hex}"
        hidden.write_bytes(data)
        return hidden
