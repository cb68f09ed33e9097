"""Run Hadoop's own small cluster: HDFS and YARN with one node each, in one Java process, on loopback ports.

`python -m tests.spark.hdfs` gets its jars before the tests run (`make spark-clusters`).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from tests.spark.hdfs import jars
from tests.spark.processes import PLAIN_QUICK_JAVA
from tests.waits import JVM_WAIT_S, eventually

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
    of_spark = Path(str(distribution("pyspark").locate_file("pyspark/jars")))
    patterns = ("hadoop-client-*.jar", "slf4j-api-*.jar", "log4j-*.jar", "commons-*.jar")
    classes = [*jars(), *(str(path) for one in patterns for path in of_spark.glob(one))]
    java = shutil.which("java")
    assert java is not None
    settings = {**_SETTINGS, "hdfs.minidfs.basedir": str(directory / "hdfs")}
    with (directory / "hadoop.log").open("w") as log:
        server = subprocess.Popen(
            [
                *(java, *PLAIN_QUICK_JAVA.split(), "-cp", ":".join(classes), str(_PROGRAM)),
                *(str(configuration / "core-site.xml"), *map("=".join, settings.items())),
            ],
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def runs() -> bool:
        assert server.poll() is None, (directory / "hadoop.log").read_text()[-4000:]
        return (configuration / "core-site.xml").exists()

    try:
        eventually(runs, wait_s=JVM_WAIT_S)
        # YARN's defaults take precedence over the file of Hadoop's core.
        shutil.copyfile(configuration / "core-site.xml", configuration / "yarn-site.xml")
        yield configuration
    finally:
        server.terminate()
        server.wait()
