"""Test tables of archives in S3 by the rows that engines read, after kills, failures and retention. These
archives are made without Spark; test_archive_objects.py publishes one by the pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.spark.bucket import KEY, REGION, SECRET, Bucket, access_to, client_of, server
from tests.spark.table_archives import (
    LATER,
    ORDERS,
    RETRIES,
    MadeArchive,
    iceberg_snapshots,
    iceberg_table,
    tables_of,
)
from tests.spark.test_published_tables import (
    AFTER,
    BOTH,
    Later,
    by_engines,
    changes_of_all_kinds,
    killed_publications,
    totals,
)

from cometmq.errors import ConfigError
from cometmq.pipelines.archive import lease
from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.schemas import COMPACT
from cometmq.pipelines.archive.tables.delta import DeltaTable
from cometmq.pipelines.archive.tables.publisher import Publisher
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.pipelines.locations import Location

ROOM: Final = "s3a://archives"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with server() as url:
        client_of(url).create_bucket(Bucket="archives")
        yield url


@pytest.fixture
def path(
    endpoint: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Location:
    monkeypatch.setattr(lease, "PATIENCE_S", 0.5)
    return Bucket(endpoint).at(f"{ROOM}/deep/{request.node.name[:40]}")


def read_by(endpoint: str, path: Location) -> dict[str, list[list[int]]]:
    return tables_of(in_s3(path), access_to(endpoint))


def in_s3(path: Location) -> str:
    return str(path).replace("s3a://", "s3://")


def publish(path: Location, settings: TableSettings = BOTH) -> Publisher:
    with Archive(path) as archive:
        publisher = Publisher(archive, settings)
        publisher.publish()
    return publisher


def test_engines_read_the_same_at_each_snapshot_in_s3(endpoint: str, path: Location) -> None:
    with Archive(path) as archive:
        publisher = Publisher(archive, BOTH)
        archive.after_commit = publisher.publish
        changes_of_all_kinds(MadeArchive(archive))
    lines = [(line.commit, line.snapshots, line.problem) for line in publisher.lines]
    assert lines == [(8, len(AFTER), None)] * 2
    assert read_by(endpoint, path) == {"iceberg": AFTER, "delta": AFTER}
    assert [line.snapshots for line in publish(path).lines] == [0, 0]
    found = json.loads(by_engines(in_s3(path), KEY, SECRET, endpoint.removeprefix("http://")))
    wanted = [row[1:] for row in AFTER]
    assert totals(found["iceberg"]) == wanted
    assert totals(found["iceberg now"]) == totals(found["delta now"]) == [wanted[-1]]
    # One version for the new table, one for each of the first three commits, one for the new column, and so on.
    assert [totals([one])[0] for one in found["delta"] if one][-3:] == wanted[-3:]


def test_kills_of_a_publication_in_s3_double_and_lose_nothing(endpoint: str) -> None:
    # Copies, metadata, hints and versions, before and after each: about fifty steps.
    assert len(killed_publications(ROOM, "17", endpoint)) > 2


def test_a_kill_between_the_commits_of_archive_and_table_is_repaired(
    endpoint: str, path: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with Archive(path) as archive:
        publisher = Publisher(archive, BOTH)
        archive.after_commit = publisher.publish
        made = MadeArchive(archive)
        made.batch(COMPACT, {LATER: (0, 4)})
        with monkeypatch.context() as patched:
            # By then Iceberg's table has the commit, and Delta's table does not.
            patched.setattr(DeltaTable, "publish", die)
            with pytest.raises(KeyboardInterrupt):
                made.batch(COMPACT, {LATER: (4, 2)})
    first = [1, 4, 6]
    second = [2, 6, 15]
    assert read_by(endpoint, path) == {"iceberg": [first, second], "delta": [first]}
    with Archive(path) as archive:
        publisher = Publisher(archive, BOTH)
        publisher.publish()
        archive.after_commit = publisher.publish
        MadeArchive(archive).compact(LATER)
    wanted = [first, second, [3, 6, 15]]
    assert read_by(endpoint, path) == {"iceberg": wanted, "delta": wanted}


def test_old_snapshots_in_s3_are_read_until_their_history_ends(
    endpoint: str, path: Location
) -> None:
    clock = Later()

    def copies() -> int:
        return sum(name.endswith(".parquet") for name in (path / "_tables/files").sizes())

    with Archive(path) as archive:
        publisher = Publisher(archive, BOTH, clock)
        archive.after_commit = publisher.publish
        made = MadeArchive(archive)
        made.batch(COMPACT, {ORDERS: (0, 4), RETRIES: (0, 3)})
        made.batch(COMPACT, {ORDERS: (4, 2)})
        made.compact(ORDERS)
        made.remove(RETRIES, [file.name for file in archive.manifests[RETRIES].files])
        publisher.expire()
        assert copies() == 4
        assert [row[0] for row in read_by(endpoint, path)["iceberg"]] == [1, 2, 3, 4]
        clock.hours = 169
        publisher.expire()
        assert [line.problem for line in publisher.lines] == [None, None]
        assert copies() == 1
    assert iceberg_snapshots(in_s3(path), access_to(endpoint)) == [[4, 6, 15]]
    # The archive has lost nothing.
    assert list((path / "data").sizes()) == [
        f"{ORDERS.directory}/{file.name}" for file in archive.manifests[ORDERS].files
    ]


def test_of_two_changes_of_a_table_at_once_one_fails(endpoint: str, path: Location) -> None:
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import SetPropertiesUpdate

    from cometmq.pipelines.archive.tables.metadata_files import MetadataFiles

    with Archive(path) as archive:
        MadeArchive(archive).batch(COMPACT, {ORDERS: (0, 4)})
    publish(path)
    home = path / "_tables/iceberg/metadata"
    files = access_to(endpoint).of_pyiceberg()
    catalog = MetadataFiles(home, in_s3(home), files)
    seen = catalog.load_table("cometmq.messages")

    class Slept(MetadataFiles):
        """A catalog that looked for the newest metadata some time ago."""

        def load_table(self, _identifier: Any) -> Any:
            return seen

    with catalog.load_table("cometmq.messages").transaction() as change:
        change.set_properties(owner="one")
    late = Slept(home, in_s3(home), files)
    updates = (SetPropertiesUpdate(updates={"owner": "other"}),)
    with pytest.raises(CommitFailedException, match="another process changed the table"):
        late.commit_table(seen, (), updates)
    # The hint names the previous metadata, as after a kill, and later it is missing.
    assert catalog.load_table("cometmq.messages").properties["owner"] == "one"
    (home / "version-hint.text").remove()
    assert catalog.load_table("cometmq.messages").properties["owner"] == "one"
    publish(path)
    assert iceberg_table(in_s3(path), access_to(endpoint)).properties["owner"] == "one"


def test_other_credentials_are_used_by_the_next_publication(
    endpoint: str, path: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, str]] = []
    with Archive(path) as archive:
        publisher = Publisher(archive, BOTH)
        archive.after_commit = publisher.publish
        made = MadeArchive(archive)
        made.batch(COMPACT, {ORDERS: (0, 4)})
        access = access_to(endpoint)
        renewed = type(access)("later", "s", "token", REGION, endpoint, by_path=True)
        monkeypatch.setattr(Bucket, "s3_access", lambda *_: renewed)

        def is_there(_place: str, storage: dict[str, str]) -> bool:
            asked.append(storage)
            return True

        monkeypatch.setattr("deltalake.DeltaTable.is_deltatable", is_there)
        made.batch(COMPACT, {ORDERS: (4, 2)})
    assert [line.problem for line in publisher.lines] == [None, None]
    assert asked[0]["AWS_SESSION_TOKEN"] == "token"
    assert read_by(endpoint, path)["iceberg"] == [[1, 4, 6], [2, 6, 15]]


def test_a_file_system_that_has_no_tables_is_refused(tmp_path: Path) -> None:
    from tests.unit.pipelines.objects import Objects

    with (
        Archive(Objects(tmp_path).at("archive")) as archive,
        pytest.raises(ConfigError, match=r"mem://bucket/archive.*leave publish out"),
    ):
        Publisher(archive, BOTH)


def test_metadata_that_was_copied_from_a_directory_is_no_table_here(tmp_path: Path) -> None:
    """The catalog of a directory's archive is a database, so its hint and its metadata have other names."""
    from pyiceberg.exceptions import NoSuchTableError
    from tests.unit.pipelines.objects import Objects

    from cometmq.pipelines.archive.tables.metadata_files import MetadataFiles

    home = Objects(tmp_path).at("archive") / "_tables/iceberg/metadata"
    newest = "00007-5f0c1e0e-0000-4000-8000-000000000000"
    (home / f"{newest}.metadata.json").write(b"{}")
    (home / "version-hint.text").write(newest.encode())
    with pytest.raises(NoSuchTableError):
        MetadataFiles(home, "s3://bucket/metadata", {}).load_table("cometmq.messages")
