"""Read the fields of forms and addresses, and say what is wrong with them.

The HTTPException that they raise says what to give in the form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request

from cometmq.console.limits import LimitMetError
from cometmq.console.refusals import Refused

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
    """Return the values in an address for the fields of a form; a field without one is empty."""
    return defaultdict(str, request.query_params)


def asked(request: Request, field: str) -> str:
    """Return a text that an address has to give."""
    return _given(request.query_params, field, Refused.ADDRESS_LACKS, NAME)


def text_field(form: Mapping[str, str], field: str, most: Bound = NAME) -> str:
    """Return a text that a form has to give, without white space around it."""
    return _given(form, field, Refused.FORM_LACKS, most)


def name_field(form: Mapping[str, str], field: str, most: Bound = NAME) -> str:
    """Return a name that a form repeats from a page: white space around it belongs to it."""
    _given(form, field, Refused.FORM_LACKS, most)
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
            400, Refused.NO_NUMBER_OF(field=_words(field), text=text[:40], low=low, high=high)
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
            400,
            Refused.NO_CHOICE(
                field=_words(field), text=given[:40], choices=tuple(map(repr, choices))
            ),
        )
    return text


def pairs_field(form: Mapping[str, str], field: str) -> dict[str, str]:
    """Return the names and values of a text with `name=value` on each line."""
    pairs: dict[str, str] = {}
    for line in lines_field(form, field):
        name, equals, value = line.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            raise HTTPException(400, Refused.NO_PAIR(field=_words(field), line=line[:80]))
        if name in pairs:
            raise HTTPException(400, Refused.PAIR_TWICE(field=_words(field), name=name[:80]))
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
            Refused.LINES(field=_words(field), count=len(lines)),
            "MAX_LINES",
            MAX_LINES,
            Refused.GIVE_FEWER(),
        )
    return lines


def too_long(what: str, length: int, limit: str, most: int) -> LimitMetError:
    """Return the refusal of a text with so many characters."""
    return LimitMetError(
        400,
        Refused.CHARACTERS(field=what, count=length),
        limit,
        most,
        Refused.GIVE_SHORTER(),
    )


def check_unchanged(key: str, now: str, was: str) -> None:
    """Raise HTTPException (409) unless a value is as the form that changes it has shown it."""
    if same_lines(now).strip() != same_lines(was).strip():
        raise HTTPException(409, Refused.CHANGED_MEANWHILE(key=key, now=now, was=was))


def same_lines(text: str) -> str:
    """Return a text with one kind of line ends: browsers send them as two characters."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _words(field: str) -> str:
    return field.replace("_", " ")


def _given(fields: Mapping[str, str], field: str, lacks: Refused, most: Bound) -> str:
    text = fields.get(field, "").strip()
    if not text:
        raise HTTPException(400, lacks(field=_words(field)))
    if len(text) > most.value:
        raise too_long(_words(field), len(text), *most)
    return text
