"""Run Hadoop's own small HDFS: a name node and a data node in one Java process, on loopback ports.

`python -m tests.spark.hdfs` gets its jars by Maven before the tests run (`make spark-versions`): 67 MB.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from tests.interop.peers import free_port
from tests.maven_jars import Artifact, MavenError, get_jars
from tests.spark.hadoop_aws import ROOT, hadoop_version
from tests.spark.processes import PLAIN_QUICK_JAVA
from tests.waits import JVM_WAIT_S, eventually

_FOLDER: Final = ROOT / ".cache" / "hadoop"
_ALONE: Final = ("*:*",)


def jars() -> list[str]:
    """Return the jars, none if they were not downloaded."""
    directory = _FOLDER / (hadoop_version() or "none")
    return sorted(map(str, directory.glob("*.jar")))


def fetch() -> None:
    """Download the jars by Maven, unless they are there. If this fails, write the reason to stderr."""
    version = hadoop_version()
    if version is None:
        return
    wanted = [
        Artifact("org.apache.hadoop", "hadoop-client-minicluster", version, _ALONE),
        Artifact("commons-logging", "commons-logging", "1.3.5", _ALONE),
        # HDFS checks its own directory by this library.
        Artifact("org.junit.jupiter", "junit-jupiter-api", "5.11.4"),
        # YARN makes certificates for the pages of applications.
        Artifact("org.bouncycastle", "bcpkix-jdk18on", "1.80"),
    ]
    try:
        get_jars(wanted, _FOLDER / version)
    except MavenError as error:
        sys.stderr.write(f"no jars of HDFS, its tests are skipped: {error}\n")


@contextmanager
def hdfs(directory: Path) -> Iterator[str]:
    """Run HDFS with its files in a directory, and yield its URI."""
    port = free_port()
    of_spark = Path(str(distribution("pyspark").locate_file("pyspark/jars")))
    patterns = ("hadoop-client-*.jar", "slf4j-api-*.jar", "log4j-*.jar")
    classes = [*jars(), *(str(path) for one in patterns for path in of_spark.glob(one))]
    details = directory / "details.json"
    java = shutil.which("java")
    assert java is not None
    with (directory / "hdfs.log").open("w") as log:
        server = subprocess.Popen(
            [
                *(java, *PLAIN_QUICK_JAVA.split(), f"-Dtest.build.data={directory}/data"),
                *("-cp", ":".join(classes), "org.apache.hadoop.test.MiniDFSClusterManager"),
                *("-format", "-datanodes", "1", "-nnport", str(port), "-httpport", "0"),
                *("-writeDetails", str(details)),
            ],
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def runs() -> bool:
        assert server.poll() is None, (directory / "hdfs.log").read_text()[-4000:]
        return details.exists()

    try:
        eventually(runs, wait_s=JVM_WAIT_S)
        yield f"hdfs://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    fetch()
