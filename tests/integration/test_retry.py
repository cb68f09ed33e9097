"""Messages that a consumer cannot handle: retried, given up, and the same to their user throughout."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from tests.integration.client_faces import Face, Received
from tests.waits import eventually

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt
from cometmq.testing import Cluster

FIRST = ConsumeFromWhere.FIRST_OFFSET


pytestmark = [
    pytest.mark.faces("virtual"),
    pytest.mark.cluster(properties={"messageDelayLevel": "1s 1s 1s 1s 1s 1s"}),
]


class FailsFirst(Received):
    """Refuses each message a given number of times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times
        self._seen: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def handle(self, messages: list[MessageExt]) -> ConsumeResult:
        super().handle(messages)
        with self._lock:
            failed = False
            for message in messages:
                seen = self._seen[message.body] = self._seen.get(message.body, 0) + 1
                failed |= seen <= self._times
        return ConsumeResult.RECONSUME_LATER if failed else ConsumeResult.SUCCESS


def test_a_message_that_failed_comes_again_and_is_the_same_to_its_user(
    face: Face, name: str
) -> None:
    received = FailsFirst(2)
    producer = face.producer(name)
    sent = producer.send(Message(name, b"x", tags="t", keys=["k"], properties={"mine": "1"}))
    face.consumer(name, name, received.handle, consume_from=FIRST)
    messages = received.wait_for(3)
    assert [message.reconsume_times for message in messages] == [0, 1, 2]
    for message in messages:
        assert message.msg_id == sent.msg_id
        assert (message.topic, message.tags, message.keys) == (name, "t", ("k",))
        assert message.properties["mine"] == "1"
    assert {message.properties.get("ORIGIN_MESSAGE_ID") for message in messages[1:]} == {
        sent.offset_msg_id
    }
    for earlier, later in pairwise(messages):
        assert later.store_timestamp_ms - earlier.store_timestamp_ms >= 1_000


@pytest.mark.faces("virtual", "blocking")
def test_after_max_times_it_is_a_dead_letter(face: Face, name: str) -> None:
    received = FailsFirst(99)
    producer = face.producer(name)
    sent = producer.send(Message(name, b"poison", keys=["k"]))
    face.consumer(name, name, received.handle, consume_from=FIRST, max_reconsume_times=2)
    received.wait_for(3)
    dead = Received()
    face.consumer(f"{name}-dlq", f"%DLQ%{name}", dead.handle, consume_from=FIRST)
    (letter,) = dead.wait_for(1)
    assert letter.body == b"poison"
    assert letter.msg_id == sent.msg_id
    assert letter.reconsume_times == 3
    assert letter.properties["RETRY_TOPIC"] == name
    assert letter.properties["ORIGIN_MESSAGE_ID"] == sent.offset_msg_id
    assert len(received.messages) == 3


def test_a_groups_number_counts_for_a_consumer_that_was_given_none(
    face: Face, cluster: Cluster, name: str
) -> None:
    """With retryMaxTimes=2 there were 16 retries: the consumer sent its default."""
    received = FailsFirst(99)
    face.producer(name).send(Message(name, b"poison"))
    face.consumer(name, name, received.handle, consume_from=FIRST)
    groups = cluster.brokers[0].groups
    eventually(lambda: groups.get(name) is not None)
    group = groups.get(name)
    assert group is not None
    group.retry_max_times = 1
    dead = Received()
    face.consumer(f"{name}-dlq", f"%DLQ%{name}", dead.handle, consume_from=FIRST)
    (letter,) = dead.wait_for(1)
    assert letter.reconsume_times == 2
    assert len(received.messages) == 2


def test_a_message_that_leaves_no_room_for_a_retry_does_not_stop_its_queue(
    face: Face, name: str
) -> None:
    """120 tries of 3 every five seconds, no dead letter, and 1,169 messages waited behind it."""
    received = FailsFirst(99)
    producer = face.producer(name)
    long = {"long": "x" * 32_600}
    queue = producer.send(Message(name, b"poison", properties=long)).queue
    for number in range(3):
        producer.send(Message(name, b"%d" % number), queue=queue)
    face.consumer(name, name, received.handle, consume_from=FIRST, max_reconsume_times=2)
    dead = Received()
    face.consumer(f"{name}-dlq", f"%DLQ%{name}", dead.handle, consume_from=FIRST)
    letters = {letter.body: letter.properties for letter in dead.wait_for(4)}
    assert set(letters) == {b"poison", b"0", b"1", b"2"}
    kept = letters[b"poison"]
    assert kept.get("long") == long["long"] or kept["LEFT_OUT_PROPERTIES"] == "long"
