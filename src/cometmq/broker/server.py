"""Compose a broker of its parts, and start and stop them in order.

Java: BrokerController. Nothing here serves a request; see the handler modules beside this one.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TypeVar

import structlog

from cometmq.broker.cleaning import CleaningHandlers, CleaningTimer
from cometmq.broker.client_handlers import ClientHandlers
from cometmq.broker.client_relay import ClientRelay
from cometmq.broker.clients import ClientManager
from cometmq.broker.config import BrokerConfig
from cometmq.broker.config_handlers import NOTHING_GIVEN, ConfigHandlers, GivenConfig
from cometmq.broker.delays import Delays
from cometmq.broker.filter_work import FilterWork
from cometmq.broker.flushing import CommitLogFlusher, FlushTimers
from cometmq.broker.group_commit import GroupCommit
from cometmq.broker.indexing import Indexing
from cometmq.broker.inspection import InspectionHandlers
from cometmq.broker.lock_handlers import LockHandlers
from cometmq.broker.long_polling import LongPolling
from cometmq.broker.offset_handlers import OffsetHandlers
from cometmq.broker.opening import OpeningProgress
from cometmq.broker.predicates import FilterPredicates
from cometmq.broker.property_filters import PropertyFilters
from cometmq.broker.pull import PullHandler
from cometmq.broker.put import MessagePut
from cometmq.broker.query_handlers import QueryHandlers
from cometmq.broker.queue_locks import QueueLocks
from cometmq.broker.recall import RecallHandler
from cometmq.broker.redrive import Redrives
from cometmq.broker.redrive_handlers import RedriveHandlers
from cometmq.broker.registration import Registration
from cometmq.broker.reply import ReplyHandler
from cometmq.broker.retry import RetryHandler
from cometmq.broker.retry_limits import RetryLimits
from cometmq.broker.runtime_info import RuntimeInfo
from cometmq.broker.send import SendHandler
from cometmq.broker.tables import BrokerTables
from cometmq.broker.traffic import SAMPLE_PERIOD_S, Traffic
from cometmq.broker.transaction_check import TransactionService
from cometmq.broker.transactions import Transactions
from cometmq.errors import ConfigError
from cometmq.filtering import sql92
from cometmq.model.topic import TopicConfig
from cometmq.protocol.ids import pack_host
from cometmq.remoting.access import AdminAccess
from cometmq.remoting.connection import Connection, ConnectionLimits
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.holdings import Holdings
from cometmq.remoting.server import RemotingServer
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock, SteadyClock
from cometmq.runtime.json_file import JsonFile
from cometmq.runtime.state_writer import StateWriter
from cometmq.runtime.tasks import TaskOwner
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.layout import check_usable
from cometmq.store.store import MessageStore

log = structlog.get_logger(__name__)

T = TypeVar("T")

# The port of the VIP channel is so much lower than the broker's.
VIP_PORT_DISTANCE = 2
_CLIENT_SCAN_PERIOD_S = 10.0
_LONG_POLLING_SWEEP_PERIOD_S = 0.5


class Broker:
    """A broker on the running loop. Call `start` once and `close` once, in that loop's thread only.

    `given` says where the settings come from, for requests that read or change them.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        disk: Disk | None = None,
        given: GivenConfig = NOTHING_GIVEN,
    ) -> None:
        self.config = config
        self._given = given
        self.store_config = store_config
        # Files and clients get their times from the machine's clock; everything else uses a clock
        # that never goes back.
        self._wall = clock
        self._clock = SteadyClock(clock)
        self._disk = disk or Disk()
        self._config_directory = store_config.store_path_root_dir / "config"
        self._tasks = TaskOwner("broker")
        self._closed = False
        self._state = StateWriter()
        self._handlers = Handlers(AdminAccess(config.admin_from))
        self._holdings = Holdings(config.max_bytes_in_flight)
        self._remoting = self._listener(config.listen_port)
        self._vip_remoting: RemotingServer | None = None
        self._filter_work = FilterWork(config.max_held_pulls)
        self._long_polling = LongPolling(config.max_held_pulls, self._filter_work)
        self._store: MessageStore | None = None
        self._tables: BrokerTables | None = None
        self._registration: Registration | None = None
        self._flusher: CommitLogFlusher | None = None
        self._flush_timers: FlushTimers | None = None
        self._indexing: Indexing | None = None
        self._delays: Delays | None = None
        self._transactions: TransactionService | None = None
        self._cleaning: CleaningTimer | None = None

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
        return f"{self.config.broker_ip1}:{self.port}"

    @property
    def store(self) -> MessageStore:
        assert self._store is not None, "the broker is not started"
        return self._store

    async def start(self) -> None:
        """Open the store, listen, register. Raises ConfigError or StoreError; then nothing runs."""
        try:
            await self._remoting.bind()
            await self._open()
            await self._listen()
            assert self._registration is not None
            await self._registration.start()
        except BaseException:
            await self.close()
            raise
        log.info("broker started", name=self.config.broker_name, address=self.address)

    async def close(self) -> None:
        """Unregister, answer the waiting pulls, persist and flush everything, release the store.

        Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        if self._registration is not None:
            await self._registration.close()
        self._long_polling.release_all()
        await asyncio.sleep(0)  # the released pulls are answered in the next turn of the loop
        if self._vip_remoting is not None:
            await self._vip_remoting.close()
        await self._remoting.close()
        await self._tasks.close()
        for part in (
            self._flush_timers,
            self._indexing,
            self._flusher,
            self._delays,
            self._transactions,
            self._cleaning,
        ):
            if part is not None:
                part.close()
        if self._tables is not None:
            self._tables.save()
            self._filters.save()
        self._state.close()
        if self._tables is not None:
            self._tables.close()
        if self._store is not None:
            self._store.close()
            log.info("broker stopped", name=self.config.broker_name)

    def _listener(self, port: int) -> RemotingServer:
        return RemotingServer(
            self.config.bind_address,
            port,
            self._handlers,
            limits=ConnectionLimits(
                max_frame_length=self.config.max_frame_length,
                unfinished_frame_s=self.config.unfinished_frame_timeout_seconds,
            ),
            holdings=self._holdings,
            idle_timeout_s=self.config.server_channel_max_idle_time_seconds,
            backlog=self.config.server_socket_backlog,
            on_disconnect=self._disconnected,
        )

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
            self._vip_remoting = vip

    async def _open(self) -> None:
        # First, because its errors about the directory are clearer than those of single files.
        check_usable(self.store_config, self._disk)
        packed_host = pack_host(await _resolve(self.config.broker_ip1), self.port)
        # Made before the store, because recovered messages get bit maps, too.
        self.predicates = FilterPredicates(self.config)
        self._filters = PropertyFilters(
            self.config,
            self._clock,
            JsonFile(self._config_directory / "consumerFilter.json"),
            self._state,
            self.predicates,
        )
        store = MessageStore(
            self.store_config,
            clock=self._clock,
            wall=self._wall,
            disk=self._disk,
            store_host=packed_host,
            on_arrival=self._long_polling.arrived,
            bit_map_of=(
                self._filters.manager.bit_map if self.config.enable_calc_filter_bit_map else None
            ),
        )
        # In a thread: recovery of a large store takes long, and other servers run on this loop.
        progress = OpeningProgress(self._clock, str(self.store_config.store_path_root_dir))
        await asyncio.get_running_loop().run_in_executor(None, store.open, progress)
        if self.config.enable_property_filter:
            await asyncio.get_running_loop().run_in_executor(None, sql92.prepare)
        self._clock.start_from(store.commit_log.last_store_timestamp)
        self._store = store
        self._tables = BrokerTables(
            self.config,
            self._clock,
            self._state,
            self._config_directory,
            on_topics_changed=self._topics_changed,
            on_topic_removed=self._topic_removed,
        )
        self.topics, self.groups = self._tables.topics, self._tables.groups
        self.offsets = self._tables.offsets
        # An empty log must not correct offsets: it may be the wrong one, or its disk not mounted.
        if store.commit_log.end > 0:
            self._tables.correct_offsets(store.queue_end)
        self._registration = Registration(
            self.config,
            self.topics,
            address=self.address,
            ha_address=f"{self.config.broker_ip2 or self.config.broker_ip1}:{self.port + 1}",
            tasks=self._tasks,
        )
        delays = Delays(self.config, store, self._disk, self._clock, self._state, self._tasks)
        await asyncio.get_running_loop().run_in_executor(None, delays.open)
        # From here on bit maps are made on the loop and share the budget of its turns.
        self._filters.manager.work = self._filter_work
        self._delays = delays
        self.delayed = delays.messages
        self._flusher = flusher = CommitLogFlusher(store)
        self.redrives = Redrives(
            store, self._clock, self.topics, lambda: flusher.flush(0), self._state
        )
        self.redrives.open()
        RedriveHandlers(self.config, self.redrives, self._tasks).register(self._handlers)
        self._register_handlers(store, delays, packed_host, self._group_commit(self._flusher))
        self._indexing = Indexing(store, self._tasks)
        QueryHandlers(store, self._indexing, self.config.max_frame_length).register(self._handlers)
        self._indexing.start()
        self._flush_timers = FlushTimers(store, self._flusher, self._clock, self._tasks)
        self._flush_timers.start()
        delays.start()
        assert self._transactions is not None, "made with its handlers"
        self._transactions.start()
        store.cleaner.on_expiring += [delays.roll, self._transactions.roll]
        self._cleaning = CleaningTimer(store, self._tasks)
        self._cleaning.start()
        self._start_timers(self._tables)

    def _group_commit(self, flusher: CommitLogFlusher) -> GroupCommit | None:
        if self.store_config.flush_disk_type != "SYNC_FLUSH":
            return None
        return GroupCommit(flusher, self.store_config.sync_flush_timeout / 1000, self._tasks)

    def _register_handlers(
        self,
        store: MessageStore,
        delays: Delays,
        packed_host: bytes,
        group_commit: GroupCommit | None,
    ) -> None:
        assert self._registration is not None, "made before its handlers"
        put = MessagePut(self.config, store, self._clock, delays.messages)
        locks = QueueLocks(self._clock)
        LockHandlers(locks).register(self._handlers)
        self.clients = ClientManager(self._clock)
        self._traffic = Traffic(self._clock, store, self.topics, delays.messages)
        self.clients.on_members_changed.append(self._traffic.members_changed)
        limits = RetryLimits(self.clients.consumers)
        self.clients.on_members_changed.append(limits.members_changed)
        retry = RetryHandler(
            self.config, store, self.topics, self.groups, put, locks.holds_any, limits
        )
        transactions = Transactions(
            self.config, store, self.topics, self.offsets, put.put, self._clock, packed_host
        )
        transactions.open()
        self._send = SendHandler(
            self.config,
            store,
            self.topics,
            self.groups,
            put,
            transactions.prepare,
            retry,
            packed_host,
            self._registration.announced,
            self._tasks,
            group_commit,
        )
        # A pull that waits with the old expression must be answered now: Java checks every 5 s.
        self.clients.on_reselected.append(self._long_polling.release_topic)
        self._filters.watch(self.clients, self._long_polling.release_topic)
        self._filters.register(self._handlers)
        client_handlers = ClientHandlers(
            self.config, self._clock, self.clients, self.groups, self.topics
        )
        self._send.register(self._handlers)
        retry.register(self._handlers)
        RecallHandler(self.config, self._clock, self.topics, put).register(self._handlers)
        PullHandler(
            self.config,
            store,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            self._long_polling,
            self._filters.manager,
            self.predicates,
            self._traffic,
            self._filter_work,
        ).register(self._handlers)
        self.predicates.register(self._handlers)
        client_handlers.register(self._handlers)
        transactions.register(self._handlers)
        self._transactions = TransactionService(
            self.config, store, transactions, self.clients, self._clock.now_ms, self._tasks
        )
        ReplyHandler(
            self.config, store, self._send, self.clients, self._clock, packed_host
        ).register(self._handlers)
        OffsetHandlers(store, self.topics, self.groups, self.offsets).register(self._handlers)
        ClientRelay(
            self.config,
            store,
            self.topics,
            self.groups,
            self.clients,
            self.offsets,
            self._long_polling.release_topic,
        ).register(self._handlers)
        InspectionHandlers(
            self.config,
            self._clock,
            store,
            self.topics,
            self.clients,
            self.offsets,
            self._traffic,
            self.address,
        ).register(self._handlers)
        CleaningHandlers(store, self.topics, self._topic_removed).register(self._handlers)
        ConfigHandlers(
            self.config,
            store,
            self._clock,
            self._given,
            self.topics.permission_changed,
            self._state,
        ).register(self._handlers)
        RuntimeInfo(
            store,
            self._disk,
            self._clock,
            self._long_polling,
            delays.messages,
            self._transactions,
            self.predicates,
            self._traffic,
        ).register(self._handlers)

    def _start_timers(self, tables: BrokerTables) -> None:
        loop = asyncio.get_running_loop()
        config = self.config
        self._tasks.every(
            _LONG_POLLING_SWEEP_PERIOD_S,
            lambda: self._long_polling.sweep(loop.time()),
            "long-polling-sweep",
        )
        self._tasks.every(
            _CLIENT_SCAN_PERIOD_S,
            lambda: self.clients.remove_expired(config.channel_expired_timeout),
            "client-scan",
        )
        self._tasks.every(
            config.flush_consumer_offset_interval / 1000, tables.save_offsets, "save-offsets"
        )
        self._tasks.every(SAMPLE_PERIOD_S, self._traffic.sample, "traffic", first_s=0)
        self._filters.start(self._tasks)

    def _disconnected(self, connection: Connection) -> None:
        self.clients.connection_closed(connection)

    def _topics_changed(self, topics: list[TopicConfig]) -> None:
        for topic in topics:
            self._send.topic_changed(topic.topic_name)
        if self._registration is not None:
            self._registration.topics_changed(topics)

    def _topic_removed(self, topic: str) -> None:
        self._send.topic_changed(topic)
        self._long_polling.release_topic(topic)


async def _resolve(host: str) -> str:
    """Return the IP address of `host`, which stands in every message id."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"brokerIP1={host} is no address of this host: {error}") from error
    return str(found[0][4][0])
