"""Tables of an archive: what engines read at each snapshot, after kills, failures and retention.

Programs of docs/tables.md run here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.integration.test_snippets import of
from tests.spark.archives import archived_rows, context_of, run, send
from tests.spark.arrow_work import ArrowWork
from tests.spark.kill_decoding import body_of
from tests.spark.table_archives import (
    LATER,
    ORDERS,
    RETRIES,
    MadeArchive,
    delta_versions,
    iceberg_snapshots,
    iceberg_table,
    tables_of,
)

from cometmq.errors import ConfigError
from cometmq.pipelines import publish
from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.decoded.decoding import Decoding
from cometmq.pipelines.archive.schemas import ALL, COMPACT
from cometmq.pipelines.archive.tables.columns import TABLE
from cometmq.pipelines.archive.tables.iceberg import IcebergTable
from cometmq.pipelines.archive.tables.publisher import Publisher
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.pipelines.configuration import Decode
from cometmq.runtime.clock import SYSTEM_CLOCK, SystemClock
from cometmq.testing.cluster import Cluster

ROOT: Final = Path(__file__).parents[2]
BOTH: Final = TableSettings(publish=["iceberg", "delta"])
# Commits of `changes_of_all_kinds` that change files, with rows and the sum of offsets after each.
AFTER: Final = [
    [1, 15, 55],
    [2, 32, 361],
    [4, 35, 445],
    [6, 40, 605],
    [7, 40, 605],
    [8, 35, 595],
]


def changes_of_all_kinds(made: MadeArchive) -> None:
    made.batch(COMPACT, {ORDERS: (0, 10), RETRIES: (0, 5)})
    made.batch(ALL, {ORDERS: (10, 10), LATER: (20, 7)})
    made.prove()
    made.batch(COMPACT, {ORDERS: (27, 3)})
    form = made.columns({"trace": "string"})
    made.batch(form, {LATER: (30, 5)})
    made.compact(LATER)
    made.remove(RETRIES, [file.name for file in made.archive.manifests[RETRIES].files])


def published(path: Path, change: Callable[[MadeArchive], None]) -> Publisher:
    with Archive(path) as archive:
        publisher = Publisher(archive, BOTH)
        archive.after_commit = publisher.publish
        change(MadeArchive(archive))
    return publisher


def by_engines(*arguments: str) -> Any:
    """Run DuckDB in a program that imports nothing of CometMQ."""
    packages = ROOT / ".venv-spark-tables"
    if not packages.is_dir():
        pytest.skip("`make spark` makes .venv-spark-tables, which has DuckDB")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("table_readers.py")), *arguments],
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def totals(tables: list[dict[str, list[int]]]) -> list[list[int]]:
    """Return the rows of all topics and the sum of their offsets, for each table."""
    return [[sum(one) for one in zip(*table.values(), strict=True)] for table in tables]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def test_each_commit_that_changes_files_is_a_snapshot_of_both_tables(path: Path) -> None:
    publisher = published(path, changes_of_all_kinds)
    assert [(line.commit, line.snapshots, line.problem) for line in publisher.lines] == [
        (8, len(AFTER), None),
        (8, len(AFTER), None),
    ]
    assert tables_of(path) == {"iceberg": AFTER, "delta": AFTER}
    # A second run finds nothing to do.
    with Archive(path) as archive:
        again = Publisher(archive, BOTH)
        again.publish()
    assert [line.snapshots for line in again.lines] == [0, 0]
    assert tables_of(path) == {"iceberg": AFTER, "delta": AFTER}


def test_duckdb_reads_the_same_at_each_snapshot_as_the_others(path: Path) -> None:
    published(path, changes_of_all_kinds)
    found = json.loads(by_engines(str(path)))
    wanted = [row[1:] for row in AFTER]
    assert totals(found["iceberg"]) == wanted
    # Delta's versions of a new table and of a new column change no rows.
    delta = [row for row in totals(found["delta"]) if row]
    assert [row for at, row in enumerate(delta) if at == 0 or row != delta[at - 1]] == [
        row for at, row in enumerate(wanted) if at == 0 or row != wanted[at - 1]
    ]
    assert found["iceberg"][0]["%RETRY%g"] == [5, 10]
    assert found["iceberg now"] == found["delta now"] == [found["iceberg"][-1]]


def test_the_columns_their_order_and_field_ids_are_those_of_the_page(path: Path) -> None:
    published(path, lambda made: made.batch(COMPACT, {ORDERS: (0, 2)}))
    page = (ROOT / "docs" / "tables.md").read_text()
    listed = re.findall(r"^\| (\d+) \| `(\w+)` \| (\S+) \| (\S+) \|", page, re.MULTILINE)
    assert [name for _, name, _, _ in listed] == list(TABLE)
    from deltalake import DeltaTable

    table = iceberg_table(path)
    fields = [
        (str(one.field_id), one.name, str(one.field_type).partition("<")[0])
        for one in table.schema().fields
    ]
    assert fields == [(number, name, kind) for number, name, kind, _ in listed]
    assert [str(one) for one in table.spec().fields] == [
        "1000: topic: identity(1)",
        "1001: store_time_day: day(11)",
    ]
    assert [one.source_id for one in table.sort_order().fields] == [2, 3, 4]
    delta = {
        field.name: field.type.type
        for field in DeltaTable(str(path / "_tables" / "files")).schema().fields
        if hasattr(field.type, "type") and field.name not in ("day", "properties")
    }
    assert delta == {name: kind for _, name, _, kind in listed if name != "properties"}


def test_filters_pass_over_files_and_rows_are_those_that_were_archived(path: Path) -> None:
    published(path, changes_of_all_kinds)
    from deltalake import DeltaTable

    table = iceberg_table(path)
    later = table.scan(row_filter="store_time >= '2026-11-21T00:00:00+00:00'")
    assert len(list(later.plan_files())) == 1
    assert len(list(table.scan(row_filter="queue_offset = 12").plan_files())) == 1
    assert list(table.scan(row_filter="topic = 'none'").plan_files()) == []
    row = table.scan(row_filter="queue_offset = 12").to_arrow().to_pylist()[0]
    assert (row["topic"], row["body"], row["msg_id"]) == ("orders", b"body 12", f"{12:032X}")
    assert dict(row["properties"]) == {"KEYS": "O-12", "TAGS": "paid"}
    delta = DeltaTable(str(path / "_tables" / "files"))
    rows = delta.to_pyarrow_table(filters=[("queue_offset", "=", 12)]).to_pylist()
    assert rows[0] == {**row, "day": rows[0]["day"]}
    assert str(rows[0]["day"]) == "2026-11-20"


def test_an_archive_that_exists_is_one_snapshot_and_then_one_for_each_commit(
    path: Path,
) -> None:
    with Archive(path) as archive:
        made = MadeArchive(archive)
        made.batch(COMPACT, {ORDERS: (0, 10), RETRIES: (0, 5)})
        made.batch(ALL, {ORDERS: (10, 10), LATER: (20, 7)})
    context = context_of(None, None)
    first = publish.run(publish.Config(path=str(path)), context)
    assert first.holds
    assert [(line.commit, line.snapshots) for line in first.tables] == [(2, 1), (2, 1)]
    with Archive(path) as archive:
        made = MadeArchive(archive)
        made.batch(COMPACT, {ORDERS: (27, 3)})
        made.batch(COMPACT, {LATER: (30, 5)})
    second = publish.run(publish.Config(path=str(path)), context)
    assert [(line.commit, line.snapshots) for line in second.tables] == [(4, 2), (4, 2)]
    wanted = [[2, 32, 361], [3, 35, 445], [4, 40, 605]]
    assert tables_of(path) == {"iceberg": wanted, "delta": wanted}


def test_files_that_spark_wrote_in_version_0_2_are_published(path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "golden" / "archive-0.2", path)
    report = publish.run(publish.Config(path=str(path)), context_of(None, None))
    assert [line.snapshots for line in report.tables] == [1, 1]
    from deltalake import DeltaTable

    rows = DeltaTable(str(path / "_tables" / "files")).to_pyarrow_table().to_pylist()
    assert sorted(row["body"] for row in rows) == sorted(b"body %d" % at for at in range(12))
    assert dict(rows[0]["properties"])["UNIQ_KEY"] == rows[0]["msg_id"]
    assert {row["batch_msg_id"] for row in rows} == {None}
    assert tables_of(path) == {"iceberg": [[0, 12, 66]], "delta": [[0, 12, 66]]}
    found = json.loads(by_engines(str(path)))
    assert found["iceberg now"] == found["delta now"] == [{"orders": [12, 66]}]


def test_kills_of_a_publication_double_and_lose_nothing(tmp_path: Path) -> None:
    lines = killed_publications(str(tmp_path), "5")
    assert len(lines) > 5


def killed_publications(*arguments: str) -> list[dict[str, Any]]:
    """Kill publications by kill_publisher.py, look at the snapshots, and return its lines."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.kill_publisher", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = lines[-1]["iceberg"]
    assert [commit for commit, _, _ in wanted] == [1, 2, 3, 4]
    assert not lines[-1]["killed"]
    for line in lines:
        # Commits that the killed process did not come to are not there.
        for name in ("iceberg", "delta"):
            assert line[name] == wanted[: len(line[name])], line
        assert len(line["iceberg"]) == len(line["delta"]) > 0
    return lines


