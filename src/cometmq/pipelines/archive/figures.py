"""Counts, offset spans and checksums of messages, computed by Spark, of log and archive alike.

The checksum of a row is over all columns. Those of a set are added up, so that rows may come in any
order, a row that is there twice counts twice, and the figures of two sets give those of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.layout import Figures, Hour

# xxhash64 passes over nulls, so a value must not be able to stand for its neighbour's.
_NULLABLE: Final = (
    "broker",
    "msg_id",
    "keys",
    "tags",
    "transaction_type",
    "transaction_id",
    "delay_level",
    "deliver_time",
)
_LOW_HALF: Final = 0xFFFFFFFF
_HOUR: Final = "yyyy-MM-dd'T'HH"

# Of each file, or None for what comes from the log.
Found = list[tuple[Hour, str | None, Figures]]
Place = tuple[Hour, MessageQueue]


def with_hour(frame: Any) -> Any:
    """The rows with their hour, in the time zone of the session, which is UTC."""
    from pyspark.sql import functions as F

    return frame.withColumn("hour", F.date_format("store_time", _HOUR))


def row_checksum() -> Any:
    """A column of 64 bits over all columns of a message."""
    from pyspark.sql import functions as F

    from cometmq.spark.schema import COLUMNS

    # The order of a map's entries is nobody's promise.
    values = [
        F.sort_array(F.map_entries(name)) if kind.startswith("map") else F.col(name)
        for name, kind in COLUMNS.items()
    ]
    return F.xxhash64(*values, *(F.col(name).isNull() for name in _NULLABLE))


def figures(frame: Any, *, by_file: bool) -> Found:
    """The figures of a frame with `hour` (and `file`), by hour, queue (and file)."""
    from pyspark.sql import functions as F

    by = ["topic", "hour", "broker", "queue_id", *(["file"] if by_file else [])]
    sums = frame.withColumn("checksum", row_checksum()).groupBy(*by)
    # Two halves: the sum of 64-bit numbers would not fit into one.
    rows = sums.agg(
        F.count("*").alias("count"),
        F.min("queue_offset").alias("first"),
        F.max("queue_offset").alias("last"),
        F.sum(F.shiftrightunsigned("checksum", 32)).alias("high"),
        F.sum(F.col("checksum").bitwiseAND(F.lit(_LOW_HALF))).alias("low"),
    ).collect()
    return [
        (
            Hour(row.topic, row.hour),
            row.file if by_file else None,
            Figures(
                row.broker,
                row.queue_id,
                row["count"],
                row["first"],
                row["last"],
                f"{(row.high << 32) + row.low:x}",
            ),
        )
        for row in rows
    ]


def summed(found: Iterable[tuple[Hour, Figures]]) -> dict[Place, Figures]:
    """Added up for each hour and queue."""
    sums: dict[Place, Figures] = {}
    for hour, one in found:
        place = hour, MessageQueue(hour.topic, one.broker, one.queue_id)
        sums[place] = sums[place].plus(one) if place in sums else one
    return sums
