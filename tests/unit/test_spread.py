"""Test that the modules of all rooms are spread over a run, and that the tests of a module stay together."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

from tests.spread import TESTS, spread_rooms


def items(room: str, modules: int, tests: int) -> list[Any]:
    return [
        SimpleNamespace(path=TESTS / room / f"test_{module}.py", number=number)
        for module in range(modules)
        for number in range(tests)
    ]


def test_each_part_of_a_run_has_its_share_of_each_room() -> None:
    spread = [*items("integration", 20, 3), *items("unit", 60, 4)]
    spread_rooms(spread)
    for start in range(0, 300, 75):
        rooms = [item.path.parent.name for item in spread[start : start + 75]]
        assert abs(rooms.count("integration") - 15) <= 3


def test_modules_stay_whole_and_in_their_order() -> None:
    spread = [*items("integration", 5, 3), *items("unit", 7, 2)]
    spread_rooms(spread)
    modules = [path for path, _ in groupby(spread, key=lambda item: item.path)]
    assert len(modules) == 12
    for room in ("integration", "unit"):
        names = [path.name for path in modules if path.parent.name == room]
        assert names == [f"test_{number}.py" for number in range(len(names))]
    for _, tests in groupby(spread, key=lambda item: item.path):
        numbers = [item.number for item in tests]
        assert numbers == sorted(numbers)


def test_one_room_keeps_its_order() -> None:
    spread = items("interop", 4, 3)
    before = list(spread)
    spread_rooms(spread)
    assert spread == before
