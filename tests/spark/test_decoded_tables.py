"""Decoded tables: each message of a topic in one of them, once, over changes of schemas, kills and damage."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from pyarrow import parquet
from tests.spark.archives import context_of
from tests.spark.arrow_work import ArrowWork
from tests.spark.kill_decoding import body_of
from tests.spark.table_archives import LATER, ORDERS, RETRIES, MadeArchive
from tests.unit.payloads.registry_server import registry
from tests.waits import SEND_WAIT_MS

from cometmq import Message, Producer
from cometmq.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.payloads.avro import AvroSchema
from cometmq.payloads.framing import confluent_prefix
from cometmq.payloads.protos import compiled, message_class
from cometmq.payloads.registry import MAX_ANSWER_BYTES
from cometmq.pipelines import archive, publish
from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.decoded import decoders, definitions
from cometmq.pipelines.archive.decoded.decoding import Decoding
from cometmq.pipelines.archive.decoded.lines import DecodedLine
from cometmq.pipelines.archive.decoded.work import SparkWork, Work
from cometmq.pipelines.archive.layout import Hour
from cometmq.pipelines.archive.schemas import ALL, COMPACT
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.pipelines.configuration import Decode
from cometmq.spark.decoding.batches import FittingIds
from cometmq.spark.decoding.frames import BodySchema, decode
from cometmq.testing.cluster import Cluster

ROOT: Final = Path(__file__).parents[2]
BOTH: Final = TableSettings(publish=["iceberg", "delta"])
ORDER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "cents": {"type": "integer"}},
    "required": ["id"],
}


def decoding(
    opened: Archive,
    rules: dict[str, Decode],
    settings: TableSettings = BOTH,
    work: Work | None = None,
    max_messages: int = 1000,
) -> Decoding:
    return Decoding(work or ArrowWork(), opened, rules, settings, max_messages=max_messages)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def json_rule(path: Path, properties: dict[str, Any] | None = None) -> Decode:
    """Return the rule with a schema of these properties, in a file beside the archive."""
    file = path.with_name(f"{path.name}.schema.json")
    schema = ORDER if properties is None else {"type": "object", "properties": properties}
    file.write_text(json.dumps(schema))
    return Decode(format="json", schema=str(file))


def avro_order(kind: str) -> str:
    """Return the Avro schema of a record with an id of this type."""
    return json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": kind}]})


def rows_in(path: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table's files as they lie there."""
    found = []
    for file in sorted((path / "_decoded" / "data" / f"topic={table}").glob("*/*.parquet")):
        found += parquet.read_table(file, partitioning=None).to_pylist()
    return sorted(found, key=lambda row: row["queue_offset"])


def iceberg_of(path: Path, table: str) -> Any:
    from pyiceberg.table import StaticTable

    metadata = path / "_decoded" / "_tables" / table / "iceberg" / "metadata"
    hint = (metadata / "version-hint.text").read_text()
    return StaticTable.from_metadata(f"{metadata}/{hint}.metadata.json")


def delta_of(path: Path, table: str) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(str(path / "_decoded" / "_tables" / table / "files"))


def test_each_message_is_in_one_table_once(spark: Any, path: Path) -> None:
    work = SparkWork(spark, compact_files=2, target_bytes=1 << 20)
    rules = {"ord*": json_rule(path)}
    with Archive(path) as opened:
        made = MadeArchive(opened, body_of)
        made.batch(COMPACT, {ORDERS: (0, 10)})
        with decoding(opened, rules, work=work) as tables:
            assert tables.lines() == [DecodedLine("orders", [], waiting=10)]
            tables.catch_up()
            made.batch(ALL, {ORDERS: (10, 5), LATER: (15, 7)})
            tables.catch_up()
            tables.catch_up()
            assert tables.lines() == [DecodedLine("orders", ["orders"], 22, 18, 4)]
            assert tables.problems(everything=True) == []
            before = rows_in(path, "orders")
            files = list((path / "_decoded" / "data").glob("*/*/*.parquet"))
            assert list(tables.compact())
            assert len(list((path / "_decoded" / "data").glob("*/*/*.parquet"))) < len(files)
            assert rows_in(path, "orders") == before
            assert tables.problems(everything=True) == []
            assert {line.problem for line in tables.published} == {None}
    good, bad = rows_in(path, "orders"), rows_in(path, "orders_undecodable")
    assert [row["queue_offset"] for row in good] == [at for at in range(22) if at % 5 != 4]
    assert [row["body_cents"] for row in good] == [row["queue_offset"] * 100 for row in good]
    assert [(row["queue_offset"], row["body"]) for row in bad] == [
        (at, body_of(at)) for at in range(4, 22, 5)
    ]
    assert "malformed" in bad[0]["undecodable"]
    assert dict(good[1]["properties"]) == {"KEYS": "O-1", "TAGS": "paid"}
    assert "body" not in good[0]
    for rows in (
        iceberg_of(path, "orders").scan().to_arrow().to_pylist(),
        delta_of(path, "orders").to_pyarrow_table().to_pylist(),
    ):
        found = sorted((row["topic"], row["queue_offset"], row["body_cents"]) for row in rows)
        assert found == [("orders", row["queue_offset"], row["body_cents"]) for row in good]


