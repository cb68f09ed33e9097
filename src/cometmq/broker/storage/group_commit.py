"""Answer sends once their messages are safe: on disk with SYNC_FLUSH, on slaves with SYNC_MASTER,
both with both (Java: GroupCommitService, GroupTransferService).

One fdatasync serves every send that waits when the sync begins, and one report of a slave every
send whose message it covers. While the disk or the slave works, the next group of sends gathers. So
the busier the broker, the larger the groups.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cometmq.broker.storage.flushing import CommitLogFlusher
from cometmq.errors import StoreError, StoreStarvedError
from cometmq.logs.loggers import get_logger
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import encode_answer
from cometmq.remoting.connection import AnyRequest, Connection
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

# Pause between two flush attempts while no descriptor is free.
_STARVED_PAUSE_S: Final = 0.05
# A timer may fire a little before its time, so who waits for a deadline may have to wait again.
_TICK_S: Final = 0.001
# The time-out may change while sends wait, so it is looked at this often.
_LOOK_S: Final = 1.0


class Copies(Protocol):
    """Knows which slaves have how much of the log."""

    # Called when that may have changed.
    on_change: list[Callable[[], None]]

    def is_available(self, end: int) -> bool:
        """Say whether enough slaves are in step to wait for, when the log ends at `end`."""

    def reached(self) -> int:
        """Return the offset up to which enough slaves have the log."""

    def timeout_s(self) -> float:
        """Return how long a send waits for slaves."""


class _Waiting:
    """A send that waits for `left` conditions. Its message lies below `end` in the log; `since` is a
    time of the loop.

    Its request is not kept, so that the body can be freed. `answered` is called with the answer.
    """

    __slots__ = (
        "answered",
        "code",
        "connection",
        "end",
        "ext_json",
        "is_oneway",
        "left",
        "opaque",
        "owner",
        "since",
    )

    def __init__(
        self,
        owner: GroupCommit,
        end: int,
        since: float,
        connection: Connection,
        opaque: int,
        is_oneway: bool,
        ext_json: bytes,
        answered: Callable[[], None] | None,
    ) -> None:
        self.owner = owner
        self.end = end
        self.since = since
        self.connection = connection
        self.opaque = opaque
        self.is_oneway = is_oneway
        self.ext_json = ext_json
        self.answered = answered
        self.code = ResponseCode.SUCCESS
        self.left = 0

    def settle(self) -> None:
        """Note that a condition is met or overdue, and answer if it was the last one."""
        self.left -= 1
        if self.left == 0:
            self.owner.waiting_count -= 1
            try:
                if self.answered is not None:
                    self.answered()
                if not self.is_oneway:
                    self.connection.write(encode_answer(self.opaque, self.ext_json, code=self.code))
            except Exception:  # noqa: BLE001 - those behind it in the line must be answered
                self.connection.fail()

    def refuse(self, code: ResponseCode, remark: str) -> None:
        """Answer with an error, whatever else is waited for."""
        self.left = 0
        self.owner.waiting_count -= 1
        if not self.is_oneway:
            self.connection.refuse(self.opaque, code, remark)


class _WaitingCall(_Waiting):
    """A request that is answered by `answered` itself."""

    __slots__ = ()

    def settle(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.owner.waiting_count -= 1
            try:
                if self.answered is not None:
                    self.answered()
            except Exception:  # noqa: BLE001 - those behind it in the line must be answered
                self.connection.fail()


class GroupCommit:
    """Holds the sends that wait, in log order. For the loop's thread only.

    `disk` or `slaves` is None if sends do not wait for it. The order in which a send waits for the
    two does not matter: each is a line of its own, and the answer goes out when the send has left
    both. If a message is less safe than requested, the code of the answer gives the reason: the code of
    the slaves if both lines have one, as in Java.
    """

    def __init__(self, disk: DiskLine | None, slaves: SlaveLine | None) -> None:
        assert disk is not None or slaves is not None, "sends wait for nothing"
        self._disk = disk
        self._slaves = slaves
        self._loop = asyncio.get_running_loop()
        # How many sends wait.
        self.waiting_count = 0

    def answer_when_safe(
        self,
        end: int,
        connection: Connection,
        request: AnyRequest,
        ext_json: bytes,
        answered: Callable[[], None] | None = None,
    ) -> None:
        """Answer `request` with `ext_json` when the log is safe up to `end`, and call `answered`
        then.

        After the time-out the code of the answer is FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT, and
        without slaves in step SLAVE_NOT_AVAILABLE: the message stays in the log.
        """
        waiting = _Waiting(
            self,
            end,
            self._loop.time(),
            connection,
            request.opaque,
            request.is_oneway,
            ext_json,
            answered,
        )
        self.waiting_count += 1
        # One more, so that it is not answered in between.
        waiting.left = 1
        if self._slaves is not None:
            self._slaves.enter(waiting)
        if self._disk is not None:
            self._disk.enter(waiting)
        waiting.settle()

    def call_when_safe(
        self, end: int, connection: Connection, request: AnyRequest, answer: Callable[[], None]
    ) -> None:
        """Call `answer`, which answers `request`, when the log is safe up to `end`, or after the time-out."""
        waiting = _WaitingCall(
            self, end, self._loop.time(), connection, request.opaque, request.is_oneway, b"", answer
        )
        self.waiting_count += 1
        waiting.left = 1
        if self._slaves is not None:
            self._slaves.enter(waiting)
        if self._disk is not None:
            self._disk.enter(waiting)
        waiting.settle()


class DiskLine:
    """Lets sends wait until the disk has them. `timeout_s` returns the longest wait."""

    def __init__(
        self, flusher: CommitLogFlusher, timeout_s: Callable[[], float], tasks: TaskOwner
    ) -> None:
        self._flusher = flusher
        self._timeout_s = timeout_s
        self._tasks = tasks
        self._waiting: deque[_Waiting] = deque()
        self._flushing = False
        self._loop = asyncio.get_running_loop()

    def enter(self, waiting: _Waiting) -> None:
        """Have a send wait, and see to it that a sync begins."""
        waiting.left += 1
        self._waiting.append(waiting)
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
                        self._let_overdue_go()
                try:
                    self._flushed(flush.result())
                except StoreStarvedError as error:  # no sync was begun; the next one may succeed
                    log.warning("sends wait for a flush", reason=str(error))
                    await asyncio.sleep(_STARVED_PAUSE_S)
                    self._let_overdue_go()
                except StoreError as error:
                    self._failed(error)
        finally:
            self._flushing = False

    def _oldest_left_s(self) -> float:
        """Return the time until the next send can be overdue, or until that is to be asked again."""
        left_s = self._timeout_s()
        if self._waiting:
            left_s -= self._loop.time() - self._waiting[0].since
        return min(max(_TICK_S, left_s), _LOOK_S)

    def _flushed(self, flushed: int) -> None:
        while self._waiting and self._waiting[0].end <= flushed:
            self._waiting.popleft().settle()

    def _let_overdue_go(self) -> None:
        began = self._loop.time() - self._timeout_s()
        while self._waiting and self._waiting[0].since <= began:
            waiting = self._waiting.popleft()
            if waiting.code == ResponseCode.SUCCESS:
                waiting.code = ResponseCode.FLUSH_DISK_TIMEOUT
            waiting.settle()

    def _failed(self, error: StoreError) -> None:
        """Refuse all waiting sends: after a disk error no message is known to be safe.

        Their messages are in the log, and consumers may have them already. So the code must be one
        after which clients do not take the message for not stored.
        """
        while self._waiting:
            self._waiting.popleft().refuse(ResponseCode.SYSTEM_ERROR, str(error))


class SlaveLine:
    """Lets sends wait until enough slaves have them."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._waiting: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        copies.on_change.append(self._look)

    def enter(self, waiting: _Waiting) -> None:
        """Have a send wait, unless there are too few slaves to wait for."""
        if not self._copies.is_available(waiting.end):
            waiting.code = ResponseCode.SLAVE_NOT_AVAILABLE
            return
        waiting.left += 1
        self._waiting.append(waiting)
        if self._timer is None:
            self._set_timer()

    def _look(self) -> None:
        """Let those go whose messages enough slaves have now."""
        if not self._waiting:
            return
        reached = self._copies.reached()
        while self._waiting and self._waiting[0].end <= reached:
            self._waiting.popleft().settle()

    def _set_timer(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        left_s = self._waiting[0].since + self._copies.timeout_s() - self._loop.time()
        self._timer = self._loop.call_later(
            min(max(_TICK_S, left_s), _LOOK_S), self._let_overdue_go
        )

    def _let_overdue_go(self) -> None:
        self._look()
        began = self._loop.time() - self._copies.timeout_s()
        while self._waiting and self._waiting[0].since <= began:
            waiting = self._waiting.popleft()
            waiting.code = ResponseCode.FLUSH_SLAVE_TIMEOUT
            waiting.settle()
        self._set_timer()
