"""Keep where the master of a slave is, as name servers or the operator tell."""

from __future__ import annotations

from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class KnownMaster:
    """Holds the master's two addresses, None while they are unknown. For the loop's thread only.

    `address` is where clients and slaves ask it, `ha_address` where it sends its log. Name servers
    tell both in the answer to a slave's registration. `ha_master_address` (haMasterAddress) stands
    instead of the second one, whatever they tell. Those in `on_change` are called after a change.

    A name server that does not know the master, because it has just started, takes nothing back.
    While one still tells the present address, another one's other address does not count: of two
    masters of one name a slave stays with the one that it has.
    """

    def __init__(self, ha_master_address: str | None = None) -> None:
        self._fixed = ha_master_address or None
        self.address: str | None = None
        self.ha_address = self._fixed
        self.on_change: list[Callable[[], None]] = []
        self._told: dict[str, tuple[str, str]] = {}

    def told(self, name_server: str, address: str | None, ha_address: str | None) -> None:
        """Take in what a name server answered to a registration."""
        if not address:
            self._told.pop(name_server, None)
            return
        new = address, self._fixed or ha_address or ""
        self._told[name_server] = new
        present = self.address, self.ha_address or ""
        if new == present or any(
            other == present for server, other in self._told.items() if server != name_server
        ):
            return
        log.info(
            "master found",
            address=address,
            ha_address=new[1] or None,
            former=self.address,
            name_server=name_server,
        )
        self.address, self.ha_address = address, new[1] or None
        for listener in self.on_change:
            listener()
