"""Test a small storm of members; `tests/crash` has the large one, which also kills orderly members.

There are no kills here: the broker keeps a dead member's queues locked for a minute, as Java's
does. COMETMQ_STORM_SEED says what is drawn (`tests.seeds`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.storm import Life, Plan, Storm
from tests.crash.storm_member import RECORD
from tests.seeds import seed_of


@pytest.mark.parametrize(("mode", "kills"), [("concurrent", True), ("orderly", False)])
def test_members_that_come_and_go_lose_nothing(tmp_path: Path, mode: str, kills: bool) -> None:
    seed = seed_of("COMETMQ_STORM_SEED")
    plan = Plan(mode, messages=10_000, members=6, queues=8, per_second=2000, kills=kills)
    outcome = Storm(plan, seed, tmp_path).run()
    assert outcome.faults == [], f"seed {seed}: {outcome}"


# Moment, member, kind and queue offset in one queue; `a` is killed at moment 50, `b` leaves.
Step = tuple[int, str, bytes, int]


def judged(tmp_path: Path, mode: str, steps: list[Step], sent: int) -> list[str]:
    storm = Storm(Plan(mode, sent, members=2, queues=1, per_second=1), 0, tmp_path)
    for member in "ab":
        own = [
            RECORD.pack(kind, at, 0, offset, offset)
            for at, by, kind, offset in steps
            if by == member
        ]
        (tmp_path / member).write_bytes(RECORD.pack(b"J", 0, 0, 0, 0) + b"".join(own))
    storm.lives = [
        Life("a", 0, tmp_path / "a", killed_at=50),
        Life("b", 0, tmp_path / "b", leaving=True),
    ]
    storm.acknowledged = {number: (0, number) for number in range(sent)}
    return storm.check().faults


def calls(member: str, *begun: tuple[int, int]) -> list[Step]:
    return [step for at, n in begun for step in ((at, member, b"B", n), (at + 5, member, b"E", n))]


def test_the_checker_tells_what_is_wrong(tmp_path: Path) -> None:
    good = calls("a", (10, 0), (20, 1)) + calls("b", (60, 2))
    assert judged(tmp_path, "orderly", good, 3) == []
    (lost,) = judged(tmp_path, "orderly", good, 4)
    assert "1 acknowledged messages lost: [(0, 3)]" in lost
    uncommitted = calls("a", (10, 0), (20, 1)) + calls("b", (60, 1), (70, 2))
    assert judged(tmp_path, "orderly", uncommitted, 3) == []
    died_inside = [*calls("a", (10, 0)), (40, "a", b"B", 1), *calls("b", (60, 1))]
    assert judged(tmp_path, "orderly", died_inside, 2) == []
    (overlap,) = judged(tmp_path, "orderly", [*calls("b", (12, 1)), *calls("a", (10, 0))], 2)
    assert "while a has 0" in overlap
    (gap,) = judged(tmp_path, "orderly", calls("a", (10, 0), (20, 2), (30, 1)), 3)
    assert "after 0: a gap" in gap
    (again,) = judged(tmp_path, "orderly", calls("b", (10, 0)) + calls("a", (20, 0)), 1)
    assert "again, though b was not killed" in again
    # `a` was killed before it could commit what had waited for it.
    burst = calls("a", *((at, at) for at in range(1, 49)))
    tenths = [(at, by, kind, offset * 100) for at, by, kind, offset in burst]
    assert judged(tmp_path, "concurrent", [*tenths, *calls("b", (60, 100))], 0) == []
    early = -40 * 10**9
    (old,) = judged(tmp_path, "concurrent", calls("a", (early, 0)) + calls("b", (60, 0)), 1)
    assert "was done 40 s before a died" in old
    # `a` gave the queue away long before it was killed.
    handed_over = calls("a", (early, 0)) + calls("b", (early + 10**9, 0))
    assert judged(tmp_path, "concurrent", handed_over, 1) == []
    far = calls("a", (10, 0)) + calls("b", (60, 3000), (70, 0))
    assert any("lies 3000 back" in fault for fault in judged(tmp_path, "concurrent", far, 1))
