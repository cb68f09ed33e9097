"""Every test of this room runs on both loops: uvloop, which servers use, and asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cometmq.runtime.loop import new_event_loop


@pytest.hookimpl(optionalhook=True)  # pytest-asyncio has it since 1.4
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"ours": new_event_loop, "asyncio": asyncio.new_event_loop}
