"""Find the rows of a replay, count them, and give each its target and its place in the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

from pyspark.sql import functions as f

from cometmq.model.properties import SHARDING_KEY
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.division import readings
from cometmq.pipelines.replay.plan import Chunk, Found, Origin, ReplayPlan
from cometmq.pipelines.resending.hashing import java_hash, spans_of
from cometmq.pipelines.resending.lanes import COLUMNS
from cometmq.pipelines.resending.selection import times_ms
from cometmq.pipelines.small_tables import small_table

_HOUR: Final = "yyyy-MM-dd'T'HH"
# At most this many readings of a chunk, each of queues with offsets near each other.
_READINGS: Final = 8


def key_target(targets: Sequence[MessageQueue], to: str | None) -> Any:
    """Return the number of the target that a row's sharding key chooses, as producers choose it;
    null for a row without one. `targets` are sorted.
    """
    key = f.col("properties")[SHARDING_KEY]
    spans = spans_of(targets)
    first, count = f.lit(None).cast("bigint"), f.lit(None).cast("bigint")
    for topic, (low, many) in spans.items():
        here = f.lit(topic == to) if to is not None else f.col("topic") == topic
        first = f.when(here, f.lit(low)).otherwise(first)
        count = f.when(here, f.lit(many)).otherwise(count)
    chosen = first + f.abs(java_hash(key)) % count
    return f.when(key.isNotNull() & (key != ""), chosen).cast("int")


def find(frame: Any, chosen: Any, target: Any) -> list[Found]:
    """Return the counts of the queues for each hour.

    `chosen` and `target` are columns of `Selection` and `key_target`. The driver gets a row per
    queue, hour and target.
    """
    rows = (
        frame.withColumns(
            {
                "broker": f.coalesce("broker", f.lit("")),
                "hour": f.date_format("store_time", _HOUR),
                "chosen": chosen,
                "key_target": f.when(chosen, target),
            }
        )
        .withColumn("chosen_offset", f.when(f.col("chosen"), f.col("queue_offset")))
        .groupBy("topic", "broker", "queue_id", "hour", "key_target")
        .agg(
            f.count("*").alias("messages"),
            f.count("chosen_offset").alias("chosen"),
            f.coalesce(f.min("chosen_offset"), f.lit(-1)).alias("first"),
            f.coalesce(f.max("chosen_offset"), f.lit(-1)).alias("last"),
        )
        .orderBy("topic", "broker", "queue_id", "hour", "key_target")
    )
    return [
        Found(
            Origin(row.topic, row.broker, row.queue_id),
            row.hour,
            row.key_target,
            row.messages,
            row.chosen,
            row["first"],
            row.last,
        )
        for row in rows.collect()
    ]


def rows_of(
    new_frame: Callable[[], Any], chunk: Chunk, plan: ReplayPlan, to: str | None, spark: Any
) -> Any:
    """Return the chosen rows of a chunk, with their targets and their `progress`: how far each row
    lies into its queue's part of the chunk.

    Each reading gets a frame of its own from `new_frame`: Spark would read all of them by the filters of
    one (see `push_where_allowed`).
    """
    ranges: dict[MessageQueue, tuple[int, int]] = {}
    targets: dict[MessageQueue, int] = {}
    for span in chunk.spans:
        origin, target = plan.origins[span.origin]
        ranges[MessageQueue(*origin)] = (span.after + 1, span.last + 1)
        targets[MessageQueue(*origin)] = target
    parts = []
    for reading in readings(ranges, _READINGS):
        spans = small_table(
            spark,
            [(*queue, low - 1, end - 1, targets[queue]) for queue, (low, end) in reading.items()],
            "topic string, broker string, queue_id int, after bigint, last bigint, origin_target int",
        )
        parts.append(
            _near(new_frame(), reading).join(f.broadcast(spans), ["topic", "broker", "queue_id"])
        )
    offset = f.col("queue_offset")
    chosen_target = f.col("origin_target")
    if plan.has_keys:
        chosen_target = f.coalesce(key_target(plan.targets, to), chosen_target)
    return (
        times_ms(reduce(lambda whole, part: whole.unionByName(part), parts))
        .where((offset > f.col("after")) & (offset <= f.col("last")))
        .withColumn("progress", (offset - f.col("after")) / (f.col("last") - f.col("after")))
        .withColumn("target", chosen_target)
    )


def _near(frame: Any, ranges: Mapping[MessageQueue, tuple[int, int]]) -> Any:
    """Return the rows of these queues between their lowest and their highest offset.

    These filters reach the source and the files, so that they give few other rows. The offsets of a
    joined table do not: each chunk read all messages of its hours, or of its store.
    """
    return frame.where(
        f.col("topic").isin(sorted({queue.topic for queue in ranges}))
        & f.col("queue_id").isin(sorted({queue.queue_id for queue in ranges}))
        & (f.col("queue_offset") >= min(low for low, _ in ranges.values()))
        & (f.col("queue_offset") < max(end for _, end in ranges.values()))
    ).withColumn("broker", f.coalesce("broker", f.lit("")))


def in_lanes(rows: Any, lanes: Sequence[tuple[int, ...]], columns: Sequence[str] = COLUMNS) -> Any:
    """Return the rows with these columns: a partition for each lane, in the order of sending.

    Queues that meet in a lane take turns by their `progress`, which keeps the order of each queue.
    So no queue waits until another one is through, and the order does not depend on clocks.
    """
    lane_of: Mapping[int, int] = {
        target: lane for lane, targets in enumerate(lanes) for target in targets
    }
    known = f.create_map(*(f.lit(x) for pair in sorted(lane_of.items()) for x in pair))
    return (
        rows.withColumn("lane", known[f.col("target")])
        .repartitionById(len(lanes), "lane")
        .sortWithinPartitions("progress", "topic", "broker", "queue_id", "queue_offset")
        .select(*columns)
    )
