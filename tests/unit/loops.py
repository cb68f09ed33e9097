"""The loops of a room whose tests run in virtual time, but for those that are marked `real_time`.

In virtual time a wait takes as long as the test says, whatever else the machine does meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cometmq.testing.virtual import VirtualLoop


def virtual_unless_marked(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return what the hook `pytest_asyncio_loop_factories` is to return for a test."""
    if item.get_closest_marker("real_time") is not None:
        return {"real": asyncio.new_event_loop}
    return {"virtual": VirtualLoop}
