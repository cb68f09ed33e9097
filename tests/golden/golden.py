"""Reads the golden files: bytes that the Java implementation wrote, with what went into them."""

from __future__ import annotations

import functools
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data"


@dataclass(frozen=True, slots=True)
class Golden:
    """One entry of the manifest; `README.md` says what each kind's `input` holds."""

    kind: str
    name: str
    artifact: str  # version of org.apache.rocketmq that wrote it
    java_class: str
    input: dict[str, Any]
    file: str | None  # below data/; None for a fact without bytes

    @property
    def data(self) -> bytes:
        """The bytes of the file."""
        assert self.file is not None, f"{self.name} has no file"
        return (DATA / self.file).read_bytes()

    def __str__(self) -> str:
        return f"{self.name}@{self.artifact}"


@functools.cache
def load() -> tuple[Golden, ...]:
    """All entries."""
    return tuple(
        Golden(
            kind=entry["kind"],
            name=entry["name"],
            artifact=entry["artifact"],
            java_class=entry["class"],
            input=entry["input"],
            file=entry.get("file"),
        )
        for entry in json.loads((DATA / "manifest.json").read_text())
    )


def of_kind(kind: str) -> list[Golden]:
    """The entries of one kind; `ids=str` names them in a parametrized test."""
    found = [golden for golden in load() if golden.kind == kind]
    assert found, f"no golden files of kind {kind}"
    return found


def named(name: str, artifact: str = "5.3.3") -> Golden:
    """One entry by its name."""
    return next(one for one in load() if one.name == name and one.artifact == artifact)


def unpack_store(directory: Path) -> Path:
    """Unpack the store that a Java broker wrote; return its root."""
    with tarfile.open(DATA / "store.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory / "store"
