"""Answer with the routes of topics (Java: RouteActivity). Clients reach every broker through the proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cometmq.model.route import MASTER_ID, TopicRouteData
from cometmq.model.sysflag import PERM_READ, PERM_WRITE
from cometmq.proxy.calls import Caller
from cometmq.proxy.metadata import MIXED, Metadata
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.names import group_of, topic_of
from cometmq.proxy.wire.statuses import RefusedError, ok

_TYPES: Final[dict[str, tuple[wire.MessageType, ...]]] = {
    "NORMAL": (wire.NORMAL,),
    "FIFO": (wire.FIFO,),
    "DELAY": (wire.DELAY,),
    "TRANSACTION": (wire.TRANSACTION,),
    "PRIORITY": (wire.PRIORITY,),
    MIXED: (wire.NORMAL, wire.FIFO, wire.DELAY, wire.TRANSACTION),
}


class RouteCalls:
    """Answers with routes. `own` returns the endpoints to name, None to name those that the client sent."""

    def __init__(
        self, metadata: Metadata, own: Callable[[], wire.Endpoints | None] = lambda: None
    ) -> None:
        self._metadata = metadata
        self._own = own

    async def query_route(
        self, _caller: Caller, request: wire.QueryRouteRequest
    ) -> wire.QueryRouteResponse:
        topic = topic_of(request.topic)
        route = await self._metadata.route(topic)
        kinds = _TYPES.get(await self._metadata.topic_type(topic), (wire.NORMAL,))
        queues = list(_queues(request.topic, self._own() or request.endpoints, route, kinds))
        return wire.QueryRouteResponse(status=ok(), message_queues=queues)

    async def query_assignment(
        self, _caller: Caller, request: wire.QueryAssignmentRequest
    ) -> wire.QueryAssignmentResponse:
        topic, group = topic_of(request.topic), group_of(request.group)
        route = await self._metadata.route(topic)
        ordered = (await self._metadata.group(group, topic)).consume_message_orderly
        endpoints = self._own() or request.endpoints
        assignments = []
        for data in route.queue_datas:
            broker = route.broker(data.broker_name)
            if not data.perm & PERM_READ or broker is None or broker.master() is None:
                continue
            ids = range(data.read_queue_nums) if ordered else (-1,) * (data.read_queue_nums > 0)
            assignments += [
                wire.Assignment(
                    message_queue=wire.MessageQueue(
                        topic=request.topic,
                        id=each,
                        permission=wire.READ_WRITE if data.perm & PERM_WRITE else wire.READ,
                        broker=wire.Broker(
                            name=data.broker_name, id=MASTER_ID, endpoints=endpoints
                        ),
                    )
                )
                for each in ids
            ]
        if not assignments:
            raise RefusedError(wire.FORBIDDEN, f"topic {topic} has no readable queue")
        return wire.QueryAssignmentResponse(status=ok(), assignments=assignments)


def _queues(
    topic: wire.Resource,
    endpoints: wire.Endpoints,
    route: TopicRouteData,
    kinds: Iterable[wire.MessageType],
) -> Iterable[wire.MessageQueue]:
    """Return the queues of each broker in Java's order: readable only, writable only, both."""
    for data in route.queue_datas:
        broker = route.broker(data.broker_name)
        read = data.read_queue_nums if data.perm & PERM_READ else 0
        write = data.write_queue_nums if data.perm & PERM_WRITE else 0
        both = min(read, write)
        permissions = [wire.READ] * (read - both) + [wire.WRITE] * (write - both)
        permissions += [wire.READ_WRITE] * both
        if not permissions:
            permissions = [wire.NONE] * max(data.read_queue_nums, data.write_queue_nums)
        for broker_id in sorted(broker.broker_addrs) if broker is not None else ():
            for number, permission in enumerate(permissions):
                yield wire.MessageQueue(
                    topic=topic,
                    id=number,
                    permission=permission,
                    broker=wire.Broker(name=data.broker_name, id=broker_id, endpoints=endpoints),
                    accept_message_types=kinds,
                )
