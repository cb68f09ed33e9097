"""The preview of a reset, queue by queue."""

from __future__ import annotations

import pytest

from cometmq.admin.groups.offsets import QueueOffsets
from cometmq.console.pages.group_offsets import Move
from cometmq.model.queue import MessageQueue

QUEUE = MessageQueue("t", "broker-a", 0)


@pytest.mark.parametrize(
    ("committed", "target", "skipped", "repeated"),
    [
        pytest.param(4, 9, 5, 0, id="ahead"),
        pytest.param(4, 3, 0, 1, id="back"),
        pytest.param(1, 9, 6, 0, id="from what has left the log"),
        pytest.param(8, 0, 0, 5, id="back to what has left the log"),
        pytest.param(None, 9, 0, 0, id="of a group without an offset, which may begin anywhere"),
    ],
)
def test_what_a_move_skips_and_repeats(
    committed: int | None, target: int, skipped: int, repeated: int
) -> None:
    move = Move(QueueOffsets(QUEUE, 3, 10, committed), target)
    assert (move.skipped, move.repeated) == (skipped, repeated)
    assert (move.begin is None) == (committed is None)
