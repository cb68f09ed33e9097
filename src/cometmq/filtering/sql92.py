"""Compile RocketMQ's SQL92, which selects messages by properties: `a > 5 AND b IS NOT NULL`.

Java: SqlFilter, SelectorParser. Grammar and precedence are those of Java 5.3.3, surprises included
(see `sql92.lark`); LIKE is not part of the language. CometMQ refuses text after the end of the
expression, which Java ignores. CometMQ accepts the literal 0.0, which Java refuses.
"""

from __future__ import annotations

import functools
import re
import string
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import FilterExpressionError
from cometmq.filtering import sql92_conditions as conditions
from cometmq.filtering.metering import TERM_COST, MeteredProperties
from cometmq.filtering.sql92_terms import (
    MAX_TERMS,
    Condition,
    Properties,
    Term,
    ValueType,
    as_condition,
    check_equal,
    check_listed,
    check_ordered,
    check_range,
    condition_term,
    literal_term,
    negative_term,
    property_term,
)
from cometmq.filtering.sql92_values import INT32_LIMIT, INT64_LIMIT, NotComparableError

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput

MAX_EXPRESSION_LENGTH: Final = 16_384
MAX_PARTS: Final = 4 * MAX_TERMS
_CACHED_EXPRESSIONS: Final = 512
# Properties and literals of all cached expressions; 30 MB.
_CACHED_TERMS: Final = 50_000
# About how many bytes of memory one of them takes.
TERM_BYTES: Final = 600
# An expression of so many characters is compiled within some milliseconds, whatever they are.
QUICK_LENGTH: Final = 512
# So many parts are parsed in a step, which takes a third of a millisecond, and so many counted.
_PARTS_AT_ONCE: Final = 8
_COUNTED_AT_ONCE: Final = 512
_INT64_DIGITS: Final = len(str(INT64_LIMIT))

# Matches comments, strings, words, numbers and signs. It never backtracks, even where the end of a
# comment or string is missing; the parser finds such errors.
_PART: Final = re.compile(
    r"(?:--[^\n\r]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?|\s)++|('(?:[^']|'')*+'?|(?:[\d.]++[eE][+-])?[\w.$]++|[^\w.$'\s])"
)
_TERM_STARTS: Final = frozenset("'_$." + string.ascii_letters + string.digits)

