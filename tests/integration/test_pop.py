"""Pop over the wire: every request of it, redelivery in virtual time, and what a broker knows after kill -9."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.pop_peer import (
    ACK,
    BATCH_ACK,
    CHANGE,
    GROUP,
    MINUTE_MS,
    NOTHING_FOUND,
    NOTIFICATION,
    PEEK,
    POLLING_INFO,
    POP,
    Popped,
    pop_ext,
    popped,
)
from tests.integration.raw_client import RawClient, send_ext
from tests.integration.server_processes import server_process
from tests.waits import CLOCK

from cometmq.protocol.bodies.cluster import SubscriptionGroupWrapper
from cometmq.protocol.fastjson.dialect import decode_body, encode_body
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import decode_records
from cometmq.protocol.pop.bodies import BatchAck, BatchAckMessageRequestBody, encode_bits
from cometmq.testing import Cluster

SEND, CREATE_TOPIC, ALL_GROUPS = 10, 17, 201
KEYS = {"autoCreateTopicEnable": "true"}

virtual = pytest.mark.faces("virtual")


@pytest.fixture
def raw(cluster: Cluster) -> Iterator[RawClient]:
    with RawClient(cluster.brokers[0].address) as raw:
        yield raw


def fill(raw: RawClient, topic: str, count: int, **fields: Any) -> None:
    for number in range(count):
        answer = raw.ask(SEND, send_ext(topic, **fields), b"%d" % number)
        assert answer.code == 0, answer


def pop(raw: RawClient, topic: str, **fields: Any) -> list[Popped]:
    return popped(raw.ask(POP, pop_ext(topic, **fields)))


@virtual
def test_every_request_over_the_wire(raw: RawClient, name: str) -> None:
    fill(raw, name, 6, queueId=0)
    about = {"consumerGroup": GROUP, "topic": name, "queueId": -1}
    waits = {"pollTime": 0, "bornTime": CLOCK.now_ms()}
    assert raw.ask(NOTIFICATION, {**about, **waits}).ext["hasMsg"] == "true"
    assert raw.ask(POLLING_INFO, about).ext["pollingNum"] == "0"
    peeked = raw.ask(PEEK, {**about, "maxMsgNums": 2})
    assert (peeked.code, peeked.ext["restNum"]) == (0, "6")
    assert [bytes(each.body) for each in decode_records(peeked.body)] == [b"0", b"1"]
    messages = pop(raw, name)
    assert [each.body for each in messages] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert raw.ask(NOTIFICATION, {**about, **waits}).ext["hasMsg"] == "false"
    assert raw.ask(ACK, messages[0].ext()).code == 0
    entry = BatchAck(
        GROUP, name, "0", 0, 0, 0, messages[0].handle.pop_time, 1, encode_bits(0, [1, 2, 3])
    )
    body = encode_body(BatchAckMessageRequestBody("b", [entry]))
    assert raw.ask(BATCH_ACK, {}, body).code == 0
    changed = raw.ask(CHANGE, messages[4].ext(invisibleTime=MINUTE_MS))
    assert (changed.code, changed.ext["invisibleTime"]) == (0, str(MINUTE_MS))
    # A delivery that does not count is for lite topics.
    refused = raw.ask(CHANGE, messages[5].ext(invisibleTime=MINUTE_MS, suspend="true"))
    assert refused.code == 1
    assert "suspend=true" in str(refused.remark)
    assert raw.ask(CHANGE, messages[5].ext(invisibleTime=MINUTE_MS, suspend="false")).code == 0
    assert raw.ask(POP, pop_ext(name)).code == NOTHING_FOUND
    assert raw.ask(PEEK, {**about, "maxMsgNums": 2}).code == 19


@virtual
def test_a_message_is_hidden_exactly_as_long_as_was_asked(raw: RawClient, name: str) -> None:
    fill(raw, name, 1)
    (first,) = pop(raw, name, invisibleTime=MINUTE_MS)
    CLOCK.sleep(MINUTE_MS / 1000 - 1)
    assert pop(raw, name) == []
    CLOCK.sleep(2)
    (second,) = pop(raw, name, invisibleTime=MINUTE_MS)
    assert second.record.reconsume_times == 1
    assert second.record.topic == name
    kept = decode_properties(second.record.properties)["1ST_POP_TIME"]
    assert kept == str(first.handle.pop_time)
    # It is late: the message was handed out again.
    assert raw.ask(ACK, first.ext()).code == 0
    CLOCK.sleep(MINUTE_MS / 1000 + 1)
    (third,) = pop(raw, name)
    assert third.record.reconsume_times == 2
    assert raw.ask(ACK, third.ext()).code == 0


@virtual
def test_all_answers_of_an_attempt_are_one_batch(raw: RawClient, name: str) -> None:
    """A client that repeats an attempt may get the answer of an earlier request, when the broker has served a later
    one: it has stood still, and the client has connected again.
    """
    fill(raw, name, 4, queueId=0)
    ext = pop_ext(name, order=True, queueId=0, attemptId="one", invisibleTime=MINUTE_MS)
    first = [raw.send(POP, {**ext, "maxMsgNums": count}) for count in (3, 1)]
    several, one = map(popped, map(raw.answer, first))
    assert [each.body for each in several] == [b"0", b"1", b"2"]
    assert [each.body for each in one] == [b"0"]
    changed = raw.ask(CHANGE, several[1].ext(invisibleTime=2 * MINUTE_MS))
    assert changed.ext["popTime"] == str(several[1].handle.pop_time)
    for message in (several[0], several[2], one[0]):
        assert raw.ask(ACK, message.ext()).code == 0
    assert pop(raw, name, order=True, queueId=0, attemptId="two") == []
    # The third stays acknowledged if the attempt is repeated once more, and the second stays in flight.
    again = pop(raw, name, order=True, queueId=0, attemptId="one", maxMsgNums=2)
    assert [each.body for each in again] == [b"1", b"2"]
    assert raw.ask(ACK, several[1].ext()).code == 0
    (last,) = pop(raw, name, order=True, queueId=0, attemptId="two")
    assert last.body == b"3"
    # Handles of the old attempt do nothing to the new one.
    assert raw.ask(CHANGE, several[1].ext(invisibleTime=1)).ext["popTime"] == "0"


@virtual
def test_a_pop_in_order_waits_only_for_messages_that_are_not_acknowledged(
    raw: RawClient, name: str
) -> None:
    """As Apache's PopOrderlyIT: the second of three is hidden for a shorter time, then the third acknowledged."""
    fill(raw, name, 4, queueId=0)
    first, second, third = pop(raw, name, order=True, maxMsgNums=3, invisibleTime=5_000)
    assert raw.ask(ACK, first.ext()).code == 0
    assert raw.ask(CHANGE, second.ext(invisibleTime=3_000)).code == 0
    assert raw.ask(ACK, third.ext()).code == 0
    began_ms = CLOCK.now_ms()
    waits = {"pollTime": MINUTE_MS, "bornTime": began_ms}
    again = popped(raw.ask(POP, pop_ext(name, order=True, maxMsgNums=3, **waits)))
    # The third one is in flight again, as in Java.
    assert [each.body for each in again] == [b"1", b"2", b"3"]
    assert 2_900 < CLOCK.now_ms() - began_ms < 3_500