def test_spark_finds_samples_ids_and_schemas_that_fit(spark: Any, path: Path) -> None:
    work = SparkWork(spark, compact_files=0, target_bytes=1 << 20)
    text = avro_order("string")
    fits = AvroSchema(text).write({"id": "O-1"})
    bodies = [confluent_prefix(7) + fits] * 3 + [confluent_prefix(8)] * 2 + [b"x", b""]
    with Archive(path) as opened:
        MadeArchive(opened, bodies.__getitem__).batch(COMPACT, {ORDERS: (0, 7)})
        files = [opened.layout.data_of(ORDERS) / one.name for one in opened.manifests[ORDERS].files]
        ranges = {MessageQueue("orders", "broker-a", 0): (0, 7)}
        base = opened.layout.data
        assert sorted(work.sample(base, files, ranges, 100)) == sorted(bodies)
        assert len(work.sample(base, files, ranges, 2)) == 2
        assert work.schema_ids(base, files, ranges, "confluent", 9) == [7, 8]
        assert work.schema_ids(base, files, ranges, "confluent", 1) == [7]
        schema = BodySchema("AVRO", text)
        fitting = FittingIds("confluent", {7: schema, 8: schema})
        reasons = dict(work.reasons(base, files, ranges, fitting))
    assert sorted(reasons) == [7, 8]
    assert reasons[7] is None
    assert reasons[8]


def test_kills_double_and_lose_nothing(tmp_path: Path) -> None:
    schema = tmp_path / "order.json"
    schema.write_text(json.dumps(ORDER))
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.kill_decoding", str(tmp_path / "work"), str(schema)],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert not lines[-1]["killed"]
    assert len(lines) > 10
    wanted = {"orders": [at for at in range(13) if at % 5 != 4], "orders_undecodable": [4, 9]}
    for line in lines:
        for table, offsets in wanted.items():
            assert line[table] == line[f"delta {table}"] == offsets, line


def test_a_schema_that_grows_adds_columns_with_stable_ids(path: Path) -> None:
    line = {"type": "object", "properties": {"sku": {"type": "string"}}}
    first = {"id": {"type": "string"}, "lines": {"type": "array", "items": line}}
    with Archive(path) as opened:
        made = MadeArchive(opened, lambda at: b'{"id":"%d","lines":[{"sku":"x"}]}' % at)
        made.batch(COMPACT, {ORDERS: (0, 3)})
        with decoding(opened, {"orders": json_rule(path, first)}) as tables:
            tables.catch_up()
        fields = {one.name: one.field_id for one in iceberg_of(path, "orders").schema().fields}
        more = {
            "type": "object",
            "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}},
        }
        grown = {"lines": {"type": "array", "items": more}, "cents": {"type": "number"}}
        made = MadeArchive(opened, lambda at: b'{"lines":[{"sku":"y","n":1}],"cents":%d.5}' % at)
        made.batch(COMPACT, {ORDERS: (3, 2)})
        with decoding(opened, {"orders": json_rule(path, grown)}) as tables:
            tables.catch_up()
            assert tables.lines() == [DecodedLine("orders", ["orders"], 5, 5, 0)]
            assert [one.problem for one in tables.published] == [None] * 4
    table = iceberg_of(path, "orders")
    now = {one.name: one.field_id for one in table.schema().fields}
    assert now == {**fields, "body_cents": now["body_cents"]}
    wanted = [
        (0, "0", [{"sku": "x", "n": None}], None),
        (1, "1", [{"sku": "x", "n": None}], None),
        (2, "2", [{"sku": "x", "n": None}], None),
        (3, None, [{"sku": "y", "n": 1}], 3.5),
        (4, None, [{"sku": "y", "n": 1}], 4.5),
    ]
    for rows in (
        table.scan().to_arrow().to_pylist(),
        delta_of(path, "orders").to_pyarrow_table().to_pylist(),
    ):
        names = ("queue_offset", "body_id", "body_lines", "body_cents")
        assert sorted(tuple(row[name] for name in names) for row in rows) == wanted


