"""What an audit may conclude from the sums of a block."""

from __future__ import annotations

import pytest

from cometmq.pipelines.audit.blocks import Block, Kind, Sums, kinds_of

BLOCK = Block("orders", "broker-a", 0, 3)
SOUND = Sums(100, 100, 7, 8, 0)


@pytest.mark.parametrize(
    ("log", "archive", "kind"),
    [
        (SOUND, SOUND, Kind.BOTH),
        (SOUND, None, Kind.LOG),
        (None, SOUND, Kind.ARCHIVE),
        (SOUND, Sums(100, 100, 7, 9, 0), Kind.MIXED),
        (SOUND, Sums(99, 99, 7, 8, 0), Kind.MIXED),
        # The same on both sides, but an offset stands twice and another is missing.
        (Sums(100, 99, 7, 8, 0), Sums(100, 99, 7, 8, 0), Kind.MIXED),
        (None, Sums(100, 99, 7, 8, 0), Kind.MIXED),
        (Sums(100, 99, 7, 8, 0), None, Kind.MIXED),
        (SOUND, Sums(100, 100, 7, 8, 1), Kind.MIXED),
        (None, Sums(100, 100, 7, 8, 1), Kind.MIXED),
    ],
)
def test_only_equal_sums_without_doubles_spare_the_comparison(
    log: Sums | None, archive: Sums | None, kind: Kind
) -> None:
    sums = [{} if one is None else {BLOCK: one} for one in (log, archive)]
    assert kinds_of(*sums) == {BLOCK: kind}
