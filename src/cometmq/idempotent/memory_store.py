"""Keep keys in this process's memory and forget the least recently used ones first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Self

from cometmq.errors import IllegalArgumentError, KeyStoreError
from cometmq.forks import PROCESS
from cometmq.idempotent.keys import WEEK_S, Begun, KeyState, check_seconds, new_token
from cometmq.runtime.surroundings import current

MAX_KEYS: Final = 1_000_000


class MemoryStore:
    """Remembers up to `max_keys` keys that are done, each for `keep_s` seconds at most.

    No key survives the process; a forked child goes on with a copy. `max_keys` also bounds the keys
    in progress: `begin` raises KeyStoreError beyond it. A consumer has at most its `concurrency`
    times its batch in progress. `clock` returns seconds.
    """

    blocking = False

    def __init__(
        self,
        *,
        max_keys: int = MAX_KEYS,
        keep_s: float = WEEK_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if isinstance(max_keys, bool) or not isinstance(max_keys, int) or max_keys < 1:
            raise IllegalArgumentError(f"max_keys is {max_keys!r}; it must be 1 or more")
        check_seconds("keep_s", keep_s)
        self._max_keys = max_keys
        self._keep_s = keep_s
        self._clock = clock or current().clock.monotonic
        self._lock = threading.Lock()
        self._generation = PROCESS.generation
        # When each key that is done expires. The key that was noted or asked for last comes last.
        self._done: OrderedDict[str, float] = OrderedDict()
        self._held: dict[str, tuple[str, float]] = {}

    def __len__(self) -> int:
        """Return how many keys are remembered as done; some of them may have expired."""
        return len(self._done)

    def begin(self, key: str, lease_s: float) -> Begun:
        with self._locked():
            now = self._clock()
            expires = self._done.get(key)
            if expires is not None and expires > now:
                self._done.move_to_end(key)
                return Begun(KeyState.DONE)
            held = self._held.get(key)
            if held is not None and held[1] > now:
                return Begun(KeyState.BUSY)
            if held is None and len(self._held) >= self._max_keys:
                self._drop_run_out(now)
            token = new_token()
            self._held[key] = (token, now + lease_s)
            return Begun(KeyState.FREE, token)

    def finish(self, key: str, token: str) -> bool:
        with self._locked():
            now = self._clock()
            held = self._held.get(key)
            if held is not None and held[0] != token and held[1] > now:
                return False
            self._held.pop(key, None)
            self._done[key] = now + self._keep_s
            self._done.move_to_end(key)
            while self._done and (
                len(self._done) > self._max_keys or next(iter(self._done.values())) <= now
            ):
                self._done.popitem(last=False)
            return True

    def abandon(self, key: str, token: str) -> None:
        with self._locked():
            held = self._held.get(key)
            if held is not None and held[0] == token:
                del self._held[key]

    def close(self) -> None:
        """Do nothing: this store holds nothing open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _locked(self) -> threading.Lock:
        if self._generation != PROCESS.generation:
            # A thread of the parent may have held the lock during the fork and cannot release it
            # here.
            self._generation = PROCESS.generation
            self._lock = threading.Lock()
        return self._lock

    def _drop_run_out(self, now: float) -> None:
        for key in [key for key, (_, expires) in self._held.items() if expires <= now]:
            del self._held[key]
        if len(self._held) >= self._max_keys:
            raise KeyStoreError(
                f"{len(self._held)} keys are in progress, the limit max_keys is {self._max_keys}; "
                "raise it, or lower the consumer's concurrency"
            )
