"""Find the meaning of each key of a pipeline's file, in the docstring of the class that the file is
read into.

The docstring describes one or more keys a line: `path: the archive's directory.` A line that is
indented further continues the one before.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

_NAMES: Final = {
    bool: "true or false",
    float: "number",
    int: "whole number",
    str: "text",
}
_KEYS: Final = r"[a-z][a-z0-9_]*(?:, [a-z][a-z0-9_]*)*"


class KeyHelp(NamedTuple):
    """A key of a table. `default` is written as in TOML; it is empty for an optional key without a
    default, and None for a required key.
    """

    key: str
    type: str
    default: str | None
    meaning: str


def keys_of_table(kind: type[msgspec.Struct]) -> list[KeyHelp]:
    """Return every key of a table's class, in the order of the class."""
    meanings = _meanings(kind)
    hints = get_type_hints(kind)
    return [
        KeyHelp(name, _type_name(hints[name]), _default(default), meanings.get(name, ""))
        for name, default in _defaults(kind)
    ]


def _defaults(kind: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(kind):
        if field.default_factory is not msgspec.NODEFAULT:
            yield field.name, field.default_factory()
        else:
            yield field.name, field.default


def _default(value: Any) -> str | None:
    if value is msgspec.NODEFAULT:
        return None
    if value is None or value in ("", [], {}, ()):
        return ""
    return msgspec.json.encode(value).decode()


def _type_name(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        names = [_type_name(part) for part in get_args(hint) if part is not types.NoneType]
        return " or ".join(dict.fromkeys(names))
    if origin is Literal:
        return " or ".join(f'"{word}"' for word in get_args(hint))
    if origin is not None and issubclass(origin, Mapping):
        return "table"
    if origin is not None and issubclass(origin, Sequence):
        return "list of tables" if _is_struct(get_args(hint)[0]) else "list of texts"
    if _is_struct(hint):
        return "table"
    return _NAMES.get(hint, "time")


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _meanings(kind: type) -> dict[str, str]:
    """Return the meanings by key, from the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        if "__doc__" not in vars(cls) or not issubclass(cls, msgspec.Struct):
            continue
        fields = set(cls.__struct_fields__)
        text = re.sub(r"\n[ \t]+", " ", inspect.cleandoc(cls.__doc__ or ""))
        for line in text.split("\n"):
            found.update(_of_line(line, fields))
    return found


def _of_line(line: str, fields: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a line with their meanings: `id: names it. state: remembers it.` has
    two.
    """
    starts = [
        match
        for match in re.finditer(rf"(?:^|(?<=[.,;] )|(?<=or ))({_KEYS}): ", line)
        if fields.issuperset(match[1].split(", "))
    ]
    ends = [match.start() for match in starts[1:]] + [len(line)]
    for match, end in zip(starts, ends, strict=False):  # a line without a key has an end, too
        meaning = line[match.end() : end].strip()
        meaning = meaning.removesuffix(", or").rstrip(".;,")
        for key in match[1].split(", "):
            yield key, meaning
