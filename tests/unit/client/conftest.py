"""Fixtures of the client's tests, which run in virtual time; see `tests.unit.loops`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from tests.unit.client.fakes import FakeInstance
from tests.unit.loops import virtual_unless_marked


@pytest.fixture
async def fake() -> AsyncIterator[FakeInstance]:
    fake = FakeInstance()
    yield fake
    await fake.close()


@pytest.hookimpl(optionalhook=True)  # pytest-asyncio has it since 1.4
def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return virtual_unless_marked(item)
