"""Rows as messages, and messages as requests, without a Spark."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batches import decode_batch

from cometmq.client.producing.selectors import queue_of_key
from cometmq.errors import IllegalArgumentError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.messages.compression import CompressionType
from cometmq.protocol.messages.properties import decode_properties
from cometmq.spark.sink.columns import Outbound
from cometmq.spark.sink.packing import MAX_BATCH_MESSAGES, Packing

QUEUES = [MessageQueue("orders", f"broker-{b}", at) for b in "ab" for at in range(4)]
MAP = pa.map_(pa.string(), pa.string())
LIST = pa.list_(pa.string())


def messages(columns: dict[str, Any], *, keep_origin: bool = False) -> Any:
    batch = pa.record_batch(columns)
    ids = [f"ID{at}" for at in range(len(batch))]
    outbound = Outbound("orders", {"WAIT": "true"}, keep_origin=keep_origin)
    return outbound.messages(batch, ids)


def properties_of(columns: dict[str, Any], **options: Any) -> list[dict[str, str]]:
    return [decode_properties(t.decode()) for t in messages(columns, **options)["text"].to_pylist()]


def packing(batch_bytes: int = 1000, compression: CompressionType | None = None) -> Packing:
    return Packing(lambda _topic: QUEUES, batch_bytes, compression, 100)


def test_properties_of_a_received_message_do_not_go_out_again() -> None:
    received = {
        "color": "red", "KEYS": "old", "TAGS": "old", "UNIQ_KEY": "old", "PGROUP": "g",
        "TRAN_MSG": "true", "DELAY": "3", "WAIT": "false", "__SHARDINGKEY": "s", "REAL_TOPIC": "t",
    }  # fmt: skip
    column = pa.array([list(received.items())], MAP)
    assert properties_of({"body": ["x"], "properties": column}) == [
        {"UNIQ_KEY": "ID0", "color": "red", "KEYS": "old", "TAGS": "old", "__SHARDINGKEY": "s"}
        | {"WAIT": "true"}
    ]
    own = {"tags": ["new"], "keys": pa.array([["a", "b"]], LIST), "sharding_key": ["other"]}
    assert properties_of({"body": ["x"], "properties": column, **own}) == [
        {"UNIQ_KEY": "ID0", "color": "red", "KEYS": "a b", "TAGS": "new", "WAIT": "true"}
        | {"__SHARDINGKEY": "other"}
    ]


def test_origin_replaces_an_older_origin() -> None:
    time = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    columns = {
        "body": ["x"],
        "msg_id": ["M"],
        "store_time": pa.array([time], pa.timestamp("us", tz="UTC")),
        "properties": pa.array([[("ORIGIN_MSG_ID", "older"), ("a", "b")]], MAP),
    }
    assert properties_of(columns, keep_origin=True) == [
        {"UNIQ_KEY": "ID0", "ORIGIN_MSG_ID": "M", "ORIGIN_STORE_TIME": "1767225600000"}
        | {"a": "b", "WAIT": "true"}
    ]
    assert properties_of(columns)[0]["ORIGIN_MSG_ID"] == "older"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": pa.array([None], pa.string())}, "has no body"),
        ({"body": [""]}, "has no body"),
        ({"body": ["x"], "tags": ["a\x02b"]}, "0x01 or 0x02 in tags"),
        ({"body": ["x"], "keys": pa.array([["a b"]], LIST)}, "has a blank"),
        ({"body": ["x"], "keys": pa.array([[None]], LIST)}, "a key that is null"),
        ({"body": ["x"], "properties": pa.array([[("a", "")]], MAP)}, "an empty value"),
        ({"body": ["x"], "properties": pa.array([[("a\x01", "v")]], MAP)}, "0x01 or 0x02"),
        ({"body": ["x"], "properties": pa.array([[("a", "v" * 40_000)]], MAP)}, "limit is 32767"),
        ({"body": ["x" * 4_194_305]}, "limit is 4194304"),
        ({"body": ["x"], "delay_level": pa.array([-1], pa.int32())}, "delay_level -1"),
        ({"body": ["x"], "flag": pa.array([2**31])}, r"flag 2147483648, it must lie in -\d+\.\."),
        (
            {
                "body": ["x"],
                "delay_level": pa.array([1], pa.int32()),
                "deliver_time": pa.array([0], pa.timestamp("us", tz="UTC")),
            },
            "takes one of them",
        ),
    ],
)
def test_rows_that_cannot_be_sent(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(IllegalArgumentError, match=words):
        messages(columns)


def test_a_row_is_not_refused_for_the_properties_of_one_in_another_piece() -> None:
    columns = {"body": ["x", "y"], "properties": pa.array([[("a", "")], [("b", "c")]], MAP)}
    outbound = Outbound("orders", {}, keep_origin=False)
    (text,) = outbound.messages(pa.record_batch(columns).slice(1), ["ID"])["text"].to_pylist()
    assert decode_properties(text.decode()) == {"UNIQ_KEY": "ID", "b": "c"}


def test_a_topic_for_each_row_is_looked_at() -> None:
    outbound = Outbound(None, {}, keep_origin=False)
    for topic, words in ((None, "no topic"), ("a b", "a b"), ("SCHEDULE_TOPIC_XXXX", "own")):
        batch = pa.record_batch({"body": ["x"], "topic": pa.array([topic], pa.string())})
        with pytest.raises(IllegalArgumentError, match=words):
            outbound.messages(batch, ["ID"])


keys = st.none() | st.sampled_from(["", "a", "b", "ä", "K-17"])
rows = st.lists(
    st.tuples(keys, st.binary(min_size=1, max_size=300), st.sampled_from([None, None, None, 3])),
    min_size=1,
    max_size=60,
)


@given(rows, st.integers(1, 3000))
@settings(deadline=None)
def test_parcels_hold_every_row_once_and_those_of_a_key_in_order(
    rows: list[tuple[str | None, bytes, int | None]], batch_bytes: int
) -> None:
    table = {
        "body": pa.array([body for _, body, _ in rows], pa.binary()),
        "sharding_key": pa.array([key for key, _, _ in rows], pa.string()),
        "delay_level": pa.array([level for _, _, level in rows], pa.int32()),
    }
    batch = messages(table)
    parcels = list(packing(batch_bytes, CompressionType.LZ4).parcels(batch))
    sent: list[tuple[MessageQueue, str, bytes]] = []
    for parcel in parcels:
        if parcel.properties is None:
            assert len(parcel.body) <= batch_bytes
            entries = decode_batch(parcel.body)
            assert len(entries) == parcel.count <= MAX_BATCH_MESSAGES
        else:
            assert parcel.count == 1
            entries = []
            sent.append((parcel.queue, decode_properties(parcel.properties)["UNIQ_KEY"], b""))
        for entry in entries:
            properties = decode_properties(entry.properties.decode())
            sent.append((parcel.queue, properties["UNIQ_KEY"], entry.body))
        assert "DELAY" not in "".join(e.properties.decode() for e in entries)
    assert sorted(name for _, name, _ in sent) == sorted(f"ID{at}" for at in range(len(rows)))
    for queue, name, body in sent:
        key, expected, _ = rows[int(name[2:])]
        assert body in (b"", expected)
        if key:
            assert queue == queue_of_key(QUEUES, key)
    for queue in QUEUES:
        keyed = [int(n[2:]) for q, n, _ in sent if q == queue and rows[int(n[2:])][0]]
        ordered = [p for p in parcels if p.queue == queue and p.ordered]
        assert len(keyed) == sum(parcel.count for parcel in ordered)
        assert keyed == sorted(keyed)


def test_rows_of_several_topics() -> None:
    batch = pa.record_batch({"body": ["1", "2", "3"], "topic": ["a", "b", "a"]})
    outbound = Outbound(None, {}, keep_origin=False).messages(batch, ["x", "y", "z"])
    queues = {name: [MessageQueue(name, "broker-a", 0)] for name in "ab"}
    parcels = Packing(queues.__getitem__, 1000, None, 100).parcels(outbound)
    found = {p.queue.topic: [e.body for e in decode_batch(p.body)] for p in parcels}
    assert found == {"a": [b"1", b"3"], "b": [b"2"]}


def test_large_bodies_are_compressed_where_that_makes_them_smaller() -> None:
    noise = bytes(range(256))
    batch = messages({"body": pa.array([b"z" * 500, noise, b"small"], pa.binary())})
    parcels = list(packing(10_000, CompressionType.ZSTD).parcels(batch))
    assert [p.count for p in parcels] == [1, 1, 1]
    assert parcels[0].sys_flag == CompressionType.ZSTD.sys_flag
    assert (parcels[1].body, parcels[1].sys_flag) == (noise, 0)
    assert parcels[2].properties is None
