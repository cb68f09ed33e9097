"""Timed messages: their slots, their window in memory, recalls, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.unit.broker.delay_box import DelayBox, Failing, connection, request

from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays.timer_progress import Segment, TimerProgress
from cometmq.broker.refusal import Refused
from cometmq.errors import StoreBusyError
from cometmq.model import names
from cometmq.model.sysflag import PERM_READ
from cometmq.model.topic import TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.headers import RecallMessageRequestHeader
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.recall_handle import RecallHandle

DAY_MS = 86_400_000


def at(delays: DelayBox, after_ms: int) -> dict[str, str]:
    return {"TIMER_DELIVER_MS": str(delays.start_ms + after_ms)}


def test_a_timed_message_waits_in_the_timer_topic(delays: DelayBox) -> None:
    delays.put({"TIMER_DELAY_MS": "2500", "TAGS": "paid"})
    (waiting,) = delays.records(names.TIMER_TOPIC, 0)
    slot = delays.start_ms + 2_000
    assert decode_properties(waiting.properties) == {
        "UNIQ_KEY": "U1",
        "TAGS": "paid",
        "TIMER_DELAY_MS": "2500",
        "TIMER_OUT_MS": str(slot),
        "REAL_TOPIC": "orders",
        "REAL_QID": "2",
    }
    unit = delays.store.queue(names.TIMER_TOPIC, 0).unit(0)
    assert unit is not None
    assert unit.tags_code == slot
    assert delays.delayed.pending == 1


@pytest.mark.parametrize(
    ("wanted_ms", "comes_ms"),
    [(1, 1_000), (999, 1_000), (1_000, 1_000), (1_001, 2_000), (2_000, 2_000), (2_500, 3_000)],
)
def test_it_comes_when_it_was_wanted_or_less_than_the_precision_later(
    delays: DelayBox, wanted_ms: int, comes_ms: int
) -> None:
    delays.put(at(delays, wanted_ms))
    delays.run_at(comes_ms - 1)
    assert delays.records() == []
    assert delays.delayed.next_due_ms() == delays.start_ms + comes_ms
    delays.run_at(comes_ms)
    (record,) = delays.records()
    properties = decode_properties(record.properties)
    assert properties["TIMER_ENQUEUE_MS"] == str(delays.start_ms)
    assert properties["TIMER_DEQUEUE_MS"] == str(delays.start_ms + comes_ms)
    assert properties["TIMER_DELIVER_MS"] == str(delays.start_ms + wanted_ms)
    assert delays.delayed.pending == 0


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_MS": "-5000"},
        {"TIMER_DELIVER_MS": "1"},
        # What was delivered once is not delayed again.
        {"TIMER_DELAY_SEC": "9", "TIMER_OUT_MS": "1"},
    ],
)
def test_what_is_due_already_is_not_delayed(delays: DelayBox, properties: dict[str, str]) -> None:
    delays.put(properties)
    assert len(delays.records()) == 1


def test_seconds_count_before_milliseconds_and_these_before_a_time(delays: DelayBox) -> None:
    delays.put({"TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "5000", **at(delays, 9_000)}, body=b"sec")
    delays.put({"TIMER_DELAY_MS": "5000", **at(delays, 9_000)}, body=b"ms")
    delays.run_at(1_000)
    assert delays.bodies() == [b"sec"]
    delays.run_at(5_000)
    assert delays.bodies() == [b"sec", b"ms"]


def test_a_level_counts_before_all_of_them(delays: DelayBox) -> None:
    delays.put({"DELAY": "1", "TIMER_DELAY_SEC": "60"})
    (waiting,) = delays.records(names.SCHEDULE_TOPIC, 0)
    assert "TIMER_DELAY_SEC" not in waiting.properties
    delays.run_at(1_000)
    assert len(delays.records()) == 1


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"TIMER_DELAY_SEC": "259201"}, "TIMER_DELAY_SEC=259201 is 259201000ms from now"),
        ({"TIMER_DELAY_MS": "259200001"}, "TIMER_DELAY_MS=259200001 is 259200001ms from now"),
        ({"TIMER_DELIVER_MS": str(2**63 - 1)}, "from now; the limit is timerMaxDelaySec"),
        ({"TIMER_DELAY_SEC": str(2**63 - 1)}, "from now; the limit is timerMaxDelaySec"),
        ({"TIMER_DELAY_SEC": str(2**63)}, "is no number of 64 bits"),
        ({"TIMER_DELAY_MS": "soon"}, "TIMER_DELAY_MS=soon is no number"),
        ({"TIMER_DELIVER_MS": "1e9"}, "is no number"),
        ({"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "orders+U1"}, "nothing can be recalled"),
    ],
)
def test_a_time_that_cannot_be_is_refused_with_the_limit(
    delays: DelayBox, properties: dict[str, str], reason: str
) -> None:
    with pytest.raises(Refused, match="bigger than the max delay 259200000ms") as refusal:
        delays.put(properties)
    assert reason in str(refusal.value)
    assert refusal.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert delays.store.commit_log.end == 0


def test_the_longest_delay_is_taken(delays: DelayBox) -> None:
    delays.put({"TIMER_DELAY_SEC": "259200"})
    delays.run_at(3 * DAY_MS - 1)
    assert delays.records() == []
    delays.run_at(3 * DAY_MS)
    assert len(delays.records()) == 1


def test_timers_can_be_switched_off(tmp_path: Path) -> None:
    delays = DelayBox(tmp_path, config=BrokerConfig(timer_wheel_enable=False))
    with pytest.raises(Refused, match="timerWheelEnable is false"):
        delays.put({"TIMER_DELAY_SEC": "1"})
    delays.box.close()


def test_how_late_timers_are_is_no_time_since_1970_while_they_scan_or_deliver(
    delays: DelayBox,
) -> None:
    delays.store.close()
    delays.open(None, window_ms=60_000)
    for after_ms in (1_000, 1_000, 3_600_000):
        delays.put(at(delays, after_ms))
    later_ms = delays.start_ms + 5_000
    timers = delays.delayed.timers
    assert timers.late_ms(delays.start_ms) == 0
    assert timers.late_ms(later_ms) == 4_000
    timers.run(later_ms, 1)
    assert (timers.pending, timers.late_ms(later_ms)) == (2, 4_000)
    delays.run_at(5_000)
    assert (timers.pending, timers.late_ms(later_ms)) == (1, 0)
    timers.window.move(delays.start_ms + 3_590_000)
    assert timers.next_due_ms() == 0
    assert timers.late_ms(delays.start_ms + 3_590_000) == 0


# -- the window --


def test_a_far_future_takes_no_memory(delays: DelayBox) -> None:
    delays.store.close()
    delays.open(None, window_ms=60_000)
    for hours in range(1, 50):
        delays.put({"TIMER_DELAY_SEC": str(hours * 3600)}, body=b"%d" % hours)
    assert delays.delayed.timers.window.loaded == 0
    assert delays.delayed.pending == 49
    for hours in range(1, 50):
        delays.run_at(hours * 3_600_000 - 1)
        assert len(delays.bodies()) == hours - 1
        delays.run_at(hours * 3_600_000)
        assert delays.bodies()[-1] == b"%d" % hours


def test_memory_is_bounded_and_order_kept(delays: DelayBox) -> None:
    delays.store.close()
    delays.open(None, window_ms=3_600_000, max_loaded=100)
    wanted = random.Random(1).choices(range(1, 300_000), k=1_000)
    for number, after_ms in enumerate(wanted):
        delays.put(at(delays, after_ms), body=b"%d" % number)
        assert delays.delayed.timers.window.loaded <= 100
    loaded = []
    for second in range(1, 301):
        delays.run_at(second * 1_000)
        loaded.append(delays.delayed.timers.window.loaded)
        assert len(delays.bodies()) == sum(after_ms <= second * 1_000 for after_ms in wanted)
    assert max(loaded) <= 100
    assert sorted(map(int, delays.bodies())) == list(range(1_000))


def test_a_window_cut_short_is_not_scanned_for_in_vain(delays: DelayBox) -> None:
    """It was, without end, when its last slot had held more than half of its room."""
    delays.store.close()
    delays.open(None, max_loaded=10)
    for number in range(30):
        delays.put(at(delays, 60_000 if number < 4 else 90_000), body=b"%d" % number)
    delays.run_at(1_000)
    assert delays.delayed.run(delays.clock.value, 100) == 0
    assert delays.delayed.timers.window.loaded == 4
    delays.run_at(60_000)
    assert len(delays.bodies()) == 4
    delays.run_at(90_000)
    assert len(delays.bodies()) == 30


def test_a_clock_set_far_ahead_skips_nothing(delays: DelayBox) -> None:
    for hours in (1, 20, 40, 60):
        delays.put({"TIMER_DELAY_SEC": str(hours * 3600)}, body=b"%d" % hours)
    delays.run_at(3 * DAY_MS)
    assert delays.bodies() == [b"1", b"20", b"40", b"60"]


def test_a_write_that_fails_is_repeated_alone(delays: DelayBox) -> None:
    for body in (b"a", b"b", b"c"):
        delays.put({"TIMER_DELAY_MS": "1000"}, body=body)
    failing = Failing(delays, StoreBusyError("the disk is behind"), b"b")
    delays.run_at(1_000)
    assert delays.bodies() == [b"a"]
    assert delays.delayed.next_due_ms() == delays.start_ms + 2_000
    assert delays.delayed.pending == 2
    failing.fails.clear()
    delays.run_at(2_000)
    assert delays.bodies() == [b"a", b"b", b"c"]


def test_a_recalled_message_stops_none_of_its_second(delays: DelayBox) -> None:
    for number in range(20):
        values = {"TIMER_DELAY_MS": "5000", "UNIQ_KEY": f"U{number}"}
        delays.put(values, body=b"%d" % number)
        # Others are due at another time: the queue offsets of those above have gaps.
        delays.put({"TIMER_DELAY_MS": "9000"}, topic="later")
    for number in (0, 7, 8, 19):
        recall(delays, handle(delays, 5_000, f"U{number}"))
    delays.run_at(7_000)
    assert delays.bodies() == [b"%d" % n for n in range(20) if n not in (0, 7, 8, 19)]
    assert delays.delayed.pending == 20


def test_a_clock_set_back_loses_nothing(delays: DelayBox) -> None:
    delays.put({"TIMER_DELAY_SEC": "10"}, body=b"old")
    delays.put({"TIMER_DELAY_SEC": "20"}, body=b"older")
    delays.run_at(10_000)
    delays.clock.value -= 8_000
    delays.put({"TIMER_DELAY_SEC": "3"}, body=b"new")
    state = delays.delayed.capture(delays.topics.data_version)
    assert len(state.timer_segments) == 2
    delays.box.crash(delays.store)
    delays.open(state)
    delays.run_at(4_999)
    assert delays.bodies() == [b"old"]
    delays.run_at(5_000)
    assert delays.bodies() == [b"old", b"new"]
    delays.run_at(20_000)
    assert delays.bodies() == [b"old", b"new", b"older"]
    assert len(delays.delayed.timers.progress.segments) == 1


# -- progress --


def test_progress_knows_what_is_done() -> None:
    progress = TimerProgress()
    progress.advance(5_000, 7)
    assert progress.is_done(4_000, 99)
    assert progress.is_done(5_000, 7)
    assert not progress.is_done(5_000, 8)
    assert not progress.is_slot_done(5_000, 3)
    progress.finish(5_000)
    assert progress.is_slot_done(5_000, 3)
    progress.arrived(5_000, 20)
    assert not progress.is_done(5_000, 20)
    assert progress.is_done(5_000, 19)
    progress.advance(7_000, 10)
    assert progress.is_done(6_000, 20)
    assert progress.copy() == (Segment(0, 7_000, 10),)


# -- recalls --


def recall(delays: DelayBox, handle: str, topic: str = "orders") -> RemotingCommand:
    delays.topics.put(TopicConfig(topic_name="orders"))
    header = RecallMessageRequestHeader(topic=topic, recall_handle=handle, producer_group="pg")
    return delays.recall.recall(connection(), request(RequestCode.RECALL_MESSAGE, header))


def handle(delays: DelayBox, after_ms: int, unique_id: str = "U1", topic: str = "orders") -> str:
    slot = delays.delayed.timers.slot_of(delays.start_ms + after_ms)
    return RecallHandle(topic, "b", slot + 1, unique_id).encode()


@pytest.mark.parametrize(("with_topic", "key"), [(False, "U1"), (True, "orders+U1")])
def test_a_recalled_message_does_not_come(delays: DelayBox, with_topic: bool, key: str) -> None:
    """The key is the one that Java's brokers look for: 5.5 the bare id, 5.2 and 5.3 the topic with it."""
    delays.config.append_topic_for_timer_delete_key = with_topic
    delays.put({**at(delays, 3_500), "UNIQ_KEY": "U1"}, body=b"recalled")
    delays.put({**at(delays, 3_600), "UNIQ_KEY": "U2"}, body=b"not")
    delays.put({**at(delays, 3_700), "UNIQ_KEY": "U1"}, body=b"another topic", topic="audit")
    answer = recall(delays, handle(delays, 3_500))
    assert (answer.code, answer.ext["msgId"]) == (ResponseCode.SUCCESS, "U1")
    order = delays.records(names.TIMER_TOPIC, 0)[-1]
    assert decode_properties(order.properties)["TIMER_DEL_UNIQKEY"] == key
    delays.run_at(10_000)
    assert delays.bodies() == [b"not"]
    assert delays.bodies("audit") == [b"another topic"]
    assert delays.delayed.pending == 0


