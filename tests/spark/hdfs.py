"""Run Hadoop's own small HDFS: a name node and a data node in one Java process, on loopback ports.

`python -m tests.spark.hdfs` gets its jars by Maven before the tests run (`make spark-versions`): 67 MB.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.interop.peers import free_port
from tests.maven_jars import Artifact, MavenError, get_jars
from tests.spark.hadoop_aws import ROOT, hadoop_version
from tests.spark.java_server import jars_of_spark, java_server

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
    of_spark = jars_of_spark("hadoop-client-*.jar", "slf4j-api-*.jar", "log4j-*.jar")
    details = directory / "details.json"
    command = [
        *(f"-Dtest.build.data={directory}/data", "-cp", ":".join([*jars(), *of_spark])),
        "org.apache.hadoop.test.MiniDFSClusterManager",
        *("-format", "-datanodes", "1", "-nnport", str(port), "-httpport", "0"),
        *("-writeDetails", str(details)),
    ]
    with java_server(directory, command, details.exists):
        yield f"hdfs://127.0.0.1:{port}"


if __name__ == "__main__":
    fetch()
