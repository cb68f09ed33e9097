"""Expressions applied to records in the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.filters.message_filter import EVERYTHING, sql_filter
from cometmq.filtering.sql92 import compile_sql
from cometmq.model.measures.work import WorkBudget
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.properties import decode_properties, encode_properties
from cometmq.protocol.messages.record import decode_record, encode_record, properties_text

HOSTS = [pack_host("10.0.0.1", 10911), pack_host("::1", 10911)]


def record(
    properties: bytes, body: bytes = b"body", topic: bytes = b"t", born: int = 0, store: int = 0
) -> memoryview:
    return memoryview(
        encode_record(
            topic=topic,
            body=body,
            properties=properties,
            queue_id=1,
            queue_offset=2,
            physical_offset=3,
            sys_flag=0,
            born_timestamp=4,
            born_host=HOSTS[born],
            store_timestamp=5,
            store_host=HOSTS[store],
        )
    )


@pytest.mark.parametrize("topic", [b"t", b"t" * 127, b"t" * 128, b"t" * 300])
@pytest.mark.parametrize("hosts", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("body", [b"", b"\x02a\x01b\x02" * 9, b"x" * 70_000])
def test_properties_are_found_in_every_layout(
    topic: bytes, hosts: tuple[int, int], body: bytes
) -> None:
    wanted = {"a": "5", "标签": "x y", "KEYS": "k"}
    data = record(encode_properties(wanted).encode(), body, topic, *hosts)
    assert decode_properties(properties_text(data)) == wanted
    assert decode_record(data).topic == topic.decode()


def test_a_record_may_have_no_properties() -> None:
    assert properties_text(record(b"")) == ""


@given(st.binary(min_size=91, max_size=300))
def test_damaged_records_raise_nothing(data: bytes) -> None:
    decode_properties(properties_text(memoryview(data)))


def test_a_record_is_selected_by_its_properties() -> None:
    matches = sql_filter(compile_sql("a > 5")).record_matcher(WorkBudget(1_000_000))
    assert matches is not None
    outcomes = [matches(record(f"a\x01{value}\x02".encode())) for value in ("6", "5", "x")]
    assert outcomes == [True, False, False]
    assert matches(record(b"")) is False


def test_without_an_expression_no_record_is_looked_at() -> None:
    assert EVERYTHING.record_matcher(WorkBudget(1)) is None
