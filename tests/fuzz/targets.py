"""List what is fuzzed: everything that reads bytes which a peer or a file gives.

The short run of `make test` and the long one of `make fuzz` have these targets; `target` says what
one is.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from tests.fuzz.target import Target

# The modules that have targets, each a list TARGETS.
MODULES: Final = (
    "wire_targets",
    "record_targets",
    "text_targets",
    "access_targets",
    "store_targets",
    "server_targets",
    "console_targets",
)


def targets_of(module: str) -> list[Target]:
    """Return the targets of one module. It alone is imported, with what it needs."""
    found: list[Target] = import_module(f"tests.fuzz.{module}").TARGETS
    return found


def all_targets() -> list[Target]:
    return [target for module in MODULES for target in targets_of(module)]