def test_a_schema_that_a_table_cannot_follow_begins_a_new_version(path: Path) -> None:
    with Archive(path) as opened:
        made = MadeArchive(opened, lambda at: b'{"id":"%d"}' % at)
        made.batch(COMPACT, {ORDERS: (0, 3)})
        with decoding(opened, {"orders": json_rule(path, {"id": {"type": "string"}})}) as tables:
            tables.catch_up()
        made = MadeArchive(opened, lambda at: b'{"id":%d}' % at)
        made.batch(COMPACT, {ORDERS: (3, 2)})
        with decoding(opened, {"orders": json_rule(path, {"id": {"type": "integer"}})}) as tables:
            tables.catch_up()
            assert tables.lines() == [DecodedLine("orders", ["orders", "orders_v2"], 5, 5, 0)]
        # The schema of before goes on in the table that has it.
        made.batch(COMPACT, {ORDERS: (5, 1)})
        with decoding(opened, {"orders": json_rule(path, {"id": {"type": "string"}})}) as tables:
            tables.catch_up()
            assert tables.lines() == [DecodedLine("orders", ["orders", "orders_v2"], 6, 5, 1)]
    assert [row["body_id"] for row in rows_in(path, "orders")] == ["0", "1", "2"]
    assert [row["body_id"] for row in rows_in(path, "orders_v2")] == [3, 4]
    assert [row["body"] for row in rows_in(path, "orders_undecodable")] == [b'{"id":5}']
    assert iceberg_of(path, "orders_v2").scan().to_arrow().num_rows == 2


def test_a_round_decodes_one_batch_of_each_topic(path: Path) -> None:
    with Archive(path) as opened:
        made = MadeArchive(opened, body_of)
        made.batch(COMPACT, {ORDERS: (0, 10), RETRIES: (0, 5)})
        with decoding(opened, {"*": json_rule(path)}, max_messages=4) as tables:
            assert tables.waits(also_failing=False)
            assert list(tables.batches(all_of_them=False)) == [4, 4]
            assert {one.topic: one.waiting for one in tables.lines()} == {
                "orders": 6,
                "%RETRY%g": 1,
            }
            # A stream that is stopped ends after the batch that it has begun.
            assert next(tables.batches(all_of_them=False)) == 1
            assert {one.waiting for one in tables.lines()} == {6, 0}
            assert tables.waits(also_failing=False)
            assert list(tables.batches(all_of_them=True)) == [4, 2]
            assert not tables.waits(also_failing=False)
            assert list(tables.batches(all_of_them=False)) == []
            assert list(tables.expire()) == [None] * 4


def test_what_fails_is_not_tried_again_without_a_pause(path: Path) -> None:
    with Archive(path) as opened:
        MadeArchive(opened, lambda at: b"[]").batch(COMPACT, {ORDERS: (0, 4)})
        with decoding(opened, {"*": Decode(format="json")}, max_messages=2) as tables:
            assert list(tables.batches(all_of_them=True)) == []
            assert not tables.waits(also_failing=False)