_KEYWORDS: Final = {
    word: f"_{word}" if word in ("AND", "OR") else word
    for word in (
        *("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    )
}
_READABLE: Final = {
    "_AND": "AND",
    "_OR": "OR",
    "EQUAL": "=",
    "NOT_EQUAL": "<>",
    "ORDER": "a comparison",
    "LEFT": "(",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": ",",
    "STRING": "a string in single quotes",
    "$END": "the end",
}
# For what people write who know another SQL.
_HINTS: Final = {
    "LIKE": "LIKE is not part of RocketMQ's SQL92; use CONTAINS, STARTSWITH or ENDSWITH",
    **dict.fromkeys("+-", "there is no arithmetic, and names have letters, digits, _ and $ only"),
    "!": "write <> for 'not equal'",
    "==": "write = for 'equal'",
    "'": "the string that begins here does not end",
    '"': "strings stand in single quotes",
    "/": "the comment that begins here does not end",
}


class SqlCondition:
    """Is a compiled expression of `size` properties and literals. Call it with a message's
    properties.

    A call with MeteredProperties charges their budget and raises OutOfWorkError when that is spent.
    """

    __slots__ = ("_cost", "_evaluate", "size")

    def __init__(self, evaluate: Condition, size: int) -> None:
        self._evaluate = evaluate
        self._cost = size * TERM_COST
        self.size = size

    def __call__(self, properties: Properties) -> bool | None:
        if isinstance(properties, MeteredProperties) and not properties.goes_on:
            properties.budget.charge(self._cost)
        try:
            return self._evaluate(properties)
        except NotComparableError:
            return None


def compile_sql(expression: str) -> SqlCondition:
    """Compile an expression into a function of a message's properties, which are given by name.

    The function returns True for a message that is selected, False for any other, and None for
    unknown: a property is missing, or not of the type that it is compared with. The expressions
    compiled last are cached. For any thread. Raises FilterExpressionError with the position of the
    fault, or the limit that the expression exceeds.
    """
    outcome = outcomes.get(expression)
    if outcome is None:
        outcome = _at_once(_compile_and_keep(expression))
    if isinstance(outcome, FilterExpressionError):
        # Each caller gets an error of its own: a shared one would collect all their tracebacks.
        raise FilterExpressionError(
            outcome.reason, outcome.line, outcome.column, limit=outcome.limit
        )
    return outcome


Outcome = SqlCondition | FilterExpressionError


class Outcomes:
    """Remembers the expressions that were compiled last, with their conditions or errors. For any
    thread.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Outcome] = {}
        self._terms = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, expression: str) -> bool:
        return expression in self._kept

    def get(self, expression: str) -> Outcome | None:
        with self._lock:
            outcome = self._kept.pop(expression, None)
            if outcome is not None:
                self._kept[expression] = outcome
            return outcome

    def put(self, expression: str, outcome: Outcome) -> None:
        """Remember an expression, and forget the least recently used one."""
        if len(expression) > MAX_EXPRESSION_LENGTH:  # others may send megabytes
            return
        with self._lock:
            self._drop(expression)
            self._terms += _terms_of(outcome)
            while len(self._kept) >= _CACHED_EXPRESSIONS or (
                self._kept and self._terms > _CACHED_TERMS
            ):
                self._drop(next(iter(self._kept)))
            self._kept[expression] = outcome

    def _drop(self, expression: str) -> None:
        known = self._kept.pop(expression, None)
        if known is not None:
            self._terms -= _terms_of(known)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._terms = 0


def _terms_of(outcome: Outcome) -> int:
    return outcome.size if isinstance(outcome, SqlCondition) else 1


outcomes: Final = Outcomes()


def compile_steps(expression: str) -> Generator[None, None, Outcome]:
    """Compile an expression in steps, so that a server's loop can serve others in between: a long one
    takes a tenth of a second.

    Returns the condition, or the error; `compile_sql` then finds it as long as it is remembered.
    """
    outcome = outcomes.get(expression)
    if outcome is None:
        outcome = yield from _compile_and_keep(expression)
    return outcome


def _compile_and_keep(expression: str) -> Generator[None, None, Outcome]:
    outcome: Outcome
    try:
        outcome = yield from _compile(expression)
    except FilterExpressionError as error:
        outcome = error.with_traceback(None)
    outcomes.put(expression, outcome)
    return outcome


def _at_once(steps: Generator[None, None, Outcome]) -> Outcome:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def prepare() -> None:
    """Load the parser. It takes some tenths of a second, so a server does it beside its loop."""
    _parser()


def _check_length(expression: str) -> None:
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise FilterExpressionError(
            f"the expression has {len(expression)} characters, the limit MAX_EXPRESSION_LENGTH is "
            f"{MAX_EXPRESSION_LENGTH}; select less here and the rest in the listener",
            1,
            1,
            limit="MAX_EXPRESSION_LENGTH",
        )


def _compile(expression: str) -> Generator[None, None, SqlCondition]:
    _check_length(expression)
    yield from _check_size(expression)
    from lark.exceptions import UnexpectedInput

    parser = _parser().parse_interactive(expression)
    token: Token | None = None
    try:
        for number, part in enumerate(parser.iter_parse()):
            token = part
            if number % _PARTS_AT_ONCE == _PARTS_AT_ONCE - 1:
                yield
        term: Any = parser.feed_eof(token)  # type: ignore[no-untyped-call]  # it is untyped
    except UnexpectedInput as error:
        error.interactive_parser = parser  # which knows what would have fitted
        raise _syntax_error(expression, error) from None
    assert isinstance(term, Term)
    return SqlCondition(as_condition(term), term.size)


def _check_size(expression: str) -> Iterator[None]:
    """Refuse an expression that has more parts than the parser may take, before it is parsed.

    The parser needs some tens of microseconds for each part, a hundred times as long as this
    count.
    """
    parts = terms = 0
    for found in _PART.finditer(expression):
        part = found[1]
        if not part:
            continue
        parts += 1
        terms += part[0] in _TERM_STARTS and part.upper() not in _KEYWORDS
        if parts % _COUNTED_AT_ONCE == 0:
            yield
    for what, count, name, limit in (
        ("properties and literals", terms, "MAX_TERMS", MAX_TERMS),
        ("parts", parts, "MAX_PARTS", MAX_PARTS),
    ):
        if count > limit:
            raise FilterExpressionError(
                f"{count} {what} in an expression, the limit {name} is {limit}; select less here and "
                "the rest in the listener",
                1,
                1,
                limit=name,
            )


@functools.cache
def _parser() -> Lark:
    # Imported at the first expression: the import takes longer than the rest of a broker's start.
    from lark import Lark, Token

    def keyword(token: Token) -> Token:
        word = _KEYWORDS.get(token.upper())
        return token if word is None else Token.new_borrow_pos(word, token, token)

    grammar = resources.files(__package__).joinpath("sql92.lark").read_text()
    return Lark(
        grammar,
        parser="lalr",
        lexer="basic",
        transformer=Builder(),
        lexer_callbacks={"NAME": keyword},
    )


class Builder:
    """Turns the parsed rules of `sql92.lark` into terms, from the innermost outward.

    Each method is named after a rule. The builder keeps no state.
    """

    # Values

    def property(self, parts: Sequence[Token]) -> Term:
        return property_term(str(parts[0]), *_place(parts[0]))

    def text(self, parts: Sequence[Token]) -> Term:
        return literal_term(ValueType.TEXT, _unquoted(parts[0]), *_place(parts[0]))

    def integer(self, parts: Sequence[Token]) -> Term:
        # The grammar allows no leading zeros, so more than 19 digits are always too large. They are
        # not converted: int() raises ValueError beyond 4,300 digits.
        digits = parts[0].rstrip("lL")
        if len(digits) > _INT64_DIGITS or (value := int(digits)) >= INT64_LIMIT:
            raise FilterExpressionError(
                f"{_shortened(parts[0])} is no int64, which ends at {INT64_LIMIT - 1}",
                *_place(parts[0]),
            )
        value_type = ValueType.INT if value < INT32_LIMIT else ValueType.LONG
        return literal_term(value_type, value, *_place(parts[0]))

    def double(self, parts: Sequence[Token]) -> Term:
        value = float(parts[0])
        mantissa = parts[0].lower().partition("e")[0]
        if value == float("inf") or (value == 0 and mantissa.strip("0.")):
            raise FilterExpressionError(f"{parts[0]} is out of a double's range", *_place(parts[0]))
        return literal_term(ValueType.DOUBLE, value, *_place(parts[0]))

    def truth(self, parts: Sequence[Token]) -> Term:
        return literal_term(ValueType.TRUTH, True, *_place(parts[0]))

    def falsehood(self, parts: Sequence[Token]) -> Term:
        return literal_term(ValueType.TRUTH, False, *_place(parts[0]))

    def nothing(self, parts: Sequence[Token]) -> Term:
        return literal_term(ValueType.NOTHING, None, *_place(parts[0]))

    def group(self, parts: Sequence[Any]) -> Term:
        return _deeper(parts[1])

    # Operands with an operator in front

    def plus(self, parts: Sequence[Term]) -> Term:
        return _deeper(parts[0])

    def negative(self, parts: Sequence[Any]) -> Term:
        return negative_term(parts[1], *_place(parts[0]))

    def negation(self, parts: Sequence[Any]) -> Term:
        negated = condition_term(conditions.negation(as_condition(parts[1])), parts[1])
        line, column = _place(parts[0])
        return replace(negated, line=line, column=column)

    # Comparisons

    def order(self, parts: Sequence[Any]) -> Term:
        left, order, right = parts
        return _ordered(left, order, right)

    def between(self, parts: Sequence[Any]) -> Term:
        value, _, low, high = parts
        checked = _ordered(value, ">=", low), _ordered(value, "<=", high)
        check_range(low, high)
        return _joined(conditions.all_of, checked)

    def not_between(self, parts: Sequence[Any]) -> Term:
        value, _, _, low, high = parts
        return _joined(conditions.any_of, (_ordered(value, "<", low), _ordered(value, ">", high)))

    def contained_in(self, parts: Sequence[Any]) -> Term:
        return _listed(parts[0], parts[2:], negated=False)

    def not_contained_in(self, parts: Sequence[Any]) -> Term:
        return _listed(parts[0], parts[3:], negated=True)

    def has_text(self, parts: Sequence[Any]) -> Term:
        term, word, text = parts
        return _text_test(term, word, text, negated=False)

    def has_not_text(self, parts: Sequence[Any]) -> Term:
        term, _, word, text = parts
        return _text_test(term, word, text, negated=True)

    def equal(self, parts: Sequence[Any]) -> Term:
        left, _, right = parts
        check_equal(left, right)
        return condition_term(conditions.equal(left, right), left, right)

    def not_equal(self, parts: Sequence[Any]) -> Term:
        left, _, right = parts
        check_equal(left, right)
        return condition_term(conditions.negation(conditions.equal(left, right)), left, right)

    def is_null(self, parts: Sequence[Any]) -> Term:
        return condition_term(conditions.is_null(parts[0]), parts[0])

    def is_not_null(self, parts: Sequence[Any]) -> Term:
        return condition_term(conditions.negation(conditions.is_null(parts[0])), parts[0])

    # Logic

    def conjunction(self, parts: Sequence[Term]) -> Term:
        return _joined(conditions.all_of, parts)

    def disjunction(self, parts: Sequence[Term]) -> Term:
        return _joined(conditions.any_of, parts)


def _place(token: Token) -> tuple[int, int]:
    assert token.line is not None
    assert token.column is not None
    return token.line, token.column


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _deeper(term: Term) -> Term:
    """Return the same term one level deeper: parentheses and `+` add to the depth only."""
    return replace(term, depth=term.depth + 1)


def _ordered(left: Term, order: str, right: Term) -> Term:
    check_ordered(left)
    check_ordered(right)
    return condition_term(conditions.ordered(left, conditions.ORDERS[order], right), left, right)


def _listed(term: Term, texts: Sequence[Token], *, negated: bool) -> Term:
    name = check_listed(term)
    condition = conditions.listed(name, map(_unquoted, texts), negated=negated)
    return condition_term(condition, term, size=len(texts))


def _text_test(term: Term, word: Token, text: Token, *, negated: bool) -> Term:
    test = conditions.TEXT_TESTS[word.upper()]
    condition = conditions.text_test(term, test, _unquoted(text), negated=negated)
    return condition_term(condition, term, size=1)


def _joined(join: Callable[[Sequence[Condition]], Condition], parts: Sequence[Term]) -> Term:
    return condition_term(join([as_condition(part) for part in parts]), *parts)


# Errors


def _syntax_error(expression: str, error: UnexpectedInput) -> FilterExpressionError:
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    if isinstance(error, UnexpectedCharacters):
        character = expression[error.pos_in_stream or 0]
        reason = _HINTS.get(character, f"the character {character!r} has no meaning here")
        return FilterExpressionError(reason, error.line, error.column)
    assert isinstance(error, UnexpectedToken)
    found, line, column = error.token, error.line, error.column
    if found.type == "$END":
        lines = expression.split("\n")
        line, column = len(lines), len(lines[-1]) + 1
    what = "the expression ends" if found.type == "$END" else f"found {_shortened(found)}"
    expected = _expected(error.accepts)
    before = expression[max((found.start_pos or 0) - 1, 0) : found.start_pos]
    hint = _HINTS.get(before + found) or _HINTS.get(found.upper())
    if hint is None and before == "'":
        hint = "a quote inside a string is written twice"
    reason = f"{what}, expected {expected}" + (f"; {hint}" if hint else "")
    return FilterExpressionError(reason, line, column)


def _shortened(token: str) -> str:
    return repr(str(token) if len(token) <= 32 else f"{token[:32]}…")


def _expected(accepted: set[str]) -> str:
    """Name the tokens that would fit, in words."""
    if {"NAME", "STRING"} <= accepted:
        return "a property, a literal or (" + (" or NOT" if "NOT" in accepted else "")
    names = sorted(_READABLE.get(name, name) for name in accepted)
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
