"""What callers hand to constructors: options that exist, values of the right kind."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar, get_args

from cometmq.errors import IllegalArgumentError, UnknownOptionError

EnumT = TypeVar("EnumT", bound=Enum)


class NamesOptions:
    """Base of classes whose constructors say which option is unknown, and what it may have meant."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        constructor = cls.__dict__.get("__init__")
        if constructor is not None:
            setattr(cls, "__init__", _checking(cls, constructor))  # noqa: B010 - mypy minds it written out


def _options(cls: type) -> tuple[set[str], set[str]]:
    """The names that a constructor takes, with those that it hands on to its base; and of these the
    ones that are only given by name."""
    known: set[str] = set()
    keyword_only: set[str] = set()
    for base in cls.__mro__:
        if "__init__" not in base.__dict__:
            continue
        signature = inspect.signature(base.__dict__["__init__"], eval_str=True)
        parameters = signature.parameters.values()
        handed_on = [p for p in parameters if p.kind is p.VAR_KEYWORD]
        known |= {p.name for p in parameters if p not in handed_on} - {"self"}
        keyword_only |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        for parameter in handed_on:  # Unpack[…], of a TypedDict
            listed = set(get_args(parameter.annotation)[0].__annotations__)
            known |= listed
            keyword_only |= listed
        if not handed_on:
            break
    return known, keyword_only


def _checking(cls: type, constructor: Callable[..., None]) -> Callable[..., None]:
    known, keyword_only = _options(cls)

    @functools.wraps(constructor)
    def construct(self: Any, *args: Any, **options: Any) -> None:
        for name, value in options.items():
            if name not in known:
                near = difflib.get_close_matches(name, keyword_only, 1)
                meant = f"; did you mean {near[0]}" if near else ""
                raise UnknownOptionError(
                    f"{type(self).__name__} has no option {name!r} (given: {value!r}){meant}. "
                    f"Options are {', '.join(sorted(keyword_only))}"
                )
        constructor(self, *args, **options)

    return construct


def choice(name: str, value: object, kind: type[EnumT]) -> EnumT:
    """The member of `kind` that `value` is, or is the value of. Raises IllegalArgumentError."""
    try:
        return kind(value)
    except ValueError:
        members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise IllegalArgumentError(f"{name} is {value!r}, it must be one of {members}") from None
