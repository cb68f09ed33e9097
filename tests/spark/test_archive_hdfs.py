"""The pipeline `archive` on HDFS, Hadoop's own small cluster: files are whole, and an archive goes on after deaths.

`make spark-versions` runs this, because it takes a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.spark import hdfs
from tests.spark.archives import by_place, run, send, sent_rows
from tests.spark.bucket import require
from tests.spark.rows import rows_of
from tests.spark.test_archive_objects import archive_in_spite_of_deaths, check_files
from tests.spark.test_versions import VERSIONS
from tests.waits import JVM_WAIT_S

from cometmq.pipelines import archive
from cometmq.pipelines.archive.layout import layout_of
from cometmq.spark.rows.columns import COLUMNS
from cometmq.testing.cluster import Cluster

pytestmark = [
    pytest.mark.cluster(brokers=2, properties={"defaultTopicQueueNums": "1"}),
    pytest.mark.timeout(2 * JVM_WAIT_S),
    pytest.mark.skipif(not VERSIONS, reason="`make spark-versions` gets the jars of HDFS"),
]


@pytest.fixture(scope="module")
def name_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require(bool(hdfs.jars()), "needs jars of HDFS, which `make spark-versions` gets")
    with hdfs.hdfs(tmp_path_factory.mktemp("hdfs")) as uri:
        yield uri


def test_files_in_hdfs_appear_as_a_whole_and_are_created_once(spark: Any, name_node: str) -> None:
    check_files(spark, name_node, is_never_missing=True)


def test_an_archive_in_hdfs_is_proved_and_goes_on(
    spark: Any, cluster: Cluster, name_node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, path = "blocks", f"{name_node}/deep/archive"
    sent, settings = archive_in_spite_of_deaths(spark, cluster.namesrv, topic, path, monkeypatch)
    sent += send(cluster.namesrv, topic, 20)
    report = run(spark, cluster.namesrv, path, **settings)
    assert report.holds, report
    rows = sent_rows(cluster.namesrv, [topic])
    assert len(rows) == sent
    assert by_place(rows_of(archive.read(spark, path).select(*COLUMNS).toArrow())) == rows
    layout = layout_of(spark, path)
    assert not layout.staging.files.sizes(str(layout.staging))
