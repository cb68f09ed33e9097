"""Rules of transactions that a random schedule hardly meets, and stores that Java has left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.transaction_model import records_from
from tests.unit.store.store_box import CLIENT, HOST, Box, QuickDisk, damage_body, records

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups.offsets import ConsumerOffsetManager
from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.refusal import Refused
from cometmq.broker.topics.topics import TopicManager
from cometmq.broker.transactions import check, half_recovery, op_queue
from cometmq.broker.transactions import transactions as module
from cometmq.broker.transactions.check import TransactionChecker
from cometmq.broker.transactions.half_message import HalfMessage
from cometmq.broker.transactions.half_table import HalfTable
from cometmq.broker.transactions.op_queue import named_offsets
from cometmq.broker.transactions.transactions import Transactions
from cometmq.errors import StoreFullError
from cometmq.model import names
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.protocol.headers import EndTransactionRequestHeader
from cometmq.protocol.messages.ids import encode_offset_id
from cometmq.protocol.messages.properties import (
    MAX_PROPERTIES_LENGTH,
    decode_properties,
    encode_properties,
)
from cometmq.store.store import MessageStore

HALF, OP = names.TRANS_HALF_TOPIC, names.TRANS_OP_HALF_TOPIC
GROUP = names.TRANSACTION_GROUP


class Bench:
    """Transactions on a store that is open."""

    def __init__(self, box: Box, offsets: ConsumerOffsetManager | None = None) -> None:
        self.box = box
        self.store: MessageStore = box.open(QuickDisk())
        self.offsets = offsets or ConsumerOffsetManager()
        self.config = BrokerConfig(broker_ip1="127.0.0.1", transaction_check_max=2)
        self.asked: list[HalfMessage] = []
        self.busy: set[str] = set()

    def start(self) -> Transactions:
        topics = TopicManager(self.config, self.box.clock)
        self.transactions = Transactions(
            self.config,
            self.store,
            topics,
            self.offsets,
            lambda message: message.append_to(self.store),
            self.box.clock,
            HOST,
        )
        self.transactions.open()
        self.checker = TransactionChecker(
            self.config,
            self.store,
            self.transactions,
            lambda half: half.group in self.busy,
            self._ask,
        )
        return self.transactions

    def _ask(self, half: HalfMessage) -> int:
        self.asked.append(half)
        return 1

    def round(self, after_ms: int = 60_000) -> None:
        self.box.clock.value += after_ms
        now_ms = self.box.clock.now_ms()
        for _ in self.checker.round(self.transactions.table.take_due(now_ms), now_ms):
            pass

    def half(self, key: str, **properties: str) -> tuple[int, int]:
        message = IncomingMessage(
            "orders", 0, b"half", _properties(key, **properties), self.box.clock.now_ms(), CLIENT
        )
        return self.transactions.prepare(message)

    def java_half(self, key: str, **properties: str) -> tuple[int, int]:
        """Make a record as a Java broker puts it into the half topic."""
        values = {**_properties(key), "REAL_TOPIC": "orders", "REAL_QID": "0", **properties}
        text = encode_properties({name: value for name, value in values.items() if value})
        return self.raw(HALF, b"half", text.encode())

    def java_op(self, body: bytes) -> None:
        self.raw(OP, body, b"WAIT\x01true\x02TAGS\x01d\x02")

    def raw(self, topic: str, body: bytes, properties: bytes) -> tuple[int, int]:
        queue = self.store.queue(topic, 0)
        return self.store.append(queue, body, properties, 0, self.box.clock.now_ms(), CLIENT)

    def end(self, key: str, place: tuple[int, int], verdict: int = TRANSACTION_COMMIT) -> None:
        self.transactions.end(
            EndTransactionRequestHeader(
                producer_group="shop",
                tran_state_table_offset=place[0],
                commit_log_offset=place[1],
                commit_or_rollback=verdict,
                msg_id=key,
                from_transaction_check=True,
            )
        )

    def open_keys(self) -> list[str]:
        found = []
        for offset in self.transactions.table:
            record = records_from(self.store, HALF, offset)[0]
            found.append(decode_properties(record.properties)["UNIQ_KEY"])
        return found

    def listed(self, topic: str) -> list[str]:
        return [
            decode_properties(record.properties).get("UNIQ_KEY", "?")
            for record in records(self.store, topic)
        ]


def _properties(key: str, **more: str) -> dict[str, str]:
    return {"UNIQ_KEY": key, "PGROUP": "shop", "TRAN_MSG": "true", **more}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(
        tmp_path / "store",
        mapped_file_size_commit_log=1 << 18,
        mapped_file_size_consume_queue=20 * 1000,
    )
    yield box
    box.close()


@pytest.fixture
def bench(box: Box) -> Bench:
    return Bench(box)


@pytest.mark.parametrize(
    ("body", "offsets"),
    [
        (b"12,15,", [12, 15]),
        (b"7", [7]),
        (b"", []),
        (b",,3,,", [3]),
        (b"-1,", []),
        (b"x,4,\xff,1.5," + b"9" * 30, [4]),
    ],
)
def test_both_forms_of_an_op_record_are_read(body: bytes, offsets: list[int]) -> None:
    assert named_offsets(body) == offsets


def test_op_records_are_java_s(bench: Bench) -> None:
    transactions = bench.start()
    places = [bench.half(f"K{number}") for number in range(3)]
    bench.end("K0", places[0])
    bench.end("K2", places[2], TRANSACTION_ROLLBACK)
    assert records(bench.store, OP) == [], "they wait for others"
    transactions.flush_ops()
    (op,) = records(bench.store, OP)
    assert (op.body, op.properties) == (b"0,2,", "WAIT\x01true\x02TAGS\x01d\x02")
    unit = bench.store.queue(OP, 0).unit(0)
    assert unit is not None
    assert unit.tags_code == 100


def test_op_records_leave_at_4096_bytes(bench: Bench) -> None:
    bench.start()
    places = [bench.half(f"K{number}") for number in range(1100)]
    for number, place in enumerate(places):
        bench.end(f"K{number}", place, TRANSACTION_ROLLBACK)
    (op,) = records(bench.store, OP)
    assert 4096 <= len(op.body) < 4110


def test_a_store_of_java_is_taken_over_where_java_stopped(bench: Bench) -> None:
    for number in range(8):
        bench.java_half(f"K{number}")
    bench.java_op(b"0")  # before 5.1
    bench.java_op(b"1,4,")
    bench.java_op(b"6,")
    bench.offsets.commit(GROUP, HALF, 0, 3)
    bench.offsets.commit(GROUP, OP, 0, 1)
    transactions = bench.start()
    assert bench.open_keys() == ["K3", "K5", "K7"]
    bench.round()
    assert [half.properties["UNIQ_KEY"] for half in bench.asked] == ["K3", "K5", "K7"]
    for half in bench.asked:
        place = (half.record.queue_offset, half.record.physical_offset)
        bench.end(half.properties["UNIQ_KEY"], place)
    assert bench.listed("orders") == ["K3", "K5", "K7"]
    transactions.close()
    assert bench.offsets.query(GROUP, HALF, 0) == 11
    assert bench.offsets.query(GROUP, OP, 0) == 4


def test_a_verdict_on_the_first_copy_counts_for_java_s_copies_within_the_immunity_time(
    bench: Bench,
) -> None:
    bench.java_half("A", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    bench.java_half("B", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    for key, first in (("A", "0"), ("B", "1")):
        bench.java_half(key, CHECK_IMMUNITY_TIME_IN_SECONDS="60", TRAN_PREPARED_QUEUE_OFFSET=first)
    bench.java_op(b"0,")
    bench.offsets.commit(GROUP, HALF, 0, 2)
    bench.start()
    assert bench.open_keys() == ["B"]


def test_offsets_beyond_the_end_of_the_queues_begin_at_the_end(bench: Bench) -> None:
    bench.java_half("A")
    bench.offsets.commit(GROUP, HALF, 0, 50)
    bench.offsets.commit(GROUP, OP, 0, 50)
    transactions = bench.start()
    assert transactions.unresolved_count == 0
    place = bench.half("B")
    assert bench.open_keys() == ["B"]
    bench.end("B", place)
    transactions.close()
    assert bench.offsets.query(GROUP, HALF, 0) == 2


def test_a_poisoned_half_message_delays_no_other(bench: Bench) -> None:
    bench.java_half("GOOD-1")
    bench.java_half("NO-GROUP", PGROUP="")
    bench.java_half("NO-QUEUE", REAL_QID="many")
    bench.raw(HALF, b"garbage", b"\x02\x02\x01")
    bench.java_half("LONG", padding="x" * 32_680)
    bench.java_half("GOOD-2", TRANSACTION_CHECK_TIMES="twice")
    bench.start()
    bench.round()
    asked = [half.properties["UNIQ_KEY"] for half in bench.asked]
    assert asked == ["GOOD-1", "GOOD-2"]
    # What cannot be asked for, or has no room for the number of checks, can be looked at.
    listed = bench.listed(names.TRANS_CHECK_MAX_TIME_TOPIC)
    assert listed == ["NO-GROUP", "NO-QUEUE", "?", "LONG"]
    assert bench.open_keys() == ["GOOD-1", "GOOD-2"]


def test_a_group_that_does_not_read_delays_no_other(bench: Bench) -> None:
    bench.start()
    bench.half("SLOW", PGROUP="slow")
    bench.half("QUICK")
    bench.busy.add("slow")
    for _ in range(2):
        bench.round()
    assert [half.properties["UNIQ_KEY"] for half in bench.asked] == ["QUICK", "QUICK"]
    bench.busy.clear()
    bench.round()
    slow = bench.asked[-1]
    # Rounds in which it could not be asked are not counted against it.
    assert (slow.properties["UNIQ_KEY"], slow.check_times) == ("SLOW", 1)


def test_the_consumed_offset_passes_what_is_not_due_yet(bench: Bench) -> None:
    transactions = bench.start()
    bench.half("LATER", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    bench.half("NOW")
    bench.half("NOT-YET", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    bench.round()
    # LATER was copied once, as it lay in front of a copy; NOT-YET stays where it is.
    assert [half.properties["UNIQ_KEY"] for half in bench.asked] == ["NOW"]
    assert list(transactions.table) == [2, 3, 4]
    copy = records_from(bench.store, HALF, 4)[0]
    assert decode_properties(copy.properties)["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert "TRANSACTION_CHECK_TIMES" not in copy.properties
    transactions.close()
    assert bench.offsets.query(GROUP, HALF, 0) == 2
    bench.round(after_ms=3600_000)
    assert sorted(half.properties["UNIQ_KEY"] for half in bench.asked[1:]) == [
        "LATER",
        "NOT-YET",
        "NOW",
    ]


def test_a_body_that_the_disk_has_altered_is_not_copied(bench: Bench) -> None:
    bench.start()
    asked, committed, good = bench.half("ASKED"), bench.half("COMMITTED"), bench.half("GOOD")
    for _, place in (asked, committed):
        damage_body(bench.store, place)
    with pytest.raises(Refused, match="contradicts its CRC"):
        bench.end("COMMITTED", committed)
    bench.end("GOOD", good)
    bench.round()
    # A copy would have a CRC of its own, so that nobody could tell.
    assert (bench.asked, bench.open_keys()) == ([], [])
    assert bench.listed("orders") == ["GOOD"]
    assert bench.listed(names.TRANS_CHECK_MAX_TIME_TOPIC) == []


def test_transactions_that_nobody_may_be_asked_about_take_half_of_the_room(
    bench: Bench, box: Box
) -> None:
    bench.config.max_unresolved_transactions = 5
    bench.start()
    immune = {"CHECK_IMMUNITY_TIME_IN_SECONDS": str(10 * 365 * 86_400)}
    short = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}
    places = [bench.half(f"LONG-{number}", **immune) for number in range(3)]
    with pytest.raises(
        Refused, match="half of the limit maxUnresolvedTransactions, which is 5"
    ) as no:
        bench.half("LONG-3", **immune)
    assert (no.value.code, no.value.limit) == (2, "maxUnresolvedTransactions")
    # The rest of the room is for others.
    bench.half("USUAL")
    bench.end("LONG-1", places[1])
    bench.half("LONG-4", **immune)
    bench.half("SHORT", **short)
    assert len(bench.open_keys()) == 5
    bench.transactions.close()
    box.crash(bench.store)
    again = Bench(box, bench.offsets)
    again.config.max_unresolved_transactions = 100
    assert again.start().table.immune_count == 3
    again.config.max_unresolved_transactions = 6
    with pytest.raises(Refused, match=r"^3 transactions that ask for an immunity time"):
        again.half("LONG-5", **immune)
    again.half("USUAL-2", **short)


def test_older_than_the_log_is_kept_is_given_up(bench: Bench) -> None:
    bench.start()
    bench.half("OLD", CHECK_IMMUNITY_TIME_IN_SECONDS=str(80 * 3600))
    bench.round(after_ms=73 * 3600_000)
    assert bench.listed(names.TRANS_CHECK_MAX_TIME_TOPIC) == []
    bench.round(after_ms=8 * 3600_000)
    assert bench.listed(names.TRANS_CHECK_MAX_TIME_TOPIC) == ["OLD"]


def test_a_half_message_that_waits_for_longer_than_files_are_kept_is_copied(
    bench: Bench, box: Box
) -> None:
    transactions = bench.start()
    place = bench.half("T1", CHECK_IMMUNITY_TIME_IN_SECONDS=str(4 * 86_400))
    ended = bench.half("T2")
    bench.end("T2", ended)
    end = bench.store.commit_log.end
    assert transactions.roll(end, 10) == 1
    assert transactions.roll(end, 10) == 0
    transactions.close()
    box.crash(bench.store)
    again = Bench(box, bench.offsets)
    again.start()
    assert again.open_keys() == ["T1"]
    assert again.transactions.table.low_offset(-1) > ended[0]
    again.round()
    assert again.asked == []
    again.end("T1", place)
    assert again.listed("orders") == ["T2", "T1"]


def test_a_half_message_that_cannot_be_copied_is_given_up_before_its_file_goes(
    bench: Bench,
) -> None:
    transactions = bench.start()
    bench.java_half("T1", mine="x" * 32_670)
    bench.java_half("T2")
    transactions.open()
    end = bench.store.commit_log.end
    while transactions.roll(end, 1):
        pass
    assert bench.open_keys() == ["T2"]
    assert bench.listed(names.TRANS_CHECK_MAX_TIME_TOPIC) == ["T1"]


def test_a_copy_that_cannot_be_read_back_replaces_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure of the disk, what waits in the transient pool is not to be read."""
    bench.start()
    place = bench.half("T1")
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_half", lambda *_: None)
        bench.round()
    assert (bench.asked, bench.checker.failed_count) == ([], 1)
    bench.round()
    assert [half.properties["UNIQ_KEY"] for half in bench.asked] == ["T1"]
    bench.end("T1", place)
    assert bench.listed("orders") == ["T1"]
    assert bench.open_keys() == []


