"""Compute counts, offset spans and checksums of messages with Spark, alike for log and archive.

A row's checksum covers the columns of its schema. The checksum of a set is the sum of its rows'
checksums: rows may come in any order, a row that occurs twice counts twice, and the figures of two sets add up to
those of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.columns import made_for
from cometmq.pipelines.archive.layout import Figures, Hour
from cometmq.pipelines.archive.schemas import ALL, Schema

_OF_TEXTS: Final = "map<string,string>"
_LOW_HALF: Final = 0xFFFFFFFF
_HOUR: Final = "yyyy-MM-dd'T'HH"
# Hours since 1970, rounded down before 1970, too.
_HOUR_NUMBER: Final = (
    "unix_micros(store_time) div 3600000000 - if(unix_micros(store_time) % 3600000000 < 0, 1, 0)"
)

# The file's name is None for figures of the log.
Found = list[tuple[Hour, str | None, Figures]]
Place = tuple[Hour, MessageQueue]
# The last part is the number of the schema of the figures.
Sum = tuple[Hour, MessageQueue, int]


def with_hour(frame: Any) -> Any:
    """Add the column `hour`, in the session's time zone, which is UTC."""
    from pyspark.sql import functions as F

    return frame.withColumn("hour", F.date_format("store_time", _HOUR))


def row_checksum(schema: Schema) -> Any:
    """Return a 64-bit checksum column over the columns of this schema, of rows that have them."""
    from pyspark.sql import functions as F

    made = made_for(schema)
    values = []
    for name, column in made.items():
        kind = schema.columns[name]
        if "map<" not in kind:
            values.append(column)
        elif kind != _OF_TEXTS:  # of decoded bodies: no checksum takes a map inside
            values.append(F.to_json(F.struct(column)))
        elif schema.number == ALL:  # as version 0.2 summed them
            values.append(F.sort_array(F.map_entries(column)))
        else:
            # In the order of the record, which sources, Parquet and Spark's rows keep: sorting took
            # more than half of a checksum's time.
            values += [F.map_keys(column), F.map_values(column)]
    return F.xxhash64(*values, *(made[name].isNull() for name in schema.nullable))


def figures(frame: Any, schema: Schema, *, by_file: bool) -> Found:
    """Return the figures of messages by hour and queue; with `by_file`, by `file`, too. Messages of
    files have their `hour`, those of the log get it here.
    """
    from pyspark.sql import functions as F

    by = ["topic", "hour", "broker", "queue_id", *(["file"] if by_file else [])]
    summed_rows = frame.withColumn("checksum", row_checksum(schema))
    has_hour = "hour" in frame.columns
    if not has_hour:
        # By numbers: making a text of each message's time takes long.
        summed_rows = summed_rows.withColumn("hour", F.expr(_HOUR_NUMBER))
    sums = summed_rows.groupBy(*by)
    # Sum the two halves apart: the sum of 64-bit numbers would overflow 64 bits.
    found = sums.agg(
        *([] if has_hour else [F.date_format(F.min("store_time"), _HOUR).alias("hour_text")]),
        F.count("*").alias("count"),
        F.min("queue_offset").alias("first"),
        F.max("queue_offset").alias("last"),
        F.sum(F.shiftrightunsigned("checksum", 32)).alias("high"),
        F.sum(F.col("checksum").bitwiseAND(F.lit(_LOW_HALF))).alias("low"),
    )
    return [
        (
            Hour(row.topic, row.hour if has_hour else row.hour_text),
            row.file if by_file else None,
            Figures(
                row.broker,
                row.queue_id,
                row["count"],
                row["first"],
                row["last"],
                f"{(row.high << 32) + row.low:x}",
                schema.number,
            ),
        )
        for row in found.collect()
    ]


def summed(found: Iterable[tuple[Hour, Figures]]) -> dict[Sum, Figures]:
    """Add the figures up for each hour and queue; those of several schemas are each a sum."""
    sums: dict[Sum, Figures] = {}
    for hour, one in found:
        place = hour, MessageQueue(hour.topic, one.broker, one.queue_id), one.form
        sums[place] = sums[place].plus(one) if place in sums else one
    return sums
