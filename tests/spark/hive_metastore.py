"""Run Hive's metastore, whose classes PySpark brings (2.3.10), over a database of Derby in a directory, with its
warehouse in S3.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.interop.peers import free_port
from tests.spark.bucket import KEY, REGION, SECRET
from tests.spark.hadoop_aws import jars as jars_of_s3
from tests.spark.java_server import jars_of_spark, java_server

_PROGRAM: Final = Path(__file__).parent / "java" / "Metastore.java"


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
    command = [
        *(f"-Djava.io.tmpdir={directory}", database),
        # Asynchronous logs take a library that PySpark does not bring.
        *(
            "-Dhive.async.log.enabled=false",
            "-cp",
            ":".join([*jars_of_spark("*.jar"), *jars_of_s3()]),
        ),
        *(str(_PROGRAM), "-p", str(port), *words),
    ]

    def answers() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    with java_server(directory, command, answers):
        yield f"thrift://127.0.0.1:{port}"
