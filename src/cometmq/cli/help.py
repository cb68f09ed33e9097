"""Has commands show their help without types for flags, and start without pydantic."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup, TyperOption

_UNSURE: Final = object()


class _Option(TyperOption):
    """Takes a value that plainly fits without typer's converters, for these import pydantic, which
    takes longer than most commands. They still convert all other values and refuse what does not fit.
    """

    def process_value(self, ctx: Any, value: Any) -> Any:
        converted = _UNSURE if self.callback is not None else self._converted(value)
        return super().process_value(ctx, value) if converted is _UNSURE else converted

    def _converted(self, value: Any) -> Any:
        kind, info = self.type_descriptor.annotation, self.type_descriptor.parameter_info
        if self.multiple or self.nargs != 1:
            return _UNSURE
        if value is None:
            return _UNSURE if self.required else None
        if type(value) is kind and value == self.default:
            return value
        if not isinstance(value, str):
            return _UNSURE
        if info.parser is not None:
            try:
                return info.parser(value)
            except (BadParameter, ValueError):
                return _UNSURE
        if kind is str:
            return value
        if kind is int and value.isascii() and value.isdecimal() and len(value) < 20:
            number = int(value)
            fits = (info.min or 0) <= number and (info.max is None or number <= info.max)
            return number if fits else _UNSURE
        if isinstance(kind, type) and issubclass(kind, Enum):
            return next((member for member in kind if member.value == value), _UNSURE)
        return _UNSURE


def _prepared(params: list[Any]) -> list[Any]:
    """Leave out the type (typer says `<bool>`) in the help of flags, because they take no value."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
        if type(param) is TyperOption:
            param.__class__ = _Option  # typer makes options of its own class only
    return params


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _prepared(super().get_params(ctx))


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _prepared(super().get_params(ctx))
