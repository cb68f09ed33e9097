"""Messages that a consumer sends back, and messages sent to a retry topic."""

from __future__ import annotations

import pytest
from tests.unit.broker.delay_box import DelayBox, connection, request
from tests.unit.store.store_box import damage_body

from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.refusal import Refused
from cometmq.broker.retries import budget
from cometmq.broker.retries.budget import RetryBudget
from cometmq.broker.retries.max_reconsume import RetryLimits
from cometmq.broker.retries.retry import RetryHandler
from cometmq.model import names
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.sysflag import PERM_READ
from cometmq.model.topic import TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.headers import ConsumerSendMsgBackRequestHeader
from cometmq.protocol.messages.ids import encode_offset_id
from cometmq.protocol.messages.properties import (
    MAX_PROPERTIES_LENGTH,
    decode_properties,
    encode_properties,
)
from cometmq.protocol.messages.record import StoredRecord
from cometmq.runtime.randomness import Randomness

GROUP = "audit"


def send_back(
    delays: DelayBox,
    offset: int,
    *,
    group: str = GROUP,
    version: int = 479,
    delay_level: int = 0,
    max_reconsume_times: int | None = 16,
    msg_id: str | None = None,
) -> int:
    header = ConsumerSendMsgBackRequestHeader(
        offset=offset,
        group=group,
        delay_level=delay_level,
        max_reconsume_times=max_reconsume_times,
        origin_msg_id=msg_id,
    )
    call = request(RequestCode.CONSUMER_SEND_MSG_BACK, header, version)
    answer = delays.retry.send_back(connection(), call)
    assert isinstance(answer, RemotingCommand)
    return answer.code


def retried(delays: DelayBox) -> list[StoredRecord]:
    return delays.records(names.retry_topic(GROUP), 0)


def dead(delays: DelayBox) -> list[StoredRecord]:
    return delays.records(names.dlq_topic(GROUP), 0)


def test_a_message_comes_again_with_all_it_had(delays: DelayBox) -> None:
    place = delays.put({"TAGS": "paid", "KEYS": "k", "mine": "1"}, flag=9, sys_flag=1)
    first = delays.record(place)
    assert send_back(delays, place) == ResponseCode.SUCCESS
    assert retried(delays) == []
    delays.run_at(10_000)
    (again,) = retried(delays)
    assert (again.body, again.flag, again.sys_flag) == (b"body", 9, 1)
    assert (again.born_timestamp, again.born_host) == (first.born_timestamp, first.born_host)
    assert again.reconsume_times == 1
    offset_id = encode_offset_id(first.store_host, place)
    assert decode_properties(again.properties) == {
        "UNIQ_KEY": "U1",
        "TAGS": "paid",
        "KEYS": "k",
        "mine": "1",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": offset_id,
        "WAIT": "false",
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%audit",
        "REAL_QID": "0",
    }


def test_another_message_at_the_offset_does_not_come_again_instead(delays: DelayBox) -> None:
    place = delays.put({})
    with pytest.raises(Refused) as refused:
        send_back(delays, place, msg_id="7F00000100002A9F0000000000000BAD")
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert "another message than 7F00000100002A9F0000000000000BAD begins" in str(refused.value)
    delays.run_at(10_000)
    assert retried(delays) == []
    # Clients name a message by either of its ids.
    offset_id = encode_offset_id(delays.record(place).store_host, place)
    for msg_id in ("U1", offset_id, offset_id.lower()):
        assert send_back(delays, place, msg_id=msg_id) == ResponseCode.SUCCESS
    delays.run_at(60_000)
    assert len(retried(delays)) == 3


def test_a_message_that_the_disk_has_altered_does_not_come_again(delays: DelayBox) -> None:
    place = delays.put({})
    damage_body(delays.store, place)
    with pytest.raises(Refused, match="contradicts its CRC"):
        send_back(delays, place)
    delays.run_at(10_000)
    assert retried(delays) == []


def test_a_java_consumer_sends_a_message_back_by_the_id_of_its_batch(delays: DelayBox) -> None:
    """It was refused as another message, once the message's own id counted."""
    place = delays.put_of_java_batch("A" * 32, "B" * 32)
    for msg_id in ("A" * 32, "B" * 32):
        assert send_back(delays, place, msg_id=msg_id) == ResponseCode.SUCCESS
    with pytest.raises(Refused, match="another message than"):
        send_back(delays, place, msg_id="C" * 32)
    delays.run_at(60_000)
    ids = [decode_properties(record.properties)["UNIQ_KEY"] for record in retried(delays)]
    assert ids == ["A" * 32] * 2


