"""Run a proxy: its port, its gRPC server and its state (docs/internals/proxy.md).

The handlers of gRPC's own library run on the proxy's loop, which alone owns the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from cometmq.access.credentials import inner_credentials
from cometmq.client.access import PLAIN, Access
from cometmq.client.identity import DEFAULT_INSTANCE_NAME
from cometmq.client.instance import acquire_instance, release_instance
from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.metrics.limit_hits import LimitHits
from cometmq.proxy.access.accounts import Accounts
from cometmq.proxy.access.gate import Gate
from cometmq.proxy.administration.service import AdminService
from cometmq.proxy.calls import MESSAGING, Caller, Calls, Unserved
from cometmq.proxy.clients.clients import Clients
from cometmq.proxy.clients.handles import Handles
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.configuration.front_config import FrontConfig, check_control
from cometmq.proxy.metadata import Metadata
from cometmq.proxy.methods.acknowledgements import AckCalls
from cometmq.proxy.methods.offsets import OffsetCalls
from cometmq.proxy.methods.receives import Receives
from cometmq.proxy.methods.routes import RouteCalls
from cometmq.proxy.methods.sends import Sends
from cometmq.proxy.methods.transactions import Transactions
from cometmq.proxy.port.front import Front
from cometmq.proxy.throughput import MARK_S
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError
from cometmq.runtime.sockets.addresses import host_name
from cometmq.runtime.sockets.network import TCP_NETWORK, Network
from cometmq.runtime.surroundings import current
from cometmq.runtime.tasks import TaskOwner
from cometmq.tls.server import server_tls

if TYPE_CHECKING:
    from cometmq.proxy.administration.handlers import Administration
    from cometmq.remoting.http.monitoring import Monitoring

log = get_logger(__name__)

_EXPIRE_S: Final = 10.0
# The least time for the last renewals, even if calls that did not end took all the time of the stop.
_LEAST_LEAVE_S: Final = 1.0
# How long a connection may take to begin HTTP/2, and how long it may have no call (Java:
# grpcClientIdleTimeMills).
_PREFACE_MS: Final = 20_000
_IDLE_MS: Final = 120_000


class Proxy:
    """Serves RocketMQ 5 clients. For one loop; `start` once, `close` once."""

    def __init__(
        self,
        config: ProxyConfig,
        *,
        network: Network = TCP_NETWORK,
        endpoints: Callable[[int], wire.Endpoints] | None = None,
    ) -> None:
        """`network` leads to brokers. `endpoints` returns those of all routes for the proxy's port; without it a
        route has the endpoints that its client used.
        """
        self.config = config
        self.port = config.port
        self._network = network
        self._endpoints = endpoints
        # Counts refusals by limits.
        self.limit_hits = LimitHits()
        # Checks callers, if there is access control.
        self.gate: Gate | None = None
        self.monitoring: Monitoring | None = None
        self._server: grpc.aio.Server | None = None
        # The directory with the certificate of the test mode.
        self._made: TemporaryDirectory[str] | None = None

    async def start(self) -> None:
        """Listen. Raises ConfigError if the port is taken, or if a certificate cannot be used."""
        config = self.config
        check_control(config.control)
        served = config.front
        if served.makes_certificate:
            served = await asyncio.get_running_loop().run_in_executor(None, self._test_certificate)
        self.tls = tls = server_tls(served, current().clock, ("h2",))
        if tls is not None:
            await tls.load()
        self.front = front = Front(
            config.front,
            tls,
            self.limit_hits,
            longest_request_bytes=config.settings.grpc_max_inbound_message_size,
            shares_port=config.shares_port,
        )
        try:
            await front.bind(config.bind_address, config.port)
            self.port = front.port
            await self._serve(front)
        except BaseException:
            await front.close()
            self._drop_made()
            raise
        if tls is not None:
            tls.start(self._tasks)
        try:
            if config.front.metrics_exporter_type == "PROM":
                await self._start_monitoring()
            await front.start()
        except ConfigError:
            await self.close()
            raise

    def _test_certificate(self) -> FrontConfig:
        """Make a certificate that nobody has signed; return the settings that serve it. Blocks. Raises ConfigError."""
        # Not needed otherwise.
        from cometmq.tls.authority import make_certificates

        self._made = made = TemporaryDirectory(prefix="cometmq-proxy-tls-")
        names = ("localhost", "127.0.0.1", "::1", host_name())
        try:
            files = make_certificates(Path(made.name), names, current().clock)
        except ConfigError as error:
            made.cleanup()
            raise ConfigError(
                f"tlsTestModeEnable=true: {error}; or set tlsCertPath and tlsKeyPath, or remove the key"
            ) from error
        log.warning(
            "clients get a certificate that nobody has signed: tlsTestModeEnable=true and no tlsCertPath",
            remedy="set tlsCertPath and tlsKeyPath for clients that check certificates",
        )
        return replace(
            self.config.front,
            tls_server_cert_path=files.server,
            tls_server_key_path=files.server_key,
        )

    @property
    def metrics_address(self) -> str | None:
        """The address of `/metrics`, `/health` and `/ready`; None where metrics are off."""
        return None if self.monitoring is None else self.monitoring.http.address

    async def _start_monitoring(self) -> None:
        # Where metrics are off, a start does without the parser of HTTP.
        from cometmq.proxy.monitoring import monitoring_of

        self.monitoring = monitoring = monitoring_of(self, self.instance.clock)
        await monitoring.start()
        monitoring.state = lambda: ""

    async def _serve(self, front: Front) -> None:
        """Serve calls at the front's private address."""
        config, settings = self.config, self.config.settings
        self._tasks = TaskOwner("proxy")
        access = config.access
        if access is PLAIN:
            own = None if self.tls is None else self.tls.own
            access = Access(inner_credentials(config.control), own)
        # The default name, because brokers know two proxies of one machine, or process, by their ids.
        self.instance = instance = acquire_instance(
            config.namesrv, DEFAULT_INSTANCE_NAME, "proxy", access=access, network=self._network
        )
        if config.control.authentication_enabled:
            accounts = Accounts(instance, config.front.rocketmq_cluster_name, self._tasks)
            max_age_s = config.front.grpc_signature_max_age_seconds
            self.gate = Gate(
                config.control,
                accounts,
                instance.clock,
                max_age_s,
                config.front.rocketmq_cluster_name,
            )
        self.calls = calls = Calls(front.peer_of, self.limit_hits, self.gate)
        metadata = Metadata(instance)
        transactions = Transactions(instance, metadata)
        self.clients = clients = Clients(
            instance,
            metadata,
            self._tasks,
            transactions.add_producer,
            settings,
            calls,
        )
        transactions.clients = clients
        self.handles = handles = Handles(instance, metadata, clients, settings)
        self.receives = Receives(instance, metadata, clients, handles, self._tasks, settings)
        sends = Sends(instance, metadata, transactions, settings)
        handlers = self._handlers(metadata, transactions, sends)
        self._admin = AdminService(
            calls, config.front.rocketmq_cluster_name, partial(self._administration, sends)
        )
        self._server = server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", settings.grpc_max_inbound_message_size),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", settings.grpc_max_concurrent_calls_per_connection),
                (
                    "grpc.http2.min_ping_interval_without_data_ms",
                    settings.grpc_server_permit_keep_alive_time_millis,
                ),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.server_handshake_timeout_ms", _PREFACE_MS),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
            ],
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(MESSAGING, handlers), self._admin, Unserved())
        )
        try:
            server.add_insecure_port(front.address)
        except RuntimeError as error:
            await self._close_clients()
            raise ConfigError(f"gRPC cannot listen at {front.address}: {error}") from error
        await server.start()
        self._tasks.every(
            settings.renew_schedule_period_millis / 1000, handles.scan, "renew-handles"
        )
        self._tasks.every(_EXPIRE_S, clients.expire, "expire-clients")
        clock_s = asyncio.get_running_loop().time
        self._tasks.every(MARK_S, lambda: calls.throughput.mark(clock_s()), "mark-throughput")

    def _administration(self, sends: Sends) -> Administration:
        """Make the handlers of the service Admin. Their modules are loaded by now."""
        from cometmq.proxy.administration.asking import parts_of
        from cometmq.proxy.administration.handlers import Administration
        from cometmq.proxy.administration.process import ProcessFigures

        figures = ProcessFigures(
            lambda: f"{host_name()}:{self.port}",
            lambda: self.front.open_count,
            checks_users=self.gate is not None,
        )
        settings = self.config.settings
        return Administration(
            parts_of(
                self.calls, self.clients, sends, self.instance, settings, self._network, figures
            )
        )

    def _handlers(
        self, metadata: Metadata, transactions: Transactions, sends: Sends
    ) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return what serves each call, by the call's name."""
        instance, clients, settings = self.instance, self.clients, self.config.settings
        unary, answers, receives = self.calls.unary, self.calls.answers, self.receives
        routes = RouteCalls(metadata, self._own)
        acks = AckCalls(instance, metadata, self.handles, settings)
        offsets = OffsetCalls(instance, metadata, settings)
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = dict(
            [
                unary("QueryRoute", routes.query_route),
                unary("QueryAssignment", routes.query_assignment),
                unary("Heartbeat", clients.heartbeat),
                unary("NotifyClientTermination", clients.terminate),
                unary("SendMessage", sends.send),
                unary("RecallMessage", sends.recall),
                unary("EndTransaction", transactions.end),
                answers("ReceiveMessage", receives.receive, receives.last),
                unary("AckMessage", acks.ack),
                unary("ChangeInvisibleDuration", acks.change),
                unary("ForwardMessageToDeadLetterQueue", acks.forward),
                answers("PullMessage", offsets.pull),
                unary("UpdateOffset", offsets.update),
                unary("GetOffset", offsets.get),
                unary("QueryOffset", offsets.query),
                unary("SyncLiteSubscription", _refuse_lite),
            ]
        )
        handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            clients.telemetry,
            request_deserializer=None,  # bytes
            response_serializer=wire.TelemetryCommand.SerializeToString,
        )
        return handlers

    async def close(self) -> None:
        """Have clients reconnect elsewhere, let receives end, renew handles once more, then stop."""
        if self._server is None:
            return
        if self.monitoring is not None:
            self.monitoring.state = lambda: "the proxy is stopping"
        self.front.stop_listening()
        self.clients.drain()
        server, self._server = self._server, None
        drain_s = self.config.drain_s
        if drain_s is None:
            drain_s = self.config.settings.grpc_shutdown_time_seconds
        loop = asyncio.get_running_loop()
        end_s = loop.time() + drain_s
        await server.stop(drain_s)
        await self.front.let_answers_leave()
        await self.handles.leave(max(end_s - loop.time(), _LEAST_LEAVE_S))
        await self.front.close()
        if self.monitoring is not None:
            await self.monitoring.close()
        self._drop_made()
        await self._close_clients()

    def _drop_made(self) -> None:
        """Remove the certificate of the test mode. Idempotent."""
        if self._made is not None:
            self._made.cleanup()

    def _own(self) -> wire.Endpoints | None:
        return None if self._endpoints is None else self._endpoints(self.port)

    async def _close_clients(self) -> None:
        await self._admin.close()
        await self._tasks.close()
        await release_instance(self.instance)


async def _refuse_lite(
    _caller: Caller, _request: wire.SyncLiteSubscriptionRequest
) -> wire.SyncLiteSubscriptionResponse:
    raise RefusedError(
        wire.NOT_IMPLEMENTED,
        "lite topics are not served by this proxy; subscribe to a topic with a push or simple consumer",
    )
