"""Check the names of topics and groups in calls."""

from __future__ import annotations

from cometmq.errors import IllegalArgumentError
from cometmq.model.names import FORBIDDEN_SEND_TOPICS, check_group, check_topic
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError


def topic_of(resource: wire.Resource) -> str:
    """Return the topic on the wire. Raises RefusedError for an illegal name.

    As in Java, a `resource_namespace` is put in front of a name that does not begin with it: `ns%topic`.
    """
    name = _wrapped(resource)
    try:
        check_topic(name)
    except IllegalArgumentError as error:
        raise RefusedError(wire.ILLEGAL_TOPIC, str(error)) from error
    if name in FORBIDDEN_SEND_TOPICS:
        raise RefusedError(
            wire.ILLEGAL_TOPIC, f"topic {name} is reserved for brokers; use another one"
        )
    return name


def group_of(resource: wire.Resource) -> str:
    """Return the group on the wire. Raises RefusedError for an illegal name."""
    name = _wrapped(resource)
    try:
        check_group(name)
    except IllegalArgumentError as error:
        raise RefusedError(wire.ILLEGAL_CONSUMER_GROUP, str(error)) from error
    return name


def _wrapped(resource: wire.Resource) -> str:
    namespace, name = resource.resource_namespace, resource.name
    if namespace and not name.startswith(f"{namespace}%"):
        return f"{namespace}%{name}"
    return name
