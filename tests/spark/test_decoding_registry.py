"""Test that each body is decoded by the registered schema that its message names."""

from __future__ import annotations

import json
import pickle
from typing import Any, Final

import pyarrow as pa
import pytest
from tests.unit.payloads.registry_server import registry

from cometmq.errors import ConfigError, IllegalArgumentError, SchemaRegistryError
from cometmq.payloads.avro import AvroSchema
from cometmq.payloads.framing import confluent_prefix
from cometmq.spark.decoding import batches
from cometmq.spark.decoding.batches import BodyDecoder
from cometmq.spark.decoding.columns import columns_with
from cometmq.spark.decoding.frames import decode
from cometmq.spark.decoding.readers import BodySchema, reader_of
from cometmq.spark.decoding.registries import Registry


def avro_schema(*fields: dict[str, Any]) -> BodySchema:
    return BodySchema("AVRO", json.dumps({"type": "record", "name": "Order", "fields": fields}))


ORDER: Final[list[dict[str, Any]]] = [
    {"name": "id", "type": "string"},
    {"name": "cents", "type": "long"},
]
# A later schema with an additional field and a renamed one.
LATER: Final[list[dict[str, Any]]] = [
    {"name": "id", "type": "string"},
    {"name": "price", "type": "long", "aliases": ["cents"]},
    {"name": "shop", "type": "string"},
]


def avro_body(schema_id: int, schema: BodySchema, value: dict[str, Any]) -> bytes:
    body: bytes = AvroSchema(schema.text).write(value)
    return confluent_prefix(schema_id) + body


def test_each_body_is_read_by_the_schema_of_a_registry_that_it_names(spark: Any) -> None:
    with registry() as served:
        old, new = avro_schema(*ORDER), avro_schema(*LATER)
        first, second = served.add(old.text), served.add(new.text)
        other = served.add("{}", "JSON")
        bodies = [
            avro_body(first, old, {"id": "a", "cents": 7}),
            avro_body(second, new, {"id": "b", "price": 8, "shop": "s"}),
            confluent_prefix(other) + b"{}",
            confluent_prefix(999) + b"x",
            b"plain",
        ]
        frame = spark.createDataFrame(list(enumerate(bodies)), "at int, body binary")
        place = Registry(served.url)
        typed = decode(frame, first, wire="confluent", registry=place)
        rows = typed.orderBy("at").collect()
        assert [(row.body_id, row.body_cents) for row in rows[:2]] == [("a", 7), ("b", 8)]
        reasons = [row.undecodable for row in rows]
        assert reasons[:2] == [None, None]
        assert f"schema {other}: its kind is JSON, not AVRO" in reasons[2]
        assert "schema 999: the registry" in reasons[3]
        assert "does not begin with 0" in reasons[4]
        # The same ids in a property, and a schema that the program has itself.
        sent = spark.createDataFrame(
            [
                (body[5:], {"SCHEMA_ID": str(at)})
                for body, at in zip(bodies, (first, second), strict=False)
            ],
            "body binary, properties map<string,string>",
        )
        found = decode(sent, new, wire="property", registry=place).orderBy("body_id").collect()
        assert [(row.body_id, row.body_shop) for row in found] == [("a", None), ("b", "s")]


def test_a_registry_that_does_not_answer_fails_the_task_and_is_asked_again() -> None:
    with registry() as served:
        schema = avro_schema(*ORDER)
        known = served.add(schema.text)
        batch = pa.record_batch({"body": [avro_body(known, schema, {"id": "a", "cents": 7})]})
        columns = columns_with((), reader_of(schema))
        decoder = BodyDecoder(
            columns, {}, "confluent", known_ids=True, find=Registry(served.url).schema
        )
        decoder = pickle.loads(pickle.dumps(decoder))
        served.status = 500
        with pytest.raises(SchemaRegistryError):
            list(decoder([batch]))
        served.status = None
        (found,) = decoder([batch])
        assert found.column("body_cents").to_pylist() == [7]


def test_a_task_asks_for_a_bounded_number_of_schemas() -> None:
    asked = []

    def find(schema_id: int) -> str:
        asked.append(schema_id)
        return "it is not there"

    bodies = [confluent_prefix(at) for at in range(300) for _ in range(2)]
    columns = columns_with((), reader_of(avro_schema(*ORDER)))
    decoder = BodyDecoder(columns, {}, "confluent", known_ids=True, find=find)
    (found,) = decoder([pa.record_batch({"body": bodies})])
    reasons = found.column("undecodable").to_pylist()
    assert asked == list(range(batches.MOST_LOOKED_UP))
    assert "it is not there" in reasons[0]
    assert "the limit MOST_LOOKED_UP" in reasons[-1]


def test_arguments_of_decode_that_do_not_fit_together_are_refused(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = spark.createDataFrame([(b"x",)], "body binary")
    schema = avro_schema(*ORDER)
    with registry() as served:
        place = Registry(served.url)
        monkeypatch.setenv("COMET_TOKEN", "t0ken")
        secret = Registry(served.url, token_env="COMET_TOKEN")
        assert b"t0ken" not in pickle.dumps(secret)
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"schema": 17}, "schema 17 and no registry"),
            ({"schema": schema, "wire": "property"}, "wire='property' and no registry"),
            ({"schema": schema, "registry": place}, 'wire="plain", where messages name no schema'),
            (
                {"schema": schema, "registry": place, "wire": "property"},
                "reads the column properties",
            ),
            (
                {"schema": 17, "registry": place, "wire": "confluent"},
                "schema 17 cannot be used: the reg",
            ),
        ]
        for given, words in wrong:
            with pytest.raises(IllegalArgumentError, match=words):
                decode(frame, **given)
        # Another id: the registry is not asked twice for one that it does not have.
        served.authorization = "Bearer t0ken"
        with pytest.raises(SchemaRegistryError, match="401"):
            decode(frame, 18, wire="confluent", registry=place)
        with pytest.raises(IllegalArgumentError, match="schema 18 cannot be used"):
            decode(frame, 18, wire="confluent", registry=secret)
    with pytest.raises(IllegalArgumentError, match="token_file and token_env, not both"):
        Registry("http://h", token_file="/a", token_env="A")
    with pytest.raises(ConfigError, match="scheme 'ftp' and the host 'h'"):
        Registry("ftp://h").client()


@pytest.mark.parametrize("password", ["s3cret", "s3cret/more"])
def test_a_password_in_the_url_of_a_registry_is_refused_without_naming_it(password: str) -> None:
    with pytest.raises(ConfigError, match="user=… and password=… beside it") as refused:
        Registry(f"http://bob:{password}@127.0.0.1:8081").client()
    assert "s3cret" not in str(refused.value)
