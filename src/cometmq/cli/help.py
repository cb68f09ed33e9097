"""Make commands show their help without types for flags, and start without pydantic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import Enum
from itertools import pairwise
from typing import Any, ClassVar, Final

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup, TyperOption

from cometmq.runtime.spelling import did_you_mean

_UNSURE: Final = object()


class _Option(TyperOption):
    """Takes a value that plainly fits without typer's converters, which import pydantic, and that
    takes longer than most commands. They still convert, or refuse, all other values.
    """

    def process_value(self, ctx: Any, value: Any) -> Any:
        converted = self._converted(value)
        if converted is _UNSURE:
            return super().process_value(ctx, value)
        return converted if self.callback is None else self.callback(ctx, self, converted)

    def _converted(self, value: Any) -> Any:
        kind, info = self.type_descriptor.annotation, self.type_descriptor.parameter_info
        if self.multiple or self.nargs != 1:
            return _UNSURE
        if value is None:
            return _UNSURE if self.required else None
        if not isinstance(value, str):
            return value if value is self.default else _UNSURE
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


_METAVARS: Final = {str: "TEXT", int: "N", float: "NUMBER"}


def _prepared(params: list[Any]) -> list[Any]:
    """Leave out the type (typer says `<bool>`) in the help of flags, because they take no value, and
    name the values of all other options as the rest of the help does.
    """
    for param in params:
        if not isinstance(param, TyperOption) or param.metavar is not None:
            continue
        if param.is_flag:
            param.metavar = ""
        else:
            param.metavar = _METAVARS.get(param.type_descriptor.annotation)
    for param in params:
        if type(param) is TyperOption:
            param.__class__ = _Option  # typer makes options of its own class only
    return params


class Command(TyperCommand):
    """Is a command with `-o`, the option that says how its result is printed.

    Where mqadmin means something else by `-o`, `other_o` is that option's long name. It gets each
    value of `-o` that is not an output form, so that mqadmin's command lines work: `-o 10` is then
    `--offset 10`. An option that is given twice is refused: click takes the last value and forgets
    the others.
    """

    other_o: ClassVar[str | None] = None
    forms: ClassVar[Collection[str]] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.other_o is not None:
            for place, (arg, value) in enumerate(pairwise(args)):
                if arg == "-o" and value not in self.forms:
                    args[place] = self.other_o
        order = self.make_parser(ctx).parse_args(args=[*args])[2]
        given = Counter(parameter.name for parameter in order)
        for parameter in order:
            if given[parameter.name] > 1 and not (
                parameter.multiple or parameter.nargs == -1 or getattr(parameter, "is_flag", False)
            ):
                ctx.fail(
                    f"{'/'.join(parameter.opts)} is given {given[parameter.name]} times, and takes one "
                    "value; call the command for each, or separate values by commas where its help says so"
                )
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _prepared(super().get_params(ctx))


class Group(TyperGroup):
    """Names, after an unknown command, the one that was probably meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            guess = did_you_mean(args[0], self.list_commands(ctx))
            ctx.fail(f"There is no command {args[0]!r:.80}{guess}")
        name, command, rest = super().resolve_command(ctx, args)
        return getattr(command, "name", name), command, rest

    def get_params(self, ctx: Any) -> list[Any]:
        return _prepared(super().get_params(ctx))
