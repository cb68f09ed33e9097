"""A subscription by predicate at the Java broker, which has none: refused, and not everything delivered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.integration.client_faces import Face, Received
from tests.integration.raw_client import wait_until_readable
from tests.interop.on_java import MARKS, name, namesrv

from cometmq import ConsumeFromWhere, Message
from cometmq.errors import RemoteError

if TYPE_CHECKING:
    pass

__all__ = ["name", "namesrv"]
pytestmark = MARKS


def test_a_predicate_is_refused_at_the_start(namesrv: str, face: Face, name: str) -> None:
    sent = face.producer(name).send(Message(name, b"x"))
    queue = sent.queue
    # Without a route there would be nobody to ask.
    wait_until_readable(namesrv, name, queue.broker_name, queue.queue_id, sent.queue_offset)
    received = Received()
    consumer = face.new_consumer(
        name, face.listener(received.handle), consume_from=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe(name, predicate="is_paid")
    with pytest.raises(RemoteError) as refusal:
        consumer.start()
    assert refusal.value.code in (1, 23)
    time.sleep(0.3)
    assert received.bodies == []
