"""Keeps an archive of Spark's loaded classes, with which a JVM of the tests starts in half the time.

`python -m tests.spark.class_archive` makes it before the tests run (`make spark`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from tests.class_archives import archive_file, archive_options, is_there, writing_archives

ROOT: Final = Path(__file__).parents[2]


def spark_archive() -> Path | None:
    """Return where the archive of this Java and this PySpark belongs, None without one of the two."""
    try:
        spark = distribution("pyspark")
    except PackageNotFoundError:
        return None
    return archive_file("spark", spark.version, str(spark.locate_file("pyspark")))


def spark_options() -> str:
    """Return the options of a JVM that starts with the archive, none if there is no archive."""
    return "".join(f" {option}" for option in archive_options(spark_archive()))


def make_archive() -> None:
    """Run a Spark program whose JVM writes the archive at its end, unless there is one."""
    file = spark_archive()
    if file is None or is_there(file):
        return
    program = [sys.executable, "-m", "tests.spark.class_archive", "--load"]
    try:
        with writing_archives():
            subprocess.run(program, check=True, cwd=ROOT, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        # The tests pass without it, only more slowly.
        sys.stderr.write(f"no archive of Spark's classes: {error}\n{error.stderr[-2000:]}\n")


def _load_classes() -> None:
    """Use what most tests use: rows to and from Python, files, joins, and a streaming query."""
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceReader
    from tests.spark.processes import QUICK_JAVA

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", QUICK_JAVA)
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    class Reader(DataSourceReader):
        def read(self, partition: Any) -> Iterator[tuple[int]]:
            yield from ((n,) for n in range(10))

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    def same(rows: Iterable[Any]) -> Iterable[Any]:
        yield from rows

    def count(batch: Any, _: int) -> None:
        batch.count()

    with tempfile.TemporaryDirectory() as folder:
        rows = spark.createDataFrame(
            [(n, str(n), b"x") for n in range(100)], "n long, t string, b binary"
        )
        rows.write.parquet(f"{folder}/rows")
        read = spark.read.parquet(f"{folder}/rows")
        joined = read.join(rows.selectExpr("n", "t as other"), "n").groupBy("t").count()
        joined.orderBy("t").collect()
        read.rdd.mapPartitions(same).count()
        read.toArrow()
        spark.dataSource.register(Numbers)
        spark.read.format("numbers").load().selectExpr("sum(n)").collect()
        stream = spark.readStream.schema(read.schema).parquet(f"{folder}/rows")
        query = (
            stream.writeStream.foreachBatch(count)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        spark.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _load_classes()
    else:
        make_archive()
