"""Walk through an Avro body without making values of it, to count its items and its depth.

Avro has no lengths of records; a walk follows the schema: `null` takes no bytes, `int` and `long` a
varint, `string` and `bytes` a varint and as many bytes, a union a varint and the branch it names, an array
or a map blocks of items with a count each, and a block of 0 at the end.
"""

from __future__ import annotations

from typing import Any, Final

MAX_AVRO_DEPTH: Final = 100
# As many as are walked in some 50 ms.
MAX_AVRO_VALUES: Final = 100_000
# The time to decode a decimal grows with the square of its bytes: 200,000 bytes took 3.5 s. No table has a
# decimal of more than 38 digits, which take 16 bytes.
MAX_AVRO_DECIMAL_BYTES: Final = 1024
_FIXED: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINTS: Final = frozenset({"int", "long", "enum"})
_MAX_VARINT_BYTES: Final = 10


class AvroWalk:
    """Checks bodies of one parsed schema.

    `is_needed` says whether any body of the schema needs a walk.

    A body needs a walk if its schema allows more depth or more items than the body has bytes: the schema refers to
    itself, or has arrays of items that may take no bytes. It also needs a walk if the schema has decimals and the
    body is longer than a decimal may be.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._named: dict[str, Any] = {}
        self._refers_back = self._has_free_items = self._has_decimals = False
        self._learn(schema, ())
        self._is_unbounded = self._refers_back or self._has_free_items
        self.is_needed = self._is_unbounded or self._has_decimals

    def check(self, body: bytes) -> None:
        """Raise ValueError that names the limit, or EOFError if the body ends too early."""
        if self._is_unbounded or len(body) > MAX_AVRO_DECIMAL_BYTES:
            _Walker(self._named, body).value(self._schema, 0)

    def _learn(self, schema: Any, within: tuple[str, ...]) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._learn(branch, within)
            return
        if isinstance(schema, str):
            self._refers_back = self._refers_back or schema in within
            return
        kind = schema["type"]
        self._has_decimals = self._has_decimals or schema.get("logicalType") == "decimal"
        if isinstance(kind, (dict, list)):
            self._learn(kind, within)
        elif kind in ("record", "error"):
            self._named[schema["name"]] = schema
            for each in schema["fields"]:
                self._learn(each["type"], (*within, schema["name"]))
        elif kind in ("fixed", "enum"):
            self._named[schema["name"]] = schema
        elif kind == "array":
            self._learn(schema["items"], within)
            self._has_free_items = self._has_free_items or self._is_free(schema["items"], ())
        elif kind == "map":
            self._learn(schema["values"], within)

    def _is_free(self, schema: Any, within: tuple[str, ...]) -> bool:
        """Say whether a value may take no bytes."""
        if isinstance(schema, list):
            return False  # the number of its branch takes one
        if isinstance(schema, str) and schema in self._named:
            return schema in within or self._is_free(self._named[schema], within)
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, (dict, list)):
            return self._is_free(kind, within)
        if kind in ("record", "error"):
            inner = (*within, schema["name"])
            return all(self._is_free(each["type"], inner) for each in schema["fields"])
        return kind == "null" or (kind == "fixed" and schema["size"] == 0)


class _Walker:
    def __init__(self, named: dict[str, Any], body: bytes) -> None:
        self._named = named
        self._body = body
        self._at = 0
        self._values = 0

    def value(self, schema: Any, depth: int) -> None:
        self._count(depth)
        if isinstance(schema, list):
            branch = self._varint()
            if not 0 <= branch < len(schema):
                raise ValueError(
                    f"a union of {len(schema)} branches has none of the number {branch}"
                )
            self.value(schema[branch], depth)
            return
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            self.value(kind, depth)
        elif kind in ("record", "error"):
            for each in schema["fields"]:
                self.value(each["type"], depth + 1)
        elif kind == "array":
            self._blocks(schema["items"], depth, keyed=False)
        elif kind == "map":
            self._blocks(schema["values"], depth, keyed=True)
        elif kind in _VARINTS:
            self._varint()
        elif kind in ("string", "bytes"):
            self._take(self._varint(), schema)
        else:
            self._take(schema["size"] if kind == "fixed" else _FIXED[kind], schema)

    def _blocks(self, items: Any, depth: int, *, keyed: bool) -> None:
        while count := self._varint():
            if count < 0:
                count = -count
                self._varint()  # the block's size
            for _ in range(count):
                if keyed:
                    self._skip(self._varint())
                self.value(items, depth + 1)

    def _count(self, depth: int) -> None:
        self._values += 1
        if depth > MAX_AVRO_DEPTH:
            raise ValueError(
                f"its values are nested {depth} deep, the limit MAX_AVRO_DEPTH is {MAX_AVRO_DEPTH}"
            )
        if self._values > MAX_AVRO_VALUES:
            raise ValueError(
                f"it has more than {MAX_AVRO_VALUES} values, the limit MAX_AVRO_VALUES of schemas that "
                "refer to themselves or have items without bytes"
            )

    def _varint(self) -> int:
        number = shift = 0
        while True:
            if self._at >= len(self._body):
                raise EOFError("the body ends in the middle of a value")
            byte = self._body[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            if shift >= 7 * _MAX_VARINT_BYTES:
                raise ValueError(f"a number has more than {_MAX_VARINT_BYTES} bytes")

    def _take(self, size: int, schema: Any) -> None:
        if size > MAX_AVRO_DECIMAL_BYTES and schema.get("logicalType") == "decimal":
            raise ValueError(
                f"a decimal has {size} bytes, the limit MAX_AVRO_DECIMAL_BYTES is {MAX_AVRO_DECIMAL_BYTES}; "
                "send such numbers as bytes without a logical type"
            )
        self._skip(size)

    def _skip(self, size: int) -> None:
        if not 0 <= size <= len(self._body) - self._at:
            raise EOFError(
                f"a length of {size} is declared where {len(self._body) - self._at} bytes are left"
            )
        self._at += size
