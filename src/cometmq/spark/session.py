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
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
# Pipelines are to take little processor time, and nobody notices their pauses.
_COLLECTOR: Final = "-XX:+UseParallelGC"
# Where Java itself looks for options. It does not start with two collectors.
_JAVA_VARIABLES: Final = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "SPARK_SUBMIT_OPTS",
)


def spark_session(
    master: str | None = None, app_name: str = "cometmq", config: Mapping[str, str] | None = None
) -> Any:
    """Return the present session, or a new one: on `master`, else as spark-submit says, else on all
    cores of this machine.

    Times are UTC, Spark's filters are pushed down where a read asks for it, and stores are read in the JVM where
    this installation has the jar for it. A JVM that starts here collects its garbage by its parallel
    collector, unless somebody gives Java options. Raise ConfigError, in one sentence, when there is no
    Java that Spark runs on.
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
        # For frames that ask for it by the option pushFilters.
        "spark.sql.python.filterPushdown.enabled": "true",
        **(config or {}),
    }
    # A JVM that runs already has its jars and options.
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        settings |= of_new_jvm(settings)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def of_new_jvm(given: Mapping[str, str]) -> dict[str, str]:
    """Return settings that only count when a JVM starts, beside those that are given.

    Settings in files such as spark-defaults.conf stay in force only if no program sets others.
    """
    elsewhere = _said_elsewhere()
    settings: dict[str, str] = {}
    if _JARS not in elsewhere and "--jars" not in elsewhere:
        jars = with_jar(given.get(_JARS))
        settings |= {_JARS: jars} if jars else {}
    gives_options = "java" in f"{elsewhere} {' '.join(given)}".lower()
    if not gives_options and not any(name in os.environ for name in _JAVA_VARIABLES):
        settings[_JAVA_OPTIONS] = _COLLECTOR
    return settings


def _said_elsewhere() -> str:
    """Return the settings that whatever starts Spark here gives already, as text."""
    home = os.environ.get("SPARK_HOME", ".")
    directory = Path(os.environ.get("SPARK_CONF_DIR") or Path(home) / "conf")
    try:
        defaults = (directory / "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        defaults = ""
    return f"{defaults}\n{os.environ.get('PYSPARK_SUBMIT_ARGS', '')}"
