"""Load the compiled form of the hot modules, where one was made of exactly these sources.

`scripts/compile` hands the modules of `HOT` to mypyc and puts what it makes beside the package, into
`cometmq/_native/`, with a list of all sources that it saw and their checksums. While every one of
them still is as it was, imports of the hot modules are served from there; after any edit, or for
another Python, all of them are interpreted. So a source is never shadowed by what was made of an
older one. COMETMQ_PURE=1 asks for the interpreted form. The reasons are in
docs/internals/composition.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final
from zlib import crc32

PACKAGE: Final = Path(__file__).parent
NATIVE: Final = PACKAGE / "_native"
# All that mypyc looks at for the hot modules: what they import decides about the code it makes.
SEEN: Final = (
    "errors.py", "forks.py", "model", "logs", "runtime", "metrics", "tls", "protocol", "filtering", "store", "remoting", "access", "broker",
)  # fmt: skip
LIBRARY: Final = "cometmq__mypyc"
HOT: Final = (
    "access.access_request",
    "access.control",
    "access.freshness",
    "access.plain.accounts",
    "access.plain.rules",
    "access.signed",
    "access.users.rules",
    "broker.pulls.pull",
    "broker.pulls.waiter",
    "broker.pulls.waiting",
    "broker.sends.send",
    "broker.traffic",
    "model.java.hashing",
    "model.measures.histogram",
    "protocol.messages.batch",
    "protocol.command",
    "protocol.frame",
    "protocol.messages.plain_records",
    "protocol.messages.properties",
    "protocol.messages.record",
    "remoting.calls",
    "remoting.connection",
    "remoting.serving",
    "remoting.signing",
    "remoting.turns",
    "runtime.rotation",
    "runtime.sockets.write_lines",
    "store.append",
    "store.log.commit_log",
    "store.queues.consume_queue",
    "store.queues.consume_queue_ext",
    "store.get",
    "store.files.mapped_file",
    "store.files.mapped_file_queue",
    "store.refusals",
    "store.log.transient_pool",
)


class CompiledFinder:
    """Serves the imports of compiled modules from their files, by full name."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the import system's signature
        target: ModuleType | None = None,  # noqa: ARG002 - the import system's signature
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        return ModuleSpec(fullname, ExtensionFileLoader(fullname, file), origin=file)


def checksums() -> str:
    """A line for each source that compiled modules depend on: its checksum and its path."""
    lines = [f"{crc32('/'.join(HOT).encode()):08x} HOT"]
    for name in SEEN:
        place = PACKAGE / name
        sources = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        lines += [f"{crc32(s.read_bytes()):08x} {s.relative_to(PACKAGE)}" for s in sources]
    return "\n".join(lines) + "\n"


def interpreted_is_wanted() -> bool:
    """Whether the environment asks for the interpreted form."""
    return os.environ.get("COMETMQ_PURE", "0") not in ("", "0")


def state() -> str:
    """ "" when compiled modules are in use, else why not."""
    if interpreted_is_wanted():
        return "COMETMQ_PURE is set"
    if not (NATIVE / "sources").is_file():
        return "not compiled; see scripts/compile"
    if not _file(LIBRARY).is_file():
        return "compiled for another Python; run scripts/compile"
    # An installation is not edited, and 300 files would be read at each start.
    if is_checkout() and (NATIVE / "sources").read_text() != checksums():
        return "the sources have changed since; run scripts/compile"
    return ""


def is_checkout() -> bool:
    """Whether the package lies in a checkout, where `scripts/compile` is at hand."""
    return (PACKAGE.parents[1] / "scripts" / "compile").is_file()


def _file(module: str) -> Path:
    return NATIVE / f"{module}{EXTENSION_SUFFIXES[0]}"


def install() -> None:
    """Serve later imports from the compiled modules if there are any for these sources."""
    if state():
        return
    files = {f"cometmq.{module}": str(_file(module)) for module in HOT}
    sys.meta_path.insert(0, CompiledFinder({LIBRARY: str(_file(LIBRARY)), **files}))
