"""Pulls that wait for a message (Java: PullRequestHoldService, NotifyMessageArrivingListener)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cometmq.protocol.properties import decode_properties
from cometmq.remoting.connection import Connection

TagMatcher = Callable[[int], bool]


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull of `topic`/`queue_id` that found nothing at `offset`.

    `deadline` is a time of the loop; `answer` serves the pull once more, and for good. It must not
    raise: other pulls are answered after it. `matches_properties` may not raise either.
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

    Arrivals of one turn of the loop wake a pull once, at the end of the turn, so that it finds all
    of them. For the loop's thread only.
    """

    def __init__(self, max_held: int) -> None:
        self._max_held = max_held
        self._held: dict[tuple[str, int], list[HeldPull]] = {}
        self._count = 0
        self._woken: list[HeldPull] = []
        self._postponed: list[HeldPull] = []

    @property
    def count(self) -> int:
        """How many pulls wait."""
        return self._count

    def hold(self, pull: HeldPull) -> bool:
        """Let `pull` wait; False when `max_held` others do, and it is to be answered now."""
        if self._count >= self._max_held:
            return False
        self._held.setdefault((pull.topic, pull.queue_id), []).append(pull)
        self._count += 1
        return True

    def arrived(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,
        tags_code: int,
        _store_timestamp_ms: int = 0,
        properties: bytes = b"",
    ) -> None:
        """A message was put at `next_offset - 1`: wake the pulls that want it.

        A pull whose filter does not match stays; it learns of what it skipped when it is answered.
        """
        if not self._held:
            return
        key = (topic, queue_id)
        waiting = self._held.get(key)
        if waiting is None:
            return
        kept = []
        decoded: dict[str, str] | None = None
        for pull in waiting:
            wanted = next_offset > pull.offset and (pull.matches is None or pull.matches(tags_code))
            if wanted and pull.matches_properties is not None:
                if decoded is None:
                    decoded = decode_properties(properties.decode("utf-8", "replace"))
                wanted = pull.matches_properties(decoded)
            if wanted:
                self._wake(pull)
            else:
                kept.append(pull)
        self._keep(key, waiting, kept)

    def sweep(self, now: float) -> None:
        """Answer what has waited long enough; `now` is a time of the loop.

        Forgets the pulls of closed connections too: looking for them when each of many clients goes
        would take far longer than one round for them all. Comes back to those whose peer did not take
        the answers before them.
        """
        postponed, self._postponed = self._postponed, []
        for pull in postponed:
            self._wake(pull)
        self._release(lambda pull: pull.deadline <= now or pull.connection.closed)

    def release_all(self) -> None:
        """Answer every pull now: the broker stops."""
        self._release(lambda _: True)

    def release_topic(self, topic: str) -> None:
        """Answer every pull of a topic now: it was removed or changed."""
        self._release(lambda pull: pull.topic == topic)

    def _release(self, wanted: Callable[[HeldPull], bool]) -> None:
        for key, waiting in list(self._held.items()):
            kept = []
            for pull in waiting:
                if wanted(pull):
                    self._wake(pull)
                else:
                    kept.append(pull)
            self._keep(key, waiting, kept)

    def _keep(self, key: tuple[str, int], waiting: list[HeldPull], kept: list[HeldPull]) -> None:
        self._count -= len(waiting) - len(kept)
        if kept:
            self._held[key] = kept
        else:
            del self._held[key]

    def _wake(self, pull: HeldPull) -> None:
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._answer_woken)
        self._woken.append(pull)

    def _answer_woken(self) -> None:
        woken, self._woken = self._woken, []
        for pull in woken:
            if pull.connection.closed:
                continue
            if pull.connection.congested:
                self._postponed.append(pull)
            else:
                pull.answer()
