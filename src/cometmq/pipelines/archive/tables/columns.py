"""Fix the columns of published tables. docs/tables.md lists them.

A table has the columns that every file of every archive holds, whatever its schema. A column that only
some files hold (`schemas.MADE_OF`) would be null in rows of the others, as if the messages had no such
value. So it is not in the table. Its number stays reserved in Iceberg, since files may have the column.
All types are types of Iceberg and of Delta: times are microseconds in UTC, which hold the store's
milliseconds exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cometmq.errors import ConfigError
from cometmq.pipelines.archive.schemas import ALL, FIRST, MADE_OF, Schema

_EVERY: Final = FIRST[ALL].columns
# Names and Spark's types. Their order gives Iceberg's field ids, from 1 on. It never changes, because the
# first schema never changes.
TABLE: Final = {name: kind for name, kind in _EVERY.items() if name not in MADE_OF}
# Columns of some files only, behind the others.
RESERVED: Final = {name: _EVERY[name] for name in MADE_OF}
# The day of `store_time` in UTC. Iceberg computes it, Delta has a column for it.
DAY: Final = "day"
# Files are sorted by these.
SORTED_BY: Final = ("broker", "queue_id", "queue_offset")


def table_columns(schemas: Iterable[Schema]) -> dict[str, str]:
    """Return the columns of the table of an archive that has these schemas, in order.

    Columns of later versions stand behind the others. Raise ConfigError if a column's type has changed,
    because a table has one type for all its files.
    """
    columns = dict(TABLE)
    for schema in sorted(schemas, key=lambda one: one.number):
        for name, kind in schema.columns.items():
            if name in MADE_OF:
                continue
            before = columns.setdefault(name, kind)
            if before != kind:
                raise ConfigError(
                    f"the column {name} has the type {kind} in files of schema {schema.number} and "
                    f"{before} in others, and a table has one type: archive these topics again "
                    "under another path to publish them"
                )
    return columns
