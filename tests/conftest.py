"""What holds for all tests: how long one may take, and which examples hypothesis draws.

A test may take as long as it would on a machine that is ten times slower, and more: a deadline inside
it, such as `tests.waits.WAIT_S`, says what was missing, and this limit is only for tests that hang.

The examples are the same in every run, so that a run says something about the change that it is for;
COMETMQ_EXPLORE=1 draws new ones. None is refused for its time: a machine that is busy with something
else proves nothing. `tests.seeds` says the same of what the tests themselves draw.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from tests import again
from tests.real_sleeps import watch_asyncio
from tests.seeds import draw_fresh_seeds, drawn_seeds

LIMIT_S = 300.0
# Suites of other rooms have limits of their own, of the command line or of the module.
_ROOMS = [Path(__file__).parent / name for name in ("unit", "integration", "simulation")]

settings.register_profile(
    "unhurried",
    deadline=None,
    derandomize=os.environ.get("COMETMQ_EXPLORE") != "1",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    watch_asyncio()
    draw_fresh_seeds()
    config.addinivalue_line("markers", "cluster(**options): how the module's fixture is set up")
    config.addinivalue_line("markers", "faces(*names, seeds=1): the faces of a test's client")
    again.register(config)


# At the end, since `-q` leaves out what pytest says at the beginning.
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for seed in drawn_seeds():
        terminalreporter.write_line(f"drawn for this run: {seed}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        of_these = any(room in item.path.parents for room in _ROOMS)
        if of_these and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture
def log_lines() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged during a test, wherever a client that an earlier test ran sends the lines."""
    with structlog.testing.capture_logs() as lines:
        yield lines
