"""Read a history and the stores once, for all invariants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from tests.simulation.history import AnyEvent, History


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Say which invariant is broken and by which events."""

    invariant: str
    what: str
    events: tuple[AnyEvent, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.invariant}: {self.what}"]
        lines += [f"    {event.at_s:.3f} s  {event}" for event in self.events]
        return "\n".join(lines)


class StoreImage(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the files of a store directory, by their path below it (`commitlog/0000…`, with slashes).

    `state` says when the files were read: while the broker ran (what the page cache has), after it
    closed, or after it was killed or lost its power and was not started again. Of a "dead" store the
    consume queues and the index are not judged, since recovery may still mend them.
    """

    files: dict[str, bytes]
    state: Literal["running", "closed", "dead"] = "closed"


class Evidence:
    """Hold what the invariants look at."""

    def __init__(self, history: History, stores: Mapping[str, StoreImage]) -> None:
        self.history = history
        self.stores = dict(stores)
