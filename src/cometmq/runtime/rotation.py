"""Give many keys their turns, so that one with many values does not hold up the others."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Rotation(Generic[K, V]):
    """Holds values of keys. `take` returns one of the key that has waited for longest."""

    __slots__ = ("_keys", "_values", "count")

    def __init__(self) -> None:
        self._keys: deque[K] = deque()
        self._values: dict[K, deque[V]] = {}
        self.count = 0

    def add(self, key: K, value: V) -> None:
        values = self._values.get(key)
        if values is None:
            values = self._values[key] = deque()
            self._keys.append(key)
        values.append(value)
        self.count += 1

    def take(self) -> V:
        """Remove and return a value. `count` must not be 0."""
        key = self._keys.popleft()
        while (values := self._values.get(key)) is None:  # it was dropped
            key = self._keys.popleft()
        value = values.popleft()
        if values:
            self._keys.append(key)
        else:
            del self._values[key]
        self.count -= 1
        return value

    def drop(self, key: K) -> None:
        """Forget the values of a key that is not used again."""
        self.count -= len(self._values.pop(key, ()))
