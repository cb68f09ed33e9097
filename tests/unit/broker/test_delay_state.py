"""After a restart, the state file and the log tell what was delivered."""

from __future__ import annotations

import shutil
import struct

import pytest
from tests.unit.broker.delay_box import DelayBox

from cometmq.broker.delays.state import DelayState, encode_timer_check
from cometmq.broker.delays.timer_progress import Segment
from cometmq.model import names
from cometmq.model.topic import DataVersion
from cometmq.protocol.fastjson.dialect import decode_body, pretty
from cometmq.protocol.messages.ids import pack_host


def capture(delays: DelayBox) -> DelayState:
    """Return the state as it is read back from its file."""
    text = pretty(delays.delayed.capture(DataVersion(3, 0, 4)))
    return decode_body(text.encode(), DelayState)


def kill(delays: DelayBox, state: DelayState | None, java_timer_check: bytes = b"") -> None:
    delays.box.crash(delays.store)
    delays.open(state, java_timer_check)


def put_all(delays: DelayBox) -> None:
    for number in range(6):
        properties = {"DELAY": "1"} if number % 2 else {"TIMER_DELAY_MS": str(900 + number)}
        delays.put({**properties, "UNIQ_KEY": f"U{number}"}, body=b"%d" % number)


@pytest.mark.parametrize("saved", ["never", "before", "half-way"])
@pytest.mark.parametrize("delivered", range(8))
def test_a_kill_between_two_deliveries_doubles_none(
    delays: DelayBox, saved: str, delivered: int
) -> None:
    put_all(delays)
    state = None if saved == "never" else capture(delays)
    delays.clock.value += 1_000
    for _ in range(delivered):
        delays.delayed.run(delays.clock.value, 1)
        if saved == "half-way" and len(delays.bodies()) == 3:
            state = capture(delays)
    kill(delays, state)
    assert delays.delayed.pending == 6 - len(delays.bodies())
    delays.run_at(10_000)
    assert sorted(delays.bodies()) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_the_state_file_is_java_s_with_more(delays: DelayBox) -> None:
    put_all(delays)
    delays.run_at(1_000)
    delays.put({"TIMER_DELAY_SEC": "60"})
    delays.put({"DELAY": "3"})
    state = capture(delays)
    assert state.offset_table == {1: 3}
    assert state.commit_log_offset == delays.store.commit_log.end
    assert state.timer_segments == (Segment(0, delays.start_ms, 2**62),)
    assert state.timer_floor == 3


def test_a_state_from_the_future_of_a_log_that_was_restored_is_not_believed(
    delays: DelayBox,
) -> None:
    put_all(delays)
    end = delays.store.commit_log.end
    state = DelayState(
        offset_table={},
        commit_log_offset=end + 1,
        timer_segments=(Segment(0, delays.start_ms + 99_000, 2**62),),
        timer_floor=99,
    )
    kill(delays, state)
    delays.run_at(10_000)
    assert len(delays.bodies()) == 6


def test_a_store_that_a_java_broker_had_last(delays: DelayBox) -> None:
    """Its delayOffset.json has no entries of ours; what it did with timers is in timercheck."""
    for number in range(4):
        delays.put({"DELAY": "1", "UNIQ_KEY": f"L{number}"}, body=b"level-%d" % number)
        delays.put({"TIMER_DELAY_SEC": str(2 + number)}, body=b"timer-%d" % number)
    # Slots below +4 s were delivered, of the first three messages of the queue.
    head = struct.pack(">qqqqqqq", delays.start_ms + 4_000, 0, 3, 3, 0, 0, 0)
    kill(delays, DelayState(offset_table={1: 2}), head.ljust(4096, b"\0"))
    assert delays.delayed.levels.pending()[1] == 2
    assert delays.delayed.timers.pending == 1
    delays.run_at(60_000)
    assert delays.bodies() == [b"level-2", b"level-3", b"timer-3"]


def test_units_that_a_java_broker_wrote_tell_their_time_by_their_record(delays: DelayBox) -> None:
    for number in range(3):
        delays.put({"TIMER_DELAY_SEC": "5", "UNIQ_KEY": f"U{number}"}, body=b"%d" % number)
    delays.put({"TIMER_DELAY_SEC": "5", "TIMER_DEL_UNIQKEY": "orders+U1", "UNIQ_KEY": "U1"})
    queue = delays.store.queue(names.TIMER_TOPIC, 0)
    for offset in range(4):  # Java: the hash of the tags
        file = queue.files.find(offset * 20)
        assert file is not None
        file.map[offset * 20 + 12 : offset * 20 + 20] = struct.pack(">q", 2598919)
    delays.store.close()
    delays.open(None)
    assert delays.delayed.pending == 3
    delays.run_at(4_999)
    assert delays.bodies() == []
    delays.run_at(5_000)
    assert delays.bodies() == [b"0", b"2"]


def test_consume_queues_rebuilt_from_the_log_tell_the_same_times(delays: DelayBox) -> None:
    delays.put({"TIMER_DELAY_SEC": "5", "TAGS": "a"})
    delays.put({"TIMER_DELAY_SEC": "5", "TIMER_DEL_UNIQKEY": "orders+U9", "UNIQ_KEY": "U9"})
    delays.put({"DELAY": "2", "TAGS": "a"})

    def units() -> list[object]:
        timers = delays.store.queue(names.TIMER_TOPIC, 0)
        return [
            timers.unit(0),
            timers.unit(1),
            delays.store.queue(names.SCHEDULE_TOPIC, 1).unit(0),
        ]

    before = units()
    delays.store.close()
    shutil.rmtree(delays.box.root / "consumequeue")
    delays.open(None)
    assert units() == before


def test_a_timer_record_without_a_time_is_left_out(delays: DelayBox) -> None:
    queue = delays.store.queue(names.TIMER_TOPIC, 0)
    delays.store.append(queue, b"x", b"REAL_TOPIC\x01orders\x02", 0, 1, pack_host("10.0.0.1", 1))
    delays.put({"TIMER_DELAY_SEC": "1"})
    kill(delays, None)
    assert delays.delayed.pending == 1
    delays.run_at(5_000)
    assert len(delays.bodies()) == 1


def test_a_java_broker_is_told_where_to_go_on(delays: DelayBox) -> None:
    for number in (2, 3, 9):
        delays.put({"TIMER_DELAY_SEC": str(number)}, body=b"%d" % number)
    delays.run_at(3_000)
    state = delays.delayed.capture(DataVersion(5, 0, 6))
    data = encode_timer_check(state, 1_000)
    # Next slot to read, no timer log, the queue from the first message that waits, data version.
    expected = (delays.start_ms + 3_000, 0, 2, 2, 0, 6, 5)
    assert struct.unpack(">qqqqqqq", data) == expected
    delays.run_at(9_000)
    state = delays.delayed.capture(DataVersion())
    assert struct.unpack(">qqqqqqq", encode_timer_check(state, 1_000))[2] == 3
