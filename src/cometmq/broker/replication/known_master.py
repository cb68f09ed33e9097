"""Keep the address of a slave's master, as name servers report it or the operator sets it."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.errors import ConfigError, ConnectError
from cometmq.logs.loggers import get_logger
from cometmq.remoting.client import split_address
from cometmq.runtime.sockets.addresses import join_address

log = get_logger(__name__)


class KnownMaster:
    """Holds the master's addresses, None while they are unknown. For the loop's thread only.

    `ha_address` is where it sends its log: `ha_master_address` (haMasterAddress) if that is given,
    else what name servers answer to the slave's registration. The functions in `on_change` are called after
    a change. Raises ConfigError if `ha_master_address` is no address.

    A name server that does not know the master, because it has just started, takes nothing back.
    While one name server still reports the present address, an address from another name server
    does not count: if two masters have one name, a slave stays with its own.
    """

    def __init__(self, ha_master_address: str | None = None) -> None:
        self._fixed = ha_master_address or None
        self._beside = None if self._fixed is None else _broker_beside(self._fixed)
        self._reported_address: str | None = None
        self.ha_address = self._fixed
        self.on_change: list[Callable[[], None]] = []
        self._reported: dict[str, tuple[str, str | None]] = {}

    @property
    def is_reported(self) -> bool:
        """Whether a name server has reported an address."""
        return self._reported_address is not None

    @property
    def address(self) -> str | None:
        """Where clients find the master, as far as is known."""
        return self._reported_address or self._beside

    def candidates(self) -> list[str]:
        """Return the addresses where the broker that sends the log may be asked who it is.

        The first one is the port in front of haMasterAddress, at which brokers listen for clients
        unless haListenPort says otherwise. The broker there sends the log, even if the name servers
        take another one for the master.
        """
        return list(dict.fromkeys(a for a in (self._beside, self._reported_address) if a))

    def reported(self, name_server: str, address: str | None, ha_address: str | None) -> None:
        """Take in what a name server answered to a registration: None if it knows no master, or
        does not answer.
        """
        if not address:
            self._reported.pop(name_server, None)
            return
        new = address, self._fixed or ha_address or None
        self._reported[name_server] = new
        present = self._reported_address, self.ha_address
        if new == present or any(
            other == present for server, other in self._reported.items() if server != name_server
        ):
            return
        log.info(
            "master found",
            address=address,
            ha_address=new[1],
            former=self._reported_address,
            name_server=name_server,
        )
        self._reported_address, self.ha_address = new
        for listener in self.on_change:
            listener()


def _broker_beside(ha_address: str) -> str:
    """Return where the broker listens for clients that listens at `ha_address` for slaves."""
    try:
        host, port = split_address(ha_address)
    except ConnectError as error:
        raise ConfigError(
            f"haMasterAddress={ha_address} does not fit, it must be of the form 10.0.0.1:10912"
        ) from error
    return join_address(host, port - 1)
