"""The commands of docs/spark-clusters.md run on Spark's standalone cluster and on YARN, with one archive of an
environment.

`make spark-clusters` runs this, because it takes minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.spark import hdfs
from tests.spark.archives import send
from tests.spark.bucket import require
from tests.spark.environments import make_environment, run_script, script_with
from tests.spark.standalone import HOME, StandaloneCluster
from tests.spark.yarn import hadoop_cluster
from tests.waits import JVM_WAIT_S

from cometmq.spark.jvm import jar_path
from cometmq.testing.cluster import Cluster

pytestmark = [
    pytest.mark.timeout(2 * JVM_WAIT_S),
    pytest.mark.skipif(
        os.environ.get("COMETMQ_CLUSTERS") != "true", reason="`make spark-clusters` runs it"
    ),
]

COUNT: Final = 200
# Reads a topic through workers, and a store in the JVM; says where the workers have CometMQ from.
JOB: Final = """
import json, os
from pyspark.sql import SparkSession

def origin(_):
    import cometmq
    return cometmq.__file__

spark = SparkSession.builder.getOrCreate()
topic = spark.read.format("rocketmq").option("namesrv", {namesrv!r}).option("subscribe", "orders").load()
store = spark.read.format("rocketmq-store").option("subscribe", "orders").option("reader", "jvm").load({store!r})
found = dict(
    topic=topic.count(),
    store=store.count(),
    equal=topic.select("msg_id", "body").exceptAll(store.select("msg_id", "body")).count() == 0,
    origin=spark.sparkContext.parallelize([0], 1).map(origin).collect(),
)
with open("found.json", "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("submitted"))


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(directory=tmp_path_factory.mktemp("brokers")) as cluster:
        send(cluster.namesrv, "orders", COUNT)
        yield cluster


def test_the_archive_has_all_but_pyspark(directory: Path) -> None:
    with tarfile.open(directory / "environment.tar.gz") as archive:
        names = set(archive.getnames())
    packages = "./lib/python3.11/site-packages"
    assert {f"{packages}/cometmq", f"{packages}/pyspark_cometmq", f"{packages}/pyarrow"} <= names
    assert f"{packages}/pyspark" not in names


def test_a_standalone_cluster_runs_a_program_with_the_archive_and_the_jar(
    directory: Path, brokers: Cluster, tmp_path: Path
) -> None:
    require(jar_path() is not None, "needs the jar of the store reader, which needs a JDK")
    brokers.call("stop_broker", 0)
    store = tmp_path / "store"
    shutil.copytree(brokers.directory / "broker-a", store)
    brokers.call("start_broker", 0)
    (directory / "job.py").write_text(JOB.format(namesrv=brokers.namesrv, store=str(store)))
    with StandaloneCluster(tmp_path, workers=1) as cluster:
        script = script_with("job.py").replace("spark://spark-1:7077", cluster.url)
        ended = run_script(script, directory, {})
    assert ended.returncode == 0, ended.stdout[-4000:]
    found = json.loads((directory / "found.json").read_text())
    (origin,) = found.pop("origin")
    assert found == {"topic": COUNT, "store": COUNT, "equal": True}
    assert Path(origin).is_relative_to(tmp_path / "work-0")
    assert "/environment/lib/python3.11/site-packages/cometmq/" in origin


def test_yarn_runs_a_pipeline_that_archives_to_hdfs(
    directory: Path, brokers: Cluster, tmp_path: Path
) -> None:
    require(bool(hdfs.jars()), "needs jars of Hadoop, which `make spark-clusters` gets")
    (directory / "pipeline.toml").write_text(
        f'[cluster]\nnamesrv = "{brokers.namesrv}"\n'
        '[archive]\ntopics = ["orders"]\npath = "hdfs:///archive"\n'
    )
    with hadoop_cluster(tmp_path) as configuration:
        script = script_with("--master yarn")
        script = script.replace("/etc/hadoop/conf", str(configuration))
        script = script.replace("/mnt/reports", f"{tmp_path}/reports")
        # YARN's containers find Spark's jars on this machine: they are not uploaded.
        ended = run_script(script, directory, {"spark.yarn.jars": f"local:{HOME}/jars/*"})
        printed = [path.read_text()[-1000:] for path in tmp_path.rglob("container_*/stdout")]
    assert ended.returncode == 0, ended.stdout[-2000:] + "\n".join(printed)
    report = json.loads((tmp_path / "reports" / "archive.json").read_text())
    assert report["holds"], report
