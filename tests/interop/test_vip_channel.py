"""The second port of Java brokers, which serves sends of clients that ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.waits import SEND_WAIT_MS

from cometmq import Message, Producer, SendStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


def test_sends_by_the_second_port_of_a_java_broker(
    java_servers: Namesrv, fresh: Callable[[str], str]
) -> None:
    topic = fresh("topic")
    with Producer(
        fresh("group"), namesrv=java_servers, vip_channel_enabled=True, send_timeout_ms=SEND_WAIT_MS
    ) as producer:
        results = [producer.send(Message(topic, b"%d" % i)) for i in range(8)]
        results.append(producer.send_batch([Message(topic, b"batch") for _ in range(3)]))
        producer.send_oneway(Message(topic, b"one way"))
    assert all(result.status is SendStatus.SEND_OK for result in results)
