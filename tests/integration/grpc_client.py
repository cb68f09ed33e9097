"""Call a proxy by plain gRPC, one call at a time, as any client may."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from tests.waits import WAIT_S

from cometmq.proxy.calls import ADMIN, MESSAGING
from cometmq.proxy.wire import admin_pb2 as admin
from cometmq.proxy.wire import messaging_pb2 as wire


class GrpcClient:
    """Calls the proxy at `target`, by TLS if `authority` has a certificate to trust in PEM format."""

    def __init__(
        self,
        target: str,
        authority: bytes | None = None,
        client_id: str | None = "client-1",
        metadata: tuple[tuple[str, str], ...] = (),
        options: Sequence[tuple[str, Any]] = (("grpc.use_local_subchannel_pool", 1),),
    ) -> None:
        if authority is None:
            self.channel = grpc.aio.insecure_channel(target, options)
        else:
            trusted = grpc.ssl_channel_credentials(authority)
            self.channel = grpc.aio.secure_channel(target, trusted, options)
        named = [] if client_id is None else [("x-mq-client-id", client_id)]
        self.metadata = [*named, *metadata]

    async def call(self, name: str, /, timeout_s: float = WAIT_S, **fields: Any) -> Any:
        request = getattr(wire, f"{name}Request")(**fields)
        answer = getattr(wire, f"{name}Response")
        made = self.channel.unary_unary(
            f"/{MESSAGING}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await made(request, metadata=self.metadata, timeout=timeout_s)

    async def admin(self, name: str, /, timeout_s: float = WAIT_S, **fields: Any) -> Any:
        """Make a call of the service Admin."""
        method = admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name[name]
        request = getattr(admin, method.input_type.name)(**fields)
        made = self.channel.unary_unary(
            f"/{ADMIN}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(admin, method.output_type.name).FromString,
        )
        return await made(request, metadata=self.metadata, timeout=timeout_s)

    async def answers(self, name: str, /, timeout_s: float = WAIT_S, **fields: Any) -> list[Any]:
        request = getattr(wire, f"{name}Request")(**fields)
        answer = getattr(wire, f"{name}Response")
        made = self.channel.unary_stream(
            f"/{MESSAGING}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return [each async for each in made(request, metadata=self.metadata, timeout=timeout_s)]

    async def route(self, topic: str = "missing", timeout_s: float = WAIT_S) -> wire.Code:
        """Return the code for a route: TOPIC_NOT_FOUND says that the call got through."""
        answer = await self.call("QueryRoute", timeout_s, topic={"name": topic})
        code: wire.Code = answer.status.code
        return code

    def telemetry(self) -> Any:
        made = self.channel.stream_stream(
            f"/{MESSAGING}/Telemetry",
            request_serializer=wire.TelemetryCommand.SerializeToString,
            response_deserializer=wire.TelemetryCommand.FromString,
        )
        return made(metadata=self.metadata)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.channel.close()
