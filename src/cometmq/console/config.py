"""Hold the options of the console."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.console.users.accounts import Accounts
from cometmq.errors import ConfigError
from cometmq.runtime.sockets.address_list import AddressList
from cometmq.runtime.sockets.addresses import is_loopback

if TYPE_CHECKING:
    from cometmq.admin.client import AdminClient

# The port of RocketMQ's dashboard.
PORT: Final = 8080
MAX_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """Holds the settings of a console: its cluster, its address, and the accounts and machines that
    it serves.

    `admin` is an administration client that has not been entered yet; the console enters it on its
    own loop and leaves it. With `accounts` None nobody has to log in: everybody that reaches the
    port is an operator. `root` is the directory of the audit log. `hosts` are further names by
    which browsers may call the console, such as that of a proxy. `reports` is a directory with the
    reports that pipelines have written. `accounts_file` is the file of the accounts; they are read
    again when it changes. `trusted_proxies` are addresses and networks from which the console
    believes the headers X-Forwarded-For and X-Forwarded-Proto. `metrics_from` are addresses that
    may ask for `/metrics` without a login, as the console's own machine may.

    Raises ConfigError for an open console that other machines reach, unless `open_to_all`.
    """

    admin: AdminClient
    root: Path
    accounts: Accounts | None
    host: str = "127.0.0.1"
    port: int = PORT
    hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    certificate_key: Path | None = None
    reports: Path | None = None
    open_to_all: bool = False
    accounts_file: Path | None = None
    trusted_proxies: AddressList = field(default_factory=lambda: AddressList("trusted_proxies", ""))
    metrics_from: AddressList = field(default_factory=lambda: AddressList("metrics_from", ""))
    # A page shows what the cluster has answered within this time, and says what is missing.
    wait_s: float = field(default=1.0)
    # A session ends when it has not been used for the first time span, and always after the second.
    idle_s: float = field(default=30 * 60.0)
    session_s: float = field(default=12 * 60 * 60.0)

    def __post_init__(self) -> None:
        if self.accounts is None and not is_loopback(self.host) and not self.open_to_all:
            raise ConfigError(
                f"the console would serve other machines on {self.host} without a login; keep the "
                "login, listen on 127.0.0.1, or say --open to let everybody act on the cluster"
            )
        if not 0 < self.wait_s <= MAX_WAIT_S:
            raise ConfigError(
                f"wait_s is {self.wait_s:g}; give seconds above 0, up to {MAX_WAIT_S:.0f}"
            )
        if (self.certificate is None) != (self.certificate_key is None):
            raise ConfigError("TLS needs both a certificate and its key: give both or neither")

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"

    @property
    def danger(self) -> str:
        """Return what other machines may see or do that they should not, "" if nothing."""
        if is_loopback(self.host):
            return ""
        if self.accounts is None:
            return "there is no login: everybody that reaches the port acts on the cluster as an operator"
        if self.certificate is None:
            return "there is no TLS: passwords and sessions can be read on the network"
        return ""
