"""Rules for all tests: how long one may take, which signals end what it starts, and which examples
hypothesis draws.

A test may take as long as it would on a machine that is ten times slower, and more: a deadline inside
it, such as `tests.waits.WAIT_S`, says what was missing, and this limit is only for tests that hang. All
limits (those of marks, of the command line and of `pyproject.toml`) are for a quiet machine, and as much
longer as this one is slower: `tests.pace`.

A shell that runs something in the background has it ignore SIGINT, and all that it starts, too. Tests
that interrupt a process would wait for its end in vain, so SIGINT is what it is in the foreground.

The examples are the same in every run, so that a run says something about the change that it is for;
COMETMQ_EXPLORE=1 draws new ones, and three times as many where `tests.seeds.examples` gives their number.
None is refused for its time: a machine that is busy with something else proves nothing. `tests.seeds` says
the same of what the tests themselves draw.
"""

from __future__ import annotations

import gc
import signal
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from tests import again, temporary
from tests.pace import paced_limit_s
from tests.real_sleeps import watch_asyncio
from tests.seeds import draw_fresh_seeds, drawn_seeds, examples, is_exploring
from tests.spread import spread_rooms

temporary.begin()

LIMIT_S = 300.0
# Suites of other rooms have limits of their own, of the command line or of the module.
_ROOMS = [Path(__file__).parent / name for name in ("unit", "integration", "simulation")]

settings.register_profile(
    "unhurried",
    deadline=None,
    max_examples=examples(100),
    derandomize=not is_exploring(),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    watch_asyncio()
    draw_fresh_seeds()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "cluster(**options): how the module's fixture is set up")
    config.addinivalue_line("markers", "faces(*names, seeds=1): the faces of a test's client")
    config.addinivalue_line("markers", "real_time: this test does not run in virtual time")
    again.register(config)
    temporary.register(config)


# Sixteen thousand tests and all modules live as long as the run. The collector would go through them again
# and again; a third of the time of some tests went there.
def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


# At the end, since `-q` leaves out what pytest says at the beginning.
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for seed in drawn_seeds():
        terminalreporter.write_line(f"drawn for this run: {seed}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    spread_rooms(items)
    others_s = float(config.getoption("timeout") or config.getini("timeout") or 0)
    # By module: each worker asks for each of its thousands of tests.
    limits_s: dict[Path, float] = {}
    for item in items:
        path = item.path
        if path not in limits_s:
            is_ours = any(room in path.parents for room in _ROOMS)
            limits_s[path] = LIMIT_S if is_ours else others_s
        limit_s = limits_s[path]
        mark = item.get_closest_marker("timeout")
        if mark is not None:
            limit_s = mark.args[0]
        # In front of the others, it is the one that counts.
        item.add_marker(pytest.mark.timeout(paced_limit_s(limit_s)), append=False)


@pytest.fixture
def log_lines() -> Iterator[list[MutableMapping[str, Any]]]:
    """The lines logged during a test, wherever a client that an earlier test ran sends the lines."""
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture
def path_on_disk() -> Iterator[Path]:
    """Make a directory on a real disk, where `tests.in_memory` may have put `tmp_path` into memory."""
    build = Path(__file__).parents[1] / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="test-", dir=build) as made:
        yield Path(made)
