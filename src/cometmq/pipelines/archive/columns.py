"""Make the columns that the files of an archive have, and compute those that they leave out.

Files of a compact schema leave out what follows from other columns; of the ids by offset they keep
those that name an IPv6 host, which Spark's SQL cannot compute. Files of several schemas may lie side
by side.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from cometmq.model import properties as p
from cometmq.model.sysflag import STORE_HOST_V6, TRANSACTION_MASK
from cometmq.pipelines.archive.schemas import MADE_OF, OFFSET_ID, Schema
from cometmq.spark.rows.columns import COLUMNS

# As `cometmq.spark.rows.record_batches` bounds them.
_MAX_MS: Final = (2**63 - 1) // 1000


def made_for(schema: Schema) -> dict[str, Any]:
    """Return the columns that files of this schema have, by name, made of rows that have them."""
    from pyspark.sql import functions as F

    made = {name: F.col(name) for name in schema.columns}
    if schema.compact and OFFSET_ID in made:
        # By the flag that says how wide the record's host is: to look for colons in each takes long.
        is_ipv6 = F.col("sys_flag").bitwiseAND(F.lit(STORE_HOST_V6)) != 0
        made[OFFSET_ID] = F.when(is_ipv6, F.col(OFFSET_ID))
    return made


def needed_for(columns: Collection[str]) -> list[str]:
    """Return the columns to read of files so that `with_derived` gives these."""
    made_of = {part for name in columns for part in MADE_OF.get(name, ())}
    return [name for name in COLUMNS if name in made_of or name in columns]


def with_derived(frame: Any, columns: Collection[str], *others: str) -> Any:
    """Return these columns of files of all schemas, and `others` as they are.

    `frame` has the columns of `needed_for`, with nulls where a file has no such column.
    """
    from pyspark.sql import functions as F

    chosen = [
        F.coalesce(F.col(name), _derived(name)).alias(name) if name in MADE_OF else F.col(name)
        for name in COLUMNS
        if name in columns
    ]
    return frame.select(*chosen, *others)


def _derived(name: str) -> Any:
    """Return a column as the sources make it of others (`cometmq.spark.rows.record_batches`)."""
    from pyspark.sql import functions as F

    def named(key: str) -> Any:
        return F.col("properties").getItem(key)

    def number(text: Any, digits: int) -> Any:
        return F.when(text.rlike(rf"^[0-9]{{1,{digits}}}\z"), text.cast("bigint"))

    if name == "keys":
        texts = F.coalesce(named(p.KEYS), F.lit(""))
        return F.array_remove(F.split(texts, p.KEY_SEPARATOR), "")
    if name == "tags":
        return named(p.TAGS)
    if name == "transaction_id":
        return named(p.TRANSACTION_ID)
    if name == "transaction_type":
        kind = F.shiftright(F.col("sys_flag").bitwiseAND(F.lit(TRANSACTION_MASK)), 2)
        return F.when(kind == 1, "prepared").when(kind == 2, "commit").when(kind == 3, "rollback")
    if name == "delay_level":
        return number(named(p.DELAY_TIME_LEVEL), 9).cast("int")
    if name == "deliver_time":
        time = F.coalesce(named(p.TIMER_DELIVER_MS), named(p.TIMER_OUT_MS))
        found = number(time, 18)
        return F.timestamp_millis(F.when(found > _MAX_MS, _MAX_MS).otherwise(found))
    assert name == OFFSET_ID, name
    return _offset_id_of_ipv4()


def _offset_id_of_ipv4() -> Any:
    """Return the id by offset: address, port (4 bytes) and offset (8 bytes) in hex digits.

    Every store host of a compact file whose id was left out is `1.2.3.4:10911`.
    """
    from pyspark.sql import functions as F

    address, port = (F.substring_index("store_host", ":", at) for at in (1, -1))
    octets = F.split(address, r"\.")

    def digits(number: Any, count: int) -> Any:
        return F.lpad(F.hex(number.cast("bigint")), count, "0")

    made = F.concat(
        *(digits(F.get(octets, F.lit(at)), 2) for at in range(4)),
        digits(port, 8),
        digits(F.col("commit_log_offset"), 16),
    )
    return F.when(~_is_ipv6(), made)


def _is_ipv6() -> Any:
    """Say whether a host has a second colon. (A port stands behind one without brackets.)"""
    from pyspark.sql import functions as F

    return F.expr("locate(':', store_host, locate(':', store_host) + 1) > 0")
