"""Shuffle the tests: `pytest -p tests.order`. COMETMQ_ORDER_SEED is another order, `fresh` a new one.

Modules are shuffled, and the tests inside each: what is set up once for a module stays so.
"""

from __future__ import annotations

import os
import random

import pytest
from tests.seeds import FIXED, draw_fresh_seeds

# Before xdist starts its workers, so that all see the same order.
draw_fresh_seeds()
SEED = os.environ.setdefault("COMETMQ_ORDER_SEED", str(FIXED))


# At the end, since `-q` leaves out what pytest says at the beginning.
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"in random order: COMETMQ_ORDER_SEED={SEED}")


# Last, so that no other plugin sorts what is shuffled.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rng = random.Random(SEED)
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    groups = list(modules.values())
    rng.shuffle(groups)
    for group in groups:
        rng.shuffle(group)
    items[:] = [item for group in groups for item in group]
