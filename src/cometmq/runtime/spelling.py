"""Guess which known word an unknown one was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

# Comparing takes quadratic time in the length; no key of ours has half as many letters.
_LONGEST: Final = 100
_ALIKE: Final = 0.75


def likely_meant(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` resembles most, ignoring case, or None if none is near."""
    if len(word) > _LONGEST:
        return None
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=_ALIKE)
    return by_lower[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?` to end a sentence that refuses `word`, or an empty text."""
    meant = likely_meant(word, known)
    return f"; did you mean {meant}?" if meant else ""
