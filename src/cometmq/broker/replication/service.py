"""Give the log of a master to its slaves, or copy it as a slave (Java: HAService)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from cometmq.access.config import AccessConfig
from cometmq.access.users.store import UserStore
from cometmq.broker.delays.state import DelayState
from cometmq.broker.parts import Parts, Service
from cometmq.broker.replication.confirmations import TableConfirmations
from cometmq.broker.replication.copies import NeededCopies
from cometmq.broker.replication.known_master import KnownMaster
from cometmq.broker.replication.proof import ProofHandlers, ask_for_token
from cometmq.broker.replication.role import bar_writes, serve_reads_while
from cometmq.broker.replication.status import StatusHandlers
from cometmq.broker.replication.tables import MasterTables
from cometmq.broker.tables import BrokerTables
from cometmq.errors import CometMQError, ConfigError, StoreError
from cometmq.logs.loggers import get_logger
from cometmq.protocol.bodies.overview import MessageRequestModes
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, ext_of, response
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.credentials import Credentials
from cometmq.replication.admission import SlaveAdmission
from cometmq.replication.divergence import Divergence, MasterLog, find_divergence
from cometmq.replication.master import ReplicationMaster
from cometmq.replication.slave import ReplicationSlave
from cometmq.runtime.sockets.addresses import is_loopback, join_address
from cometmq.runtime.sockets.network import Network
from cometmq.tls.server import ServerTls

log = get_logger(__name__)

# How long a master that stops waits for slaves that are nearly done.
_DRAIN_S: Final = 3.0
# mqadmin waits for five.
_PASS_ON_TIMEOUT_S: Final = 3.0


class Replication(Service):
    """Makes the master's side of the replication or the slave's, as the role says.

    `master` is None on a slave, and on an ASYNC_MASTER that could not have the port; `slave`,
    `known_master` and `tables` are None on masters. Before each connection a slave finds out who the
    master is, and compares the end of its log with that master's. `broker_tables` get what the
    master's tables say, and `users` what its access control says; `access` says who may be a slave.
    Requests to other brokers are signed with `credentials`. Open this before services register
    handlers: see `bar_writes`.
    """

    def __init__(
        self,
        parts: Parts,
        network: Network,
        broker_tables: BrokerTables,
        access: AccessConfig,
        users: UserStore | None = None,
        credentials: Credentials | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._parts = parts
        self._users = users
        self._broker_tables = broker_tables
        self._confirmations: TableConfirmations | None = None
        own_tls = None if tls is None else tls.own
        if parts.replication.ha_tls_enable and own_tls is None:
            raise ConfigError("haTlsEnable=true needs tls.enable=true, and has its certificates")
        # The broker's port of the master that is about to be followed.
        self._master_broker: str | None = None
        self._admission = SlaveAdmission(
            parts.replication.slaves_from,
            protected=access.protected_mode,
            needs_proof=access.is_on,
        )
        self._client = RemotingClient(credentials=credentials, tls=own_tls, network=network)
        self.master: ReplicationMaster | None = None
        # Of a slave: whether its log was found to continue its master's since the start.
        self._is_compared = False
        self.slave: ReplicationSlave | None = None
        self.known_master: KnownMaster | None = None
        self.tables: MasterTables | None = None
        if parts.replication.is_slave:
            self.known_master = KnownMaster(parts.replication.ha_master_address)
            self.tables = MasterTables(
                parts,
                broker_tables,
                self.known_master,
                self._client,
                lambda: self.divergence is not None,
                self._difference,
                users,
            )
            self.slave = ReplicationSlave(
                parts.store,
                parts.replication,
                clock=parts.clock,
                network=network,
                compare=self._compare,
                tls=own_tls if parts.replication.ha_tls_enable is not False else None,
                prove=self._prove,
            )
        else:
            self.master = ReplicationMaster(
                parts.store,
                parts.replication,
                host=parts.config.bind_address,
                network=network,
                workers=parts.workers,
                disk=parts.disk,
                tls=tls,
                admission=self._admission,
            )
            self.master.on_limit = parts.handlers.limit_hits.hit

    async def bind(self, broker_port: int) -> int | None:
        """Take the port for slaves and return it: `haListenPort`, else the one behind the broker's.

        Returns None for a slave, and where an ASYNC_MASTER goes on without. Raises ConfigError if
        the port cannot be had.
        """
        master, config = self.master, self._parts.replication
        if master is None:
            return None
        if config.ha_listen_port:
            await master.bind(config.ha_listen_port)
            return master.port
        try:
            await master.bind(broker_port + 1 if broker_port < 65535 else 0)
        except ConfigError as error:
            if not self._parts.config.listen_port:
                # The broker's port is a free one, so this one may be, too.
                await master.bind(0)
            elif config.broker_role == "SYNC_MASTER":
                raise
            else:
                # Not fatal: most brokers have no slaves.
                log.warning(
                    "no slave can copy this broker; name servers get no address for slaves",
                    reason=str(error),
                )
                master.release()
                self.master = None
                return None
        return master.port

    @property
    def needed(self) -> NeededCopies | None:
        """The copies that sends of a SYNC_MASTER wait for; None in other roles. Known after `bind`."""
        config = self._parts.replication
        if self.master is None or config.broker_role != "SYNC_MASTER":
            return None
        return NeededCopies(self.master, config)

    async def open(self) -> None:
        parts = self._parts
        if self._users is not None and self.tables is not None:
            self._users.pass_on = self._pass_on
        if self.tables is not None and (known := self.known_master) is not None:
            bar_writes(parts.handlers, parts.config, lambda: known.address)
            serve_reads_while(parts.handlers, self._reason_for_no_reads)
            self.tables.open()
        else:
            self._note_own_end()
        StatusHandlers(parts, self).register(parts.handlers)
        if self.master is not None:
            ProofHandlers(parts.config, self._admission).register(parts.handlers)
            confirmations = self._confirmations = TableConfirmations(
                parts, self._broker_tables, self.master, self._users
            )
            confirmations.register(parts.handlers)
            if self._users is not None:
                self._users.confirmed = confirmations.confirmed

    async def confirmed(self) -> None:
        """Return when slaves have the tables as they are now; see `TableConfirmations`."""
        if self._confirmations is not None:
            await self._confirmations.confirmed()

    async def _pass_on(self, request: Request[Any]) -> RemotingCommand:
        """Have the master make a change of users, with the signature of the client that asked this slave.

        So the master judges who asks, and this slave's own credentials open nothing to anybody.
        """
        address = self.known_master.address if self.known_master is not None else None
        if address is None:
            raise CometMQError(
                "users are changed at the master, and no name server knows it: start the master",
                code=ResponseCode.SERVICE_NOT_AVAILABLE,
            )
        connection = await self._client.connection(address)
        command = RemotingCommand(request.code, ext=ext_of(request), body=request.body)
        answer = await connection.call(command, _PASS_ON_TIMEOUT_S)
        if self.tables is not None and answer.code == ResponseCode.SUCCESS:
            await self.tables.copy()
        return response(answer.code, answer.remark)

    def show_delays(self, show: Callable[[DelayState], None]) -> None:
        """Have `show` called with the progress of a master's delayed messages; see `MasterTables`."""
        if self.tables is not None:
            self.tables.show_delays(show)

    def copy_modes(self, take: Callable[[MessageRequestModes], None]) -> None:
        """Have `take` called with the master's choice which groups pop, whenever it is copied."""
        if self.tables is not None:
            self.tables.on_modes = take

    def start(self) -> None:
        if self.tables is not None:
            self.tables.start()

    async def listen(self) -> None:
        """Begin to serve slaves, or to copy from the master."""
        if self.master is not None:
            if self._admission.is_open and not is_loopback(self._parts.config.bind_address):
                log.warning(
                    "every host that reaches the port for slaves can copy all messages",
                    address=join_address(self._parts.config.bind_address, self.master.port),
                    remedy="name the addresses of the slaves in slavesFrom",
                )
            await self.master.start()
        if self.slave is not None and self.known_master is not None:
            if not self.known_master.candidates() and not self._parts.config.name_servers():
                log.error(
                    "this slave has no way to find its master: set namesrvAddr or haMasterAddress"
                )
            self.known_master.on_change.append(self._follow)
            self._follow()
            self.slave.start()

    def _follow(self) -> None:
        if self.slave is not None and (known := self.known_master) is not None:
            self.slave.follow(known.ha_address)
            if known.is_reported and known.ha_address is None:
                log.error(
                    "this slave copies nothing: its master serves no slaves",
                    master=known.address,
                    remedy="the master's log says why; give it a haListenPort that is free",
                )

    async def _compare(self, _ha_address: str) -> Divergence | None:
        """Return how the own log differs from that of the master. Raises CometMQError if the master
        is not the right one, or does not answer.
        """
        assert self.tables is not None, "a slave has them"
        self._master_broker = None
        address = await self.tables.check()
        difference = await self._difference(address)
        if difference is None:
            self._parts.store.note_own_end(there=False)
            self._is_compared = True
            self.tables.trust(address)
            self._master_broker = address
        else:
            self._note_own_end()
        return difference

    def _reason_for_no_reads(self) -> str | None:
        if self._is_compared or not self._parts.store.may_differ_from_master:
            return self.divergence
        return self.divergence or (
            "this broker was a master, its log once differed from its master's, or its store comes from "
            "another program; the log was not compared with that of the present master yet; see to it that "
            "this broker reaches that one"
        )

    def _note_own_end(self) -> None:
        try:
            self._parts.store.note_own_end(there=True)
        except StoreError as error:
            log.warning(
                "if this broker starts as a slave, it will not know that its log may differ from its master's",
                reason=str(error),
            )

    async def _prove(self) -> bytes | None:
        """Return what shows the master that this is a slave, None where it asks for nothing."""
        assert self._master_broker is not None, "the logs were compared before"
        name = self._parts.config.broker_name
        return await ask_for_token(self._client, self._master_broker, name)

    async def _difference(self, address: str) -> Divergence | None:
        return await find_divergence(self._parts.store, MasterLog(self._client, address))

    @property
    def divergence(self) -> str | None:
        """How a slave's log differs from its master's, as far as is known."""
        found = None if self.slave is None else self.slave.divergence
        return None if found is None else str(found)

    async def stop_copying(self) -> None:
        """End the connection of a slave; call it before what it uses is closed."""
        if self.slave is not None:
            await self.slave.close()
        if self.tables is not None:
            self.tables.stop()
        await self._client.close()

    async def stop_serving(self) -> None:
        """Give slaves in step the end of the log, then close; call it when nothing is appended."""
        if self.master is None:
            return
        await self._commit()
        await self.master.drain(_DRAIN_S)
        await self.master.close()
        self.master.release()

    async def _commit(self) -> None:
        """Give slaves the bytes that wait in the transient store pool, which nothing commits any
        more.
        """
        master, store = self.master, self._parts.store
        assert master is not None, "only masters serve"
        if not store.config.uses_transient_pool:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(master.reader, store.commit)
            store.publish()
        except StoreError as error:
            log.warning("slaves may lack the end of the log", reason=str(error))
