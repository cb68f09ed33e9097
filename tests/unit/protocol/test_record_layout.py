"""The table of a record's fields agrees with the bytes that `encode_record` and Java make."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from cometmq.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record import decode_record, encode_record
from cometmq.protocol.messages.record_columns import field
from cometmq.protocol.messages.record_layout import (
    BODY_AT,
    FIELDS,
    FIXED_V4,
    HEAD,
    record_struct,
    wider_by,
)

VALUES: dict[str, Any] = {
    "queue_id": -3,
    "flag": 7,
    "queue_offset": 2**40 + 1,
    "physical_offset": 2**50 + 2,
    "sys_flag": 0x101,
    "born_timestamp": 1_700_000_000_001,
    "born_host": pack_host("10.0.0.9", 50000),
    "store_timestamp": 1_700_000_000_002,
    "store_host": pack_host("10.0.0.1", 10911),
    "reconsume_times": 5,
    "prepared_transaction_offset": -1,
}


def record(**fields: Any) -> bytes:
    given = {"topic": b"orders", "body": b"body", "properties": b"", **VALUES, **fields}
    return encode_record(**given)


def test_structs_are_those_that_java_writes() -> None:
    assert FIXED_V4.format == ">IIIiiqqiq8sq8siqi"
    assert HEAD.format == ">II"


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_field_is_read_where_the_table_says(name: str) -> None:
    one = record_struct(name)
    assert one.unpack_from(record(), FIELDS[name].at) == (VALUES[name],)


def test_a_struct_passes_over_fields_that_are_not_named_and_keeps_groups_as_bytes() -> None:
    some = record_struct("size", ("flag",), "sys_flag", ("born_timestamp", "born_host"))
    data = record()
    assert some.unpack_from(data) == (len(data), data[16:20], 0x101, data[40:56])
    assert some.size == FIELDS["store_timestamp"].at


def test_a_pair_is_size_and_magic_in_one_number() -> None:
    data = record()
    (pair,) = record_struct("size_and_magic").unpack_from(data)
    size, magic = HEAD.unpack_from(data)
    assert pair == size << 32 | magic


@pytest.mark.parametrize("name", [name for name, one in FIELDS.items() if one.code != "8s"])
def test_numpy_reads_the_same_numbers_as_struct(name: str) -> None:
    data = record() + record(queue_id=4, flag=-1)
    starts = np.array([0, len(record())], np.int64)
    one = record_struct(name)
    expected = [one.unpack_from(data, start + FIELDS[name].at)[0] for start in starts.tolist()]
    assert field(data, name, starts).tolist() == expected


@pytest.mark.parametrize("born", [8, 20])
@pytest.mark.parametrize("store", [8, 20])
def test_wider_hosts_move_the_body_as_far_as_said(born: int, store: int) -> None:
    data = record(born_host=bytes(born), store_host=bytes(store))
    sys_flag = decode_record(data).sys_flag
    assert (bool(sys_flag & BORN_HOST_V6), bool(sys_flag & STORE_HOST_V6)) == (born > 8, store > 8)
    at = BODY_AT + wider_by(sys_flag)
    assert data[at : at + 4] == b"body"
    assert struct.unpack_from(">i", data, at - 4) == (4,)
