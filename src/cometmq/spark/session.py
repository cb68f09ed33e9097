"""Open a Spark session for the pipelines."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from cometmq.spark.java import require_java


def spark_session(
    master: str | None = None, app_name: str = "cometmq", config: Mapping[str, str] | None = None
) -> Any:
    """Return the present session, or a new one: on `master`, else as spark-submit says, else on all
    cores of this machine.

    Times are UTC, and Spark's filters are pushed down to the sources. Raise ConfigError, in one
    sentence, when there is no Java that Spark runs on.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    require_java()
    # Workers on this machine must run the Python that has cometmq.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    # A process started by spark-submit has its master already.
    if master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master(master or "local[*]")
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        **(config or {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
