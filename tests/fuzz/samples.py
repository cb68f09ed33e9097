"""Make a sound value of any record of the protocol from its type, so that each has an input."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")

# Values that make a request of a broker meaningful, by the name of a field in lower case.
_TEXTS: Final = {
    "topic": "orders",
    "group": "billing",
    "subscription": "TagA || TagB",
    "expressiontype": "TAG",
    "properties": "TAGS\x01TagA\x02KEYS\x01k1 k2\x02",
    "defaulttopic": "TBW102",
    "brokeraddr": "10.0.0.2:10911",
    "brokername": "broker-0",
    "clustername": "DefaultCluster",
    "topicfiltertype": "SINGLE_TAG",
    "msgid": "0A000001000078BF0000000000000000",
    "clientid": "10.0.0.9@1",
}
_NUMBERS: Final = {
    "sysflag": 2,
    "maxmsgnums": 32,
    "readqueuenums": 4,
    "writequeuenums": 4,
    "perm": 6,
    "defaulttopicqueuenums": 4,
    "flag": 0,
    "offset": 0,
    "queueoffset": 0,
    "commitoffset": 0,
    "queueid": 0,
    "suspendtimeoutmillis": 100,
    "reconsumetimes": 0,
}


def sample(type_: type[T]) -> T:
    """Return a value of `type_`. Raises msgspec.ValidationError where no general value fits."""
    return msgspec.convert(_plain(inspect.type_info(type_), "", 0), type_, strict=False)


def _plain(info: inspect.Type, name: str, depth: int) -> Any:  # noqa: PLR0912, C901 - a row per type
    key = name.lower()
    match info:
        case inspect.BoolType():
            return key.startswith(("order", "read"))
        case inspect.IntType():
            return max(_NUMBERS.get(key, 1), info.ge if info.ge is not None else -(2**63))
        case inspect.FloatType():
            return 1.5
        case inspect.StrType():
            found = [text for part, text in _TEXTS.items() if part in key]
            return _TEXTS.get(key) or (found[0] if found else "text")
        case inspect.ListType() | inspect.SetType() | inspect.FrozenSetType():
            return [_plain(info.item_type, name, depth)] if depth < 4 else []
        case inspect.VarTupleType():
            return [_plain(info.item_type, name, depth)]
        case inspect.TupleType():
            return [_plain(item, name, depth) for item in info.item_types]
        case inspect.DictType():
            if depth > 4:
                return {}
            value = _plain(info.value_type, name.removesuffix("Table"), depth)
            return {_plain(info.key_type, name, depth): value}
        case inspect.StructType():
            return {
                field.encode_name: _plain(field.type, field.encode_name, depth + 1)
                for field in info.fields
                if depth < 4 or field.required
            }
        case inspect.UnionType():
            some = [one for one in info.types if not isinstance(one, inspect.NoneType)]
            return _plain(some[0], name, depth)
        case inspect.EnumType():
            return next(iter(info.cls)).value
        case inspect.AnyType():
            return {}
        case inspect.DataclassType():
            return {f.encode_name: _plain(f.type, f.encode_name, depth + 1) for f in info.fields}
        case _:
            return None
