"""Have threads read old messages from the disk before a pull is answered.

Answers are parts of the mapped log. Where a part is not in the page cache, touching it stops the loop
until the device has read it, 14 to 31 ms as measured, and everybody waits. So such a pull waits here
until a thread has brought in what it needs, and is then served as if it came now.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

import structlog

from cometmq.broker.refusal import Refused
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.connection import Connection
from cometmq.runtime.workers import Workers

log = structlog.get_logger(__name__)

# Devices serve a few reads at once faster than one after the other.
READERS: Final = 4
# Pulls that may wait for the disk at once, in all and of one connection.
MAX_COLD_PULLS: Final = 20_000
MAX_COLD_PULLS_OF_CONNECTION: Final = 1_000

# Called with why the disk could not be read, or None. Must not raise.
Serve = Callable[[Exception | None], None]


class _Waiting:
    __slots__ = ("absent", "serve")

    def __init__(self, absent: Sequence[Callable[[], None]], serve: Serve) -> None:
        self.absent = absent
        self.serve = serve


class ColdReads:
    """Lets pulls wait while READERS threads read for them. Connections take turns, so that one with
    many pulls does not hold up the others. For the loop's thread only.

    A pull whose peer does not read its earlier answers is read for, and served, only after `sweep`
    has found that it does.
    """

    def __init__(self, workers: Workers) -> None:
        # They begin no thread before they have something to read.
        self._readers = [workers.worker(f"cold-reads-{number}") for number in range(READERS)]
        self._idle = list(self._readers)
        self._waiting: dict[Connection, deque[_Waiting]] = {}
        # Those whose peers do not read.
        self._postponed: dict[Connection, deque[_Waiting]] = {}
        self._of_connection: dict[Connection, int] = {}
        self._is_closed = False
        # Is called when `sweep` has something to do.
        self.on_sweep_due: Callable[[], None] = lambda: None
        self.count = 0

    def read(
        self, connection: Connection, absent: Sequence[Callable[[], None]], serve: Serve
    ) -> None:
        """Have a thread do all of `absent`, and call `serve` then, unless the connection is lost.

        Raises Refused if too many pulls wait.
        """
        of_connection = self._of_connection.get(connection, 0)
        for count, name, limit in (
            (self.count, "MAX_COLD_PULLS", MAX_COLD_PULLS),
            (of_connection, "MAX_COLD_PULLS_OF_CONNECTION", MAX_COLD_PULLS_OF_CONNECTION),
        ):
            if count >= limit:
                raise Refused(
                    ResponseCode.SYSTEM_BUSY,
                    f"{count} pulls wait for the disk, the limit {name} is {limit}; pull again in a "
                    "moment, and have fewer pulls under way",
                    limit=name,
                )
        self.count += 1
        self._of_connection[connection] = of_connection + 1
        self._waiting.setdefault(connection, deque()).append(_Waiting(absent, serve))
        self._begin()

    def sweep(self) -> None:
        """Go on with the pulls whose peers read their answers by now."""
        postponed, self._postponed = self._postponed, {}
        for connection, waiting in postponed.items():
            known = self._waiting.get(connection)
            if known is None:
                self._waiting[connection] = waiting
            else:
                known.extendleft(reversed(waiting))
        self._begin()

    @property
    def must_sweep(self) -> bool:
        """Whether `sweep` has something to look at."""
        return bool(self._postponed)

    def close(self) -> None:
        """Wait until the threads have ended; pulls that still wait are not answered."""
        self._is_closed = True
        for reader in self._readers:
            reader.shutdown(wait=True)

    def _begin(self) -> None:
        while self._idle and self._waiting and not self._is_closed:
            connection = next(iter(self._waiting))
            waiting = self._waiting.pop(connection)
            if connection.closed:
                for _ in waiting:
                    self._forget(connection)
                continue
            if connection.congested:
                self._postpone(connection, waiting)
                continue
            pull = waiting.popleft()
            if waiting:
                self._waiting[connection] = waiting
            reader = self._idle.pop()
            reading = asyncio.get_running_loop().run_in_executor(reader, _do, pull.absent)
            reading.add_done_callback(partial(self._ended, reader, connection, pull))

    def _ended(
        self,
        reader: Executor,
        connection: Connection,
        pull: _Waiting,
        reading: asyncio.Future[None],
    ) -> None:
        self._idle.append(reader)
        if reading.cancelled() or self._is_closed or connection.closed:
            self._forget(connection)
        elif connection.congested:
            self._postpone(connection, deque([pull]))
        else:
            self._forget(connection)
            error = reading.exception()
            if isinstance(error, Exception):
                log.error("old messages cannot be read", reason=str(error))
                pull.serve(error)
            else:
                pull.serve(None)
        self._begin()

    def _postpone(self, connection: Connection, waiting: deque[_Waiting]) -> None:
        self._postponed.setdefault(connection, deque()).extend(waiting)
        self.on_sweep_due()

    def _forget(self, connection: Connection) -> None:
        self.count -= 1
        left = self._of_connection[connection] - 1
        if left:
            self._of_connection[connection] = left
        else:
            del self._of_connection[connection]


def _do(absent: Sequence[Callable[[], None]]) -> None:
    for bring_in in absent:
        bring_in()
