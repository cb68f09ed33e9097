"""Divide the queues of a topic among the members of a group for clients that ask for it: code 400.

Java: QueryAssignmentProcessor. A consumer with setClientRebalance(false) asks each time when it
would otherwise divide the queues itself. Java's mode POP is not served here, so the answer always
says PULL.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from cometmq.broker.groups.clients import ClientManager
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

_Allocate = Callable[[str, str, list[MessageQueue], list[str]], list[MessageQueue]]
_STRATEGIES: Final[Mapping[str, _Allocate]] = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_averagely_by_circle,
}


class Assignments:
    """Answers which queues a member gets. `route_of` asks the name servers for a topic's route.

    For the loop's thread only.
    """

    def __init__(
        self,
        clients: ClientManager,
        route_of: Callable[[str], Awaitable[TopicRouteData | None]],
    ) -> None:
        self._clients = clients
        self._route_of = route_of

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.QUERY_ASSIGNMENT, self.assignment)

    async def assignment(self, _connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        """Return the queues of the topic that one member is to consume.

        Without a route, without a member or with an unknown strategy the answer has no list: the
        client then keeps what it has, as with Java's broker.
        """
        body = requests.QUERY_ASSIGNMENT.typed_body(call)
        route = await self._route_of(body.topic)
        queues = None if route is None else self._share(body, route)
        listed = None
        if queues is not None:
            listed = [MessageQueueAssignment(MessageQueueBean.of(queue)) for queue in queues]
        return response(ResponseCode.SUCCESS, body=encode_body(QueryAssignmentResponseBody(listed)))

    def _share(
        self, body: QueryAssignmentRequestBody, route: TopicRouteData
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
        return allocate(body.consumer_group, body.client_id, queues, ids)
