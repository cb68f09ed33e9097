"""Run a proxy: its gRPC server and its state (docs/internals/proxy.md).

gRPC's own library accepts the connections. Its handlers run on the proxy's loop, which alone owns the state.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio
import structlog

from cometmq.client.instance import acquire_instance, release_instance
from cometmq.errors import ConfigError
from cometmq.proxy.acknowledgements import AckCalls
from cometmq.proxy.calls import MESSAGING, Caller, Unserved, answers, unary
from cometmq.proxy.clients import Clients
from cometmq.proxy.config import MAX_CALLS, ProxyConfig
from cometmq.proxy.handles import SCAN_S, Handles
from cometmq.proxy.metadata import Metadata
from cometmq.proxy.offsets import OffsetCalls
from cometmq.proxy.receives import Receives
from cometmq.proxy.routes import RouteCalls
from cometmq.proxy.sends import Sends
from cometmq.proxy.statuses import RefusedError
from cometmq.proxy.transactions import Transactions
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.runtime.sockets.addresses import join_address
from cometmq.runtime.tasks import TaskOwner

log = structlog.get_logger(__name__)

# C++ clients ping every 60 s, even without calls; a server that does not allow that ends their connections.
_PINGS_MS: Final = 20_000
_EXPIRE_S: Final = 10.0
_STREAMS_PER_CONNECTION: Final = 1_000


class Proxy:
    """Serves RocketMQ 5 clients. For one loop; `start` once, `close` once."""

    def __init__(self, config: ProxyConfig) -> None:
        self.config = config
        self.port = config.port
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises ConfigError if the port is taken."""
        config = self.config
        self._tasks = TaskOwner("proxy")
        self._instance = instance = acquire_instance(
            config.namesrv, "proxy", None, access=config.access
        )
        metadata = Metadata(instance)
        transactions = Transactions(instance, metadata)
        self._clients = clients = Clients(
            instance,
            metadata,
            self._tasks,
            transactions.add_producer,
            config.max_message_size_bytes,
        )
        transactions.clients = clients
        self.handles = handles = Handles(instance, clients)
        self.receives = receives = Receives(instance, metadata, clients, handles, self._tasks)
        sends = Sends(instance, metadata, transactions, config.max_message_size_bytes)
        routes, acks = RouteCalls(metadata), AckCalls(instance, metadata, handles)
        offsets = OffsetCalls(instance, metadata)
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
                ("grpc.max_receive_message_length", config.max_inbound_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", _STREAMS_PER_CONNECTION),
                ("grpc.http2.min_ping_interval_without_data_ms", _PINGS_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.so_reuseport", 0),
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
        self._tasks.every(SCAN_S, handles.scan, "renew-handles")
        self._tasks.every(_EXPIRE_S, clients.expire, "expire-clients")

    async def close(self) -> None:
        """Have clients reconnect elsewhere, let receives end, then stop. Handles stay valid until they expire."""
        if self._server is None:
            return
        self._clients.drain()
        server, self._server = self._server, None
        await server.stop(self.config.drain_s)
        await self._close_clients()

    async def _close_clients(self) -> None:
        await self._tasks.close()
        await release_instance(self._instance)


async def _refuse_lite(
    _caller: Caller, _request: wire.SyncLiteSubscriptionRequest
) -> wire.SyncLiteSubscriptionResponse:
    raise RefusedError(
        wire.NOT_IMPLEMENTED,
        "lite topics are not served by this proxy; subscribe to a topic with a push or simple consumer",
    )
