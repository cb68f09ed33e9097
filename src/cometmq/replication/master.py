"""Send the commit log of a master to its slaves (Java: DefaultHAService, DefaultHAConnection).

A slave reports where its log ends, and gets what follows in batches, which lie in one file each.
The records appended last are sent as slices of the mapped log, in the turn of the loop that follows the
append. A slave that is far behind would have the loop wait for pages that only the disk has, so a
thread reads for it.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from typing import Final

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.logs.rare_line import RareLine
from cometmq.replication.admission import MOST_UNKNOWN, SlaveAdmission
from cometmq.replication.config import ReplicationConfig
from cometmq.replication.slave_connection import SlaveConnection
from cometmq.runtime.sockets.arrivals import Arrival
from cometmq.runtime.sockets.network import Listener, Network
from cometmq.runtime.tasks import TaskOwner
from cometmq.runtime.workers import Workers
from cometmq.store.files.disk import Disk
from cometmq.store.store import MessageStore
from cometmq.tls.handshakes import Door
from cometmq.tls.server import ServerTls

log = get_logger(__name__)

# A slave that has connected may take this long for its first report while others want its place.
_SILENT_AT_LEAST_S: Final = 1.0
_BACKLOG: Final = 16


class ReplicationMaster:
    """Serves the slaves of one broker at `host`. For the loop's thread only.

    Every peer that connects is served, unless `admission` says who is. `on_acknowledged` are called after slaves have reported that they have more of the log, and when
    a slave has gone.
    """

    def __init__(
        self,
        store: MessageStore,
        config: ReplicationConfig,
        *,
        host: str,
        network: Network,
        workers: Workers,
        disk: Disk,
        tls: ServerTls | None = None,
        admission: SlaveAdmission | None = None,
    ) -> None:
        self.store = store
        self.config = config
        self.disk = disk
        self.admission = admission
        self.reader = workers.worker("read-for-slaves")
        # Called with the name of the limit that refuses or closes a connection.
        self.on_limit: Callable[[str], None] = lambda _limit: None
        self.on_acknowledged: list[Callable[[], None]] = []
        # All bytes sent to slaves, of connections that are gone, too.
        self.sent_bytes_before = 0
        self._host = host
        self._network = network
        self._tls = tls
        self._door: Door | None = None
        self._owner = TaskOwner("replication-master")
        self._listener: Listener | None = None
        # A dict, because it has an order.
        self._connections: dict[SlaveConnection, None] = {}
        # Peers that have yet to prove that they are slaves.
        self._unknown: dict[SlaveConnection, None] = {}
        self._loop = asyncio.get_running_loop()
        self._awaits_append = False
        self._closing = False
        self._refusals = RareLine()
        self._all_gone: asyncio.Future[None] | None = None

    # -- lifecycle --

    @property
    def port(self) -> int:
        """Return the port, which is known after `bind` and stays known after `close`."""
        assert self._listener is not None, "the port is not bound"
        return self._listener.port

    async def bind(self, port: int) -> None:
        """Take the port without listening yet. Raises ConfigError when it cannot be had."""
        try:
            self._listener = await self._listen(port)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "another process has the port" if taken else error.strerror or str(error)
            raise ConfigError(
                f"haListenPort: slaves cannot be served on {self._host}:{port}: {reason}; set "
                "haListenPort to a free port, without it the port is listenPort + 1"
            ) from error

    async def _listen(self, port: int) -> Listener:
        mode = self._tls_mode()
        if self._tls is None or mode == "disabled":
            return await self._network.listen(
                lambda: SlaveConnection(self), self._host, port, backlog=_BACKLOG
            )
        self._door = Door(
            self._tls,
            mode=mode,
            admit=self._admit_arrival,
            on_limit=self._meet_limit,
            new_protocol=lambda _: SlaveConnection(self),
            silent_timeout_s=self.config.ha_housekeeping_interval / 1000,
            owner=self._owner,
        )
        return await self._network.accept(self._door.arrived, self._host, port, backlog=_BACKLOG)

    def _meet_limit(self, limit: str) -> None:
        self.on_limit(limit)  # it is set later

    def _tls_mode(self) -> str:
        served = "disabled" if self._tls is None else self._tls.mode
        mode = self.config.ha_tls_mode or served
        if mode != "disabled" and served == "disabled":
            raise ConfigError(
                f"haTlsMode={mode} needs a certificate: set tls.server.certPath, and not "
                "tls.server.mode=disabled"
            )
        return mode

    async def start(self) -> None:
        """Serve slaves; `bind` first."""
        assert self._listener is not None, "the port is not bound"
        await self._listener.start()

    async def drain(self, timeout_s: float) -> bool:
        """Wait until the slaves in step have all of the log; return whether they have.

        For a stop, when nothing is appended any more: so a slave that takes over lacks nothing.
        """
        deadline_s = self._loop.time() + timeout_s
        end = self.store.commit_log.readable_end
        while behind := [slave for slave in self.slaves_in_step() if slave.acknowledged < end]:
            left_s = deadline_s - self._loop.time()
            if left_s <= 0:
                log.warning(
                    "slaves lack the end of the log",
                    commit_log_end=end,
                    slaves={slave.peer: slave.acknowledged for slave in behind},
                )
                return False
            woken = self._loop.create_future()
            self.on_acknowledged.append(wake := _waker(woken))
            try:
                await asyncio.wait([woken], timeout=left_s)
            finally:
                self.on_acknowledged.remove(wake)
        return True

    async def close(self) -> None:
        """Stop listening and close all connections. Idempotent."""
        self._closing = True
        if self._listener is not None:
            self._listener.close()
        if self._door is not None:
            self._door.close()
        await self._owner.close()
        for connection in list(self._unknown):
            connection.abort()
        if self._connections:
            self._all_gone = self._loop.create_future()
            for connection in list(self._connections):
                connection.close("this broker stops")
            # Bytes that a peer does not read are thrown away.
            await asyncio.wait([self._all_gone], timeout=1.0)
            for connection in list(self._connections):
                connection.abort()
        if self._listener is not None:
            await self._listener.wait_closed()

    def release(self) -> None:
        """End the thread that reads; call it after `close`."""
        self.reader.shutdown(wait=True)

    # -- what slaves have --

    @property
    def slaves(self) -> tuple[SlaveConnection, ...]:
        """The slaves that are connected and whose log ends where a record of this one does."""
        return tuple(slave for slave in self._connections if slave.acknowledged >= 0)

    def slaves_in_step(self) -> list[SlaveConnection]:
        """Return the slaves that lack less than haMaxGapNotInSync bytes."""
        floor = self.store.commit_log.end - self.config.max_gap
        return [slave for slave in self._connections if slave.acknowledged > max(floor, -1)]

    def acknowledged_by(self, count: int) -> int:
        """Return the offset up to which so many slaves have the log; -1 with fewer slaves."""
        if count == 1:
            return max([slave.acknowledged for slave in self._connections], default=-1)
        offsets = sorted((slave.acknowledged for slave in self._connections), reverse=True)
        return offsets[count - 1] if len(offsets) >= count else -1

    @property
    def sent_bytes(self) -> int:
        """All bytes that were sent to slaves since the start."""
        return self.sent_bytes_before + sum(slave.speed.total for slave in self._connections)

    # -- for the connections --

    def admit(self, connection: SlaveConnection, peer_ip: str, local_ip: str) -> bool:
        """Take a new connection; return False when there is no place for it, or it is not for its
        peer.
        """
        admission = self.admission
        if admission is None or admission.knows(peer_ip, local_ip):
            connection.is_proved = True
            return self.welcome(connection)
        if not admission.needs_proof or self._closing:
            admission.note_refusal(connection.peer, admission.refusal(peer_ip))
            return False
        if len(self._unknown) >= MOST_UNKNOWN:
            next(iter(self._unknown)).refuse()
        self._unknown[connection] = None
        return True

    def welcome(self, connection: SlaveConnection) -> bool:
        """Take a connection of a slave; return False when there is no place for it."""
        self._unknown.pop(connection, None)
        if not self._has_place(connection.peer):
            return False
        self._connections[connection] = None
        return True

    @property
    def door(self) -> Door | None:
        """The door at which connections wait for their handshake; None where it is not open."""
        return self._door

    def _admit_arrival(self, arrival: Arrival) -> bool:
        """Return whether a connection that was just accepted may go on to a handshake.

        A peer that may be a slave shares places with others of its kind, and takes none of the slaves'.
        """
        admission, door = self.admission, self._door
        assert door is not None, "it asks this"
        if self._closing:
            return False
        if admission is None or admission.knows(arrival.peer_ip, arrival.local_ip):
            if not self._has_place(arrival.peer):
                return False
        elif not admission.needs_proof:
            admission.note_refusal(arrival.peer, admission.refusal(arrival.peer_ip))
            return False
        if len(door.guests) >= MOST_UNKNOWN:
            # Peers that begin a handshake and do not go on must not keep the slaves out.
            door.make_room()
        return True

    def _has_place(self, peer: str) -> bool:
        limit = self.config.max_ha_connections
        if self._closing:
            return False
        if len(self._connections) >= limit:
            self.on_limit("maxHaConnections")
            if not self._drop_silent():
                self._refuse(peer, f"maxHaConnections={limit}")
                return False
        return True

    def forget(self, connection: SlaveConnection) -> None:
        """Note that a connection is gone."""
        self._unknown.pop(connection, None)
        if connection not in self._connections:
            return
        del self._connections[connection]
        self.sent_bytes_before += connection.speed.total
        self.acknowledged()
        if self._all_gone is not None and not self._connections and not self._all_gone.done():
            self._all_gone.set_result(None)

    def acknowledged(self) -> None:
        """Call everything that waits for slaves."""
        for callback in tuple(self.on_acknowledged):
            callback()

    def wait_for_append(self) -> None:
        """Have all connections go on after the next append."""
        if not self._awaits_append:
            self._awaits_append = True
            self.store.commit_log.call_before_append(self._append_begins)

    def _append_begins(self) -> None:
        self._awaits_append = False
        # In the next turn of the loop, when all sends of this one have been appended.
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        for connection in tuple(self._connections):
            try:
                connection.go_on()
            except Exception:  # the other slaves must get their bytes
                log.exception("connection of a slave closed: it cannot be served")
                connection.close("sending to it failed")

    def _drop_silent(self) -> bool:
        now_s = self._loop.time()
        for connection in self._connections:
            if connection.start < 0 and now_s - connection.made_s >= _SILENT_AT_LEAST_S:
                connection.close("it has never reported an offset, and others need its place")
                self.forget(connection)
                return True
        return False

    def _refuse(self, peer: str, limit: str) -> None:
        if refused := self._refusals.count():
            log.warning(
                "connections of slaves refused: too many",
                peer=peer,
                refused=refused,
                limit=limit,
                open=_names(self._connections),
                remedy="let only slaves reach the port, or raise the limit",
            )


def _names(connections: Iterable[SlaveConnection]) -> str:
    return ", ".join(connection.peer for connection in connections)


def _waker(future: asyncio.Future[None]) -> Callable[[], None]:
    def wake() -> None:
        if not future.done():
            future.set_result(None)

    return wake