def test_an_inferred_schema_stays_as_it_is(path: Path) -> None:
    rule = {"orders": Decode(format="json")}
    with Archive(path) as opened:
        made = MadeArchive(opened, lambda at: b"[]")
        made.batch(COMPACT, {ORDERS: (0, 2)})
        with decoding(opened, rule) as tables:
            tables.catch_up()
            (line,) = tables.lines()
            assert line.waiting == 2
            assert "give schema in the table [decode.orders]" in (line.problem or "")
        made = MadeArchive(opened, lambda at: b'{"id":"%d","n":%d}' % (at, at))
        made.batch(COMPACT, {ORDERS: (2, 3)})
        with decoding(opened, rule) as tables:
            tables.catch_up()
            assert tables.lines() == [DecodedLine("orders", ["orders"], 5, 3, 2)]
        made = MadeArchive(opened, lambda at: b'{"id":%d,"more":1}' % at)
        made.batch(COMPACT, {ORDERS: (5, 1)})
        with decoding(opened, rule) as tables:
            tables.catch_up()
            assert tables.lines() == [DecodedLine("orders", ["orders"], 6, 3, 3)]
    assert [(row["body_id"], row["body_n"]) for row in rows_in(path, "orders")] == [
        (str(at), at) for at in (2, 3, 4)
    ]


def test_avro_and_protobuf_topics_have_tables_of_their_own(spark: Any, path: Path) -> None:
    avro = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "string"},
            {
                "name": "counts",
                "type": {"type": "map", "values": {"type": "array", "items": "int"}},
            },
        ],
    }
    proto = 'syntax = "proto3"; message Order { string id = 1; map<string, uint64> big = 2; }'
    path.parent.joinpath("order.avsc").write_text(json.dumps(avro))
    path.parent.joinpath("order.proto").write_text(proto)
    order = message_class(compiled(proto), "Order")
    rules = {
        "orders": Decode(format="avro", schema=str(path.parent / "order.avsc")),
        "%RETRY*": Decode(
            format="protobuf", schema=str(path.parent / "order.proto"), message="Order"
        ),
    }

    with Archive(path) as opened:
        written = AvroSchema(json.dumps(avro))
        made = MadeArchive(opened, lambda at: written.write({"id": f"{at}", "counts": {"a": [at]}}))
        made.batch(COMPACT, {ORDERS: (0, 3)})
        made = MadeArchive(
            opened, lambda at: order(id=f"{at}", big={"a": 2**64 - 1}).SerializeToString()
        )
        made.batch(COMPACT, {RETRIES: (0, 2)})
        work = SparkWork(spark, compact_files=2, target_bytes=1 << 20)
        with decoding(opened, rules, work=work) as tables:
            tables.catch_up()
            assert [one.problem for one in tables.published] == [None] * 8
            assert tables.lines() == [
                DecodedLine("%RETRY%g", ["_RETRY_g"], 2, 2, 0),
                DecodedLine("orders", ["orders"], 3, 3, 0),
            ]
    rows = iceberg_of(path, "_RETRY_g").scan().to_arrow().to_pylist()
    assert {(row["topic"], row["body_id"], str(row["body_big"])) for row in rows} == {
        ("%RETRY%g", f"{at}", f"[('a', Decimal('{2**64 - 1}'))]") for at in range(2)
    }
    rows = delta_of(path, "orders").to_pyarrow_table().to_pylist()
    assert sorted(str(row["body_counts"]) for row in rows) == [
        f"[('a', [{at}])]" for at in range(3)
    ]


def test_each_schema_of_a_registry_has_its_table(path: Path) -> None:
    with registry() as served, Archive(path) as opened:
        served.authorization = "Bearer secret"
        path.with_name("token").write_text("secret\n")
        texts = {
            served.add(avro_order(kind)): (kind, avro_order(kind))
            for kind in ("int", "long", "string")
        }
        other = served.add("{}", "JSON")

        def body(at: int) -> bytes:
            if at == 8:
                return b"x"
            schema_id = [*texts, 999, other][at % 5]
            if schema_id not in texts:
                return confluent_prefix(schema_id) + b"?"
            kind, text = texts[schema_id]
            value = f"O-{at}" if kind == "string" else at
            return confluent_prefix(schema_id) + AvroSchema(text).write({"id": value})

        rule = Decode(
            format="avro",
            registry=served.url,
            wire="confluent",
            registry_token_file=str(path.with_name("token")),
        )
        MadeArchive(opened, body).batch(COMPACT, {ORDERS: (0, 10)})
        served.status = 503
        with decoding(opened, {"orders": rule}) as tables:
            tables.catch_up()
            (line,) = tables.lines()
            assert (line.waiting, line.tables) == (10, [])
            assert "HTTP status 503" in (line.problem or "")
            # Nothing was wrong with the messages.
            served.status = None
            tables.catch_up()
            assert tables.lines() == [DecodedLine("orders", ["orders", "orders_v2"], 10, 6, 4)]
            MadeArchive(opened, body).batch(COMPACT, {ORDERS: (10, 2)})
            tables.catch_up()
            assert tables.lines() == [DecodedLine("orders", ["orders", "orders_v2"], 12, 8, 4)]
            assert {one.problem for one in tables.published} == {None}
    assert [row["body_id"] for row in rows_in(path, "orders")] == [0, 1, 5, 6, 10, 11]
    assert [row["body_id"] for row in rows_in(path, "orders_v2")] == ["O-2", "O-7"]
    reasons = {
        row["queue_offset"]: row["undecodable"] for row in rows_in(path, "orders_undecodable")
    }
    assert sorted(reasons) == [3, 4, 8, 9]
    assert "schema 999: the registry" in reasons[3]
    assert "its kind is JSON, not AVRO" in reasons[4]
    assert "does not begin with 0" in reasons[8]


