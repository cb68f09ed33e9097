"""Test where and when consumers keep their offsets: by both faces, at the broker and in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received, member_of
from tests.integration.raw_client import RawClient
from tests.waits import eventually

from cometmq import ConsumeFromWhere, Message, MessageModel, MessageQueue
from cometmq.protocol.fastjson.queue_table import decode_queue_table

FIRST = ConsumeFromWhere.FIRST_OFFSET
QUERY_CONSUMER_OFFSET, GET_ROUTE = 14, 105
Stored = Callable[[str, str], int | None]

ORDERLY = pytest.mark.parametrize("orderly", [False, True])
# SOON_S stands for the 5 s between two commits. With NEVER_S only the occasion under test commits.
SOON_S, NEVER_S = 0.05, 3600.0


pytestmark = [pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0"})]


@pytest.fixture
def every(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that sets how often offsets are committed."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr("cometmq.client.consuming.push_member.PERSIST_INTERVAL_S", seconds)

    return set_to


@pytest.fixture
def stored(namesrv: str) -> Stored:
    """Return a function that returns a group's offset in queue 0 as the broker has it."""

    def ask(group: str, topic: str) -> int | None:
        ext = {"consumerGroup": group, "topic": topic, "queueId": 0, "setZeroIfNotFound": "false"}
        with RawClient(namesrv) as client:
            route = json.loads(client.ask(GET_ROUTE, {"topic": topic}).body)
        with RawClient(route["brokerDatas"][0]["brokerAddrs"]["0"]) as client:
            answer = client.ask(QUERY_CONSUMER_OFFSET, ext)
        return int(answer.ext["offset"]) if answer.code == 0 else None

    return ask


def fill(face: Face, topic: str, count: int) -> None:
    producer = face.producer(f"{topic}-fill")
    for i in range(count):
        producer.send(Message(topic, b"%d" % i), queue=MessageQueue(topic, "broker-a", 0))


def consumed(face: Face, name: str, count: int, **options: Any) -> Any:
    """Return a consumer that is done with the `count` messages that were sent for it."""
    fill(face, name, count)
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST, **options)
    last = max(message.queue_offset for message in received.wait_for(count))
    # A message counts as consumed a moment after the listener has it.
    offsets = member_of(consumer).membership.offsets
    eventually(lambda: offsets.get(MessageQueue(name, "broker-a", 0)) == last + 1)
    return consumer


def test_the_default_is_five_seconds() -> None:
    from cometmq.client.consuming.push_member import PERSIST_INTERVAL_S

    assert PERSIST_INTERVAL_S == 5.0


@ORDERLY
def test_a_running_consumer_commits_from_time_to_time(
    face: Face, name: str, stored: Stored, every: Callable[[float], None], orderly: bool
) -> None:
    every(SOON_S)
    consumed(face, name, 7, orderly=orderly)
    eventually(lambda: stored(name, name) == 7)


@ORDERLY
def test_a_close_commits(
    face: Face, name: str, stored: Stored, every: Callable[[float], None], orderly: bool
) -> None:
    every(NEVER_S)
    consumed(face, name, 7, orderly=orderly).close()
    assert stored(name, name) == 7


@ORDERLY
def test_a_queue_that_is_given_up_is_committed(
    face: Face, name: str, stored: Stored, every: Callable[[float], None], orderly: bool
) -> None:
    every(NEVER_S)
    consumed(face, name, 7, orderly=orderly).unsubscribe(name)
    eventually(lambda: stored(name, name) == 7)


@ORDERLY
def test_a_rebalance_commits_what_another_member_gets(
    face: Face, name: str, stored: Stored, every: Callable[[float], None], orderly: bool
) -> None:
    every(NEVER_S)
    # The last in order gets the last queues, so queue 0 stays with who is named first.
    late = Received()
    first = consumed(face, name, 7, instance_name=f"{name}-b", orderly=orderly)
    other = face.consumer(
        name, name, late.handle, consume_from=FIRST, instance_name=f"{name}-a", orderly=orderly
    )
    mine = MessageQueue(name, "broker-a", 0)
    # Each member rebalances when it hears of the other, so for a moment both may hold the queue.
    eventually(lambda: mine in other.assigned_queues())
    eventually(lambda: mine not in first.assigned_queues())
    eventually(lambda: stored(name, name) == 7)


def broadcasting(directory: Path) -> dict[str, Any]:
    return {"message_model": MessageModel.BROADCASTING, "local_offset_dir": directory}


def offsets_in(file: Path) -> dict[int, int]:
    """Return the offsets by queue id, as Java's client would read them."""
    try:
        text = file.read_text()
    except FileNotFoundError:  # not yet, or it is being replaced just now
        return {}
    table = decode_queue_table(text.encode(), "offsetTable", int)
    return {queue.queue_id: offset for queue, offset in table.items()}


@ORDERLY
def test_a_broadcasting_consumer_writes_its_file_from_time_to_time(
    face: Face,
    name: str,
    stored: Stored,
    every: Callable[[float], None],
    orderly: bool,
    tmp_path: Path,
) -> None:
    every(SOON_S)
    fill(face, name, 3)
    received = Received()
    options = broadcasting(tmp_path)
    consumer = face.consumer(
        name, name, received.handle, consume_from=FIRST, orderly=orderly, **options
    )
    file = tmp_path / consumer.client_id / name / "offsets.json"
    received.wait_for(3)
    eventually(lambda: offsets_in(file).get(0) == 3)
    fill(face, name, 2)
    received.wait_for(5)
    eventually(lambda: offsets_in(file).get(0) == 5)
    # The file is written only when something is new, so the file before it differs.
    assert offsets_in(file.with_name("offsets.json.bak")) != offsets_in(file)
    assert stored(name, name) is None  # the broker has none of them


def test_a_broadcasting_consumer_goes_on_from_the_backup(
    face: Face, name: str, every: Callable[[float], None], tmp_path: Path
) -> None:
    every(NEVER_S)
    options = broadcasting(tmp_path)
    for count in (3, 2):
        consumer = consumed(face, name, count, **options)
        file = tmp_path / consumer.client_id / name / "offsets.json"
        consumer.close()
    assert offsets_in(file)[0] == 5
    assert offsets_in(file.with_name("offsets.json.bak"))[0] == 3
    file.write_text('{"offsetTable":{')  # cut off, as by a full disk
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST, **options)
    received.wait_for(2)
    # Two listeners may run at once, so either may come first.
    assert sorted(message.queue_offset for message in received.messages) == [3, 4]
