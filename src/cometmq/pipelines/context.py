"""Open the parts that every pipeline needs: Spark, the cluster, and a display of progress."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from cometmq.pipelines.configuration import ClusterConfig, Decode, SparkConfig
from cometmq.pipelines.progress import Progress
from cometmq.pipelines.report import Report
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.spark.session import spark_session

# UTC for hours, days and times in text; and reads with the option pushFilters see filters.
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}


def _to_nobody(_report: Report) -> None:
    """Publish no report of a stream."""


@dataclass(frozen=True)
class Context:
    """The parts that a pipeline needs. `publish` is called with the report of each round of a
    stream. `decode` has the rules by which bodies are decoded, by topic.
    """

    spark: Any
    cluster: ClusterConfig
    progress: Progress
    clock: Clock = SYSTEM_CLOCK
    publish: Callable[[Report], None] = _to_nobody
    decode: Mapping[str, Decode] = field(default_factory=dict)


@contextmanager
def open_context(
    cluster: ClusterConfig | None = None,
    spark: SparkConfig | None = None,
    progress: Progress | None = None,
    app_name: str = "cometmq",
    publish: Callable[[Report], None] = _to_nobody,
    decode: Mapping[str, Decode] | None = None,
) -> Iterator[Context]:
    """Open a context in the present Spark session, or in a new one that is stopped at the end.

    Times in it are UTC: if the present session, or `spark`, has another time zone, the pipelines
    work in a session of their own beside it.

    Raise ConfigError when there is no Java that Spark runs on.
    """
    from pyspark.sql import SparkSession

    spark = spark or SparkConfig()
    was_there = SparkSession.getActiveSession() is not None
    session = spark_session(spark.master, app_name, spark.config)
    try:
        yield Context(
            _in_utc(session),
            cluster or ClusterConfig(),
            progress or Progress(),
            publish=publish,
            decode=decode or {},
        )
    finally:
        if not was_there:
            # If Java is gone, the error of the pipeline's own call says more.
            with suppress(ConnectionError):
                session.stop()


def silence_spark() -> None:
    """Keep PySpark from writing each refused query to stderr, beside the error that it raises, and from
    warning about the version of pandas: no pipeline uses frames of pandas.
    """
    from pyspark.logger import PySparkLogger

    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _in_utc(session: Any) -> Any:
    if all(session.conf.get(name) == value for name, value in _SETTINGS.items()):
        return session
    own = session.newSession()
    for name, value in _SETTINGS.items():
        own.conf.set(name, value)
    return own
