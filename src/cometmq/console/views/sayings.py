"""Gives in another language what the rooms below say in English: refusals, causes, remedies.

Those texts have values in them and are made where the values are, so the console meets them finished.
A catalogue has a pattern for each (`topic {1} has no queues to write to at broker {2}`), which a test
takes from the source. A text that fits a pattern is told by the translation of the pattern, with
its values filled in; values that are phrases themselves ("3 queues", "the configuration of topic a")
are told in the same way. What fits nothing, such as the text of a Java broker, stays as it is
(docs/internals/console-pages.md).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parents[1] / "locales"
# Texts can come from a peer: longer ones are not looked up, and one text takes this many look-ups.
MAX_TEXT: Final = 4000
MAX_LOOK_UPS: Final = 60
MAX_DEPTH: Final = 5
_KEPT: Final = 1024
# {1} stands for any text, {#1} for a number or a time.
PLACE: Final = re.compile(r"\{(#?[0-9]+)\}")
# Values of one word that are no names, so they are translated: "they know none".
_WORDS: Final = ("none", "yes")
_MARKS: Final = {" and ": ", "}
_NUMBER: Final = re.compile(r"[0-9][0-9.,: +-]*")


@dataclass(frozen=True, slots=True)
class Pattern:
    """Is a text with places. `literals` are what stands before, between and behind its `places`."""

    literals: tuple[str, ...]
    places: tuple[str, ...]
    translation: str

    def values_of(self, text: str) -> dict[str, str] | None:
        """Return what a text has at the places; None if it does not fit.

        Each literal is taken where it first occurs, so the work is linear in the text, whoever
        wrote it.
        """
        first, *middle, last = self.literals
        end = len(text) - len(last)
        if end < len(first) or not text.startswith(first) or not text.endswith(last):
            return None
        values, at = [], len(first)
        for literal in middle:
            found = text.find(literal, at, end)
            if found < 0:
                return None
            values.append(text[at:found])
            at = found + len(literal)
        values.append(text[at:end])
        told = dict(zip(self.places, values, strict=True))
        fits = all(name[0] != "#" or _NUMBER.fullmatch(value) for name, value in told.items())
        return told if fits else None


@dataclass(frozen=True, slots=True)
class Sayings:
    """Holds the texts of a language: those without places by their English, and the patterns."""

    whole: dict[str, str]
    patterns: tuple[Pattern, ...]


@cache
def sayings_of(language: str) -> Sayings:
    """Return what is known in a language, the patterns with most words of their own first."""
    whole: dict[str, str] = {}
    patterns = []
    # Without places a text may be in the catalogue of the pages.
    for name in (f"{language}.json", f"{language}-sayings.json"):
        known: dict[str, str] = json.loads((HERE / name).read_text("utf-8"))
        whole.update(known)
    for english, translation in known.items():
        first, *rest = PLACE.split(english)
        if rest:
            patterns.append(Pattern((first, *rest[1::2]), tuple(rest[::2]), translation))
    patterns.sort(key=lambda pattern: -sum(map(len, pattern.literals)))
    return Sayings(whole, tuple(patterns))


@lru_cache(maxsize=_KEPT)
def told_in(language: str, text: str) -> str:
    """Return a text in a language; one that fits no pattern of the catalogue stays as it is."""
    if language == "en" or len(text) > MAX_TEXT:
        return text
    return _Telling(sayings_of(language)).tell(text, 0)


class _Telling:
    """Translates one text and its values, within a bound of look-ups."""

    def __init__(self, sayings: Sayings) -> None:
        self._sayings = sayings
        self._left = MAX_LOOK_UPS

    def tell(self, text: str, depth: int) -> str:
        if text in _WORDS:
            return self._sayings.whole.get(text, text)
        # A name has no space; the shortest phrase does.
        if " " not in text or self._left <= 0 or depth > MAX_DEPTH:
            return text
        self._left -= 1
        told = self._sayings.whole.get(text)
        if told is not None:
            return told
        for pattern in self._sayings.patterns:
            values = pattern.values_of(text)
            if values is not None:
                return self._filled(pattern.translation, values, depth)
        return self._tell_parts(text, depth)

    def _filled(self, translation: str, values: dict[str, str], depth: int) -> str:
        told = {name: self.tell(value, depth + 1) for name, value in values.items()}
        return PLACE.sub(lambda place: told[place[1]], translation)

    def _tell_parts(self, text: str, depth: int) -> str:
        """Tell what is listed, and what a server or a topic stands before, part by part."""
        for mark in ("; ", ", ", ": ", " and "):
            head, found, rest = text.partition(mark)
            if found:
                told = self.tell(head, depth + 1), self.tell(rest, depth + 1)
                if told != (head, rest):
                    return _MARKS.get(mark, mark).join(told)
        return text
