"""A Java broker that dies and comes back, under producers and consumers of both faces.

Its neighbour is ours, so that there is another broker to try; `test_own_clusters` and
`test_producer_rules` have the same with ours alone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.client_faces import Face, Received, open_face
from tests.integration.test_client_scenarios import create_topic
from tests.interop.comet_servers import CometBroker
from tests.interop.conftest import need
from tests.interop.on_java import MARKS
from tests.interop.peers import JavaBroker, JavaNamesrv
from tests.waits import JVM_WAIT_S, WAIT_S, eventually

from cometmq import ConsumeFromWhere, Message, MessageQueue
from cometmq.errors import CometMQError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = MARKS

BROKERS = ("java-side", "comet-side")
TOPIC = "restarts"
CONF = {"accessMessageInMemoryMaxRatio": "0"}


def test_every_mode_goes_on_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    need("java", "mvn")
    with (
        JavaNamesrv() as namesrv,
        JavaBroker(namesrv.address, broker_name=BROKERS[0], conf=CONF) as java,
        CometBroker(namesrv.address, broker_name=BROKERS[1], directory=tmp_path, conf=CONF),
        open_face("blocking", namesrv.address) as blocking,
        open_face("asyncio", namesrv.address) as asynchronous,
    ):
        create_topic(blocking, TOPIC, BROKERS)
        sides = [Side(blocking, "blocking"), Side(asynchronous, "asyncio")]
        for side in sides:
            assert set(side.send_16("before")) == set(BROKERS)
        java.kill()
        for side in sides:
            assert set(side.send_16("without")) == {BROKERS[1]}
            side.fail_where_no_other_may_do()
        java.start()
        for side in sides:
            eventually(side.reaches_both, wait_s=JVM_WAIT_S)
            side.expect_everything()


class Side:
    """A producer and a consumer of one face."""

    def __init__(self, face: Face, name: str) -> None:
        self._name = name
        self._producer = face.producer(name)
        self._strict = face.producer(f"{name}-strict", retry_times=0)
        self._received = Received()
        self._acknowledged: list[bytes] = []
        face.consumer(
            name, TOPIC, self._received.handle, consume_from=ConsumeFromWhere.FIRST_OFFSET
        )

    def send_16(self, when: str) -> Counter[str]:
        """Eight messages one by one and eight in the background; how many each broker took."""
        used: Counter[str] = Counter()
        for index in range(16):
            body = f"{self._name} {when} {index}".encode()
            send = self._producer.send if index % 2 else self._producer.send_async
            outcome: Any = send(Message(TOPIC, body), timeout_ms=30_000)
            result = outcome.result(WAIT_S) if hasattr(outcome, "result") else outcome
            self._acknowledged.append(body)
            used[result.queue.broker_name] += 1
        return used

    def reaches_both(self) -> bool:
        return set(self.send_16("after")) == set(BROKERS)

    def fail_where_no_other_may_do(self) -> None:
        with pytest.raises(CometMQError):
            self._strict.send(Message(TOPIC, b"lost"), queue=MessageQueue(TOPIC, BROKERS[0], 0))

    def expect_everything(self) -> None:
        def missing() -> set[bytes]:
            return set(self._acknowledged) - {m.body for m in list(self._received.messages)}

        eventually(lambda: not missing(), wait_s=JVM_WAIT_S)
