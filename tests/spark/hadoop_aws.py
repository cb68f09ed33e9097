"""Keeps the jars by which Spark reaches an S3 server: hadoop-aws and the parts of Amazon's SDK that it uses.

`python -m tests.spark.hadoop_aws` gets them by Maven before the tests run (`make spark`): 20 MB instead
of the 600 MB of the whole SDK in one jar, which Hadoop asks for.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from tests.maven_jars import Artifact, MavenError, get_jars

ROOT: Final = Path(__file__).parents[2]
_FOLDER: Final = ROOT / ".cache" / "hadoop-aws"
SDK: Final = "2.57.8"
_ACCELERATOR: Final = "1.3.1"
_ALONE: Final = ("*:*",)


def hadoop_version() -> str | None:
    """Return the version of PySpark's Hadoop, None without PySpark."""
    try:
        jars = Path(str(distribution("pyspark").locate_file("pyspark/jars")))
    except PackageNotFoundError:
        return None
    for path in jars.glob("hadoop-client-api-*.jar"):
        if found := re.fullmatch(r"hadoop-client-api-(.+)\.jar", path.name):
            return found[1]
    return None


def jars() -> list[str]:
    """Return the jars, none if they were not got."""
    directory = _FOLDER / (hadoop_version() or "none")
    return sorted(map(str, directory.glob("*.jar")))


def fetch() -> None:
    """Get the jars by Maven, unless they are there. Say so if that does not work."""
    version = hadoop_version()
    if version is None:
        return
    sdk = "software.amazon.awssdk"
    wanted = [
        Artifact("org.apache.hadoop", "hadoop-aws", version, _ALONE),
        Artifact(
            "software.amazon.s3.analyticsaccelerator",
            "analyticsaccelerator-s3",
            _ACCELERATOR,
            _ALONE,
        ),
        *(
            Artifact(sdk, name, SDK)
            for name in ("s3", "s3-transfer-manager", "sts", "apache-client")
        ),
    ]
    try:
        get_jars(wanted, _FOLDER / version)
    except MavenError as error:
        sys.stderr.write(f"no jars of hadoop-aws, tests of object stores are skipped: {error}\n")


if __name__ == "__main__":
    fetch()