def test_a_catalog_that_fails_stops_no_archive_and_is_caught_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: IcebergTable) -> None:
        raise ConnectionError("the catalog is away")

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "_catalog", fail)
        publisher = published(path, changes_of_all_kinds)
    iceberg, delta = publisher.lines
    assert iceberg.problem == "ConnectionError: the catalog is away"
    assert iceberg.commit is None
    assert (delta.commit, delta.problem) == (8, None)
    assert delta_versions(path) == AFTER
    # Files that a compaction took out of data are kept for the snapshots that are still to be made.
    publish.run(publish.Config(path=str(path)), context_of(None, None))
    assert iceberg_snapshots(path) == [AFTER[-1]]


def test_a_table_that_falls_behind_gets_a_snapshot_for_each_commit_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: IcebergTable, _change: object) -> None:
        raise OSError("the disk of the metadata is full")

    published(path, lambda made: made.batch(COMPACT, {LATER: (0, 4)}))
    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "publish", fail)

        def more(made: MadeArchive) -> None:
            made.batch(COMPACT, {LATER: (4, 2)})
            made.compact(LATER)

        assert published(path, more).lines[0].problem is not None
    wanted = [[1, 4, 6], [2, 6, 15], [3, 6, 15]]
    report = publish.run(publish.Config(path=str(path)), context_of(None, None))
    assert report.holds
    assert tables_of(path) == {"iceberg": wanted, "delta": wanted}


