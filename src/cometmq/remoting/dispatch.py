"""Which handler serves which request code (Java: NettyRemotingAbstract.processorTable)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from cometmq.errors import ProtocolError
from cometmq.protocol.command import RemotingCommand, Request, RequestDecoder
from cometmq.protocol.header import HeaderT
from cometmq.protocol.request_type import AnyRequestType, RequestType

if TYPE_CHECKING:
    from cometmq.remoting.access import AdminAccess
    from cometmq.remoting.connection import Connection

# A handler returns its answer as a command, as an encoded frame, or as an awaitable of a command,
# which then runs as a task; None says that nothing is to be answered now.
Answer = RemotingCommand | bytes | Awaitable[RemotingCommand | None] | None
Handler = Callable[["Connection", Request[HeaderT]], Answer]


class Handlers:
    """Handlers by request code, as rows of `cometmq.protocol.requests` declare the requests.

    With `access`, which servers have, requests of administrators are taken from them only.
    """

    def __init__(self, access: AdminAccess | None = None) -> None:
        self._access = access
        self.decoder = RequestDecoder()
        # What is served, by code.
        self.request_types: dict[int, AnyRequestType] = {}
        self._handlers: dict[int, Handler[Any]] = {}
        # The dict's own method: it is called for every frame.
        self.get: Callable[[int], Handler[Any] | None] = self._handlers.get

    def register(
        self, request_type: RequestType[HeaderT, Any, Any, Any], handler: Handler[HeaderT]
    ) -> None:
        """Serve requests of a row with `handler`.

        What the row asks for besides (a bound of the body, a right) is put around the handler here and
        costs nothing where there is none.
        """
        code = request_type.code
        assert code not in self._handlers, f"request code {code} is registered twice"
        self.request_types[code] = request_type
        self.decoder.register(code, request_type.header)
        if request_type.body.max_length is not None:
            handler = _bounded(request_type, handler, request_type.body.max_length)
        if self._access is not None:
            handler = self._access.guarded(request_type, handler)
        self._handlers[code] = handler


def _bounded(
    request_type: AnyRequestType, handler: Handler[HeaderT], limit: int
) -> Handler[HeaderT]:
    def bounded(connection: Connection, request: Request[HeaderT]) -> Answer:
        length = len(request.body)
        if length > limit:
            raise ProtocolError(
                f"the body of {request_type.name} has {length} bytes, the limit is {limit}; send less "
                "at once"
            )
        return handler(connection, request)

    return bounded
