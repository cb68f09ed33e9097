"""Write JSON with broker ids as bare keys, `{0:"10.0.0.1:10911"}`, as Java's name server does.

Java's clients read quoted ids as well; other clients do not. The Go client takes every quoted id of
a route for 0, so that a slave would replace its master, and does not read the quoted ids of a
cluster's info at all. Clients that want strict JSON ask for it, by version or by header (Java:
ClientRequestProcessor).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cometmq.model.route import BrokerData, ClusterInfo, TopicRouteData
from cometmq.protocol.bodies.cluster import BrokerMemberGroup

_encoder: Final = msgspec.json.Encoder()


def route_json(route: TopicRouteData) -> bytes:
    """Encode a route for callers that do not take strict JSON."""
    fields = _fields(route)
    fields["brokerDatas"] = [_broker(broker) for broker in route.broker_datas]
    return _encoder.encode(fields)


def cluster_info_json(info: ClusterInfo) -> bytes:
    fields = _fields(info)
    fields["brokerAddrTable"] = {
        name: _broker(broker) for name, broker in info.broker_addr_table.items()
    }
    return _encoder.encode(fields)


def member_group_json(group: BrokerMemberGroup) -> bytes:
    return _encoder.encode({"brokerMemberGroup": _broker(group)})


def _broker(broker: BrokerData | BrokerMemberGroup) -> dict[str, Any]:
    fields = _fields(broker)
    addresses = b",".join(
        b"%d:%b" % (broker_id, _encoder.encode(address))
        for broker_id, address in broker.broker_addrs.items()
    )
    fields["brokerAddrs"] = msgspec.Raw(b"{%b}" % addresses)
    return fields


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the wire names and values of a struct, without those that are None or unset."""
    return {
        wire_name: value
        for name, wire_name in zip(
            struct.__struct_fields__, struct.__struct_encode_fields__, strict=True
        )
        if (value := getattr(struct, name)) is not None and value is not msgspec.UNSET
    }
