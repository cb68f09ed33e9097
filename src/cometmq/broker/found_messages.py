"""Check rights to messages that a request names by their place in the log, without a topic.

Java does not: there a client that may send any request can read every message by its offset.
"""

from __future__ import annotations

from typing import Any

from cometmq.errors import AccessRefusedError
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.protocol import requests
from cometmq.protocol.command import Request
from cometmq.protocol.messages.properties import find_property
from cometmq.protocol.messages.record import StoredRecord, decode_record
from cometmq.protocol.request_type import AnyRequestType, ResourceKind
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers


def topic_of(record: StoredRecord) -> str:
    """Return the topic that a message was sent to, also while it waits in one of the broker's."""
    if record.topic not in names.WAITING_TOPICS:
        return record.topic
    return find_property(record.properties, p.REAL_TOPIC) or record.topic


def check_found(
    handlers: Handlers,
    row: AnyRequestType,
    connection: Connection,
    request: Request[Any],
    record: StoredRecord | bytes | memoryview,
) -> None:
    """Raise AccessRefusedError unless the sender has the request's right to the message's topic.

    Without access control this does nothing, and decodes nothing.
    """
    if not handlers.checks_resources:
        return
    if not isinstance(record, StoredRecord):
        record = decode_record(record)
    handlers.check_resource(row, connection, request, ResourceKind.TOPIC, topic_of(record))


def may_see(
    handlers: Handlers,
    row: AnyRequestType,
    connection: Connection,
    request: Request[Any],
    record: memoryview,
) -> bool:
    """Say whether `check_found` lets a message pass."""
    try:
        check_found(handlers, row, connection, request, record)
    except AccessRefusedError:
        return False
    return True


def may_send(handlers: Handlers, connection: Connection, request: Request[Any], topic: str) -> bool:
    """Say whether the sender of another request may send to the topic that a stored message names."""
    row, kind = requests.SEND_MESSAGE, ResourceKind.TOPIC
    try:
        handlers.check_resource(row, connection, request, kind, topic)
    except AccessRefusedError:
        return False
    return True
