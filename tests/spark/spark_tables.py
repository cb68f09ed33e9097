"""Read published tables by the Spark runtimes of Iceberg and Delta, which do not know CometMQ.

The runtimes exist for Spark 4.1 and not for later versions, so .venv-spark-4.1 comes first in the path.

python -m tests.spark.spark_tables ARCHIVE VERSIONS [ENDPOINT]: a line of JSON: for each format, [rows, sum of
queue offsets] at each snapshot, the oldest first, and then now. ARCHIVE is a directory, or s3a://… of the server
at ENDPOINT; its Delta table has so many versions.

python -m tests.spark.spark_tables ARCHIVE --sql: runs the statements that standard input has as JSON: a line with
the rows of all.

python -m tests.spark.spark_tables --get: gets the jars by Maven.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import reduce
from typing import Any, Final

from tests.maven_jars import Artifact, MavenError, get_jars
from tests.spark import hadoop_aws
from tests.spark.bucket import KEY, REGION, SECRET
from tests.spark.hadoop_aws import ROOT
from tests.spark.processes import PLAIN_QUICK_JAVA, QUICK_QUERIES

_FOLDER: Final = ROOT / ".cache" / "spark-tables" / "4.1"
_ALONE: Final = ("*:*",)
_TABLES: Final = [
    Artifact("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0", _ALONE),
    # Spark has everything else that they need.
    *(
        Artifact("io.delta", name, "4.3.0", _ALONE)
        for name in (
            "delta-spark_4.1_2.13",
            "delta-storage",
            "delta-kernel-api",
            "delta-kernel-defaults",
            "delta-kernel-unitycatalog",
        )
    ),
    Artifact("io.unitycatalog", "unitycatalog-client", "0.5.0", _ALONE),
    Artifact("io.unitycatalog", "unitycatalog-hadoop", "0.5.0", _ALONE),
    Artifact("org.xerial", "sqlite-jdbc", "3.50.3.0", _ALONE),
]


def fetch() -> None:
    """Download the jars. If this fails, write the reason to stderr."""
    try:
        get_jars(_TABLES, _FOLDER)
    except MavenError as error:
        sys.stderr.write(f"no Spark runtimes of Iceberg and Delta, their test fails: {error}\n")
    hadoop_aws.fetch()


def session(archive: str, endpoint: str | None, more: Mapping[str, str] = QUICK_QUERIES) -> Any:
    from pyspark.sql import SparkSession

    jars = [*map(str, _FOLDER.glob("*.jar")), *hadoop_aws.jars()]
    catalog = "spark.sql.catalog.cometmq"
    settings = {
        **more,
        "spark.driver.extraJavaOptions": PLAIN_QUICK_JAVA,
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
    }
    if endpoint is None:
        home = f"{archive}/_tables/iceberg"
        settings |= {
            f"{catalog}.type": "jdbc",
            f"{catalog}.uri": f"jdbc:sqlite:{home}/catalog.db",
            f"{catalog}.warehouse": home,
        }
    else:
        s3a = {
            "access.key": KEY,
            "secret.key": SECRET,
            "endpoint": endpoint,
            "endpoint.region": REGION,
            "path.style.access": "true",
        }
        settings |= {f"spark.hadoop.fs.s3a.{key}": value for key, value in s3a.items()}
        settings |= {
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": archive,
            # Snapshots name files by s3://.
            "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def sums(frames: list[Any]) -> list[list[int]]:
    """Return the sums of frames by one query, because each query costs time."""
    from pyspark.sql import functions as F

    found = [
        frame.agg(F.lit(at).alias("at"), F.count("*"), F.sum("queue_offset"))
        for at, frame in enumerate(frames)
    ]
    rows = reduce(lambda all_of_them, one: all_of_them.unionAll(one), found).collect()
    return [[count, total or 0] for _, count, total in sorted(rows, key=lambda row: row[0])]


def read(archive: str, versions: int, endpoint: str | None) -> dict[str, list[list[int]]]:
    """Return the sums at each snapshot, and then the sums of the table without a snapshot."""
    spark = session(archive, endpoint)
    table = "cometmq.cometmq.messages" if endpoint is None else "cometmq._tables.iceberg"
    listed = spark.sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at")
    snapshots = [row.snapshot_id for row in listed.collect()]
    iceberg = [spark.sql(f"SELECT * FROM {table} VERSION AS OF {one}") for one in snapshots]
    delta = f"{archive}/_tables/files"
    reader = spark.read.format("delta")
    found = {
        "iceberg": sums([*iceberg, spark.table(table)]),
        "delta": sums(
            [
                *(reader.option("versionAsOf", at).load(delta) for at in range(versions)),
                spark.read.format("delta").load(delta),
            ]
        ),
    }
    spark.stop()
    return found


def run(archive: str, statements: list[str]) -> list[list[Any]]:
    """Return the rows of all statements, in their order. Tables may be large, so queries are compiled."""
    settings = {
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    spark = session(archive, None, settings)
    spark.sparkContext.setLogLevel("ERROR")
    rows = [list(row) for one in statements for row in spark.sql(one).collect()]
    spark.stop()
    return rows


if __name__ == "__main__":
    if sys.argv[1:] == ["--get"]:
        fetch()
    elif sys.argv[2:] == ["--sql"]:
        json.dump(run(sys.argv[1], json.load(sys.stdin)), sys.stdout)
    else:
        endpoint = sys.argv[3] if len(sys.argv) > 3 else None
        json.dump(read(sys.argv[1], int(sys.argv[2]), endpoint), sys.stdout)
