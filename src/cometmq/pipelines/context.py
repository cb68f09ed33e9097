"""What every pipeline works with: Spark, the cluster, and somebody to tell how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from cometmq.pipelines.configuration import ClusterConfig, SparkConfig
from cometmq.pipelines.progress import Progress
from cometmq.spark.session import spark_session

# What hours, days and texts of times mean, and what sources need to see filters.
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}


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

    Times are UTC in it: where the session that there is, or `spark`, has another time zone, pipelines
    work in a session of their own beside it.

    Raises ConfigError when there is no Java that Spark runs on.
    """
    from pyspark.sql import SparkSession

    spark = spark or SparkConfig()
    was_there = SparkSession.getActiveSession() is not None
    session = spark_session(spark.master, app_name, spark.config)
    try:
        yield Context(_in_utc(session), cluster or ClusterConfig(), progress or Progress())
    finally:
        if not was_there:
            session.stop()


def silence_spark() -> None:
    """Keep pyspark from writing each refused query to stderr, beside the error that it raises."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _in_utc(session: Any) -> Any:
    if all(session.conf.get(name) == value for name, value in _SETTINGS.items()):
        return session
    own = session.newSession()
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    return own
