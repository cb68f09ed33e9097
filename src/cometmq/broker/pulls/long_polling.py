"""Hold pulls that wait for a message (Java: PullRequestHoldService,
NotifyMessageArrivingListener).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.filtering.metering import MeteredProperties, decoding_cost
from cometmq.model.work import OutOfWorkError, WorkBudget
from cometmq.protocol.properties import decode_properties
from cometmq.remoting.connection import Connection
from cometmq.runtime.loggers import get_logger

log = get_logger(__name__)

TagMatcher = Callable[[int], bool]

# Pulls answered in one turn of the loop, which takes about a slice of runtime/slices.py; each answer may
# have some hundred kilobytes.
_ANSWERS_PER_TURN: Final = 16
# Woken pulls that are put into the order in which they are answered, in one turn of the loop.
_SORTED_PER_TURN: Final = 1_024
# Pulls answered in a turn while others are still to be put into that order: the first of them are
# not yet known to be those whose turn it is.
_ANSWERS_WHILE_SORTING: Final = 8
# Pulls that a sweep looks at in one turn of the loop: some hundred microseconds.
_SWEPT_PER_TURN: Final = 500
# Cost of looking at one pull, in units of WorkBudget. Up to _FREE_LOOKS pulls cost nothing.
_LOOK_COST: Final = 150
_FREE_LOOKS: Final = 64
DEFAULT_HELD_OF_CONNECTION: Final = 20_000


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull of `topic`/`queue_id` that found nothing at `offset`.

    `deadline` is a time of the loop. `answer` serves the pull once more, and always answers it; an
    error that it raises closes the connection. `matches_properties` may raise OutOfWorkError, but
    nothing else.
    """

    connection: Connection
    topic: str
    queue_id: int
    offset: int
    deadline: float
    matches: TagMatcher | None
    answer: Callable[[], None]
    matches_properties: Callable[[Mapping[str, str]], bool] | None = None