def test_a_recall_survives_a_kill(delays: DelayBox) -> None:
    delays.put(at(delays, 3_500))
    recall(delays, handle(delays, 3_500))
    for _ in range(3):
        delays.box.crash(delays.store)
        delays.open(None)
    delays.run_at(10_000)
    assert delays.records() == []


@pytest.mark.parametrize("key", ["orders+U1", "U1", "audit+U1"])
def test_a_message_of_another_topic_recalls_nothing(delays: DelayBox, key: str) -> None:
    """Any send may have the property of a recall, so who may send to one topic called back the messages
    of all others.
    """
    delays.put({**at(delays, 3_500), "UNIQ_KEY": "U1"}, body=b"wanted")
    delays.put({**at(delays, 3_500), "UNIQ_KEY": "U2", "TIMER_DEL_UNIQKEY": key}, topic="audit")
    delays.run_at(4_000)
    assert [record.body for record in delays.records()] == [b"wanted"]


@pytest.mark.parametrize("key", ["orders+U1", "U1"])
def test_a_message_of_its_own_topic_recalls_it(delays: DelayBox, key: str) -> None:
    """As Java's clients did before there was a request for it; those before 5.2 give the id alone."""
    delays.put({**at(delays, 3_500), "UNIQ_KEY": "U1"}, body=b"recalled")
    delays.put({**at(delays, 3_500), "UNIQ_KEY": "U2", "TIMER_DEL_UNIQKEY": key})
    delays.run_at(4_000)
    assert delays.records() == []


