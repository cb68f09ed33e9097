"""Test that the Spark runtimes of Iceberg and Delta read equal rows and sums at each snapshot.

`make spark-versions` runs this, because the runtimes need PySpark 4.1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark.bucket import Bucket, client_of, server
from tests.spark.hadoop_aws import ROOT
from tests.spark.table_archives import MadeArchive
from tests.spark.test_published_tables import AFTER, BOTH, changes_of_all_kinds
from tests.spark.test_versions import VERSIONS
from tests.waits import JVM_WAIT_S

from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.tables.publisher import Publisher
from cometmq.pipelines.locations import Location

pytestmark = pytest.mark.skipif(
    "4.1" not in VERSIONS, reason="`make spark-versions` has the PySpark of the runtimes"
)


def program(*arguments: str) -> str:
    packages = ROOT / ".venv-spark-4.1"
    environment = {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"}
    environment.pop("SPARK_HOME", None)
    # In a group of its own, so that a JVM ends with it, whatever happens.
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.spark_tables", *arguments],
        cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        said, errors = running.communicate(timeout=2 * JVM_WAIT_S)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
    assert running.returncode == 0, errors[-6000:]
    return said


def publish(path: Path | Location) -> None:
    with Archive(path) as archive:
        publisher = Publisher(archive, BOTH)
        archive.after_commit = publisher.publish
        changes_of_all_kinds(MadeArchive(archive))
    assert [line.problem for line in publisher.lines] == [None, None]


def check(path: str, *endpoint: str) -> None:
    snapshots: list[Any] = [row[1:] for row in AFTER]
    # Versions of a new table and of a new column have the rows of the version before.
    versions = [[0, 0], *snapshots[:3], snapshots[2], *snapshots[3:]]
    assert json.loads(program(path, str(len(versions)), *endpoint)) == {
        "iceberg": [*snapshots, snapshots[-1]],
        "delta": [*versions, snapshots[-1]],
    }


@pytest.mark.timeout(4 * JVM_WAIT_S)
def test_sparks_runtimes_read_each_snapshot_of_an_archive_on_this_machine(tmp_path: Path) -> None:
    publish(tmp_path / "archive")
    check(str(tmp_path / "archive"))


@pytest.mark.timeout(4 * JVM_WAIT_S)
def test_sparks_runtimes_read_each_snapshot_of_an_archive_in_s3() -> None:
    with server() as endpoint:
        client_of(endpoint).create_bucket(Bucket="archives")
        publish(Bucket(endpoint).at("s3a://archives/archive"))
        check("s3a://archives/archive", endpoint)
