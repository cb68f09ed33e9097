"""Random schedules of transactions equal a plain dictionary, whatever is killed when."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.unit.broker.transaction_model import World

# More steps, or one seed again: COMETMQ_TRANSACTION_STEPS=100000 COMETMQ_TRANSACTION_SEED=…
STEPS = int(os.environ.get("COMETMQ_TRANSACTION_STEPS", "24000"))
SEED = os.environ.get("COMETMQ_TRANSACTION_SEED")


@pytest.mark.timeout(max(60, STEPS // 200))
def test_transactions_equal_their_model(tmp_path: Path) -> None:
    seed = int(SEED) if SEED is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    world = World(tmp_path / "store", seed)
    for _ in range(STEPS):
        world.step()
    world.finish()
    print(dict(world.counts))  # noqa: T201
    assert world.counts["committed"] > STEPS // 20
    assert min(world.counts[name] for name in ("killed", "stopped", "asked", "discarded")) > 3
