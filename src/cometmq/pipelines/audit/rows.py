"""Build the rows of an audit with Spark: one row for every offset of every queue within its bounds.

Messages of the log and of the archive are joined by their place. An offset for which neither has a
message becomes a row, too. This module does not judge what is right or wrong.

    topic, broker, queue_id, queue_offset     the place
    log_count, archive_count                  how often the log and the archive have it
    differs                                   log and archive both have it, with different content
    msg_id, key, store_time, hour, body_crc   of the message; null where neither has it
    batch_msg_id                              of the batch that it came in, if the record has it
    origin                                    redriven, replayed, or null
    delayed, untraced                         it had a delay; its broker had tracing switched off
    prepared                                  of a committed transaction, the place of its half message;
                                              null if it was delayed: its record does not say
    wanted_<n>                                whether the n-th group selects it
    rule_<n>                                  whether the condition of the n-th rule holds
    stray                                     it lies in a file that the archive does not know
    low, end, first, archived_to              bounds of the queue: `log_bounds`
    committed_<n>                             the n-th group's offset; null if it has none
    late                                      it was stored after the cut, or judged by an earlier
                                              round of a stream: it only shows that it is there
    copy, copies                              number of this copy of its msg_id, and of all copies
    is_resend, is_commit_again                equals the first copy and came soon after it; both are
                                              committed transactions with one body
    key_copy                                  like `copy`, among the messages of its business key
    log_gap, archive_gap, lost_file           why it is missing, as reading and archive noted
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from cometmq.errors import ConfigError
from cometmq.filtering.sql92 import compile_sql
from cometmq.model import properties as p
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.audit.archive import ArchiveNotes
from cometmq.pipelines.audit.blocks import BLOCK, Block, Kind
from cometmq.pipelines.audit.settings import Config
from cometmq.pipelines.small_tables import collected, small_table
from cometmq.spark.gaps import Gap
from cometmq.spark.rows.columns import COLUMNS, columns_in

PLACE: Final = ("topic", "broker", "queue_id", "queue_offset")
QUEUE: Final = PLACE[:3]
REDRIVEN: Final = "redriven"
REPLAYED: Final = "replayed"
# The property that a redrive gives its messages, here as in a broker.
REDRIVE_ID: Final = "REDRIVE_ID"
_REPLAY_ID: Final = "REPLAY_ID"
_ALWAYS: Final = (
    *PLACE,
    "msg_id",
    "batch_msg_id",
    "properties",
    "store_time",
    "body_crc",
    "transaction_type",
    "prepared_transaction_offset",
    "delay_level",
    "deliver_time",
)
# Offsets are counted in blocks, so that only incomplete blocks are compared offset by offset.
_BLOCK: Final = BLOCK
# The order of copies.
_IN_ORDER: Final = ("store_time", "broker", "queue_id", "queue_offset")
# A table of up to this many hashes or ids goes whole to each task.
MOST_BROADCAST: Final = 100_000

# Persists a frame until the audit ends, so that it is made only once.
Keep = Callable[[Any], Any]


@dataclass(frozen=True)
class Bounds:
    """The cut: for each queue, the offsets that the audit is about, taken once.

    log: the lowest offset of the log, and its end.
    archived: the first offset that was to be archived, and the offset below which all is archived.
    committed: offsets by group, None for a queue of which the group has none.
    first: where the audit of a queue begins, if something else than log and archive says so.
    """

    log: Mapping[MessageQueue, tuple[int, int]]
    archived: Mapping[MessageQueue, tuple[int, int]] = field(default_factory=dict)
    committed: Mapping[str, Mapping[MessageQueue, int | None]] = field(default_factory=dict)
    first: Mapping[MessageQueue, int] = field(default_factory=dict)

    def begin(self, queue: MessageQueue) -> int:
        """Return the first audited offset of a queue. Messages gone before the archive began are
        not audited.
        """
        if queue in self.first:
            return self.first[queue]
        low, end = self.log[queue]
        first, _ = self.archived.get(queue, (low, 0))
        return min(low, first, end)


def columns_for(config: Config) -> list[str]:
    """Return the columns of messages that the audit reads."""
    names = set(_ALWAYS) | columns_in(config.key_expression())
    names |= {"tags"} if config.subscriptions else set()
    for rule in config.rules:
        names |= columns_in(rule.when)
    return [name for name in COLUMNS if name in names]


def facts(messages: Any, config: Config, *others: str) -> Any:
    """Return the columns of messages that the audit needs, with the columns `others` as they are.

    Raise ConfigError for an expression that Spark does not accept.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    def expression(text: str, kind: str, key: str) -> Any:
        try:
            column = f.expr(text)
            # A filter applies to one row, so this refuses aggregates and windows.
            _ = messages.where(column.isNotNull()).schema
            if messages.select(column.alias("x")).schema["x"].dataType.simpleString() == kind:
                return column
        except (AnalysisException, ParseException) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(f"{key} is {text!r}, which Spark does not take: {reason}") from error
        raise ConfigError(f"{key} is {text!r}, which gives no {kind}")

    properties = f.col("properties")
    origin = f.when(properties[REDRIVE_ID].isNotNull(), REDRIVEN).when(
        properties[_REPLAY_ID].isNotNull(), REPLAYED
    )
    delayed = f.col("delay_level").isNotNull() | f.col("deliver_time").isNotNull()
    committed = (f.col("transaction_type") == "commit") & ~delayed
    columns = [
        *PLACE,
        "msg_id",
        "batch_msg_id",
        "store_time",
        "body_crc",
        expression(config.key_expression(), "string", "business_key").alias("key"),
        origin.alias("origin"),
        delayed.alias("delayed"),
        (f.coalesce(properties[p.TRACE_SWITCH], f.lit("")) == "false").alias("untraced"),
        f.when(committed, f.col("prepared_transaction_offset")).alias("prepared"),
        *(_wanted(config, group).alias(f"wanted_{at}") for at, group in enumerate(config.groups)),
        *(
            f.coalesce(expression(rule.when, "boolean", "when of a rule"), f.lit(False)).alias(
                f"rule_{at}"
            )
            for at, rule in enumerate(config.rules)
        ),
        *others,
    ]
    return messages.select(*columns)


