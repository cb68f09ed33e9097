"""Property values are text; here they become what a literal is, by Java's rules.

Java: Integer.valueOf, Long.valueOf, Double.valueOf, Double.compareTo.
"""

from __future__ import annotations

import math
import re
from typing import Final

INT32_LIMIT: Final = 1 << 31
INT64_LIMIT: Final = 1 << 63
# Longer texts are nobody's numbers, and reading them costs more the longer they are: an int the
# square of its length (and beyond 4,300 digits a ValueError), for each term of an expression anew.
_MAX_NUMBER_LENGTH: Final = 256

_DECIMAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEXADECIMAL: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
# What String.trim removes: every character up to the blank.
_TRIMMED: Final = "".join(map(chr, range(33)))


class NotComparableError(Exception):
    """A property's value is not of the type that an expression compares it with.

    Never leaves a compiled expression: the message then does not match.
    """


def to_int32(text: str) -> int:
    value = _to_integer(text)
    if -INT32_LIMIT <= value < INT32_LIMIT:
        return value
    raise NotComparableError


def to_int64(text: str) -> int:
    value = _to_integer(text)
    if -INT64_LIMIT <= value < INT64_LIMIT:
        return value
    raise NotComparableError


def _to_integer(text: str) -> int:
    # Only digits and one sign: int() would take blanks and underscores too. As in Java, digits of
    # any script count, unless they lie beyond the basic plane.
    if len(text) > _MAX_NUMBER_LENGTH:
        raise NotComparableError
    digits = text if text.isdecimal() else text[1:] if text[:1] in ("+", "-") else ""
    if not digits.isdecimal():
        raise NotComparableError
    if not text.isascii() and max(text) > "\uffff":
        raise NotComparableError
    return int(text)


def to_double(text: str) -> float:
    if len(text) > _MAX_NUMBER_LENGTH:
        raise NotComparableError
    text = text.strip(_TRIMMED)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)
    hexadecimal = _HEXADECIMAL.fullmatch(text)
    if hexadecimal is None:
        raise NotComparableError
    try:
        return float.fromhex(hexadecimal[1])
    except OverflowError:
        return math.copysign(math.inf, -1.0 if text[0] == "-" else 1.0)


def to_truth(text: str) -> bool:
    return len(text) == len("true") and text.lower() == "true"


def compare_doubles(left: float, right: float) -> int:
    """Less than, equal to or greater than 0: -0.0 comes before 0.0, NaN after everything."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right and left != 0.0:
        return 0
    return _rank(left) - _rank(right)


def _rank(value: float) -> int:
    if math.isnan(value):
        return 1
    return -1 if math.copysign(1.0, value) < 0 else 0
