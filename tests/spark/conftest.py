"""One Spark for all tests of the session: it takes longer to start than any of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.integration.fixtures import real_cluster as cluster
from tests.longest_first import begin_with
from tests.spark.hadoop_aws import jars
from tests.spark.processes import QUICK_JAVA, QUICK_QUERIES

__all__ = ["cluster"]

# Without the extra `spark` there is nothing to be run here.
collect_ignore_glob = [] if find_spec("pyspark") and find_spec("pyarrow") else ["test_*.py"]


# Each takes half a minute or more, the first ones minutes.
LONGEST = (
    "test_audit_stream",
    "test_pipeline_archive",
    "test_table_service",
    "test_pipeline_audit",
    "test_standalone",
    "test_decoded_tables",
    "test_pipeline_replay",
    "test_audit_stream_evidence",
    "test_pipeline_redrive",
    "test_pipeline_rebuild",
    "test_live_stream",
    "test_published_tables",
    "test_secrets",
    "test_demo",
    "test_sink_stream",
    "test_archive_on_java",
    "test_resending_on_java",
    "test_on_java",
    "test_trace_on_java",
    "test_archive_objects",
    "test_stream_outages",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    begin_with(LONGEST, here, items)
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from cometmq.spark.jvm import with_jar

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("cometmq-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", QUICK_JAVA)
        .config(map={**QUICK_QUERIES})
        .config("spark.sql.session.timeZone", "UTC")
        # Stores are read in the JVM, unless `scripts/store-jar` could not make the jar for it.
        # An S3 server is reached by further jars, if they were got.
        .config("spark.jars", ",".join(filter(None, [with_jar(None), *jars()])))
        .config("spark.sql.python.filterPushdown.enabled", "true")
        # Python workers that come up slowly on a busy machine are waited for.
        .config("spark.python.authenticate.socketTimeout", "600s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
