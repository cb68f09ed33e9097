"""Flip bits on a broker's disk: what consumers get then, and what they and the broker say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.integration.raw_client import RawClient
from tests.waits import WAIT_S, eventually

from cometmq import ConsumeFromWhere, DamagedMessage, Message, MessageExt, MessageQueue, SendResult
from cometmq.errors import DamagedMessageError
from cometmq.protocol.fastjson.queue_table import with_text_keys
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.store.queues.consume_queue import UNIT_SIZE
from cometmq.testing.cluster import Cluster

FIRST = {"consume_from": ConsumeFromWhere.FIRST_OFFSET}
# Tags codes are left out: see test_store_damaged_units.
UNIT_BITS = 96
_RUNTIME_INFO = 28
_CONSUMER_RUNNING_INFO = 307
_CONSUMER_LIST = 38


pytestmark = [
    pytest.mark.cluster(
        properties={"accessMessageInMemoryMaxRatio": "0", "messageDelayLevel": "1s 1s 1s 1s 1s"}
    )
]


def fill(face: Face, topic: str, count: int, queue_id: int = 0) -> list[SendResult]:
    producer = face.producer(f"{topic}-fill-{queue_id}")
    queue = MessageQueue(topic, "broker-a", queue_id)
    results = [producer.send(Message(topic, b"%d" % i), queue=queue) for i in range(count)]
    face.until_readable(results[-1])
    return results


def store_of(cluster: Cluster) -> Path:
    return Path(cluster.directory) / "broker-a"


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def record_bytes(cluster: Cluster, result: SendResult) -> tuple[int, bytes]:
    """Return where the message lies in the log, and its bytes there."""
    place = parse_offset_id(result.offset_msg_id).commit_log_offset
    with (store_of(cluster) / "commitlog" / f"{0:020d}").open("rb") as file:
        file.seek(place)
        size = int.from_bytes(file.read(4), "big")
        file.seek(place)
        return place, file.read(size)


def damage_body(cluster: Cluster, result: SendResult) -> tuple[int, bytes]:
    place, _ = record_bytes(cluster, result)
    flip(store_of(cluster) / "commitlog" / f"{0:020d}", (place + 88) * 8)
    return record_bytes(cluster, result)


def broker_says(cluster: Cluster) -> dict[str, str]:
    with RawClient(f"127.0.0.1:{cluster.brokers[0].port}") as client:
        table: dict[str, str] = json.loads(client.ask(_RUNTIME_INFO, {}).body)["table"]
        return table


def running_properties(cluster: Cluster, group: str) -> dict[str, str]:
    """Return what the broker hears when it asks the group's only member."""
    with RawClient(f"127.0.0.1:{cluster.brokers[0].port}") as client:
        answer = client.ask(_CONSUMER_LIST, {"consumerGroup": group})
        (client_id,) = json.loads(answer.body)["consumerIdList"]
        fields = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        info: Any = json.loads(with_text_keys(client.ask(_CONSUMER_RUNNING_INFO, fields).body))
        properties: dict[str, str] = info["properties"]
        return properties


def bodies(count: int, *, without: int) -> list[bytes]:
    return [b"%d" % i for i in range(count) if i != without]


def test_a_flipped_bit_of_any_unit_costs_no_message(
    cluster: Cluster, face: Face, name: str
) -> None:
    count = 3 * UNIT_BITS
    fill(face, name, count)
    units = store_of(cluster) / "consumequeue" / name / "0" / f"{0:020d}"
    good = units.read_bytes()
    before = broker_says(cluster)
    for bit in range(UNIT_BITS):
        flip(units, (3 * bit + 1) * UNIT_SIZE * 8 + bit)
    assert units.read_bytes() != good
    received = Received()
    consumer = face.consumer(f"{name}-g", name, received.handle, **FIRST)
    received.wait_for(count)
    assert sorted(received.bodies, key=int) == [b"%d" % i for i in range(count)]
    assert units.read_bytes() == good
    after = broker_says(cluster)
    mended = "consumeQueueUnitsRepaired"
    assert int(after[mended]) - int(before[mended]) == UNIT_BITS
    assert after["messagesFoundLost"] == before["messagesFoundLost"]
    assert consumer.damage_counts().skipped == 0