def test_each_retry_waits_longer_and_the_last_is_a_dead_letter(delays: DelayBox) -> None:
    place = delays.put({})
    first_id = encode_offset_id(delays.record(place).store_host, place)
    after_ms = 0
    for times, delay_ms in enumerate((10_000, 20_000, 30_000, 30_000)):
        assert send_back(delays, place, max_reconsume_times=4) == ResponseCode.SUCCESS
        after_ms += delay_ms
        delays.run_at(after_ms - 1)
        assert len(retried(delays)) == times
        delays.run_at(after_ms)
        record = retried(delays)[-1]
        place = record.physical_offset
        assert record.reconsume_times == times + 1
    assert dead(delays) == []
    send_back(delays, place, max_reconsume_times=4)
    (record,) = dead(delays)
    properties = decode_properties(record.properties)
    assert properties["UNIQ_KEY"] == "U1"
    assert properties["RETRY_TOPIC"] == "orders"
    assert properties["ORIGIN_MESSAGE_ID"] == first_id
    assert properties["DELAY"] == "0"
    assert record.reconsume_times == 5
    topic = delays.topics.get("%DLQ%audit")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
    assert delays.delayed.pending == 0


def test_the_consumer_may_choose_the_level_or_give_up(delays: DelayBox) -> None:
    place = delays.put({})
    send_back(delays, place, delay_level=1)
    delays.run_at(1_000)
    assert len(retried(delays)) == 1
    send_back(delays, place, delay_level=-1)
    assert len(dead(delays)) == 1


def test_the_group_s_number_counts_when_the_consumer_names_none(delays: DelayBox) -> None:
    delays.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_max_times=2))
    place = delays.put({}, reconsume_times=2)
    # Before 3.4.9 clients did not say.
    send_back(delays, place, version=120, max_reconsume_times=99)
    assert len(dead(delays)) == 1
    send_back(delays, place, max_reconsume_times=99)
    assert len(dead(delays)) == 1
    send_back(delays, place, max_reconsume_times=2)
    assert len(dead(delays)) == 2


def test_a_timed_message_that_failed_waits_by_level(delays: DelayBox) -> None:
    delays.put({"TIMER_DELAY_SEC": "1"})
    delays.run_at(1_000)
    (record,) = delays.records()
    send_back(delays, record.physical_offset)
    delays.run_at(10_999)
    assert retried(delays) == []
    delays.run_at(11_000)
    assert len(retried(delays)) == 1
    send_back(delays, retried(delays)[0].physical_offset, delay_level=-1)
    assert len(dead(delays)) == 1


def test_what_cannot_be_sent_back_is_refused_in_java_s_order(delays: DelayBox) -> None:
    place = delays.put({})
    delays.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=1))
    for offset in (-1, place + 1, delays.store.commit_log.end, 2**60):
        with pytest.raises(Refused, match="look message by offset failed") as refusal:
            send_back(delays, offset)
        assert refusal.value.code == ResponseCode.SYSTEM_ERROR
    delays.topics.put(TopicConfig(topic_name="%RETRY%audit", perm=PERM_READ))
    with pytest.raises(Refused, match=r"the topic\[%RETRY%audit\] sending message is forbidden"):
        send_back(delays, -1)
    delays.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=0))
    end = delays.store.commit_log.end
    assert send_back(delays, -1) == ResponseCode.SUCCESS
    assert delays.store.commit_log.end == end
    delays.config.broker_permission = PERM_READ
    with pytest.raises(Refused, match="brokerPermission is 4") as refusal:
        send_back(delays, -1)
    assert refusal.value.code == ResponseCode.NO_PERMISSION
    delays.config.auto_create_subscription_group = False
    with pytest.raises(Refused) as refusal:
        send_back(delays, -1, group="unknown")
    assert refusal.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# -- sent to a retry topic --


def sent(times: int) -> IncomingMessage:
    return IncomingMessage(
        "%RETRY%audit", 0, b"x", {"DELAY": "3"}, 1, bytes(8), reconsume_times=times
    )


@pytest.mark.parametrize(
    ("times", "named", "topic"),
    [
        (16, None, "%RETRY%audit"),
        (17, None, "%DLQ%audit"),
        (3, 3, "%RETRY%audit"),
        (4, 3, "%DLQ%audit"),
    ],
)
def test_a_message_sent_too_often_becomes_a_dead_letter(
    delays: DelayBox, times: int, named: int | None, topic: str
) -> None:
    message = sent(times)
    delays.retry.redirect(message, named, 479)
    assert message.topic == topic
    buried = topic.startswith("%DLQ%")
    assert message.properties["DELAY"] == ("-1" if buried else "3")
    assert (delays.topics.get("%DLQ%audit") is not None) == buried
    delays.putting.put(message)
    assert (len(dead(delays)) == 1) == buried


def test_a_group_that_consumes_in_order_retries_no_more(delays: DelayBox) -> None:
    retry = RetryHandler(
        delays.config,
        delays.store,
        delays.topics,
        delays.groups,
        delays.putting,
        lambda group: group == GROUP,
        RetryLimits(lambda _: ()),
        Randomness(1),
        lambda _group, _topic: None,
        RetryBudget(lambda _group: 0),
    )
    message = sent(1)
    retry.redirect(message, None, 479)
    assert message.topic == "%DLQ%audit"


