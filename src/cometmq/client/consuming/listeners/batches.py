"""Collect messages of a queue until there are enough of them, or the first has waited long enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.model.message import MessageExt

Submit = Callable[[ProcessQueue, Sequence[MessageExt]], None]
# Messages with equal keys may go to a listener together.
Key = Callable[[MessageExt], object]


def cut(messages: Sequence[MessageExt], size: int, key: Key | None) -> list[Sequence[MessageExt]]:
    """Cut messages into lists of at most `size`, each of one key."""
    parts: list[Sequence[MessageExt]] = [messages]
    if key is None and size == 1:  # the default
        return [[message] for message in messages]
    if key is not None:
        by_key: dict[object, list[MessageExt]] = {}
        for message in messages:
            by_key.setdefault(key(message), []).append(message)
        parts = list(by_key.values())
    return [part[start : start + size] for part in parts for start in range(0, len(part), size)]


class Batches:
    """Hands messages to `submit` in lists of `size`, and a shorter list when `age_s` have passed.

    A list has messages of one queue and one key. For the loop's thread.
    """

    def __init__(self, submit: Submit, size: int, age_s: float, key: Key | None) -> None:
        self._submit = submit
        self._size = size
        self._age_s = age_s
        self._key = key
        self._waiting: dict[tuple[ProcessQueue, object], list[MessageExt]] = {}
        self._timers: dict[tuple[ProcessQueue, object], asyncio.TimerHandle] = {}

    def add(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            place = (process_queue, None if self._key is None else self._key(message))
            waiting = self._waiting.setdefault(place, [])
            waiting.append(message)
            if len(waiting) == self._size:
                self._hand_over(place)
            elif len(waiting) == 1:
                loop = asyncio.get_running_loop()
                self._timers[place] = loop.call_later(self._age_s, self._hand_over, place)

    def close(self) -> None:
        """Hand over nothing more. Messages that still wait come again to another member."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._waiting.clear()

    def _hand_over(self, place: tuple[ProcessQueue, object]) -> None:
        self._timers.pop(place).cancel()
        messages = self._waiting.pop(place)
        process_queue, _ = place
        if not process_queue.dropped:
            self._submit(process_queue, messages)
