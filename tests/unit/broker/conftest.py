from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.delay_box import DelayBox


@pytest.fixture
def delays(tmp_path: Path) -> Iterator[DelayBox]:
    """Yield a store with delayed messages, whose clock shows a whole second."""
    box = DelayBox(tmp_path / "store")
    yield box
    box.box.close()
