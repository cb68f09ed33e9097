"""Random expressions against an evaluator that shares nothing with ours but the rules.

The evaluator walks the tree from which the text was written, in Java's order, with fractions for
numbers.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seeds import examples

from cometmq.filtering.sql92 import compile_sql

Message = dict[str, str]


class Node(NamedTuple):
    """A node and its text. `text` is only safe inside parentheses."""

    text: str
    kind: str
    parts: tuple[Any, ...]


class ConversionError(Exception):
    pass


NAMES = st.sampled_from(["a", "b", "c", "Name_1", "$x"])
WHOLE = st.integers(-(2**31), 2**31 - 1).filter(lambda n: n != -(2**31)) | st.integers(-9, 9)
TEXTS = st.sampled_from(["", "5", "abc", "b", "it's", "true", "-3", "2.5", "标签"])
VALUES = (
    TEXTS
    | WHOLE.map(str)
    | st.sampled_from(
        ["5.0", "1e1", " 7 ", "+4", "TRUE", "x5", "5 5", "99999999999", "--1", "0.50"]
    )
)
MESSAGES = st.dictionaries(NAMES, VALUES, max_size=4)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@st.composite
def comparisons(draw: st.DrawFn) -> Node:
    name = draw(NAMES)
    kind = draw(
        st.sampled_from(["order", "half", "text", "in", "null", "between", "has", "flipped"])
    )
    if kind in ("order", "flipped"):
        operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
        number = draw(WHOLE)
        if kind == "flipped":
            return Node(f"{number} {operator} {name}", kind, (name, operator, number))
        return Node(f"{name} {operator} {number}", kind, (name, operator, number))
    if kind == "half":
        operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
        number = draw(st.integers(0, 40))
        return Node(f"{name} {operator} {number}.5", kind, (name, operator, number))
    if kind == "text":
        operator, text = draw(st.sampled_from(["=", "<>"])), draw(TEXTS)
        return Node(f"{name} {operator} {quoted(text)}", kind, (name, operator, text))
    negated = draw(st.booleans())
    word = "NOT " if negated else ""
    if kind == "in":
        texts = draw(st.lists(TEXTS, min_size=1, max_size=6))
        joined = ", ".join(map(quoted, texts))
        return Node(f"{name} {word}IN ({joined})", kind, (name, negated, texts))
    if kind == "null":
        return Node(f"{name} IS {word}NULL", kind, (name, negated))
    if kind == "between":
        low, high = sorted((draw(WHOLE), draw(WHOLE)))
        return Node(f"{name} {word}BETWEEN {low} AND {high}", kind, (name, negated, low, high))
    how, text = draw(st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"])), draw(TEXTS)
    return Node(f"{name} {word}{how} {quoted(text)}", kind, (name, negated, how, text))


def combined(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(inner, min_size=2, max_size=4)
    return (
        several.map(
            lambda parts: Node(" AND ".join(f"({p.text})" for p in parts), "and", tuple(parts))
        )
        | several.map(
            lambda parts: Node(" OR ".join(f"({p.text})" for p in parts), "or", tuple(parts))
        )
        | inner.map(lambda part: Node(f"NOT ({part.text})", "not", (part,)))
    )


CONSTANTS = st.sampled_from(
    [
        Node("TRUE", "constant", (True,)),
        Node("FALSE", "constant", (False,)),
        Node("NULL", "constant", (None,)),
    ]
)
EXPRESSIONS = st.recursive(comparisons() | CONSTANTS, combined, max_leaves=12)


def whole(text: str) -> Fraction:
    if not re.fullmatch(r"[+-]?[0-9]+", text) or not -(2**31) <= int(text) < 2**31:
        raise ConversionError
    return Fraction(int(text))


def decimal(text: str) -> Fraction:
    if not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?(e[0-9]+)?", text.strip()):
        raise ConversionError
    return Fraction(text.strip())


def holds(left: Any, operator: str, right: Any) -> bool:
    outcome: bool = {
        "=": left == right,
        "<>": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[operator]
    return outcome


def expected(node: Node, message: Message) -> bool | None:
    """Evaluate a node. Raise ConversionError."""
    if node.kind == "constant":
        return bool(node.parts[0]) if node.parts[0] is not None else None
    if node.kind == "not":
        value = expected(node.parts[0], message)
        return None if value is None else not value
    if node.kind in ("and", "or"):
        deciding = node.kind == "or"
        seen = []
        for part in node.parts:
            seen.append(expected(part, message))
            if seen[-1] is deciding:
                return deciding
        return None if None in seen else not deciding
    return compared(node, message)


def compared(node: Node, message: Message) -> bool | None:
    value = message.get(node.parts[0])
    match node.kind, node.parts:
        case "null", (_, negated):
            return (value is None) is not negated
        case "has", (_, negated, how, text):
            if value is None or not text:
                return False
            found = {
                "CONTAINS": text in value,
                "STARTSWITH": value.startswith(text),
                "ENDSWITH": value.endswith(text),
            }[how]
            return found is not negated
        case "flipped", (_, operator, number):
            if value is None:  # a literal equals no NULL, but is not before or behind it either
                return {"=": False, "<>": True}.get(operator)
            return holds(Fraction(number), operator, whole(value))
    if value is None:
        return None
    match node.kind, node.parts:
        case "order", (_, operator, number):
            return holds(whole(value), operator, Fraction(number))
        case "half", (_, operator, number):
            return holds(decimal(value), operator, number + Fraction(1, 2))
        case "text", (_, operator, text):
            return holds(value, operator, text)
        case "in", (_, negated, texts):
            return (value in texts) is not negated
        case "between", (_, negated, low, high):
            return (low <= whole(value) <= high) is not negated
    raise AssertionError(node.kind)


@settings(max_examples=examples(300), deadline=None)
@given(EXPRESSIONS, st.lists(MESSAGES, min_size=1, max_size=4))
def test_an_independent_evaluator_selects_the_same(node: Node, messages: list[Message]) -> None:
    condition = compile_sql(node.text)
    for message in messages:
        try:
            wanted = expected(node, message)
        except ConversionError:
            wanted = None
        assert condition(message) is wanted, (node.text, message)


@settings(max_examples=examples(150), deadline=None)
@given(EXPRESSIONS, MESSAGES, st.randoms())
def test_case_blanks_and_comments_mean_nothing(node: Node, message: Message, random: Any) -> None:
    plain = compile_sql(node.text)(message)
    tokens = re.findall(r"'(?:[^']|'')*'|[\w$.]+|<>|[<>]=|\S", node.text)
    keywords = {"AND", "OR", "NOT", "IN", "IS", "NULL", "TRUE", "FALSE", "BETWEEN"}
    keywords |= {"CONTAINS", "STARTSWITH", "ENDSWITH"}
    written = ""
    for token in tokens:
        word = random.choice([str.lower, str.title])(token) if token in keywords else token
        written += word + random.choice([" ", "\n", "\t ", " /* AND ' */ ", " -- OR\n"])
    assert compile_sql(written)(message) is plain, written
