"""Have the console's tests run in virtual time; see `tests.unit.loops`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.unit.loops import virtual_unless_marked


@pytest.hookimpl(optionalhook=True)  # pytest-asyncio has it since 1.4
def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return virtual_unless_marked(item)
