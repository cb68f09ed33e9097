"""Keeps an archive of Spark's loaded classes, with which a JVM of the tests starts in half the time.

`python -m tests.spark.class_archive` makes it before the tests run (`make spark`). Java calls this
application class-data sharing: at its end, a JVM writes the classes that it loaded, parsed and linked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
_FOLDER: Final = ROOT / ".cache" / "spark-classes"


def archive_file() -> Path | None:
    """Return where the archive of this Java and this PySpark belongs, None without one of the two."""
    java = shutil.which("java")
    try:
        spark = distribution("pyspark")
    except PackageNotFoundError:
        return None
    if java is None:
        return None
    # Java refuses an archive of another Java, or of another class path, by itself: the name only
    # keeps the archives of several checkouts and versions apart.
    there = f"{Path(java).resolve()} {spark.version} {spark.locate_file('pyspark')}"
    return _FOLDER / f"{hashlib.sha256(there.encode()).hexdigest()[:16]}.jsa"


def archive_options() -> str:
    """Return the options of a JVM that starts with the archive, none if there is no archive."""
    file = archive_file()
    if file is None or not file.is_file():
        return ""
    # An archive that does not fit is left aside without a line among what the tests read.
    return f" -XX:SharedArchiveFile={file} -Xlog:cds=off -Xlog:cds+dynamic=off"


def make_archive() -> None:
    """Run a Spark program whose JVM writes the archive at its end, unless there is one."""
    file = archive_file()
    if file is None or file.is_file():
        return
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        unfinished = Path(folder, "classes.jsa")
        program = [sys.executable, "-m", "tests.spark.class_archive", str(unfinished)]
        try:
            subprocess.run(program, check=True, cwd=ROOT, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            # The tests pass without it, only more slowly.
            sys.stderr.write(f"no archive of Spark's classes: {error}\n{error.stderr[-2000:]}\n")
            return
        # The name appears with the whole file, since a JVM may start meanwhile.
        unfinished.rename(file)


def _load_classes(archive: str) -> None:
    """Use what most tests use: rows to and from Python, files, joins, and a streaming query."""
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceReader
    from tests.spark.processes import PLAIN_QUICK_JAVA

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config(
            "spark.driver.extraJavaOptions",
            f"{PLAIN_QUICK_JAVA} -XX:ArchiveClassesAtExit={archive}",
        )
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
        _load_classes(sys.argv[1])
    else:
        make_archive()
