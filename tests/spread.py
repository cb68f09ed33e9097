"""Spread the tests of each room evenly over the whole run, module by module.

Tests of servers mostly wait, and tests of single parts mostly compute. With the tests in the order of their
rooms, the workers of xdist would first all compute, and at the end all wait while the processors are idle.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def spread_rooms(items: list[pytest.Item]) -> None:
    """Sort the tests by the share of their room's tests that comes before their module."""
    rooms = {
        path: path.relative_to(TESTS).parts[0]
        for path in {item.path for item in items}
        if path.is_relative_to(TESTS)
    }
    of_room = Counter(rooms.get(item.path, "") for item in items)
    seen: Counter[str] = Counter()
    places: dict[Path, float] = {}
    for item in items:
        room = rooms.get(item.path, "")
        places.setdefault(item.path, seen[room] / of_room[room])
        seen[room] += 1
    items.sort(key=lambda item: places[item.path])
