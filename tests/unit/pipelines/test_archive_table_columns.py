"""Test the columns of published tables: Iceberg finds a column in a file by its place in this list."""

from __future__ import annotations

from cometmq.pipelines.archive.tables.columns import RESERVED, TABLE


def test_places_of_columns_never_change() -> None:
    """Tables of earlier releases have these ids, counted from 1, and these types."""
    assert list(TABLE.items()) == [
        ("topic", "string"),
        ("broker", "string"),
        ("queue_id", "int"),
        ("queue_offset", "bigint"),
        ("commit_log_offset", "bigint"),
        ("msg_id", "string"),
        ("batch_msg_id", "string"),
        ("body", "binary"),
        ("properties", "map<string,string>"),
        ("born_time", "timestamp"),
        ("store_time", "timestamp"),
        ("born_host", "string"),
        ("store_host", "string"),
        ("reconsume_times", "int"),
        ("flag", "int"),
        ("sys_flag", "int"),
        ("body_crc", "int"),
        ("prepared_transaction_offset", "bigint"),
    ]
    assert list(RESERVED.items()) == [
        ("keys", "array<string>"),
        ("tags", "string"),
        ("transaction_type", "string"),
        ("transaction_id", "string"),
        ("delay_level", "int"),
        ("deliver_time", "timestamp"),
        ("offset_msg_id", "string"),
    ]
