"""Describe dead letters as rows: where each came from, why it is dead, and whether to send it
again.

A broker leaves this in a dead letter (Java: AbstractSendMessageProcessor.consumerSendMsgBack): the
topic that it came from in RETRY_TOPIC, the offset id of its first record in ORIGIN_MESSAGE_ID, and
the number of attempts in `reconsume_times`. The broker writes no reason. If an application gives
the reason in a property of the message, the configuration names that property; otherwise the number
of attempts serves as the reason. (DLQ_ORIGIN_TOPIC and DLQ_ORIGIN_MESSAGE_ID are names that Java's
broker has, and never writes.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql import functions as f

from cometmq.model import properties as p
from cometmq.model.properties import SHARDING_KEY
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.resending.hashing import java_hash, spans_of
from cometmq.pipelines.resending.ledger import ResendPlan
from cometmq.pipelines.resending.selection import Selection, times_ms

# The origin topic of a letter that does not name one.
NOWHERE: Final = ""
_HOUR: Final = "yyyy-MM-dd'T'HH"
_MOST_REASON_LETTERS: Final = 120
# The columns that `described` reads.
DESCRIBED_BY: Final = frozenset({"properties", "reconsume_times", "born_time", "store_time"})


class LetterCount(msgspec.Struct, frozen=True):
    """Letters of one topic, reason and hour (2026-11-20T16, when they became dead letters).
    `chosen` counts those to be sent; times are ms since the epoch.
    """

    topic: str
    reason: str
    hour: str
    count: int
    chosen: int
    first_ms: int
    last_ms: int


class RedrivePlan(ResendPlan):
    """The plan of a redrive.

    letters: of each dead-letter queue, the first offset of this redrive and the one behind its
        last; later letters do not belong to it.
    bases: the offsets from which on the targets' logs may hold messages that this redrive has sent.
    """

    letters: list[tuple[MessageQueue, int, int]]
    bases: list[int]
    counts: list[LetterCount]

    @property
    def chosen(self) -> int:
        return sum(count.chosen for count in self.counts)


class Choice(NamedTuple):
    """Further conditions of a redrive besides Selection: letters of these origin topics, for these
    reasons.
    """

    topics: Sequence[str]
    reasons: Sequence[str]
    reason_property: str | None


def described(letters: Any, choice: Choice, namespace: str | None) -> Any:
    """Add the columns `origin_topic` (NOWHERE if unknown) and `reason`."""
    properties = f.col("properties")
    origin = f.coalesce(properties[p.RETRY_TOPIC], f.lit(NOWHERE))
    if namespace:
        # Brokers do not know namespaces, so they wrote the topic's name with its namespace.
        origin = f.regexp_replace(origin, f"^{namespace}%", "")
    attempts = f.concat(
        f.lit("given up after "),
        f.col("reconsume_times").cast("string"),
        f.when(f.col("reconsume_times") == 1, " attempt").otherwise(" attempts"),
    )
    reason = attempts
    if choice.reason_property is not None:
        given = f.substring(properties[choice.reason_property], 1, _MOST_REASON_LETTERS)
        reason = f.coalesce(given, attempts)
    return times_ms(letters).withColumns(
        {
            "origin_topic": origin,
            "reason": reason,
        }
    )


def condition(selection: Selection, choice: Choice) -> Any:
    """Return a never-null column that says whether a described letter is to be sent."""
    chosen = selection.condition()
    if selection.since is not None:
        chosen &= f.col("store_time") >= f.lit(selection.since)
    if selection.until is not None:
        chosen &= f.col("store_time") < f.lit(selection.until)
    if choice.topics:
        chosen &= f.col("origin_topic").isin(*choice.topics)
    if choice.reasons:
        chosen &= f.col("reason").isin(*choice.reasons)
    return f.coalesce(chosen, f.lit(False))


def count_letters(letters: Any, chosen: Any) -> list[LetterCount]:
    """Count described letters by topic, reason and hour."""
    rows = (
        letters.withColumns({"chosen": chosen, "hour": f.date_format("store_time", _HOUR)})
        .groupBy("origin_topic", "reason", "hour")
        .agg(
            f.count("*").alias("letters"),
            f.count(f.when(f.col("chosen"), f.lit(1))).alias("chosen"),
            f.min("store_ms").alias("first_ms"),
            f.max("store_ms").alias("last_ms"),
        )
        .orderBy("origin_topic", "reason", "hour")
    )
    return [
        LetterCount(
            row.origin_topic,
            row.reason,
            row.hour,
            row.letters,
            row.chosen,
            row.first_ms,
            row.last_ms,
        )
        for row in rows.collect()
    ]


def to_targets(letters: Any, targets: Sequence[MessageQueue], *, to_group: bool) -> Any:
    """Return the letters that have a topic to go to, with their `target` and `lane`.

    The lane is the number of the topic among the targets' topics. A sharding key chooses the queue
    that it chooses for producers. Nobody knows the first queue of the other letters, so their ids
    spread them.
    """
    sharding_key = f.col("properties")[SHARDING_KEY]
    number = f.when(sharding_key.isNotNull(), f.abs(java_hash(sharding_key)))
    number = f.coalesce(number, f.pmod(f.xxhash64("msg_id"), f.lit(2**31)))
    target, lane = f.lit(None).cast("int"), f.lit(None).cast("int")
    for place, (topic, (first, count)) in enumerate(spans_of(targets).items()):
        here = f.col("origin_topic") == topic
        if to_group:
            # All letters go to the retry topic, but its consumers need to know where each came
            # from.
            here = f.col("origin_topic") != NOWHERE
        chosen = (first + number % count).cast("int")
        target = f.when(here, chosen).otherwise(target)
        lane = f.when(here, f.lit(place)).otherwise(lane)
    return letters.withColumns({"target": target, "lane": lane}).where(f.col("lane").isNotNull())
