"""Bodies as pages show them: bounded, and with nothing in them hidden, whatever they hold."""

from __future__ import annotations

import json
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.console.schemas import bodies


def say(text: str, /, **values: Any) -> str:
    return text % values if values else text


@given(
    body=st.binary(max_size=400) | st.text(max_size=200).map(str.encode),
    kind=st.sampled_from(bodies.KINDS),
    charset=st.sampled_from((*bodies.CHARSETS, "rot13", "nonsense")),
    first=st.integers(0, 10**18),
    more=st.booleans(),
)
def test_any_bytes_can_be_shown(
    body: bytes, kind: str, charset: str, first: int, more: bool
) -> None:
    shown = bodies.show(body, kind, charset, say, first=first, more=more)
    assert shown.total == len(body)
    assert 0 <= shown.first <= shown.first + shown.shown <= shown.total
    for character in shown.text + bodies.snippet(body):
        assert character in "\n\t" or unicodedata.category(character) not in (
            "Cc",
            "Cf",
            "Zl",
            "Zp",
        )


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
)
def test_json_that_is_laid_out_is_the_same(value: object) -> None:
    body = json.dumps([value]).encode()
    shown = bodies.show(body, "auto", "utf-8", say)
    assert shown.kind == "json"
    assert json.loads(shown.text) == [value]


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"[" * 100_000, "too deep"),
        (b'["]]]]]]",' * 100 + b"1" + b"]" * 100, "too deep"),
        (b"[" + b"1," * 200_000 + b"1]", "too large"),
        (b'{"a": }', "no JSON"),
        (b"[\xff]", "no JSON"),
    ],
)
def test_json_that_would_grow_is_shown_as_it_is(body: bytes, hint: str) -> None:
    shown = bodies.show(body, "json", "utf-8", say)
    assert shown.kind == "text"
    assert hint in shown.hint
    assert len(shown.text) <= bodies.SHOWN_BYTES


def test_strings_without_an_end_do_not_hold_the_console() -> None:
    """Such a body of 256 KiB took eight minutes, in which the console served nobody."""
    for signs in (b'\\"', b'"\\', b'"'):
        body = b"[" + signs * ((256 * 1024 - 1) // len(signs))
        began_s = time.thread_time()
        shown = bodies.show(body, "auto", "utf-8", say)
        assert shown.kind == "text"
        assert time.thread_time() - began_s < 5.0


def test_a_large_text_is_cut_and_says_so() -> None:
    body = b"x" * (2 * bodies.MOST_SHOWN_BYTES)
    little, more = (bodies.show(body, "auto", "utf-8", say, more=more) for more in (False, True))
    assert (little.shown, little.is_cut) == (bodies.SHOWN_BYTES, True)
    assert (more.shown, more.is_cut) == (bodies.MOST_SHOWN_BYTES, True)


def test_a_character_at_the_cut_does_not_make_a_text_binary() -> None:
    for length in range(4):
        assert bodies.is_text(b"x" * (bodies.SHOWN_BYTES - length) + "中文".encode() * 4)
    assert not bodies.is_text(b"x" * 100 + b"\xff" + b"x" * 100)
