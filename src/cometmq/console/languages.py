"""Translate texts of other rooms into the language of a page, by their keys; see
`cometmq.model.reports.keyed_text`.

`locales/zh.json` has the texts of pages by their English, `locales/zh-keys.json` the sentences of
other rooms by their keys. `locales/en-keys.json` has those sentences that read otherwise in the
console than in a program: a page in place of a call. A text without a key, such as an error or the
answer of a server, stays as it is (docs/internals/console-pages.md).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final

from cometmq.console.views.advice import advised
from cometmq.model.reports.keyed_text import KeyedText, filled, text_of

LANGUAGES: Final = {"en": "English", "zh": "中文"}
_HERE: Final = Path(__file__).parent / "locales"
_LIST_MARKS: Final = {"en": ", ", "zh": "、"}


@cache
def texts_of(language: str) -> dict[str, str]:
    """Return the texts of pages in a language, by their English."""
    return {} if language == "en" else _read(f"{language}.json")


@cache
def sentences_of(language: str) -> dict[str, str]:
    """Return the templates of sentences in a language, by their keys."""
    return _read(f"{language}-keys.json")


def said_in(language: str, said: object) -> str:
    """Return a sentence or an error of any room in a language."""
    text = text_of(said) if isinstance(said, BaseException) else said
    if isinstance(text, KeyedText):
        return advised(_filled(language, text))
    plain = str(text)
    # A name has no space, and is not a word of the pages.
    return advised(texts_of(language).get(plain, plain) if " " in plain else plain)


def _filled(language: str, text: KeyedText) -> str:
    template = sentences_of(language).get(text.key.id, text.key.value)
    return filled(template, {name: _value(language, it) for name, it in text.values.items()})


def _value(language: str, value: object) -> object:
    if isinstance(value, KeyedText):
        return _filled(language, value)
    if type(value) is tuple:  # not one with names, such as a queue
        return _LIST_MARKS[language].join(str(_value(language, each)) for each in value)
    return value


def _read(name: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((_HERE / name).read_text("utf-8"))
    return found
