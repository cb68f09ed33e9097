"""Compute as a column which queue a sharding key chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import functions as f

from cometmq.model.queue import MessageQueue

_INT32_SIGN: Final = 2**31
_INT32_RANGE: Final = 2**32


def java_hash(text: Any) -> Any:
    """Return Java's String.hashCode of a text column (cometmq.model.java.hashing), without a Python
    worker.
    """
    digits = f.hex(f.encode(text, "UTF-16BE"))

    def step(hashed: Any, place: Any) -> Any:
        unit = f.conv(f.substring(digits, place * 4 - 3, f.lit(4)), 16, 10).cast("bigint")
        return (hashed * 31 + unit) % _INT32_RANGE

    # An empty text has no units, and sequence(1, 0) would count down.
    units = (f.length(digits) / 4).cast("int")
    places = f.when(units > 0, f.sequence(f.lit(1), units)).otherwise(f.array().cast("array<int>"))
    hashed = f.aggregate(places, f.lit(0).cast("bigint"), step)
    return f.when(hashed >= _INT32_SIGN, hashed - _INT32_RANGE).otherwise(hashed)


def spans_of(targets: Sequence[MessageQueue]) -> dict[str, tuple[int, int]]:
    """Return, for each topic, the number of its first queue among the sorted `targets`, and how
    many it has.
    """
    spans, first = {}, 0
    for topic, count in sorted(Counter(target.topic for target in targets).items()):
        spans[topic] = first, count
        first += count
    return spans
