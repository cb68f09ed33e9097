"""Random schedules of transactions equal a plain dictionary, whatever is killed at whichever
moment.

COMETMQ_TRANSACTION_STEPS is the total number of operations (default 10,000), COMETMQ_TRANSACTION_SEED the
seed of the first life (`tests.seeds`). A failure names the seed of the life that failed:
COMETMQ_TRANSACTION_STEPS=1 with it repeats that life alone.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import structlog.testing
from tests.seeds import seed_of
from tests.unit.broker.transaction_model import World

STEPS = int(os.environ.get("COMETMQ_TRANSACTION_STEPS", "10000"))
STEPS_PER_LIFE = 5_000


@pytest.mark.timeout(max(300, STEPS // 50))
def test_transactions_equal_their_model(tmp_path: Path) -> None:
    lives = max(1, STEPS // STEPS_PER_LIFE)
    counts: Counter[str] = Counter()
    first = seed_of("COMETMQ_TRANSACTION_SEED")
    for seed in range(first, first + lives):
        # Shown when the test fails: the last one is the life that did.
        print(f"COMETMQ_TRANSACTION_SEED={seed}")  # noqa: T201 - shown when the test fails
        counts += _run(World(tmp_path / f"store-{seed}", seed), STEPS_PER_LIFE)
    print(dict(counts))  # noqa: T201 - shown when the test fails
    assert counts["steps"] == lives * STEPS_PER_LIFE
    assert counts["committed"] > counts["steps"] // 20
    assert min(counts[name] for name in ("killed", "stopped", "asked", "discarded")) > 0


@pytest.mark.parametrize("number", range(4 if STEPS < 100_000 else 20))
def test_no_power_loss_hides_a_transaction_or_repeats_one(tmp_path: Path, number: int) -> None:
    seed = seed_of("COMETMQ_TRANSACTION_SEED") + number
    print(f"COMETMQ_TRANSACTION_SEED={seed}")  # noqa: T201 - shown when the test fails
    counts = _run(World(tmp_path / "store", seed, power=True), 1500)
    print(dict(counts))  # noqa: T201 - shown when the test fails
    assert counts["committed"] > 100


def _run(world: World, steps: int) -> Counter[str]:
    # The log lines of thousands of given up messages would be all that a failure shows.
    with structlog.testing.capture_logs():
        for _ in range(steps):
            world.step()
        world.finish()
    return world.counts
