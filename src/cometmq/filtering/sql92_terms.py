"""Make the terms of SQL92 expressions and refuse those that may not be combined.

Java: PropertyExpression, ConstantExpression, UnaryExpression, and the checks in
ComparisonExpression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from cometmq.errors import FilterExpressionError

Properties = Mapping[str, str]
# Returns a value of the type that `Term.type` says, or None. Raises NotComparableError.
Evaluation = Callable[[Properties], Any]
Condition = Callable[[Properties], "bool | None"]

MAX_SQL_DEPTH: Final = 64
MAX_TERMS: Final = 1024


class ValueType(Enum):
    """Is the type of all values of a term, known without a message. Properties are texts."""

    TEXT = "text"
    INT = "int32"
    LONG = "int64"
    DOUBLE = "double"
    TRUTH = "truth value"
    NOTHING = "NULL"


NUMBERS: Final = frozenset({ValueType.INT, ValueType.LONG, ValueType.DOUBLE})


@dataclass(frozen=True, slots=True)
class Term:
    """Is a compiled part of an expression.

    `depth` counts the levels of nesting down from and including the term, `size` the properties and
    literals in it. `name` is set if the term is a property. `fixed` says that the value is `value`
    for every message, `literal` that the expression has it as a literal (`-5` is none: Java refuses
    fewer uses of it). `logical` terms can serve as conditions.
    """

    type: ValueType
    evaluate: Evaluation
    line: int
    column: int
    depth: int = 1
    size: int = 1
    name: str | None = None
    value: Any = None
    fixed: bool = False
    literal: bool = False
    logical: bool = False

    def __post_init__(self) -> None:
        if self.depth > MAX_SQL_DEPTH:
            raise self._beyond(f"{self.depth} levels of nesting", "MAX_SQL_DEPTH", MAX_SQL_DEPTH)
        if self.size > MAX_TERMS:
            raise self._beyond(f"{self.size} properties and literals", "MAX_TERMS", MAX_TERMS)

    def _beyond(self, what: str, name: str, limit: int) -> FilterExpressionError:
        return FilterExpressionError(
            f"{what} in an expression, the limit {name} is {limit}; select less here and the rest in "
            "the listener",
            self.line,
            self.column,
            limit=name,
        )

    def error(self, reason: str) -> FilterExpressionError:
        """Return the error that refuses this term, with its position."""
        return FilterExpressionError(reason, self.line, self.column)


def property_term(name: str, line: int, column: int) -> Term:
    return Term(ValueType.TEXT, lambda p: p.get(name), line, column, name=name)


def literal_term(
    value_type: ValueType, value: str | float | bool | None, line: int, column: int
) -> Term:
    logical = value_type in (ValueType.TRUTH, ValueType.NOTHING)
    return Term(
        value_type,
        lambda _: value,
        line,
        column,
        value=value,
        fixed=True,
        literal=True,
        logical=logical,
    )


def condition_term(condition: Condition, *parts: Term, size: int = 0) -> Term:
    """Make the term of a condition on `parts` and `size` more literals.

    Its position is that of the first part.
    """
    return Term(
        ValueType.TRUTH,
        condition,
        parts[0].line,
        parts[0].column,
        depth=1 + max([part.depth for part in parts]),
        size=size + sum([part.size for part in parts]),
        logical=True,
    )


def negative_term(operand: Term, line: int, column: int) -> Term:
    """Make the term for minus `operand`.

    If the operand is no number, the term is NULL, but its evaluation raises what the operand's
    does.
    """
    depth, size = operand.depth + 1, operand.size
    if operand.type in NUMBERS:
        value = -operand.value
        return Term(
            operand.type, lambda _: value, line, column, depth, size, value=value, fixed=True
        )
    evaluate = operand.evaluate

    def nothing(properties: Properties) -> None:
        evaluate(properties)

    return Term(ValueType.NOTHING, nothing, line, column, depth, size)


def as_condition(term: Term) -> Condition:
    """Return the term as a condition. A property alone is never true: its value is a text."""
    if term.logical:
        return term.evaluate
    if term.name is None:
        raise term.error("a condition is expected here, such as a comparison, not a value")
    name = term.name
    return lambda p: None if p.get(name) is None else False


def check_ordered(term: Term) -> None:
    """Refuse conditions and literals that are no numbers: they cannot be compared by order."""
    if term.logical and not term.literal:
        raise term.error(
            "a condition cannot be compared with <, <=, > or >=; NOT binds tighter than a "
            "comparison: write NOT (a > 5)"
        )
    if term.literal and term.type not in NUMBERS:
        raise term.error(
            f"a {term.type.value} literal cannot be compared with <, <=, >, >= or BETWEEN; use a "
            "number"
        )


def check_equal(left: Term, right: Term) -> None:
    for term in (left, right):
        if term.literal and term.type is ValueType.NOTHING:
            raise term.error("nothing equals NULL; use IS NULL or IS NOT NULL")
    if left.literal and right.literal and left.logical and not right.logical:
        raise left.error(f"a truth value cannot equal a {right.type.value} literal")


def check_range(low: Term, high: Term) -> None:
    if low.literal and high.literal and high.value < low.value:
        raise low.error(
            f"BETWEEN {low.value} AND {high.value} is empty; the smaller value comes first"
        )


def check_listed(term: Term) -> str:
    """Return the name of the property in front of IN; refuse a term that is no property."""
    if term.name is None:
        raise term.error("IN takes a property on its left; write NOT (a IN ('x')) to negate it")
    return term.name
