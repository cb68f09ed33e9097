"""Serve the calls about topics: their routes, types and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cometmq.model.attributes import MESSAGE_TYPE
from cometmq.model.topic import TopicConfig
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.proxy.administration.asking import Inquiry, Parts
from cometmq.proxy.calls import Caller
from cometmq.proxy.wire import admin_pb2 as admin
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.names import topic_of
from cometmq.proxy.wire.statuses import ok

_NORMAL: Final = "NORMAL"
_TYPES: Final = {
    _NORMAL: wire.NORMAL,
    "FIFO": wire.FIFO,
    "DELAY": wire.DELAY,
    "TRANSACTION": wire.TRANSACTION,
    "LITE": wire.LITE,
    "PRIORITY": wire.PRIORITY,
}


async def get_topic_route(
    parts: Parts, _caller: Caller, request: admin.GetTopicRouteRequest
) -> admin.GetTopicRouteResponse:
    """Return the route of name servers: the addresses of brokers, the same for clients of any protocol."""
    route = await parts.topics.route(topic_of(request.topic))
    return admin.GetTopicRouteResponse(status=ok(), topic_route_data=encode_body(route).decode())


async def describe_topic_status(
    parts: Parts, _caller: Caller, request: admin.DescribeTopicStatusRequest
) -> admin.DescribeTopicStatusResponse:
    """Return the type and the attributes that all brokers of the topic agree on, with a note about the others."""
    topic = topic_of(request.topic)
    inquiry = Inquiry()
    configs = await inquiry.partly(parts.topics.config(topic), dict)
    attributes = _shared(configs, inquiry.notes)
    answer = admin.DescribeTopicStatusResponse(tags=attributes)
    kind = attributes.get(MESSAGE_TYPE, "" if inquiry.notes else _NORMAL)
    answer.topic_message_type = _TYPES.get(kind, wire.MESSAGE_TYPE_UNSPECIFIED)
    answer.status.CopyFrom(inquiry.status())
    return answer


def _shared(configs: Mapping[str, TopicConfig], notes: list[str]) -> dict[str, str]:
    """Return the attributes that have the same value at all brokers, and note the others."""
    names = sorted({name for config in configs.values() for name in config.attributes})
    shared: dict[str, str] = {}
    for name in names:
        values: dict[str, Any] = {
            address: config.attributes.get(name) for address, config in configs.items()
        }
        if len(set(values.values())) == 1:
            shared[name] = next(iter(values.values()))
        else:
            listed = ", ".join(f"{at}: {value or 'none'}" for at, value in values.items())
            notes.append(f"brokers differ in {name} ({listed})")
    return shared