def test_a_message_named_again_and_again_is_stored_no_more_than_was_pulled(
    delays: DelayBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3,661 requests of 300 bytes that named one message of 200 KB stored 1,280 MiB."""
    monkeypatch.setattr(budget, "MAX_RETRY_BYTES_BEYOND_PULLS", 100_000)
    place = delays.put({}, body=bytes(20_000))
    begin = delays.store.commit_log.end
    for _ in range(5):
        assert send_back(delays, place) == ResponseCode.SUCCESS
    for _ in range(500):
        with pytest.raises(Refused) as refused:
            send_back(delays, place)
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        assert refused.value.limit == "MAX_RETRY_BYTES_BEYOND_PULLS"
    assert delays.store.commit_log.end - begin < 6 * 21_000
    # Retries of it are the same message, whichever is named.
    delays.run_at(10_000)
    again = retried(delays)[0].physical_offset
    with pytest.raises(Refused, match="left"):
        send_back(delays, again)
    # What members pull pays for what they send back, and another message was not sent back yet.
    delays.pulled_bytes = 21_000
    for _ in range(2):
        assert send_back(delays, again) == ResponseCode.SUCCESS
    with pytest.raises(Refused):
        send_back(delays, again)
    other = delays.put({"UNIQ_KEY": "U2"}, body=bytes(20_000))
    assert send_back(delays, other) == ResponseCode.SUCCESS


def test_a_group_that_fails_all_it_pulls_meets_no_limit(
    delays: DelayBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MAX_RETRY_BYTES_BEYOND_PULLS", 0)
    places = [delays.put({"UNIQ_KEY": f"U{number}"}, body=bytes(5_000)) for number in range(10)]
    for place in places:
        # Given out before the broker's start, so that it knows of no pull.
        assert send_back(delays, place) == ResponseCode.SUCCESS
    for _ in range(5):  # rebalances: each member pulls the same messages and fails
        for place in places:
            delays.pulled_bytes += len(delays.store.record_at(place) or b"")
            assert send_back(delays, place) == ResponseCode.SUCCESS


def near_the_limit(delays: DelayBox, missing: int) -> int:
    """Put a message whose properties lack `missing` bytes to the limit."""
    properties = {"UNIQ_KEY": "U1", "CLUSTER": "c" * 20, "MSG_REGION": "r" * 20, "TRACE_ON": "true"}
    room = MAX_PROPERTIES_LENGTH - missing - len(encode_properties({**properties, "long": ""}))
    return delays.put({**properties, "long": "x" * room})


def test_properties_near_the_limit_leave_room_for_a_retry(delays: DelayBox) -> None:
    """The retry was refused, and the client tried it again every five seconds for ever."""
    place = near_the_limit(delays, 167)
    assert send_back(delays, place) == ResponseCode.SUCCESS
    delays.run_at(10_000)
    (again,) = retried(delays)
    properties = decode_properties(again.properties)
    assert len(properties["long"]) > 32_000
    assert properties["RETRY_TOPIC"] == "orders"
    assert not dead(delays)


@pytest.mark.parametrize("missing", range(0, 160, 20))
def test_a_message_without_room_for_a_retry_is_a_dead_letter_that_says_what_it_lacks(
    delays: DelayBox, missing: int
) -> None:
    """It stopped its queue: 120 tries of 3, no dead letter, and 1,169 messages waited behind it."""
    place = near_the_limit(delays, missing)
    assert send_back(delays, place) == ResponseCode.SUCCESS
    delays.run_at(10_000)
    letters = [*retried(delays), *dead(delays)]
    assert len(letters) == 1
    properties = decode_properties(letters[0].properties)
    assert properties["UNIQ_KEY"] == "U1"
    assert properties["RETRY_TOPIC"] == "orders"
    assert "long" in properties or properties["LEFT_OUT_PROPERTIES"] == "long"


def test_what_a_client_sends_for_a_retry_becomes_a_dead_letter_if_it_is_too_long(
    delays: DelayBox,
) -> None:
    message = sent(1)
    message.properties["long"] = "x" * (MAX_PROPERTIES_LENGTH - 10)
    delays.retry.redirect(message, 16, 479)
    delays.putting.put(message)
    (letter,) = dead(delays)
    assert decode_properties(letter.properties)["LEFT_OUT_PROPERTIES"] == "long"


def test_a_groups_own_number_counts_for_a_consumer_that_names_none(delays: DelayBox) -> None:
    """A group with retryMaxTimes=2 had 16 retries, because the client sent its default."""
    delays.groups.put(SubscriptionGroupConfig(GROUP, retry_max_times=2))
    place = delays.put({})
    assert send_back(delays, place, max_reconsume_times=None) == ResponseCode.SUCCESS
    for after_ms in (10_000, 60_000):
        delays.run_at(after_ms)
        if records := retried(delays):
            send_back(delays, records[-1].physical_offset, max_reconsume_times=None)
    assert [record.reconsume_times for record in retried(delays)] == [1, 2]
    assert [record.reconsume_times for record in dead(delays)] == [3]
