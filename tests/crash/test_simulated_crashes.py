"""Thousands of crashes of a simulated disk, and damage of every kind, each from a seed.

COMETMQ_CRASHES says how many (default 2,000), COMETMQ_CRASH_SEED which seed is the first
(`tests.seeds`); a failure prints the command that replays its one seed.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import structlog
from tests.crash.damage import DamagedStore
from tests.crash.lives import Campaign
from tests.crash.slave_lives import Rejoins, SlaveLives
from tests.seeds import seed_of

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]

CRASHES = int(os.environ.get("COMETMQ_CRASHES", "2000"))
# Of the crashes, so many damages of a stopped store.
DAMAGES = max(1, CRASHES // 5)
# And so many of a slave's store, and of mendings of a log that has diverged.
SLAVES = REJOINS = max(1, CRASHES // 25)
LIVES = max(1, CRASHES - DAMAGES - SLAVES - REJOINS)
# Seeds that once found a fault of the store or of this suite, and what it was. A seed that a hunt finds
# gets its line here.
FOUND: Final = {
    1081647599: "a queue began at a later file of which a power loss had left the name alone",
    1164041325: "an index had a gap where retention had been faster, and the disk kept the file",
    1985126213: "keys were missed of a file that the disk did not let go in a former life",
}


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def lives_of(kind: type[Campaign | SlaveLives | Rejoins], seed: int, test: str) -> int:
    """Run the lives of one seed, and return how many crashes there were."""
    with tempfile.TemporaryDirectory() as directory:
        run = kind(seed, Path(directory) / "store")
        try:
            return run.run()
        except Exception as error:
            raise AssertionError(
                f"seed {seed} (faults: {run.disk.faults.strikes}); replay it with "
                f"COMETMQ_CRASH_SEED={seed} COMETMQ_CRASHES=1 python -m pytest {test}"
            ) from error


def campaign(
    kind: type[Campaign | SlaveLives | Rejoins],
    target: int,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Seeds one after the other until there were `target` crashes."""
    first = seed = seed_of("COMETMQ_CRASH_SEED")
    crashes = 0
    while crashes < target:
        crashes += lives_of(kind, seed, request.node.nodeid)
        seed += 1
    with capsys.disabled():
        sys.stdout.write(f"\n{crashes} crashes, {kind.__name__}, seeds {first} to {seed - 1} ")


def test_nothing_flushed_is_lost_and_nothing_wrong_is_served(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign(Campaign, LIVES, request, capsys)


@pytest.mark.parametrize("seed", FOUND)
def test_seeds_that_once_failed_pass(seed: int) -> None:
    test = test_nothing_flushed_is_lost_and_nothing_wrong_is_served.__name__
    assert lives_of(Campaign, seed, f"tests/crash/{Path(__file__).name}::{test}")


def test_damage_is_found_and_repaired_and_never_served(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign(DamagedStore, DAMAGES, request, capsys)


def test_a_slave_goes_on_where_it_is_with_its_masters_bytes(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign(SlaveLives, SLAVES, request, capsys)


def test_a_mending_that_is_killed_is_finished_by_another_and_loses_nothing(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign(Rejoins, REJOINS, request, capsys)
