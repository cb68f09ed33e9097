"""Judge by its name whether a setting or a field of a log line holds a secret.

A name counts if it contains one of the words below, or a long word with one letter missing, wrong,
doubled or swapped: the value of a misspelt key is a secret all the same.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Final

_WORDS: Final = (
    "password",
    "pass-word",
    "pass-?wd",
    "pass-?phrase",
    "secret",
    "credential",
    # At the end, because signatureMaxAgeSeconds has no secret.
    "tokens?$",
    "signature$",
    "private-?key",
    "api-?key",
    # Java's key with a JSON object as its value that contains a password.
    "init-authentication-user",
)
# A shorter word resembles too many others: token and broken.
_LEAST_FUZZY: Final = 6
_LONGEST: Final = 200


def _near(word: str) -> Iterator[str]:
    """Yield patterns for a word and for the word with one typing error."""
    yield word
    if len(word) < _LEAST_FUZZY or not word.isalpha():
        return
    for place in range(len(word)):
        yield word[:place] + word[place + 1 :]
        yield f"{word[:place]}[a-z]{word[place + 1 :]}"
        yield f"{word[:place]}[a-z]{word[place:]}"
        yield word[:place] + word[place : place + 2][::-1] + word[place + 2 :]


@functools.cache
def _secret() -> re.Pattern[str]:
    """Return the pattern of all words. It is made at its first use, because that takes 2 ms."""
    return re.compile("|".join(dict.fromkeys(p for word in _WORDS for p in _near(word))))


# Separates the words of a name, as in keyPassword, key.password, KEY_PASSWORD and key2password.
_PARTING: Final = re.compile("(?<=[a-z])(?=[A-Z])|[^A-Za-z]+")


@functools.lru_cache(maxsize=4096)
def names_secret(name: str) -> bool:
    """Say whether a value with this name must be hidden."""
    return _secret().search(_PARTING.sub("-", name[:_LONGEST]).lower()) is not None
