"""The pipeline `archive` in an object store: the same rows, the same proof, also after it has died, and
read by the other pipelines, and its tables. Hadoop's S3A talks to a server of S3 (moto).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.spark.archives import by_place, context_of, run, send, sent_rows
from tests.spark.bucket import KEY, REGION, SECRET, access_to, client_of, require, server
from tests.spark.hadoop_aws import jars
from tests.spark.rows import rows_of
from tests.spark.table_archives import tables_of
from tests.waits import JVM_WAIT_S

from cometmq.errors import ConfigError
from cometmq.pipelines import archive, hadoop_files, publish
from cometmq.pipelines.archive import lease
from cometmq.pipelines.archive.layout import layout_of
from cometmq.pipelines.archive.proving.inventory import take_inventory
from cometmq.pipelines.audit.archive import archive_notes, archived
from cometmq.pipelines.configuration import Decode
from cometmq.pipelines.hadoop_files import HadoopFiles, location
from cometmq.pipelines.locations import RemoteFiles
from cometmq.pipelines.s3_access import S3Access
from cometmq.spark.rows.columns import COLUMNS
from cometmq.testing.cluster import Cluster

pytestmark = [
    pytest.mark.cluster(brokers=2, properties={"defaultTopicQueueNums": "1"}),
    pytest.mark.timeout(2 * JVM_WAIT_S),
]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    require(bool(jars()), "needs jars of hadoop-aws, which `make spark` gets")
    with server() as url:
        client_of(url).create_bucket(Bucket="archives")
        yield url


@pytest.fixture(scope="module")
def bucket(spark: Any, endpoint: str) -> str:
    """Return the URI of a bucket that the session reaches."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in {
        "fs.s3a.access.key": KEY,
        "fs.s3a.secret.key": SECRET,
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": REGION,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.input.stream.type": "classic",
    }.items():
        settings.set(name, value)
    return "s3a://archives"


