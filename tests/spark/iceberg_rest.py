"""Run Iceberg's own REST catalog, the server of its compatibility tests, over a catalog in SQLite.

`python -m tests.spark.iceberg_rest` gets its jars by Maven before the tests run (`make spark`): 40 MB. The
newest version whose server is in Maven's repository is 1.10.1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from tests.interop.peers import free_port
from tests.maven_jars import Artifact, MavenError, get_jars
from tests.spark.bucket import KEY, REGION, SECRET
from tests.spark.hadoop_aws import ROOT, SDK
from tests.spark.hadoop_aws import jars as jars_of_s3
from tests.spark.processes import QUICK_JAVA
from tests.waits import JVM_WAIT_S, eventually

VERSION: Final = "1.10.1"
_FOLDER: Final = ROOT / ".cache" / "iceberg-rest" / VERSION
_GROUP: Final = "org.apache.iceberg"
_ALONE: Final = ("*:*",)


def jars() -> list[str]:
    """Return the jars, none if they were not downloaded."""
    return sorted(map(str, _FOLDER.glob("*.jar")))


def fetch() -> None:
    """Download the jars by Maven, unless they are there. If this fails, write the reason to stderr."""
    wanted = [
        Artifact(_GROUP, "iceberg-open-api", VERSION, _ALONE, "test-fixtures"),
        Artifact(_GROUP, "iceberg-core", VERSION),
        Artifact(_GROUP, "iceberg-core", VERSION, _ALONE, "tests"),
        Artifact(_GROUP, "iceberg-aws", VERSION, _ALONE),
        Artifact("dev.failsafe", "failsafe", "3.3.2", _ALONE),
        # The other parts of Amazon's SDK come with hadoop-aws.
        Artifact("software.amazon.awssdk", "kms", SDK, _ALONE),
        Artifact("org.eclipse.jetty", "jetty-servlet", "11.0.26"),
        Artifact("org.xerial", "sqlite-jdbc", "3.50.3.0", _ALONE),
    ]
    try:
        get_jars(wanted, _FOLDER)
    except MavenError as error:
        sys.stderr.write(f"no jars of Iceberg's REST catalog, its tests are skipped: {error}\n")


@contextmanager
def rest_catalog(directory: Path, endpoint: str, warehouse: str) -> Iterator[str]:
    """Run the server, which writes metadata to S3 at `endpoint`, and yield its URL."""
    port = free_port()
    hadoop = Path(str(distribution("pyspark").locate_file("pyspark/jars")))
    classes = [*jars(), *jars_of_s3(), *map(str, hadoop.glob("hadoop-client-*.jar"))]
    settings = {
        "REST_PORT": str(port),
        "URI": f"jdbc:sqlite:{directory}/catalog.db",
        "WAREHOUSE": warehouse,
        "IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "S3_ENDPOINT": endpoint,
        "S3_PATH__STYLE__ACCESS": "true",
        "S3_ACCESS__KEY__ID": KEY,
        "S3_SECRET__ACCESS__KEY": SECRET,
        "CLIENT_REGION": REGION,
        "HTTP__CLIENT_TYPE": "apache",
    }
    java = shutil.which("java")
    assert java is not None
    with (directory / "server.log").open("w") as log:
        server = subprocess.Popen(
            [
                java,
                *QUICK_JAVA.split(),
                "-cp",
                ":".join(classes),
                f"{_GROUP}.rest.RESTCatalogServer",
            ],
            env={**os.environ, **{f"CATALOG_{key}": value for key, value in settings.items()}},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, (directory / "server.log").read_text()[-4000:]
        try:
            with urlopen(f"{url}/v1/config", timeout=5) as found:
                return bool(found.status == 200)
        except (URLError, TimeoutError):
            return False

    try:
        eventually(answers, wait_s=JVM_WAIT_S)
        yield url
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    fetch()
