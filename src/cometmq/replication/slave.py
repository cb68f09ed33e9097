"""Copy the commit log of a master (Java: DefaultHAClient).

A slave connects to its master, reports where its own log ends, and appends what the master sends.
It never overwrites: what does not continue its log closes the connection, with both offsets in the
reason, and the store stays as it was.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.remoting.client import split_address
from cometmq.replication.config import ReplicationConfig
from cometmq.replication.divergence import Divergence
from cometmq.replication.master_connection import MasterConnection
from cometmq.replication.pace import Speed
from cometmq.runtime.clock import Clock
from cometmq.runtime.sockets.network import Network
from cometmq.runtime.tasks import TaskOwner
from cometmq.store.store import MessageStore
from cometmq.tls.contexts import handshake_fault

log = get_logger(__name__)

# As in Java.
_RETRY_S: Final = 5.0
# Only operators can mend a log that has diverged.
_DIVERGED_RETRY_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 3.0
# The same reason is logged again after this time.
_SAY_AGAIN_S: Final = 60.0
_ANOTHER_MASTER: Final = "another master is to be followed"


class ReplicationSlave:
    """Follows one master at a time. For the loop's thread only.

    `compare` is called before each connection with the address that is about to be asked. A result is
    kept as `divergence`: nothing is copied then, and the master is asked again later. A CometMQError
    that it raises is the reason not to connect now. `prove` is called next; the token that it returns,
    if any, shows the master that this is a slave. With `tls`, which returns the context for the next
    connection, connections to the master are encrypted.
    """

    def __init__(
        self,
        store: MessageStore,
        config: ReplicationConfig,
        *,
        clock: Clock,
        network: Network,
        compare: Callable[[str], Awaitable[Divergence | None]] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        prove: Callable[[], Awaitable[bytes | None]] | None = None,
    ) -> None:
        self.store = store
        self.config = config
        self.clock = clock
        self._network = network
        self._tls = tls
        self._compare = compare
        self._prove = prove
        self._loop = asyncio.get_running_loop()
        self._owner = TaskOwner("replication-slave")
        self._address: str | None = None
        self._changed = asyncio.Event()
        self._connection: MasterConnection | None = None
        self._reason: str | None = None
        # How this log differs from the master's; None when it was found to continue it, and before
        # the first look.
        self.divergence: Divergence | None = None
        # The last log line, and its time.
        self._said: str | None = None
        self._said_s = -_SAY_AGAIN_S
        # ms since the epoch, 0 before the first time.
        self.last_read_ms = 0
        self.last_write_ms = 0
        self.speed = Speed(self._loop.time())

    @property
    def master_address(self) -> str | None:
        """The HA address of the master that is followed, None while none is known."""
        return self._address

    @property
    def is_connected(self) -> bool:
        """Whether a connection to the master is open."""
        return self._connection is not None and not self._connection.closed

    @property
    def reason(self) -> str | None:
        """Why nothing is copied now, None as long as all is well."""
        if self._connection is not None and self._connection.held_up is not None:
            return self._connection.held_up
        return self._reason

    def follow(self, address: str | None) -> None:
        """Copy from the master whose HA address this is from now on, from none for None."""
        if address == self._address:
            return
        self._address = address
        # A log that was found to differ stays so until it is compared with that of the next master.
        self._reason = self._said = None
        self._changed.set()
        if self._connection is not None:
            self._connection.close(_ANOTHER_MASTER)

    def start(self) -> None:
        """Begin to connect."""
        self._owner.spawn(self._keep_following(), "follow")

    async def close(self) -> None:
        """End the connection. Of the last record only whole ones stay in the log. Idempotent."""
        connection = self._connection
        if connection is not None:
            connection.close("this broker stops")
        await self._owner.close()

    async def _keep_following(self) -> None:
        while True:
            self._changed.clear()
            address = self._address
            if address is None:
                await self._changed.wait()
                continue
            try:
                reason = await self._follow_once(address)
            except (CometMQError, OSError, TimeoutError) as error:
                reason = str(error) or "no answer in time"
            except Exception as error:
                # A mistake of ours must not end the replication until the next start.
                log.exception("following the master failed", master=address)
                reason = f"an error of this broker: {error!r}"
            if address == self._address:
                self._say(address, reason)
            found = self.divergence is not None and reason == str(self.divergence)
            pause_s = _DIVERGED_RETRY_S if found else _RETRY_S
            try:
                await asyncio.wait_for(self._changed.wait(), pause_s)
            except TimeoutError:
                continue

    async def _follow_once(self, address: str) -> str:
        """Copy as long as the connection lasts; return why it ended."""
        host, port = split_address(address)
        # The rest of a record that this master, or another, had not finished.
        self.store.forget_partial_record()
        if self._compare is not None:
            divergence = await self._compare(address)
            if address != self._address:
                return _ANOTHER_MASTER
            self.divergence = divergence
            if divergence is not None:
                return str(divergence)
        token = None if self._prove is None else await self._prove()
        if address != self._address:
            return _ANOTHER_MASTER
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                # A name of several addresses may make several connections, of which one is taken.
                connection = await self._network.connect(
                    lambda: MasterConnection(self),
                    host,
                    port,
                    tls=None if self._tls is None else self._tls(),
                )
        except TimeoutError:
            return f"{address} did not accept a connection within {_CONNECT_TIMEOUT_S:g} s"
        except OSError as error:
            return str(error) if self._tls is None else handshake_fault(error)
        self._connection = connection
        self._reason = None
        try:
            if address != self._address:
                return _ANOTHER_MASTER
            connection.begin(token)
            return await connection.ended
        finally:
            self._connection = None
            connection.close("this broker stops")

    def _say(self, address: str, reason: str) -> None:
        now_s = self._loop.time()
        if reason != self._said or now_s - self._said_s >= _SAY_AGAIN_S:
            self._said, self._said_s = reason, now_s
            log.warning(
                "the master is not followed",
                master=address,
                reason=reason,
                own_end=self.store.replicated_end,
            )
        self._reason = reason
