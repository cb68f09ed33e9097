"""Decide which member of a group consumes which queues (Java: AllocateMessageQueueStrategy)."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.errors import IllegalArgumentError
from cometmq.model.allocation import allocate_averagely, allocate_averagely_by_circle
from cometmq.model.queue import MessageQueue

# Called with the group, this client's id, and all queues and client ids sorted. Every member of the
# group computes its own share, so all of them must use the same strategy.
AllocationStrategy = Callable[
    [str, str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]
]

__all__ = [
    "AllocateByConfig",
    "AllocateByMachineRoom",
    "AllocateConsistentHash",
    "AllocationStrategy",
    "allocate_averagely",
    "allocate_averagely_by_circle",
]

VIRTUAL_NODES: Final = 10


@dataclass(frozen=True, slots=True)
class AllocateConsistentHash:
    """Places members and queues on a circle, and gives each queue to the next member.

    Each member stands at `virtual_nodes` places. A member that comes or goes changes little for the
    others. Java: AllocateMessageQueueConsistentHash.
    """

    virtual_nodes: int = VIRTUAL_NODES

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise IllegalArgumentError(
                f"virtual_nodes is {self.virtual_nodes}, a member needs at least one"
            )

    def __call__(
        self,
        _group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        # As in Java, where two places coincide the member that comes later in the order has both.
        owners = {
            _place(f"{member}-{replica}"): member
            for member in client_ids
            for replica in range(self.virtual_nodes)
        }
        circle = sorted(owners)

        def owner(queue: MessageQueue) -> str:
            text = (
                f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
                f"queueId={queue.queue_id}]"
            )
            return owners[circle[bisect_left(circle, _place(text)) % len(circle)]]

        return [queue for queue in queues if owner(queue) == client_id]


@dataclass(frozen=True, slots=True)
class AllocateByConfig:
    """Gives this member the configured `queues`, whatever other members there are.

    The user must see to it that exactly one member names each queue. Java:
    AllocateMessageQueueByConfig.
    """

    queues: Collection[MessageQueue]

    def __call__(
        self,
        _group: str,
        _client_id: str,
        queues: Sequence[MessageQueue],
        _client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        # Each call is about one topic. Other topics' queues of `self.queues` are for other calls.
        return [queue for queue in queues if queue in self.queues]


@dataclass(frozen=True, slots=True)
class AllocateByMachineRoom:
    """Shares only the queues of brokers named `room@…` where the room is one of `rooms`.

    Members get equal runs of queues; queues that are left over go to the first members, one each.
    Java: AllocateMessageQueueByMachineRoom.
    """

    rooms: Collection[str]

    def __call__(
        self,
        _group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        near = [queue for queue in queues if self._in_rooms(queue.broker_name)]
        index, count = client_ids.index(client_id), len(client_ids)
        share, rest = divmod(len(near), count)
        mine = near[index * share : (index + 1) * share]
        return mine + (near[share * count + index :][:1] if index < rest else [])

    def _in_rooms(self, broker_name: str) -> bool:
        parts = broker_name.split("@")
        return len(parts) == 2 and parts[0] in self.rooms


@dataclass(frozen=True, slots=True)
class AllocateMachineRoomNearby:
    """Shares a machine room's queues among the members in that room, with the strategy `inner`.

    All members share the queues of a room without members. `broker_room` returns the room of a
    queue's broker, `client_room` that of a client id. Raises IllegalArgumentError when either
    returns no room. Java: AllocateMachineRoomNearby.
    """

    inner: AllocationStrategy
    broker_room: Callable[[MessageQueue], str]
    client_room: Callable[[str], str]

    def __call__(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        if client_id not in client_ids:
            return []
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(_room(self.broker_room(queue), queue), []).append(queue)
        clients_by_room: dict[str, list[str]] = {}
        for each in client_ids:
            clients_by_room.setdefault(_room(self.client_room(each), each), []).append(each)
        own_room = self.client_room(client_id)
        mine: list[MessageQueue] = []
        for room in sorted(queues_by_room, key=lambda name: (name != own_room, name)):
            if room == own_room:
                members: Sequence[str] = clients_by_room[room]
            elif room not in clients_by_room:
                members = client_ids
            else:
                continue
            mine += self.inner(group, client_id, queues_by_room[room], members)
        return mine


def _place(text: str) -> int:
    """Return a place on the circle: the first four bytes of the text's MD5, unsigned."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _room(room: str, of: object) -> str:
    if not room:
        raise IllegalArgumentError(f"no machine room is known for {of}")
    return room
