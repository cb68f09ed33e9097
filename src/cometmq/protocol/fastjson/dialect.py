"""Decode JSON bodies as Java's fastjson writes them (Java: RemotingSerializable, fastjson 1.2
defaults).

Java reads strict JSON everywhere, so this module writes only strict JSON. Java's own output differs
from strict JSON in three ways, which `decode_body` understands:

    {0:"a",-1:"b"}              keys that are not text stand without quotes
    {{"queueId":0}:1}           a bean as a key; it becomes a text key that holds the bean's JSON
    {"$ref":"$.table.name"}     a repetition of the object at that path

Besides, as in fastjson, a null counts as a missing key, and `"7"` counts as a number (the Go client
sends tag codes like this).

msgspec decodes strict JSON, which every other peer sends, in one pass. The rest runs only if that
pass fails: `short_keys` and `keys` for keys, this module for references and nulls. The time of all this grows
only with the length of a body. Depth, values and copies made for references are bounded.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from heapq import merge
from typing import Any, Final, TypeVar

import msgspec

from cometmq.errors import ProtocolError
from cometmq.protocol.fastjson.short_keys import MAX_LENGTH as MAX_SHORT_LENGTH
from cometmq.protocol.fastjson.short_keys import quote_short_keys

T = TypeVar("T")

MAX_JSON_DEPTH: Final = 64
# Values of a body that holds nulls or references: Python visits each of them.
MAX_TREE_VALUES: Final = 200_000
MAX_REFERENCES: Final = 10_000
# Values that references may repeat: a small body with references to references must not fill the
# memory.
MAX_REFERENCED_NODES: Final = 100_000
# The same for requests: each reference takes 5 us, each value 0.5 us. mqadmin sends two
# references for each entry of a policy but the first, and a policy has 1,000.
MAX_REQUEST_TREE_VALUES: Final = 20_000
MAX_REQUEST_REFERENCES: Final = 2_500
MAX_REQUEST_REFERENCED_NODES: Final = 20_000

_REFERENCE: Final = b'"$ref"'
_PATH_STEP: Final = re.compile(r"\.((?:[^.\[\\]|\\.)+)|\[(\d+)\]", re.DOTALL)

# The limit for a request's body in the dialect, which takes up to a tenth of a second per megabyte.
MAX_DIALECT_REQUEST_LENGTH: Final = 256 * 1024
# While a longer body is decoded the collector rests, which saves a third of the time.
_LARGE_BYTES: Final = 256 * 1024
# So many entries of a table are in one piece of its text.
_MEMBERS_AT_ONCE: Final = 16
_SORTED_AT_ONCE: Final = 512

_encoder: Final = msgspec.json.Encoder()
_encode_json: Final = json.JSONEncoder(ensure_ascii=False).encode
_quoted: Final = json.encoder.encode_basestring
# One decoder per body type of ours, so the program bounds the size.
_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def decode_body(
    data: bytes,
    type_: type[T],
    *,
    max_dialect_length: int | None = None,
    limit: str = "MAX_DIALECT_REQUEST_LENGTH",
) -> T:
    """Return the value of `type_` in a JSON body; unknown keys are ignored.

    A request's body in the dialect, which is no strict JSON, may have `max_dialect_length` bytes;
    `limit` is the name of that in the error. Nulls and references have narrower limits then, too. Raise
    ProtocolError, which says what does not fit or where the JSON breaks off.
    """
    try:
        is_request = max_dialect_length is not None
        try:
            return _decode(data, type_, is_request=is_request)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            if max_dialect_length is not None and len(data) > max_dialect_length:
                raise ProtocolError(
                    f"a JSON body of {len(data)} bytes is not strict JSON ({error}); in fastjson's "
                    f"dialect the limit {limit} is {max_dialect_length} bytes; send less at once",
                    limit=limit,
                ) from error
            return _decode(_strict(data), type_, is_request=is_request)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a JSON body is no {_name(type_)}: {error}") from error
    except RecursionError as error:
        raise _too_deep() from error


def _decode(data: bytes, type_: type[T], *, is_request: bool) -> T:
    if len(data) < _LARGE_BYTES or not gc.isenabled():
        return _decoded(data, type_, is_request)
    # All that is made here stays, so the collector would look at it again and again for nothing.
    gc.disable()
    try:
        return _decoded(data, type_, is_request)
    finally:
        gc.enable()


def _decoded(data: bytes, type_: type[T], is_request: bool) -> T:
    # A single byte is found ten times as fast.
    if b"$" not in data or _REFERENCE not in data:
        try:
            return _decoder(type_).decode(data)
        except msgspec.ValidationError:
            if b"null" not in data:
                raise
    _check_values(data, is_request)
    tree = _Tree(msgspec.json.decode(data), is_request).resolved()
    return msgspec.convert(tree, type_, strict=False, str_keys=True)


def prepare() -> None:
    """Load what long bodies in the dialect need. Takes a tenth of a second, so a server does it outside
    its loop.
    """
    import cometmq.protocol.fastjson.keys  # noqa: F401 - most processes never need it


def encode_body(value: Any) -> bytes:
    """Return strict JSON of a struct or of plain values, without the keys whose value is None.

    Raise ProtocolError for a value nested too deeply, as the two functions below do.
    """
    try:
        data = _encoder.encode(value)
    except RecursionError as error:
        raise _too_deep() from error
    # Most bodies hold no None. A text that contains "null" costs only the second pass.
    return data if b"null" not in data else _encoder.encode(_plain(value))


def encode_strict_sorted(value: Any) -> bytes:
    """Encode an answer for those who asked a name server for standard JSON: keys sorted, non-ASCII
    escaped.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":")).encode()


