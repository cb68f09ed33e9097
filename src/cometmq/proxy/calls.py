"""Connect handlers to gRPC: name the caller, and turn errors into answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from cometmq._version import __version__
from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.metrics.limit_hits import LimitHits
from cometmq.proxy.access.gate import Gate
from cometmq.proxy.configuration import front_config
from cometmq.proxy.configuration.config import MAX_CALLS
from cometmq.proxy.throughput import Throughput
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.parsing import parsed
from cometmq.proxy.wire.statuses import RefusedError, status, status_of
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.sockets.addresses import bare_host

log = get_logger(__name__)

MESSAGING: Final = "apache.rocketmq.v2.MessagingService"
ADMIN: Final = "apache.rocketmq.v2.Admin"
# The proxy's version and time in an answer to QueryRoute, for `cometmq doctor`; clients pass over them.
VERSION_HEADER: Final = "x-cometmq-version"
TIME_HEADER: Final = "x-cometmq-time-ms"
_LONGEST_ID: Final = 255

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """Names the client of a call. `peer` is its address, `left_s` is the time left until the call's deadline, None without one.

    `account` is the user who has signed the call, "" without access control.
    """

    client_id: str
    version: str
    peer: str
    left_s: float | None
    account: str = ""

    @property
    def ip(self) -> str:
        return bare_host(self.peer.rpartition(":")[0])


class Calls:
    """Makes the handlers of calls, and counts calls and refusals. For the loop's thread only.

    `peer_of` returns the address of a client by the name that gRPC has for its connection. `gate` checks
    callers, if there is access control.
    """

    def __init__(
        self, peer_of: Callable[[str], str], hits: LimitHits, gate: Gate | None = None
    ) -> None:
        self._peer_of = peer_of
        self._gate = gate
        self.hits = hits
        # By the name of the call and that of its Status.
        self.counts: dict[tuple[str, str], int] = {}
        self.throughput = Throughput(asyncio.get_running_loop().time())
        # How many calls are under way, and the bytes of their requests.
        self.open_count = 0
        self.request_bytes = 0

    def unary(
        self, name: str, handle: Callable[[Caller, Any], Awaitable[Any]]
    ) -> tuple[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return the handler of a call with one answer; an error becomes the answer's field `status`."""
        request_class, answer_class = (
            getattr(wire, f"{name}Request"),
            getattr(wire, f"{name}Response"),
        )

        async def call(raw: bytes, context: Context) -> Any:
            answer = await self.answered(name, raw, context, handle, request_class, answer_class)
            if name == "SendMessage":
                self.throughput.stored += sum(bool(entry.message_id) for entry in answer.entries)
            if name == "QueryRoute":
                now_ms = str(SYSTEM_CLOCK.now_ms())
                context.set_trailing_metadata(
                    ((VERSION_HEADER, __version__), (TIME_HEADER, now_ms))
                )
            return answer

        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            call,
            request_deserializer=None,  # bytes
            response_serializer=answer_class.SerializeToString,
        )
        return name, handler

    async def answered(
        self,
        name: str,
        raw: bytes,
        context: Context,
        handle: Callable[[Caller, Any], Awaitable[Any]],
        request_class: Any,
        answer_class: Any,
    ) -> Any:
        """Serve one call, and count it; an error becomes the answer's field `status`."""
        try:
            with self.under_way(len(raw)):
                request = parsed(request_class, raw)
                answer = await handle(await self._admitted(context, name, request), request)
        except CometMQError as error:
            answer = answer_class(status=self.refused(error))
        except Exception as error:
            log.exception("a call failed", call=name)
            answer = answer_class(status=_internal(error))
        self.count(name, answer.status.code)
        return answer

    def answers(
        self,
        name: str,
        handle: Callable[[Caller, Any], AsyncIterator[Any]],
        last: Callable[[], Any] | None = None,
    ) -> tuple[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return the handler of a call with a stream of answers. After an error it sends `last`, if given."""
        request_class, answer_class = (
            getattr(wire, f"{name}Request"),
            getattr(wire, f"{name}Response"),
        )

        async def call(raw: bytes, context: Context) -> AsyncIterator[Any]:
            refusal: wire.Status | None = None
            code: wire.Code = wire.OK
            try:
                with self.under_way(len(raw)):
                    request = parsed(request_class, raw)
                    caller = await self._admitted(context, name, request)
                    async for answer in handle(caller, request):
                        if answer.HasField("status"):
                            code = answer.status.code
                        elif answer.HasField("message"):
                            self.throughput.delivered += 1
                        yield answer
            except CometMQError as error:
                refusal = self.refused(error)
            except Exception as error:
                log.exception("a call failed", call=name)
                refusal = _internal(error)
            self.count(name, code if refusal is None else refusal.code)
            if refusal is not None:
                yield answer_class(status=refusal)
                if last is not None:
                    yield last()

        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
            call,
            request_deserializer=None,  # bytes
            response_serializer=answer_class.SerializeToString,
        )
        return name, handler

    @contextmanager
    def under_way(self, size: int) -> Iterator[None]:
        """Count a call of `size` bytes while it is served. Raises RefusedError for too many calls or too many bytes."""
        if self.open_count >= MAX_CALLS:
            raise RefusedError(
                wire.TOO_MANY_REQUESTS,
                f"{self.open_count} calls are under way, the limit MAX_CALLS is {MAX_CALLS}; start "
                "another proxy",
                "MAX_CALLS",
            )
        most = front_config.MAX_REQUEST_BYTES
        if self.request_bytes + size > most:
            raise RefusedError(
                wire.TOO_MANY_REQUESTS,
                f"requests of {self.request_bytes} bytes are being served, with this one of {size} they would be "
                f"more than the limit MAX_REQUEST_BYTES of {most}; send it again later, or start another proxy",
                "MAX_REQUEST_BYTES",
            )
        self.open_count += 1
        self.request_bytes += size
        try:
            yield
        finally:
            self.open_count -= 1
            self.request_bytes -= size

    def refused(self, error: CometMQError) -> wire.Status:
        """Return the Status of an error, and count it if a limit raised it."""
        self.hits.note(error)
        return status_of(error)

    def count(self, name: str, code: int) -> None:
        """Count the end of a call."""
        key = name, wire.Code.Name(code) if code in wire.Code.values() else str(code)
        self.counts[key] = self.counts.get(key, 0) + 1

    async def authorise(self, caller: Caller, name: str, request: Any) -> None:
        """Raise RefusedError unless the caller has the rights that a call needs."""
        if self._gate is not None:
            await self._gate.authorise(caller.account, caller.peer, caller.ip, name, request)

    async def caller(self, context: Context) -> Caller:
        """Return the caller. Raises RefusedError if the call has no client id, or is not signed as it has to be."""
        found: dict[str, str] = {}
        for key, value in context.invocation_metadata() or ():
            found[key] = value if isinstance(value, str) else value.decode("latin-1")
        client_id = found.get("x-mq-client-id", "")
        if not client_id:
            raise RefusedError(
                wire.CLIENT_ID_REQUIRED,
                "the header x-mq-client-id is missing; send the client's id",
            )
        if len(client_id) > _LONGEST_ID:
            raise RefusedError(
                wire.BAD_REQUEST,
                f"the client id has {len(client_id)} characters, the limit is {_LONGEST_ID}; use a "
                "shorter one",
            )
        peer = self._peer_of(context.peer())
        account = "" if self._gate is None else await self._gate.authenticate(found, peer)
        return Caller(
            client_id,
            found.get("x-mq-client-version", ""),
            peer,
            context.time_remaining(),
            account,
        )

    async def _admitted(self, context: Context, name: str, request: Any) -> Caller:
        caller = await self.caller(context)
        await self.authorise(caller, name, request)
        return caller


def _internal(error: Exception) -> wire.Status:
    return status(wire.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


class Unserved(grpc.GenericRpcHandler):
    """Refuses calls that are not served as UNIMPLEMENTED, with the reason and the remedy."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        if method.startswith((f"/{ADMIN}/", f"/{MESSAGING}/")):
            text = f"{method} is not served by this proxy; docs/proxy.md lists the calls that are"
        else:
            return None

        async def refuse(_request: Any, context: Context) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

        return grpc.unary_unary_rpc_method_handler(refuse)