class Later(SystemClock):
    """The system's clock, so many hours ahead."""

    hours = 0

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() + self.hours * 3_600_000


def test_old_snapshots_are_read_until_their_history_ends_and_then_give_room(path: Path) -> None:
    clock = Later()

    def links() -> int:
        return len(list((path / "_tables" / "files").glob("*/*/*.parquet")))

    with Archive(path) as archive:
        publisher = Publisher(archive, TableSettings(publish=["iceberg", "delta"]), clock)
        archive.after_commit = publisher.publish
        changes_of_all_kinds(MadeArchive(archive))
        before = links()
        publisher.expire()
        clock.hours = 167
        publisher.expire()
        assert links() == before
        assert tables_of(path) == {"iceberg": AFTER, "delta": AFTER}
        clock.hours = 169
        publisher.expire()
        now = sum(len(one.files) for one in archive.manifests.values())
        assert links() == now < before
    assert iceberg_snapshots(path) == [AFTER[-1]]
    # The archive itself has lost nothing.
    names = Counter(place.name for place in (path / "data").glob("*/*/*.parquet"))
    assert sum(names.values()) == now
    # The lists of files that only expired snapshots had are gone.
    lists = list((path / "_tables" / "iceberg" / "metadata").glob("snap-*.avro"))
    assert len(lists) == 1


def test_files_without_hard_links_are_copied_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def refuse(original: Path, to: Path) -> None:
        if to.suffix == ".parquet":
            raise PermissionError("no hard links here")
        link(original, to)

    monkeypatch.setattr("cometmq.pipelines.archive.tables.links.os.link", refuse)
    published(path, lambda made: made.batch(COMPACT, {ORDERS: (0, 10)}))
    assert tables_of(path) == {"iceberg": [[1, 10, 45]], "delta": [[1, 10, 45]]}


