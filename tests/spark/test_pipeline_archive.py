"""The pipeline `archive`: what it brings is what was sent, once, and what it says of it is true."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyarrow import parquet
from pyspark.sql import functions as F
from tests.spark.archives import archived_rows, context_of, places, run, send, sent_rows
from tests.spark.audited import audited, balance, kinds
from tests.spark.hadoop_aws import ROOT
from tests.spark.processes import QUICK_DRIVER, QUICK_JAVA, inline_table
from tests.spark.standalone import HOST
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import LitePullConsumer, Message, MessageQueue, Producer
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import ConfigError, DataLossError, RemoteError
from cometmq.pipelines import archive, replay
from cometmq.pipelines.archive import source
from cometmq.pipelines.archive.batches import Batches, write_files
from cometmq.pipelines.archive.columns import with_derived
from cometmq.pipelines.archive.commits import Archive, Commit
from cometmq.pipelines.archive.layout import VERSIONS, Figures, Layout, read_files, session_for
from cometmq.pipelines.archive.proving.figures import figures
from cometmq.pipelines.archive.proving.inventory import unreadable
from cometmq.pipelines.archive.schemas import ALL, COMPACT, FIRST, Schema
from cometmq.pipelines.archive.source import LiveSource
from cometmq.pipelines.archive.staging import staged_files
from cometmq.pipelines.locations import located
from cometmq.pipelines.page import write_page
from cometmq.spark.rows.columns import COLUMNS
from cometmq.testing.cluster import Cluster

# A machine that is ten times slower is to come to an end, too.
slow = pytest.mark.timeout(2 * JVM_WAIT_S)
RETRY = "%RETRY%somebody"
GOLDEN = Path(__file__).parents[1] / "golden"


pytestmark = pytest.mark.cluster(
    brokers=2, properties={"autoCreateSubscriptionGroup": "true", "defaultTopicQueueNums": "1"}
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def safe_ends(path: Path) -> dict[tuple[str, str, int], int]:
    return {(m.topic, m.broker, m.queue_id): m.to for m in Layout(path).load_safe()}


def test_a_file_has_row_groups_that_a_range_of_offsets_can_pass_over(
    spark: Any, tmp_path: Path
) -> None:
    count = 50_000
    rows = spark.range(0, count, 1, 1).selectExpr(
        "'orders' AS topic",
        "'2026-11-20T16' AS hour",
        "'broker-a' AS broker",
        "0 AS queue_id",
        f"{count} - id AS queue_offset",
        "cast(concat_ws('', transform(sequence(1, 16), n -> sha2(concat(id, '-', n), 256))) AS binary) AS body",
    )
    write_files(in_all_columns(rows), located(tmp_path / "staged"), FIRST[COMPACT])
    (file,) = (tmp_path / "staged").glob("topic=orders/hour=*/*.parquet")
    metadata = parquet.ParquetFile(file).metadata
    names = [metadata.schema.column(at).name for at in range(metadata.num_columns)]
    offsets = names.index("queue_offset")
    groups = [
        metadata.row_group(at).column(offsets).statistics for at in range(metadata.num_row_groups)
    ]
    assert len(groups) >= 2
    assert all(one.max < other.min for one, other in pairwise(groups))
    assert metadata.num_rows == count


def in_all_columns(rows: Any) -> Any:
    """Return rows that have some columns of messages with nulls for the others."""
    missing = COLUMNS.keys() - rows.columns
    return rows.selectExpr("*", *(f"cast(null AS {COLUMNS[name]}) AS {name}" for name in missing))


def test_what_files_leave_out_is_computed_as_sources_make_it(spark: Any) -> None:
    """Values that are no numbers, empty keys, and a host whose id SQL cannot compute."""
    given = [
        ({"KEYS": " a  b ", "TAGS": "t", "DELAY": "3"}, "127.0.0.1:10911", 0, None),
        ({"DELAY": "3x", "TIMER_OUT_MS": "1700000000123"}, "10.0.255.1:80", 4, None),
        ({"TIMER_DELIVER_MS": "4000000000000", "__transactionId__": "T"}, "1.2.3.4:65535", 8, None),
        ({"TIMER_DELIVER_MS": "1\n", "KEYS": ""}, "::1:10911", 12, "KEPT"),
    ]
    frame = spark.createDataFrame(
        given,
        "properties map<string,string>, store_host string, sys_flag int, offset_msg_id string",
    ).selectExpr("*", "cast(255 AS bigint) AS commit_log_offset")
    names = [
        name for name in COLUMNS if name not in FIRST[COMPACT].columns or name == "offset_msg_id"
    ]
    derived = with_derived(in_all_columns(frame), [*names, "store_host"])
    found = {row.store_host: row for row in derived.collect()}
    first, second, third, last = (found[host] for _, host, _, _ in given)
    assert (first.keys, first.tags, first.delay_level) == (["a", "b"], "t", 3)
    assert (first.transaction_type, first.deliver_time, first.transaction_id) == (None, None, None)
    assert first.offset_msg_id == "7F00000100002A9F00000000000000FF"
    assert (second.keys, second.tags, second.delay_level) == ([], None, None)
    assert second.transaction_type == "prepared"
    assert second.deliver_time.timestamp() == pytest.approx(1700000000.123)
    assert second.offset_msg_id == "0A00FF010000005000000000000000FF"
    assert (third.transaction_type, third.transaction_id) == ("commit", "T")
    assert third.deliver_time.timestamp() == 4_000_000_000
    assert (last.keys, last.deliver_time) == ([], None)
    assert (last.transaction_type, last.offset_msg_id) == ("rollback", "KEPT")


@slow
def test_files_of_both_forms_lie_side_by_side(spark: Any, cluster: Cluster, path: Path) -> None:
    topic = "forms"
    settings: dict[str, Any] = {"topics": [topic], "compact_files": 0}
    sent = send(cluster.namesrv, topic, 20)
    assert run(spark, cluster.namesrv, path, **settings, columns="all").holds
    # As an older version leaves it, which knows one form only.
    for file in (path / "_state.json", *(path / "_manifest").rglob("*.json")):
        known = file.read_text()
        known = known.replace(f'"version":{VERSIONS[-1]}', '"version":1')
        file.write_text(known.replace(',"form":1', ""))
    shutil.rmtree(path / "_commits")
    sent += send(cluster.namesrv, topic, 20)
    assert run(spark, cluster.namesrv, path, **settings).holds
    forms = [file.form for one in Layout(path).load_manifests() for file in one.files]
    assert set(forms) == {ALL, COMPACT}
    assert Layout(path).load_state().version == VERSIONS[-1]
    rows = sent_rows(cluster.namesrv, [topic])
    assert archived_rows(spark, path) == rows
    # They are compacted apart, and proved again.
    sent += send(cluster.namesrv, topic, 20)
    settings["compact_files"] = 2
    report = run(spark, cluster.namesrv, path, **settings, verify="all")
    assert report.holds, report
    assert report.compacted_files_before > report.compacted_files_after > 0
    assert archived_rows(spark, path) == sent_rows(cluster.namesrv, [topic])
    # A body that was changed is found in a file of either form.
    for form in (ALL, COMPACT):
        name = next(
            f.name for one in Layout(path).load_manifests() for f in one.files if f.form == form
        )
        (file,) = path.rglob(name)
        sound = file.read_bytes()
        table = parquet.ParquetFile(file).read()
        at = table.schema.get_field_index("body")
        bodies = [b"another one", *table["body"].to_pylist()[1:]]
        parquet.write_table(table.set_column(at, "body", pa.array(bodies)), file)
        report = run(spark, cluster.namesrv, path, **settings, verify="all")
        assert {(one.kind, one.file) for one in report.problems} >= {("messages differ", name)}
        differ = [one for one in report.problems if one.kind == "messages differ"]
        assert [(one.file, one.first == one.last) for one in differ] == [(name, True)]
        file.write_bytes(sound)
    assert run(spark, cluster.namesrv, path, **settings, verify="all").holds


def copy_of_old_archive(path: Path) -> list[Path]:
    """Copy what version 0.2 has archived: 12 messages of one queue, proved, without `batch_msg_id`
    and in the form of its time. Return the files of data.
    """
    shutil.copytree(GOLDEN / "archive-0.2", path)
    return sorted((path / "data").rglob("*.parquet"))


@slow
def test_an_archive_of_an_older_version_is_read_continued_compacted_audited_and_replayed(
    spark: Any, cluster: Cluster, path: Path
) -> None:
    topic = "orders"
    old = {file: file.read_bytes() for file in copy_of_old_archive(path)}
    before = archived_rows(spark, path)
    assert [row["body"] for row in before] == [b"body %d" % at for at in range(12)]
    assert [row["tags"] for row in before[:3]] == ["paid", "open", None]
    assert [row["keys"] for row in before[:3]] == [[], ["O-1"], ["O-2", "C-2"]]
    assert {row["batch_msg_id"] for row in before} == {None}
    with Producer("later", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        (queue,) = (q for q in producer.queues(topic) if q.broker_name == "broker-a")
        for at in range(20):
            producer.send(Message(topic, b"later %d" % at, tags="paid"), queue=queue)
    settings: dict[str, Any] = {"topics": [topic], "verify": "all"}
    report = run(spark, cluster.namesrv, path, **settings, compact_files=0)
    assert (report.holds, report.archived) == (True, 8), report
    assert {file: file.read_bytes() for file in old} == old, "nothing is rewritten"
    rows = archived_rows(spark, path)
    assert rows[:12] == before
    assert [row["body"] for row in rows[12:]] == [b"later %d" % at for at in range(12, 20)]
    # A version to come has a further column, and this one has what it left.
    add_column(spark, path)
    report = run(spark, cluster.namesrv, path, **settings, compact_files=2)
    assert (report.holds, report.compacted_files_before, report.compacted_files_after) == (
        *(True, 2 + 2),
        1 + 1,
    ), report
    (compacted,) = (file for file in path.rglob("c*.parquet") if "note" in columns_in(file))
    assert parquet.read_table(compacted)["note"].to_pylist() == ["n"] * 8
    assert archived_rows(spark, path) == rows
    found = audited(context_of(spark, cluster.namesrv), topics=[topic], archive=str(path))
    # The log of the first twelve was another broker's.
    assert kinds(found, topic) == {("archived, but not as stored", "unexplained"): 12}
    assert balance(found, topic) == (20, 20, 20, {})
    config = replay.Config(archive=str(path), topics=[topic], tags=["paid"], dry_run=True)
    assert replay.run(config, context_of(spark, cluster.namesrv)).chosen == 4 + 8


def columns_in(file: Path) -> list[str]:
    return list(parquet.read_schema(file).names)


def add_column(spark: Any, path: Path) -> None:
    """Leave the newest file as a version leaves it whose messages have one column more: as two files
    with it.
    """
    session = session_for(spark)
    with Archive(path) as opened:
        # The old files are of the hour in which they were made, the new one is of the present hour.
        manifest = max(opened.manifests.values(), key=lambda one: one.key)
        newest = manifest.files[-1]
        old = opened.schema(newest.form)
        schema = Schema(3, {**old.columns, "note": "string"}, compact=old.compact)
        data = opened.layout.data
        rows = read_files(session, data, [opened.layout.data_of(manifest.key) / newest.name], old)
        staged = opened.new_staging()
        noted = rows.withColumn("note", F.lit("n")).drop("file").repartition(2, "queue_offset")
        write_files(noted, staged, schema)
        number = opened.state.next_batch
        files = staged_files(staged, f"b{number:08d}", number, 3).files[manifest.key]
        assert len(files) == 2
        there = [staged / manifest.key.directory / file.name for file in files]
        seen = figures(read_files(session, staged, there, schema), schema, by_file=True)
        of_file = {name: one for _, name, one in seen}
        files = tuple(replace(file, queues=(of_file[file.name],)) for file in files)
        of_new = [one for one in manifest.log if one.form != newest.form]
        after = replace(
            manifest,
            files=(*manifest.files[:-1], *files),
            log=(*of_new, reduce(Figures.plus, of_file.values())),
        )
        state = replace(opened.state, next_batch=number + 1, version=3, form=3, schemas=(schema,))
        opened.commit(Commit("files", (after,), state, staged.name))
        (opened.layout.data_of(manifest.key) / newest.name).remove()


def test_a_column_of_another_type_is_named_with_both_types_and_a_remedy(path: Path) -> None:
    file, _ = copy_of_old_archive(path)
    table = parquet.read_table(file, partitioning=None)
    at = table.schema.get_field_index("flag")
    parquet.write_table(table.set_column(at, "flag", table["flag"].cast(pa.string())), file)
    (said,) = unreadable({located(file): FIRST[ALL]}).values()
    assert said.startswith("its column flag has the type string, and int in the manifest")
    state = Layout(path).load_state()
    strange = Schema(3, {**FIRST[ALL].columns, "flag": "string"})
    state = replace(state, version=3, form=3, schemas=(strange,))
    (path / "_state.json").write_bytes(msgspec.json.encode(state))
    said = "column flag of files of schema 3 has the type string, and int here.*under another path"
    with pytest.raises(ConfigError, match=said), Archive(path):
        raise AssertionError("it was opened")
    # What is wider here is read all the same.
    narrow = Schema(3, {**FIRST[ALL].columns, "queue_offset": "int"})
    (path / "_state.json").write_bytes(msgspec.json.encode(replace(state, schemas=(narrow,))))
    with Archive(path) as opened:
        assert opened.schema() == narrow
        assert opened.choose_schema(compact=True)
        assert opened.schema().number == COMPACT


def archive_unproved(spark: Any, namesrv: str, path: Path, topic: str) -> int:
    """Archive what is there, as an archive that is killed in front of its proof does."""
    log = LiveSource({"namesrv": namesrv}, [topic], None, 1, None)
    session = session_for(spark)
    with Archive(path) as opened:
        batches = Batches(session, opened, log, max_messages=10_000, note_loss=True)
        written = batches.write(batches.waiting(all_of_them=True))
    log.close()
    return written.messages


def check_other_engines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Let DuckDB and pandas read the archive in a program that imports nothing of CometMQ."""
    packages = ROOT / ".venv-spark-tables"
    if not packages.is_dir():
        return  # `make spark` makes it
    program = [sys.executable, str(Path(__file__).with_name("other_engines.py")), str(path)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages)}
    done = subprocess.run(
        program,
        check=False,
        env=environment,
        cwd=path,
        capture_output=True,
        text=True,
        timeout=JVM_WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    names = ("topic", "broker", "queue_id", "queue_offset")
    wanted = [
        [*(row[name] for name in names), hashlib.md5(row["body"]).hexdigest()] for row in rows
    ]
    for engine, found in json.loads(done.stdout).items():
        assert found == sorted(wanted), engine


@slow
def test_each_run_brings_what_is_new_and_proves_it(
    spark: Any, cluster: Cluster, path: Path, tmp_path: Path
) -> None:
    topics = ["history", RETRY]
    sent = send(cluster.namesrv, "history", 150) + send(cluster.namesrv, RETRY, 30)
    settings: dict[str, Any] = {"topics": topics, "max_messages": 70, "compact_files": 3}
    report = run(spark, cluster.namesrv, path, **settings)
    assert report.holds, report
    assert (report.archived, report.proved) == (sent, sent)
    assert report.compacted_files_before > report.compacted_files_after > 0
    assert {one.topic for one in report.topics} == set(topics)
    rows = sent_rows(cluster.namesrv, topics)
    assert archived_rows(spark, path) == rows
    # Nothing new: nothing is written.
    files = sorted(path.rglob("*.parquet"))
    again = run(spark, cluster.namesrv, path, **settings)
    assert again.holds
    assert (again.archived, again.proved, sorted(path.rglob("*.parquet"))) == (0, 0, files)
    # A name written wrong is not passed over because the others are known.
    with pytest.raises(ConfigError, match=r"topics names one .* hitsory; did you mean history\?"):
        run(spark, cluster.namesrv, path, topics=["history", "hitsory"])
    sent += send(cluster.namesrv, "history", 60)
    report = run(spark, cluster.namesrv, path, **settings)
    assert report.holds, report
    rows = sent_rows(cluster.namesrv, topics)
    assert archived_rows(spark, path) == rows
    # The same for a tool that knows Parquet only.
    assert set(places(path).values()) == {1}
    assert len(places(path)) == sent
    assert (path / "data" / "topic=%25RETRY%25somebody").is_dir()
    check_other_engines(path, rows)
    ends = {(row["topic"], row["broker"], row["queue_id"]): row["queue_offset"] + 1 for row in rows}
    assert {queue: end for queue, end in safe_ends(path).items() if end} == ends
    counted = [log.count for one in Layout(path).load_manifests() for log in one.log]
    assert sum(counted) == sent
    report.write_json(tmp_path / "archive.json")
    assert json.loads((tmp_path / "archive.json").read_bytes())["holds"] is True
    write_page(report, tmp_path / "archive.html")
    assert "<svg" in (tmp_path / "archive.html").read_text()


def a_file(path: Path, topic: str) -> Path:
    return min((path / "data" / f"topic={topic}").rglob("*.parquet"))


@slow
def test_what_is_damaged_is_found_and_named(
    spark: Any, cluster: Cluster, path: Path, tmp_path: Path
) -> None:
    topics = ["deleted", "doubled", "rewritten", "torn", "sound"]
    for topic in topics:
        send(cluster.namesrv, topic, 20)
    settings: dict[str, Any] = {"topics": topics, "compact_files": 0}
    assert run(spark, cluster.namesrv, path, **settings).holds
    safe = safe_ends(path)
    shutil.copytree(path, tmp_path / "copy")

    files = {topic: a_file(path, topic) for topic in topics}
    files["deleted"].unlink()
    shutil.copy(files["doubled"], files["doubled"].with_name("copy.parquet"))
    table = parquet.ParquetFile(files["rewritten"]).read()
    at = table.schema.get_field_index("body")
    bodies = [b"another one", *table["body"].to_pylist()[1:]]
    parquet.write_table(table.set_column(at, "body", pa.array(bodies)), files["rewritten"])
    tear(files["torn"])

    report = run(spark, cluster.namesrv, path, **settings, verify="all")
    assert not report.holds
    found = {(one.kind, one.topic, one.file) for one in report.problems}
    assert ("file missing", "deleted", files["deleted"].name) in found
    assert ("strange file", "doubled", "copy.parquet") in found
    assert ("file changed", "rewritten", files["rewritten"].name) in found
    assert ("file unreadable", "torn", files["torn"].name) in found
    assert "sound" not in {one.topic for one in report.problems}
    missing = [one for one in report.problems if one.kind == "file missing"]
    gone = [
        row for row in report.problems if row.kind == "messages missing" and row.topic == "deleted"
    ]
    # The manifest knows what the file had, and the log says the same.
    assert [(p.broker, p.queue_id, p.first, p.last) for p in gone] == [
        (p.broker, p.queue_id, p.first, p.last) for p in missing
    ]
    differ = [one for one in report.problems if one.kind == "messages differ"]
    assert {(one.topic, one.file) for one in differ} == {("rewritten", files["rewritten"].name)}
    assert all(one.first == one.last for one in differ)
    withdrawn = {queue[0] for queue, end in safe.items() if safe_ends(path)[queue] < end}
    assert withdrawn == set(topics) - {"sound"}
    # It is not forgotten by the next run, and over when the files are back.
    assert not run(spark, cluster.namesrv, path, **settings).holds
    shutil.rmtree(path / "data")
    shutil.copytree(tmp_path / "copy" / "data", path / "data")
    assert run(spark, cluster.namesrv, path, **settings).holds
    assert safe_ends(path) == safe


@slow
def test_a_proved_file_that_has_changed_is_not_compacted(
    spark: Any, cluster: Cluster, path: Path
) -> None:
    """Compaction takes a proved file's figures from its proof, so what it reads must be held against
    them; where all fits, the new files are proved without another proof.
    """
    topics = ["as-proved", "otherwise", "torn"]
    for topic in topics:
        send(cluster.namesrv, topic, 12)
    settings: dict[str, Any] = {"topics": topics, "max_messages": 20}
    assert run(spark, cluster.namesrv, path, **settings, compact_files=0).holds
    (manifest,) = (path / "_manifest" / "topic=otherwise").glob("*.json")
    said = json.loads(manifest.read_bytes())
    changed = said["files"][0]["name"]
    said["files"][0]["queues"][0]["checksum"] = "1"
    manifest.write_text(json.dumps(said))
    torn = a_file(path, "torn")
    tear(torn)
    report = run(spark, cluster.namesrv, path, **settings, compact_files=2)
    found = {(one.kind, one.topic, one.file) for one in report.problems}
    assert ("file changed", "otherwise", changed) in found
    assert ("file unreadable", "torn", torn.name) in found
    assert "as-proved" not in {one.topic for one in report.problems}
    assert report.compacted_directories == 1
    (sound,) = [one for one in Layout(path).load_manifests() if one.topic == "as-proved"]
    assert sound.is_proved
    assert report.compacted_files_after == len(sound.files) < report.compacted_files_before
    # What it says of them is what a proof finds in them.
    again = run(spark, cluster.namesrv, path, **settings, compact_files=0, verify="all")
    assert "as-proved" not in {one.topic for one in again.problems}


def tear(file: Path) -> None:
    """Zeros behind the magic, where pages of data lie; the size stays."""
    data = bytearray(file.read_bytes())
    data[20:200] = bytes(180)
    file.write_bytes(data)


@slow
def test_files_that_are_lost_before_their_proof_are_never_marked(
    spark: Any, cluster: Cluster, path: Path
) -> None:
    topics = ("early", "early-torn")
    for topic in topics:
        for _ in range(2):  # which gives two files at least: enough to compact them
            send(cluster.namesrv, topic, 20)
            assert archive_unproved(spark, cluster.namesrv, path, topic) == 20
    assert safe_ends(path) == {}
    files = [a_file(path, topic) for topic in topics]
    lost = {
        (topic, row["broker"], row["queue_id"], row["queue_offset"])
        for topic, file in zip(topics, files, strict=True)
        for row in parquet.ParquetFile(file)
        .read(["broker", "queue_id", "queue_offset"])
        .to_pylist()
    }
    files[0].unlink()
    tear(files[1])
    report = run(spark, cluster.namesrv, path, topics=list(topics), compact_files=2)
    assert not report.holds
    assert report.compacted_directories == 0
    kinds = {(one.kind, one.topic, one.file) for one in report.problems}
    assert ("file missing", "early", files[0].name) in kinds
    assert ("file unreadable", "early-torn", files[1].name) in kinds
    named = {
        (one.topic, one.broker, one.queue_id, offset)
        for one in report.problems
        if one.kind == "messages missing" and one.first is not None and one.last is not None
        for offset in range(one.first, one.last + 1)
    }
    assert named == lost
    assert set(safe_ends(path).values()) == {0}
    queues = {place[:3] for place in lost}
    for state in Layout(path).load_state().queues:
        place = (state.topic, state.broker, state.queue_id)
        assert (state.proved_to == 0) == (place in queues)


@slow
def test_what_retention_took_is_listed(
    spark: Any, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 64 * 1024
    stores = tmp_path / "stores"

    def expire(own: Cluster, files: range) -> None:
        own.call("stop_broker", 0)
        for at in files:
            (stores / "broker-a" / "commitlog" / f"{at * size:020d}").unlink()
        own.call("start_broker", 0)

    properties = {"mappedFileSizeCommitLog": str(size), "defaultTopicQueueNums": "2"}
    settings: dict[str, Any] = {"topics": ["orders"]}
    with Cluster(directory=stores, properties=properties) as own:
        sent = send(own.namesrv, "orders", 20)
        with pytest.raises(RemoteError, match=r"group \[nobody\] does not exist"):
            run(spark, own.namesrv, path, **settings, commit_group="nobody")
        assert run(spark, own.namesrv, path, **settings).holds
        sent += send(own.namesrv, "orders", 150)
        expire(own, range(2))
        with pytest.raises(DataLossError, match="fail_on_data_loss = false in the table"):
            run(spark, own.namesrv, path, **settings)
        settings["fail_on_data_loss"] = False
        report = run(spark, own.namesrv, path, **settings)
        assert not report.holds
        assert not report.problems
        assert report.gaps == report.new_gaps
        assert {gap.cause for gap in report.gaps} == {"retention"}
        missing = sum(gap.end - gap.start for gap in report.gaps)
        assert missing > 0
        assert len(places(path)) + missing == sent == sum(safe_ends(path).values())
        again = run(spark, own.namesrv, path, **settings)
        assert again.holds
        assert (again.new_gaps, len(again.gaps)) == ([], len(report.gaps))
        # Archived, and gone before the proof: said once, since nothing can prove it any more.
        sent += send(own.namesrv, "orders", 150)
        archive_unproved(spark, own.namesrv, path, "orders")
        last = max((stores / "broker-a" / "commitlog").iterdir())
        expire(own, range(2, int(last.name) // size - 1))
        report = run(spark, own.namesrv, path, **settings)
        assert {one.kind for one in report.problems} == {"gone before the proof"}
        assert run(spark, own.namesrv, path, **settings).holds
        assert len(places(path)) + missing == sent
        store = own.directory / "broker-a"
        left = sent_rows(own.namesrv, ["orders"])
    # The same store without its broker.
    alone = tmp_path / "alone"
    settings = {"topic_pattern": "ord.*", "store": str(store), "broker": "broker-a"}
    assert run(spark, None, alone, **settings).holds
    assert archived_rows(spark, alone) == left
    again = run(spark, None, alone, **settings)
    assert (again.holds, again.archived) == (True, 0)
    # Of many queues, messages meet a table of their ranges.
    monkeypatch.setattr(source, "_MOST_CONDITIONS", 0)
    assert run(spark, None, tmp_path / "by-table", **settings).holds
    assert archived_rows(spark, tmp_path / "by-table") == left
    with pytest.raises(ConfigError, match="has no queues of x; it has those of orders"):
        run(spark, None, alone, topics=["x"], store=str(store), broker="broker-a")


def test_a_run_without_new_messages_commits_what_an_earlier_one_archived(
    spark: Any, cluster: Cluster, path: Path
) -> None:
    """A run that is killed between its last batch and the commit left the group behind for good."""
    send(cluster.namesrv, "idle", 5)
    run(spark, cluster.namesrv, path, topics=["idle"])
    run(spark, cluster.namesrv, path, topics=["idle"], commit_group="TOOLS_CONSUMER")
    queues = [state.queue for state in Layout(path).load_state().queues]
    assert committed(cluster.namesrv, "TOOLS_CONSUMER", queues) == 5


def committed(namesrv: str, group: str, queues: Sequence[MessageQueue]) -> int:
    """The committed offsets of a group, summed over the queues."""
    with BlockingRangeReader(namesrv=namesrv) as reader:
        return sum(offset or 0 for offset in reader.committed(group, queues).values())


@slow
def test_a_stream_goes_on_until_it_is_stopped(spark: Any, cluster: Cluster, path: Path) -> None:
    send(cluster.namesrv, "stream-a", 20)
    for group in ("followed", "safe"):
        with LitePullConsumer(group, namesrv=cluster.namesrv) as consumer:
            for broker in ("broker-a", "broker-b"):
                consumer.pull(MessageQueue("stream-a", broker, 0), 0)  # which makes the group
    config = archive.Config(
        path=str(path),
        topic_pattern="stream-.*",
        mode="stream",
        interval_s=0.1,
        proof_interval_s=1,
        commit_group="followed",
        safe_group="safe",
        compact_files=4,
    )
    stopped = threading.Event()
    reports = []

    def work() -> None:
        reports.append(archive.run(config, context_of(spark, cluster.namesrv), stopped))

    def archived() -> int:
        return sum(queue.to - queue.first for queue in Layout(path).load_state().queues)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(lambda: archived() == 20 or not thread.is_alive(), wait_s=JVM_WAIT_S)
        eventually(
            lambda: sum(safe_ends(path).values()) == 20 or not thread.is_alive(), wait_s=JVM_WAIT_S
        )
        with pytest.raises(ConfigError, match="another archive is at work"):
            archive.run(config, context_of(spark, cluster.namesrv))
        send(cluster.namesrv, "stream-a", 15)
        send(cluster.namesrv, "stream-b", 15)
        eventually(lambda: archived() == 50 or not thread.is_alive(), wait_s=JVM_WAIT_S)
        queues = [state.queue for state in Layout(path).load_state().queues]
        eventually(lambda: committed(cluster.namesrv, "followed", queues) == 50)
        # As a broker does that is killed before it has written the last offsets.
        with BlockingRangeReader(namesrv=cluster.namesrv) as reader:
            reader.commit("followed", dict.fromkeys(queues, 0))
        eventually(lambda: committed(cluster.namesrv, "followed", queues) == 50)
    finally:
        stopped.set()
        thread.join(JVM_WAIT_S)
    (report,) = reports
    assert report.holds
    assert (report.archived, report.proved) == (50, 50)
    assert archived_rows(spark, path) == sent_rows(cluster.namesrv, ["stream-a", "stream-b"])
    for group in ("followed", "safe"):
        assert committed(cluster.namesrv, group, queues) == 50


@slow
def test_a_driver_that_is_killed_goes_on_where_it_was(
    spark: Any, cluster: Cluster, path: Path, tmp_path: Path
) -> None:
    sent = send(cluster.namesrv, "killed", 200)
    file = tmp_path / "pipeline.toml"
    # A hundred batches: it is killed long before the last.
    file.write_text(
        f'[cluster]\nnamesrv = "{cluster.namesrv}"\n'
        '[spark]\nmaster = "local[1]"\n'
        f"config = {inline_table(QUICK_DRIVER)}\n"
        f'[archive]\ntopics = ["killed"]\npath = "{path}"\nmax_messages = 2\ncompact_files = 3\n'
    )
    command = [sys.executable, "-m", "cometmq", "pipeline", "archive", "-c", str(file)]
    environment = {**os.environ, "SPARK_LOCAL_IP": HOST, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    eventually(
        lambda: Layout(path).load_state().next_batch > 2 or process.poll() is not None,
        wait_s=JVM_WAIT_S,
    )
    assert process.poll() is None, (tmp_path / "log").read_text()
    # With Java, in the middle of a batch.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert set(places(path).values()) == {1}
    report = run(spark, cluster.namesrv, path, topics=["killed"], compact_files=3)
    assert report.holds, report
    assert 0 < report.archived < sent
    assert report.proved == sent
    assert archived_rows(spark, path) == sent_rows(cluster.namesrv, ["killed"])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "one of topics and topic_pattern must be given"),
        ({"topics": ["a"], "topic_pattern": "b"}, "one of topics and topic_pattern"),
        ({"topics": ["a b"]}, "topics: the topic name 'a b' has characters outside"),
        ({"topic_pattern": "("}, "topic_pattern is '\\(', no regular expression"),
        ({"topics": ["a"], "path": "data"}, "path is 'data', give it from the root on"),
        ({"topics": ["a"], "path": "s3a://b"}, "path is 's3a://b', give a directory in it"),
        ({"topics": ["a"], "path": "file:///a"}, "path is 'file:///a', give it without file://"),
        ({"topics": ["a"], "work_path": "/w"}, "work_path is for a path that is a URI"),
        ({"topics": ["a"], "path": "/data/*"}, "path is '/data/\\*', give a directory"),
        ({"topics": ["a"], "max_messages": 0}, "max_messages is 0, give 1 or more"),
        ({"topics": ["a"], "compact_files": 1}, "compact_files is 1, give 2 or more, or 0"),
        ({"topics": ["a"], "interval_s": -1}, "interval_s is -1, give 0 or more"),
        ({"topics": ["a"], "interval_s": math.nan}, "interval_s is nan, give 0 or more"),
        ({"topics": ["a"], "proof_interval_s": math.inf}, "proof_interval_s is inf, give 0"),
        ({"topics": ["a"], "commit_group": "g!"}, "commit_group: the group name 'g!' has"),
        ({"topics": ["a"], "store": "/s"}, "so give broker too"),
        ({"topics": ["a"], "broker": "b"}, "give store too"),
        ({"topics": ["a"], "store": "/s", "broker": "b", "mode": "stream"}, 'give mode = "once"'),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        archive.Config(**{"path": "/data/archive", **settings})


def test_a_topic_that_nobody_knows(spark: Any, cluster: Cluster, path: Path) -> None:
    with pytest.raises(ConfigError, match="topics names one that the name server"):
        run(spark, cluster.namesrv, path, topics=["unheard-of"])
    with pytest.raises(ConfigError, match="no topic's whole name matches it"):
        run(spark, cluster.namesrv, path, topic_pattern="unheard.*")
    with pytest.raises(ConfigError, match="no name server is given"):
        run(spark, None, path, topics=["orders"])
