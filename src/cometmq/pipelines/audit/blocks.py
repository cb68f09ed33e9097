"""Tell the ranges of offsets in which log and archive have the same messages, without a join.

A block is a range of BLOCK offsets of a queue. For each, log and archive are counted by themselves:
messages, different offsets, and the sum of checksums over what is compared. Where the log has no
offset twice and the archive has the same sums, or nothing, each message of the log is a row of the
audit as it stands; where only the archive has anything, each of its messages is. Only the messages of
the other blocks are matched one by one, which takes a shuffle of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from cometmq.pipelines.small_tables import small_table

# Bits of the bitmap that counts different offsets (Spark: `bitmap_construct_agg`).
BLOCK: Final = 1 << 15
_QUEUE: Final = ("topic", "broker", "queue_id")
_LOW_HALF: Final = 0xFFFFFFFF
_SCHEMA: Final = "topic string, broker string, queue_id int, block bigint, kind string"


class Kind(StrEnum):
    """What may be said of a block."""

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


def sums_of(messages: Any, known_files: Sequence[str] | None = None) -> dict[Block, Sums]:
    """Return the sums of each block of `facts`. `messages` of an archive have the column `file`."""
    from pyspark.sql import functions as f

    checksum = f.xxhash64(
        "queue_offset", "msg_id", "store_time", "body_crc", f.col("msg_id").isNull()
    )
    strange = f.lit(False) if known_files is None else ~f.col("file").isin(list(known_files))
    rows = messages.select(
        *_QUEUE,
        _block(),
        (f.col("queue_offset") % BLOCK).alias("bit"),
        checksum.alias("checksum"),
        strange.alias("strange"),
    )
    # Sum the two halves apart: the sum of 64-bit numbers would overflow 64 bits.
    found = rows.groupBy(*_QUEUE, "block").agg(
        f.count("*").alias("messages"),
        f.bitmap_count(f.bitmap_construct_agg("bit")).alias("offsets"),
        f.sum(f.shiftrightunsigned("checksum", 32)).alias("high"),
        f.sum(f.col("checksum").bitwiseAND(f.lit(_LOW_HALF))).alias("low"),
        f.count_if("strange").alias("strange"),
    )
    return {Block(*row[:4]): Sums(*row[4:]) for row in found.collect()}


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
    table = small_table(
        spark, [(*block, kind) for block, kind in kinds.items() if kind in chosen], _SCHEMA
    )
    joined = messages.withColumn("block", _block()).join(f.broadcast(table), [*_QUEUE, "block"])
    return joined.select(*messages.columns, "kind")


def _block() -> Any:
    from pyspark.sql import functions as f

    return f.expr(f"queue_offset div {BLOCK}").alias("block")
