"""Scenarios of Apache's own suite for clients that pop without a heartbeat, in virtual time.

Java: BatchAckIT, NotificationIT, OffsetResetForPopIT, PopBigMessageIT, PopMessageAndForwardingIT and PopOrderlyIT.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.pop_peer import (
    ACK,
    BATCH_ACK,
    CHANGE,
    GROUP,
    NOTHING_FOUND,
    NOTIFICATION,
    POP,
    Popped,
    pop_ext,
    popped,
)
from tests.integration.raw_client import RawClient, properties, send_ext
from tests.waits import CLOCK

from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.pop.bodies import BatchAck, BatchAckMessageRequestBody, encode_bits
from cometmq.testing import Cluster

pytestmark = pytest.mark.faces("virtual")

SEND, CREATE_TOPIC, UPDATE_OFFSET, CONSUME_STATS, RESET = 10, 17, 15, 208, 222
COMPRESSED = 1
SECOND = 1_000

one_queue = pytest.mark.parametrize("topic", [1], indirect=True)


@pytest.fixture
def raw(cluster: Cluster) -> Iterator[RawClient]:
    with RawClient(cluster.brokers[0].address) as raw:
        yield raw


@pytest.fixture
def topic(raw: RawClient, name: str, request: pytest.FixtureRequest) -> str:
    """A topic of eight queues, of one where a test says so."""
    queues = getattr(request, "param", 8)
    ext = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    assert raw.ask(CREATE_TOPIC, ext).code == 0
    return name


def fill(raw: RawClient, topic: str, count: int, queues: int = 8) -> None:
    for number in range(count):
        answer = raw.ask(SEND, send_ext(topic, queueId=number % queues), b"%d" % number)
        assert answer.code == 0, answer


def pop(raw: RawClient, topic: str, **fields: Any) -> list[Popped]:
    """Pop, for 30 s if need be."""
    ext = pop_ext(topic, **{"pollTime": 30 * SECOND, "bornTime": CLOCK.now_ms(), **fields})
    return popped(raw.ask(POP, ext))


def counts(raw: RawClient, topic: str, **fields: Any) -> list[tuple[int, int]]:
    """Pop in order; return offsets and how often each message was delivered before, as a client finds it."""
    ext = pop_ext(topic, order="true", pollTime=30 * SECOND, bornTime=CLOCK.now_ms(), **fields)
    answer = raw.ask(POP, ext)
    known: dict[int, int] = defaultdict(int)
    for entry in answer.ext["orderCountInfo"].split(";"):
        _, place, count = entry.split(" ")
        if place.startswith("qo"):
            known[int(place.partition("%")[2])] = int(count)
    return [(each.record.queue_offset, known[each.record.queue_offset]) for each in popped(answer)]


def batch_of(messages: list[Popped]) -> bytes:
    entries: dict[tuple[int, str, int], list[Popped]] = defaultdict(list)
    for each in messages:
        handle = each.handle
        entries[handle.queue_id, str(handle.mark), handle.pop_time].append(each)
    acks = []
    for (queue_id, mark, pop_time), found in entries.items():
        offsets = [each.record.queue_offset for each in found]
        handle = found[0].handle
        acks.append(
            BatchAck(
                GROUP, found[0].record.topic, mark, min(offsets), queue_id, handle.revive_qid, pop_time,
                handle.invisible_time, encode_bits(min(offsets), offsets),
            )
        )  # fmt: skip
    return encode_body(BatchAckMessageRequestBody("b", acks))


@pytest.mark.parametrize("order", ["false", "true"])
def test_a_batch_acknowledges_what_came_again_too(raw: RawClient, topic: str, order: str) -> None:
    fields = {"order": order, "maxMsgNums": 30, "invisibleTime": 3 * SECOND, "pollTime": 0}
    fill(raw, topic, 10)
    assert len(pop(raw, topic, **fields)) == 10
    CLOCK.sleep(6)
    fill(raw, topic, 20)
    messages: list[Popped] = []
    while len(messages) < 30:
        messages += pop(raw, topic, **fields)
    again = Counter(each.record.topic == topic for each in messages)
    assert again == {True: 30}
    assert raw.ask(BATCH_ACK, {}, batch_of(messages)).code == 0
    CLOCK.sleep(6)
    assert raw.ask(POP, pop_ext(topic, **fields)).code == NOTHING_FOUND


@one_queue
def test_messages_popped_one_at_a_time_come_in_order(raw: RawClient, topic: str) -> None:
    fill(raw, topic, 10, queues=1)
    bodies: list[bytes] = []
    message: Popped | None = None
    for _ in range(10):
        waits = raw.send(
            POP,
            pop_ext(
                topic, order="true", maxMsgNums=1, invisibleTime=3 * SECOND, pollTime=30 * SECOND,
                bornTime=CLOCK.now_ms(),
            ),
        )  # fmt: skip
        if message is not None:
            CLOCK.sleep(0.1)
            assert raw.ask(ACK, message.ext()).code == 0
        (message,) = popped(raw.answer(waits))
        bodies.append(message.body)
    assert bodies == [b"%d" % number for number in range(10)]


@one_queue
def test_messages_in_order_that_nobody_acknowledges_come_again(raw: RawClient, topic: str) -> None:
    fill(raw, topic, 10, queues=1)
    fields = {"maxMsgNums": 5, "invisibleTime": 3 * SECOND}
    assert counts(raw, topic, **fields) == [(offset, 0) for offset in range(5)]
    assert counts(raw, topic, **fields) == [(offset, 1) for offset in range(5)]


@one_queue
def test_messages_in_order_are_acknowledged_one_by_one_from_the_first(
    raw: RawClient, topic: str
) -> None:
    fill(raw, topic, 6, queues=1)
    for message in pop(raw, topic, order="true", maxMsgNums=3):
        assert raw.ask(ACK, message.ext()).code == 0
    rest = pop(raw, topic, order="true", maxMsgNums=3)
    assert [each.record.queue_offset for each in rest] == [3, 4, 5]


@one_queue
def test_a_message_in_order_is_hidden_for_longer(raw: RawClient, topic: str) -> None:
    fill(raw, topic, 1, queues=1)
    (message,) = pop(raw, topic, order="true", invisibleTime=3 * SECOND)
    began_ms = CLOCK.now_ms()
    assert raw.ask(CHANGE, message.ext(invisibleTime=5 * SECOND)).code == 0
    assert counts(raw, topic) == [(0, 1)]
    assert CLOCK.now_ms() - began_ms >= 5 * SECOND


@one_queue
def test_a_message_acknowledged_behind_one_that_is_hidden_comes_again_with_it(
    raw: RawClient, topic: str
) -> None:
    fill(raw, topic, 4, queues=1)
    fields = {"maxMsgNums": 3, "invisibleTime": 5 * SECOND}
    first, second, third = pop(raw, topic, order="true", **fields)
    for message in (first, third):
        assert raw.ask(ACK, message.ext()).code == 0
    assert raw.ask(CHANGE, second.ext(invisibleTime=3 * SECOND)).code == 0
    assert counts(raw, topic, **fields) == [(1, 1), (2, 1), (3, 0)]


@one_queue
def test_an_attempt_that_is_repeated_gets_its_messages_at_once(raw: RawClient, topic: str) -> None:
    fill(raw, topic, 1, queues=1)
    times: list[int] = []
    waited: list[bool] = []
    for attempt_id in (None, "one", "one", "two", "two", None):
        began_ms = CLOCK.now_ms()
        fields = {} if attempt_id is None else {"attemptId": attempt_id}
        [(_, count)] = counts(raw, topic, maxMsgNums=3, invisibleTime=10 * SECOND, **fields)
        times.append(count)
        waited.append(CLOCK.now_ms() - began_ms >= 5 * SECOND)
    assert times == [0, 1, 1, 2, 2, 3]
    assert waited == [False, True, False, True, False, True]


def test_news_in_order_goes_to_the_attempt_that_has_the_messages(
    raw: RawClient, topic: str
) -> None:
    def ask(attempt_id: str) -> int:
        return raw.send(
            NOTIFICATION,
            {
                "consumerGroup": GROUP,
                "topic": topic,
                "queueId": -1,
                "pollTime": 500,
                "bornTime": CLOCK.now_ms(),
                "order": "true",
                "attemptId": attempt_id,
            },
        )

    one, two = ask("attempt"), ask("attempt")
    fill(raw, topic, 1)
    assert raw.answer(one).ext["hasMsg"] == "true"
    assert len(pop(raw, topic, order="true", attemptId="attempt", pollTime=0)) == 1
    assert raw.answer(two).ext["hasMsg"] == "true"
    assert raw.answer(ask("another")).ext["hasMsg"] == "false"


def test_a_compressed_message_comes_again_compressed(raw: RawClient, topic: str) -> None:
    body = zlib.compress(bytes(3 * 1024 * 1024))
    assert raw.ask(SEND, send_ext(topic, sysFlag=COMPRESSED), body).code == 0
    for times in range(2):
        (message,) = pop(raw, topic, invisibleTime=3 * SECOND)
        assert message.record.sys_flag & COMPRESSED
        assert message.record.reconsume_times == times
        assert message.body == body


def test_a_message_that_is_forwarded_gets_a_handle_of_its_own(raw: RawClient, topic: str) -> None:
    old = properties({"POP_CK": "0 1 3000 0 0 elsewhere 3 0", "UNIQ_KEY": "1"})
    assert raw.ask(SEND, send_ext(topic, properties=old), b"0").code == 0
    (message,) = pop(raw, topic)
    found = decode_properties(message.record.properties)
    assert (found.get("POP_CK"), found["UNIQ_KEY"]) == (None, "1")


# Resets


def reset(raw: RawClient, topic: str, offset: int) -> None:
    """Move the group, as resetOffsetByQueueId of Java's tools does."""
    place = {"topic": topic, "queueId": 0}
    commit = {"consumerGroup": GROUP, "commitOffset": offset, **place}
    assert raw.ask(UPDATE_OFFSET, commit).code == 0
    ext = {"group": GROUP, "timestamp": 0, "isForce": "true", "offset": offset, **place}
    assert raw.ask(RESET, ext).code == 0


