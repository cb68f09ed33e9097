"""Give several commands the same options: the fields of a dataclass.

    @dataclass(frozen=True)
    class Place:
        host: Annotated[str, typer.Option(help="The host.")] = "127.0.0.1"

    @app.command()
    @spread
    def ping(place: Place, count: int = 1) -> None: ...

`ping` has the options `--host` and `--count`, and gets a Place.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has the fields of each parameter with a dataclass as its type as
    options. Typer passes all arguments by name.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    kinds: dict[str, type] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            kinds[name] = hints[name]
            parameters += fields_of(kinds[name])
        else:
            own = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            parameters.append(own)

    def entry(**given: Any) -> None:
        made = {
            name: kind(**{each.name: given.pop(each.name) for each in fields_of(kind)})
            for name, kind in kinds.items()
        }
        command(**made, **given)

    entry.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions may have one
    entry.__annotations__ = {each.name: each.annotation for each in parameters}
    entry.__name__, entry.__doc__ = command.__name__, command.__doc__
    return entry


def fields_of(kind: Any) -> list[inspect.Parameter]:
    """Return the fields of a dataclass as parameters, with their annotations and defaults."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(kind)
    ]
