"""Translate names in a namespace (Java: NamespaceUtil, ClientConfig.withNamespace).

On the wire a topic or group of the namespace `ns` is called `ns%name`, a retry or dead-letter topic
`%RETRY%ns%group`. Users see and give the names without the namespace. RocketMQ's own names have no
namespace; the reply topics have none either, because they belong to the cluster.
"""

from __future__ import annotations

import re
from typing import Final

from cometmq.errors import IllegalArgumentError
from cometmq.model.names import (
    DLQ_PREFIX,
    REPLY_TOPIC_POSTFIX,
    RETRY_PREFIX,
    is_system_group,
    is_system_topic,
)
from cometmq.model.queue import MessageQueue

SEPARATOR: Final = "%"
# Endpoints of hosted instances carry their namespace (Java: NameServerAddressUtils).
_INSTANCE_HOST: Final = re.compile(r"(MQ_INST_\w+_\w+)\.")
_LEGAL: Final = re.compile(r"[a-zA-Z0-9_-]+")


class Namespace:
    """Puts one namespace around names and takes it off; an empty one changes nothing.

    Raises IllegalArgumentError for a name that cannot be a namespace.
    """

    __slots__ = ("_prefix", "name")

    def __init__(self, name: str | None) -> None:
        if name is not None and not isinstance(name, str):
            raise IllegalArgumentError(
                f"namespace is {name!r:.80}, a {type(name).__name__}; pass text"
            )
        if name and not _LEGAL.fullmatch(name):
            raise IllegalArgumentError(
                f"the namespace {name!r} has characters outside ^[a-zA-Z0-9_-]+$"
            )
        self.name = name or ""
        self._prefix = f"{name}{SEPARATOR}" if name else ""

    def __bool__(self) -> bool:
        return bool(self._prefix)

    def wrap(self, name: str) -> str:
        """Return the name that a topic or group has on the wire."""
        if not self._prefix or not name or _is_of_rocketmq(name):
            return name
        prefix, bare = _split(name)
        return name if bare.startswith(self._prefix) else f"{prefix}{self._prefix}{bare}"

    def unwrap(self, name: str) -> str:
        """Return the name as users know it. A name of another namespace stays as it is."""
        if not self._prefix:
            return name
        prefix, bare = _split(name)
        return prefix + bare.removeprefix(self._prefix)

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.wrap(queue.topic)) if self._prefix else queue

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self.unwrap(queue.topic)) if self._prefix else queue


NO_NAMESPACE: Final = Namespace(None)


def namespace_of(addresses: list[str]) -> str | None:
    """Return the namespace with which the first address begins, as addresses of hosted instances do,
    or None.
    """
    found = _INSTANCE_HOST.match(addresses[0])
    return found.group(1) if found else None


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_of_rocketmq(name: str) -> bool:
    return (
        is_system_topic(name) or is_system_group(name) or name.endswith(f"_{REPLY_TOPIC_POSTFIX}")
    )
