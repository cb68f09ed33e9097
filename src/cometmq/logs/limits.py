"""Limit the lines of one kind in the log, so that one peer's nonsense cannot fill a disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

import structlog

INTERVAL_S: Final = 10.0
# Lines of one kind in an interval. A start that logs, say, one line for each queue fits in.
PER_KIND: Final = 200
# Lines of one kind about one peer in an interval.
PER_PEER: Final = 10
# A kind is one of our own constant texts, or one other library, whatever its lines say.
_MAX_KINDS: Final = 1000
_OTHER: Final = "other"


class _Kind:
    """Counts the lines of one kind in this interval, and those about each of `PER_KIND` peers."""

    __slots__ = ("left_out", "peers", "written")

    def __init__(self) -> None:
        self.written = 0
        self.left_out = 0
        self.peers: dict[str, int] = {}


class LineLimiter:
    """A structlog processor that drops a line when its kind, or its kind about its peer, has used
    up its share of this interval. `summaries` says how many lines it dropped. For any thread.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends = monotonic() + INTERVAL_S
        self._lock = threading.Lock()
        self._kinds: dict[str, _Kind] = {}

    def __call__(
        self, _logger: object, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if not self._admits(event):
            raise structlog.DropEvent
        return event

    def _admits(self, event: Mapping[str, Any]) -> bool:
        name = str(event.get("logger") or event.get("event"))
        peer = str(event.get("peer") or event.get("by") or "").rpartition(":")[0]
        with self._lock:
            kind = self._kinds.get(name)
            if kind is None:
                if len(self._kinds) >= _MAX_KINDS:
                    name = _OTHER
                kind = self._kinds.setdefault(name, _Kind())
            if peer and (peer in kind.peers or len(kind.peers) < PER_KIND):
                kind.peers[peer] = kind.peers.get(peer, 0) + 1
            if kind.written >= PER_KIND or kind.peers.get(peer, 0) > PER_PEER:
                kind.left_out += 1
                return False
            kind.written += 1
            return True

    @property
    def is_empty(self) -> bool:
        """Whether no line came in this interval. The next one is not dropped."""
        return not self._kinds

    def summaries(self, *, at_once: bool = False) -> list[dict[str, Any]]:
        """Begin a new interval if this one is over (or `at_once`), and return an event for each
        kind that lost lines in the old one. Return no events while an interval lasts.
        """
        now = self._monotonic()
        if now < self._ends and not at_once:
            return []
        with self._lock:
            kinds, self._kinds = self._kinds, {}
            self._ends = now + INTERVAL_S
        return [_summary(name, kind) for name, kind in kinds.items() if kind.left_out]


def _summary(name: str, kind: _Kind) -> dict[str, Any]:
    line: dict[str, Any] = {
        "event": "left out lines of the same kind",
        "kind": name,
        "left_out": kind.left_out,
        "within_s": INTERVAL_S,
    }
    if kind.peers:
        worst = max(kind.peers, key=lambda peer: kind.peers[peer])
        line |= {"peers": len(kind.peers), "most_from": worst, "of_it": kind.peers[worst]}
    return line
