"""Keeps the jars by which Spark reaches an S3 server: hadoop-aws and the parts of Amazon's SDK that it uses.

`python -m tests.spark.hadoop_aws` gets them by Maven before the tests run (`make spark`): 20 MB instead
of the 600 MB of the whole SDK in one jar, which Hadoop asks for.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_FOLDER: Final = ROOT / ".cache" / "hadoop-aws"
_SDK: Final = "2.57.8"
_ACCELERATOR: Final = "1.3.1"
_DEPENDENCY: Final = """
  <dependency>
    <groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>{without}
  </dependency>"""
_ALONE: Final = """
    <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"""


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


def get_jars() -> None:
    """Get the jars by Maven, unless they are there. Say so if that does not work."""
    version = hadoop_version()
    if version is None or jars():
        return
    if shutil.which("mvn") is None:
        sys.stderr.write("no Apache Maven (`mvn`): tests of object stores are skipped\n")
        return
    sdk = "software.amazon.awssdk"
    wanted = [
        ("org.apache.hadoop", "hadoop-aws", version, _ALONE),
        (
            "software.amazon.s3.analyticsaccelerator",
            "analyticsaccelerator-s3",
            _ACCELERATOR,
            _ALONE,
        ),
        *((sdk, name, _SDK, "") for name in ("s3", "s3-transfer-manager", "sts", "apache-client")),
    ]
    listed = "".join(
        _DEPENDENCY.format(group=group, name=name, version=one, without=without)
        for group, name, one, without in wanted
    )
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_FOLDER) as work:
        Path(work, "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0">\n'
            "  <modelVersion>4.0.0</modelVersion><groupId>cometmq</groupId>"
            "<artifactId>hadoop-aws</artifactId><version>1</version><packaging>pom</packaging>\n"
            f"  <dependencies>{listed}\n  </dependencies>\n</project>\n"
        )
        command = ["mvn", "-B", "-q", "-ntp", "-Dmaven.wagon.http.readTimeout=60000"]
        command += ["-Daether.connector.requestTimeout=60000", "dependency:copy-dependencies"]
        try:
            subprocess.run(
                [*command, f"-DoutputDirectory={work}/jars"],
                check=True,
                cwd=work,
                capture_output=True,
                text=True,
            )
        except subprocess.CalledProcessError as error:
            sys.stderr.write(
                f"no jars of hadoop-aws: {error.stdout[-2000:]}{error.stderr[-2000:]}\n"
            )
            return
        Path(work, "jars").rename(_FOLDER / version)


if __name__ == "__main__":
    get_jars()
