"""Run Hive's metastore, whose classes PySpark brings (2.3.10), over a database of Derby in a directory, with its
warehouse in S3.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from tests.interop.peers import free_port
from tests.spark.bucket import KEY, REGION, SECRET
from tests.spark.hadoop_aws import jars as jars_of_s3
from tests.spark.processes import PLAIN_QUICK_JAVA
from tests.waits import JVM_WAIT_S, eventually

_PROGRAM: Final = Path(__file__).parent / "java" / "Metastore.java"
_JARS: Final = Path(str(distribution("pyspark").locate_file("pyspark/jars")))


@contextmanager
def hive_metastore(directory: Path, endpoint: str, warehouse: str) -> Iterator[str]:
    """Run the server, which makes the directories of tables in S3 at `endpoint`, and yield its URI."""
    port = free_port()
    database = f"-Djavax.jdo.option.ConnectionURL=jdbc:derby:{directory}/metastore;create=true"
    settings = {
        "hive.metastore.warehouse.dir": warehouse,
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": REGION,
        "fs.s3a.access.key": KEY,
        "fs.s3a.secret.key": SECRET,
        "fs.s3a.path.style.access": "true",
        "hive.metastore.schema.verification": "false",
        "datanucleus.schema.autoCreateAll": "true",
        # PySpark does not bring the pool that is the default.
        "datanucleus.connectionPoolingType": "none",
    }
    words = [word for pair in settings.items() for word in ("--hiveconf", "=".join(pair))]
    java = shutil.which("java")
    assert java is not None
    with (directory / "metastore.log").open("w") as log:
        server = subprocess.Popen(
            [
                *(java, *PLAIN_QUICK_JAVA.split(), database, f"-Djava.io.tmpdir={directory}"),
                # Asynchronous logs take a library that PySpark does not bring.
                *("-Dhive.async.log.enabled=false", "-cp", ":".join([f"{_JARS}/*", *jars_of_s3()])),
                *(str(_PROGRAM), "-p", str(port), *words),
            ],
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def answers() -> bool:
        assert server.poll() is None, (directory / "metastore.log").read_text()[-4000:]
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(answers, wait_s=JVM_WAIT_S)
        yield f"thrift://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
