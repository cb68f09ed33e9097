"""Delayed messages on virtual time, against a dictionary: see `delay_model`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.unit.broker.delay_model import live

# COMETMQ_DELAY_SEED repeats one run, COMETMQ_DELAY_STEPS makes it longer.
STEPS = int(os.environ.get("COMETMQ_DELAY_STEPS", "5000"))
SEED = int(os.environ.get("COMETMQ_DELAY_SEED", random.SystemRandom().randrange(2**32)))


@pytest.mark.parametrize("clock_jumps", [False, True], ids=["steady", "clock-set"])
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power-lost"])
def test_no_message_is_early_lost_or_doubled(
    tmp_path: Path, power: bool, clock_jumps: bool
) -> None:
    print(f"COMETMQ_DELAY_SEED={SEED}")  # noqa: T201 - shown when the test fails
    live(tmp_path / "store", SEED, STEPS, power=power, clock_jumps=clock_jumps)