@one_queue
@pytest.mark.parametrize("order", ["false", "true"])
def test_a_reset_moves_a_group_that_has_popped(raw: RawClient, topic: str, order: str) -> None:
    fill(raw, topic, 10, queues=1)
    before = pop(raw, topic, order=order)
    assert len(before) == 10
    CLOCK.sleep(0.01)
    reset(raw, topic, 4)
    stats = raw.ask(CONSUME_STATS, {"consumerGroup": GROUP, "topic": topic})
    assert b'"consumerOffset":4' in stats.body
    after = pop(raw, topic, order=order)
    assert [each.record.queue_offset for each in after] == [4, 5, 6, 7, 8, 9]
    # By their old handles they are not acknowledged.
    for message in before:
        assert raw.ask(ACK, message.ext()).code == 0
    fill(raw, topic, 1, queues=1)
    if order == "true":
        assert pop(raw, topic, order=order, pollTime=0) == []
    for message in after:
        assert raw.ask(ACK, message.ext()).code == 0
    assert [each.record.queue_offset for each in pop(raw, topic, order=order)] == [10]


@one_queue
@pytest.mark.parametrize("order", ["false", "true"])
@pytest.mark.parametrize(
    ("taken", "resets", "expected"),
    [
        (1, [5], [0, 5, 6, 7, 8, 9]),
        (1, [3, 5], [0, 5, 6, 7, 8, 9]),
        (5, [3], [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 8, 9]),
        (5, [3, 1], [0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_resets_amid_pops_count_once_each(
    raw: RawClient, topic: str, order: str, taken: int, resets: list[int], expected: list[int]
) -> None:
    """The last of several resets counts, and no acknowledgement moves the group away from it."""
    fill(raw, topic, 10, queues=1)
    offsets: list[int] = []
    while len(offsets) < len(expected):
        for message in pop(raw, topic, order=order, maxMsgNums=1, pollTime=5 * SECOND):
            offsets.append(message.record.queue_offset)
            if len(offsets) == taken:
                for offset in resets:
                    reset(raw, topic, offset)
            assert raw.ask(ACK, message.ext()).code == 0
    CLOCK.sleep(3)
    assert pop(raw, topic, order=order, pollTime=0) == []
    assert offsets == expected
