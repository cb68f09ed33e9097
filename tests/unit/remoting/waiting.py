"""Wait for a condition with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TIMEOUT_S = 60.0


async def until(condition: Callable[[], bool]) -> None:
    """Return when `condition` holds; raise TimeoutError after `TIMEOUT_S`."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for announces itself nowhere
            await asyncio.sleep(0.005)
