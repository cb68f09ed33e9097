"""Report that a name is unknown, which names there are, and which one was probably meant."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from cometmq.errors import ConfigError
from cometmq.runtime.spelling import did_you_mean

_MOST_NAMED: Final = 10


def some_of(names: Collection[str]) -> str:
    """Return the first names in their order, or `none` if there are none."""
    first = sorted(names)[:_MOST_NAMED]
    return (", ".join(first) or "none") + (", …" if len(names) > len(first) else "")


def unknown_name(refusal: str, name: str, known: Collection[str]) -> ConfigError:
    """Return the error that begins with `refusal`, lists some `known` names, and says which one
    `name` resembles.
    """
    return ConfigError(f"{refusal} {some_of(known)}{did_you_mean(name, known)}")