def test_a_client_whose_clock_is_ahead_is_asked_as_soon_as_others(bench: Bench) -> None:
    transactions = bench.start()
    message = IncomingMessage("orders", 0, b"x", _properties("A"), 4_000_000_000_000, CLIENT)
    transactions.prepare(message)
    bench.round(after_ms=7_000)
    assert len(bench.asked) == 1


def test_a_copy_of_another_broker_s_is_none_here(bench: Bench) -> None:
    bench.start()
    place = bench.half("A")
    bench.half("B", TRAN_PREPARED_QUEUE_OFFSET="0")
    bench.end("A", place)
    assert bench.open_keys() == ["B"]


def test_little_of_the_log_is_read_after_a_kill(
    bench: Bench, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_UNMARKED_BYTES", 10_000)
    transactions = bench.start()
    bench.half("OPEN", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    place = bench.half("DONE")
    for _ in range(100):
        bench.raw("orders", b"x" * 500, b"UNIQ_KEY\x01other\x02")
    transactions.flush_ops()
    (mark,) = records(bench.store, OP)
    assert mark.body == b"-1,"
    bench.end("DONE", place)
    box.crash(bench.store)
    again = Bench(box)
    transactions = again.start()
    assert again.open_keys() == ["OPEN"]
    assert transactions.ops.last_position == mark.physical_offset
    # What the scan found is written down, so the next one need not find it again.
    transactions.flush_ops()
    assert records(again.store, OP)[-1].body == b"1,"


def test_what_only_the_second_of_two_op_records_would_have_named_is_found_after_a_kill(
    bench: Bench, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op_queue, "_MAX_BODY_BYTES", 60)
    monkeypatch.setattr(op_queue, "_PART", 3)
    transactions = bench.start()
    bench.half("OPEN", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    places = [bench.half(f"DONE{n}") for n in range(40)]
    for n, place in enumerate(places):
        bench.end(f"DONE{n}", place)
    append, count = bench.store.append, 0

    def append_one(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count > 1:
            raise StoreFullError("no room", code=14)
        return append(*args, **options)

    monkeypatch.setattr(bench.store, "append", append_one)
    transactions.flush_ops()
    monkeypatch.undo()
    monkeypatch.setattr(op_queue, "_PART", 3)
    (record,) = records(bench.store, OP)
    assert record.body == b"1,2,3,"
    box.crash(bench.store)
    again = Bench(box)
    again.start()
    assert again.open_keys() == ["OPEN"]


def test_nothing_is_left_behind_without_transactions(bench: Bench) -> None:
    transactions = bench.start()
    bench.round()
    transactions.close()
    assert bench.offsets.topics_of(GROUP) == set()
    assert bench.store.topics().get(OP, []) in ([], [0])
    assert bench.store.commit_log.end == 0


def test_a_verdict_on_a_given_up_transaction_names_the_remedy(bench: Bench) -> None:
    bench.start()
    place = bench.half("A")
    for _ in range(3):
        bench.round()
    with pytest.raises(Refused, match="RESUME_CHECK_HALF_MESSAGE"):
        bench.end("A", place)
    assert bench.listed("orders") == []


def test_due_times_are_kept_without_an_entry_for_each_turn() -> None:
    table = HalfTable()
    for offset in range(1000):
        table.add(offset, due_ms=1_000 + offset)
    assert table.take_due(999) == []
    early = table.take_due(1_400)
    assert early == list(range(len(early)))
    assert 250 < len(early) <= 401
    table.resolve(900)
    assert table.take_due(10_000) == [n for n in range(len(early), 1000) if n != 900]
    assert len(table) == 999
    assert table.low_offset(-1) == 0


def test_the_lowest_offset_is_found_without_passing_all_that_ended_in_front_of_it() -> None:
    """Each look passed them again: 4 µs with 10,000 half messages, 312 µs with a million, once for
    each copy that a round of checks made.
    """

    class CountedDict(dict[int, int]):
        looks = 0

        def __contains__(self, key: object) -> bool:
            self.looks += 1
            return super().__contains__(key)

        def __iter__(self) -> Iterator[int]:
            # A dict passes the places of entries that were deleted.
            raise AssertionError("the first entry is looked for from the beginning")

    table = HalfTable()
    table._unresolved = counted = CountedDict()
    count = 2_000
    for offset in range(5, 5 + count):
        table.add(offset, due_ms=0)
    for offset in range(6, 5 + count, 2):
        table.resolve(offset)
    for offset in range(5, 5 + count, 2):
        assert table.low_offset(-1) == offset
        table.move(offset, offset + count)
    assert table.low_offset(-1) == 5 + count
    assert counted.looks <= 4 * count
    for first in range(5, 5 + count, 2):
        table.resolve(first)
    assert table.low_offset(-1) == -1
    table.add(9_000_000_000, due_ms=0)
    assert table.low_offset(-1) == 9_000_000_000


def test_a_start_read_all_transactions_that_ended_behind_one_with_a_long_immunity_time(
    bench: Bench, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its immunity time was over, each start read every transaction that ended behind it."""
    monkeypatch.setattr(check, "_MAX_ENDED_BETWEEN", 20)
    bench.start()
    kept = bench.half("KEPT", CHECK_IMMUNITY_TIME_IN_SECONDS="36000")
    read = []
    for batch in range(6):
        for number in range(30):
            place = bench.half(f"{batch}-{number}")
            bench.end(f"{batch}-{number}", place)
        bench.round(after_ms=30_000)
        bench.transactions.close()
        from_half = max(0, bench.offsets.query(GROUP, HALF, 0))
        from_op = max(0, bench.offsets.query(GROUP, OP, 0))
        read.append(
            (
                bench.store.max_offset(HALF, 0) - from_half,
                sum(
                    len(named_offsets(record.body))
                    for record in records_from(bench.store, OP, from_op)
                ),
            )
        )
    assert all(halves <= 2 + 20 and named <= 2 + 20 for halves, named in read), read
    assert bench.asked == []
    box.crash(bench.store)
    again = Bench(box, bench.offsets)
    again.start()
    assert again.open_keys() == ["KEPT"]
    again.round()
    assert again.asked == []
    again.end("KEPT", kept)
    assert again.listed("orders")[-1] == "KEPT"
    assert again.open_keys() == []


def test_a_start_finds_the_same_half_messages_quickly_and_read_as_a_whole(bench: Bench) -> None:
    """A start read each of a million whole, for 17 of its 32 seconds. The parts that it skips must make
    no difference: copies, immunity times, and bodies that look like properties.
    """
    bench.start()
    places = {}
    for number in range(40):
        more = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "30"} if number % 5 == 0 else {}
        places[number] = bench.half(f"k{number}", **more)
        bench.box.clock.value += 500
    bench.java_half("java")
    bench.raw(HALF, b"TRAN_PREPARED_QUEUE_OFFSET", encode_properties(_properties("b")).encode())
    bench.round(after_ms=0)
    for number in (3, 5, 11):
        bench.end(f"k{number}", places[number], TRANSACTION_ROLLBACK)
    bench.transactions.flush_ops()
    found = {}
    for name in ("quickly", "whole"):
        with pytest.MonkeyPatch.context() as patch:
            if name == "whole":
                patch.setattr(half_recovery, "_times_of_plain_half", lambda *_: None)
            table = bench.start().table
        now_ms = bench.box.clock.now_ms()
        due = [table.take_due(at_ms) for at_ms in range(now_ms - 30_000, now_ms + 60_000, 100)]
        found[name] = (list(table), table.immune_count, due)
    assert found["quickly"] == found["whole"]
    assert len(found["whole"][0]) > 35


def near_the_limit(bench: Bench, missing: int) -> str:
    """Return a value with which the half message's properties lack `missing` bytes to the limit."""
    first = bench.half("first", CLUSTER="c" * 20, MSG_REGION="r" * 20, TRACE_ON="true", long="x")
    record = bench.store.stored_record(first[1])
    assert record is not None
    return "x" * (MAX_PROPERTIES_LENGTH - missing - len(record.properties) + 1)


def test_a_half_message_near_the_limit_is_asked_for_and_not_discarded(bench: Bench) -> None:
    """It was given up at its first check, though its producer would have committed it."""
    bench.start()
    long = near_the_limit(bench, 10)
    place = bench.half("second", CLUSTER="c" * 20, MSG_REGION="r" * 20, TRACE_ON="true", long=long)
    bench.round()
    assert len(bench.asked) == 2
    assert bench.listed(names.TRANS_CHECK_MAX_TIME_TOPIC) == []
    assert "second" in bench.open_keys()
    bench.end("second", place)
    assert "second" in bench.listed("orders")


def test_a_half_message_without_room_for_a_check_is_refused_when_it_is_sent(bench: Bench) -> None:
    bench.start()
    first = bench.half("first", long="x")
    record = bench.store.stored_record(first[1])
    assert record is not None
    long = "x" * (MAX_PROPERTIES_LENGTH - len(record.properties))
    with pytest.raises(Refused, match="a check of the transaction adds") as refused:
        bench.half("second", long=long)
    assert refused.value.limit == "MAX_PROPERTIES_LENGTH"
    assert bench.open_keys() == ["first"]


def test_a_message_that_is_resumed_again_and_again_is_stored_once(bench: Bench) -> None:
    """Each request of 300 bytes stored the message once more."""
    bench.start()
    bench.half("k")
    for _ in range(4):
        bench.round()
    (given_up,) = records(bench.store, names.TRANS_CHECK_MAX_TIME_TOPIC, 0)
    msg_id = encode_offset_id(given_up.store_host, given_up.physical_offset)
    bench.transactions.resume(msg_id)
    end = bench.store.commit_log.end
    for _ in range(10):
        bench.transactions.resume(msg_id)
    (half,) = records(bench.store, HALF, 0)[-1:]
    for _ in range(10):
        bench.transactions.resume(encode_offset_id(half.store_host, half.physical_offset))
    assert bench.store.commit_log.end == end
    assert bench.open_keys() == ["k"]
