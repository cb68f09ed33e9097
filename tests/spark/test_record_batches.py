"""Columns of records against the records decoded one by one."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seeds import examples
from tests.spark.rows import row_of, rows_of

from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.properties import encode_properties
from cometmq.protocol.messages.record import decode_records, encode_record
from cometmq.protocol.messages.record_columns import read_columns
from cometmq.spark.rows.columns import COLUMNS
from cometmq.spark.rows.record_batches import RecordBatches

pytestmark = pytest.mark.spark


def check(window: bytes) -> Any:
    columns = read_columns(window, 0, len(window), None)
    batch = RecordBatches(list(COLUMNS), broker="broker-a").batch(window, columns)
    batch.validate(full=True)
    expected = [row_of(record.to_message("broker-a")) for record in decode_records(window)]
    assert rows_of(batch) == expected
    return batch


def record(properties: str = "", **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": b"orders",
        "body": b"body",
        "properties": properties.encode(),
        "queue_id": 3,
        "queue_offset": 17,
        "physical_offset": 4096,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_123,
        "born_host": pack_host("10.0.0.1", 4711),
        "store_timestamp": 1_700_000_000_456,
        "store_host": pack_host("10.0.0.2", 10911),
    }
    return encode_record(**fields | changes)


letters = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1
)
names = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "__transactionId__", "color"]) | letters
# As users and older releases write them: with and without the last separator, and damaged.
texts = (
    st.dictionaries(names, letters, max_size=5).map(encode_properties)
    | st.dictionaries(names, letters, max_size=5).map(lambda p: encode_properties(p)[:-1])
    | st.text(st.sampled_from("\x01\x02aKEYS "), max_size=30)
    # As Java brokers append the properties of a batch.
    | st.lists(st.tuples(names, letters), max_size=6).map(
        lambda some: "".join(f"{name}\x01{value}\x02" for name, value in some)
    )
)
hosts = st.sampled_from(["10.0.0.1", "10.0.0.2", "2001:db8::1"]).map(
    lambda ip: pack_host(ip, 10911)
)
records = st.builds(
    record,
    texts,
    topic=st.sampled_from([b"orders", b"payments", b"x" * 127, b"y" * 200, "é".encode()]),
    body=st.binary(max_size=50),
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=st.integers(0, 2**63 - 1),
    physical_offset=st.integers(0, 2**63 - 1),
    sys_flag=st.sampled_from([0, 4, 8, 12]),
    born_timestamp=st.integers(0, 2**43),
    store_timestamp=st.integers(0, 2**43),
    born_host=hosts,
    store_host=hosts,
    flag=st.integers(-(2**31), 2**31 - 1),
    reconsume_times=st.integers(0, 16),
    prepared_transaction_offset=st.integers(0, 2**63 - 1),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(records, min_size=1, max_size=20))
def test_every_column_says_what_the_record_says(parts: list[bytes]) -> None:
    check(b"".join(parts))


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(records, min_size=1, max_size=5).map(b"".join),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=6),
)
def test_damaged_bytes_give_rows_or_none(window: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(window)
    for at, value in changes:
        damaged[at % len(damaged)] = value
    columns = read_columns(damaged, 0, len(damaged), None)
    columns = columns.select(columns.fit)
    if len(columns):
        batch = RecordBatches(list(COLUMNS), broker=None).batch(damaged, columns)
        batch.validate(full=True)
        assert len(batch) == len(columns)


def test_a_plain_batch() -> None:
    parts = [
        record(
            encode_properties({"UNIQ_KEY": f"{at:032X}", "KEYS": f"k{at} o{at}", "TAGS": "paid"}),
            body=b"%d" % at * 100,
            queue_offset=at,
        )
        for at in range(1000)
    ]
    check(b"".join(parts))


def test_of_a_property_that_stands_twice_the_last_counts() -> None:
    check(record("TAGS\x01a\x02TAGS\x01b\x02k\x01v\x02") + record("TAGS\x01c"))


def test_messages_of_java_batches_keep_their_own_ids() -> None:
    """All messages of a batch had the batch's id, which a Java broker appends to each."""
    window = b"".join(
        record(
            f"KEYS\x01k{at}\x02UNIQ_KEY\x01A{at}\x02WAIT\x01true\x02UNIQ_KEY\x01B\x02WAIT\x01true\x02"
        )
        for at in range(3)
    )
    window += record("UNIQ_KEY\x01C\x02") + record("UNIQ_KEY\x01D\x02UNIQ_KEY\x01D\x02")
    window += record("TAGS\x01t\x02") + record("UNIQ_KEY\x01\x02UNIQ_KEY\x01E\x02UNIQ_KEY\x01F\x02")
    rows = rows_of(check(window))
    assert [row["msg_id"] for row in rows[:5]] == ["A0", "A1", "A2", "C", "D"]
    assert [row["batch_msg_id"] for row in rows] == ["B", "B", "B", None, None, None, "F"]
    assert [dict(row["properties"]).get("UNIQ_KEY") for row in rows[4:]] == ["D", None, "E"]


