"""Build comparisons and logic of SQL92 expressions in three values: True, False, None (unknown).

Each function returns a closure. Where one side is a property and the other is fixed, the closure
reads the property itself and calls no operands. Java: ComparisonExpression, LogicExpression,
UnaryInExpression. A value that is not of the type that it is compared with ends the evaluation of
the whole expression (NotComparableError), unless an earlier operand of OR or AND has decided the
result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from cometmq.filtering.metering import MeteredProperties, contains
from cometmq.filtering.sql92_terms import Condition, Properties, Term, ValueType
from cometmq.filtering.sql92_values import (
    NotComparableError,
    compare_doubles,
    to_double,
    to_int32,
    to_int64,
    to_truth,
)

_TEXT, _TRUTH, _DOUBLE = ValueType.TEXT, ValueType.TRUTH, ValueType.DOUBLE

_FROM_TEXT: Final[dict[ValueType, Callable[[str], Any]]] = {
    ValueType.TEXT: str,
    ValueType.INT: to_int32,
    ValueType.LONG: to_int64,
    ValueType.DOUBLE: to_double,
    ValueType.TRUTH: to_truth,
}
ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


# Logic


def all_of(conditions: Sequence[Condition]) -> Condition:
    def conjunction(properties: Properties) -> bool | None:
        result: bool | None = True
        for condition in conditions:
            value = condition(properties)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return conjunction


def any_of(conditions: Sequence[Condition]) -> Condition:
    def disjunction(properties: Properties) -> bool | None:
        result: bool | None = False
        for condition in conditions:
            value = condition(properties)
            if value:
                return True
            if value is None:
                result = None
        return result

    return disjunction


def negation(condition: Condition) -> Condition:
    def negated(properties: Properties) -> bool | None:
        value = condition(properties)
        return None if value is None else not value

    return negated


# Equality


def equal(left: Term, right: Term) -> Condition:
    """Return the condition `left = right`.

    It is True when both sides are NULL, unknown when only the left one is, and False when only the
    right one is.
    """
    if left.name is not None and right.fixed and right.type is not ValueType.NOTHING:
        return _property_equals(left.name, right)
    same = _sameness(left.type, right.type)
    left_of, right_of = left.evaluate, right.evaluate

    def equals(properties: Properties) -> bool | None:
        left_value, right_value = left_of(properties), right_of(properties)
        if left_value is None:
            return True if right_value is None else None
        return right_value is not None and same(left_value, right_value)

    return equals


def _property_equals(name: str, right: Term) -> Condition:
    wanted = right.value
    if right.type is _TEXT:

        def equals_text(properties: Properties) -> bool | None:
            text = properties.get(name)
            return None if text is None else text == wanted

        return equals_text
    if right.type is _DOUBLE:
        return _property_test(name, to_double, lambda value: _same_doubles(value, wanted))
    return _property_test(name, _FROM_TEXT[right.type], lambda value: value == wanted)


def _sameness(left: ValueType, right: ValueType) -> Callable[[Any, Any], bool]:
    """Return the function that compares two values of these types, neither of them NULL."""
    if left is _DOUBLE and right is _DOUBLE:
        return _same_doubles
    if left is right:
        return operator.eq
    if left is _TRUTH and right is _TEXT:
        return _incomparable
    if left is _TEXT:
        convert = _FROM_TEXT.get(right, str)
        same = _same_doubles if right is _DOUBLE else operator.eq
        return lambda text, value: same(convert(text), value)
    if right is _TEXT:
        convert = _FROM_TEXT.get(left, str)
        same = _same_doubles if left is _DOUBLE else operator.eq
        return lambda value, text: same(value, convert(text))
    if _TRUTH in (left, right):
        return lambda _left, _right: False
    if _DOUBLE in (left, right):
        return lambda a, b: _same_doubles(float(a), float(b))
    return operator.eq


def _same_doubles(left: float, right: float) -> bool:
    return compare_doubles(left, right) == 0


def _incomparable(_left: object, _right: object) -> bool:
    raise NotComparableError


def is_null(term: Term) -> Condition:
    evaluate = term.evaluate
    return lambda properties: evaluate(properties) is None


# Order


def ordered(left: Term, order: Callable[[Any, Any], bool], right: Term) -> Condition:
    """Return the condition that `left` and `right` are in `order`; NULL makes it unknown."""
    if left.name is not None and right.fixed:
        return _property_in_order(left.name, order, right)
    types = (left.type, right.type)
    as_doubles = types == (_TEXT, _TEXT) or _DOUBLE in types
    if as_doubles:
        convert, compare = to_double, _by_doubles(order)
    else:
        convert, compare = (to_int64 if ValueType.LONG in types else to_int32), order
    other = float if as_doubles else int
    left_of, right_of = left.evaluate, right.evaluate

    def in_order(properties: Properties) -> bool | None:
        left_value = left_of(properties)
        if left_value is None:
            return None
        right_value = right_of(properties)
        if right_value is None:
            return None
        return compare(
            (convert if left.type is _TEXT else other)(left_value),
            (convert if right.type is _TEXT else other)(right_value),
        )

    return in_order


def _property_in_order(name: str, order: Callable[[Any, Any], bool], right: Term) -> Condition:
    limit = right.value
    compare = _by_doubles(order) if right.type is _DOUBLE else order
    return _property_test(name, _FROM_TEXT[right.type], lambda value: compare(value, limit))


def _by_doubles(order: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda left, right: order(compare_doubles(left, right), 0)


def _property_test(
    name: str, convert: Callable[[str], Any], test: Callable[[Any], bool]
) -> Condition:
    def passes(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else test(convert(text))

    return passes


# Texts


def listed(name: str, texts: Iterable[str], *, negated: bool) -> Condition:
    """Return the condition `name IN (…)`."""
    wanted = frozenset(texts)

    def is_listed(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in wanted) is not negated

    return is_listed


def text_test(
    term: Term, test: Callable[[str, str], bool], searched: str, *, negated: bool
) -> Condition:
    """Return the condition of CONTAINS, STARTSWITH or ENDSWITH.

    Negated or not, it is False if the term is no text or NULL, or if `searched` is empty.
    """
    if not searched:
        return lambda _: False
    evaluate, is_text = term.evaluate, term.type is _TEXT
    if test is contains and is_text:

        def contains_text(properties: Properties) -> bool:
            text = evaluate(properties)
            if text is None:
                return False
            if isinstance(properties, MeteredProperties):
                return properties.contains(text, searched) is not negated
            return contains(text, searched) is not negated

        return contains_text

    def has_text(properties: Properties) -> bool:
        text = evaluate(properties)
        return is_text and text is not None and test(text, searched) is not negated

    return has_text
