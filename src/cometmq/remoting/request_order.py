"""Keep the order of a connection's requests when one of them takes several turns of the loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from cometmq.protocol.command import RemotingCommand
from cometmq.remoting.connection import AnyRequest, Connection


class RequestOrder:
    """Serves long requests one at a time, and what follows them over their connections afterwards.

    A small registration, or a broker's or client's farewell, would otherwise overtake a large
    registration or heartbeat that came before it, and what it changed would be changed back. For the
    loop's thread only.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()  # those who wait for it get it in the order in which they came
        self._under_way: Counter[Connection] = Counter()

    def has_long(self, connection: Connection) -> bool:
        """Return whether a long request of the connection is under way, or waits for its turn."""
        return connection in self._under_way

    def serve_long(
        self,
        connection: Connection,
        request: AnyRequest,
        serve: Callable[[], Awaitable[RemotingCommand | None]],
    ) -> None:
        """Answer a request by `serve` when all long ones before it are answered. Raises LimitError."""
        connection.reply_when(request, self._in_turn(connection, serve))
        self._under_way[connection] += 1

    def serve(
        self,
        connection: Connection,
        request: AnyRequest,
        serve: Callable[[], RemotingCommand | None],
    ) -> RemotingCommand | None:
        """Return the answer of `serve`; None if a long request of the connection is under way: then it
        is called and answered later.
        """
        if not self.has_long(connection):
            return serve()

        async def later() -> RemotingCommand | None:
            return serve()

        self.serve_long(connection, request, later)
        return None

    async def _in_turn(
        self, connection: Connection, serve: Callable[[], Awaitable[RemotingCommand | None]]
    ) -> RemotingCommand | None:
        try:
            async with self._lock:
                # Nobody would read the answer, or remove again what the request adds.
                return None if connection.closed else await serve()
        finally:
            self._under_way[connection] -= 1
            if not self._under_way[connection]:
                del self._under_way[connection]
