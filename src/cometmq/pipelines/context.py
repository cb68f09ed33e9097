"""What every pipeline works with: Spark, the cluster, and somebody to tell how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cometmq.pipelines.configuration import ClusterConfig, SparkConfig
from cometmq.pipelines.progress import Progress
from cometmq.spark.session import spark_session


@dataclass(frozen=True)
class Context:
    spark: Any
    cluster: ClusterConfig
    progress: Progress


@contextmanager
def open_context(
    cluster: ClusterConfig | None = None,
    spark: SparkConfig | None = None,
    progress: Progress | None = None,
    app_name: str = "cometmq",
) -> Iterator[Context]:
    """A context in the Spark session that there is, else in one that is stopped at the end.

    Raises ConfigError when there is no Java that Spark runs on.
    """
    from pyspark.sql import SparkSession

    spark = spark or SparkConfig()
    was_there = SparkSession.getActiveSession() is not None
    session = spark_session(spark.master, app_name, spark.config)
    try:
        yield Context(session, cluster or ClusterConfig(), progress or Progress())
    finally:
        if not was_there:
            session.stop()
