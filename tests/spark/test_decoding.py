"""Bodies become columns, those that do not fit a reason, and schemas change without changing what is there."""

from __future__ import annotations

import base64
import json
import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from cometmq.errors import IllegalArgumentError
from cometmq.payloads.avro import AvroSchema
from cometmq.payloads.avro_walk import MAX_AVRO_VALUES
from cometmq.payloads.framing import confluent_prefix
from cometmq.payloads.protos import compiled, message_class
from cometmq.spark.decoding import batches, json_bodies, kinds
from cometmq.spark.decoding.batches import BodyDecoder
from cometmq.spark.decoding.columns import Column, columns_with
from cometmq.spark.decoding.readers import BodySchema, reader_of

PROTO: Final = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum State { NEW = 0; PAID = 1; }
message Order {
  string id = 1;
  optional int32 count = 2;
  uint64 big = 3;
  repeated State states = 4;
  map<string, Item> items = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.Int64Value wrapped = 7;
  google.protobuf.Struct free = 8;
  oneof pay { string card = 9; Item voucher = 10; }
  Order parent = 11;
  map<bool, int32> flags = 12;
  Nothing nothing = 13;
}
message Item { string sku = 1; int64 count = 2; }
message Nothing {}
"""


def json_schema(properties: dict[str, Any], **others: Any) -> BodySchema:
    return BodySchema("JSON", json.dumps({"type": "object", "properties": properties, **others}))


def avro_schema(*fields: dict[str, Any]) -> BodySchema:
    return BodySchema("AVRO", json.dumps({"type": "record", "name": "Order", "fields": fields}))


def decoded(schema: BodySchema, *bodies: bytes | None, **others: Any) -> list[dict[str, Any]]:
    """Return the decoded columns of bodies, without the prefix of their names."""
    decoder = BodyDecoder(columns_with((), reader_of(schema)), {None: schema}, **others)
    given = pa.record_batch({"body": pa.array(bodies, pa.binary())})
    # As it comes to a worker.
    rows = [row for one in pickle.loads(pickle.dumps(decoder))([given]) for row in one.to_pylist()]
    assert [row.pop("body") for row in rows] == list(bodies)
    return [{name.removeprefix("body_"): value for name, value in row.items()} for row in rows]


def types_of(schema: BodySchema) -> dict[str, str]:
    return {one.name: one.kind for one in columns_with((), reader_of(schema))}


@pytest.mark.parametrize(
    "kind",
    [
        "bigint",
        "decimal(38,2)",
        "array<map<string,struct<a:timestamp,b:array<boolean>>>>",
        "struct<a:binary,b:struct<c:date,d:double>>",
    ],
)
def test_types_are_read_as_they_are_written(kind: str) -> None:
    assert kinds.spark_type(kinds.arrow_type(kind)) == kind


@pytest.mark.parametrize("kind", ["uuid", "array<", "struct<a:bigint", "bigint>"])
def test_names_of_no_type_are_refused(kind: str) -> None:
    with pytest.raises(IllegalArgumentError, match="not the type of a decoded column"):
        kinds.arrow_type(kind)


def test_json_bodies_become_columns_by_their_schema() -> None:
    schema = json_schema(
        {
            "id": {"type": "string"},
            "cents": {"type": "integer"},
            "share": {"type": ["number", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "key": {"type": "string", "contentEncoding": "base64"},
            "state": {"enum": ["new", "paid"]},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "tree": {"$ref": "#/$defs/tree"},
            "free": {},
            "either": {"type": ["string", "integer"]},
        },
        required=["id"],
        **{
            "$defs": {
                "line": {"type": "object", "properties": {"sku-1": {"type": "string"}}},
                "tree": {
                    "type": "object",
                    "properties": {"up": {"$ref": "#/$defs/tree"}, "n": {"type": "integer"}},
                },
            }
        },
    )
    assert types_of(schema) == {
        "body_id": "string",
        "body_cents": "bigint",
        "body_share": "double",
        "body_at": "timestamp",
        "body_day": "date",
        "body_key": "binary",
        "body_state": "string",
        "body_lines": "array<struct<sku_1:string>>",
        "body_counts": "map<string,bigint>",
        "body_tree": "struct<up:string,n:bigint>",
        "body_free": "string",
        "body_either": "string",
    }
    body = {
        "id": "O-1",
        "cents": 2**63 - 1,
        "share": 1,
        "at": "2026-11-20T18:00:00.25+02:00",
        "day": "2026-11-20",
        "key": base64.b64encode(b"\0\1").decode(),
        "state": "paid",
        "lines": [{"sku-1": "a", "unknown": 1}, None],
        "counts": {"a": 1},
        "tree": {"up": {"n": 2}, "n": 1},
        "free": [1, {"a": "ü"}],
        "either": 7,
        "unknown": True,
    }
    full, bare = decoded(schema, json.dumps(body).encode(), b'{"id":"O-2","cents":null}')
    assert full == {
        "id": "O-1",
        "cents": 2**63 - 1,
        "share": 1.0,
        "at": datetime(2026, 11, 20, 16, 0, 0, 250000, UTC),
        "day": date(2026, 11, 20),
        "key": b"\0\1",
        "state": "paid",
        "lines": [{"sku_1": "a"}, None],
        "counts": [("a", 1)],
        "tree": {"up": '{"n": 2}', "n": 1},
        "free": '[1, {"a": "\\u00fc"}]',
        "either": "7",
        "undecodable": None,
    }
    assert bare == {**dict.fromkeys(full), "id": "O-2"}


def test_bodies_that_do_not_fit_get_a_reason_and_harm_no_other() -> None:
    schema = json_schema({"id": {"type": "string"}, "n": {"type": "integer"}}, required=["id"])
    rows = decoded(
        schema,
        b'{"id":"a"}',
        b'{"id":1}',
        b"{}",
        b"\xff",
        None,
        b'{"id":"b","n":9223372036854775808}',
        b"[" * 100_000,
        b'{"id":"' + b"x" * 200 + b'"}',
        b'{"id":"z"}',
        max_payload_bytes=150_000,
    )
    reasons = [row["undecodable"] for row in rows]
    assert [reasons[at] for at in (0, 7, 8)] == [None, None, None]
    for at, said in {
        1: "Expected `str`, got `int` - at `$.id`",
        2: "missing required field `id`",
        3: "malformed",
        4: "no body",
        5: "9223372036854775807",
        6: "",
    }.items():
        assert said in reasons[at]
        assert rows[at]["id"] is rows[at]["n"] is None
    (long,) = decoded(schema, b'{"id":"' + b"x" * 200 + b'"}', max_payload_bytes=100)
    assert long["undecodable"] == "the body has 209 bytes, the limit max_payload_bytes is 100"


def test_batches_are_divided_by_rows_and_bytes_and_lose_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = json_schema({"n": {"type": "integer"}})
    decoder = BodyDecoder(columns_with((), reader_of(schema)), {None: schema})
    monkeypatch.setattr(batches, "_MOST_ROWS", 10)
    monkeypatch.setattr(batches, "_MOST_BYTES", 40)
    bodies = [b'{"n":%d}' % at for at in range(25)]
    given = pa.record_batch({"body": pa.array(bodies, pa.binary()), "at": pa.array(range(25))})
    made = list(decoder([given, given.slice(0, 0)]))
    assert [row["body_n"] for one in made for row in one.to_pylist()] == list(range(25))
    assert [row["at"] for one in made for row in one.to_pylist()] == list(range(25))
    assert max(one.num_rows for one in made) == 5
    monkeypatch.setattr(batches, "_MOST_BYTES", 10**6)
    assert [one.num_rows for one in decoder([given])] == [10, 10, 5]


def test_avro_bodies_become_columns_by_their_schema() -> None:
    schema = avro_schema(
        {"name": "id", "type": "string"},
        {"name": "count", "type": ["null", "int"]},
        {"name": "either", "type": ["int", "string"]},
        {"name": "number", "type": ["int", "double"]},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "daytime", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "up", "type": ["null", "Order"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "states", "type": {"type": "array", "items": "State"}},
    )
    assert types_of(schema) == {
        "body_id": "string",
        "body_count": "bigint",
        "body_either": "string",
        "body_number": "double",
        "body_price": "decimal(38,2)",
        "body_at": "timestamp",
        "body_daytime": "string",
        "body_counts": "map<string,bigint>",
        "body_up": "string",
        "body_state": "string",
        "body_states": "array<string>",
    }
    value = {
        "id": "O-1",
        "count": None,
        "either": "x",
        "number": 3,
        "price": Decimal("1.25"),
        "at": datetime(2026, 11, 20, 16, tzinfo=UTC),
        "daytime": time(16, 0, 0, 250000),
        "counts": {"a": 1},
        "up": None,
        "state": "PAID",
        "states": ["NEW"],
    }
    avro = AvroSchema(schema.text)
    body, nested = avro.write(value), avro.write({**value, "up": {**value, "id": "O-0"}})
    first, second, cut, more = decoded(schema, body, nested, body[:-1], body + b"x")
    assert first == {
        **value,
        "either": '"x"',
        "number": 3.0,
        "counts": [("a", 1)],
        "daytime": "16:00:00.250000",
        "undecodable": None,
    }
    up = json.loads(second["up"])
    assert (up["id"], up["price"], up["at"]) == ("O-0", "1.25", "2026-11-20T16:00:00+00:00")
    assert cut["undecodable"]
    assert more["undecodable"] == "ValueError: 1 bytes are left after the value"


def test_avro_bodies_that_would_end_the_process_get_a_reason() -> None:
    schema = avro_schema({"name": "up", "type": ["null", "Order"]})
    rows = decoded(schema, b"\x02" * 3_000_000, b"\x00")
    assert "MAX_AVRO_DEPTH" in rows[0]["undecodable"]
    assert rows[1]["undecodable"] is None
    free = avro_schema({"name": "nulls", "type": {"type": "array", "items": "null"}})
    (row,) = decoded(free, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00")
    assert str(MAX_AVRO_VALUES) in row["undecodable"]


def test_protobuf_bodies_become_columns_by_their_schema() -> None:
    schema = BodySchema("PROTOBUF", PROTO, "Order")
    item = "struct<sku:string,count:bigint>"
    assert types_of(schema) == {
        "body_id": "string",
        "body_count": "bigint",
        "body_big": "decimal(38,0)",
        "body_states": "array<string>",
        "body_items": f"map<string,{item}>",
        "body_at": "timestamp",
        "body_wrapped": "bigint",
        "body_free": "string",
        "body_card": "string",
        "body_voucher": item,
        "body_parent": "string",
        "body_flags": "map<string,bigint>",
        "body_nothing": "string",
    }
    order = message_class(compiled(PROTO), "shop.Order")
    full = order(id="O-1", count=0, big=2**64 - 1, states=[1, 7])
    full.items["a"].count = 3
    full.at.FromJsonString("2026-11-20T16:00:00.5Z")
    full.wrapped.value = 4
    full.free["n"] = 1
    full.voucher.sku = "V"
    full.parent.id = "O-0"
    full.flags[True] = 1
    full.nothing.SetInParent()
    rows = decoded(schema, full.SerializeToString(), order().SerializeToString(), b"\xff")
    assert rows[0] == {
        "id": "O-1",
        "count": 0,
        "big": Decimal(2**64 - 1),
        "states": ["PAID", "7"],
        "items": [("a", {"sku": "", "count": 3})],
        "at": datetime(2026, 11, 20, 16, 0, 0, 500000, UTC),
        "wrapped": 4,
        "free": '{"n": 1.0}',
        "card": None,
        "voucher": {"sku": "V", "count": 0},
        "parent": '{"id": "O-0"}',
        "flags": [("true", 1)],
        "nothing": "{}",
        "undecodable": None,
    }
    empty = dict.fromkeys(rows[0]) | {"id": "", "big": Decimal(0)}
    assert rows[1] == {**empty, "states": [], "items": [], "flags": []}
    assert "corrupt" in rows[2]["undecodable"]
    # A registry has the descriptor in Base64.
    text = base64.b64encode(compiled(PROTO).SerializeToString()).decode()
    assert types_of(BodySchema("PROTOBUF", text, "shop.Order")) == types_of(schema)
    assert types_of(BodySchema("PROTOBUF", text)) == types_of(schema)


def test_a_time_beyond_arrow_gives_its_row_a_reason() -> None:
    schema = BodySchema("PROTOBUF", PROTO, "Order")
    order = message_class(compiled(PROTO), "shop.Order")
    late = order(id="late")
    late.at.seconds = 10**15
    rows = decoded(schema, order(id="a").SerializeToString(), late.SerializeToString())
    assert [row["undecodable"] is None for row in rows] == [True, False]


def test_bodies_of_confluents_wire_format_are_read_behind_their_prefix() -> None:
    schema = avro_schema({"name": "id", "type": "string"})
    body = AvroSchema(schema.text).write({"id": "O-1"})
    rows = decoded(schema, confluent_prefix(7) + body, body, wire="confluent")
    assert rows[0] == {"id": "O-1", "undecodable": None}
    assert "does not begin with 0" in rows[1]["undecodable"]
    order = message_class(compiled(PROTO), "shop.Order")(id="O-2").SerializeToString()
    schema = BodySchema("PROTOBUF", PROTO, "Order")
    (row,) = decoded(schema, confluent_prefix(7, [0]) + order, wire="confluent")
    assert (row["id"], row["undecodable"]) == ("O-2", None)


def test_ids_of_schemas_are_read_where_messages_have_them() -> None:
    properties: list[Any] = [[("SCHEMA_ID", "7")], [("SCHEMA_ID", "x")], [], None]
    properties += [[("SCHEMA_ID", str(2**31))], [("SCHEMA_ID", "²")]]
    batch = pa.record_batch(
        {
            "body": pa.array([b"\0\0\0\0\x09!", b"x", None, b"\0", b"", b"y"], pa.binary()),
            "properties": pa.array(properties, pa.map_(pa.string(), pa.string())),
        }
    )
    assert batches.ids_of(batch, "property") == [7, None, None, None, None, None]
    assert batches.ids_of(batch, "confluent") == [9, None, None, None, None, None]
    found = list(batches.SchemaIds("property")([batch, batch]))
    assert [one.to_pydict() for one in found] == [{"id": [7], "messages": [1]}] * 2
    schema = json_schema({"n": {"type": "integer"}})
    decoder = BodyDecoder(
        columns_with((), reader_of(schema)),
        {7: schema},
        "property",
        known_ids=True,
        elsewhere=frozenset({None}),
    )
    assert [row["undecodable"] for one in decoder([batch]) for row in one.to_pylist()] == [
        "DecodeError: JSON is malformed: invalid character (byte 0)"
    ]


def test_a_frame_of_another_message_is_not_decoded_as_the_chosen_one() -> None:
    order = message_class(compiled(PROTO), "shop.Order")(id="O-2").SerializeToString()
    item = message_class(compiled(PROTO), "shop.Item")(sku="S-1").SerializeToString()
    schema = BodySchema("PROTOBUF", PROTO, "Order")
    frames = [confluent_prefix(7, path) + item for path in ([1], [0, 0], [2], [9, 9])]
    *others, good = decoded(schema, *frames, confluent_prefix(7, [0]) + order, wire="confluent")
    assert [row["id"] for row in others] == [None] * 4
    assert "the one at [1], and the message that is decoded is at [[0]]" in others[0]["undecodable"]
    assert all("another message" in row["undecodable"] for row in others)
    assert (good["id"], good["undecodable"]) == ("O-2", None)
    schema = BodySchema("PROTOBUF", PROTO, "Item")
    first, second = decoded(schema, frames[0], confluent_prefix(7, [0]) + order, wire="confluent")
    assert (first["sku"], first["undecodable"]) == ("S-1", None)
    assert "another message" in second["undecodable"]


def test_paths_to_messages_beside_maps_are_those_of_each_serializer() -> None:
    proto = """syntax = "proto3"; message Out {
      message A { string a = 1; } map<string, int32> m = 1; message B { string b = 1; }
      message C { string c = 1; } }"""
    paths = {name: reader_of(BodySchema("PROTOBUF", proto, f"Out.{name}")).paths for name in "ABC"}
    # [0, 2] is C to Java's serializer and B to that for Go.
    assert paths == {"A": {(0, 0)}, "B": {(0, 1)}, "C": {(0, 3)}}
    assert reader_of(BodySchema("PROTOBUF", proto)).paths == {(0,)}


@pytest.mark.parametrize("text", ["0" * 11 + "9" * 30, "9" * 5000, "00000000007", None])
def test_digits_that_are_no_id_give_their_row_a_reason(text: str | None) -> None:
    schema = json_schema({"n": {"type": "integer"}})
    properties = pa.array(
        [[("SCHEMA_ID", text)], [("SCHEMA_ID", "7")]], pa.map_("string", "string")
    )
    batch = pa.record_batch(
        {"body": pa.array([b"{}", b"{}"], pa.binary()), "properties": properties}
    )
    decoder = BodyDecoder(
        columns_with((), reader_of(schema)), {7: schema}, "property", known_ids=True
    )
    assert [one.to_pydict() for one in batches.SchemaIds("property")([batch])] == [
        {"id": [7], "messages": [1]}
    ]
    rows = [row["undecodable"] for one in decoder([batch]) for row in one.to_pylist()]
    assert rows == ["the message has no property SCHEMA_ID with an id", None]


def test_schemas_of_no_record_have_one_column() -> None:
    assert types_of(BodySchema("AVRO", '"int"')) == {"body_value": "bigint"}
    numbers = BodySchema("JSON", '{"type": "array", "items": {"type": "integer"}}')
    assert decoded(numbers, b"[1,2]") == [{"value": [1, 2], "undecodable": None}]


# How schemas change


def test_what_a_schema_adds_widens_or_leaves_out_keeps_the_columns() -> None:
    first = avro_schema(
        {"name": "id", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "share", "type": "float"},
        {"name": "gone", "type": "string"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        },
    )
    later = avro_schema(
        {"name": "count", "type": ["null", "long"]},
        {"name": "share", "type": "double"},
        {"name": "id", "type": "string"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2},
        },
        {"name": "new", "type": ["null", "boolean"], "default": None},
    )
    before = columns_with((), reader_of(first))
    after = columns_with(before, reader_of(later))
    assert after == (*before, Column("body_new", "boolean", ("new",)))
    # Rows of both are rows of the table.
    body = AvroSchema(later.text).write(
        {"count": 2**40, "share": 0.5, "id": "a", "price": Decimal("1.25"), "new": True}
    )
    decoder = BodyDecoder(after, {None: later})
    (batch,) = decoder([pa.record_batch({"body": pa.array([body], pa.binary())})])
    row = batch.to_pylist()[0]
    assert (row["body_count"], row["body_new"], row["body_gone"]) == (2**40, True, None)


def test_a_renamed_field_stays_in_its_column() -> None:
    first = avro_schema({"name": "cents", "type": "int"}, {"name": "id", "type": "string"})
    later = avro_schema(
        {"name": "amount", "type": "int", "aliases": ["cents"]}, {"name": "id", "type": "string"}
    )
    before = columns_with((), reader_of(first))
    after = columns_with(before, reader_of(later))
    assert [(one.name, one.fields) for one in after] == [
        ("body_cents", ("cents", "amount")),
        ("body_id", ("id",)),
    ]
    # A third schema knows only the new name.
    assert columns_with(after, reader_of(avro_schema({"name": "amount", "type": "int"}))) == after
    # By its number in Protobuf; the new holder of the old name is another field.
    proto = 'syntax = "proto3"; message M { %s }'
    before = columns_with((), reader_of(BodySchema("PROTOBUF", proto % "string a = 1;")))
    renamed = BodySchema("PROTOBUF", proto % "string b = 1; int32 a = 2;")
    after = columns_with(before, reader_of(renamed))
    assert [(one.name, one.kind) for one in after] == [
        ("body_a", "string"),
        ("body_a_", "bigint"),
    ]


def test_records_in_columns_get_the_fields_of_both_schemas() -> None:
    def lines(*names: str) -> BodySchema:
        item = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
        return json_schema({"lines": {"type": "array", "items": item}})

    before = columns_with((), reader_of(lines("a", "b")))
    (column,) = columns_with(before, reader_of(lines("b", "c")))
    assert column.kind == "array<struct<a:string,b:string,c:string>>"


def test_fields_in_records_that_differ_by_case_are_refused() -> None:
    def line(name: str) -> BodySchema:
        return json_schema({"line": {"type": "object", "properties": {name: {"type": "string"}}}})

    before = columns_with((), reader_of(line("sku")))
    with pytest.raises(IllegalArgumentError, match=r"line\.SKU of the schema is sku in the table"):
        columns_with(before, reader_of(line("SKU")))


def doubling(depth: int) -> dict[str, BodySchema]:
    """Return schemas of short texts in which each record has the next one twice."""
    avro: Any = "string"
    for at in range(depth):
        fields = [{"name": "a", "type": avro}]
        fields.append({"name": "b", "type": f"R{at - 1}" if at else "string"})
        avro = {"type": "record", "name": f"R{at}", "fields": fields}
    proto = "".join(
        f"message R{at} {{ R{at + 1} a = 1; R{at + 1} b = 2; }} " for at in range(depth)
    )
    proto = f'syntax = "proto3"; {proto} message R{depth} {{ string a = 1; }}'
    return {"AVRO": BodySchema("AVRO", json.dumps(avro)), "PROTOBUF": BodySchema("PROTOBUF", proto)}


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF"])
def test_types_that_double_are_refused_by_their_fields(kind: str) -> None:
    assert reader_of(doubling(5)[kind]).fields
    with pytest.raises(IllegalArgumentError, match="more than 2000 fields, the limit MOST_FIELDS"):
        reader_of(doubling(24)[kind])


@pytest.mark.parametrize(
    "text",
    [
        '{"type": 5}',
        '{"type": [{}]}',
        '{"properties": {"a": {}}, "required": 5}',
        '{"properties": {"a": {}}, "required": [[]]}',
        '{"anyOf": 5}',
        '{"enum": 5}',
        "[" * 100_000,
    ],
)
def test_json_schemas_of_other_shapes_are_refused(text: str) -> None:
    with pytest.raises(IllegalArgumentError, match="it is no JSON "):
        reader_of(BodySchema("JSON", text))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"type": "string"}, {"type": "integer"}, "n is bigint in the schema and string"),
        ({"type": "integer"}, {"type": "number"}, "n is double in the schema and bigint"),
        (
            {"type": "array", "items": {"type": "string"}},
            {"type": "array", "items": {"type": "boolean"}},
            r"n\[\] is boolean",
        ),
    ],
)
def test_another_type_is_refused_with_both_types(
    old: dict[str, Any], new: dict[str, Any], said: str
) -> None:
    before = columns_with((), reader_of(json_schema({"n": old})))
    with pytest.raises(IllegalArgumentError, match=said):
        columns_with(before, reader_of(json_schema({"n": new})))


def test_names_of_message_columns_are_not_taken() -> None:
    schema = json_schema({"crc": {"type": "integer"}, "crc_": {"type": "string"}})
    assert types_of(schema) == {"body_crc_": "bigint", "body_crc__": "string"}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (BodySchema("JSON", "{"), "it is no JSON Schema"),
        (BodySchema("JSON", "[]"), "not an object"),
        (json_schema({"a": {"$ref": "other.json#/a"}}), r"refers to 'other.json#/a'"),
        (json_schema({"id": {"type": "string"}, "ID": {"type": "string"}}), "'id' and 'ID'"),
        (BodySchema("AVRO", '{"type": "recrod"}'), "it is no Avro schema"),
        (BodySchema("PROTOBUF", "message {"), "it is no Protobuf schema: line 1"),
        (BodySchema("PROTOBUF", PROTO, "Oder"), "no message 'Oder'"),
        (BodySchema("PROTOBUF", PROTO, "shop.Nothing"), "no fields"),
        (BodySchema("PROTOBUF", "?"), "it is no Protobuf schema"),
    ],
)
def test_texts_that_are_no_schema_are_refused(schema: BodySchema, said: str) -> None:
    with pytest.raises(IllegalArgumentError, match=said):
        reader_of(schema)


def test_a_sample_is_bounded_by_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_SAMPLED_BYTES", 10)
    bodies = [b"x" * 11, None, b"1234", b"5678", b"901", b""]
    given = pa.record_batch({"body": pa.array(bodies, pa.binary())})
    found = [row["body"] for one in batches.Sample(9)([given]) for row in one.to_pylist()]
    assert found == [b"", b"1234", b"5678"]
    assert list(batches.Sample(2).taken(bodies)) == [b"", b"1234"]


def test_a_schema_is_inferred_from_a_sample() -> None:
    schema = json_bodies.inferred(
        [
            b'{"id":"a","n":1,"share":1,"lines":[{"sku":"x"}],"mixed":1,"none":null,"Id":2}',
            b'{"n":null,"share":1.5,"lines":[{"count":2}],"mixed":"1","at":"2026-11-20T16:00:00Z"}',
            b"no JSON",
            b"[1]",
        ]
    )
    assert schema is not None
    assert types_of(schema) == {
        "body_id": "string",
        "body_n": "bigint",
        "body_share": "double",
        "body_lines": "array<struct<sku:string,count:bigint>>",
        "body_mixed": "string",
        "body_none": "string",
        "body_at": "string",
    }
    (row,) = decoded(schema, b'{"mixed":[1],"none":{"a":1}}')
    assert (row["mixed"], row["none"]) == ("[1]", '{"a":1}')
    assert json_bodies.inferred([b"1", b"{}", b"x"]) is None