@pytest.mark.parametrize(
    ("status", "waiting", "asked"), [(403, 0, 2), (503, 2, 1), (401, 2, 1), (200, 0, 2)]
)
def test_only_a_registry_that_says_nothing_of_a_schema_makes_messages_wait(
    path: Path, status: int, waiting: int, asked: int
) -> None:
    with registry() as served, Archive(path) as opened:
        texts = [avro_order("string"), avro_order("int")]
        values = ["O-1", 1]
        ids = [served.add(text) for text in texts]

        def body(at: int) -> bytes:
            written = AvroSchema(texts[at % 2]).write({"id": values[at % 2]})
            return confluent_prefix(ids[at % 2]) + written

        rule = Decode(format="avro", registry=served.url, wire="confluent")
        MadeArchive(opened, body).batch(COMPACT, {ORDERS: (0, 1), RETRIES: (0, 1)})
        with decoding(opened, {"*": rule}) as tables:
            tables.catch_up()
            assert [one.rows for one in tables.lines()] == [1, 1]
            MadeArchive(opened, body).batch(COMPACT, {ORDERS: (1, 1), RETRIES: (1, 1)})
            served.status = status
            if status == 200:
                served.body = b'{"schema": "' + b"x" * MAX_ANSWER_BYTES + b'"}'
            served.asked.clear()
            tables.catch_up()
            assert sum(one.waiting for one in tables.lines()) == waiting
            # The second topic does not ask again in this round.
            assert len(served.asked) == asked
            served.status = served.body = None
            tables.catch_up()
            assert sum(one.waiting for one in tables.lines()) == 0


def test_damage_stops_one_topic_and_is_named(path: Path) -> None:
    with Archive(path) as opened:
        made = MadeArchive(opened, body_of)
        made.batch(COMPACT, {ORDERS: (0, 3)})
        made.batch(COMPACT, {RETRIES: (0, 3)})
        (file,) = (path / "data" / "topic=orders").glob("*/*.parquet")
        whole = file.read_bytes()
        rows = parquet.read_table(file, partitioning=None)
        parquet.write_table(rows.slice(1), file)
        with decoding(opened, {"*": json_rule(path)}) as tables:
            tables.catch_up()
            orders, retries = sorted(tables.lines(), key=lambda one: one.topic, reverse=True)
            assert (orders.waiting, orders.rows) == (3, 0)
            assert "have 2 of the 3 messages" in (orders.problem or "")
            assert (retries.waiting, retries.rows) == (0, 3)
            # The staged files of each failed round are removed, or they would fill the disk.
            assert list((path / "_decoded" / "_staging").rglob("*.parquet")) == []
            file.write_bytes(whole)
            tables.catch_up()
            assert all(line.holds and line.problem is None for line in tables.lines())
            (decoded,) = (path / "_decoded" / "data" / "topic=orders").glob("*/*.parquet")
            parquet.write_table(parquet.read_table(decoded, partitioning=None).slice(1), decoded)
            (problem,) = tables.problems(everything=False)
            assert (problem.kind, problem.file) == ("file changed", decoded.name)
            assert "remove" in problem.detail
            assert [one.file for one in tables.problems(everything=True)] == [decoded.name]


