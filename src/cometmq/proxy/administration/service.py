"""Connect the service Admin to gRPC. The first call imports the handlers and their administration client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from cometmq.errors import RequestTimeoutError
from cometmq.proxy.access.admin_rights import ADMIN_RIGHTS
from cometmq.proxy.administration.limits import check_answer
from cometmq.proxy.calls import ADMIN, Caller, Calls, Context
from cometmq.proxy.configuration import config
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError

if TYPE_CHECKING:
    from cometmq.proxy.administration.handlers import Administration, Handler

_PREFIX: Final = f"/{ADMIN}/"
_ABORTS: Final = {
    wire.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    wire.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    wire.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    wire.PROXY_TIMEOUT: grpc.StatusCode.UNAVAILABLE,
    wire.PRECONDITION_FAILED: grpc.StatusCode.FAILED_PRECONDITION,
    wire.INTERNAL_SERVER_ERROR: grpc.StatusCode.INTERNAL,
}


class AdminService(grpc.GenericRpcHandler):
    """Serves the calls of the service Admin. `make` makes their handlers; it is called once, after their import."""

    def __init__(self, calls: Calls, cluster: str, make: Callable[[], Administration]) -> None:
        self._calls = calls
        self._cluster = cluster
        self._make = make
        self._made: Administration | None = None
        self._open_count = 0

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        name = method.removeprefix(_PREFIX)
        if name not in ADMIN_RIGHTS or not method.startswith(_PREFIX):
            return None

        async def call(raw: bytes, context: Context) -> bytes:
            return await self._answer(name, raw, context)

        # The handler gets and returns bytes.
        return grpc.unary_unary_rpc_method_handler(call)

    # Inside

    async def _answer(self, name: str, raw: bytes, context: Context) -> bytes:
        handler = (await self._administration()).handlers[name]

        async def handle(caller: Caller, request: Any) -> Any:
            with self._turn():
                return await self._handled(handler, caller, request)

        answer = await self._calls.answered(
            name, raw, context, handle, handler.request, handler.outcome
        )
        if not handler.has_status:
            if answer.status.code != wire.OK:
                code = _ABORTS.get(answer.status.code, grpc.StatusCode.INVALID_ARGUMENT)
                await context.abort(code, answer.status.message)
            answer = answer.answer
        data: bytes = answer.SerializeToString()
        return data

    async def _handled(self, handler: Handler, caller: Caller, request: Any) -> Any:
        if handler.names_deployment:
            self._check_deployment(request.deployment_name)
        try:
            async with asyncio.timeout(config.ADMIN_CALL_TIMEOUT_S):
                answer = await handler.serve(caller, request)
        except RequestTimeoutError:  # its text names the server
            raise
        except TimeoutError as error:
            raise RefusedError(
                wire.PROXY_TIMEOUT,
                f"the servers did not answer within the limit ADMIN_CALL_TIMEOUT_S of {config.ADMIN_CALL_TIMEOUT_S:g} "
                "s; ask about fewer topics or groups, or use cometmq admin",
                "ADMIN_CALL_TIMEOUT_S",
            ) from error
        if handler.has_status:
            check_answer(answer.ByteSize(), "the answer takes")
        return answer

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Count a call while it is served. Raises RefusedError if there are too many."""
        most = config.MAX_ADMIN_CALLS
        if self._open_count >= most:
            raise RefusedError(
                wire.TOO_MANY_REQUESTS,
                f"{self._open_count} calls of the service Admin are under way, the limit MAX_ADMIN_CALLS is {most}; "
                "try again later",
                "MAX_ADMIN_CALLS",
            )
        self._open_count += 1
        try:
            yield
        finally:
            self._open_count -= 1

    async def _administration(self) -> Administration:
        if self._made is None:
            await asyncio.get_running_loop().run_in_executor(None, _load)
            if self._made is None:
                self._made = self._make()
        return self._made

    def _check_deployment(self, name: str) -> None:
        if name not in ("", self._cluster):
            raise RefusedError(
                wire.BAD_REQUEST,
                f"deployment_name is {name!r:.80}, but this proxy serves {self._cluster} (rocketMQClusterName); "
                "leave it out, or call the proxy of that deployment",
            )


def _load() -> None:
    """Import the handlers, in another thread than the loop's: this takes a tenth of a second."""
    import cometmq.proxy.administration.handlers  # noqa: F401 - to have it loaded
