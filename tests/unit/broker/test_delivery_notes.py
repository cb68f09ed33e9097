"""Delivered messages have no marks: a restart reads from notes which ones were delivered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.delay_box import DelayBox
from tests.unit.store.store_box import CLIENT

from cometmq.broker.delays.delivery import Delivery
from cometmq.model import names
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record import StoredRecord, decode_record
from cometmq.store.delivery_note import encode_note, named_origins
from cometmq.store.log.following import LogFollower
from cometmq.store.offline.repair import check

LEVEL, TIMER = {"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}
LOG_FILE = 16 * 1024


@pytest.fixture
def delays(tmp_path: Path) -> Iterator[DelayBox]:
    delays = DelayBox(tmp_path / "store", mapped_file_size_commit_log=LOG_FILE)
    yield delays
    delays.box.close()


def kill(delays: DelayBox) -> None:
    """Kill the store, and start it again without saved progress, so that only the log says what
    was delivered.
    """
    delays.box.crash(delays.store)
    delays.open(None)


def cut_off(delays: DelayBox, place: int) -> None:
    """Lose the power: nothing behind the offset `place` has reached the disk."""
    delays.box.crash(delays.store)
    for path in delays.box.log_files:
        base = int(path.name)
        if base + LOG_FILE > place:
            data = path.read_bytes()
            kept = data[: max(place - base, 0)]
            path.write_bytes(kept + bytes(len(data) - len(kept)))
    delays.open(None)
    assert delays.store.commit_log.end <= place


def notes(delays: DelayBox) -> list[StoredRecord]:
    return [
        delays.record(offset)
        for offset, _, origin in LogFollower(delays.store.commit_log, 0)
        if origin < 0
    ]


def dangling_note(delays: DelayBox, wait: dict[str, str]) -> tuple[StoredRecord, StoredRecord]:
    """Make a message that waits behind another one, and of its delivery only the note."""
    delays.put({"UNIQ_KEY": "U0"}, topic="others")
    place = delays.put(wait)
    delays.run_at(2_000)
    (copy,) = delays.records()
    cut_off(delays, copy.physical_offset)
    (note,) = notes(delays)
    assert named_origins(note) == (place,)
    assert note.physical_offset + note.total_size == delays.store.commit_log.end
    assert delays.delayed.pending == 1
    return delays.record(place), copy


def append(delays: DelayBox, like: StoredRecord, **other: Any) -> None:
    """Put what a client sends directly to the queue: the fields of `like`, except those in
    `other`.
    """
    values: dict[str, Any] = {
        "body": like.body,
        "properties": like.properties,
        "born_timestamp": like.born_timestamp,
        "born_host": like.born_host,
        "flag": like.flag,
        "sys_flag": like.sys_flag,
        "reconsume_times": like.reconsume_times,
    } | other
    delays.store.append(
        delays.store.queue("orders", 2),
        values.pop("body"),
        values.pop("properties").encode(),
        0,
        values.pop("born_timestamp"),
        values.pop("born_host"),
        **values,
    )


@pytest.mark.parametrize(
    "wait",
    [
        LEVEL,
        TIMER,
        {"TIMER_DELAY_SEC": "1"},
        {"TIMER_DELIVER_MS": "1"},
        {**LEVEL, "many": "x"},
        {**TIMER, "many": "x"},
    ],
)
def test_a_delivered_message_has_no_prepared_offset(delays: DelayBox, wait: dict[str, str]) -> None:
    delays.put({}, topic="others")
    if "TIMER_DELIVER_MS" in wait:
        wait = {"TIMER_DELIVER_MS": str(delays.start_ms + 1000)}
    places = [delays.put(wait) for _ in range(40 if "many" in wait else 1)]
    delays.run_at(3_000)
    assert [record.prepared_transaction_offset for record in delays.records()] == [0] * len(places)
    # Where a queue file ended, what follows is named once more.
    found = dict.fromkeys(place for note in notes(delays) for place in named_origins(note))
    assert list(found) == places
    kill(delays)
    assert delays.delayed.pending == 0


def test_a_note_is_in_no_queue_and_counts_as_no_message(delays: DelayBox) -> None:
    for wait in (LEVEL, TIMER, LEVEL):
        delays.put(wait)
    delays.run_at(3_000)
    assert notes(delays)
    assert delays.store.appended_count == 6
    kill(delays)
    assert names.DELIVERY_NOTE_TOPIC not in delays.store.topics()
    assert {topic for topic, *_ in delays.box.arrivals} == {
        names.SCHEDULE_TOPIC, names.TIMER_TOPIC, "orders"
    }  # fmt: skip
    delays.store.close()
    _, report = check(delays.store.config)
    assert report.is_sound, report.findings


@pytest.mark.parametrize("wait", [LEVEL, TIMER], ids=["level", "timer"])
@pytest.mark.parametrize("delivered", [0, 1, 2, 3])
def test_of_messages_that_are_all_alike_each_comes_once(
    delays: DelayBox, wait: dict[str, str], delivered: int
) -> None:
    for _ in range(3):
        delays.put(wait)
    delays.clock.value += 2_000
    while len(delays.records()) < delivered:
        delays.delayed.run(delays.clock.value, 1)
    kill(delays)
    assert delays.delayed.pending == 3 - delivered
    delays.run_at(9_000)
    assert len(delays.records()) == 3
    kill(delays)
    assert delays.delayed.pending == 0


@pytest.mark.parametrize("wait", [LEVEL, TIMER], ids=["level", "timer"])
def test_power_that_goes_anywhere_in_a_batch_of_copies_doubles_and_loses_none(
    tmp_path: Path, wait: dict[str, str]
) -> None:
    whole = DelayBox(tmp_path / "whole", mapped_file_size_commit_log=LOG_FILE)
    for number in range(5):
        whole.put({**wait, "UNIQ_KEY": f"U{number}"}, body=b"%d" % number)
    begin = whole.store.commit_log.end
    whole.run_at(2_000)
    starts = [offset for offset, *_ in LogFollower(whole.store.commit_log, begin)]
    # The first one made the file of its queue, and has a note of its own.
    assert len(starts) == 7
    cuts = {place + more for place in starts for more in (0, 1, 50)}
    for cut in sorted(cuts):
        delays = DelayBox(tmp_path / f"{cut}", mapped_file_size_commit_log=LOG_FILE)
        for number in range(5):
            delays.put({**wait, "UNIQ_KEY": f"U{number}"}, body=b"%d" % number)
        delays.run_at(2_000)
        cut_off(delays, cut)
        assert delays.delayed.pending == 5 - len(delays.bodies())
        delays.put({"UNIQ_KEY": "other"}, body=b"other")
        kill(delays)
        delays.run_at(9_000)
        assert sorted(delays.bodies()) == [b"0", b"1", b"2", b"3", b"4", b"other"]
        delays.box.close()
    whole.box.close()


@pytest.mark.parametrize("wait", [LEVEL, TIMER], ids=["level", "timer"])
@pytest.mark.parametrize(
    "other",
    [
        {"born_timestamp": 78},
        {"born_host": pack_host("10.0.0.9", 1)},
        {"born_host": CLIENT[:-1] + bytes([CLIENT[-1] ^ 1])},
        {"body": b"bodY"},
        {"body": b""},
        {"flag": 1},
        {"sys_flag": 1},
        {"reconsume_times": 1},
        {"properties": "UNIQ_KEY\x01U1\x02REAL_TOPIC\x01orders\x02REAL_QID\x012\x02"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_received_message_that_is_sent_again_is_not_taken_for_its_delivery(
    delays: DelayBox, wait: dict[str, str], other: dict[str, Any]
) -> None:
    """At the worst moment, the broker died between the note and the copy. Before anything else is
    stored, a client sends a message that it once received, with all its properties.
    """
    waiting, copy = dangling_note(delays, wait)
    append(delays, copy, **other)
    kill(delays)
    assert delays.delayed.pending == 1
    delays.run_at(9_000)
    assert len(delays.records()) == 2
    assert delays.records()[1].properties.startswith(waiting.properties)
    kill(delays)
    assert delays.delayed.pending == 0


@pytest.mark.parametrize("wait", [LEVEL, TIMER], ids=["level", "timer"])
def test_a_received_message_that_is_put_again_waits_again(
    delays: DelayBox, wait: dict[str, str]
) -> None:
    """A message with the properties of a delayed one is delayed itself, even from the same
    connection in the same millisecond.
    """
    dangling_note(delays, wait)
    delays.put({**wait, "REAL_TOPIC": "orders", "REAL_QID": "2"})
    kill(delays)
    assert delays.delayed.pending == 2
    delays.run_at(19_000)
    assert len(delays.records()) == 2
    kill(delays)
    assert delays.delayed.pending == 0


def test_a_client_that_sends_to_the_topic_of_notes_writes_none(delays: DelayBox) -> None:
    delays.put({}, topic="others")
    place = delays.put(LEVEL)
    note = encode_note([place], physical_offset=0, now_ms=1, store_host=CLIENT)
    body = note[88 : 88 + 8]
    delays.put({}, topic=names.DELIVERY_NOTE_TOPIC, queue_id=0, body=body)
    append(delays, delays.record(place))
    assert notes(delays) == []
    kill(delays)
    assert delays.delayed.pending == 1


def as_before(delays: DelayBox, wait: dict[str, str], count: int) -> list[int]:
    """Put waiting messages, the first of which a broker without notes has delivered and marked."""
    places = [
        delays.put({**wait, "UNIQ_KEY": f"U{number}"}, body=b"%d" % number)
        for number in range(count)
    ]
    delays.clock.value += 2_000
    for place in places[:-1]:
        data = delays.store.record_at(place)
        assert data is not None
        waiting = Delivery(delays.store).read(place, len(data))
        more = "TIMER_ENQUEUE_MS\x011\x02TIMER_DEQUEUE_MS\x012\x02" if wait == TIMER else ""
        append(
            delays,
            delays.record(place),
            properties=waiting.text + more,
            prepared_transaction_offset=place,
        )
    return places


@pytest.mark.parametrize("wait", [LEVEL, TIMER], ids=["level", "timer"])
@pytest.mark.parametrize("at_zero", [True, False], ids=["first record", "later"])
def test_the_marks_of_a_store_from_before_the_notes_are_still_read(
    delays: DelayBox, wait: dict[str, str], at_zero: bool
) -> None:
    if not at_zero:
        delays.put({}, topic="others")
    assert (as_before(delays, wait, 3)[0] == 0) == at_zero
    kill(delays)
    assert delays.delayed.pending == 1
    delays.run_at(9_000)
    assert delays.bodies() == [b"0", b"1", b"2"]
    kill(delays)
    assert delays.delayed.pending == 0


def test_a_message_like_the_first_of_the_log_is_not_taken_for_its_delivery(
    delays: DelayBox,
) -> None:
    """Its unique id and its real topic are in both, and offset 0 looks like no mark at all."""
    assert delays.put(LEVEL) == 0
    append(delays, delays.record(0), born_timestamp=78)
    kill(delays)
    assert delays.delayed.pending == 1


@pytest.mark.parametrize("wait", [LEVEL, TIMER], ids=["level", "timer"])
def test_what_a_restart_reads_grows_with_the_deliveries(
    tmp_path: Path, wait: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = 0

    def counting(*args: Any) -> StoredRecord:
        nonlocal decoded
        decoded += 1
        return decode_record(*args)

    monkeypatch.setattr("cometmq.store.store.decode_record", counting)
    counts = []
    for size in (200, 800):
        delays = DelayBox(tmp_path / f"{size}")
        delays.put({}, topic="others")
        for _ in range(size):
            delays.put(wait)
        delays.run_at(3_000)
        delays.put({**wait, "TIMER_DELAY_MS": "9000"} if wait == TIMER else {"DELAY": "5"})
        decoded = 0
        kill(delays)
        assert delays.delayed.pending == 1
        counts.append(decoded)
        delays.box.close()
    assert 0 < counts[1] < 5 * counts[0]
