"""Serve https: the console's handshakes are rationed as those of brokers are.

uvicorn would have the loop shake hands with every client before the console knows of the
connection: its limits would not count those connections, and a flood of handshakes would hold up
every page.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from cometmq.logs.loggers import get_logger
from cometmq.logs.rare_line import RareLine
from cometmq.runtime.sockets.arrivals import Arrival, ArrivalListener, Socket
from cometmq.tls.handshakes import AT_ONCE, PER_SECOND, SILENT, TIMEOUT, Door, Handshakes

if TYPE_CHECKING:
    from cometmq.console.web.certificate import Certificate
    from cometmq.console.web.connections import Refusal
    from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

MAX_TLS_HANDSHAKES: Final = 32
# A handshake takes about 1 ms of the loop that makes the pages.
MAX_TLS_HANDSHAKES_PER_SECOND: Final = 100
HANDSHAKE_S: Final = 10.0
# A client that has connected and sent nothing for this long makes room when there is none.
_SILENT_AT_LEAST_S: Final = 2.0
_BACKLOG: Final = 512
# The console's names for the limits on handshakes.
_NAMES: Final = {
    AT_ONCE: "MAX_TLS_HANDSHAKES",
    PER_SECOND: "MAX_TLS_HANDSHAKES_PER_SECOND",
    TIMEOUT: "HANDSHAKE_S",
    SILENT: "HANDSHAKE_S",
}


class Encrypted:
    """Accepts connections at sockets and shakes hands with them. For the loop's thread only.

    A connection that does not begin with TLS is served, too: its protocol object answers that TLS
    is needed. `refusal` gets the addresses of connections whose handshake is not done and a file
    descriptor, and returns the limit that keeps another connection of an IP address out, or None.
    `on_limit` gets the name of each limit that was met.
    """

    def __init__(
        self,
        certificate: Certificate,
        new_protocol: Callable[[], asyncio.Protocol],
        refusal: Callable[[str, Collection[str], int], Refusal | None],
        owner: TaskOwner,
        *,
        on_limit: Callable[[str], None],
    ) -> None:
        self._on_limit = on_limit
        self._certificate = certificate
        self.handshakes = Handshakes(
            at_once=MAX_TLS_HANDSHAKES,
            per_second=MAX_TLS_HANDSHAKES_PER_SECOND,
            timeout_s=HANDSHAKE_S,
        )
        self._refusal = refusal
        self._refusals = RareLine()
        self._listeners: list[ArrivalListener] = []
        self._door = Door(
            self,
            mode="permissive",
            admit=self._admit,
            on_limit=lambda limit: on_limit(_NAMES[limit]),
            new_protocol=lambda _: new_protocol(),
            silent_timeout_s=HANDSHAKE_S,
            owner=owner,
        )

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context of the next connection."""
        return self._certificate.context

    async def start(self, sockets: Sequence[Socket]) -> None:
        """Begin to accept at sockets that listen."""
        self._listeners = [
            ArrivalListener([sock], self._door.arrived, _BACKLOG) for sock in sockets
        ]
        for listener in self._listeners:
            await listener.start()

    def close(self) -> None:
        """Release the ports, and close what is not served yet. Idempotent."""
        for listener in self._listeners:
            listener.close()
        self._door.close()

    def _admit(self, arrival: Arrival) -> bool:
        refused = self._why_not(arrival)
        if refused is not None and not refused.is_of_address:
            now = asyncio.get_running_loop().time()
            if self._door.drop_silent(now - _SILENT_AT_LEAST_S):
                refused = self._why_not(arrival)
        if refused is not None:
            self._on_limit(refused.limit)
            if count := self._refusals.count():
                log.warning(
                    "connections refused", peer=arrival.peer, refused=count, reason=refused.reason
                )
        return refused is None

    def _why_not(self, arrival: Arrival) -> Refusal | None:
        waiting = [guest.arrival.peer_ip for guest in self._door.guests]
        return self._refusal(arrival.peer_ip, waiting, arrival.descriptor)