def pretty_pieces(value: Any) -> Iterator[str]:
    """Yield the text of a configuration file as RocketMQ lays it out: tabs, keys sorted, no last
    newline. Integer keys are quoted, which Java reads but does not write.

    A table comes in several pieces. Each takes a fraction of a millisecond, so that a thread that
    writes a large table can let others run in between.
    """
    if isinstance(value, msgspec.Struct):
        members = [(name, getattr(value, field)) for name, field in _sorted_fields(type(value))]
        yield from _object_pieces(members, 1)
    elif isinstance(value, dict):
        yield from _table_pieces(value, 1)
    else:
        yield _indented(value, 0)


@cache
def _sorted_fields(type_: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Return the names of a struct's fields, encoded and as attributes.

    The objects by which msgspec finds them refer to themselves, so each call would leave some to the
    garbage collector.
    """
    return sorted((field.encode_name, field.name) for field in msgspec.structs.fields(type_))


def _table_pieces(table: dict[Any, Any], depth: int) -> Iterator[str]:
    """Yield the object of a table in the order of its keys.

    It is sorted in parts, with an empty piece after each: nothing else runs while 25,000 keys are
    sorted at once, for 20 ms, in whichever thread that is.
    """
    members = list(table.items())
    parts: list[list[tuple[Any, Any]]] = []
    for start in range(0, len(members), _SORTED_AT_ONCE):
        parts.append(sorted(members[start : start + _SORTED_AT_ONCE]))
        if len(members) > _SORTED_AT_ONCE:
            yield ""
    yield from _object_pieces(parts[0] if len(parts) == 1 else merge(*parts), depth)


def _object_pieces(members: Iterable[tuple[Any, Any]], depth: int) -> Iterator[str]:
    """Yield the object of `members`; the tables among them are written member by member."""
    indent = "\n" + "\t" * depth
    opening = "{"
    batch: list[str] = []
    for key, item in members:
        if item is None or item is msgspec.UNSET:
            continue
        batch.append(f"{opening}{indent}{_quoted(str(key))}:")
        opening = ","
        if depth == 1 and isinstance(item, dict) and item:
            yield "".join(batch)
            batch = []
            yield from _table_pieces(item, depth + 1)
            continue
        batch.append(_indented(item, depth))
        if len(batch) >= 2 * _MEMBERS_AT_ONCE:
            yield "".join(batch)
            batch = []
    batch.append("{}" if opening == "{" else "\n" + "\t" * (depth - 1) + "}")
    yield "".join(batch)


def _indented(value: Any, depth: int) -> str:
    try:
        return _laid_out(msgspec.to_builtins(value), "\n" + "\t" * depth, 0)
    except RecursionError as error:
        raise _too_deep() from error


def _laid_out(value: Any, newline: str, depth: int) -> str:
    """Return the text of a plain value, without the keys whose value is None.

    `newline` begins the line of the closing bracket. `depth` counts the levels between this value and the
    one that `_indented` got.

    `json` has this layout, too, but makes it by closures that refer to each other. Everything that they
    hold stays until the garbage collector finds it, and then the loop's thread frees it.
    """
    if depth > MAX_JSON_DEPTH:
        raise _too_deep()
    # Nearly all values are strings and integers, and the encoder of `json` takes detours for them.
    if isinstance(value, str):
        return _quoted(value)
    if type(value) is int:
        return str(value)
    inner = newline + "\t"
    if isinstance(value, dict):
        lines = [
            f"{_quoted(str(key))}:{_laid_out(item, inner, depth + 1)}"
            for key, item in sorted([each for each in value.items() if each[1] is not None])
        ]
        return "{" + inner + f",{inner}".join(lines) + newline + "}" if lines else "{}"
    if isinstance(value, list) and value:
        lines = [_laid_out(item, inner, depth + 1) for item in value]
        return "[" + inner + f",{inner}".join(lines) + newline + "]"
    return _encode_json(value)


def _decoder(type_: type[T]) -> msgspec.json.Decoder[T]:
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = msgspec.json.Decoder(type_, strict=False)
    return decoder


def _name(type_: Any) -> str:
    return getattr(type_, "__name__", str(type_))


def _too_deep() -> ProtocolError:
    return ProtocolError(
        f"JSON is nested too deeply, the limit MAX_JSON_DEPTH is {MAX_JSON_DEPTH}; send it flatter",
        limit="MAX_JSON_DEPTH",
    )


def _plain(value: Any) -> Any:
    try:
        return _without_nulls(msgspec.to_builtins(value), 0)
    except RecursionError as error:
        raise _too_deep() from error


def _without_nulls(value: Any, depth: int) -> Any:
    if depth > MAX_JSON_DEPTH:
        raise _too_deep()
    if isinstance(value, dict):
        return {
            key: _without_nulls(item, depth + 1) for key, item in value.items() if item is not None
        }
    if isinstance(value, list):
        return [_without_nulls(item, depth + 1) for item in value]
    return value


def _check_values(data: bytes, is_request: bool) -> None:
    """Raise ProtocolError for too many values or references.

    Commas and brackets in texts count, too: to distinguish them would take as long as the work that
    is refused.
    """
    count = data.count(b",") + data.count(b"[") + data.count(b"{") + 1
    limit, most = "MAX_TREE_VALUES", MAX_TREE_VALUES
    if is_request:
        limit, most = "MAX_REQUEST_TREE_VALUES", MAX_REQUEST_TREE_VALUES
    if count > most:
        raise ProtocolError(
            f"a JSON body with nulls or references has {count} values, the limit {limit} is {most}; "
            "leave the nulls out, repeat the values instead of references, or send it in parts",
            limit=limit,
        )
    references = data.count(_REFERENCE)
    limit, most = "MAX_REFERENCES", MAX_REFERENCES
    if is_request:
        limit, most = "MAX_REQUEST_REFERENCES", MAX_REQUEST_REFERENCES
    if references > most:
        raise ProtocolError(
            f"a JSON body has {references} references, the limit {limit} is {most}; repeat "
            "the values instead",
            limit=limit,
        )


def _strict(data: bytes) -> bytes:
    if len(data) <= MAX_SHORT_LENGTH:
        return quote_short_keys(data)
    # json_keys needs numpy, whose import takes longer than a client takes to start, and few clients
    # meet long bodies in the dialect.
    from cometmq.protocol.fastjson.keys import quote_keys

    return quote_keys(data)


class _Tree:
    """A decoded body of unknown shape: follows references and drops nulls."""

    def __init__(self, root: Any, is_request: bool) -> None:
        self._root = root
        self._limit, self._most = "MAX_REFERENCED_NODES", MAX_REFERENCED_NODES
        if is_request:
            self._limit = "MAX_REQUEST_REFERENCED_NODES"
            self._most = MAX_REQUEST_REFERENCED_NODES
        self._budget = self._most

    def resolved(self) -> Any:
        return self._copy(self._root, 0, referenced=False)

    def _copy(self, node: Any, depth: int, *, referenced: bool) -> Any:
        if depth > MAX_JSON_DEPTH:
            raise _too_deep()
        if referenced:
            self._budget -= 1
            if self._budget < 0:
                raise ProtocolError(
                    f"references of a JSON body repeat more than {self._most} values, the limit "
                    f"{self._limit} is {self._most}; send it in parts",
                    limit=self._limit,
                )
        if isinstance(node, list):
            return [self._copy(item, depth + 1, referenced=referenced) for item in node]
        if not isinstance(node, dict):
            return node
        path = node.get("$ref")
        if isinstance(path, str) and len(node) == 1:
            return self._copy(self._target(path), depth + 1, referenced=True)
        return {
            key: self._copy(item, depth + 1, referenced=referenced)
            for key, item in node.items()
            if item is not None
        }

    def _target(self, path: str) -> Any:
        """Return the node at a path such as `$.table.name` or `$.list[0]`; a backslash escapes a
        character.
        """
        node = self._root
        position = 1
        # `$`, `..` and `@` alone name an ancestor, but no value of ours contains itself.
        while path.startswith("$") and (step := _PATH_STEP.match(path, position)):
            position = step.end()
            name = step[2] if step[1] is None else re.sub(r"\\(.)", r"\1", step[1], flags=re.DOTALL)
            try:
                node = node[int(name)] if isinstance(node, list) else node[name]
            except (LookupError, TypeError, ValueError):
                break
        else:
            if 1 < position == len(path):
                return node
        raise ProtocolError(f"a JSON body refers to {path[:80]!r}, where nothing stands")
