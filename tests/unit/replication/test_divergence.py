"""Whether a slave's log is the beginning of its master's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest import mock

import pytest
from tests.cleaning import remove_first
from tests.unit.replication.two_logs import LogOf, fill, promoted, replicate
from tests.unit.store.store_box import LOG_FILE, Box, put

from cometmq.errors import ConnectError
from cometmq.model.sysflag import TRANSACTION_PREPARED
from cometmq.replication.divergence import Cause, Divergence, MasterLog, find_divergence
from cometmq.store.log import tail
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.store import MessageStore

both_kinds = pytest.mark.parametrize("as_java", [False, True], ids=["ours", "java"])


@pytest.fixture
def other(make_box: Callable[..., Box]) -> Box:
    return make_box()


def find(store: MessageStore, master: MasterLog) -> Divergence | None:
    return asyncio.run(find_divergence(store, master))


@both_kinds
def test_a_log_that_is_the_beginning_of_its_masters_costs_one_question(
    box: Box, other: Box, as_java: bool
) -> None:
    master, slave = box.open(), other.open()
    theirs = LogOf(master, as_java=as_java)
    assert find(slave, theirs) is None
    assert theirs.asked == []
    places = fill(master, 30, "both")
    for place in (places[1], places[20], master.commit_log.end):
        replicate(master, slave, until=place)
        theirs.asked.clear()
        assert find(slave, theirs) is None
        assert len(theirs.asked) <= 2
    assert theirs.asked[0] == places[-1]


@both_kinds
@pytest.mark.parametrize("lead", ["slave", "master"])
def test_other_messages_at_the_same_place_are_found(
    box: Box, other: Box, as_java: bool, lead: str
) -> None:
    former, master = promoted(box, other)
    while lead == "slave" and former.commit_log.end <= master.commit_log.end:
        fill(former, 5, "former")
    while lead == "master" and former.commit_log.end >= master.commit_log.end:
        fill(master, 5, "new", size=150)
    found = find(former, LogOf(master, as_java=as_java))
    assert found is not None
    assert found.cause is (Cause.LONGER if lead == "slave" else Cause.DIFFERENT)
    assert found.own_end == former.commit_log.end
    assert found.master.end == master.commit_log.end
    for part in (
        str(found.own_end),
        str(found.master.end),
        "cometmq store rejoin",
        "10.0.0.1:10911",
    ):
        assert part in str(found)


@both_kinds
def test_a_log_that_is_longer_than_its_masters_is_found(
    box: Box, other: Box, as_java: bool
) -> None:
    slave, master = box.open(), other.open()
    fill(slave, 10, "both")
    replicate(slave, master)
    fill(slave, 1, "more")
    found = find(slave, LogOf(master, as_java=as_java))
    assert found is not None
    assert found.cause is Cause.LONGER


@both_kinds
def test_a_master_that_deleted_what_is_missing_is_found(
    box: Box, other: Box, as_java: bool
) -> None:
    master, slave = box.open(), other.open()
    places = fill(master, 60, "both")
    replicate(master, slave, until=places[3])
    remove_first(master.commit_log.files)
    remove_first(master.commit_log.files)
    found = find(slave, LogOf(master, as_java=as_java))
    assert found is not None
    assert found.cause is Cause.GAP
    assert str(2 * LOG_FILE) in str(found)


@both_kinds
def test_a_master_that_deleted_the_last_record_but_nothing_behind_it_is_followed(
    box: Box, other: Box, as_java: bool
) -> None:
    master, slave = box.open(), other.open()
    fill(master, 60, "both")
    replicate(master, slave, until=LOG_FILE)
    remove_first(master.commit_log.files)
    assert slave.commit_log.end == master.commit_log.min_offset
    assert find(slave, LogOf(master, as_java=as_java)) is None


def test_the_end_of_a_log_without_records_is_compared(box: Box, other: Box) -> None:
    """Retention has removed all files but the newest, which is empty."""
    master, slave = box.open(), other.open()
    assert find(slave, LogOf(master)) is None
    fill(master, 80, "both")
    replicate(master, slave, until=LOG_FILE)
    slave.commit_log.files.append_file()
    remove_first(slave.commit_log.files)
    slave.close()
    slave = other.open()
    assert slave.log_tail().record < 0
    assert find(slave, LogOf(master)) is None
    for _ in range(3):
        remove_first(master.commit_log.files)
    found = find(slave, LogOf(master))
    assert found is not None
    assert found.cause is Cause.GAP
    assert "empty its store" in str(found)


@both_kinds
def test_a_blank_where_the_master_has_a_message_is_found(
    box: Box, other: Box, as_java: bool
) -> None:
    """A former master may have ended its file for a large message that nobody got."""
    former, master = box.open(), other.open()
    fill(former, 5, "both")
    replicate(former, master)
    end = master.commit_log.end
    fill(former, 1, "large", size=LOG_FILE - end)
    box.crash(former)
    # The process died before the large message was written.
    box.log_files[1].write_bytes(bytes(LOG_FILE))
    former = box.open()
    assert former.commit_log.end == LOG_FILE
    theirs = LogOf(master, as_java=as_java)
    found = find(former, theirs)
    assert found is not None
    assert found.cause is Cause.LONGER
    fill(master, 1, "small", size=10)
    fill(master, 20, "new")
    found = find(former, theirs)
    assert found is not None
    assert (found.cause, found.offset) == (Cause.DIFFERENT, end)


def test_records_without_a_place_in_a_queue_count(box: Box, other: Box) -> None:
    former, master = box.open(), other.open()
    fill(former, 5, "both")
    replicate(former, master)
    put(former, b"half", sys_flag=TRANSACTION_PREPARED)
    last = put(former, b"half", sys_flag=TRANSACTION_PREPARED)[1]
    fill(master, 3, "new")
    assert former.log_tail().record == last
    found = find(former, LogOf(master))
    assert found is not None
    assert found.offset == last


def test_a_message_of_a_topic_that_was_deleted_and_made_again_is_the_same(
    box: Box, other: Box
) -> None:
    """The master's queue has another message at that queue offset."""
    master, slave = box.open(), other.open()
    fill(master, 8, "old")
    replicate(master, slave)
    master.delete_topic("orders")
    fill(master, 20, "new")
    assert find(slave, LogOf(master)) is None


