"""Hold sends to a new topic until the topic is made, on disk, and known to name servers.

So a client that has the answer to a send finds the topic's route at any name server, and the topic is
still there after a kill. Java's broker, too, writes and registers a topic before it stores the
message that the topic was made for. Here that is done for many topics at once and beside the loop.
The loop makes topics and stores waiting messages for a slice at a time, and serves others in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.broker.refusal import Refused
from cometmq.errors import LimitError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import Request
from cometmq.protocol.headers import (
    SendMessageHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from cometmq.remoting.connection import Connection
from cometmq.runtime.slices import SLICE_S
from cometmq.runtime.tasks import TaskOwner

SendRequest = Request[SendMessageRequestHeader] | Request[SendMessageRequestHeaderV2]

# Limits of the sends that wait: a disk that hangs must not fill the memory.
MAX_FIRST_SENDS: Final = 50_000
# Two connections may have as much waiting as `maxBytesInFlightPerConnection` lets one have.
MAX_FIRST_SEND_BYTES: Final = 128 * 1024 * 1024

_Held = tuple[Connection, SendRequest]


class FirstSends:
    """Keeps waiting requests by topic, in the order in which they came.

    `make` makes the topic of a header, or raises why not. `ready` returns when disk and name
    servers know all topics made so far, or raises. Then `send` serves the requests of a topic, one
    after the other, while `serving` names the topic. For the loop's thread only.
    """

    def __init__(
        self,
        make: Callable[[SendMessageHeader], object],
        ready: Callable[[], Awaitable[None]],
        send: Callable[[Connection, SendRequest], None],
        is_there: Callable[[str], bool],
        tasks: TaskOwner,
    ) -> None:
        self._make = make
        self._ready = ready
        self._send = send
        self._is_there = is_there
        self._tasks = tasks
        self._topics: dict[str, deque[_Held]] = {}
        # Topics to be made, and topics whose requests can be answered, with the reason if these are
        # refused.
        self._unmade: deque[str] = deque()
        self._served: deque[tuple[str, Exception | None]] = deque()
        self._working = False
        self.serving: str | None = None
        self.count = 0
        self._bytes = 0

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def hold(self, topic: str, connection: Connection, request: SendRequest) -> None:
        """Serve the request when its topic's turn comes. Raises LimitError when too much waits."""
        size = len(request.frame.body)
        for what, value, limit, most in (
            ("messages", self.count + 1, "MAX_FIRST_SENDS", MAX_FIRST_SENDS),
            ("bytes of messages", self._bytes + size, "MAX_FIRST_SEND_BYTES", MAX_FIRST_SEND_BYTES),
        ):
            if value > most:
                raise LimitError(
                    f"{what} would wait for their topics to be made",
                    value,
                    limit,
                    most,
                    "try again in a second",
                    code=ResponseCode.SYSTEM_BUSY,
                )
        self.count += 1
        self._bytes += size
        held = self._topics.get(topic)
        if held is None:
            held = self._topics[topic] = deque()
            self._unmade.append(topic)
            self._work_soon()
        held.append((connection, request))
        connection.keep(request)

    # Inside

    def _work_soon(self) -> None:
        if not self._working:
            self._working = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Make topics, then serve requests, for a slice of time."""
        self._working = False
        try:
            self._work_slice()
        finally:  # whatever failed, the others go on
            if self._unmade or self._served:
                self._work_soon()

    def _work_slice(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE_S
        made: list[str] = []
        while self._unmade and loop.time() < until:
            topic = self._unmade.popleft()
            if self._make_topic(topic):
                made.append(topic)
        if made:
            # All topics of this slice are written together.
            self._tasks.spawn(self._wait(made), "first-sends")
        while self._served and loop.time() < until:
            topic, refused = self._served[0]
            if refused is None and not self._is_there(topic):
                # Deleted meanwhile: it is made again, and waits for disk and name servers again.
                self._served.popleft()
                self._unmade.append(topic)
            else:
                self._serve_one(topic, refused)

    def _make_topic(self, topic: str) -> bool:
        """Make the topic for its first request that is allowed to; return False if none is."""
        held = self._topics[topic]
        while held:
            connection, request = held[0]
            header = request.header
            try:
                self._make(header)
            except Exception as error:  # noqa: BLE001 - one request must not cost the others theirs
                self._take(held)
                connection.reply_failure(request, error)
            else:
                return True
        del self._topics[topic]
        return False

    async def _wait(self, topics: list[str]) -> None:
        reason: Exception | None = None
        try:
            await self._ready()
        except Refused as error:
            reason = error
        self._served.extend((topic, reason) for topic in topics)
        self._work_soon()

    def _serve_one(self, topic: str, refused: Exception | None) -> None:
        """Serve the next request of a topic. Requests that come now wait in line."""
        held = self._topics[topic]
        connection, request = self._take(held)
        self.serving = topic
        try:
            if refused is not None:
                raise refused.with_traceback(None)
            self._send(connection, request)
        except Exception as error:  # noqa: BLE001 - one request must not cost the others theirs
            connection.reply_failure(request, error)
        finally:
            self.serving = None
        if not held:
            del self._topics[topic]
            self._served.popleft()

    def _take(self, held: deque[_Held]) -> _Held:
        connection, request = held.popleft()
        self.count -= 1
        self._bytes -= len(request.frame.body)
        connection.let_go(request)
        return connection, request
