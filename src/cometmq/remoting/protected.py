"""Serve the own machine only, as long as nothing says who else may ask (Redis: protected mode).

Java's servers take requests from anybody who reaches their port unless access control is on, and it is
off after an installation. Here a server without access control listens as Java's do, so that
everything on one machine works, and answers peers on other machines by a refusal that says what to
change. The peer's address is looked at once, when it connects.
"""

from __future__ import annotations

from typing import Final

from cometmq.logs.loggers import get_logger
from cometmq.logs.rare_line import RareLine
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.remoting.connection import Connection
from cometmq.runtime.sockets.address_list import AddressList, is_own_machine
from cometmq.tls.handshakes import MOST_STRANGERS, STRANGER_S

log = get_logger(__name__)

KEY: Final = "protectedMode"
# The log says so often that peers were refused, whatever their number.
LOGGED_EVERY_S: Final = 60.0
# A refused peer gets so many refusals within STRANGER_S, and may send frames of this size. A broker's
# registration of some thousand topics fits, so that its log shows the answer.
MOST_REFUSALS: Final = 16
MAX_STRANGER_FRAME: Final = 1024 * 1024
_OPEN: Final = (
    f"or, where only a trusted network reaches the port, set {KEY}=false (or start with --open)"
)


class ProtectedMode:
    """Says which peers are served, and why the others are not.

    `what` names the thing that is served to the own machine only, in the words of the refusal;
    `remedy` says what opens it. Besides the own machine the addresses of `also` are served. For the
    loop's thread only.
    """

    def __init__(self, what: str, remedy: str, also: AddressList | None = None) -> None:
        self._what = what
        self._remedy = remedy
        self._also = also
        self._refusals = RareLine(LOGGED_EVERY_S)

    @classmethod
    def of_requests(cls, server: str) -> ProtectedMode:
        """Return what protects the requests of a server without access control."""
        return cls(
            f"this {server} serves only its own machine as long as its access control is off",
            "switch access control on there (aclEnable=true or authenticationEnabled=true), "
            f"{_OPEN}; then restart it",
        )

    @classmethod
    def of_pages(cls, key: str, addresses: str) -> ProtectedMode:
        """Return what protects the pages that no access control guards."""
        also = AddressList(key, addresses)
        return cls(
            "this page is served only to the server's own machine and to the addresses in "
            f"{key}={addresses}",
            f"add the address to {key} and restart the server, {_OPEN}",
            also,
        )

    def admits(self, peer_ip: str, local_ip: str) -> bool:
        """Return whether to serve the peer of a connection whose own address is `local_ip`."""
        if is_own_machine(peer_ip, local_ip):
            return True
        return self._also is not None and peer_ip in self._also

    def reason(self, peer_ip: str) -> str:
        """Return why a peer is refused, and the remedies."""
        return (
            f"{self._what} ({KEY}), and {peer_ip} is another machine, or stands for a container or "
            f"for a mapped port: {self._remedy}"
        )

    def note_refusal(self, peer: str) -> None:
        """Log that a peer was refused: one line in LOGGED_EVERY_S for all of them."""
        if refused := self._refusals.count():
            log.warning(
                "peer of another machine refused",
                peer=peer,
                refused=refused,
                reason=self._what,
                remedy=self._remedy,
            )


class Strangers:
    """The connections of a server whose peers it does not serve, until they have read why.

    They count in no other limit of the server, and keep nobody from being served.
    """

    def __init__(self, protection: ProtectedMode) -> None:
        self._protection = protection
        # How many requests of each were refused; in the order in which they came.
        self.connections: dict[Connection, int] = {}

    def take(self, connection: Connection) -> None:
        """Answer all requests of a new connection by a refusal."""
        self._protection.note_refusal(connection.peer)
        if len(self.connections) >= MOST_STRANGERS:
            oldest = next(iter(self.connections))
            del self.connections[oldest]
            oldest.abort()
        self.connections[connection] = 0
        connection.on_close.append(self._gone)
        connection.shut_out(self._refuse, MAX_STRANGER_FRAME)

    def sweep(self, now_s: float) -> None:
        """Close the connections that had their time."""
        for connection in tuple(self.connections):
            if now_s - connection.made_at > STRANGER_S:
                connection.abort()

    def _refuse(self, connection: Connection, command: RemotingCommand) -> None:
        refusals = self.connections.get(connection, MOST_REFUSALS) + 1
        if refusals > MOST_REFUSALS:
            connection.close()
            return
        self.connections[connection] = refusals
        if not command.is_oneway:
            reason = self._protection.reason(connection.peer_ip)
            connection.refuse(command.opaque, ResponseCode.NO_PERMISSION, reason)

    def _gone(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
