"""Connect handlers to gRPC: name the caller, and turn errors into answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
import structlog

from cometmq.errors import CometMQError
from cometmq.proxy.statuses import RefusedError, status, status_of
from cometmq.proxy.wire import messaging_pb2 as wire

log = structlog.get_logger(__name__)

MESSAGING: Final = "apache.rocketmq.v2.MessagingService"
ADMIN: Final = "apache.rocketmq.v2.Admin"
_LONGEST_ID: Final = 255

RequestT = TypeVar("RequestT")
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """Names the client of a call. `left_s` is the time left until the call's deadline, None without one."""

    client_id: str
    version: str
    peer: str
    left_s: float | None


def caller_of(context: Context) -> Caller:
    """Return the caller. Raises RefusedError if the call has no client id."""
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        found[key] = value if isinstance(value, str) else value.decode("latin-1")
    client_id = found.get("x-mq-client-id", "")
    if not client_id:
        raise RefusedError(
            wire.CLIENT_ID_REQUIRED, "the header x-mq-client-id is missing; send the client's id"
        )
    if len(client_id) > _LONGEST_ID:
        raise RefusedError(
            wire.BAD_REQUEST,
            f"the client id has {len(client_id)} characters, the limit is {_LONGEST_ID}; use a shorter one",
        )
    return Caller(
        client_id, found.get("x-mq-client-version", ""), context.peer(), context.time_remaining()
    )


def unary(
    name: str,
    handle: Callable[[Caller, Any], Awaitable[Any]],
) -> tuple[str, grpc.RpcMethodHandler[Any, Any]]:
    """Return the handler of a call with one answer; an error becomes the answer's field `status`."""
    request_class, answer_class = getattr(wire, f"{name}Request"), getattr(wire, f"{name}Response")

    async def call(request: Any, context: Context) -> Any:
        try:
            return await handle(caller_of(context), request)
        except CometMQError as error:
            return answer_class(status=status_of(error))
        except Exception as error:
            log.exception("a call failed", call=name)
            return answer_class(status=_internal(error))

    handler = grpc.unary_unary_rpc_method_handler(
        call,
        request_deserializer=request_class.FromString,
        response_serializer=answer_class.SerializeToString,
    )
    return name, handler


def answers(
    name: str,
    handle: Callable[[Caller, Any], AsyncIterator[Any]],
    last: Callable[[], Any] | None = None,
) -> tuple[str, grpc.RpcMethodHandler[Any, Any]]:
    """Return the handler of a call with a stream of answers. After an error it sends `last`, if given."""
    request_class, answer_class = getattr(wire, f"{name}Request"), getattr(wire, f"{name}Response")

    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async for answer in handle(caller_of(context), request):
                yield answer
        except CometMQError as error:
            yield answer_class(status=status_of(error))
        except Exception as error:
            log.exception("a call failed", call=name)
            yield answer_class(status=_internal(error))
        else:
            return
        if last is not None:
            yield last()

    handler = grpc.unary_stream_rpc_method_handler(
        call,
        request_deserializer=request_class.FromString,
        response_serializer=answer_class.SerializeToString,
    )
    return name, handler


def _internal(error: Exception) -> wire.Status:
    return status(wire.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


class Unserved(grpc.GenericRpcHandler):
    """Refuses calls that are not served as UNIMPLEMENTED, with the reason and the remedy."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        if method.startswith(f"/{ADMIN}/"):
            text = f"{method} is not served by this proxy; use cometmq admin or mqadmin"
        elif method.startswith(f"/{MESSAGING}/"):
            text = f"{method} is not served by this proxy; docs/proxy.md lists the calls that are"
        else:
            return None

        async def refuse(_request: Any, context: Context) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

        return grpc.unary_unary_rpc_method_handler(refuse)
