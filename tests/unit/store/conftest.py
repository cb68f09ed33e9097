from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.store_box import Box


@pytest.fixture
def make_box(tmp_path: Path) -> Iterator[Callable[..., Box]]:
    boxes: list[Box] = []

    def make(**settings: Any) -> Box:
        boxes.append(Box(tmp_path / f"store{len(boxes)}", **settings))
        return boxes[-1]

    yield make
    for box in boxes:
        box.close()


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    return make_box()
