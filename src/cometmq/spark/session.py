"""Open a Spark session for the pipelines."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from cometmq.spark.java import require_java
from cometmq.spark.jvm import with_jar

_JARS: Final = "spark.jars"


def spark_session(
    master: str | None = None, app_name: str = "cometmq", config: Mapping[str, str] | None = None
) -> Any:
    """Return the present session, or a new one: on `master`, else as spark-submit says, else on all
    cores of this machine.

    Times are UTC, Spark's filters are pushed down to the sources, and stores are read in the JVM where
    this installation has the jar for it. Raise ConfigError, in one
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
    # A JVM that runs already has its jars. Those of spark-defaults.conf, as of all files, stay in force
    # only if no program sets others.
    if "PYSPARK_GATEWAY_PORT" not in os.environ and not _defaults_name_jars():
        jars = with_jar(settings.get(_JARS))
        settings |= {_JARS: jars} if jars else {}
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _defaults_name_jars() -> bool:
    """Say whether what starts Spark here names jars already."""
    home = os.environ.get("SPARK_HOME", ".")
    directory = Path(os.environ.get("SPARK_CONF_DIR") or Path(home) / "conf")
    try:
        defaults = (directory / "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        defaults = ""
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    return _JARS in defaults or _JARS in arguments or "--jars" in arguments
