"""Choose messages by time, tag, key and SQL, by the settings in the table of a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from cometmq.errors import ConfigError
from cometmq.pipelines.configuration import Settings
from cometmq.spark.rows.columns import COLUMNS, columns_in


class Selection(Settings, frozen=True):
    """since: the store time at which the selection begins, a TOML time with a zone: 2026-11-20T16:00:00Z.
    until: the store time before which the selection ends, written in the same way.
    tags: only messages with one of these tags. keys: only messages with one of these keys.
    where: a condition in Spark's SQL over the columns (docs/spark.md), for example
        `properties['region'] = 'eu-west' AND size(keys) > 0`.
    """

    since: datetime | None = None
    until: datetime | None = None
    tags: Sequence[str] = ()
    keys: Sequence[str] = ()
    where: str | None = None

    def __post_init__(self) -> None:
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None and time.tzinfo is None:
                raise ConfigError(
                    f"{name} is {time.isoformat()}, which says no time zone; write "
                    f"{time.isoformat()}Z for UTC"
                )
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise ConfigError(
                f"until is {self.until.isoformat()}, not after since, {self.since.isoformat()}; "
                "nothing would be chosen"
            )
        if self.where is not None and not self.where.strip():
            raise ConfigError("where is empty; leave it out to choose every message")

    def columns_with(self, needed: Collection[str]) -> set[str]:
        """Return the columns that are `needed`, and those that choosing needs."""
        found = {"store_time", *needed}
        if self.tags:
            found.add("tags")
        if self.keys:
            found.add("keys")
        return found if self.where is None else found | columns_in(self.where)

    def within_times(self, frame: Any) -> Any:
        """Return the rows within the times. Sources and archives find them without reading the
        others.
        """
        from pyspark.sql import functions as f

        if self.since is not None:
            frame = frame.where(f.col("store_time") >= f.lit(self.since))
        if self.until is not None:
            frame = frame.where(f.col("store_time") < f.lit(self.until))
        return frame

    def condition(self) -> Any:
        """Return a never-null column that says whether a row is chosen, apart from its time."""
        from pyspark.sql import functions as f

        chosen = f.lit(True)
        if self.tags:
            chosen &= f.col("tags").isin(*self.tags)
        if self.keys:
            chosen &= f.arrays_overlap("keys", f.array(*map(f.lit, self.keys)))
        if self.where is not None:
            chosen &= f.expr(self.where)
        return f.coalesce(chosen, f.lit(False))

    def check(self, frame: Any) -> None:
        """Raise ConfigError unless Spark can apply `where` to the rows of `frame`."""
        from pyspark.errors import PySparkException

        if self.where is None:
            return
        try:
            # A filter applies to one row, so this refuses aggregates and windows.
            _ = frame.where(self.condition()).schema
        except PySparkException as error:
            first_line = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"where is {self.where!r}, which Spark's SQL does not take: {first_line} "
                f"(columns are {', '.join(COLUMNS)})"
            ) from error


def times_ms(frame: Any) -> Any:
    """Add the columns `born_ms` and `store_ms`."""
    from pyspark.sql import functions as f

    return frame.withColumns(
        {"born_ms": f.unix_millis("born_time"), "store_ms": f.unix_millis("store_time")}
    )
