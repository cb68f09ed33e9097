"""Choose the tables and the decoders of a topic's next messages, by the schemas that they have.

Without a registry, all messages have the schema of the rule's file, or the one that was inferred from a sample.
With a registry, each message names its schema by an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cometmq.errors import SchemaRegistryError, UndecodableError
from cometmq.pipelines.archive.decoded.definitions import DecodedTable, Definitions
from cometmq.pipelines.archive.decoded.settings import DecodeRule
from cometmq.pipelines.archive.decoded.work import Ranges, Work
from cometmq.pipelines.locations import Location
from cometmq.spark.decoding.batches import BodyDecoder, FittingIds
from cometmq.spark.decoding.json_bodies import MOST_SAMPLED, inferred
from cometmq.spark.decoding.readers import BodySchema

# The registry is asked for so many schemas, one after the other, and workers get all of them.
MOST_IDS: Final = 200
_BEYOND: Final = f"it is not among the {MOST_IDS} schemas that most messages of its batch name, the limit MOST_IDS"


class Decoders:
    """Chooses decoders, and defines the tables that they need. base: the directory of the archive's files."""

    def __init__(self, work: Work, base: Location, definitions: Definitions) -> None:
        self._work = work
        self._base = base
        self._definitions = definitions
        # The failures of registries in this round, by their addresses: each takes seconds to find out.
        self._silent: dict[str, SchemaRegistryError] = {}

    def begin_round(self) -> None:
        """Ask registries again that did not answer."""
        self._silent.clear()

    def of(
        self, topic: str, rule: DecodeRule, files: Sequence[Location], ranges: Ranges
    ) -> list[tuple[DecodedTable, BodyDecoder]]:
        """Return the tables for the topic's next messages, each with its decoder.

        Raise UndecodableError if there is no schema, and SchemaRegistryError if the registry does not answer.
        """
        if rule.registry is not None:
            return self._registered(topic, rule, files, ranges)
        tables = self._definitions.of(topic)
        schema = rule.schema
        if schema is None and tables:
            table = tables[-1]
            return [(table, BodyDecoder(table.columns, {None: table.schemas[-1]}, rule.wire))]
        if schema is None:
            bodies = self._work.sample(self._base, files, ranges, MOST_SAMPLED)
            schema = inferred(bodies)
            if schema is None:
                raise UndecodableError(
                    f"none of the first {len(bodies)} bodies of topic {topic} is a JSON object with "
                    f"fields, so no schema can be inferred: give schema in the table [decode.{rule.key}]"
                )
        table = self._definitions.table_for(topic, schema, rule.table)
        return [(table, BodyDecoder(table.columns, {None: schema}, rule.wire))]

    def _registered(
        self, topic: str, rule: DecodeRule, files: Sequence[Location], ranges: Ranges
    ) -> list[tuple[DecodedTable, BodyDecoder]]:
        """Return the tables for messages that name schemas. The first gets those without a usable one."""
        schemas, refused = self._asked(rule, files, ranges)
        # Any producer may name any id, so a schema counts only when it has read a body.
        new: dict[int | None, BodySchema] = {
            schema_id: schema
            for schema_id, schema in schemas.items()
            if self._definitions.known(topic, schema) is None
        }
        if new:
            found_by = self._work.reasons(self._base, files, ranges, FittingIds(rule.wire, new))
            fitting = {schema_id for schema_id, reason in found_by if reason is None}
            refused |= {
                schema_id: f"no body of it can be read: {reason}"
                for schema_id, reason in found_by
                if schema_id not in fitting
            }
        for schema_id in [one for one in schemas if one not in refused]:
            try:
                self._definitions.table_for(topic, schemas[schema_id], rule.table)
            except UndecodableError as error:
                if not self._definitions.of(topic):
                    raise
                refused[schema_id] = str(error)
        schemas = {one: schema for one, schema in schemas.items() if one not in refused}
        tables = self._definitions.of(topic)
        if not tables:
            raise UndecodableError(
                f"no message of topic {topic} names a usable schema, so the topic has no table yet: "
                + (
                    "; ".join(f"schema {one}: {said}" for one, said in refused.items())
                    or "there are no schema ids"
                )
            )
        of_table = {
            table: {i for i, one in schemas.items() if one in table.schemas} for table in tables
        }
        used = [table for table, own in of_table.items() if own] or tables[-1:]
        made = []
        for table in used:
            own = of_table[table]
            # Rows without a schema belong to one of the decoders.
            others = frozenset(one for one in schemas if one not in own)
            decoder = BodyDecoder(
                table.columns,
                {schema_id: schemas[schema_id] for schema_id in own},
                rule.wire,
                known_ids=True,
                refused=refused,
                of_others=_BEYOND,
                elsewhere=others,
                takes_others=table is used[0],
            )
            made.append((table, decoder))
        return made

    def _asked(
        self, rule: DecodeRule, files: Sequence[Location], ranges: Ranges
    ) -> tuple[dict[int, BodySchema], dict[int, str]]:
        """Return the schemas that a batch's messages name, by id, and the reasons why others cannot be used.

        Raise SchemaRegistryError if the registry does not answer; then it is not asked again in this round.
        """
        assert rule.registry is not None, "asked for by the caller"
        address = rule.registry.address
        if address in self._silent:
            raise self._silent[address]
        schemas: dict[int, BodySchema] = {}
        refused: dict[int, str] = {}
        for schema_id in sorted(
            self._work.schema_ids(self._base, files, ranges, rule.wire, MOST_IDS)
        ):
            try:
                found = rule.registered(schema_id)
            except SchemaRegistryError as error:
                self._silent[address] = error
                raise
            if isinstance(found, str):
                refused[schema_id] = found
            else:
                schemas[schema_id] = found
        return schemas, refused
