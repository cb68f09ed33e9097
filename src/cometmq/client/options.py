"""Check what callers pass to constructors: options must exist, values must be of their kind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, get_type_hints

from cometmq.errors import IllegalArgumentError, UnknownOptionError
from cometmq.model.durations import Converted
from cometmq.runtime.surroundings import current

EnumT = TypeVar("EnumT", bound=Enum)
P = ParamSpec("P")
RecordT = TypeVar("RecordT")
SelfT = TypeVar("SelfT")

# The attribute that lists the names a constructor accepts beside its signature; see `takes`.
_SURROUNDINGS: Final = "surroundings"


def takes(
    record: Callable[P, RecordT],
) -> Callable[[Callable[[SelfT, RecordT], None]], Callable[Concatenate[SelfT, P], None]]:
    """Give a constructor the parameters of `record`, and call it with the record made of them.

    So the options of a client are listed once, in the class that holds them, with their types and
    defaults. Type checkers, editors and `help` see them as parameters of the client.

    The constructor also accepts, by name, the attributes that the record lists in `surroundings`,
    and sets them afterwards; those that are not given are `current()`'s. They are not shown: only
    simulations replace them (docs/internals/virtual-time.md).
    """
    surroundings: frozenset[str] = getattr(record, _SURROUNDINGS, frozenset())
    hints = _given_types(record if is_dataclass(record) else getattr(record, "__init__"))  # noqa: B009 - mypy minds it written out
    stated = inspect.signature(record)
    signature = stated.replace(
        parameters=[
            each.replace(annotation=hints.get(each.name, each.annotation))
            for each in stated.parameters.values()
        ]
    )
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [itself, *signature.parameters.values()]
    whole = signature.replace(parameters=parameters, return_annotation=None)

    def decorate(
        constructor: Callable[[SelfT, RecordT], None],
    ) -> Callable[Concatenate[SelfT, P], None]:
        @functools.wraps(constructor)
        def construct(self: SelfT, /, *args: P.args, **options: P.kwargs) -> None:
            given = {name: options.pop(name) for name in surroundings & options.keys()}
            try:
                signature.bind(*args, **options)
            except TypeError as error:
                raise TypeError(f"{type(self).__name__}: {error}") from None
            made = record(*args, **options)
            around = current()
            for name in surroundings:
                setattr(made, name, given[name] if name in given else getattr(around, name))
            constructor(self, made)

        construct.__annotations__ = {
            **{each.name: each.annotation for each in signature.parameters.values()},
            "return": None,
        }
        setattr(construct, "__signature__", whole)  # noqa: B010 - mypy minds it written out
        setattr(construct, _SURROUNDINGS, surroundings)
        return construct

    return decorate


def _given_types(record: object) -> dict[str, Any]:
    """Return the types that a record's parameters take; for a converted option, the types of before."""
    return {
        name: hint.given if isinstance(hint, type) and issubclass(hint, Converted) else hint
        for name, hint in get_type_hints(record).items()
    }


class NamesOptions:
    """Is the base of classes whose constructors name an unknown option and the closest known one."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        constructor = cls.__dict__.get("__init__")
        if constructor is not None:
            setattr(cls, "__init__", _checking(cls, constructor))  # noqa: B010 - mypy minds it written out


def _options(cls: type) -> tuple[set[str], set[str]]:
    """Return the names that a constructor and the bases that it hands options on to take, and those
    of them that are keyword-only."""
    known: set[str] = set()
    keyword_only: set[str] = set()
    for base in cls.__mro__:
        if "__init__" not in base.__dict__:
            continue
        parameters = inspect.signature(base.__dict__["__init__"]).parameters.values()
        named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        handed_on = {p.name for p in parameters if p.kind is p.VAR_KEYWORD}
        known |= {p.name for p in parameters} - handed_on - {"self"}
        known |= getattr(base.__dict__["__init__"], _SURROUNDINGS, frozenset())
        keyword_only |= named
        if not handed_on:
            break
    return known, keyword_only


def _checking(cls: type, constructor: Callable[..., None]) -> Callable[..., None]:
    known, keyword_only = _options(cls)

    @functools.wraps(constructor)
    def construct(self: Any, *args: Any, **options: Any) -> None:
        for name, value in options.items():
            if name not in known:
                near = _translated(type(self), name, known) or next(
                    iter(_alike(name, keyword_only)), None
                )
                meant = f"; did you mean {near}" if near else ""
                raise UnknownOptionError(
                    f"{type(self).__name__} has no option {name!r} (given: {value!r}){meant}. "
                    f"Options are {', '.join(sorted(keyword_only))}"
                )
        constructor(self, *args, **options)

    return construct


def choice(name: str, value: object, kind: type[EnumT]) -> EnumT:
    """Return `value` as a member of `kind`; it may be the member's value. Raises
    IllegalArgumentError."""
    try:
        return kind(value)
    except ValueError:
        members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        known = [member.name for member in kind]
        near = _alike(str(value).upper().replace("-", "_"), known)
        meant = f"; did you mean {kind.__name__}.{near[0]}" if near else ""
        raise IllegalArgumentError(
            f"{name} is {value!r:.80}, it must be one of {members}{meant}"
        ) from None


# Our names for options of other clients.
_ELSEWHERE: Final = {
    **dict.fromkeys(("bootstrap_servers", "endpoints", "brokers", "servers", "host"), "namesrv"),
    **dict.fromkeys(("group_id", "consumer_group", "producer_group", "group_name"), "group"),
    "auto_offset_reset": "consume_from",
}


def _translated(cls: type, name: str, known: Collection[str]) -> str | None:
    """Return what stands in `cls` for an option of another client, None if nothing does."""
    if name in ("topic", "topics"):
        return "to call subscribe(topic)" if hasattr(cls, "subscribe") else None
    ours = _ELSEWHERE.get(name)
    return ours if ours in known else None


def _alike(word: str, known: Iterable[str]) -> list[str]:
    import difflib  # needed for mistakes only, and every program that sends would load it

    return difflib.get_close_matches(word, known, 1)
