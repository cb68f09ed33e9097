"""Keep one-way messages until they have left this process.

Nobody answers a one-way send, so the last thing that a client can know is whether the kernel took
the message's bytes. Until then this module keeps the message. A producer that closes earlier gives
the message back to the user instead of losing it without a word.

A connection sends its bytes in order. So a message has left when no more bytes wait at the
connection than this producer queued behind the message. Other users of the connection may have
queued bytes too; then the message counts as unsent for longer than it is, which errs on the safe
side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from cometmq.model.message import Message
from cometmq.remoting.connection import Connection

# The interval at which connections are looked at while messages wait.
LOOK_INTERVAL_S: Final = 0.01
# The producer keeps at most so many messages that no connection took, the latest ones. It logs each of them.
MOST_REFUSED: Final = 1_024


class _Line:
    """Holds the messages that one connection has yet to send, oldest first, each with its size."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Message, int]] = deque()
        self.queued_bytes = 0

    def add(self, message: Message, size: int) -> None:
        self.waiting.append((message, size))
        self.queued_bytes += size

    def forget_sent(self, unsent_bytes: int) -> None:
        while self.waiting:
            size = self.waiting[0][1]
            if unsent_bytes > self.queued_bytes - size:
                return
            self.queued_bytes -= size
            self.waiting.popleft()


class Oneways:
    """Keeps the one-way messages of one producer that have not left. For the producer's loop."""

    def __init__(self) -> None:
        self._lines: dict[Connection, _Line] = {}
        # Messages whose connection broke before they were known to have left.
        self._lost: list[Message] = []
        # Messages that no connection took.
        self._refused: deque[Message] = deque(maxlen=MOST_REFUSED)
        self._look: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def sent(self, message: Message, connection: Connection, size: int) -> None:
        """Note that the message's bytes, `size` of them, were just queued at the connection."""
        line = self._lines.get(connection)
        if line is None:
            line = self._lines[connection] = _Line()
        line.add(message, size)
        if self._look is None:
            self._look = self._loop.call_later(LOOK_INTERVAL_S, self._look_again)

    def lose(self, message: Message) -> None:
        """Note a message that no connection took, and that is not tried again."""
        self._refused.append(message)

    async def drain(self, timeout_s: float) -> list[Message]:
        """Wait until all messages have left, at most `timeout_s`. Return those that have not."""
        deadline = self._loop.time() + timeout_s
        while self._waiting() and self._loop.time() < deadline:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(LOOK_INTERVAL_S)
        if self._look is not None:
            self._look.cancel()
        return [
            *self._lost,
            *(message for line in self._lines.values() for message, _ in line.waiting),
            *self._refused,
        ]

    def _waiting(self) -> bool:
        for connection, line in list(self._lines.items()):
            if connection.closed:
                self._lost += [message for message, _ in line.waiting]
                del self._lines[connection]
                continue
            line.forget_sent(connection.unsent_bytes)
            if not line.waiting:
                del self._lines[connection]
        return bool(self._lines)

    def _look_again(self) -> None:
        self._look = None
        if self._waiting():
            self._look = self._loop.call_later(LOOK_INTERVAL_S, self._look_again)
