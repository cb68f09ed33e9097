"""Convert property values, which are texts, to the types of literals by Java's rules.

Java: Integer.valueOf, Long.valueOf, Double.valueOf, Double.compareTo.
"""

from __future__ import annotations

import math
import re
from typing import Final

INT32_LIMIT: Final = 1 << 31
INT64_LIMIT: Final = 1 << 63
# Nobody's numbers are longer, and long ones are expensive: reading an int takes time that grows
# with the square of its length (and raises ValueError beyond 4,300 digits), for each term of an
# expression again.
_MAX_NUMBER_LENGTH: Final = 256

_DECIMAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEXADECIMAL: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
# Java's String.trim removes every character up to the blank.
_TRIMMED: Final = "".join(map(chr, range(33)))


class NotComparableError(Exception):
    """A property's value is not of the type that an expression compares it with.

    A compiled expression never raises it; its result is unknown then, and the message does not
    match.
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
    # Only digits and one sign are allowed: int() would take blanks and underscores too. As in Java,
    # digits of any script count, unless they lie beyond the basic plane.
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
    """Return a number less than, equal to or greater than 0, as `left` compares with `right`.

    -0.0 comes before 0.0, and NaN comes after everything.
    """
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
