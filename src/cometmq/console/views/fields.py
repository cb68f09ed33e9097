"""Reads the fields of forms and addresses, and says what is wrong with them.

The HTTPException that they raise tells whoever filled in the form what to give.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request

from cometmq.console.limits import LimitMetError

MAX_NAME: Final = 255
MAX_LINES: Final = 200
# No server takes more: a message's properties have 32,767 bytes together.
MAX_LINES_TEXT: Final = 32 * 1024


class Bound(NamedTuple):
    """Is a limit of the console on a text: its name, and how many characters there may be."""

    name: str
    value: int


NAME: Final = Bound("MAX_NAME", MAX_NAME)


def given_by(request: Request) -> defaultdict[str, str]:
    """Return what an address gives for the fields of a form; a field that it does not give is empty."""
    return defaultdict(str, request.query_params)


def asked(request: Request, field: str) -> str:
    """Return a text that an address has to give."""
    return _given(request.query_params, field, "the address", NAME)


def text_field(form: Mapping[str, str], field: str, most: Bound = NAME) -> str:
    """Return a text that a form has to give, without white space around it."""
    return _given(form, field, "the form", most)


def name_field(form: Mapping[str, str], field: str, most: Bound = NAME) -> str:
    """Return a name that a form repeats from a page: white space around it belongs to it."""
    _given(form, field, "the form", most)
    name = form[field]
    return name if len(name) <= most.value else name.strip()


def number_field(form: Mapping[str, str], field: str, low: int, high: int) -> int | None:
    """Return a whole number from `low` to `high`, None for a field that is blank or not there."""
    text = form.get(field, "").strip()
    if not text:
        return None
    digits = text.removeprefix("-")
    is_whole = digits.isascii() and digits.isdigit() and len(digits) <= 19
    if not is_whole or not low <= int(text) <= high:
        raise HTTPException(
            400, f"{_words(field)} is {text[:40]!r}; give a whole number from {low} to {high}"
        )
    return int(text)


def choice_field(
    form: Mapping[str, str], field: str, choices: Collection[str], default: str | None = None
) -> str:
    """Return one of `choices`; a field that is not there is the default, if there is one."""
    text = form.get(field, default)
    if text is None or text not in choices:
        given = "" if text is None else text
        raise HTTPException(
            400, f"{_words(field)} is {given[:40]!r}; give one of {', '.join(map(repr, choices))}"
        )
    return text


def pairs_field(form: Mapping[str, str], field: str) -> dict[str, str]:
    """Return the names and values of a text with `name=value` on each line."""
    pairs: dict[str, str] = {}
    for line in lines_field(form, field):
        name, equals, value = line.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            raise HTTPException(400, f"{_words(field)}: {line[:80]!r} is not name=value")
        if name in pairs:
            raise HTTPException(400, f"{_words(field)}: {name[:80]!r} is there twice")
        pairs[name] = value
    return pairs


def lines_field(form: Mapping[str, str], field: str) -> list[str]:
    """Return the lines of a text that are not blank."""
    text = form.get(field, "")
    if len(text) > MAX_LINES_TEXT:
        raise too_long(_words(field), len(text), "MAX_LINES_TEXT", MAX_LINES_TEXT)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > MAX_LINES:
        raise LimitMetError(
            400,
            f"the {_words(field)} has {len(lines)} lines",
            "MAX_LINES",
            MAX_LINES,
            "give fewer of them",
        )
    return lines


def too_long(what: str, length: int, limit: str, most: int) -> LimitMetError:
    """Return the refusal of a text with so many characters."""
    return LimitMetError(
        400, f"the {what} has {length} characters", limit, most, "give a shorter one"
    )


def check_unchanged(key: str, now: str, was: str) -> None:
    """Raise HTTPException (409) unless a value is as the form that changes it has shown it."""
    if same_lines(now).strip() != same_lines(was).strip():
        raise HTTPException(
            409,
            f"{key} is {now!r:.200} now, and was {was!r:.200} when the form was shown: somebody has "
            "changed it. Look at it again, and change it from there",
        )


def same_lines(text: str) -> str:
    """Return a text with one kind of line ends: browsers send them as two characters."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _words(field: str) -> str:
    return field.replace("_", " ")


def _given(fields: Mapping[str, str], field: str, where: str, most: Bound) -> str:
    text = fields.get(field, "").strip()
    if not text:
        raise HTTPException(400, f"{where} lacks the {_words(field)}; give it")
    if len(text) > most.value:
        raise too_long(_words(field), len(text), *most)
    return text