def test_hours_that_leave_the_archive_leave_the_tables(path: Path) -> None:
    with Archive(path) as opened:
        made = MadeArchive(opened, body_of)
        made.batch(COMPACT, {ORDERS: (0, 5), LATER: (5, 4)})
        with decoding(opened, {"orders": json_rule(path)}) as tables:
            tables.catch_up()
            made.remove(ORDERS, [file.name for file in opened.manifests[ORDERS].files])
            tables.catch_up()
            tables.catch_up()
            assert tables.problems(everything=True) == []
    assert [row["queue_offset"] for row in rows_in(path, "orders")] == [5, 6, 7, 8]
    assert rows_in(path, "orders_undecodable") == []
    assert iceberg_of(path, "orders").scan().to_arrow().num_rows == 4
    assert delta_of(path, "orders_undecodable").to_pyarrow_table().num_rows == 0


@pytest.mark.timeout(1500)
@pytest.mark.cluster
def test_an_archive_of_a_cluster_decodes_what_it_archives(
    spark: Any, cluster: Cluster, path: Path
) -> None:
    with Producer(
        "decoded-filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS
    ) as producer:
        for at in range(20):
            producer.send(Message("decoded", body_of(at), keys=f"O-{at}"))
    config = archive.Config(
        path=str(path), topics=["decoded"], publish=["iceberg"], max_messages=12, verify="all"
    )
    context = dataclasses.replace(
        context_of(spark, cluster.namesrv), decode={"deco*": json_rule(path)}
    )
    for _ in range(2):
        report = archive.run(config, context)
        assert report.holds, report.summary
        assert report.decoded == [DecodedLine("decoded", ["decoded"], 20, 16, 4)]
        assert [one.table for one in report.tables] == [
            "cometmq.messages",
            "cometmq.decoded",
            "cometmq.decoded_undecodable",
        ]
    rows = iceberg_of(path, "decoded").scan().to_arrow().to_pylist()
    assert sorted(row["body_cents"] for row in rows) == [
        at * 100 for at in range(20) if at % 5 != 4
    ]
    assert {row["topic"] for row in rows} == {"decoded"}


def test_decoded_tables_are_published_later(path: Path) -> None:
    with Archive(path) as opened:
        MadeArchive(opened, body_of).batch(COMPACT, {ORDERS: (0, 5)})
        with decoding(opened, {"orders": json_rule(path)}, TableSettings()) as tables:
            tables.catch_up()
            assert tables.published == []
    report = publish.run(publish.Config(path=str(path)), context_of(None, None))
    assert report.holds
    assert {one.table for one in report.tables if one.format == "iceberg"} == {
        "cometmq.messages",
        "cometmq.orders",
        "cometmq.orders_undecodable",
    }
    assert delta_of(path, "orders").to_pyarrow_table().num_rows == 4


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"orders": Decode(format="json", schema="/none.json")}, "cannot be read: No such file"),
        ({"ord*": Decode(format="json", table="one")}, r"\[decode.ord\*\]: table is 'one'"),
    ],
)
def test_rules_that_do_not_fit_are_refused(path: Path, rules: dict[str, Decode], said: str) -> None:
    with Archive(path) as opened, pytest.raises(ConfigError, match=said):
        decoding(opened, rules)


def test_two_topics_do_not_share_a_table(path: Path) -> None:
    rule = json_rule(path)
    named = Decode(format="json", schema=rule.schema, table="Orders")
    with (
        Archive(path) as opened,
        pytest.raises(ConfigError, match=r"give \[decode\.%RETRY%g\] another name as `table`"),
    ):
        decoding(opened, {"orders": rule, "%RETRY%g": named})


def test_a_table_that_another_topic_has_stops_one_topic(path: Path) -> None:
    rule = json_rule(path)
    dots = Hour("or-ders", ORDERS.hour)
    with Archive(path) as opened:
        made = MadeArchive(opened, body_of)
        made.batch(COMPACT, {dots: (0, 2), Hour("or_ders", ORDERS.hour): (0, 2), RETRIES: (0, 2)})
        with decoding(opened, {"*": rule}) as tables:
            tables.catch_up()
            lines = {one.topic: one for one in tables.lines()}
            assert {topic: one.waiting for topic, one in lines.items()} == {
                "%RETRY%g": 0,
                "or-ders": 0,
                "or_ders": 2,
            }
            assert "topic or-ders has the table or_ders" in (lines["or_ders"].problem or "")


