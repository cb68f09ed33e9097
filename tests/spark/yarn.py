"""Run Hadoop's own small cluster: HDFS and YARN with one node each, in one Java process, on loopback ports.

`python -m tests.spark.hdfs` gets its jars before the tests run (`make spark-clusters`).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.spark.hdfs import jars
from tests.spark.java_server import jars_of_spark, java_server

_PROGRAM: Final = Path(__file__).parent / "java" / "SmallHadoop.java"
_SETTINGS: Final = {
    "yarn.nodemanager.resource.memory-mb": "6144",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    # The disk of this machine may be fuller than YARN likes.
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99",
    "yarn.scheduler.minimum-allocation-mb": "128",
    # One application master takes more than the tenth that all of them may have by default.
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.minicluster.fixed.ports": "false",
}


@contextmanager
def hadoop_cluster(directory: Path) -> Iterator[Path]:
    """Run HDFS and YARN with their files in a directory, and yield the directory for HADOOP_CONF_DIR."""
    configuration = directory / "conf"
    configuration.mkdir()
    of_spark = jars_of_spark(
        "hadoop-client-*.jar", "slf4j-api-*.jar", "log4j-*.jar", "commons-*.jar"
    )
    core = configuration / "core-site.xml"
    settings = {**_SETTINGS, "hdfs.minidfs.basedir": str(directory / "hdfs")}
    command = [
        *("-cp", ":".join([*jars(), *of_spark]), str(_PROGRAM), str(core)),
        *map("=".join, settings.items()),
    ]
    # It ends its containers, which a kill would leave.
    with java_server(directory, command, core.exists, end=subprocess.Popen.terminate):
        # YARN's defaults take precedence over the file of Hadoop's core.
        shutil.copyfile(core, configuration / "yarn-site.xml")
        yield configuration
