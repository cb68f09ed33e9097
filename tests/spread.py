"""Spread the tests of each room evenly over the whole run, module by module.

The tests of servers wait most of the time, those of parts work. In the order of the rooms the workers of
xdist would first work all at once, and at the end all wait while the processors are idle.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def spread_rooms(items: list[pytest.Item]) -> None:
    """Sort the tests by how much of their room comes before their module."""
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