def test_a_damaged_body_goes_to_the_dead_letters_with_its_bytes_and_its_origin(
    cluster: Cluster, face: Face, name: str
) -> None:
    results = fill(face, name, 5)
    place, raw = damage_body(cluster, results[2])
    group = f"{name}-g"
    received = Received()
    consumer = face.consumer(group, name, received.handle, **FIRST)
    received.wait_for(4)
    assert sorted(received.bodies) == bodies(5, without=2)
    letter = dead_letter(face, group)
    assert letter.body == raw
    reported = {
        key: letter.properties[key] for key in letter.properties if key.startswith("DAMAGED_")
    }
    assert reported == {
        "DAMAGED_TOPIC": name,
        "DAMAGED_BROKER": "broker-a",
        "DAMAGED_QUEUE_ID": "0",
        "DAMAGED_QUEUE_OFFSET": "2",
        "DAMAGED_COMMIT_LOG_OFFSET": str(place),
        "DAMAGED_SIZE": str(len(raw)),
        "DAMAGED_REASON": "the body contradicts its CRC",
    }
    eventually(lambda: consumer.damage_counts().dead_lettered == 1)
    assert running_properties(cluster, group)["damagedDeadLettered"] == "1"
    consumer.close()
    # All offsets are committed: the next member gets only new messages.
    again = Received()
    face.consumer(group, name, again.handle, **FIRST)
    face.producer(f"{name}-more").send(Message(name, b"new"), queue=results[0].queue)
    again.wait_for(1)
    assert again.bodies == [b"new"]


def dead_letter(face: Face, group: str) -> MessageExt:
    reader = face.started(face.new_lite_pull_consumer(f"{group}-reader"))
    queue = MessageQueue(f"%DLQ%{group}", "broker-a", 0)

    def read() -> list[MessageExt]:
        try:
            messages: list[MessageExt] = reader.pull(queue, 0).messages
        except Exception:  # noqa: BLE001 - the topic is made with its first letter
            return []
        return messages

    letters: list[MessageExt] = eventually(read)
    assert len(letters) == 1
    return letters[0]


@pytest.mark.parametrize("orderly", [False, True])
def test_stop_keeps_the_queue_at_the_damaged_message_and_says_so(
    cluster: Cluster, face: Face, name: str, orderly: bool
) -> None:
    results = fill(face, name, 5)
    damage_body(cluster, results[2])
    group = f"{name}-g"
    received = Received()
    options = {**FIRST, "orderly": orderly}
    consumer = face.consumer(
        group, name, received.handle, on_damaged=DamagedMessage.STOP, **options
    )
    stopped = {results[2].queue: 2}
    eventually(lambda: consumer.damage_counts().stopped == stopped)
    fill(face, name, 3, queue_id=1)
    # The other queues are still consumed.
    received.wait_for(5)
    assert sorted(received.bodies) == [b"0", b"0", b"1", b"1", b"2"]
    assert running_properties(cluster, group)["damagedStoppedQueues"] == f"{name}/broker-a/0@2"
    consumer.close()
    # No offset from there on was committed.
    rest = Received()
    consumer = face.consumer(group, name, rest.handle, on_damaged=DamagedMessage.SKIP, **options)
    rest.wait_for(2)
    assert sorted(rest.bodies) == [b"3", b"4"]
    assert consumer.damage_counts().skipped == 1


def test_skip_goes_past_and_counts(cluster: Cluster, face: Face, name: str) -> None:
    results = fill(face, name, 5)
    damage_body(cluster, results[4])
    group = f"{name}-g"
    received = Received()
    consumer = face.consumer(group, name, received.handle, on_damaged=DamagedMessage.SKIP, **FIRST)
    received.wait_for(4)
    eventually(lambda: consumer.damage_counts().skipped == 1)
    properties = running_properties(cluster, group)
    assert (properties["onDamaged"], properties["damagedSkipped"]) == ("skip", "1")


