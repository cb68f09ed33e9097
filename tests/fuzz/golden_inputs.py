"""Give targets what the Java implementation wrote, where it is short enough for an input."""

from __future__ import annotations

from tests.fuzz.mutation import MAX_INPUT_LENGTH
from tests.golden.golden import load


def golden(*kinds: str) -> list[bytes]:
    found = [one.data for one in load() if one.kind in kinds]
    return [data for data in found if len(data) <= MAX_INPUT_LENGTH]
