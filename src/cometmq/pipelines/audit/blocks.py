"""Find the ranges of offsets in which log and archive have the same messages, without a join.

A block is a range of BLOCK offsets of a queue. For each, log and archive are counted by themselves:
messages, different offsets, and the sum of checksums over what is compared. If the log has no
offset twice, and the archive has the same sums or nothing, each message of the log is a row of the
audit as it stands. If only the archive has messages, each of these is one. Only the messages of the
other blocks are matched one by one, which takes a shuffle of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from cometmq.pipelines.small_tables import small_table

BLOCK: Final = 1 << 15
# This many offsets are noted in the bits of a number, to count different ones.
_WORD: Final = 64
_QUEUE: Final = ("topic", "broker", "queue_id")
_LOW_HALF: Final = 0xFFFFFFFF
_SCHEMA: Final = "topic string, broker string, queue_id int, block bigint, kind string"


class Kind(StrEnum):
    """Names the kinds of block."""

    BOTH = "both"
    LOG = "log only"
    ARCHIVE = "archive only"
    MIXED = "mixed"


class Block(NamedTuple):
    topic: str
    broker: str
    queue_id: int
    number: int


class Sums(NamedTuple):
    """The sums of a block. `strange` counts messages in files that the archive does not know."""

    messages: int
    offsets: int
    high: int
    low: int
    strange: int


class Extent(NamedTuple):
    """The extent of a block: its lowest and highest offset, the times of its oldest and newest
    message, and how many messages of it came in batches.
    """

    first: int
    last: int
    oldest_ms: int
    newest_ms: int
    of_batches: int


class Seen(NamedTuple):
    """Sums over the places of a queue: the times of the oldest message of the log and of the newest
    one, the highest archived offset, and how many messages came in batches.
    """

    oldest_ms: int | None
    newest_ms: int | None
    archived: int | None
    of_batches: int

    @classmethod
    def of_block(cls, extent: Extent, kind: Kind) -> Seen:
        """Return the row for a block in which the log's messages are rows as they stand."""
        archived = extent.last if kind is Kind.BOTH else None
        return cls(extent.oldest_ms, extent.newest_ms, archived, extent.of_batches)

    def plus(self, other: Seen) -> Seen:
        return Seen(
            _of_both(min, self.oldest_ms, other.oldest_ms),
            _of_both(max, self.newest_ms, other.newest_ms),
            _of_both(max, self.archived, other.archived),
            self.of_batches + other.of_batches,
        )


def _of_both(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


def sums_of(
    messages: Any, known_files: Sequence[str] | None = None
) -> tuple[dict[Block, Sums], dict[Block, Extent]]:
    """Return the sums and the extent of each block of `facts`. `messages` of an archive have the
    column `file`.
    """
    from pyspark.sql import functions as f

    checksum = f.xxhash64(
        "queue_offset", "msg_id", "store_time", "body_crc", f.col("msg_id").isNull()
    )
    strange = f.lit(False) if known_files is None else ~f.col("file").isin(list(known_files))
    rows = messages.select(
        *_QUEUE,
        "queue_offset",
        "batch_msg_id",
        f.unix_millis("store_time").alias("ms"),
        f.expr(f"queue_offset div {_WORD}").alias("word"),
        f.expr(f"shiftleft(1L, cast(queue_offset % {_WORD} AS int))").alias("bit"),
        checksum.alias("checksum"),
        strange.alias("strange"),
    )
    # Sum the two halves apart: the sum of 64-bit numbers would overflow 64 bits. All of these sums
    # are numbers, which Spark keeps in hash tables; for a bitmap of a whole block it sorts all rows.
    words = rows.groupBy(*_QUEUE, "word").agg(
        f.count("*").alias("messages"),
        f.bit_or("bit").alias("bits"),
        f.sum(f.shiftrightunsigned("checksum", 32)).alias("high"),
        f.sum(f.col("checksum").bitwiseAND(f.lit(_LOW_HALF))).alias("low"),
        f.count_if("strange").alias("strange"),
        f.min("queue_offset").alias("first"),
        f.max("queue_offset").alias("last"),
        f.min("ms").alias("oldest_ms"),
        f.max("ms").alias("newest_ms"),
        f.count("batch_msg_id").alias("of_batches"),
    )
    found = words.groupBy(*_QUEUE, f.expr(f"word div {BLOCK // _WORD}").alias("block")).agg(
        f.sum("messages").alias("messages"),
        f.sum(f.bit_count("bits").cast("bigint")).alias("offsets"),
        f.sum("high").alias("high"),
        f.sum("low").alias("low"),
        f.sum("strange").alias("strange"),
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        f.min("oldest_ms").alias("oldest_ms"),
        f.max("newest_ms").alias("newest_ms"),
        f.sum("of_batches").alias("of_batches"),
    )
    sums, extents = {}, {}
    for row in found.collect():
        block = Block(*row[:4])
        sums[block], extents[block] = Sums(*row[4:9]), Extent(*row[9:])
    return sums, extents


def lacks_nothing(block: Block, sums: Sums, extent: Extent, first: int, end: int) -> bool:
    """Say whether a block surely has a message for each of its offsets from `first` to below `end`,
    and none outside of these.
    """
    low, high = max(first, block.number * BLOCK), min(end, (block.number + 1) * BLOCK)
    return extent.first >= low and extent.last < high and sums.offsets == high - low


def kinds_of(log: dict[Block, Sums], archive: dict[Block, Sums]) -> dict[Block, Kind]:
    """Return the kind of each block that has messages."""
    return {block: _kind(log.get(block), archive.get(block)) for block in {*log, *archive}}


def _kind(log: Sums | None, archive: Sums | None) -> Kind:
    one = log or archive
    assert one is not None, "a block has messages"
    if one.messages != one.offsets or (archive is not None and archive.strange):
        return Kind.MIXED
    if archive is None:
        return Kind.LOG
    if log is None:
        return Kind.ARCHIVE
    return Kind.BOTH if log == archive else Kind.MIXED


def in_blocks(spark: Any, messages: Any, kinds: dict[Block, Kind], wanted: Iterable[Kind]) -> Any:
    """Return the messages that lie in blocks of these kinds, with the column `kind`."""
    from pyspark.sql import functions as f

    chosen = set(wanted)
    if len(all_kinds := set(kinds.values())) == 1 and all_kinds <= chosen:
        return messages.withColumn("kind", f.lit(str(*all_kinds)))
    table = small_table(
        spark, [(*block, kind) for block, kind in kinds.items() if kind in chosen], _SCHEMA
    )
    joined = messages.withColumn("block", _block()).join(f.broadcast(table), [*_QUEUE, "block"])
    return joined.select(*messages.columns, "kind")


def _block() -> Any:
    from pyspark.sql import functions as f

    return f.expr(f"queue_offset div {BLOCK}").alias("block")