def test_a_catalog_of_pyicebergs_configuration_is_used(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    for key, value in {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/mine.db",
        "WAREHOUSE": warehouse.as_uri(),
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__MINE__{key}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", _environment())
    settings = TableSettings(
        publish=["iceberg"], iceberg_catalog="mine", iceberg_table="shop.messages"
    )
    with Archive(path) as archive:
        publisher = Publisher(archive, settings)
        archive.after_commit = publisher.publish
        MadeArchive(archive).batch(COMPACT, {ORDERS: (0, 10)})
    from pyiceberg.catalog import load_catalog

    table = load_catalog("mine").load_table("shop.messages")
    assert table.scan().to_arrow().num_rows == 10
    # Another archive does not write into that table.
    with Archive(tmp_path / "other") as archive:
        MadeArchive(archive).batch(COMPACT, {ORDERS: (0, 10)})
        with pytest.raises(ConfigError, match="give iceberg_table another name"):
            Publisher(archive, settings).publish()


def _environment() -> Any:
    from pyiceberg.utils.config import Config

    return Config()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"publish": []}, "name a format"),
        ({"publish": ["delta", "delta"]}, "once"),
        ({"path": "s3a://bucket/100%"}, "a percent sign .* give a path without them"),
        ({"path": "hdfs://namenode/archive"}, r"also a mounted one\) or in S3"),
        ({"iceberg_table": "messages"}, "a namespace and a name"),
        ({"table_history_hours": -1}, "give 0 or more"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        publish.Config(**{"path": "/data/archive", **settings})


def test_a_missing_package_names_the_extra(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)  # as if it were not installed
    with Archive(path) as archive, pytest.raises(ConfigError, match=r"'cometmq\[tables\]'"):
        Publisher(archive, BOTH)


def test_a_path_without_an_archive_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="where no archive is"):
        publish.run(publish.Config(path=str(path)), context_of(None, None))


@pytest.mark.timeout(1500)
@pytest.mark.cluster
def test_an_archive_of_a_cluster_publishes_as_it_commits(
    spark: Any, cluster: Cluster, path: Path
) -> None:
    sent = send(cluster.namesrv, "published", 60)
    settings: dict[str, Any] = {
        "topics": ["published"],
        "max_messages": 30,
        "compact_files": 2,
        "publish": ["iceberg", "delta"],
    }
    report = run(spark, cluster.namesrv, path, **settings)
    assert report.holds, report.summary
    assert [line.problem for line in report.tables] == [None, None]
    found = tables_of(path)
    assert found["iceberg"] == found["delta"]
    assert [count for _, count, _ in found["iceberg"]] == [30, 60, 60]
    from deltalake import DeltaTable

    names = ("topic", "broker", "queue_id", "queue_offset", "body", "store_time")
    rows = DeltaTable(str(path / "_tables" / "files")).to_pyarrow_table(columns=list(names))
    by_place = sorted(rows.to_pylist(), key=lambda row: (row["queue_id"], row["queue_offset"]))
    archived = archived_rows(spark, path)
    assert [[row[n] for n in names[:5]] for row in by_place] == [
        [row[n] for n in names[:5]] for row in archived
    ]
    assert len(by_place) == sent


def test_the_programs_of_the_page_run(path: Path) -> None:
    published(path, changes_of_all_kinds)
    schema = path.with_name("order.schema.json")
    schema.write_text('{"properties": {"id": {"type": "string"}, "cents": {"type": "integer"}}}')
    rule = {"orders": Decode(format="json", schema=str(schema))}
    with Archive(path) as archive:
        MadeArchive(archive, body_of).batch(COMPACT, {LATER: (35, 5)})
        with Decoding(ArrowWork(), archive, rule, BOTH, max_messages=1000) as tables:
            tables.catch_up()
            assert all(line.holds for line in tables.lines())
    for program in of("docs/tables.md"):
        assert "orders" in by_engines(str(path), program)
