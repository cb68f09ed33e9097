"""Check what operators give of a topic, and write it as requests have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cometmq.errors import IllegalArgumentError
from cometmq.model.sysflag import PERM_INHERIT, PERM_RW


def permission_of(value: int) -> int:
    """Return the value. Raises IllegalArgumentError if it is no permission."""
    if type(value) is not int or not 0 <= value <= PERM_RW | PERM_INHERIT:
        raise IllegalArgumentError(
            f"permission is {value!r:.80}; give the sum of 4 to read, 2 to write, 1 to be the model "
            "of new topics"
        )
    return value


def attribute_changes(attributes: Mapping[str, str], removed: Iterable[str]) -> str:
    """Return changes of attributes as requests have them. Raises IllegalArgumentError."""
    for text in (*attributes, *attributes.values(), *removed):
        if not text or set(text) & set("+,=") or text != text.strip():
            raise IllegalArgumentError(
                f"{text!r:.80} is no key or value of an attribute: it must not be empty nor have "
                "'+', ',', '=' or white space around it"
            )
    return ",".join(
        [*(f"+{key}={value}" for key, value in attributes.items()), *(f"-{key}" for key in removed)]
    )