@virtual
def test_a_message_wakes_the_pop_that_has_waited_longest(raw: RawClient, name: str) -> None:
    fill(raw, name, 1)
    assert len(pop(raw, name)) == 1
    opaques = [raw.send(POP, pop_ext(name, pollTime=20_000, bornTime=CLOCK.now_ms())) for _ in "ab"]
    fill(raw, name, 1)
    (message,) = popped(raw.answer(opaques[0]))
    assert message.body == b"0"
    fill(raw, name, 1)
    assert len(popped(raw.answer(opaques[1]))) == 1


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_is_in_flight_survives_kill_9(tmp_path: Path, flush: str) -> None:
    settings = {"flushDiskType": flush}
    with server_process("broker", tmp_path, settings=settings) as broker:
        broker.wait_until_served()
        with RawClient(broker.address) as raw:
            fill(raw, "orders", 8, queueId=0)
            fill(raw, "ordered", 3, queueId=0)
            messages = pop(raw, "orders", maxMsgNums=6)
            for message in (messages[0], messages[2]):
                assert raw.ask(ACK, message.ext()).code == 0
            soon = raw.ask(CHANGE, messages[1].ext(invisibleTime=0))
            assert soon.code == 0
            (again,) = popped(
                raw.ask(POP, pop_ext("orders", maxMsgNums=1, pollTime=MINUTE_MS, queueId=3))
            )
            in_order = pop(raw, "ordered", order=True, maxMsgNums=2)
            assert raw.ask(ACK, in_order[1].ext()).code == 0
        broker.process.kill()
        broker.process.wait()
    with server_process("broker", tmp_path, settings=settings) as broker:
        broker.wait_until_served()
        with RawClient(broker.address) as raw:
            # Only what nobody has got yet.
            assert [each.body for each in pop(raw, "orders")] == [b"6", b"7"]
            assert pop(raw, "ordered", order=True) == []
            for message in (*messages[3:], again):
                assert raw.ask(ACK, message.ext()).code == 0
            assert raw.ask(ACK, in_order[0].ext()).code == 0
            assert [each.body for each in pop(raw, "ordered", order=True)] == [b"2"]
            assert again.record.reconsume_times == 1


def test_lost_tables_take_no_retry_topic_of_a_group_that_pops_for_a_group(tmp_path: Path) -> None:
    """The start made a group `g_orders`: the retry topic has the name of the group and of a topic."""
    with server_process("broker", tmp_path) as broker:
        broker.wait_until_served()
        with RawClient(broker.address) as raw:
            fill(raw, "orders", 1, queueId=0)
            (message,) = pop(raw, "orders", maxMsgNums=1)
            assert raw.ask(CHANGE, message.ext(invisibleTime=0)).code == 0
            (again,) = popped(raw.ask(POP, pop_ext("orders", maxMsgNums=1, pollTime=MINUTE_MS)))
            assert again.record.reconsume_times == 1
        broker.process.kill()
        broker.process.wait()
    shutil.rmtree(tmp_path / "store" / "config")
    with server_process("broker", tmp_path) as broker:
        broker.wait_until_served()
        with RawClient(broker.address) as raw:
            answer = raw.ask(ALL_GROUPS, {})
            groups = decode_body(bytes(answer.body), SubscriptionGroupWrapper)
    assert GROUP in groups.subscription_group_table
    assert f"{GROUP}_orders" not in groups.subscription_group_table
