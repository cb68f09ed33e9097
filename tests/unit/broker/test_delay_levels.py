"""Delay levels: where messages wait, when they come, and what failures do to them."""

from __future__ import annotations

import pytest
from tests.unit.broker.delay_box import DelayBox, Failing

from cometmq.broker.delays.levels import NEVER_MS, RETRY_MS
from cometmq.broker.refusal import Refused
from cometmq.errors import MessageIllegalError, StoreBusyError
from cometmq.model import names
from cometmq.model.java.hashing import java_hash
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.messages.properties import decode_properties


def test_a_message_waits_in_the_queue_of_its_level(delays: DelayBox) -> None:
    delays.put({"DELAY": "2", "TAGS": "paid"})
    (waiting,) = delays.records(names.SCHEDULE_TOPIC, 1)
    assert decode_properties(waiting.properties) == {
        "UNIQ_KEY": "U1",
        "DELAY": "2",
        "TAGS": "paid",
        "REAL_TOPIC": "orders",
        "REAL_QID": "2",
    }
    unit = delays.store.queue(names.SCHEDULE_TOPIC, 1).unit(0)
    assert unit is not None
    assert unit.tags_code == waiting.store_timestamp + 5_000
    assert delays.delayed.next_due_ms() == delays.start_ms + 5_000
    assert delays.dues == [delays.start_ms + 5_000]
    assert delays.delayed.levels.pending() == {1: 0, 2: 1, 3: 0, 4: 0, 5: 0}


def test_it_comes_when_its_time_is_over_as_it_was_sent(delays: DelayBox) -> None:
    place = delays.put({"DELAY": "2", "TAGS": "paid"}, flag=5, sys_flag=1, reconsume_times=3)
    delays.run_at(4_999)
    assert delays.records() == []
    delays.run_at(5_000)
    (record,) = delays.records()
    assert (record.body, record.flag, record.sys_flag, record.reconsume_times) == (b"body", 5, 1, 3)
    assert (record.born_timestamp, record.born_host) == (77, delays.record(place).born_host)
    assert record.properties == delays.record(place).properties
    assert record.prepared_transaction_offset == 0
    unit = delays.store.queue("orders", 2).unit(0)
    assert unit is not None
    assert unit.tags_code == java_hash("paid")
    assert delays.delayed.next_due_ms() == NEVER_MS
    assert delays.delayed.levels.offsets() == {2: 1}


def test_a_message_that_cannot_be_read_yet_does_not_come_early(
    delays: DelayBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With transientStorePoolEnable and a full disk, units wait in memory and are not readable."""

    def unreadable(*_: object) -> None:
        raise StoreBusyError("it waits in the pool")

    delays.put({"DELAY": "2"})
    delays.run_at(4_000)
    delays.put({"DELAY": "2"})
    with monkeypatch.context() as patch:
        patch.setattr(delays.store.mender, "unit", unreadable)
        delays.run_at(5_000)
        assert len(delays.records()) == 1
        delays.run_at(5_000 + 2 * RETRY_MS)
    delays.run_at(8_999)
    assert len(delays.records()) == 1
    delays.run_at(9_000)
    assert len(delays.records()) == 2


def test_a_level_above_the_highest_is_the_highest(delays: DelayBox) -> None:
    delays.put({"DELAY": "99"})
    (waiting,) = delays.records(names.SCHEDULE_TOPIC, 4)
    assert decode_properties(waiting.properties)["DELAY"] == "5"


@pytest.mark.parametrize("level", ["0", "-1", "-2147483648"])
def test_a_level_that_is_not_positive_delays_nothing(delays: DelayBox, level: str) -> None:
    delays.put({"DELAY": level})
    assert len(delays.records()) == 1


@pytest.mark.parametrize("level", ["", "two", "1.5", "2147483648", " 1", "9" * 20])
def test_a_level_that_is_no_number_is_refused(delays: DelayBox, level: str) -> None:
    with pytest.raises(Refused, match="a delay level is a number of 32 bits") as refusal:
        delays.put({"DELAY": level})
    assert refusal.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert delays.store.commit_log.end == 0


def test_levels_do_not_wait_for_each_other(delays: DelayBox) -> None:
    for level in ("5", "1", "3", "1"):
        delays.put({"DELAY": level}, body=level.encode())
    delays.run_at(10_000)
    assert delays.bodies() == [b"1", b"1", b"3"]


def test_a_limit_ends_a_turn_and_the_next_goes_on(delays: DelayBox) -> None:
    for number in range(250):
        delays.put({"DELAY": "1"}, body=b"%d" % number)
    delays.clock.value += 1_000
    counts = []
    while count := delays.delayed.run(delays.clock.value, 60):
        counts.append(count)
    assert sum(counts) == 250
    assert max(counts) == 60
    assert delays.bodies() == [b"%d" % number for number in range(250)]


def test_a_write_that_fails_is_repeated_alone(delays: DelayBox) -> None:
    for body in (b"a", b"b", b"c"):
        delays.put({"DELAY": "1"}, body=body)
    failing = Failing(delays, StoreBusyError("the disk is behind"), b"b")
    delays.run_at(1_000)
    assert delays.bodies() == [b"a"]
    assert delays.delayed.next_due_ms() == delays.start_ms + 2_000
    delays.run_at(1_999)
    assert delays.bodies() == [b"a"]
    failing.fails.clear()
    delays.run_at(2_000)
    assert delays.bodies() == [b"a", b"b", b"c"]


def test_a_level_that_fails_holds_up_no_other(delays: DelayBox) -> None:
    delays.put({"DELAY": "1"}, body=b"a")
    delays.put({"DELAY": "2"}, body=b"b")
    Failing(delays, StoreBusyError("the disk is behind"), b"a")
    delays.run_at(5_000)
    assert delays.bodies() == [b"b"]


def test_a_message_that_can_never_be_written_is_left_out(delays: DelayBox) -> None:
    for body in (b"a", b"b", b"c"):
        delays.put({"DELAY": "1"}, body=body)
    Failing(delays, MessageIllegalError("too large now"), b"b")
    delays.run_at(1_000)
    assert delays.bodies() == [b"a", b"c"]
    assert delays.delayed.pending == 0


def test_nothing_waits_longer_than_its_delay_after_the_clock_was_set_back(delays: DelayBox) -> None:
    delays.put({"DELAY": "2"})
    delays.run_at(-3_600_000)
    assert delays.delayed.next_due_ms() == delays.start_ms - 3_600_000 + 5_000
    delays.put({"DELAY": "1"}, body=b"later")
    delays.run_at(-3_600_000 + 999)
    assert delays.bodies() == []
    delays.run_at(-3_600_000 + 5_000)
    assert sorted(delays.bodies()) == [b"body", b"later"]


def test_a_level_table_that_shrinks_keeps_the_place_of_what_it_lost(delays: DelayBox) -> None:
    delays.delayed.levels.open({1: 0, 7: 12}, delays.clock.now_ms())
    assert delays.delayed.levels.offsets() == {7: 12}
