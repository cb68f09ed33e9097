"""Name the rights that calls need, by resource."""

from __future__ import annotations

from typing import NamedTuple

from cometmq.protocol.request_type import Action, ResourceKind
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.names import group_of, topic_of


class Need(NamedTuple):
    """Names a resource and rights; a call needs one of the rights.

    `name` is empty for the cluster, because the gate knows its name. While authorisation is off, nobody has
    rights, and a call with `administration` needs a Super user.
    """

    kind: ResourceKind
    name: str
    actions: tuple[Action, ...]
    administration: bool = False


def topic_need(resource: wire.Resource, actions: tuple[Action, ...]) -> Need:
    return Need(ResourceKind.TOPIC, topic_of(resource), actions)


def group_need(resource: wire.Resource, actions: tuple[Action, ...]) -> Need:
    return Need(ResourceKind.GROUP, group_of(resource), actions)
