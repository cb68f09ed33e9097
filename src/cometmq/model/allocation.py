"""Divide the queues of a topic evenly among the members of a group (Java:
AllocateMessageQueueStrategy).

Clients do so themselves; brokers do it for clients that ask them.
"""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.model.queue import MessageQueue


def allocate_averagely(
    _group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Give each member a run of neighbouring queues; if the queues do not divide evenly, the first
    members get one more.

    Java: AllocateMessageQueueAveragely.
    """
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, rest = divmod(len(queues), len(client_ids))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (1 if index < rest else 0)])


def allocate_averagely_by_circle(
    _group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Deal the queues to the members one by one (Java: AllocateMessageQueueAveragelyByCircle)."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])
