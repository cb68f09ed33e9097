"""Random schedules of transactions equal a plain dictionary, whatever is killed when."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
import structlog
import structlog.testing
from tests.unit.broker.transaction_model import World

# More steps, or one seed again: COMETMQ_TRANSACTION_STEPS=100000 COMETMQ_TRANSACTION_SEED=…
STEPS = int(os.environ.get("COMETMQ_TRANSACTION_STEPS", "20000"))
SEED = os.environ.get("COMETMQ_TRANSACTION_SEED")


@pytest.mark.timeout(max(60, STEPS // 200))
def test_transactions_equal_their_model(tmp_path: Path) -> None:
    counts = _run(World(tmp_path / "store", _seed()), STEPS)
    assert counts["committed"] > STEPS // 20
    assert min(counts[name] for name in ("killed", "stopped", "asked", "discarded")) > 3


@pytest.mark.parametrize("number", range(2 if STEPS < 100_000 else 20))
def test_no_power_loss_hides_a_transaction_or_repeats_one(tmp_path: Path, number: int) -> None:
    counts = _run(World(tmp_path / "store", _seed() + number, power=True), 1500)
    assert counts["committed"] > 100


def _seed() -> int:
    seed = int(SEED) if SEED is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    return seed


def _run(world: World, steps: int) -> Counter[str]:
    # The log lines of thousands of given up messages would be all that a failure shows.
    with structlog.testing.capture_logs():
        for _ in range(steps):
            world.step()
        world.finish()
    print(dict(world.counts))  # noqa: T201
    return world.counts
