"""Thousands of crashes of a simulated disk, and damage of every kind, each from a seed.

COMETMQ_CRASHES says how many (default 2,000), COMETMQ_CRASH_SEED replays the one seed that a failure
named.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from tests.crash.damage import DamagedStore
from tests.crash.lives import Campaign
from tests.crash.slave_lives import Rejoins, SlaveLives

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]

CRASHES = int(os.environ.get("COMETMQ_CRASHES", "2000"))
# Of the crashes, so many damages of a stopped store.
DAMAGES = CRASHES // 5
# And so many of a slave's store, and of mendings of a log that has diverged.
SLAVES = REJOINS = CRASHES // 25


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def campaign(
    kind: type[Campaign | SlaveLives | Rejoins], target: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds one after the other until there were `target` crashes."""
    given = os.environ.get("COMETMQ_CRASH_SEED")
    first = int(given) if given else random.SystemRandom().randrange(1 << 32)
    crashes = 0
    seed = first
    while crashes < target:
        with tempfile.TemporaryDirectory() as directory:
            run = kind(seed, Path(directory) / "store")
            try:
                crashes += run.run()
            except Exception as error:
                raise AssertionError(
                    f"seed {seed} (faults: {run.disk.faults.strikes}); replay it with "
                    f"COMETMQ_CRASH_SEED={seed} make crash"
                ) from error
        seed += 1
        if given:
            break
    with capsys.disabled():
        sys.stdout.write(f"\n{crashes} crashes, {kind.__name__}, seeds {first} to {seed - 1} ")


def test_nothing_flushed_is_lost_and_nothing_wrong_is_served(
    capsys: pytest.CaptureFixture[str],
) -> None:
    campaign(Campaign, CRASHES - DAMAGES - SLAVES - REJOINS, capsys)


def test_damage_is_found_and_repaired_and_never_served(
    capsys: pytest.CaptureFixture[str],
) -> None:
    campaign(DamagedStore, DAMAGES, capsys)


def test_a_slave_goes_on_where_it_is_with_its_masters_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    campaign(SlaveLives, SLAVES, capsys)


def test_a_mending_that_is_killed_is_finished_by_another_and_loses_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    campaign(Rejoins, REJOINS, capsys)
