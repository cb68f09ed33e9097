"""Any bytes give a value or an error of ours, and prefixes come back."""

from __future__ import annotations

import io
from typing import Any

import fastavro
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.payloads.test_codecs import NODE, NOTHINGS, SCHEMA, TREE, Order

from cometmq.errors import UndecodableError
from cometmq.model.message import MessageExt
from cometmq.payloads import Avro, Codecs, Json, Protobuf
from cometmq.payloads.avro_walk import AvroWalk
from cometmq.payloads.framing import confluent_id, confluent_prefix, split_path, without_prefix

CODECS = Codecs(
    {
        "tree": Avro(TREE),
        "node": Avro(NODE),
        "nothings": Avro(NOTHINGS),
        "flat": Avro(SCHEMA),
        "json": Json(Order),
        "protobuf": Protobuf(Timestamp),
    }
)


@given(
    topic=st.sampled_from(["tree", "node", "nothings", "flat", "json", "protobuf"]),
    body=st.binary(max_size=200),
)
def test_any_bytes_give_a_value_or_an_error_of_ours(topic: str, body: bytes) -> None:
    message = MessageExt(topic, body)
    assert CODECS.prepare_now(message)
    try:
        _ = message.value
    except UndecodableError as error:
        assert error.topic == topic  # noqa: PT017 - either outcome is right


LEAVES = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["A", "B"]),
        "data": st.binary(min_size=2, max_size=2),
        "by_name": st.just({}),
        "children": st.just([]),
        "weight": st.floats(allow_nan=False),
        "flag": st.booleans(),
        "note": st.none() | st.text(max_size=5),
    }
)
TREES = st.recursive(
    LEAVES,
    lambda trees: st.builds(
        lambda leaf, named, children: {**leaf, "by_name": named, "children": children},
        LEAVES,
        st.dictionaries(st.text(max_size=3), trees, max_size=3),
        st.lists(trees, max_size=3),
    ),
    max_leaves=10,
)


@given(tree=TREES, cut=st.integers(min_value=1, max_value=50))
def test_a_walk_passes_what_fastavro_writes_and_nothing_that_is_cut(tree: Any, cut: int) -> None:
    parsed = fastavro.parse_schema(TREE)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, tree)
    body = out.getvalue()
    walk = AvroWalk(parsed)
    assert walk.is_needed
    walk.check(body)
    try:
        walk.check(body[:-cut])
    except (EOFError, ValueError):
        return
    raise AssertionError("a body that is cut was passed")


def test_a_schema_without_either_danger_is_not_walked() -> None:
    for schema in (SCHEMA, {"type": "array", "items": "int"}, "string", ["null", "int"]):
        assert not AvroWalk(fastavro.parse_schema(schema)).is_needed


@given(
    schema_id=st.integers(0, 2**32 - 1),
    path=st.lists(st.integers(0, 2**20), min_size=1, max_size=5),
    body=st.binary(max_size=20),
)
def test_a_prefix_comes_back(schema_id: int, path: list[int], body: bytes) -> None:
    framed = confluent_prefix(schema_id, path) + body
    assert confluent_id(framed) == schema_id
    assert split_path(without_prefix(framed)) == (path, body)
    assert without_prefix(confluent_prefix(schema_id) + body) == body
