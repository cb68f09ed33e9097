"""The pipeline `archive` in an object store: the same rows, the same proof, also after it has died, and
read by the other pipelines. Hadoop's S3A talks to a server of S3 (moto) in this process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.spark.archives import by_place, run, send, sent_rows
from tests.spark.hadoop_aws import ROOT, jars
from tests.spark.rows import rows_of
from tests.waits import JVM_WAIT_S

from cometmq.errors import ConfigError
from cometmq.pipelines import archive, hadoop_files
from cometmq.pipelines.archive import lease
from cometmq.pipelines.archive.layout import layout_of
from cometmq.pipelines.archive.proving.inventory import take_inventory
from cometmq.pipelines.audit.archive import archive_notes, archived
from cometmq.pipelines.hadoop_files import HadoopFiles, location
from cometmq.pipelines.locations import RemoteFiles
from cometmq.spark.rows.columns import COLUMNS
from cometmq.testing.cluster import Cluster

pytestmark = [
    pytest.mark.cluster(brokers=2, properties={"defaultTopicQueueNums": "1"}),
    pytest.mark.timeout(2 * JVM_WAIT_S),
]
PACKAGES = ROOT / ".venv-spark-tables"
KEYS = {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "secret"}


@pytest.fixture(scope="module")
def bucket(spark: Any) -> Iterator[str]:
    """Yield the URI of a bucket that the session reaches."""
    if not jars() or not PACKAGES.is_dir():
        sentence = "needs what `make spark` gets: jars of hadoop-aws, packages of a server of S3"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    sys.path.append(str(PACKAGES))
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEYS["fs.s3a.access.key"],
            aws_secret_access_key=KEYS["fs.s3a.secret.key"],
        )
        client.create_bucket(Bucket="archives")
        settings = spark.sparkContext._jsc.hadoopConfiguration()
        for name, value in {
            **KEYS,
            "fs.s3a.endpoint": endpoint,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.input.stream.type": "classic",
        }.items():
            settings.set(name, value)
        yield "s3a://archives"
    finally:
        server.stop()
        sys.path.remove(str(PACKAGES))


@pytest.mark.parametrize("kind", ["puts", "renames"])
def test_files_appear_as_a_whole_and_are_created_once(
    spark: Any, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue("bucket") if kind == "puts" else tmp_path.as_uri()
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
    # Hadoop's local files, unlike those of HDFS, are missing for a moment when they are replaced.
    with ThreadPoolExecutor(1) as pool:
        replaced = pool.submit(replace_often, files, str(one))
        while not replaced.done():
            assert kind == "renames" or one.read_bytes() == b"second"
    assert files.sizes(str(base)) == {"a/one.json": 6, "a/new.json": 1}
    files.move(str(one), str(two))
    assert files.sizes(str(base)) == {"a/new.json": 1, "data/topic=%25g/two.json": 6}
    for failing in (lambda: files.move(str(one), str(base / "x")), one.read_bytes):
        with pytest.raises(FileNotFoundError):
            failing()
    files.remove(str(base))
    files.remove(str(base))
    assert files.sizes(str(base)) == {}


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


def test_an_archive_in_an_object_store_is_proved_and_read(
    spark: Any, cluster: Cluster, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing holds the path that is alive.
    monkeypatch.setattr(lease, "PATIENCE_S", 3.0)
    topic, path = "objects", f"{bucket}/deep/archive"
    sent = send(cluster.namesrv, topic, 60)
    settings: dict[str, Any] = {"topics": [topic], "max_messages": 30, "compact_files": 3}

    monkeypatch.setattr(hadoop_files, "HadoopFiles", Dying)
    # In front of the first commit, in the middle of one that was announced, in the compaction.
    for changes in (1, 4, 12):
        Dying.left = changes
        with pytest.raises((OSError, ConfigError), match="this process is dead"):
            run(spark, cluster.namesrv, path, **settings)
    monkeypatch.setattr(hadoop_files, "HadoopFiles", HadoopFiles)
    report = run(spark, cluster.namesrv, path, **settings)
    assert report.holds, report
    assert report.proved == sent
    sent += send(cluster.namesrv, topic, 20)
    report = run(spark, cluster.namesrv, path, **settings)
    assert report.holds, report
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
