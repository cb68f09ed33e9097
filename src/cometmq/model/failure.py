"""Note on a message why its last delivery failed.

FAILURE_TYPE    class of the exception, or the result that the listener returned
FAILURE_TEXT    text of the exception
FAILURE_MEMBER  client id of the member that failed

A consumer notes them when it gives a message back, and they go with the retry and the dead letter. All
three together take MAX_FAILURE_BYTES at most; of a longer text the beginning is kept.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final, NamedTuple, Self

from cometmq.model import properties as p

MAX_FAILURE_BYTES: Final = 1024
_TYPE_BYTES: Final = 128
_MEMBER_BYTES: Final = 256


class Failure(NamedTuple):
    """Says why a delivery failed: `type` is the exception's class, `member` the client's id."""

    type: str
    text: str
    member: str

    @classmethod
    def of(cls, error: BaseException, member: str) -> Self:
        return cls(type(error).__qualname__, exception_text(error), member)

    def fitted(self) -> Self:
        """Return what may stand in properties: without characters that end one, and not too long."""
        kind = _cut(_clean(self.type), _TYPE_BYTES)
        member = _cut(_clean(self.member), _MEMBER_BYTES)
        left = MAX_FAILURE_BYTES - len(kind.encode()) - len(member.encode())
        return type(self)(kind, _cut(_clean(self.text), left), member)


def exception_text(error: BaseException) -> str:
    """Return the text of an exception of the user's code. If its `__str__` raises, return a text that says so,
    because the report of a failure must not fail itself.
    """
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001 - the user's code
        return f"<no text: its __str__ raised {type(fault).__name__}>"


def note_failure(properties: MutableMapping[str, str], failure: Failure | None) -> None:
    """Have properties say why the last delivery failed, and nothing of earlier ones."""
    values = ("", "", "") if failure is None else failure.fitted()
    for name, value in zip(_NAMES, values, strict=True):
        properties.pop(name, None)
        if value:
            properties[name] = value


def noted_failure(properties: MutableMapping[str, str]) -> Failure | None:
    """Return the failure that properties name, or None."""
    if p.FAILURE_TYPE not in properties:
        return None
    return Failure(*(properties.get(name, "") for name in _NAMES))


_NAMES: Final = (p.FAILURE_TYPE, p.FAILURE_TEXT, p.FAILURE_MEMBER)


def _clean(text: str) -> str:
    # Characters 1 and 2 separate properties; a surrogate cannot be encoded.
    printable = "".join(c if c.isprintable() else " " for c in text[: 2 * MAX_FAILURE_BYTES])
    return printable.encode("utf-8", "replace").decode().strip()


def _cut(text: str, size: int) -> str:
    return text.encode()[: max(size, 0)].decode("utf-8", "ignore")