def test_many_recalls_of_one_second_are_read_in_steps(delays: DelayBox) -> None:
    """A hundred thousand of them, for nothing, held the loop for seconds."""
    delays.put({**at(delays, 3_500), "UNIQ_KEY": "U7"}, body=b"recalled")
    delays.put({**at(delays, 3_500), "UNIQ_KEY": "kept"}, body=b"kept")
    for number in range(10):
        recall(delays, handle(delays, 3_500, f"U{number}" * 1_000 if number < 7 else f"U{number}"))
    now_ms = delays.start_ms + 4_000
    reads = [delays.delayed.timers.run(now_ms, 4) for _ in range(3)]
    assert reads == [4, 4, 4]
    assert len(delays.records()) <= 1
    while delays.delayed.timers.run(now_ms, 4):
        pass
    assert [record.body for record in delays.records()] == [b"kept"]


def test_a_recall_of_nothing_succeeds(delays: DelayBox) -> None:
    assert recall(delays, handle(delays, 60_000, "unknown")).code == ResponseCode.SUCCESS


def test_a_handle_is_what_java_makes_of_it(delays: DelayBox) -> None:
    text = RecallHandle("orders", "b", 1700000003001, "U1").encode()
    assert text == "djEgb3JkZXJzIGIgMTcwMDAwMDAwMzAwMSBVMQ=="
    assert RecallHandle.decode(text) == RecallHandle("orders", "b", 1700000003001, "U1")


