"""Compose a broker of its services, and open, start and close them in order.

Java: BrokerController. Nothing here serves a request: each package beside this module has a
capability of the broker, with a `service.py` that puts it together.

Longer than 500 lines: the order in which all parts open, start and close is decided in one place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeVar

from cometmq.access.choice import choose_rules, users_of
from cometmq.access.config import AccessConfig
from cometmq.access.control import AccessControl
from cometmq.access.credentials import inner_credentials
from cometmq.access.doors import log_who_is_served, pages_protection, requests_protection
from cometmq.access.rules import Identity, Rules
from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays.service import Delays
from cometmq.broker.filters.predicates import FilterPredicates
from cometmq.broker.filters.property_filters import PropertyFilters
from cometmq.broker.filters.service import Filters
from cometmq.broker.filters.work import FilterWork
from cometmq.broker.groups.clients import ClientManager
from cometmq.broker.groups.groups import GroupManager
from cometmq.broker.groups.offsets import ConsumerOffsetManager
from cometmq.broker.groups.service import Groups
from cometmq.broker.long_answer import LongAnswers
from cometmq.broker.operation.address_warnings import AddressWarnings
from cometmq.broker.operation.config_handlers import NOTHING_GIVEN, GivenConfig
from cometmq.broker.operation.registration import Registration
from cometmq.broker.operation.service import Operation
from cometmq.broker.parts import Parts, Service
from cometmq.broker.pop.service import Pops
from cometmq.broker.pulls.service import Pulls
from cometmq.broker.pulls.waiting import Waiting
from cometmq.broker.replication.found_in_log import find_in_log
from cometmq.broker.replication.master_check import check_alone
from cometmq.broker.replication.service import Replication
from cometmq.broker.retries.service import Retries
from cometmq.broker.sends.service import Sends, group_commit
from cometmq.broker.storage.flushing import CommitLogFlusher
from cometmq.broker.storage.opening import OpeningProgress
from cometmq.broker.storage.service import Storage
from cometmq.broker.tables import BrokerTables
from cometmq.broker.topics.service import Topics
from cometmq.broker.topics.topics import TopicManager
from cometmq.broker.traffic import Traffic
from cometmq.broker.transactions.service import TransactionService
from cometmq.errors import ConfigError
from cometmq.filtering import sql92
from cometmq.logs.loggers import get_logger
from cometmq.metrics.catalogue import Server
from cometmq.protocol.messages.ids import pack_host
from cometmq.remoting.access import AdminAccess
from cometmq.remoting.connection import ConnectionLimits
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.holdings import Holdings
from cometmq.remoting.http.request_meter import RequestMeter
from cometmq.remoting.server import ConnectionCounts, RemotingServer
from cometmq.replication.config import ReplicationConfig
from cometmq.runtime.clock import BlockingClock, SteadyClock
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.sockets.addresses import join_address
from cometmq.runtime.sockets.network import Network
from cometmq.runtime.sockets.within import NetworkWithin
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.state_files.state_writer import StateWriter
from cometmq.runtime.surroundings import current, files_of
from cometmq.runtime.tasks import TaskOwner
from cometmq.runtime.workers import Workers
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.layout import check_usable
from cometmq.store.store import MessageStore
from cometmq.tls.server import server_tls

if TYPE_CHECKING:
    from cometmq.access.users.store import UserStore
    from cometmq.broker.metrics.service import Metrics
    from cometmq.remoting.http.monitoring import Monitoring
    from cometmq.replication.slave import ReplicationSlave

log = get_logger(__name__)

ServiceT = TypeVar("ServiceT", bound=Service)

# The port of the VIP channel is lower than the broker's by this number.
VIP_PORT_DISTANCE = 2
# How long a pull may wait that came after a stop began.
_RELEASE_AGAIN_S = 0.05


class Broker:
    """A broker on the running loop. Call `start` once and `close` once, in that loop's thread only.

    `given` says where the settings come from, for requests that read or change them.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        replication: ReplicationConfig | None = None,
        access: AccessConfig | None = None,
        *,
        clock: BlockingClock | None = None,
        randomness: Randomness | None = None,
        network: Network | None = None,
        workers: Workers | None = None,
        disk: Disk | None = None,
        given: GivenConfig = NOTHING_GIVEN,
    ) -> None:
        around = current()
        clock, workers = clock or around.clock, workers or around.workers
        self.config = config
        self.store_config = store_config
        self.replication = replication or ReplicationConfig()
        self.access = access or AccessConfig()
        self._given = given
        # Files and clients get their times from the machine's clock; everything else uses a clock
        # that never goes back.
        self._wall = clock
        self._clock = SteadyClock(clock)
        self._randomness = randomness or around.randomness
        self._network = network or around.network
        self._workers = workers
        self._disk = disk or Disk()
        self._files = files_of(self._disk)
        self._config_directory = store_config.store_path_root_dir / "config"
        self._tasks = TaskOwner("broker")
        self._state = StateWriter(workers, clock)
        is_monitored = config.metrics_exporter_type == "PROM"
        meter = RequestMeter(clock.monotonic) if is_monitored else None
        self._rules = self._chosen_rules(clock)
        self._credentials = inner_credentials(self.access)
        self._control = None if self._rules is None else AccessControl(self._rules, clock)
        self._handlers = Handlers(self._control or AdminAccess(config.admin_from), meter)
        self._holdings = Holdings(config.max_bytes_in_flight)
        self._counts = ConnectionCounts(config.max_connections, config.max_connections_per_address)
        self._tls = server_tls(config, clock)
        # The settings that encrypt this broker's own connections, to name servers and to its master.
        self._own_tls = None if self._tls is None else self._tls.own
        self._clients = ClientManager(self._clock)
        self._filter_work = FilterWork()
        self._waiting = Waiting(
            self._filter_work,
            workers,
            config.max_held_pulls,
            config.max_held_pulls_per_connection,
        )
        self._waiting.on_limit = self._handlers.limit_hits.hit
        # One for both ports, because it counts what it refuses.
        self._protection = requests_protection(self.access, "broker")
        self._address_warnings = AddressWarnings(self._network)
        self._remoting = self._listener(config.listen_port)
        self._vip: RemotingServer | None = None
        self._monitoring = self._new_monitoring() if is_monitored else None
        self._ha_port: int | None = None
        self._copies: Replication | None = None
        self._parts: Parts | None = None
        self._metrics: Metrics | None = None
        self._services: list[Service] = []
        # The parts to be closed, the last first. So a start that fails closes what it has opened.
        self._closing = AsyncExitStack()
        self._closed = False
        # Called when the broker stops, before it closes its connections: servers beside it, which use it.
        self.on_stop: list[Callable[[], Awaitable[None]]] = []

    def _chosen_rules(self, clock: BlockingClock) -> Rules | None:
        config = self.config
        return choose_rules(
            self.access,
            clock=clock,
            files=self._files,
            workers=self._workers,
            identity=lambda: Identity(config.broker_cluster_name, config.broker_name, self.address),
            directory=self._config_directory,
        )

    @property
    def port(self) -> int:
        return self._remoting.port

    @property
    def handlers(self) -> Handlers:
        """Which requests are served, and how."""
        return self._handlers

    @property
    def address(self) -> str:
        """The address by which clients reach this broker, as name servers hand it out."""
        return join_address(self.config.broker_ip1, self._advertised_port)

    @property
    def ha_port(self) -> int:
        """The port on which slaves are served: `haListenPort`, by default the next one."""
        return self._ha_port or self.replication.ha_listen_port or self.port + 1

    @property
    def ha_address(self) -> str:
        """The address by which slaves reach this broker, as name servers hand it out; "" where it
        serves none: another broker may listen at that port, and its log must not be copied.
        """
        if self._copies is not None and self._copies.master is None and self._copies.slave is None:
            return ""
        host = self.config.broker_ip2 or self.config.broker_ip1
        return join_address(host, self.replication.advertised_ha_port or self.ha_port)

    @property
    def _advertised_port(self) -> int:
        return self.config.advertised_port or self.port

    @property
    def slave(self) -> ReplicationSlave | None:
        """The service that copies the log of the master; None on a master, and before the start."""
        return None if self._copies is None else self._copies.slave

    @property
    def metrics_address(self) -> str | None:
        """The address of `/metrics`, `/health` and `/ready`; None where metrics are off."""
        return None if self._monitoring is None else self._monitoring.http.address

    @property
    def monitoring(self) -> Monitoring:
        """The service of metrics, which must be on."""
        assert self._monitoring is not None, "metricsExporterType is not PROM"
        return self._monitoring

    @property
    def listener(self) -> RemotingServer:
        """The server of the main port, which has the connections of clients."""
        return self._remoting

    @property
    def holdings(self) -> Holdings:
        """The bytes that all connections hold, and their limit."""
        return self._holdings

    @property
    def registration(self) -> Registration:
        """The service that registers this broker at name servers, known after the start."""
        return self._registration

    @property
    def parts(self) -> Parts:
        """The parts that the services share."""
        assert self._parts is not None, "the broker is not started"
        return self._parts

    @property
    def store(self) -> MessageStore:
        return self.parts.store

    @property
    def topics(self) -> TopicManager:
        return self.parts.topics

    @property
    def groups(self) -> GroupManager:
        return self.parts.groups

    @property
    def offsets(self) -> ConsumerOffsetManager:
        return self.parts.offsets

    @property
    def clients(self) -> ClientManager:
        return self._clients

    @property
    def users(self) -> UserStore | None:
        """Users and policies, None unless access control 2.0 is on."""
        return users_of(self._rules)

    @property
    def copies(self) -> Replication:
        """The part that serves slaves, or copies from a master."""
        assert self._copies is not None, "the broker is not started"
        return self._copies

    @property
    def predicates(self) -> FilterPredicates:
        return self.parts.predicates

    async def start(self) -> None:
        """Open the store, listen, register. Raises ConfigError or StoreError; then nothing runs."""
        try:
            await self._start()
        except BaseException:
            # Also when `close` came meanwhile: it could only undo what had been done by then.
            self._closed = True
            await self._closing.aclose()
            raise
        log.info("broker started", name=self.config.broker_name, address=self.address)

    async def close(self) -> None:
        """Unregister, answer the waiting pulls, persist and flush everything, release the store.

        Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        if self._monitoring is not None:
            self._monitoring.state = lambda: "the broker is stopping"
        await self._closing.aclose()

    async def _start(self) -> None:
        """Start step by step.

        Before each next step push what undoes the last one: `close` undoes the steps in reverse.
        """
        closing = self._closing
        if self._monitoring is not None:
            if self._control is not None:
                self._monitoring.collectors.append(self._control.collect)
            # First, because probes ask while the store is recovered, and last to be closed.
            closing.push_async_callback(self._monitoring.close)
            await self._monitoring.start()
        # For a start that fails. After a start that succeeds, `close` closes both before the
        # services, and closing them twice does nothing.
        closing.push_async_callback(self._tasks.close)
        closing.push_async_callback(self._remoting.close)
        if self._tls is not None:
            await self._tls.load()
        await self._remoting.bind()
        if self._rules is not None:
            closing.push_async_callback(self._rules.close)
            await self._rules.open()
        # Before the store is touched.
        await check_alone(
            self.config, self.address, self._network, self._credentials, self._own_tls
        )
        tables = await self._open_parts()
        copies = self._copies = Replication(
            self.parts,
            self._network,
            tables,
            self.access,
            users_of(self._rules),
            self._credentials,
            self._tls,
        )
        # Closed late, after all that writes to the log: slaves get the end of it.
        closing.push_async_callback(copies.stop_serving)
        self._ha_port = await copies.bind(self.port)
        self._registration = self._new_registration(copies)
        await self._open_services(tables)
        if self._closed:
            raise ConfigError(f"the broker {self.config.broker_name} was closed while it started")
        closing.push_async_callback(copies.stop_copying)
        closing.push_async_callback(self._tasks.close)
        for service in self._services:
            service.start()
        if self._tls is not None:
            self._tls.start(self._tasks)
        if self._rules is not None:
            self._rules.start(self._tasks)
        closing.push_async_callback(self._remoting.close)
        log_who_is_served(self.access, "broker", self.config.bind_address, self.port)
        await self._listen()
        await copies.listen()
        closing.push_async_callback(self._stop_beside)
        closing.push_async_callback(self._answer_held_pulls)
        closing.push_async_callback(self._registration.close)
        await self._registration.start()
        if self._monitoring is not None and self._metrics is not None:
            self._monitoring.state = self._metrics.ready

    def _new_registration(self, copies: Replication) -> Registration:
        return Registration(
            self.config,
            self.topics,
            address=self.address,
            ha_address=self.ha_address,
            tasks=self._tasks,
            network=self._network,
            credentials=self._credentials,
            master=copies.known_master,
            on_connect=self._address_warnings.met,
            tls=self._own_tls,
        )

    async def _open_services(self, tables: BrokerTables) -> None:
        """Open the services in order; each is made of parts and of services above it."""
        parts = self.parts
        copies = await self._opened(self.copies)
        # A slave bars requests before anybody registers for them.
        if self._rules is not None:
            self._rules.register(self._handlers)
        delays = await self._opened(Delays(parts))
        copies.show_delays(delays.show)
        traffic = self.traffic = Traffic(parts.clock, parts.store, parts.topics, delays.messages)
        groups = await self._opened(
            Groups(parts, tables, self._registration.route_of, copies.confirmed, copies.copy_modes)
        )
        retries = await self._opened(
            Retries(
                parts, delays.put, groups.locks.holds_any, traffic.sent_back, traffic.pulled_bytes
            )
        )
        waits = group_commit(parts, copies.needed)
        self.transactions = await self._opened(TransactionService(parts, delays.put.put, waits))
        sends = await self._opened(
            Sends(
                parts,
                delays.put,
                self.transactions.prepare,
                retries.handler,
                self._registration.announced,
                copies.needed,
                waits,
            )
        )
        waiting_from: dict[tuple[str, int], int] = {}
        if not self.replication.is_slave:
            waiting_from = delays.messages.waiting_from() | self.transactions.waiting_from()
        await find_in_log(parts, tables, waiting_from)
        parts.topics.on_change.append(self._registration.topics_changed)
        await self._opened(Filters(parts))
        await self._opened(Pulls(parts, traffic))
        self.pops = await self._opened(Pops(parts, traffic, waits, groups.modes.mode_of))
        await self._opened(
            Operation(
                parts,
                self._given,
                traffic,
                delays.messages,
                self.transactions,
                self.pops.state.handed_out,
            )
        )
        if self._monitoring is not None:
            self._metrics = await self._open_metrics(self._monitoring, delays, sends, copies)
        # A slave's log gets the copies that its master makes.
        is_slave = self.replication.is_slave
        rolls = [] if is_slave else [delays.roll, self.transactions.roll, self.pops.roll]
        storage = await self._opened(Storage(parts, rolls))
        announced = self._registration.announced
        await self._opened(Topics(parts, tables, announced, storage.work_off, copies.confirmed))

    async def _open_metrics(
        self, monitoring: Monitoring, delays: Delays, sends: Sends, copies: Replication
    ) -> Metrics:
        from cometmq.broker.metrics.service import Metrics

        return await self._opened(
            Metrics(
                self.parts,
                monitoring,
                delays.messages,
                self.transactions,
                self.traffic,
                lambda: sends.waiting_count,
                copies,
                self.pops.state,
            )
        )

    async def _opened(self, service: ServiceT) -> ServiceT:
        if self.replication.is_slave and not service.runs_on_slave:
            return service
        await service.open()
        self._closing.callback(service.close)
        self._services.append(service)
        return service

    async def _own_ip(self) -> str:
        """Return the IP address of `brokerIP1`, which stands in every message id."""
        host = self.config.broker_ip1
        try:
            return await self._network.resolve(host)
        except OSError as error:
            raise ConfigError(f"brokerIP1={host} is no address of this host: {error}") from error

    async def _open_parts(self) -> BrokerTables:
        """Open the store, then read the tables: every service is made of them."""
        # First, because its errors about the directory are clearer than those of single files.
        check_usable(self.store_config, self._disk)
        own_ip = await self._own_ip()
        self._address_warnings.advertise(own_ip, self.address, self.config.bind_address)
        packed_host = pack_host(own_ip, self._advertised_port)
        # Made before the store, because recovered messages get bit maps, too.
        predicates = FilterPredicates(self.config, self._clock, self._handlers.limit_hits.hit)
        filters = PropertyFilters(
            self.config,
            self._clock,
            JsonFile(self._config_directory / "consumerFilter.json", files=self._files),
            self._state,
            predicates,
        )
        filters.manager.on_limit = self._handlers.limit_hits.hit
        store = await self._open_store(packed_host, filters)
        store.on_settings_changed.append(self._obey_settings)
        tables = self._open_tables(store)
        self._parts = Parts(
            config=self.config,
            access=self.access,
            replication=self.replication,
            clock=self._clock,
            randomness=self._randomness,
            disk=self._disk,
            files=self._files,
            workers=self._workers,
            tasks=self._tasks,
            state=self._state,
            handlers=self._handlers,
            address=self.address,
            packed_host=packed_host,
            store=store,
            flusher=CommitLogFlusher(store, self._workers),
            topics=tables.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            clients=self._clients,
            waiting=self._waiting,
            filter_work=self._filter_work,
            filters=filters,
            predicates=predicates,
            long_answers=LongAnswers(),
        )
        return tables

    async def _open_store(self, packed_host: bytes, filters: PropertyFilters) -> MessageStore:
        store = MessageStore(
            self.store_config,
            clock=self._clock,
            wall=self._wall,
            disk=self._disk,
            store_host=packed_host,
            on_arrival=self._waiting.arrived,
            is_awaited=self._waiting.is_awaited,
            bit_map_of=(
                filters.manager.bit_map if self.config.enable_calc_filter_bit_map else None
            ),
        )
        # In a thread: recovery of a large store takes long, and other servers run on this loop.
        loop = asyncio.get_running_loop()
        progress = OpeningProgress(self._clock, str(self.store_config.store_path_root_dir))
        await loop.run_in_executor(None, store.open, progress)
        self._closing.callback(self._release, store)
        if self.config.enable_property_filter:
            await loop.run_in_executor(None, sql92.prepare)
        self._clock.start_from(store.commit_log.last_store_timestamp)
        return store

    def _open_tables(self, store: MessageStore) -> BrokerTables:
        # For a start that fails here: reading the journal may already have had the topics written.
        self._closing.callback(self._state.close)
        tables = BrokerTables(
            self.config,
            self._clock,
            self._state,
            self._config_directory,
            self._workers,
            self._files,
            has_messages=store.commit_log.end > 0,
        )
        tables.keep_files()
        # The journal is closed when the state writer has written all that it can.
        self._closing.callback(tables.close)
        self._closing.callback(self._state.close)
        self._closing.callback(tables.save)
        # An empty log must not correct offsets: it may be the wrong one, or its disk not mounted.
        if store.commit_log.end > 0:
            tables.correct_offsets(store.queue_end)
        return tables

    def _release(self, store: MessageStore) -> None:
        store.close()
        log.info("broker stopped", name=self.config.broker_name)

    async def _answer_held_pulls(self) -> None:
        self._waiting.release_all()
        await asyncio.sleep(0)  # the released pulls are answered in the next turn of the loop

    async def _stop_beside(self) -> None:
        """Stop the servers beside the broker, and answer meanwhile the pulls that they still send."""
        stopping = asyncio.gather(*(stop() for stop in self.on_stop))
        while not stopping.done():
            await asyncio.wait([stopping], timeout=_RELEASE_AGAIN_S)
            self._waiting.release_all()
        await stopping

    def network_within(self) -> Network:
        """Return a network on which a connection to this broker needs no socket, for servers in its process."""
        return NetworkWithin(
            self._network,
            lambda host, port: join_address(host, port) == self.address,
            self._remoting.new_connection,
        )

    def _listener(self, port: int) -> RemotingServer:
        return RemotingServer(
            self.config.bind_address,
            port,
            self._handlers,
            limits=ConnectionLimits(
                max_frame_length=self.config.max_frame_length,
                unfinished_frame_s=self.config.unfinished_frame_timeout_seconds,
                max_kept_bytes=self.config.max_bytes_in_flight_per_connection,
                max_waiting_requests=self.config.max_waiting_requests_per_connection,
            ),
            counts=self._counts,
            holdings=self._holdings,
            idle_timeout_s=self.config.server_channel_max_idle_time_seconds,
            backlog=self.config.server_socket_backlog,
            on_connect=self._address_warnings.met,
            on_disconnect=self._clients.connection_closed,
            tls=self._tls,
            protection=self._protection,
            network=self._network,
            monotonic=self._clock.monotonic,
        )

    def _new_monitoring(self) -> Monitoring:
        # Where metrics are off, a start does without the parser of HTTP.
        from cometmq.remoting.http.monitoring import Monitoring

        config = self.config
        monitoring = Monitoring(
            config.metrics_prom_exporter_host.strip() or config.bind_address,
            config.metrics_prom_exporter_port,
            base={
                "cluster": config.broker_cluster_name,
                "node_type": Server.BROKER.value,
                "node_id": config.broker_name,
            },
            clock=self._clock,
            handlers=self._handlers,
            holdings=self._holdings,
            connection_count=lambda: (
                self._remoting.open_count + (self._vip.open_count if self._vip is not None else 0)
            ),
            protection=pages_protection(self.access),
            network=self._network,
        )
        if self._tls is not None:
            monitoring.collectors.append(self._tls.collect)
        return monitoring

    def _obey_settings(self) -> None:
        self._counts.max_in_all = self.config.max_connections
        self._counts.max_per_address = self.config.max_connections_per_address

    async def _listen(self) -> None:
        """Serve clients, also over the VIP channel (Java: fastRemotingServer)."""
        await self._remoting.start()
        if not self.config.vip_channel_enable or self.config.listen_port <= VIP_PORT_DISTANCE:
            return
        vip = self._listener(self.port - VIP_PORT_DISTANCE)
        try:
            await vip.start()
        except ConfigError as error:
            # Not fatal: few clients use the channel, and its port may be that of another broker on
            # this machine.
            log.warning("no VIP channel", reason=str(error))
        else:
            self._vip = vip
            self._closing.push_async_callback(vip.close)
