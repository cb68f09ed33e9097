"""Read an archive for an audit: its messages and its notes about itself.

A directory of Parquet files with the columns of the sources will do as well, but it cannot say
which files are missing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cometmq.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.columns import needed_for, with_derived
from cometmq.pipelines.archive.layout import DataFile, Hour, layout_of
from cometmq.pipelines.archive.schemas import check_columns, check_readable
from cometmq.pipelines.message_logs import no_messages, schema_of
from cometmq.spark.gaps import Gap
from cometmq.spark.rows.columns import COLUMNS

# The audit finds damaged or vanishing files by the messages that are missing.
_LENIENT: Final = {"ignoreCorruptFiles": "true", "ignoreMissingFiles": "true"}


@dataclass
class ArchiveNotes:
    """Holds an archive's notes about itself.

    offsets: for each queue, the first offset to archive, and the offset below which all is
        archived.
    gaps: offsets that the archive did not get, and why.
    missing: offsets of files that the archive has written and that are missing, with the file's
        name. A file that was never proved is not listed, because nobody knows what it held.
    known_files: the archive's files, named as in the column `file`; None for a directory that is no
        archive.
    """

    offsets: dict[MessageQueue, tuple[int, int]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    missing: list[tuple[Gap, str]] = field(default_factory=list)
    known_files: list[str] | None = None


def archive_notes(
    spark: Any, path: str, topics: Collection[str], since_hour: str = ""
) -> ArchiveNotes:
    """Read the notes about these topics, and about their files from an hour on. Raise ConfigError if
    the path has no archive or a damaged one.
    """
    layout = layout_of(spark, path, "archive")
    if not layout.path.exists():
        raise ConfigError(
            f"archive is {path!r}, which is no directory here; give the path of the archive"
        )
    notes = ArchiveNotes()
    if not layout.data.exists():
        return notes
    archive = layout.load_state()
    check_readable(f"archive is {path!r}", archive.all_schemas().values())
    for state in archive.queues:
        if state.topic in topics:
            notes.offsets[state.queue] = (state.first, state.to)
    try:
        gaps = layout.load_gaps()
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the archive's list of gaps {layout.gaps} is damaged: {error}"
        ) from error
    notes.gaps = [gap for gap in gaps if gap.topic in topics]
    notes.known_files = []
    there = layout.data_files()
    for manifest in layout.load_manifests(since_hour):
        if manifest.topic in topics:
            for file in manifest.files:
                _note_file(notes, there.get(manifest.key, {}), manifest.key, file)
    return notes


def archived(
    spark: Any,
    path: str,
    topics: Collection[str],
    columns: Collection[str],
    since_hour: str = "",
) -> Any:
    """Return the archive's messages with these columns, and `file`, which names the file of each
    message; those of an hour and later, if one is given.
    """
    from pyspark.sql import functions as f

    layout = layout_of(spark, path, "archive")
    data = layout.data
    if not data.exists():
        return _of_directory(spark, path, topics, columns)
    schema = f"{schema_of(needed_for(columns))}, hour string"
    reader = spark.read.schema(schema).options(**_LENIENT)
    if since_hour:
        # Spark would list all directories, of which an archive of months has many.
        hours = [hour for hour in layout.data_files() if hour.hour >= since_hour]
        if not hours:
            return no_rows(spark, columns, "file")
        paths = [str(layout.data_of(hour)) for hour in hours]
        frame = reader.option("basePath", str(data)).parquet(*paths)
    else:
        frame = reader.parquet(str(data))
    name = f.concat_ws("/", "topic", "hour", f.col("_metadata.file_name"))
    chosen = frame.where(f.col("topic").isin(sorted(topics)))
    return with_derived(chosen.withColumn("file", name), columns, "file")


def _of_directory(spark: Any, path: str, topics: Collection[str], columns: Collection[str]) -> Any:
    """Return the messages of a directory of Parquet files that some tool has written.

    Raise ConfigError if its columns are not those of messages. Spark would pass over its files.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    try:
        frame = spark.read.options(**_LENIENT, mergeSchema="true").parquet(path)
        found = {name: kind.replace(" ", "") for name, kind in frame.dtypes}
    except PySparkException as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"archive is {path!r}, which Spark cannot read: {reason}") from error
    needed = {name: COLUMNS[name] for name in needed_for(columns)}
    check_columns(f"archive is {path!r}, which", found, needed)
    # Other tools write whole numbers and times in their own width.
    cast = [
        (f.col(name) if name in found else f.lit(None)).cast(kind).alias(name)
        for name, kind in needed.items()
    ]
    file = f.concat_ws("/", "topic", f.lit(""), f.col("_metadata.file_name")).alias("file")
    chosen = frame.select(*cast, file).where(f.col("topic").isin(sorted(topics)))
    return with_derived(chosen, columns, "file")


def no_rows(spark: Any, columns: Collection[str], *texts: str) -> Any:
    """Return an empty frame with these columns of messages, and further ones of text."""
    from pyspark.sql import functions as f

    frame = no_messages(spark, columns)
    return frame.select("*", *(f.lit(None).cast("string").alias(name) for name in texts))


def _note_file(notes: ArchiveNotes, there: Collection[str], hour: Hour, file: DataFile) -> None:
    name = f"{hour.topic}/{hour.hour}/{file.name}"
    assert notes.known_files is not None
    notes.known_files.append(name)
    if file.name in there:
        return
    for part in file.queues:
        gap = Gap(hour.topic, part.broker, part.queue_id, part.first, part.last + 1, "")
        notes.missing.append((gap, name))
