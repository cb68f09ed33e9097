"""Define the decoded tables of an archive: their names, their columns, and the schemas of their bodies.

`_decoded/_definitions.json` holds the definitions. A definition is written before the first row of its table,
and is never removed: a run that is killed in between leaves a table without rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from cometmq.errors import IllegalArgumentError, UndecodableError
from cometmq.logs.loggers import get_logger
from cometmq.pipelines.archive.layout import Layout, load
from cometmq.pipelines.archive.tables.columns import TABLE
from cometmq.spark.decoding.columns import REASON, Column, columns_with
from cometmq.spark.decoding.kinds import plain_name
from cometmq.spark.decoding.readers import BodySchema, reader_of

log = get_logger(__name__)

# The archive of decoded bodies, below that of the messages.
DIRECTORY: Final = "_decoded"
_BAD: Final = "_undecodable"
# A schema with more versions changes with the data, and engines list each version as a table.
MOST_VERSIONS: Final = 100
# The columns of messages in decoded tables. The bytes of the body stay in the archive.
MESSAGE: Final = {name: kind for name, kind in TABLE.items() if name != "body"}
# The columns of the bodies that do not fit.
UNDECODABLE: Final = {**TABLE, REASON: "string"}


def names_of(table: str) -> tuple[str, str]:
    """Return the names that a topic takes whose table has this name."""
    return table, table + _BAD


class DecodedTable(msgspec.Struct, frozen=True):
    """A table of decoded bodies of a topic. `schemas` are those of its bodies.

    version: counts the topic's tables from 1. name_of_bad: the name of the table for bodies that do not fit,
    which all versions share.
    """

    name: str
    name_of_bad: str
    topic: str
    version: int
    columns: tuple[Column, ...]
    schemas: tuple[BodySchema, ...]

    @property
    def all_columns(self) -> dict[str, str]:
        """The columns of the table with Spark's types: those of the message, then those of the body."""
        return MESSAGE | {column.name: column.kind for column in self.columns}


class Definitions:
    """The tables of the archive of decoded bodies in a layout."""

    def __init__(self, layout: Layout) -> None:
        self._file = layout.path / "_definitions.json"
        decode = msgspec.json.Decoder(tuple[DecodedTable, ...]).decode
        self.tables = load(self._file, decode) or ()

    def of(self, topic: str) -> list[DecodedTable]:
        """Return the tables of a topic, the newest last."""
        return [table for table in self.tables if table.topic == topic]

    def topic_of(self, name: str) -> str | None:
        """Return the topic of the table with a name. It may be a table for bodies that do not fit."""
        return next((one.topic for one in self.tables if name in (one.name, one.name_of_bad)), None)

    def known(self, topic: str, schema: BodySchema) -> DecodedTable | None:
        """Return the table that holds bodies of a schema, None if there is none."""
        return next((one for one in reversed(self.of(topic)) if schema in one.schemas), None)

    def table_for(self, topic: str, schema: BodySchema, base: str | None) -> DecodedTable:
        """Return the table that holds bodies of a schema, and define it if there is none.

        The newest table of the topic gets the schema's new columns. If it cannot hold the schema's fields, a
        table of the next version is defined. `base` is the name of the first one, by default the topic's.
        Raise UndecodableError for a name that another topic's table has, and for too many versions: both
        depend on what is sent, so they stop no more than this topic or schema.
        """
        if (table := self.known(topic, schema)) is not None:
            return table
        tables = self.of(topic)
        reader = reader_of(schema)
        newest = tables[-1] if tables else None
        if newest is not None and newest.schemas[0].kind == schema.kind:
            try:
                columns = columns_with(newest.columns, reader)
            except IllegalArgumentError as error:
                log.warning(
                    "the table cannot hold the changed schema, so a new version of it begins",
                    topic=topic,
                    table=newest.name,
                    reason=str(error),
                )
            else:
                schemas = (*newest.schemas, schema)
                return self._put(replace(newest, columns=columns, schemas=schemas), newest)
        version = newest.version + 1 if newest else 1
        if version > MOST_VERSIONS:
            raise UndecodableError(
                f"[decode] topic {topic} has {MOST_VERSIONS} tables, the limit MOST_VERSIONS: decode its "
                "bodies by one schema that changes as tables can"
            )
        first = tables[0].name if tables else base or plain_name(topic)
        name = first if version == 1 else f"{first}_v{version}"
        self._check(name, topic)
        columns = columns_with((), reader)
        return self._put(DecodedTable(name, first + _BAD, topic, version, columns, (schema,)))

    # Inside

    def _check(self, name: str, topic: str) -> None:
        taken = {
            each.casefold(): table
            for table in self.tables
            for each in (table.name, table.name_of_bad)
            if table.topic != topic
        }
        for each in names_of(name):
            other = taken.get(each.casefold())
            if other is not None:
                raise UndecodableError(
                    f"[decode] topic {topic}: its table would be {name}, and topic {other.topic} has "
                    f"the table {other.name}: give a table [decode.{topic}] with another name as "
                    "`table`"
                )

    def _put(self, table: DecodedTable, before: DecodedTable | None = None) -> DecodedTable:
        """Write the definitions with a table: in place of `before`, or as the last one."""
        kept: Iterable[DecodedTable] = self.tables
        if before is None:
            self.tables = (*kept, table)
        else:
            self.tables = tuple(table if one is before else one for one in kept)
        self._file.write(msgspec.json.format(msgspec.json.encode(self.tables), indent=1))
        return table
