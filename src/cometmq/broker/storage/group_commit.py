"""Answer sends once their messages are on disk: SYNC_FLUSH (Java: GroupCommitService).

One fdatasync serves every send that waits when the sync begins. While it runs, the next group of
sends gathers. So the busier the broker, the larger the groups.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from cometmq.broker.storage.flushing import CommitLogFlusher
from cometmq.errors import StoreError, StoreStarvedError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import encode_answer
from cometmq.remoting.connection import AnyRequest, Connection
from cometmq.runtime.tasks import TaskOwner

log = structlog.get_logger(__name__)

# Pause between two flush attempts while no descriptor is free.
_STARVED_PAUSE_S: Final = 0.05
# A timer may fire a little before its time, so who waits for a deadline may have to wait again.
_TICK_S: Final = 0.001
# The time-out may change while sends wait, so it is looked at this often.
_LOOK_S: Final = 1.0


class _Waiting(NamedTuple):
    """A send that waits. Its message lies below `end` in the log; `since` is a time of the loop.

    Its request is not kept, so that the body can be freed. `answered` is called with the answer.
    """

    end: int
    since: float
    connection: Connection
    opaque: int
    is_oneway: bool
    ext_json: bytes
    answered: Callable[[], None] | None


class GroupCommit:
    """Holds the sends that wait for the disk, in log order. For the loop's thread only.

    `timeout_s` is asked for the time that each of them may wait; it may change.
    """

    def __init__(
        self, flusher: CommitLogFlusher, timeout_s: Callable[[], float], tasks: TaskOwner
    ) -> None:
        self._flusher = flusher
        self._timeout_s = timeout_s
        self._tasks = tasks
        self._waiting: deque[_Waiting] = deque()
        self._flushing = False
        self._loop = asyncio.get_running_loop()

    def answer_when_flushed(
        self,
        end: int,
        connection: Connection,
        request: AnyRequest,
        ext_json: bytes,
        answered: Callable[[], None] | None = None,
    ) -> None:
        """Answer `request` with `ext_json` when the log is on disk up to `end`, and call `answered`
        then.

        After the time-out the code of the answer is FLUSH_DISK_TIMEOUT: the message stays in the
        log.
        """
        now = self._loop.time()
        self._waiting.append(
            _Waiting(end, now, connection, request.opaque, request.is_oneway, ext_json, answered)
        )
        if not self._flushing:
            self._flushing = True
            # The task begins in the loop's next turn, so its group has all sends of this turn.
            self._tasks.spawn(self._flush_groups(), "group-commit")

    async def _flush_groups(self) -> None:
        try:
            while self._waiting:
                flush = self._flusher.flush(0)
                while not flush.done():
                    await asyncio.wait([flush], timeout=self._oldest_left_s())
                    if not flush.done():  # if the disk hangs, overdue sends must be answered
                        self._answer_overdue()
                try:
                    self._answer_flushed(flush.result())
                except StoreStarvedError as error:  # no sync was begun; the next one may succeed
                    log.warning("sends wait for a flush", reason=str(error))
                    await asyncio.sleep(_STARVED_PAUSE_S)
                    self._answer_overdue()
                except StoreError as error:
                    self._answer_failed(error)
        finally:
            self._flushing = False

    def _oldest_left_s(self) -> float:
        """Return the time until the next send can be overdue, or until that is to be asked again."""
        left_s = self._timeout_s()
        if self._waiting:
            left_s -= self._loop.time() - self._waiting[0].since
        return min(max(_TICK_S, left_s), _LOOK_S)

    def _answer_flushed(self, flushed: int) -> None:
        while self._waiting and self._waiting[0].end <= flushed:
            self._answer(self._waiting.popleft(), ResponseCode.SUCCESS)

    def _answer_overdue(self) -> None:
        began = self._loop.time() - self._timeout_s()
        while self._waiting and self._waiting[0].since <= began:
            self._answer(self._waiting.popleft(), ResponseCode.FLUSH_DISK_TIMEOUT)

    def _answer_failed(self, error: StoreError) -> None:
        """Refuse all waiting sends: after a disk error no message is known to be safe.

        Their messages are in the log, and consumers may have them already. So the code must be one
        after which clients do not take the message for not stored.
        """
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.is_oneway:
                waiting.connection.refuse(waiting.opaque, ResponseCode.SYSTEM_ERROR, str(error))

    @property
    def waiting_count(self) -> int:
        """How many sends wait."""
        return len(self._waiting)

    def _answer(self, waiting: _Waiting, code: ResponseCode) -> None:
        if waiting.answered is not None:
            waiting.answered()
        if not waiting.is_oneway:
            waiting.connection.write(encode_answer(waiting.opaque, waiting.ext_json, code=code))
