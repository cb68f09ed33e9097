"""Keep inputs in the tree: `corpus/NAME.corpus` has those that reach code which others do not, and
`found.txt` those that once found a fault, with what was wrong.

A corpus file is deflated: four bytes of length (big-endian), then the input, again and again. The
inputs are sorted, so the same set makes the same file.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent / "corpus"
FOUND: Final = HERE / "found.txt"


def kept(name: str) -> list[bytes]:
    """Return the inputs kept for a target, then those that once found a fault in it."""
    path = HERE / f"{name}.corpus"
    return [*(unpack(path.read_bytes()) if path.is_file() else []), *found(name)]


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """Replace the inputs kept for a target."""
    (HERE / f"{name}.corpus").write_bytes(pack(inputs))


def found(name: str) -> list[bytes]:
    """Return the inputs that once found a fault in a target."""
    if not FOUND.is_file():
        return []
    rows = [line.split(" ", 2) for line in FOUND.read_text().splitlines() if line[:1] not in "#"]
    return [base64.b64decode(row[1]) for row in rows if row[0] == name]


def pack(inputs: Iterable[bytes]) -> bytes:
    parts = [len(data).to_bytes(4, "big") + data for data in sorted(set(inputs))]
    return zlib.compress(b"".join(parts), 9)


def unpack(packed: bytes) -> list[bytes]:
    data, at, inputs = zlib.decompress(packed), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        inputs.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return inputs
