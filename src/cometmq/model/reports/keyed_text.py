"""Define sentences that remember their key, so that the console can say them in another language.

A room lists what it says in an enum of `TextKey`, whose values are the English templates. Calling a
member with the values of its places makes the sentence:

    Said.NO_MEMBER(group="billing", waits=…)   ->  "no member of group billing is connected; …"

The result is a text like any other, for the command line, JSON and programs. The console looks up
its key in a catalogue, and fills the same values into the template that it finds there.

A place is written as for `str.format`: `{group}`, `{ratio:.0%}`. `{count:# queue|# queues}` takes the
first form if the count is 1, and a list is joined by commas.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if type(value) is tuple:  # not one with names, such as a queue
            return ", ".join(value)
        one, is_counted, more = format_spec.partition("|")
        if is_counted:
            return (one if value == 1 else more).replace("#", str(value))
        return format(value, format_spec)


_FORMATTER: Final = _Formatter()


def filled(template: str, values: Mapping[str, object]) -> str:
    """Return a template with a value at each of its places."""
    return _FORMATTER.vformat(template, (), values)


class TextKey(Enum):
    """Lists sentences of a room: the name of a member is the key, its value the English template."""

    def __call__(self, /, **values: object) -> KeyedText:
        return KeyedText(self, values)

    @property
    def id(self) -> str:
        """Return the key by which catalogues have the sentence, such as `Said.NO_MEMBER`."""
        return f"{type(self).__name__}.{self.name}"


class KeyedText(str):
    """Is an English sentence that has its key and the values of its places with it.

    A value is a name, a number, another `KeyedText`, or a tuple of texts. Cutting or joining the
    sentence gives a plain text.
    """

    __slots__ = ("key", "values")
    key: TextKey
    values: Mapping[str, object]

    def __new__(cls, key: TextKey, values: Mapping[str, object]) -> KeyedText:
        made = super().__new__(cls, filled(key.value, values))
        made.key, made.values = key, values
        return made

    def __getnewargs__(self) -> tuple[TextKey, Mapping[str, object]]:  # type: ignore[override]  # str's has the text alone
        return self.key, self.values


def text_of(error: BaseException) -> str:
    """Return what an error says, with its key if it has one: `str` of the error loses it."""
    first = error.args[0] if error.args else ""
    return first if isinstance(first, KeyedText) else str(error)
