"""SQL92 expressions: which messages they select, as in Java, and which expressions are refused,
with their place.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from tests.golden import sql92 as golden

from cometmq.errors import FilterExpressionError, IllegalArgumentError
from cometmq.filtering import sql92
from cometmq.filtering.sql92 import MAX_EXPRESSION_LENGTH, compile_sql
from cometmq.filtering.sql92_terms import MAX_SQL_DEPTH, MAX_TERMS

MESSAGES, CASES = golden.load()
LETTERS = {True: "T", False: "F", None: "N"}

# Java ignores what follows the end of an expression, so these mean less there than they say.
CUT_SHORT_BY_JAVA = {
    *("a = 05", "a = 00", "a = 0x10", "a = 5LL", "a LIKE 'x'", "a = 5 b", "a = 5)"),
    *("a + 5 = 6", "a-b = 5"),
}
# Java takes zero for a number too small for a double.
REFUSED_BY_JAVA_ONLY = {"a > 0.0"}


def refusal(expression: str) -> FilterExpressionError:
    with pytest.raises(FilterExpressionError) as caught:
        compile_sql(expression)
    return caught.value


def test_the_golden_file_is_of_these_cases() -> None:
    assert golden.MESSAGES == MESSAGES
    assert [case["expression"] for case in CASES] == golden.EXPRESSIONS


def test_java_selects_the_same() -> None:
    ours = {case["expression"]: selected(case["expression"]) for case in CASES}
    java = {case["expression"]: expected(case) for case in CASES}
    assert len(java) == len(CASES) > 250
    assert {case["expression"] for case in CASES if "error" in case} >= REFUSED_BY_JAVA_ONLY
    assert {key: (ours[key], java[key]) for key in java if ours[key] != java[key]} == {}


REFUSED = "refused"


def selected(expression: str) -> str:
    """Return a letter for what we say of each message, or that we refuse the expression."""
    try:
        condition = compile_sql(expression)
    except FilterExpressionError:
        return REFUSED
    if expression in REFUSED_BY_JAVA_ONLY:
        return "taken"
    return "".join(LETTERS[condition(message)] for message in MESSAGES)


def expected(case: dict[str, Any]) -> str:
    """Return what Java says of each message, or what we are to do with an expression where we differ."""
    if case["expression"] in REFUSED_BY_JAVA_ONLY:
        return "taken"
    if "error" in case or case["expression"] in CUT_SHORT_BY_JAVA:
        return REFUSED
    # A value that does not convert ends the evaluation: for us that is one more unknown.
    results: str = case["results"]
    return results.replace("E", "N")


TRUTH = {"T": "TRUE", "F": "FALSE", "N": "NULL"}


@pytest.mark.parametrize(
    ("operator", "table"),
    [
        ("AND", "TT=T TF=F TN=N FT=F FF=F FN=F NT=N NF=F NN=N"),
        ("OR", "TT=T TF=T TN=T FT=T FF=F FN=N NT=T NF=N NN=N"),
    ],
)
def test_logic_knows_three_values(operator: str, table: str) -> None:
    for row in table.split():
        left, right, expected = row[0], row[1], row[3]
        text = f"{TRUTH[left]} {operator} {TRUTH[right]}"
        assert LETTERS[compile_sql(text)({})] == expected, text
        # Unknown by a property that is not there, true and false by one that is.
        values = {"T": "a = '1'", "F": "a = '2'", "N": "b = '1'"}
        text = f"{values[left]} {operator} {values[right]}"
        assert LETTERS[compile_sql(text)({"a": "1"})] == expected, text


def test_not_knows_three_values() -> None:
    for operand, expected in (("TRUE", False), ("FALSE", True), ("NULL", None)):
        assert compile_sql(f"NOT {operand}")({}) is expected


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("a = 1 OR b = 1 AND c = 1", "a = 1 OR (b = 1 AND c = 1)"),
        ("a = 1 AND b = 1 OR c = 1", "(a = 1 AND b = 1) OR c = 1"),
        ("NOT (a = 1) AND b = 1", "(NOT (a = 1)) AND b = 1"),
        ("NOT a IS NULL", "(NOT a) IS NULL"),
        ("a > 0 = b > 0", "(a > 0) = (b > 0)"),
        ("a BETWEEN 0 AND 1 AND b = 1", "(a BETWEEN 0 AND 1) AND (b = 1)"),
        ("a = 1 = TRUE", "(a = 1) = TRUE"),
        ("- - a IS NULL", "(-(-a)) IS NULL"),
    ],
)
def test_precedence(expression: str, same: str) -> None:
    ours, theirs = compile_sql(expression), compile_sql(same)
    for a in (None, "0", "1", "x"):
        for b in (None, "0", "1"):
            for c in (None, "0", "1"):
                values = {"a": a, "b": b, "c": c}
                message = {name: text for name, text in values.items() if text is not None}
                assert ours(message) is theirs(message), message


@pytest.mark.parametrize(
    ("expression", "line", "column", "words"),
    [
        ("", 1, 1, "the expression ends, expected a property, a literal or ("),
        ("a >", 1, 4, "the expression ends, expected a property"),
        ("a > 5 AND\n  b ==  5", 2, 6, "write = for 'equal'"),
        ("a != 5", 1, 3, "write <> for 'not equal'"),
        ("a LIKE 'x%'", 1, 3, "use CONTAINS, STARTSWITH or ENDSWITH"),
        ('a = "x"', 1, 5, "strings stand in single quotes"),
        ("a = 'it's'", 1, 9, "a quote inside a string is written twice"),
        ("a = /* 5", 1, 5, "the comment that begins here does not end"),
        ("a IN (5)", 1, 7, "found '5', expected a string in single quotes"),
        ("a IN ('5'", 1, 10, "expected ) or ,"),
        ("a IS 5", 1, 6, "expected NOT or NULL"),
        ("(a = 5", 1, 7, "expected )"),
        ("a = 5)", 1, 6, "found ')'"),
        ("a = 5 b = 6", 1, 7, "found 'b', expected"),
        ("a = b - 5", 1, 7, "there is no arithmetic"),
        ("my-key = 5", 1, 3, "names have letters"),
        ("5", 1, 1, "a condition is expected here"),
        ("a = 5 AND 'x'", 1, 11, "a condition is expected here"),
        ("a = NULL", 1, 5, "use IS NULL"),
        ("a > 'x'", 1, 5, "use a number"),
        ("a = 1 OR NOT b > 5", 1, 10, "write NOT (a > 5)"),
        ("NOT a IN ('x')", 1, 1, "IN takes a property"),
        ("a BETWEEN 5 AND 1", 1, 11, "the smaller value comes first"),
        ("a = 9223372036854775808", 1, 5, "no int64"),
        ("a = 1E999", 1, 5, "out of a double's range"),
        ("a = 1E-999", 1, 5, "out of a double's range"),
    ],
)
def test_a_fault_is_named_with_its_place(
    expression: str, line: int, column: int, words: str
) -> None:
    error = refusal(expression)
    assert (error.line, error.column, error.code) == (line, column, 23)
    assert words in error.reason
    assert str(error) == f"line {line}, column {column}: {error.reason}"
    assert isinstance(error, IllegalArgumentError)


def test_a_property_alone_is_a_condition_that_never_holds() -> None:
    condition = compile_sql("a = 5 AND b")
    assert condition({"a": "5", "b": "true"}) is False
    assert condition({"a": "5"}) is None


def test_a_long_token_is_not_repeated_in_full() -> None:
    assert len(str(refusal(f"a = 5 {'b' * 10_000}"))) < 300


@pytest.mark.parametrize(
    ("expression", "limit"),
    [
        ("a = '" + "x" * MAX_EXPRESSION_LENGTH + "'", "MAX_EXPRESSION_LENGTH"),
        ("(" * MAX_SQL_DEPTH + "a = 1" + ")" * MAX_SQL_DEPTH, "MAX_SQL_DEPTH"),
        ("NOT " * MAX_SQL_DEPTH + "TRUE", "MAX_SQL_DEPTH"),
        ("-" + " -" * MAX_SQL_DEPTH + "5 = a", "MAX_SQL_DEPTH"),
        ("+" * MAX_SQL_DEPTH + "5 = a", "MAX_SQL_DEPTH"),
        ("a" + " = b" * MAX_SQL_DEPTH, "MAX_SQL_DEPTH"),
        ("a IS NULL" + " IS NULL" * MAX_SQL_DEPTH, "MAX_SQL_DEPTH"),
        (" OR ".join(["a"] * (MAX_TERMS + 1)), "MAX_TERMS"),
        ("a IN ('x'" + ", 'x'" * MAX_TERMS + ")", "MAX_TERMS"),
    ],
)
def test_a_limit_is_named(expression: str, limit: str) -> None:
    assert limit in refusal(expression).reason


def test_as_much_as_the_limits_allow() -> None:
    deep = "(" * (MAX_SQL_DEPTH - 2) + "a = 1" + ")" * (MAX_SQL_DEPTH - 2)
    assert compile_sql(deep)({"a": "1"}) is True
    wide = " OR ".join(f"a = {i}" for i in range(MAX_TERMS // 2))
    assert compile_sql(wide)({"a": str(MAX_TERMS // 2 - 1)}) is True
    listed = "a IN (" + ", ".join(f"'{i}'" for i in range(MAX_TERMS - 1)) + ")"
    assert compile_sql(listed)({"a": "1000"}) is True
    long = "a = '" + "x" * (MAX_EXPRESSION_LENGTH - 6) + "'"
    assert len(long) == MAX_EXPRESSION_LENGTH
    assert compile_sql(long)({"a": "x"}) is False


def test_an_expression_is_compiled_once() -> None:
    assert compile_sql("once = 'compiled'") is compile_sql("once = 'compiled'")
    first, second = refusal("once ="), refusal("once =")
    assert first is not second
    assert str(first) == str(second)


def test_a_value_that_does_not_convert_ends_the_evaluation() -> None:
    # As in Java: what stands before it may decide, what follows may not.
    late, early = compile_sql("b = 1 OR a > 5"), compile_sql("a > 5 OR b = 1")
    message = {"a": "much", "b": "1"}
    assert late(message) is True
    assert early(message) is None
    assert compile_sql("NOT (a > 5)")(message) is None


def test_long_values_are_read_in_linear_time() -> None:
    double = compile_sql("a > 5.5")
    for text in (
        "1" * 32_000 + "x",
        "." * 32_000,
        "1" * 16_000 + "e" + "1" * 16_000,
        "0x" + "f" * 32_000,
    ):
        assert double({"a": text}) in (None, True)
    whole = compile_sql("a > 5")
    assert whole({"a": "9" * 32_000}) is None
    assert whole({"a": "0" * 200 + "6"}) is True


def test_any_mapping_will_do() -> None:
    class Lazy(Mapping[str, str]):
        def __getitem__(self, name: str) -> str:
            if name != "a":
                raise KeyError(name)
            return "6"

        def __iter__(self) -> Any:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

    assert compile_sql("a > 5 AND b IS NULL")(Lazy()) is True


def test_threads_compile_side_by_side() -> None:
    outcomes: list[bool | None] = []

    def compile_some(thread: int) -> None:
        outcomes.extend(
            compile_sql(f"a = {thread * 1000 + i} OR b = 1")(
                {"a": "x", "b": "1"} if i % 2 else {"b": "1"}
            )
            for i in range(50)
        )

    threads = [threading.Thread(target=compile_some, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(True) == outcomes.count(None) == 100


def test_a_broker_starts_without_the_parser() -> None:
    code = (
        "import sys, cometmq.broker.server, cometmq.filtering.sql92; print('lark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_expression_of_a_megabyte_is_not_kept() -> None:
    """The compiler remembered 512 expressions with their faults, however long they were."""
    before = len(sql92.outcomes)
    for number in range(3):
        with pytest.raises(FilterExpressionError, match="MAX_EXPRESSION_LENGTH"):
            compile_sql(f"a = '{number}" + "x" * 1_000_000 + "'")
    assert len(sql92.outcomes) == before


@pytest.mark.parametrize(
    "expression",
    [
        " OR ".join(["a = 1"] * 500),
        "a IN (" + ",".join(f"'{number}'" for number in range(1_000)) + ")",
        " OR ".join(["a = 1"] * 500) + " OR",
        " OR ".join(["a = 1"] * 500) + " ?",
        "a BETWEEN 1 AND 2 AND " * 60 + "TRUE",
    ],
    ids=["or", "in", "cut", "no sign", "between"],
)
def test_a_long_expression_is_compiled_in_steps(expression: str) -> None:
    sql92.outcomes.clear()
    steps = sql92.compile_steps(expression)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome = end.value
            break
        count += 1
    assert count > 5
    # What is found afterwards is that.
    assert expression in sql92.outcomes
    if isinstance(outcome, FilterExpressionError):
        with pytest.raises(FilterExpressionError) as refused:
            compile_sql(expression)
        assert str(refused.value) == str(outcome)
    else:
        assert compile_sql(expression) is outcome


def test_the_parts_of_an_expression_are_counted_in_steps_before_it_is_refused() -> None:
    sql92.outcomes.clear()
    steps = sql92.compile_steps("(" * sql92.MAX_EXPRESSION_LENGTH)
    for _ in range(20):
        assert next(steps) is None
    with suppress(StopIteration):
        while True:
            next(steps)
    with pytest.raises(FilterExpressionError, match=str(sql92.MAX_EXPRESSION_LENGTH)) as refused:
        compile_sql("(" * sql92.MAX_EXPRESSION_LENGTH)
    assert refused.value.limit == "MAX_PARTS"


def test_the_expression_that_was_asked_for_last_is_forgotten_last() -> None:
    sql92.outcomes.clear()
    first = compile_sql("a = 0")
    for number in range(1, 600):
        compile_sql(f"a = {number}")
        assert compile_sql("a = 0") is first
    assert len(sql92.outcomes) == 512
    assert "a = 1" not in sql92.outcomes