def test_a_damaged_head_is_passed_over_by_the_broker(
    cluster: Cluster, face: Face, name: str
) -> None:
    results = fill(face, name, 5)
    before = int(broker_says(cluster)["messagesFoundLost"])
    place, _ = record_bytes(cluster, results[2])
    flip(store_of(cluster) / "commitlog" / f"{0:020d}", (place + 5) * 8)
    received = Received()
    face.consumer(f"{name}-g", name, received.handle, **FIRST)
    received.wait_for(4)
    assert sorted(received.bodies) == bodies(5, without=2)
    assert int(broker_says(cluster)["messagesFoundLost"]) == before + 1
    # Make the log whole again for tests that check it later.
    flip(store_of(cluster) / "commitlog" / f"{0:020d}", (place + 5) * 8)


@pytest.mark.parametrize("position", [39, 84, 87, 89])
def test_a_record_that_cannot_be_one_is_passed_by_the_consumer(
    cluster: Cluster, face: Face, name: str, position: int
) -> None:
    """Flip the bit of an IPv6 host, of the body's length, or of the topic's length.

    The broker's look at the head does not see these.
    """
    results = fill(face, name, 5)
    path = store_of(cluster) / "commitlog" / f"{0:020d}"
    place, _ = record_bytes(cluster, results[2])
    bit = (place + position) * 8 + 4
    flip(path, bit)
    _, raw = record_bytes(cluster, results[2])
    received = Received()
    consumer = face.consumer(f"{name}-g", name, received.handle, **FIRST)
    received.wait_for(4)
    assert sorted(received.bodies) == bodies(5, without=2)
    letter = dead_letter(face, f"{name}-g")
    assert letter.body == raw
    assert letter.properties["DAMAGED_QUEUE_OFFSET"] == "2"
    eventually(lambda: consumer.damage_counts().dead_lettered == 1)
    flip(path, bit)


def test_a_poll_tells_of_a_damaged_message_once_and_seek_goes_on(
    cluster: Cluster, face: Face, name: str
) -> None:
    results = fill(face, name, 5)
    _, raw = damage_body(cluster, results[2])
    queue = results[0].queue
    consumer = face.new_lite_pull_consumer(f"{name}-g", on_damaged=DamagedMessage.STOP)
    consumer.assign([queue])
    face.started(consumer)
    consumer.seek_to_begin(queue)
    polled: list[bytes] = []

    def poll_for_ever() -> None:
        while True:
            polled.extend(message.body for message in consumer.poll(int(WAIT_S * 1000)))

    with pytest.raises(DamagedMessageError, match="offset 2") as caught:
        poll_for_ever()
    assert (caught.value.queue_offset, caught.value.data) == (2, raw)
    assert polled == [b"0", b"1"]
    assert consumer.damage_counts().stopped == {queue: 2}
    assert consumer.poll(100) == []
    consumer.seek(queue, 3)
    while len(polled) < 4:
        polled += [message.body for message in consumer.poll(int(WAIT_S * 1000))]
    assert polled == [b"0", b"1", b"3", b"4"]
    assert consumer.damage_counts().stopped == {}
    # A single pull returns what lies in front of the damage, and only then reports it.
    assert [message.body for message in consumer.pull(queue, 0).messages] == [b"0", b"1"]
    assert consumer.pull(queue, 0).next_begin_offset == 2
    with pytest.raises(DamagedMessageError):
        consumer.pull(queue, 2)


def test_a_lite_pull_consumer_leaves_damaged_messages_out_and_counts(
    cluster: Cluster, face: Face, name: str
) -> None:
    results = fill(face, name, 5)
    damage_body(cluster, results[0])
    queue = results[0].queue
    consumer = face.new_lite_pull_consumer(f"{name}-g")
    consumer.assign([queue])
    face.started(consumer)
    consumer.seek_to_begin(queue)
    polled: list[bytes] = []
    while len(polled) < 4:
        polled += [message.body for message in consumer.poll(int(WAIT_S * 1000))]
    assert polled == bodies(5, without=0)
    assert consumer.damage_counts().skipped >= 1
    assert len(consumer.pull(queue, 0).messages) == 4


def test_a_lite_pull_consumer_has_no_dead_letters(face: Face) -> None:
    with pytest.raises(ValueError, match=r"on_damaged is DamagedMessage\.DEAD_LETTER"):
        face.new_lite_pull_consumer("g", on_damaged=DamagedMessage.DEAD_LETTER)