def test_delays_and_times() -> None:
    check(
        record("DELAY\x013\x02")
        + record("TIMER_DELIVER_MS\x011700000000000\x02TIMER_OUT_MS\x011\x02")
        + record("TIMER_OUT_MS\x011700000000000\x02")
        + record()
    )


def test_properties_that_are_no_numbers_give_no_delay() -> None:
    window = record("DELAY\x01soon\x02TIMER_DELIVER_MS\x0112x\x02")
    columns = read_columns(window, 0, len(window), None)
    row = rows_of(RecordBatches(list(COLUMNS), broker=None).batch(window, columns))[0]
    assert (row["delay_level"], row["deliver_time"], row["broker"]) == (None, None, None)


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    window = record(topic=b"orders\xff") + record(topic=b"plain")
    columns = read_columns(window, 0, len(window), None)
    rows = rows_of(RecordBatches(list(COLUMNS), broker=None).batch(window, columns))
    assert [row["topic"] for row in rows] == ["orders\ufffd", "plain"]


def test_a_compressed_body_is_given_as_it_was_sent() -> None:
    body = b"abc" * 1000
    parts = [
        record(),
        record(body=zlib.compress(body), sys_flag=0x1 | 0x300),
        record(body=b"zz", sys_flag=1),
    ]
    window = b"".join(parts)
    columns = read_columns(window, 0, len(window), None)
    rows = rows_of(RecordBatches(list(COLUMNS), broker=None).batch(window, columns))
    assert [row["body"] for row in rows] == [b"body", body, b"zz"]
    assert [row["sys_flag"] for row in rows] == [0, 0x300, 1]
    stored = RecordBatches(list(COLUMNS), broker=None, decompress=False)
    assert rows_of(stored.batch(window, columns))[1]["body"] == zlib.compress(body)


def test_records_in_any_order_of_their_places() -> None:
    window = record(queue_offset=0) + record(queue_offset=1) + record(queue_offset=2)
    columns = read_columns(window, 0, len(window), None).select(np.array([2, 0, 1, 0]))
    rows = rows_of(RecordBatches(list(COLUMNS), broker=None).batch(window, columns))
    assert [row["queue_offset"] for row in rows] == [2, 0, 1, 0]
    assert {row["topic"] for row in rows} == {"orders"}


def test_of_doubles_among_many_names_the_last_counts_too() -> None:
    # So many names that a table of all names for each record would be too large.
    parts = [
        record(
            "".join(f"n{at}-{i}\x01{i}\x02" for i in range(3)) + f"TAGS\x01a\x02n{at}-0\x01z\x02"
        )
        for at in range(200)
    ]
    batch = check(b"".join(parts))
    assert dict(batch.column("properties")[7].as_py())["n7-0"] == "z"


def test_a_batch_of_javas_client_in_which_each_message_has_two_ids() -> None:
    own = "UNIQ_KEY\x017F00000100000000000000000000%04X\x02"
    window = b"".join(record(own % at + "WAIT\x01true\x02" + own % 0) for at in range(300))
    check(window)
