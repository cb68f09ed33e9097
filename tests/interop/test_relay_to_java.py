"""Java consumers at our broker: what operators ask of them through it, and their class filters."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.raw_client import RawClient
from tests.interop.at_once import at_once
from tests.interop.clients import Event, JavaClient, RunningClient
from tests.interop.conftest import need
from tests.waits import SEND_WAIT_MS, eventually

import cometmq
from cometmq import Message, MessageQueue
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.fastjson.queue_table import decode_queue_table
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

RESET, STATUS, INFO, DIRECTLY = 222, 223, 307, 309
Statuses = dict[str, dict[str, dict[str, int]]]
COUNT = 10
PROPERTIES = {"accessMessageInMemoryMaxRatio": "0"}
# Whether the broker keeps resets for the next pull, or pushes them to the members.
KEPT = {"kept": True, "pushed": False}
LINES = {"java4": 4, "java5": 5}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    need("java", "mvn")
    predicate = "com.shop.Paid=tests.integration.filter_functions:is_paid"
    with Cluster(properties={**PROPERTIES, "filterPredicateModules": predicate}) as cluster:
        yield cluster


@pytest.fixture(params=LINES)
def client(request: pytest.FixtureRequest) -> JavaClient:
    return JavaClient(LINES[request.param])


class Scene:
    """Ten messages in one queue, a Java consumer of them, and an operator."""

    def __init__(self, cluster: Cluster, topic: str, consumer: RunningClient) -> None:
        self.topic = topic
        self.broker = cluster.brokers[0]
        self.consumer = consumer

    def ask(self, code: int, **ext: Any) -> Any:
        with RawClient(self.broker.address) as client:
            return client.ask(code, ext)

    def committed(self, queue_id: int = 0) -> int:
        return self.broker.offsets.query(self.topic, self.topic, queue_id)

    @property
    def client_id(self) -> str:
        (client_id,) = self.broker.clients.consumer_ids(self.topic)
        return client_id

    def heard(self) -> list[Event]:
        return self.consumer.named("message")


def fill(cluster: Cluster, topic: str, bodies: list[bytes]) -> None:
    with cometmq.Producer(
        f"{topic}-p", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS
    ) as producer:
        for index, body in enumerate(bodies):
            message = Message(topic, body, tags="paid", properties={"index": str(index)})
            producer.send(message, queue=MessageQueue(topic, "broker-a", 0))


@contextmanager
def consuming(cluster: Cluster, client: JavaClient, topic: str) -> Iterator[Scene]:
    fill(cluster, topic, [b"order %d" % i for i in range(COUNT)])
    names = {"namesrv": cluster.namesrv, "topic": topic, "group": topic}
    with ExitStack() as stack:
        consumer = stack.enter_context(client.start("consume", **names, until_stdin=True))
        consumer.wait_messages(COUNT)
        yield Scene(cluster, topic, consumer)
        consumer.finish()


@pytest.fixture
def scene(cluster: Cluster, client: JavaClient, fresh: Callable[[str], str]) -> Iterator[Scene]:
    with consuming(cluster, client, fresh("relay")) as scene:
        yield scene


@pytest.fixture(scope="module")
def resets(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """Resets of consumers of both lines at both kinds of brokers, all at once: most is waiting."""
    need("java", "mvn")

    with ExitStack() as stack:
        clusters = {
            kind: stack.enter_context(
                Cluster(properties={**PROPERTIES, "useServerSideResetOffset": str(kept).lower()})
            )
            for kind, kept in KEPT.items()
        }

        def run(case: str) -> None:
            kind, label = case.split("-")
            with consuming(clusters[kind], JavaClient(LINES[label]), f"reset-{label}") as scene:
                go_back(scene)

        yield stack.enter_context(at_once(request, run, places=4))


@pytest.mark.parametrize("case", [f"{kind}-{label}" for kind in KEPT for label in LINES])
def test_a_reset_has_a_java_consumer_go_back(resets: dict[str, Future[None]], case: str) -> None:
    resets[case].result()


def go_back(scene: Scene) -> None:
    # Java commits for the first time 10 s after its start.
    eventually(lambda: scene.committed() == COUNT)
    # A member that waits for messages in the other queues has not committed them yet.
    for queue_id in range(1, 4):
        scene.broker.offsets.commit(scene.topic, scene.topic, queue_id, 0)
    answer = scene.ask(RESET, topic=scene.topic, group=scene.topic, timestamp=0, isForce="true")
    assert answer.code == 0
    table = decode_queue_table(answer.body, "offsetTable", int)
    assert table[MessageQueue(scene.topic, "broker-a", 0)] == 0
    # Java drops its queues and waits for 10 s before it begins them again.
    scene.consumer.wait_messages(2 * COUNT)
    eventually(lambda: scene.committed() == COUNT)


def test_a_java_consumer_tells_of_itself(scene: Scene) -> None:
    def reported() -> dict[int, int]:
        status = scene.ask(STATUS, topic=scene.topic, group=scene.topic)
        assert status.code == 0
        (offsets,) = decode_body(status.body, Statuses)["consumerTable"].values()
        return {json.loads(bean)["queueId"]: offset for bean, offset in offsets.items()}

    # The client notes a message as consumed a moment after its listener had it.
    eventually(lambda: reported().get(0) == COUNT)
    info = scene.ask(INFO, consumerGroup=scene.topic, clientId=scene.client_id, jstackEnable="true")
    assert info.code == 0
    for part in (b'"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"', b"jstack", scene.topic.encode()):
        assert part in info.body


def test_a_java_consumer_consumes_a_message_directly(scene: Scene) -> None:
    fourth = next(event for event in scene.heard() if event["queueOffset"] == 3)
    answer = scene.ask(
        DIRECTLY,
        consumerGroup=scene.topic,
        clientId=scene.client_id,
        msgId=fourth["offsetMsgId"],
        topic=scene.topic,
    )
    assert json.loads(answer.body)["consumeResult"] == "CR_SUCCESS"
    again = scene.consumer.wait_messages(COUNT + 1)[-1]
    # Its `msgId` is the offset id in 4.9, where the client takes the record as it lies.
    assert (again["queueOffset"], again["crc32"]) == (3, fourth["crc32"])


def test_a_class_filter_of_java_is_a_predicate_of_ours(
    cluster: Cluster, client: JavaClient, fresh: Callable[[str], str]
) -> None:
    topic = fresh("class-filter")
    fill(cluster, topic, [b"order 0", b"refund 1", b"order 2"])
    with client.start(
        "consume",
        namesrv=cluster.namesrv,
        topic=topic,
        group=topic,
        class_filter="com.shop.Paid",
        until_stdin=True,
    ) as consumer:
        consumer.wait_messages(2)
        fill(cluster, topic, [b"refund 3", b"order 4"])
        consumer.wait_messages(3)
        time.sleep(0.2)
        consumer.finish()
        offsets = sorted(event["queueOffset"] for event in consumer.named("message"))
    assert offsets == [0, 2, 4]
