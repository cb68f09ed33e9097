"""Sends that made their topic: held until name servers know it (Java: registerIncrementBrokerData).

Whoever has the answer to a send finds the topic's route, at whichever name server. So did Java's broker:
it registers a topic before it stores the message that the topic was made for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cometmq.protocol.command import Request
from cometmq.protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from cometmq.remoting.connection import Connection
from cometmq.runtime.tasks import TaskOwner

SendRequest = Request[SendMessageRequestHeader] | Request[SendMessageRequestHeaderV2]


class FirstSends:
    """Requests in the order in which they came, by topic. `announced` returns when name servers know
    what was made so far; then `send` serves them. For the loop's thread only.
    """

    def __init__(
        self,
        announced: Callable[[], Awaitable[None]],
        send: Callable[[Connection, SendRequest], bytes | None],
        tasks: TaskOwner,
    ) -> None:
        self._announced = announced
        self._send = send
        self._tasks = tasks
        self._held: dict[str, list[tuple[Connection, SendRequest]]] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._held

    def begin(self, topic: str) -> None:
        """`topic` was made just now."""
        self._held[topic] = []
        self._tasks.spawn(self._serve(topic), f"first-sends-{topic}")

    def hold(self, topic: str, connection: Connection, request: SendRequest) -> None:
        """Serve it when its turn comes."""
        connection.keep(request)
        self._held[topic].append((connection, request))

    async def _serve(self, topic: str) -> None:
        await self._announced()
        # In one go: what comes from now on is served behind these.
        for connection, request in self._held.pop(topic):
            connection.let_go(request)
            try:
                answer = self._send(connection, request)
            except Exception as error:  # noqa: BLE001 - one request must not cost the others theirs
                connection.reply_failure(request, error)
                continue
            if answer is not None and not request.is_oneway:
                connection.write(answer)
