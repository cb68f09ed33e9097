"""Which handler serves which request code (Java: NettyRemotingAbstract.processorTable)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from cometmq.errors import ProtocolError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand, Request, RequestDecoder
from cometmq.protocol.header import Header, HeaderT

if TYPE_CHECKING:
    from cometmq.remoting.access import AdminAccess
    from cometmq.remoting.connection import Connection

# A handler returns its answer as a command, as an encoded frame, or as an awaitable of a command,
# which then runs as a task; None says that nothing is to be answered now.
Answer = RemotingCommand | bytes | Awaitable[RemotingCommand | None] | None
Handler = Callable[["Connection", Request[HeaderT]], Answer]


class Handlers:
    """Handlers by request code, each with the header type its requests are decoded into.

    With `access`, which servers have, requests of administrators are taken from them only.
    """

    def __init__(self, access: AdminAccess | None = None) -> None:
        self._access = access
        self.decoder = RequestDecoder()
        # The longest body that a code's requests may bring; a code that is not here has none, or
        # bounds it by itself.
        self.max_body_lengths: dict[int, int] = {}
        self._handlers: dict[int, Handler[Any]] = {}
        # The dict's own method: it is called for every frame.
        self.get: Callable[[int], Handler[Any] | None] = self._handlers.get

    def register(
        self,
        code: int,
        header_type: type[HeaderT],
        handler: Handler[HeaderT],
        *,
        max_body_length: int | None = None,
    ) -> None:
        """Serve `code` with `handler`. Every code has one.

        Give `max_body_length` to a handler that reads a body: longer ones are refused before it runs.
        """
        assert code not in self._handlers, f"request code {code} is registered twice"
        header: type[Header] = header_type
        self.decoder.register(code, header)
        if max_body_length is not None:
            self.max_body_lengths[code] = max_body_length
            handler = _bounded(code, handler, max_body_length)
        self._handlers[code] = self._access.guarded(code, handler) if self._access else handler


def _bounded(code: int, handler: Handler[HeaderT], limit: int) -> Handler[HeaderT]:
    def bounded(connection: Connection, request: Request[HeaderT]) -> Answer:
        length = len(request.body)
        if length > limit:
            name = RequestCode(code).name if code in set(RequestCode) else str(code)
            raise ProtocolError(
                f"the body of {name} has {length} bytes, the limit is {limit}; send less at once"
            )
        return handler(connection, request)

    return bounded