def _wanted(config: Config, group: str) -> Any:
    from pyspark.sql import functions as f

    tags, sql = config.tags(group), config.sql(group)
    if sql is not None:

        def selected(properties: dict[str, str] | None) -> bool:
            return compile_sql(sql)(properties or {}) is True

        # Without `useArrow` Spark would look for pandas, and warn that there is none.
        return f.udf(selected, "boolean", useArrow=False)(f.col("properties"))
    return f.lit(True) if tags is None else f.coalesce(f.col("tags").isin(tags), f.lit(False))


def places(logged: Any, archive: Any | None, known_files: Sequence[str] | None) -> Any:
    """Return one row for each place of `facts`. `archive` has the additional column `file`."""
    from pyspark.sql import functions as f

    sides = logged.select("*", f.lit("log").alias("side"), f.lit(None).cast("string").alias("file"))
    if archive is not None:
        sides = sides.unionByName(archive.withColumn("side", f.lit("archive")))
    is_log = f.col("side") == "log"
    same = f.xxhash64("msg_id", "store_time", "body_crc")
    kept = [name for name in logged.columns if name not in PLACE]
    # Where both have the message, the log's values count: "log" sorts behind "archive".
    values = f.max_by(f.struct(*kept), f.col("side"))
    known = f.lit(True) if known_files is None else f.col("file").isin(list(known_files))
    return (
        sides.groupBy(*PLACE)
        .agg(
            f.count_if(is_log).alias("log_count"),
            f.count_if(~is_log).alias("archive_count"),
            (f.min(same) != f.max(same)).alias("differs"),
            f.count_if(~is_log & ~known).alias("stray_count"),
            values.alias("values"),
        )
        .select(
            *PLACE,
            "log_count",
            "archive_count",
            "differs",
            (f.col("stray_count") > 0).alias("stray"),
            "values.*",
        )
    )


def places_of_blocks(rows: Any) -> Any:
    """Return the rows of `in_blocks` as `places` would: each is there once, with nothing wrong."""
    from pyspark.sql import functions as f

    kept = [name for name in rows.columns if name not in (*PLACE, "kind", "file")]
    once, none = f.lit(1).cast("bigint"), f.lit(0).cast("bigint")
    return rows.select(
        *PLACE,
        f.when(f.col("kind") == Kind.ARCHIVE, none).otherwise(once).alias("log_count"),
        f.when(f.col("kind") == Kind.LOG, none).otherwise(once).alias("archive_count"),
        f.lit(False).alias("differs"),
        f.lit(False).alias("stray"),
        *kept,
    )


def log_bounds(spark: Any, bounds: Bounds, groups: Sequence[str]) -> Any:
    """Return the bounds as a table with a row per queue."""
    rows = []
    for queue, (low, end) in bounds.log.items():
        archived_to = bounds.archived[queue][1] if queue in bounds.archived else None
        committed = [bounds.committed.get(group, {}).get(queue) for group in groups]
        rows.append((*queue_columns(queue), low, end, bounds.begin(queue), archived_to, *committed))
    names = "".join(f", committed_{at} bigint" for at in range(len(groups)))
    return small_table(
        spark,
        rows,
        "topic string, broker string, queue_id int, low bigint, end bigint, first bigint, "
        f"archived_to bigint{names}",
    )


