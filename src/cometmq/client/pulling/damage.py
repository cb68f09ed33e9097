"""Deal with damaged messages as the user chose, log them and count them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.client.membership.offset_store import OffsetStore
from cometmq.client.namespaces import NO_NAMESPACE, Namespace
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.client.pulling.received import DamagedRecord
from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.model.results import DamageCounts, DamagedMessage
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

_LINES_PER_MINUTE: Final = 60
_MINUTE_S: Final = 60.0
BURY_AGAIN_FIRST_S: Final = 1.0
BURY_AGAIN_LAST_S: Final = 30.0

# Sends the bytes of a damaged message to the group's dead letters; raises CometMQError.
Bury = Callable[[DamagedRecord], Awaitable[None]]


class DamageControl:
    """Deals with the damaged messages of one group member. For the member's loop.

    Without `bury` there are no dead letters, so the choice DEAD_LETTER skips damaged messages.
    """

    def __init__(
        self,
        choice: DamagedMessage,
        group: str,
        *,
        namespace: Namespace = NO_NAMESPACE,
        offsets: OffsetStore | None = None,
        bury: Bury | None = None,
        tasks: TaskOwner | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._monotonic = clock.monotonic
        self._choice = choice
        if choice is DamagedMessage.DEAD_LETTER and (bury is None or tasks is None):
            self._choice = DamagedMessage.SKIP
        self._group = group
        self._namespace = namespace
        self._offsets = offsets
        self._bury = bury
        self._tasks = tasks
        self._skipped = 0
        self._dead_lettered = 0
        self._stopped: dict[MessageQueue, tuple[ProcessQueue, int]] = {}
        self._lines: deque[float] = deque()
        self._left_out = 0

    def met(self, process_queue: ProcessQueue, damaged: DamagedRecord) -> bool:
        """Deal with a damaged record that was pulled. Return True when the queue must stop there.

        Unless the record is skipped, its offset is held: nothing from it on is committed until the
        record is among the dead letters, or the queue is dropped.
        """
        choice = DamagedMessage.SKIP if damaged.surplus else self._choice
        if choice is DamagedMessage.SKIP:
            self._skipped += 1
            self._say("a damaged message is skipped", damaged)
            return False
        process_queue.hold(damaged.queue_offset, len(damaged.data))
        if choice is DamagedMessage.STOP:
            self._stopped[damaged.queue] = (process_queue, damaged.queue_offset)
            self._say(
                "a queue is stopped at a damaged message: nothing of it is consumed from there on; "
                "set the group's offset behind it or start with another on_damaged to go on",
                damaged,
            )
            return True
        self._say("a damaged message goes to the dead letters", damaged)
        assert self._tasks is not None, "else it is skipped"
        self._tasks.spawn(self._dead_letter(process_queue, damaged), "bury-damaged")
        return False

    def counts(self) -> DamageCounts:
        """Return the counts, with the queues named as users know them."""
        unwrap = self._namespace.unwrap_queue
        stopped = {
            unwrap(queue): offset
            for queue, (process_queue, offset) in self._stopped.items()
            if not process_queue.dropped
        }
        return DamageCounts(self._skipped, self._dead_lettered, stopped)

    def properties(self) -> dict[str, str]:
        """Return the properties for the running info that brokers and consoles ask for."""
        counts = self.counts()
        stopped = (
            f"{queue.topic}/{queue.broker_name}/{queue.queue_id}@{offset}"
            for queue, offset in sorted(counts.stopped.items())
        )
        return {
            "onDamaged": self._choice.value,
            "damagedSkipped": str(counts.skipped),
            "damagedDeadLettered": str(counts.dead_lettered),
            "damagedStoppedQueues": ", ".join(stopped),
        }

    async def _dead_letter(self, process_queue: ProcessQueue, damaged: DamagedRecord) -> None:
        assert self._bury is not None, "else it is skipped"
        pause_s = BURY_AGAIN_FIRST_S
        while not process_queue.dropped:
            try:
                await self._bury(damaged)
            except CometMQError as error:
                log.warning(
                    "a damaged message could not be sent to the dead letters, it is tried again",
                    group=self._group,
                    queue=str(damaged.queue),
                    queue_offset=damaged.queue_offset,
                    reason=str(error),
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BURY_AGAIN_LAST_S)
                continue
            self._dead_lettered += 1
            below = process_queue.remove((damaged.queue_offset,))
            if below >= 0 and not process_queue.dropped and self._offsets is not None:
                self._offsets.update(process_queue.queue, below, increase_only=True)
            return

    def _say(self, text: str, damaged: DamagedRecord) -> None:
        """Log one line, unless there were too many in the last minute. The next line that is logged
        says how many were left out.
        """
        now = self._monotonic()
        while self._lines and now - self._lines[0] > _MINUTE_S:
            self._lines.popleft()
        if len(self._lines) >= _LINES_PER_MINUTE:
            self._left_out += 1
            return
        self._lines.append(now)
        log.error(
            text,
            group=self._group,
            topic=damaged.queue.topic,
            broker=damaged.queue.broker_name,
            queue_id=damaged.queue.queue_id,
            queue_offset=damaged.queue_offset,
            commit_log_offset=damaged.commit_log_offset,
            size=len(damaged.data),
            reason=damaged.reason,
            lines_left_out=self._left_out,
        )
        self._left_out = 0
