"""1 → 20 members that join, leave and are killed while 100,000 messages flow.

COMETMQ_STORM_SEED says what is drawn (`tests.seeds`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.crash.storm import Plan, Storm
from tests.seeds import seed_of

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_a_storm_of_members_loses_nothing(
    tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of("COMETMQ_STORM_SEED")
    plan = Plan(mode, messages=100_000, members=20, queues=24, per_second=2500)
    outcome = Storm(plan, seed, tmp_path).run()
    with capsys.disabled():
        sys.stdout.write(
            f"\n{mode}: {outcome.joined} joined, {outcome.left} left, {outcome.killed} killed, at "
            f"most {outcome.most} at once; {outcome.deliveries} deliveries, {outcome.repeated} of "
            f"them again, at most {outcome.longest_step_back} back; seed {seed} "
        )
    assert outcome.faults == []
