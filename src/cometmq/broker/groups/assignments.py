"""Divide the queues of a topic among the members of a group for clients that ask for it: code 400.

Java: QueryAssignmentProcessor. A consumer with setClientRebalance(false) asks each time when it
would otherwise divide the queues itself. The answer says, too, whether the group pops the topic's
messages: then members share queues, and a queue -1 stands for all queues of its broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from cometmq.broker.groups.clients import ClientManager
from cometmq.broker.groups.request_modes import POP
from cometmq.broker.refusal import Refused
from cometmq.model.allocation import allocate_averagely, allocate_averagely_by_circle
from cometmq.model.queue import MessageQueue
from cometmq.model.route import TopicRouteData
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import (
    MessageQueueAssignment,
    MessageQueueBean,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers

# The number of queues that are sorted and encoded in one piece.
MAX_QUEUES_OF_ASSIGNMENT: Final = 4_096

_ALL_QUEUES: Final = -1

_Allocate = Callable[[str, str, list[MessageQueue], list[str]], list[MessageQueue]]
_STRATEGIES: Final[Mapping[str, _Allocate]] = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_averagely_by_circle,
}


class Assignments:
    """Answers which queues a member gets. `route_of` asks the name servers for a topic's route;
    `mode_of` says by topic and group whether members pull or pop, and how many share a queue.

    For the loop's thread only.
    """

    def __init__(
        self,
        clients: ClientManager,
        route_of: Callable[[str], Awaitable[TopicRouteData | None]],
        mode_of: Callable[[str, str], tuple[str, int]],
    ) -> None:
        self._clients = clients
        self._route_of = route_of
        self._mode_of = mode_of

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.QUERY_ASSIGNMENT, self.assignment)

    async def assignment(self, _connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        """Return the queues of the topic that one member is to consume.

        Without a route, without a member or with an unknown strategy the answer has no list: the
        client then keeps its queues, as with Java's broker.
        """
        body = requests.QUERY_ASSIGNMENT.typed_body(call)
        route = await self._route_of(body.topic)
        mode, sharers = self._mode_of(body.topic, body.consumer_group)
        queues = None if route is None else self._share(body, route, mode, sharers)
        listed = None
        if queues is not None:
            listed = [MessageQueueAssignment(MessageQueueBean.of(queue), mode) for queue in queues]
        return response(ResponseCode.SUCCESS, body=encode_body(QueryAssignmentResponseBody(listed)))

    def _share(
        self, body: QueryAssignmentRequestBody, route: TopicRouteData, mode: str, sharers: int
    ) -> list[MessageQueue] | None:
        count = sum(max(data.read_queue_nums, 0) for data in route.queue_datas)
        if count > MAX_QUEUES_OF_ASSIGNMENT:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the topic {body.topic} has {count} queues, the limit MAX_QUEUES_OF_ASSIGNMENT is "
                f"{MAX_QUEUES_OF_ASSIGNMENT}; have the clients share them, setClientRebalance(true)",
                limit="MAX_QUEUES_OF_ASSIGNMENT",
            )
        queues = route.subscribe_queues(body.topic)
        if body.message_model == "BROADCASTING":
            return queues
        ids = sorted(self._clients.consumer_ids(body.consumer_group))
        allocate = _STRATEGIES.get(body.strategy_name)
        if not ids or allocate is None:
            return None
        if mode == POP:
            return _share_pops(body, queues, ids, sharers, allocate)
        return allocate(body.consumer_group, body.client_id, queues, ids)


def _share_pops(
    body: QueryAssignmentRequestBody,
    queues: list[MessageQueue],
    ids: list[str],
    sharers: int,
    allocate: _Allocate,
) -> list[MessageQueue] | None:
    """Return what a member pops. Each of its own queues is popped by the `sharers` members in front
    of it, too; with 0, or as many as there are, everybody pops from all queues.
    """
    if sharers <= 0 or sharers >= len(ids) - 1:
        brokers = sorted({queue.broker_name for queue in queues})
        return [MessageQueue(body.topic, broker, _ALL_QUEUES) for broker in brokers]
    if body.client_id not in ids:
        return []
    index = ids.index(body.client_id)
    if len(ids) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    shares = (
        allocate(body.consumer_group, ids[(index + each) % len(ids)], queues, ids)
        for each in range(sharers + 1)
    )
    return [queue for share in shares for queue in share]
