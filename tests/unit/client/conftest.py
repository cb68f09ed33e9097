from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.unit.client.fakes import FakeInstance


@pytest.fixture
async def fake() -> AsyncIterator[FakeInstance]:
    fake = FakeInstance()
    yield fake
    await fake.close()