def test_schemas_beyond_the_most_versions_make_their_messages_undecodable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "MOST_VERSIONS", 2)
    kinds = ["int", "string", "bytes", "boolean"]
    values = [1, "a", b"a", True]
    with registry() as served, Archive(path) as opened:
        texts = [avro_order(kind) for kind in kinds]
        ids = [served.add(text) for text in texts]

        def body(at: int) -> bytes:
            written = AvroSchema(texts[at % 4]).write({"id": values[at % 4]})
            return confluent_prefix(ids[at % 4]) + written

        rule = Decode(format="avro", registry=served.url, wire="confluent")
        MadeArchive(opened, body).batch(COMPACT, {ORDERS: (0, 8)})
        with decoding(opened, {"orders": rule}) as tables:
            tables.catch_up()
            assert tables.lines() == [DecodedLine("orders", ["orders", "orders_v2"], 8, 4, 4)]
    reasons = {row["undecodable"] for row in rows_in(path, "orders_undecodable")}
    assert len(reasons) == 2
    assert all("has 2 tables, the limit MOST_VERSIONS" in reason for reason in reasons)


def test_a_registry_is_asked_for_so_many_schemas_of_a_batch(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "MOST_IDS", 2)
    with registry() as served, Archive(path) as opened:
        texts = [avro_order("string"), avro_order("int")]
        values = ["O-1", 1]
        ids = [served.add(text) for text in texts]

        def body(at: int) -> bytes:
            if at % 3 == 2:
                return confluent_prefix(1000 + at)
            written = AvroSchema(texts[at % 3]).write({"id": values[at % 3]})
            return confluent_prefix(ids[at % 3]) + written

        rule = Decode(format="avro", registry=served.url, wire="confluent")
        MadeArchive(opened, body).batch(COMPACT, {ORDERS: (0, 12)})
        with decoding(opened, {"orders": rule}) as tables:
            tables.catch_up()
            assert tables.lines() == [DecodedLine("orders", ["orders", "orders_v2"], 12, 8, 4)]
        assert sorted(served.asked) == [("GET", f"/schemas/ids/{one}") for one in ids]
    rows = rows_in(path, "orders_undecodable")
    assert [row["queue_offset"] for row in rows] == [2, 5, 8, 11]
    assert all("the limit MOST_IDS" in row["undecodable"] for row in rows)


def test_a_schema_that_has_read_no_body_defines_no_table(path: Path) -> None:
    with registry() as served, Archive(path) as opened:
        own, foreign = (served.add(avro_order(kind)) for kind in ("string", "boolean"))
        good = confluent_prefix(own) + AvroSchema(avro_order("string")).write({"id": "O-1"})
        rule = Decode(format="avro", registry=served.url, wire="confluent")
        MadeArchive(opened, lambda at: confluent_prefix(foreign)).batch(COMPACT, {ORDERS: (0, 2)})
        with decoding(opened, {"orders": rule}) as tables:
            tables.catch_up()
            (line,) = tables.lines()
            assert (line.tables, line.waiting) == ([], 2)
            assert "no body of it can be read: " in (line.problem or "")
            MadeArchive(opened, lambda at: good).batch(COMPACT, {ORDERS: (2, 2)})
            tables.catch_up()
            assert tables.lines() == [DecodedLine("orders", ["orders"], 4, 2, 2)]
    reasons = {row["undecodable"] for row in rows_in(path, "orders_undecodable")}
    assert all(f"schema {foreign}: no body of it can be read" in one for one in reasons)


def test_a_frame_of_messages_is_decoded(spark: Any) -> None:
    schema = BodySchema("JSON", json.dumps(ORDER))
    bodies = [(at, bytearray(body_of(at))) for at in range(10)]
    frame = spark.createDataFrame(bodies, "at int, body binary")
    rows = decode(frame, schema).orderBy("at").collect()
    assert rows[3].asDict() == {
        "at": 3,
        "body": bytearray(body_of(3)),
        "body_id": "O-3",
        "body_cents": 300,
        "undecodable": None,
    }
    assert [row.at for row in rows if row.undecodable is not None] == [4, 9]
    assert decode(frame, schema).where("body_cents > 700").count() == 1
    with pytest.raises(ValueError, match="no binary column `body`"):
        decode(frame.drop("body"), schema)
    with pytest.raises(ValueError, match="columns that decoding adds: body_id"):
        decode(frame.selectExpr("*", "1 AS body_id"), schema)
