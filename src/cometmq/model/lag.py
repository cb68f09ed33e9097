"""Says where a group goes on in a queue, for all that tell how far groups are behind."""

from __future__ import annotations


def waiting_from(
    committed: int | None, first: int, end: int, *, from_beginning: bool
) -> int | None:
    """Return the offset of the first message that waits for a group in a queue; None if it is unknown.

    The queue has the offsets from `first` to below `end`. Messages that have left the log wait for nobody.
    A group that has `committed` nothing there begins where its own policy says, which only its members
    know; unless the queue is empty, or the group begins `from_beginning`: in its retry topic, and in a
    queue that was added to a topic where it has other offsets.
    """
    if committed is not None:
        return max(committed, first)
    if first >= end:
        return end
    return first if from_beginning else None
