"""A state file whose main file was damaged, saved by processes that die at any point, with and without
the machine's power: a whole text is read afterwards, the new one or the good one of before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from cometmq.errors import ConfigError
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.testing.virtual.storage.disk import VirtualDisk

PATH: Final = Path("/store/config/consumerOffset.json")
OLD, GOOD, NEW = {"offset": 1000}, {"offset": 2000}, {"offset": 3000}
# More operations than a write has.
KILL_POINTS: Final = 12
SEEDS: Final = 8
DAMAGES: Final[dict[str, Callable[[bytearray], bytearray]]] = {
    "none": lambda data: data,
    "empty": lambda _: bytearray(),
    "cut": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytearray(len(data)),
    "digit": lambda data: bytearray(data.replace(b"2000", b"2001")),
}


def new_file(disk: VirtualDisk) -> JsonFile:
    return JsonFile(PATH, files=disk.files)


def died_in_a_save(damage: str, kill_point: int, seed: int, *, is_read: bool, power: bool) -> Any:
    """Return what a start reads after a save that died, None if the disk has nothing whole."""
    disk = VirtualDisk(Randomness(seed))
    for value in (OLD, GOOD):
        new_file(disk).write(json.dumps(value))
    with disk.at_peace():
        disk.damage(PATH, DAMAGES[damage])
    file = new_file(disk)
    if is_read:
        assert file.read(json.loads) == (GOOD if damage == "none" else OLD)
    disk.fail("any", "EIO", after=kill_point, times=None)
    with suppress(OSError):
        file.write(json.dumps(NEW))
    if power:
        disk.lose_power()
    else:
        disk.crash_process()
    disk.mend()
    try:
        return new_file(disk).read(json.loads)
    except ConfigError:
        return None


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("power", [False, True])
def test_a_save_that_dies_over_a_damaged_file_leaves_a_whole_one(
    damage: str, *, power: bool
) -> None:
    """2 of 6 kill points and 33 of 320 power losses left both files bad: the first save made the
    damaged file the backup.
    """
    before = GOOD if damage == "none" else OLD
    read = [
        died_in_a_save(damage, kill_point, seed, is_read=is_read, power=power)
        for kill_point in range(KILL_POINTS)
        for seed in range(SEEDS if power else 1)
        for is_read in (True, False)
    ]
    assert all(found in (before, NEW) for found in read), read.count(None)
    assert NEW in read
    assert before in read


@pytest.mark.parametrize("power", [False, True])
def test_the_first_save_that_dies_leaves_nothing_or_its_text(*, power: bool) -> None:
    for kill_point in range(KILL_POINTS):
        for seed in range(SEEDS):
            disk = VirtualDisk(Randomness(seed))
            disk.fail("any", "EIO", after=kill_point, times=None)
            with suppress(OSError):
                new_file(disk).write(json.dumps(NEW))
            if power:
                disk.lose_power()
            disk.mend()
            try:
                assert new_file(disk).read(json.loads) in (None, NEW)
            except ConfigError as error:
                raise AssertionError((kill_point, seed)) from error