@pytest.mark.parametrize("kind", ["puts", "renames"])
def test_files_appear_as_a_whole_and_are_created_once(
    spark: Any, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue("bucket") if kind == "puts" else tmp_path.as_uri()
    # Hadoop's local files, unlike those of HDFS, are missing for a moment when they are replaced.
    check_files(spark, root, is_never_missing=kind == "puts")


def check_files(spark: Any, root: str, *, is_never_missing: bool) -> None:
    base = location(spark, f"{root}/files")
    files = base.files
    assert isinstance(files, RemoteFiles)
    one, two = base / "a" / "one.json", base / "data" / "topic=%25g" / "two.json"
    assert (files.sizes(str(base)), one.exists()) == ({}, False)
    files.write(str(one), b"first")
    files.write(str(one), b"second")
    assert one.read_bytes() == b"second"
    with pytest.raises(FileExistsError):
        files.create(str(one), b"third")
    assert one.read_bytes() == b"second"
    files.create(str(base / "a" / "new.json"), b"1")
    with ThreadPoolExecutor(1) as pool:
        replaced = pool.submit(replace_often, files, str(one))
        while not replaced.done():
            assert not is_never_missing or one.read_bytes() == b"second"
    assert files.sizes(str(base)) == {"a/one.json": 6, "a/new.json": 1}
    files.move(str(one), str(two))
    assert files.sizes(str(base)) == {"a/new.json": 1, "data/topic=%25g/two.json": 6}
    for failing in (lambda: files.move(str(one), str(base / "x")), one.read_bytes):
        with pytest.raises(FileNotFoundError):
            failing()
    files.remove(str(base))
    files.remove(str(base))
    assert files.sizes(str(base)) == {}


def test_other_libraries_reach_s3_as_s3a_does(spark: Any, bucket: str, endpoint: str) -> None:
    base = location(spark, f"{bucket}/archive")
    assert isinstance(base.files, RemoteFiles)
    assert base.files.s3_access(str(base)) == access_to(endpoint)
    # Settings of a bucket take precedence, and temporary credentials have a token.
    with_token = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in {
        "access.key": "its key",
        "session.token": "its token",
        "aws.credentials.provider": with_token,
        "endpoint": "s3.eu-central-1.amazonaws.com",
        "endpoint.region": "",
        "connection.ssl.enabled": "true",
        "path.style.access": "false",
    }.items():
        settings.set(f"fs.s3a.bucket.others.{name}", value)
    other = location(spark, "s3a://others/archive").files
    assert isinstance(other, RemoteFiles)
    assert other.s3_access("s3a://others/archive") == S3Access(
        "its key", SECRET, "its token", "eu-central-1", "https://s3.eu-central-1.amazonaws.com"
    )
    settings.set("fs.s3a.bucket.sealed.encryption.algorithm", "SSE-C")
    settings.set("fs.s3a.bucket.sealed.encryption.key", "c2VjcmV0")
    sealed = location(spark, "s3a://sealed/archive").files
    assert isinstance(sealed, RemoteFiles)
    with pytest.raises(
        ConfigError, match=r"encryption.algorithm is 'SSE-C' for the bucket 'sealed'"
    ):
        sealed.s3_access("s3a://sealed/archive")
    local = location(spark, "file:///tmp").files
    assert isinstance(local, RemoteFiles)
    assert local.s3_access("file:///tmp") is None


def replace_often(files: RemoteFiles, path: str) -> None:
    for _ in range(10):
        files.write(path, b"second")


def test_a_file_system_that_spark_does_not_have_is_named(spark: Any) -> None:
    with pytest.raises(ConfigError, match=r'archive is .*No FileSystem for scheme "nowhere"'):
        location(spark, "nowhere://bucket/archive", "archive")


class Dying(HadoopFiles):
    """Dies in front of a change: then and later, each one fails, as when its process is gone.

    Its hold on the path is renewed in between, at any time, and does not count.
    """

    left = 0

    def _dies(self, path: str) -> None:
        if not path.endswith("_lock"):
            Dying.left -= 1
        if Dying.left < 0:
            raise OSError("this process is dead")

    def write(self, path: str, data: bytes, /) -> None:
        self._dies(path)
        super().write(path, data)

    def create(self, path: str, data: bytes, /) -> None:
        self._dies(path)
        super().create(path, data)

    def move(self, from_: str, to: str, /) -> None:
        self._dies(from_)
        super().move(from_, to)

    def remove(self, path: str, /) -> None:
        self._dies(path)
        super().remove(path)


def archive_in_spite_of_deaths(
    spark: Any, namesrv: str, topic: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, dict[str, Any]]:
    """Archive new messages by a run that follows three dead ones. Return their number and the settings."""
    # Nothing holds the path that is alive.
    monkeypatch.setattr(lease, "PATIENCE_S", 3.0)
    sent = send(namesrv, topic, 60)
    settings: dict[str, Any] = {"topics": [topic], "max_messages": 30, "compact_files": 3}
    monkeypatch.setattr(hadoop_files, "HadoopFiles", Dying)
    # In front of the first commit, in the middle of one that was announced, in the compaction.
    for changes in (1, 4, 12):
        Dying.left = changes
        with pytest.raises((OSError, ConfigError), match="this process is dead"):
            run(spark, namesrv, path, **settings)
    monkeypatch.setattr(hadoop_files, "HadoopFiles", HadoopFiles)
    report = run(spark, namesrv, path, **settings)
    assert report.holds, report
    assert report.proved == sent
    return sent, settings


def test_an_archive_in_an_object_store_is_proved_and_read(
    spark: Any,
    cluster: Cluster,
    bucket: str,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from deltalake import DeltaTable

    topic, path = "objects", f"{bucket}/deep/archive"
    sent, settings = archive_in_spite_of_deaths(spark, cluster.namesrv, topic, path, monkeypatch)
    sent += send(cluster.namesrv, topic, 20)
    # The earlier messages are the first snapshot, and the batch of these messages is the next.
    schema = tmp_path / "schema.json"
    schema.write_text('{"properties": {"id": {"type": "string"}}}')
    rules = {topic: Decode(format="json", schema=str(schema))}
    context = dataclasses.replace(context_of(spark, cluster.namesrv), decode=rules)
    config = archive.Config(path=path, publish=["iceberg", "delta"], **settings)
    report = archive.run(config, context)
    assert report.holds, report
    # Of the messages, of bodies that fit, and of those that do not.
    assert [line.problem for line in report.tables] == [None] * 6
    tables = tables_of(path.replace("s3a", "s3"), access_to(endpoint))
    assert tables["iceberg"] == tables["delta"]
    assert [count for _, count, _ in tables["iceberg"]][:2] == [60, sent]
    undecodable = f"{path}/_decoded/_tables/{topic}_undecodable/files".replace("s3a", "s3")
    bad_rows = DeltaTable(undecodable, storage_options=access_to(endpoint).of_deltalake())
    assert bad_rows.to_pyarrow_table().num_rows == sent
    again = publish.run(publish.Config(path=path), context_of(spark, None))
    assert [(line.snapshots, line.problem) for line in again.tables] == [(0, None)] * 6
    rows = sent_rows(cluster.namesrv, [topic])
    assert len(rows) == sent
    assert by_place(rows_of(archive.read(spark, path).select(*COLUMNS).toArrow())) == rows
    layout = layout_of(spark, path)
    inventory = take_inventory(layout, {one.key: one for one in layout.load_manifests()})
    assert not inventory.suspects
    assert not layout.staging.files.sizes(str(layout.staging))
    # What an audit reads.
    notes = archive_notes(spark, path, [topic])
    assert sum(to - first for first, to in notes.offsets.values()) == sent
    assert not notes.missing
    names = ["topic", "broker", "queue_id", "queue_offset"]
    assert archived(spark, path, [topic], names).distinct().count() == sent
