"""The pipeline `archive` on topics of the Java broker, live and from its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker
from tests.spark.archives import archived_rows, run, send, sent_rows
from tests.spark.dead_letters import stored_count
from tests.waits import eventually

from cometmq.testing.cluster import Cluster

pytestmark = pytest.mark.interop


@pytest.mark.timeout(1200)  # on a machine that is ten times slower, too
def test_topics_of_a_java_broker_are_archived_and_proved(spark: Any, tmp_path: Path) -> None:
    need("java", "mvn")
    store = tmp_path / "store"
    live, alone = tmp_path / "live", tmp_path / "alone"
    with (
        Cluster(brokers=0) as cluster,
        JavaBroker(cluster.namesrv, store=store, commit_log_file_bytes=256 * 1024) as broker,
    ):
        sent = send(cluster.namesrv, "orders", 120)
        # A Java broker puts messages into their queues behind the answers.
        eventually(lambda: stored_count(cluster.namesrv, "orders") == sent)
        settings: dict[str, Any] = {"topics": ["orders"], "compact_files": 3}
        report = run(spark, cluster.namesrv, live, **settings, max_messages=50)
        assert report.holds, report
        assert report.proved == sent
        sent += send(cluster.namesrv, "orders", 40)
        eventually(lambda: stored_count(cluster.namesrv, "orders") == sent)
        report = run(spark, cluster.namesrv, live, **settings)
        assert report.holds, report
        rows = sent_rows(cluster.namesrv, ["orders"])
        assert len(rows) == sent
        assert archived_rows(spark, live) == rows
        broker.stop()
    report = run(spark, None, alone, **settings, store=str(store), broker=broker.broker_name)
    assert report.holds, report
    assert archived_rows(spark, alone) == rows
