"""Find the messages for evidence that names a batch.

Java brokers of 4.8 to 5.3.3 store the id of a batch with each of its messages, and Java's consumers
take it for the message's id: in traces, in ledgers, and in the messages that they send back
(docs/internals/message-ids.md). Such evidence does not say which message of the batch it is about,
so n pieces of evidence are distributed over n of its messages: evidence of consumption to the first
ones, evidence of the opposite to the last ones. So all numbers are right, while an example may name
another message of the batch.
"""

from __future__ import annotations

from typing import Any, Final

from cometmq.pipelines.audit.rows import MOST_BROADCAST, Keep
from cometmq.pipelines.small_tables import collected

# The beginnings of evidence that is dealt out from the last message on.
_FROM_THE_LAST: Final = "^(consume failed|dead|retry waits|retry redriven|retry delayed) "


def batches(messages: Any) -> Any:
    """Return the ids of the messages of batches, with their place in the batch from 0 on: topic,
    batch, place, size, own.

    messages: topic, msg_id, batch_msg_id and queue_offset of each message once.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    own = messages.select("topic", f.col("msg_id").alias("batch"))
    of_batch = Window.partitionBy("topic", "batch")
    return (
        messages.where("batch_msg_id is not null")
        .select("topic", f.col("batch_msg_id").alias("batch"), "queue_offset", "msg_id")
        # An id that a message has for itself means this message.
        .join(own, ["topic", "batch"], "left_anti")
        .select(
            "topic",
            "batch",
            (f.row_number().over(of_batch.orderBy("queue_offset", "msg_id")) - 1).alias("place"),
            f.count("*").over(of_batch).alias("size"),
            f.col("msg_id").alias("own"),
        )
    )


def named_batches(messages: Any, evidence: Any, keep: Keep) -> Any | None:
    """Return `batches` for those batches that the evidence may name. Return None if it names no batch.

    Most audits have little or no evidence, and it names few batches. So one pass over the messages looks
    for these batches, and only their messages are numbered.
    """
    from pyspark.sql import functions as f

    named = collected(evidence.select("topic", "msg_id").distinct().limit(MOST_BROADCAST + 1))
    count = named.count()
    if not count:
        return None
    if count > MOST_BROADCAST:
        return keep(batches(keep(messages)))
    yes = f.lit(True)
    as_own = f.broadcast(named.select("topic", "msg_id", yes.alias("own_is_named")))
    as_batch = f.broadcast(
        named.select("topic", f.col("msg_id").alias("batch_msg_id"), yes.alias("batch_is_named"))
    )
    found = keep(
        messages.join(as_own, ["topic", "msg_id"], "left")
        .join(as_batch, ["topic", "batch_msg_id"], "left")
        .where("own_is_named or batch_is_named")
        .withColumn("batch_msg_id", f.when(f.col("batch_is_named"), f.col("batch_msg_id")))
    )
    if found.where("batch_msg_id is not null").isEmpty():
        return None
    return keep(batches(found))


def known_ids(messages: Any, members: Any | None) -> Any:
    """Return the ids by which clients may name the messages: topic, msg_id, is_batch."""
    from pyspark.sql import functions as f

    own = messages.select("topic", "msg_id", f.lit(False).alias("is_batch"))
    if members is None:
        return own
    of_batches = members.where("place = 0").select("topic", f.col("batch").alias("msg_id"))
    return own.unionByName(of_batches.withColumn("is_batch", f.lit(True)))


def of_messages(evidence: Any, messages: Any, members: Any | None, keep: Keep) -> Any:
    """Return the evidence with the ids of messages in place of those of batches.

    members: `batches`, or None if they are not known yet.
    """
    if members is None:
        members = named_batches(messages, evidence, keep)
    return evidence if members is None else dealt_out(evidence, members)


def dealt_out(evidence: Any, members: Any) -> Any:
    """Return the evidence with the ids of messages in place of those of batches."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    named = members.where("place = 0").select("topic", f.col("batch").alias("msg_id"), "size")
    turn = f.row_number().over(
        Window.partitionBy("topic", "msg_id", "what").orderBy("time_ms")
    ) - f.lit(1)
    first = turn % f.col("size")
    from_the_last = f.col("what").rlike(_FROM_THE_LAST)
    place = f.when(from_the_last, f.col("size") - 1 - first).otherwise(first)
    meant = evidence.join(named, ["topic", "msg_id"]).withColumn("place", place)
    dealt = meant.withColumnRenamed("msg_id", "batch").join(
        members.select("topic", "batch", "place", "own"), ["topic", "batch", "place"]
    )
    others = evidence.join(named, ["topic", "msg_id"], "left_anti")
    kept = ("topic", "msg_id", "what", "time_ms")
    return others.select(*kept).unionByName(dealt.withColumn("msg_id", f.col("own")).select(*kept))
