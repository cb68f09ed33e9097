"""Delayed messages on virtual time, compared with a dictionary: see `delay_model`.

COMETMQ_DELAY_STEPS is the total number of operations (default 8,000), COMETMQ_DELAY_SEED the seed of the
first life (`tests.seeds`). A failure names the seed of the life that failed: COMETMQ_DELAY_STEPS=1 with it
repeats that life alone.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import structlog.testing
from tests.seeds import seed_of
from tests.unit.broker.delay_model import live

STEPS = int(os.environ.get("COMETMQ_DELAY_STEPS", "8000"))
# Long enough for several restarts and kills each; what a step costs grows with the life.
STEPS_PER_LIFE = 1000


@pytest.mark.timeout(max(300, STEPS // 50))
@pytest.mark.parametrize("clock_jumps", [False, True], ids=["steady", "clock-set"])
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power-lost"])
def test_no_message_is_early_lost_or_doubled(
    tmp_path: Path, power: bool, clock_jumps: bool
) -> None:
    counts: Counter[str] = Counter()
    seed = seed_of("COMETMQ_DELAY_SEED")
    for number in range(max(1, STEPS // STEPS_PER_LIFE // 4)):
        # Shown when the test fails: the last one is the life that did.
        print(f"COMETMQ_DELAY_SEED={seed + number}")  # noqa: T201 - shown when the test fails
        with structlog.testing.capture_logs():
            counts += live(
                tmp_path / f"store{number}",
                seed + number,
                STEPS_PER_LIFE,
                power=power,
                clock_jumps=clock_jumps,
            )
    print(dict(counts))  # noqa: T201 - shown when the test fails
    assert counts["put"] > counts["steps"] // 4
    assert counts["kill"] > 0
    assert counts["files gone"] > 0
