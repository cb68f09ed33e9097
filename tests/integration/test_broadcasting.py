"""Broadcasting by both faces against a real cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.waits import eventually

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageModel

FIRST = ConsumeFromWhere.FIRST_OFFSET


pytestmark = [pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0"})]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {
        "message_model": MessageModel.BROADCASTING,
        "local_offset_dir": tmp_path,
        "consume_from": FIRST,
    }


def send(face: Face, topic: str, count: int, word: str = "m") -> list[bytes]:
    producer = face.producer(f"{topic}-{word}")
    bodies = [b"%s-%d" % (word.encode(), i) for i in range(count)]
    for body in bodies:
        producer.send(Message(topic, body))
    return bodies


def test_every_member_gets_every_message(face: Face, name: str, options: dict[str, Any]) -> None:
    bodies = send(face, name, 40)
    received = [Received(), Received()]
    for index, each in enumerate(received):
        face.consumer(name, name, each.handle, instance_name=f"{name}-{index}", **options)
    for each in received:
        each.wait_for(40)
        assert Counter(each.bodies) == Counter(bodies)


def test_a_member_goes_on_where_it_left_off(
    face: Face, name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    before = send(face, name, 20)
    first = Received()
    consumer = face.consumer(name, name, first.handle, instance_name="same", **options)
    client_id = consumer.client_id
    first.wait_for(20)
    consumer.close()
    file = tmp_path / client_id / name / "offsets.json"
    assert "offsetTable" in file.read_text()
    after = send(face, name, 20, "later")
    again = Received()
    consumer = face.consumer(name, name, again.handle, instance_name="same", **options)
    again.wait_for(20)
    assert Counter(again.bodies) == Counter(after)
    assert Counter(first.bodies) == Counter(before)
    assert consumer.client_id == client_id


def test_the_default_instance_keeps_its_client_id(
    face: Face, name: str, options: dict[str, Any]
) -> None:
    send(face, name, 1)
    received = Received()
    consumer = face.consumer(name, name, received.handle, **options)
    assert consumer.client_id.endswith("@DEFAULT")
    received.wait_for(1)


@pytest.mark.parametrize("orderly", [False, True])
def test_what_a_listener_refuses_is_not_delivered_again(
    face: Face, name: str, options: dict[str, Any], orderly: bool
) -> None:
    send(face, name, 10)
    received = Received(ConsumeResult.RECONSUME_LATER)
    options |= {"orderly": orderly, "max_reconsume_times": 0, "instance_name": name}
    consumer = face.consumer(name, name, received.handle, **options)
    received.wait_for(10)
    received.answer = ConsumeResult.SUCCESS
    more = send(face, name, 5, "more")
    eventually(lambda: set(more) <= set(received.bodies))
    assert max(Counter(received.bodies).values()) == 1
    assert all(queue.topic == name for queue in consumer.assigned_queues())