def test_a_damaged_body_is_no_other_message(box: Box, other: Box) -> None:
    master, slave = box.open(), other.open()
    places = fill(master, 3, "both")
    replicate(master, slave)
    file = slave.commit_log.files.files[0]
    file.map[places[-1] + 100] ^= 1
    assert find(slave, LogOf(master)) is None


@pytest.mark.parametrize("size", [b"\0\0\x0c\0", b"\x7f\0\0\0"])
def test_a_last_record_with_a_damaged_size_is_no_end_of_the_comparison(
    box: Box, other: Box, size: bytes
) -> None:
    master, slave = box.open(), other.open()
    places = fill(master, 3, "both")
    replicate(master, slave)
    slave.commit_log.files.files[0].map[places[-1] : places[-1] + 4] = size
    theirs = LogOf(master)
    assert find(slave, theirs) is None
    assert theirs.asked == [places[-2]]


@pytest.mark.parametrize("count", [3, 30, 700])
def test_the_end_is_found_without_a_look_into_each_queue(
    make_box: Callable[..., Box], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 10,000 queues that took seconds of the loop at each attempt to connect."""
    box, other = (make_box(mapped_file_size_commit_log=1 << 20) for _ in range(2))
    master, slave = box.open(), other.open()
    places = [put(master, topic=f"topic{number}")[1] for number in range(count)]
    replicate(master, slave)
    again = other.new()
    for store in (slave, again):
        if store is again:
            slave.close()
            store.open()
        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "last_message", None)
            walked = mock.Mock(wraps=tail._walk)
            patch.setattr(tail, "_walk", walked)
            assert store.log_tail().record == places[-1]
            assert [call.args[1] for call in walked.mock_calls] == [places[-1]]


def test_nothing_is_known_of_a_master_that_cannot_be_asked(box: Box, other: Box) -> None:
    master, slave = box.open(), other.open()
    fill(master, 3, "both")
    replicate(master, slave)
    theirs = LogOf(master)
    theirs.is_away = True
    with pytest.raises(ConnectError):
        find(slave, theirs)