class LongPolling:
    """Holds pulls by queue and lets them go on arrival, time-out or loss of the connection.

    Messages that arrive in one turn of the loop wake a pull once, at the end of the turn, so that
    the pull finds all of them. If very many pulls are woken, some are answered in later turns, and
    connections take turns, so that one with many pulls does not hold up the others. The work of matching an arrival with the pulls is charged to `work`. Once that is spent, an arrival
    wakes all pulls of the queue, and each applies its filter itself. For the loop's thread only.
    """

    def __init__(
        self, max_held: int, work: WorkBudget, max_of_connection: int = DEFAULT_HELD_OF_CONNECTION
    ) -> None:
        self.max_held = max_held
        self.max_of_connection = max_of_connection
        # Called with the name of the limit for each pull that it does not allow to wait.
        self.on_limit: Callable[[str], None] = lambda _limit: None
        # Is called when `sweep` has something to do sooner than `idle_s` said.
        self.on_sweep_due: Callable[[], None] = lambda: None
        self._work = work
        self._held: dict[str, dict[int, list[HeldPull]]] = {}
        self._count = 0
        self._woken: deque[HeldPull] = deque()
        # Woken pulls by connection, in the order in which connections are answered.
        self._ready: dict[Connection, deque[HeldPull]] = {}
        self._ready_count = 0
        self._answering = False
        self._postponed: list[HeldPull] = []
        # What is left of a sweep; it yields how many pulls it has looked at.
        self._sweeping: Iterator[int] | None = None
        # No pull that waits has an earlier deadline. To ask all of them each time takes some ms.
        self._earliest = math.inf
        self._answers_per_turn = _ANSWERS_PER_TURN

    @property
    def count(self) -> int:
        """How many pulls wait."""
        return self._count

    def hold(self, pull: HeldPull) -> bool:
        """Let a pull wait.

        Return False if `max_held` others wait, or `max_of_connection` of its own connection: the
        caller then answers it.
        """
        woken = len(self._woken) + self._ready_count
        if self._count >= self.max_held or woken >= self.max_held:
            self.on_limit("maxHeldPulls")
            return False
        if pull.connection.held_pulls >= self.max_of_connection:
            self.on_limit("maxHeldPullsPerConnection")
            return False
        pull.connection.held_pulls += 1
        if pull.deadline < self._earliest:
            self._earliest = pull.deadline
            self.on_sweep_due()
        self._held.setdefault(pull.topic, {}).setdefault(pull.queue_id, []).append(pull)
        self._count += 1
        return True

    def is_awaited(self, topic: str, queue_id: int) -> bool:
        """Say whether any pull waits for a queue's messages."""
        return queue_id in self._held.get(topic, ())

    def arrived(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,
        tags_code: int,
        _store_timestamp_ms: int = 0,
        properties: bytes = b"",
    ) -> None:
        """Wake the pulls that want the message which was put at `next_offset - 1`.

        A pull whose filter does not match stays; its answer will skip the message.
        """
        queues = self._held.get(topic)
        if queues is None:
            return
        waiting = queues.get(queue_id)
        if waiting is None:
            return
        kept: list[HeldPull] = []
        try:
            self._match(waiting, kept, next_offset, tags_code, properties)
        except OutOfWorkError:
            kept = []
            self._let_go(waiting)
        self._keep(topic, queue_id, waiting, kept)

    def _match(
        self,
        waiting: list[HeldPull],
        kept: list[HeldPull],
        next_offset: int,
        tags_code: int,
        properties: bytes,
    ) -> None:
        """Wake the pulls that want a message, and put the others into `kept`.

        Raises OutOfWorkError before it wakes any pull.
        """
        if len(waiting) > _FREE_LOOKS:
            self._work.charge(len(waiting) * _LOOK_COST)
        woken: list[HeldPull] = []
        decoded: MeteredProperties | None = None
        for pull in waiting:
            wanted = next_offset > pull.offset and (pull.matches is None or pull.matches(tags_code))
            if wanted and pull.matches_properties is not None:
                if decoded is None:
                    text = properties.decode("utf-8", "replace")
                    self._work.charge(decoding_cost(text))
                    decoded = MeteredProperties(decode_properties(text), self._work)
                wanted = pull.matches_properties(decoded)
            if wanted:
                woken.append(pull)
            else:
                kept.append(pull)
        if woken:
            self._let_go(woken)

    def sweep(self, now: float) -> None:
        """Answer the pulls that have waited long enough; `now` is a time of the loop.

        Also forgets the pulls of closed connections: if many clients go, a search at each loss
        would take far longer than one round for them all. Also tries again the pulls that were
        postponed because their peer had not read earlier answers. A round over very many pulls goes
        on in later turns.
        """
        postponed, self._postponed = self._postponed, []
        if postponed:
            self._let_go(postponed)
        if self._sweeping is None:
            self._earliest = math.inf
            self._sweeping = self._sweep_steps(now)
            self._sweep_on()

    def idle_s(self, now: float) -> float:
        """Return for how many seconds `sweep` has nothing to do unless something else happens."""
        if self._postponed or self._sweeping is not None:
            return 0.0
        return max(0.0, self._earliest - now)

    def _sweep_on(self) -> None:
        left = _SWEPT_PER_TURN
        try:
            for looked_at in self._sweeping or ():
                left -= looked_at
                if left <= 0:
                    asyncio.get_running_loop().call_soon(self._sweep_on)
                    return
        except Exception:  # the next sweep must begin
            log.exception("waiting pulls could not be checked")
        self._sweeping = None

    def _sweep_steps(self, now: float) -> Iterator[int]:
        for topic in list(self._held):
            for queue_id in list(self._held.get(topic, ())):
                yield from self._release_overdue(topic, queue_id, now)

    def release_all(self) -> None:
        """Answer every pull in the next turn, because the broker stops."""
        self._answers_per_turn = len(self._woken) + self._ready_count + self._count
        for topic in list(self._held):
            self.release_topic(topic)

    def release_topic(self, topic: str) -> None:
        """Answer every pull of a topic soon, because the topic was removed or changed."""
        for waiting in self._held.pop(topic, {}).values():
            self._count -= len(waiting)
            self._let_go(waiting)

    def _release_overdue(self, topic: str, queue_id: int, now: float) -> Iterator[int]:
        """Answer the pulls of a queue that are due, part by part; who stays goes behind the others."""
        waiting = self._held.get(topic, {}).get(queue_id, [])
        left = len(waiting)
        while left > 0:
            if self._held.get(topic, {}).get(queue_id) is not waiting:
                # A message came in between, and who did not want it waits in another list.
                self._earliest = now
                return
            part = waiting[: min(left, _SWEPT_PER_TURN)]
            del waiting[: len(part)]
            left -= len(part)
            woken: list[HeldPull] = []
            for pull in part:
                if pull.deadline <= now or pull.connection.closed:
                    woken.append(pull)
                else:
                    waiting.append(pull)
                    self._earliest = min(self._earliest, pull.deadline)
            if woken:
                self._let_go(woken)
                self._count -= len(woken)
                if not waiting:
                    self._forget_queue(topic, queue_id)
            yield len(part)

    def _keep(
        self, topic: str, queue_id: int, waiting: list[HeldPull], kept: list[HeldPull]
    ) -> None:
        if len(kept) == len(waiting):
            return
        self._count -= len(waiting) - len(kept)
        if kept:
            self._held[topic][queue_id] = kept
        else:
            self._forget_queue(topic, queue_id)

    def _forget_queue(self, topic: str, queue_id: int) -> None:
        queues = self._held[topic]
        del queues[queue_id]
        if not queues:
            del self._held[topic]

    def _let_go(self, pulls: list[HeldPull]) -> None:
        # They count for their connection until they are answered: who does not read its answers
        # could have ever more that wait for that.
        self._woken.extend(pulls)
        if not self._answering:
            self._answering = True
            asyncio.get_running_loop().call_soon(self._answer_woken)

    def _answer_woken(self) -> None:
        try:
            self._answer_some()
        finally:  # whatever failed, the others go on
            self._answering = bool(self._woken) or self._ready_count > 0
            if self._answering:
                asyncio.get_running_loop().call_soon(self._answer_woken)

    def _answer_some(self) -> None:
        self._sort_woken()
        most = self._answers_per_turn
        if self._woken:
            most = min(most, _ANSWERS_WHILE_SORTING)
        for _ in range(min(self._ready_count, most)):
            pull = self._next_ready()
            if pull.connection.closed:
                continue
            if pull.connection.congested:
                self._postponed.append(pull)
                self.on_sweep_due()
                continue
            pull.connection.held_pulls -= 1
            try:
                pull.answer()
            except Exception:  # noqa: BLE001 - the edge between a connection and all others
                pull.connection.fail()

    def _sort_woken(self) -> None:
        count = min(len(self._woken), max(_SORTED_PER_TURN, self._answers_per_turn))
        for _ in range(count):
            pull = self._woken.popleft()
            waiting = self._ready.get(pull.connection)
            if waiting is None:
                waiting = self._ready[pull.connection] = deque()
            waiting.append(pull)
        self._ready_count += count

    def _next_ready(self) -> HeldPull:
        """Return a pull of the connection that has waited for longest."""
        connection = next(iter(self._ready))
        waiting = self._ready.pop(connection)
        pull = waiting.popleft()
        if waiting:
            self._ready[connection] = waiting
        self._ready_count -= 1
        return pull
