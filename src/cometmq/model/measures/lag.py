"""Say where a group continues in a queue, for all code that reports the lag of groups."""

from __future__ import annotations


def waiting_from(
    committed: int | None, first: int, end: int, *, from_beginning: bool
) -> int | None:
    """Return the offset of the first message that waits for a group in a queue; None if it is unknown.

    The queue has the offsets from `first` to below `end`. Messages that have left the log do not
    wait. A group that has `committed` nothing there begins where its policy says, and only its
    members know that, unless the queue is empty, or the group begins `from_beginning`: in its retry
    topic, and in a queue that was added to a topic where it has other offsets.
    """
    if committed is not None:
        return max(committed, first)
    if first >= end:
        return end
    return first if from_beginning else None
