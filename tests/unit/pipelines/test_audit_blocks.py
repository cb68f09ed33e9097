"""Conclusions that an audit may draw from the sums of a block."""

from __future__ import annotations

import pytest

from cometmq.pipelines.audit.blocks import BLOCK as SIZE
from cometmq.pipelines.audit.blocks import Block, Extent, Kind, Sums, kinds_of, lacks_nothing

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


@pytest.mark.parametrize(
    ("first", "last", "offsets", "begin", "end", "whole"),
    [
        (3 * SIZE, 4 * SIZE - 1, SIZE, 0, 10 * SIZE, True),
        (3 * SIZE, 4 * SIZE - 1, SIZE - 1, 0, 10 * SIZE, False),
        # The queue begins, or ends, in the block.
        (3 * SIZE + 7, 4 * SIZE - 1, SIZE - 7, 3 * SIZE + 7, 10 * SIZE, True),
        (3 * SIZE, 3 * SIZE + 99, 100, 0, 3 * SIZE + 100, True),
        (3 * SIZE, 3 * SIZE + 99, 100, 0, 3 * SIZE + 101, False),
        # As many as there should be, but some outside of the bounds.
        (3 * SIZE + 6, 4 * SIZE - 2, SIZE - 7, 3 * SIZE + 7, 10 * SIZE, False),
        (3 * SIZE, 3 * SIZE + 100, 100, 0, 3 * SIZE + 100, False),
    ],
)
def test_a_block_is_whole_only_if_each_offset_within_bounds_is_there(
    first: int, last: int, offsets: int, begin: int, end: int, whole: bool
) -> None:
    sums = Sums(offsets, offsets, 7, 8, 0)
    extent = Extent(first, last, 0, 1, 0)
    assert lacks_nothing(BLOCK, sums, extent, begin, end) is whole
