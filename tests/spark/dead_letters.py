"""Dead letters for tests: sent, refused by a consumer, and looked at where they went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.spark.archives import sent_rows
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import ConsumeFromWhere, ConsumeResult, Message, Producer, PushConsumer
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import RouteNotFoundError

REASONS = ("timeout", "no such customer", None)
Row = dict[str, Any]


def stored_count(namesrv: str, topic: str) -> int:
    with BlockingRangeReader(namesrv=namesrv) as reader:
        try:
            bounds = reader.offsets(reader.queues(topic))
        except RouteNotFoundError:
            return 0
    return sum(high - low for low, high in bounds.values())


def bury(namesrv: str, group: str, topics: Sequence[str], count: int) -> None:
    """So many messages in turn to `topics`, all of which become dead letters of `group`."""
    with Producer("writer", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(count):
            reason = REASONS[at % 3]
            message = Message(
                topics[at % len(topics)],
                b"letter %d" % at,
                tags=("bill", "reminder")[at % 5 == 0],
                keys=[f"K-{at}", "all"],
                properties={"n": str(at), **({"error": reason} if reason else {})},
            )
            producer.send(message, key=at % 7)
    consumer = PushConsumer(
        group,
        lambda _: ConsumeResult.RECONSUME_LATER,
        namesrv=namesrv,
        consume_from=ConsumeFromWhere.FIRST_OFFSET,
        max_reconsume_times=0,
    )
    for topic in topics:
        consumer.subscribe(topic)
    with consumer:
        eventually(lambda: stored_count(namesrv, f"%DLQ%{group}") == count, wait_s=JVM_WAIT_S)


def redriven(namesrv: str, topics: Sequence[str], redrive_id: str) -> list[Row]:
    """The rows of `topics` that a redrive has sent."""
    return [
        row
        for row in sent_rows(namesrv, topics)
        if dict(row["properties"]).get("REDRIVE_ID") == redrive_id
    ]


def numbers(rows: Sequence[Row]) -> list[int]:
    return sorted(int(dict(row["properties"])["n"]) for row in rows)
