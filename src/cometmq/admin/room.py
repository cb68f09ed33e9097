"""Provides the base of the rooms of `AdminClient`."""

from __future__ import annotations

from cometmq.admin.servers import Servers


class Room:
    """Holds the calls for one kind of thing; all rooms of a client share its `servers`."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
