"""Decode the bodies of Arrow batches into columns. Spark's workers call this module, which imports no Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa
from pyarrow import compute

from cometmq.errors import SchemaRegistryError
from cometmq.model import properties as p
from cometmq.payloads import framing
from cometmq.payloads.codecs import MAX_PAYLOAD_BYTES
from cometmq.spark.decoding.columns import REASON, Column, names_of_fields
from cometmq.spark.decoding.kinds import TEXT, arrow_type
from cometmq.spark.decoding.readers import BodySchema, Reader, reader_of

# Where messages name their schema: nowhere, in the property SCHEMA_ID, or as Confluent's serializers do.
Wire = Literal["plain", "property", "confluent"]
# Limits of the part of a batch that is decoded at once: the objects take some ten times the bytes of bodies.
_MOST_ROWS: Final = 1000
_MOST_BYTES: Final = 8 << 20
MOST_SAMPLED_BYTES: Final = 8 << 20
_MOST_LETTERS: Final = 1000
# The largest number of schemas for which a task asks a registry.
MOST_LOOKED_UP: Final = 200
_MAX_ID: Final = 2**31 - 1
_MOST_DIGITS: Final = len(str(_MAX_ID))


class _DoesNotFitError(Exception):
    """The text of the error is the reason for which a body does not fit."""


@dataclass(frozen=True)
class BodyDecoder:
    """Decodes bodies into these columns. It can be pickled.

    schemas: by the ids that messages name; under None that of bodies without an id.
    wire: where messages name an id. Of frames with "property" the column `properties` is read, too.
    known_ids: whether each id has a schema of its own; if not, all bodies have that of None.
    refused: the reasons why bodies of other ids do not fit, and of_others that of all further ids.
    elsewhere: the ids whose rows are left out. takes_others: if not, so are all ids without a schema here.
    """

    columns: tuple[Column, ...]
    schemas: Mapping[int | None, BodySchema]
    wire: Wire = "plain"
    known_ids: bool = False
    refused: Mapping[int, str] = field(default_factory=dict)
    of_others: str = "it is not known"
    elsewhere: frozenset[int | None] = frozenset()
    takes_others: bool = True
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    # Finds the schema of an id that is not among `schemas`; returns a reason if there is none.
    find: Callable[[int], BodySchema | str] | None = None

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that batches get: those of bodies, and the one with the reason for a body that does not fit."""
        made = [pa.field(column.name, arrow_type(column.kind)) for column in self.columns]
        return [*made, pa.field(REASON, TEXT)]

    def is_for(self, schema_id: int | None) -> bool:
        """Return whether a row that names this id is this decoder's."""
        if self.takes_others:
            return schema_id not in self.elsewhere
        return schema_id in self.schemas

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of batches with the column `body`, in order, each with these columns behind its own.

        A row with a body that does not fit has the reason, and no values.
        """
        work = _Work(self)
        for batch in batches:
            for part in _parts(batch):
                yield work.decoded(part)


@dataclass(frozen=True)
class SchemaIds:
    """Finds the ids of schemas that messages name. It can be pickled."""

    wire: Wire

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the ids of each batch, each once, in the column `id`, and in `messages` how many name it."""
        for batch in batches:
            found = Counter(one for one in ids_of(batch, self.wire) if one is not None)
            counts = pa.array(found.values(), pa.int64())
            yield pa.record_batch({"id": pa.array(found, pa.int64()), "messages": counts})


class Sample:
    """Takes bodies until there are `count`, or MOST_SAMPLED_BYTES of them: the code that infers a
    schema holds all of them, as objects of ten times their bytes. It can be pickled.
    """

    def __init__(self, count: int) -> None:
        self._left = count
        self._bytes_left = MOST_SAMPLED_BYTES

    def taken(self, bodies: Iterable[bytes | None]) -> Iterator[bytes]:
        """Yield the first of these bodies. One that alone is beyond the bytes is left out."""
        for body in bodies:
            found = body or b""
            if len(found) > MOST_SAMPLED_BYTES:
                continue
            if not self._left or len(found) > self._bytes_left:
                self._left = 0
                return
            self._left -= 1
            self._bytes_left -= len(found)
            yield bytes(found)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield bodies of batches in the column `body`."""
        for batch in batches:
            for part in _parts(batch):
                found = list(self.taken(part.column("body").to_pylist()))
                yield pa.record_batch({"body": pa.array(found, pa.binary())})
                if not self._left:
                    return


@dataclass(frozen=True)
class FittingIds:
    """Finds the ids by whose schemas a body can be read. It can be pickled."""

    wire: Wire
    schemas: Mapping[int | None, BodySchema]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the column `id`, and `reason`: why a body of this id does not fit, null if one does."""
        work = _Work(BodyDecoder((), self.schemas, self.wire, known_ids=True))
        found: dict[int, str | None] = {}
        for batch in batches:
            for part in _parts(batch):
                bodies = part.column("body").to_pylist()
                for body, schema_id in zip(bodies, ids_of(part, self.wire), strict=True):
                    if schema_id is None or schema_id not in self.schemas:
                        continue
                    if found.get(schema_id, "") is not None:
                        _, found[schema_id] = work.row(body, schema_id)
        yield pa.record_batch(
            {"id": pa.array(found, pa.int64()), "reason": pa.array(found.values(), TEXT)}
        )