def queue_columns(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def with_missing(found: Any, bounds: Any, complete: Collection[Block] = ()) -> Any:
    """Return the places `found` with their bounds, and a row for each offset within bounds that has
    none. Blocks that are known to be `complete` are not counted.
    """
    from pyspark.sql import functions as f

    whole = found.join(f.broadcast(bounds), list(QUEUE)).withColumn(
        "late", f.col("queue_offset") >= f.col("end")
    )
    # Drops messages of an archive from before its own beginning, or of a store from before its
    # retention.
    whole = whole.where(f.col("late") | (f.col("queue_offset") >= f.col("first")))
    doubtful = collected(_blocks(bounds, complete))
    if doubtful.isEmpty():
        return whole
    incomplete = collected(_incomplete(whole.where("not late"), doubtful))
    if incomplete.isEmpty():
        return whole
    missing = _missing(whole.where("not late"), incomplete).join(f.broadcast(bounds), list(QUEUE))
    return whole.unionByName(
        missing.select(
            "*",
            f.lit(0).cast("bigint").alias("log_count"),
            f.lit(0).cast("bigint").alias("archive_count"),
            f.lit(False).alias("late"),
        ),
        allowMissingColumns=True,
    )


def _blocks(bounds: Any, complete: Collection[Block]) -> Any:
    """Return the blocks within bounds, without those that are complete."""
    from pyspark.sql import functions as f

    known = small_table(
        bounds.sparkSession, complete, "topic string, broker string, queue_id int, block bigint"
    )
    return (
        bounds.where("first < end")
        .withColumn(
            "block", f.explode(f.expr(f"sequence(first div {_BLOCK}, (end - 1) div {_BLOCK})"))
        )
        .select(
            *QUEUE,
            "block",
            f.greatest("first", f.col("block") * _BLOCK).alias("block_first"),
            f.least("end", (f.col("block") + 1) * _BLOCK).alias("block_end"),
        )
        .join(f.broadcast(known), [*QUEUE, "block"], "left_anti")
    )


def _incomplete(found: Any, doubtful: Any) -> Any:
    """Return the blocks of which `found` lacks places."""
    from pyspark.sql import functions as f

    by = [*QUEUE, "block"]
    inside = found.select(*QUEUE, _block()).join(f.broadcast(doubtful.select(*by)), by, "left_semi")
    counted = inside.groupBy(*by).agg(f.count("*").alias("found"))
    return doubtful.join(counted, by, "left").where("coalesce(found, 0) < block_end - block_first")


def _missing(found: Any, incomplete: Any) -> Any:
    """Return the places of incomplete blocks that `found` lacks."""
    from pyspark.sql import functions as f

    near = found.select(*PLACE, _block()).join(
        f.broadcast(incomplete.select(*QUEUE, "block")), [*QUEUE, "block"], "left_semi"
    )
    every = incomplete.withColumn(
        "queue_offset", f.explode(f.expr("sequence(block_first, block_end - 1)"))
    )
    return every.select(*PLACE).join(near.select(*PLACE), list(PLACE), "left_anti")


def with_copies(rows: Any, resend_window_s: float, keep: Keep) -> Any:
    """Number the messages that occur several times, by their unique key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    known = f.col("msg_id").isNotNull()
    of_id = Window.partitionBy("topic", "msg_id")
    by_id = of_id.orderBy(*_IN_ORDER)
    single, several = _divided(rows, known, "msg_id", keep)
    parts = [_copies(single, resend_window_s, f.lit(1), f.lit(1).cast("bigint"), f.col)]
    if several is not None:
        number, count = f.row_number().over(by_id), f.count("*").over(of_id)
        parts.append(
            _copies(several, resend_window_s, number, count, lambda name: f.first(name).over(by_id))
        )
    return reduce(lambda whole, part: whole.unionByName(part), parts)


def _copies(
    rows: Any, resend_window_s: float, number: Any, count: Any, first: Callable[[str], Any]
) -> Any:
    from pyspark.sql import functions as f

    later = f.col("store_time").cast("double") - first("store_time").cast("double")
    resend = (
        (f.col("body_crc") == first("body_crc"))
        & (later <= resend_window_s)
        & f.col("prepared").isNull()
        & ~f.col("delayed")
    )
    # Not the place of the half message: a Java broker stores a half message again before it asks
    # for the verdict, so the commit that answers it and a late commit of the client name two
    # places.
    again = (
        f.col("prepared").isNotNull()
        & first("prepared").isNotNull()
        & (f.col("body_crc") == first("body_crc"))
    )
    known = f.col("msg_id").isNotNull()
    return rows.select(
        "*",
        f.when(known, number).alias("copy"),
        f.when(known, count).alias("copies"),
        f.when(known, resend).alias("is_resend"),
        f.when(known, again).alias("is_commit_again"),
    )


def with_key_copies(rows: Any, keep: Keep, *, by_key: bool) -> Any:
    """Number the messages that occur several times by their business key.

    A copy by the unique key is also one by the business key, and must not count twice.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("int")
    if not by_key:
        return rows.withColumn("key_copy", nothing)
    counts = f.col("key").isNotNull() & (f.coalesce("copy", f.lit(0)) == 1)
    single, several = _divided(rows, counts, "key", keep)
    numbered = single.withColumn("key_copy", f.when(counts, f.lit(1)))
    if several is not None:
        by_key_ = Window.partitionBy("topic", "key").orderBy(*_IN_ORDER)
        numbered = numbered.unionByName(
            several.withColumn("key_copy", f.row_number().over(by_key_))
        )
    return numbered


def _divided(rows: Any, known: Any, name: str, keep: Keep) -> tuple[Any, Any | None]:
    """Divide rows into rows with an id of their own or an id that is not `known`, and the others:
    None if there are none.

    Most ids occur once, and finding that out by their hashes is cheaper than bringing the rows of
    each id together.
    """
    from pyspark.sql import functions as f

    hashed = f.xxhash64("topic", name)
    counted = rows.where(known).select(hashed.alias("hashed")).groupBy("hashed").count()
    several = counted.where("count > 1").select("hashed")
    few = collected(several.limit(MOST_BROADCAST + 1))
    count = few.count()
    if not count:
        return rows, None
    table = f.broadcast(few) if count <= MOST_BROADCAST else keep(several)
    marked = rows.withColumn("hashed", f.when(known, hashed))
    return (
        marked.join(table, "hashed", "left_anti").drop("hashed"),
        marked.join(table, "hashed", "left_semi").drop("hashed"),
    )


def _block() -> Any:
    from pyspark.sql import functions as f

    return f.expr(f"queue_offset div {_BLOCK}").alias("block")


def with_gaps(spark: Any, rows: Any, log_gaps: Iterable[Gap], notes: ArchiveNotes) -> Any:
    """Say why missing messages are missing, where the reading or the archive noted it."""
    rows = _with_ranges(spark, rows, "log_gap", [(gap, gap.cause) for gap in log_gaps])
    rows = _with_ranges(spark, rows, "archive_gap", [(gap, gap.cause) for gap in notes.gaps])
    return _with_ranges(spark, rows, "lost_file", notes.missing)


def _with_ranges(spark: Any, rows: Any, name: str, ranges: Collection[tuple[Gap, str]]) -> Any:
    """Add a column with what `ranges` say of an offset, null outside all of them."""
    from pyspark.sql import functions as f

    said = disjoint(ranges)
    if not said:
        return rows.withColumn(name, f.lit(None).cast("string"))
    table = small_table(
        spark,
        said,
        "topic string, broker string, queue_id int, gap_start bigint, gap_end bigint, said string",
    )
    inside = (f.col("r.queue_offset") >= f.col("g.gap_start")) & (
        f.col("r.queue_offset") < f.col("g.gap_end")
    )
    same = [f.col(f"r.{column}") == f.col(f"g.{column}") for column in QUEUE]
    joined = rows.alias("r").join(f.broadcast(table.alias("g")), [*same, inside], "left")
    others = [f.col(f"r.{column}") for column in rows.columns]
    return joined.select(*others, f.col("g.said").alias(name))


def disjoint(
    ranges: Iterable[tuple[Gap, str]],
) -> list[tuple[str, str | None, int | None, int, int, str]]:
    """Return the ranges of queues without their overlaps, so that each offset is joined once."""
    found: list[tuple[str, str | None, int | None, int, int, str]] = []
    queue: tuple[Any, ...] = ()
    end = 0

    def order(each: tuple[Gap, str]) -> tuple[Any, ...]:
        gap = each[0]
        return *map(str, gap.place), gap.start, gap.end, gap.cause

    for gap, said in sorted(ranges, key=order):
        if gap.topic is None:
            continue
        if queue != gap.place:
            queue, end = gap.place, 0
        start = max(gap.start, end)
        if start < gap.end:
            found.append((gap.topic, gap.broker, gap.queue_id, start, gap.end, said))
            end = gap.end
    return found
