"""Which handler serves which request code (Java: NettyRemotingAbstract.processorTable)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

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
        self._handlers: dict[int, Handler[Any]] = {}
        # The dict's own method: it is called for every frame.
        self.get: Callable[[int], Handler[Any] | None] = self._handlers.get

    def register(self, code: int, header_type: type[HeaderT], handler: Handler[HeaderT]) -> None:
        """Serve `code` with `handler`. Every code has one."""
        assert code not in self._handlers, f"request code {code} is registered twice"
        header: type[Header] = header_type
        self.decoder.register(code, header)
        self._handlers[code] = self._access.guarded(code, handler) if self._access else handler
