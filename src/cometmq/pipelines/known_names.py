"""What a pipeline says of a name that nothing has: the names that there are, and which was meant."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from cometmq.errors import ConfigError
from cometmq.runtime.spelling import did_you_mean

_MOST_NAMED: Final = 10


def some_of(names: Collection[str]) -> str:
    """The first of the names in their order, `none` when there are none."""
    first = sorted(names)[:_MOST_NAMED]
    return (", ".join(first) or "none") + (", …" if len(names) > len(first) else "")


def unknown_name(refusal: str, name: str, known: Collection[str]) -> ConfigError:
    """The error that opens with `refusal`, goes on with what is `known`, and says which one `name`
    resembles.
    """
    return ConfigError(f"{refusal} {some_of(known)}{did_you_mean(name, known)}")
