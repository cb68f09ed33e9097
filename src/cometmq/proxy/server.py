"""Run a proxy: its gRPC server and its state (docs/internals/proxy.md).

gRPC's own library accepts the connections. Its handlers run on the proxy's loop, which alone owns the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from cometmq.client.identity import DEFAULT_INSTANCE_NAME
from cometmq.client.instance import acquire_instance, release_instance
from cometmq.errors import ConfigError
from cometmq.proxy.acknowledgements import AckCalls
from cometmq.proxy.announcements import Announcements
from cometmq.proxy.calls import MESSAGING, Caller, Unserved, answers, unary
from cometmq.proxy.clients import Clients
from cometmq.proxy.config import MAX_CALLS, ProxyConfig
from cometmq.proxy.handles import Handles
from cometmq.proxy.metadata import Metadata
from cometmq.proxy.offsets import OffsetCalls
from cometmq.proxy.receives import Receives
from cometmq.proxy.routes import RouteCalls
from cometmq.proxy.sends import Sends
from cometmq.proxy.statuses import RefusedError
from cometmq.proxy.transactions import Transactions
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.runtime.sockets.addresses import join_address
from cometmq.runtime.sockets.network import TCP_NETWORK, Network
from cometmq.runtime.tasks import TaskOwner

log = structlog.get_logger(__name__)

_EXPIRE_S: Final = 10.0


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
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises ConfigError if the port is taken."""
        config, settings = self.config, self.config.settings
        self._tasks = TaskOwner("proxy")
        # The default name, because brokers know two proxies of one machine, or process, by their ids.
        self.instance = instance = acquire_instance(
            config.namesrv,
            DEFAULT_INSTANCE_NAME,
            "proxy",
            access=config.access,
            network=self._network,
        )
        metadata = Metadata(instance)
        announcements = Announcements(instance, self._tasks)
        transactions = Transactions(instance, metadata, announcements)
        self.clients = clients = Clients(
            instance,
            metadata,
            self._tasks,
            transactions.add_producer,
            announcements,
            settings,
        )
        transactions.clients = clients
        self.handles = handles = Handles(instance, clients, settings)
        self.receives = receives = Receives(
            instance, metadata, clients, handles, self._tasks, settings
        )
        sends = Sends(instance, metadata, transactions, settings)
        routes = RouteCalls(metadata, self._own)
        acks = AckCalls(instance, metadata, handles, settings)
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
            request_deserializer=wire.TelemetryCommand.FromString,
            response_serializer=wire.TelemetryCommand.SerializeToString,
        )
        self._server = server = grpc.aio.server(
            maximum_concurrent_rpcs=MAX_CALLS,
            options=[
                ("grpc.max_receive_message_length", settings.grpc_max_inbound_message_size),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", settings.grpc_max_concurrent_calls_per_connection),
                (
                    "grpc.http2.min_ping_interval_without_data_ms",
                    settings.grpc_server_permit_keep_alive_time_millis,
                ),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.so_reuseport", 1 if config.shares_port else 0),
            ],
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(MESSAGING, handlers), Unserved())
        )
        address = join_address(config.bind_address, config.port)
        try:
            self.port = server.add_insecure_port(address)
        except RuntimeError as error:
            await self._close_clients()
            raise ConfigError(
                f"the proxy cannot listen at {address}: {error}; choose another port"
            ) from error
        await server.start()
        self._tasks.every(
            settings.renew_schedule_period_millis / 1000, handles.scan, "renew-handles"
        )
        self._tasks.every(_EXPIRE_S, clients.expire, "expire-clients")

    async def close(self) -> None:
        """Have clients reconnect elsewhere, let receives end, then stop. Handles stay valid until they expire."""
        if self._server is None:
            return
        self.clients.drain()
        server, self._server = self._server, None
        drain_s = self.config.drain_s
        await server.stop(
            self.config.settings.grpc_shutdown_time_seconds if drain_s is None else drain_s
        )
        await self._close_clients()

    def _own(self) -> wire.Endpoints | None:
        return None if self._endpoints is None else self._endpoints(self.port)

    async def _close_clients(self) -> None:
        await self._tasks.close()
        await release_instance(self.instance)


async def _refuse_lite(
    _caller: Caller, _request: wire.SyncLiteSubscriptionRequest
) -> wire.SyncLiteSubscriptionResponse:
    raise RefusedError(
        wire.NOT_IMPLEMENTED,
        "lite topics are not served by this proxy; subscribe to a topic with a push or simple consumer",
    )
