"""Keep encoded routes: clients ask for the same ones all the time, and tables seldom change."""

from __future__ import annotations

from typing import Final

# How much memory encoded routes may take; a route with 10 brokers has about 2 KB.
MAX_KEPT_ROUTE_BYTES: Final = 32 << 20


class KeptRoutes:
    """Keeps encoded routes by the fields in which they differ, until the table of routes changes.

    If they take more than MAX_KEPT_ROUTE_BYTES together, all are dropped, and new ones are kept.
    """

    def __init__(self) -> None:
        self._bodies: dict[object, bytes] = {}
        self._bytes = 0
        self._changes = -1

    def of(self, changes: int) -> dict[object, bytes]:
        """Return the routes that are valid after this many changes of the table."""
        if changes != self._changes:
            self._changes = changes
            self._drop()
        return self._bodies

    def keep(self, key: object, body: bytes) -> None:
        self._bytes += len(body)
        if self._bytes > MAX_KEPT_ROUTE_BYTES:
            self._drop()
            self._bytes = len(body)
        self._bodies[key] = body

    def _drop(self) -> None:
        self._bodies.clear()
        self._bytes = 0