def ids_of(batch: pa.RecordBatch, wire: Wire) -> list[int | None]:
    """Return the schema id that each message of a batch names; None for a message without one."""
    bodies = batch.column("body").to_pylist()
    if wire == "confluent":
        return [None if body is None else framing.confluent_id(body) for body in bodies]
    if wire == "plain":
        return [None] * len(bodies)
    found: list[int | None] = []
    for properties in batch.column("properties").to_pylist():
        text = dict(properties or ()).get(p.SCHEMA_ID) or ""
        # The length first: producers choose the text, and Python raises for thousands of digits.
        is_id = len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit()
        schema_id = int(text) if is_id else _MAX_ID + 1
        found.append(schema_id if schema_id <= _MAX_ID else None)
    return found


class _Work:
    """The decoding in one worker."""

    def __init__(self, decoder: BodyDecoder) -> None:
        self._decoder = decoder
        self._fields = decoder.fields
        self._record = pa.struct(self._fields[:-1])
        self._known: dict[int | None, tuple[Reader, dict[str, str], bool]] = {}
        self._looked_up: dict[int, BodySchema | str] = {}

    def decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = ids_of(batch, self._decoder.wire)
        stay = [self._decoder.is_for(one) for one in ids]
        if not all(stay):
            batch = batch.filter(pa.array(stay))
            ids = [one for one, stays in zip(ids, stay, strict=True) if stays]
        rows: list[dict[str, Any] | None] = []
        reasons: list[str | None] = []
        for body, schema_id in zip(batch.column("body").to_pylist(), ids, strict=True):
            row, reason = self.row(body, schema_id)
            rows.append(row)
            reasons.append(reason)
        values = self._array(rows, reasons)
        arrays = [*batch.columns, *values.flatten(), pa.array(reasons, TEXT)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*batch.schema, *self._fields]))

    def row(
        self, body: bytes | None, schema_id: int | None
    ) -> tuple[dict[str, Any] | None, str | None]:
        try:
            return self._value(body, schema_id), None
        except SchemaRegistryError:
            raise  # not a fault of the body, which another attempt may decode
        except _DoesNotFitError as error:
            return None, str(error)
        except RecursionError:
            return None, "the body is nested deeper than Python's recursion limit allows"
        except Exception as error:  # noqa: BLE001 - the formats' libraries raise what they like
            return None, f"{type(error).__name__}: {str(error)[:_MOST_LETTERS]}"

    def _value(self, body: bytes | None, schema_id: int | None) -> dict[str, Any]:
        if body is None:
            raise _DoesNotFitError("the message has no body")
        if len(body) > self._decoder.max_payload_bytes:
            raise _DoesNotFitError(
                f"the body has {len(body)} bytes, the limit max_payload_bytes is "
                f"{self._decoder.max_payload_bytes}"
            )
        if self._decoder.wire == "confluent":
            if schema_id is None:
                raise _DoesNotFitError("the body does not begin with 0 and the id of a schema")
            body = framing.without_prefix(body)
        reader, names, has_path = self._reader(schema_id)
        if has_path:
            path, body = framing.split_path(body)
            if tuple(path) not in reader.paths:
                raise _DoesNotFitError(
                    f"the body is another message of the schema's file: the one at {path!s:.100}, and "
                    f"the message that is decoded is at {sorted(map(list, reader.paths))}"
                )
        value = reader.read(body)
        return {names[field]: found for field, found in value.items()}

    def _reader(self, schema_id: int | None) -> tuple[Reader, dict[str, str], bool]:
        if schema_id not in self._known:
            decoder = self._decoder
            schema = decoder.schemas.get(schema_id if decoder.known_ids else None)
            if schema is None:
                if schema_id is None:
                    raise _DoesNotFitError(f"the message has no property {p.SCHEMA_ID} with an id")
                if decoder.find is None:
                    reason = decoder.refused.get(schema_id, decoder.of_others)
                    raise _DoesNotFitError(f"schema {schema_id}: {reason}")
                schema = self._found(schema_id, decoder.find)
            reader = reader_of(schema)
            has_path = decoder.wire == "confluent" and schema.kind == "PROTOBUF"
            names = names_of_fields(decoder.columns, reader)
            self._known[schema_id] = reader, names, has_path
        return self._known[schema_id]

    def _found(self, schema_id: int, find: Callable[[int], BodySchema | str]) -> BodySchema:
        """Look up a schema. Any producer may name any id, so a task looks up a bounded number."""
        found = self._looked_up.get(schema_id)
        if found is None:
            if len(self._looked_up) >= MOST_LOOKED_UP:
                raise _DoesNotFitError(
                    f"schema {schema_id}: this task has already asked for {MOST_LOOKED_UP} schemas, the limit "
                    "MOST_LOOKED_UP"
                )
            found = self._looked_up[schema_id] = find(schema_id)
        if isinstance(found, str):
            raise _DoesNotFitError(f"schema {schema_id}: {found}")
        return found

    def _array(
        self, rows: list[dict[str, Any] | None], reasons: list[str | None]
    ) -> pa.StructArray:
        """Return the values as an Arrow array. A row with a value outside the range of its type gets a reason."""
        try:
            return pa.array(rows, self._record)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
        for at, row in enumerate(rows):
            try:
                pa.array([row], self._record)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                rows[at] = None
                reasons[at] = f"{type(error).__name__}: {str(error)[:_MOST_LETTERS]}"
        return pa.array(rows, self._record)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide a batch by rows and by the bytes of bodies."""
    sizes: Sequence[int | None] = compute.binary_length(batch.column("body")).to_pylist()
    start = held = 0
    for at, size in enumerate(sizes):
        if at > start and (held + (size or 0) > _MOST_BYTES or at - start == _MOST_ROWS):
            yield batch.slice(start, at - start)
            start, held = at, 0
        held += size or 0
    if start < len(sizes) or not sizes:
        yield batch.slice(start)
