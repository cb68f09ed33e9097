"""Which member of a group consumes which queues (Java: AllocateMessageQueueAveragely)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cometmq.model.queue import MessageQueue

# Called with the group, this client's id, and all queues and client ids sorted. Every member of the
# group computes its own share, so all of them must use the same strategy.
AllocationStrategy = Callable[
    [str, str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]
]


def allocate_averagely(
    _group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """A run of neighbouring queues for each member; the first ones get one more if it is uneven."""
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, rest = divmod(len(queues), len(client_ids))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (1 if index < rest else 0)])