@pytest.mark.parametrize(
    "text",
    ["", "!", "djE", "djEgb3JkZXJz", RecallHandle("t", "b", 1, "u").encode()[4:], "é", "AAAA"],
)
def test_a_text_that_is_no_handle_is_refused(delays: DelayBox, text: str) -> None:
    with pytest.raises(Refused, match="recall handle is invalid") as refusal:
        recall(delays, text)
    assert refusal.value.code == ResponseCode.ILLEGAL_OPERATION


def test_a_recall_that_cannot_be_is_refused(delays: DelayBox) -> None:
    with pytest.raises(Refused, match="topic not match"):
        recall(delays, handle(delays, 5_000, topic="audit"))
    with pytest.raises(Refused, match="ask broker other"):
        recall(delays, RecallHandle("orders", "other", delays.start_ms + 5_000, "U1").encode())
    with pytest.raises(Refused, match="timestamp invalid"):
        recall(delays, handle(delays, -5_000))
    with pytest.raises(Refused, match="fewer than timerMaxDelaySec=259200"):
        recall(delays, handle(delays, 4 * DAY_MS))
    with pytest.raises(Refused, match=r"the topic\[nowhere\] not exist") as refusal:
        recall(delays, handle(delays, 5_000), "nowhere")
    assert refusal.value.code == ResponseCode.TOPIC_NOT_EXIST
    delays.config.broker_permission = PERM_READ
    with pytest.raises(Refused, match="brokerPermission is 4"):
        recall(delays, handle(delays, 5_000))
    delays.config.recall_message_enable = False
    with pytest.raises(Refused, match="recallMessageEnable is false") as refusal:
        recall(delays, handle(delays, 5_000))
    assert refusal.value.code == ResponseCode.NO_PERMISSION
