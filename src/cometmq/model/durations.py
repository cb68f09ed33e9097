"""Take durations and times as users give them: whole milliseconds, or Python's own types.

Every parameter and option that ends in `_ms` takes a whole number of milliseconds or a timedelta. One
that names a moment takes milliseconds since the epoch or a datetime with a time zone.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Generic, TypeVar, overload

from cometmq.errors import IllegalArgumentError

Duration = int | timedelta
Moment = int | datetime

_MS: Final = timedelta(milliseconds=1)
SetT = TypeVar("SetT")
GetT = TypeVar("GetT")


def milliseconds(value: Duration) -> int:
    """Return a duration in ms; a part of a millisecond counts as a whole one.

    Any other value is returned as it is, for the check of the range that follows.
    """
    return -(-value // _MS) if isinstance(value, timedelta) else value


def epoch_ms(name: str, value: Moment) -> int:
    """Return a moment in ms since the epoch. Raises IllegalArgumentError for a datetime without time zone.

    Any other value is returned as it is, for the check of the range that follows.
    """
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise IllegalArgumentError(
            f"{name} is {value!r}, which has no time zone, so no moment is meant; pass "
            "datetime.now(UTC) + timedelta(…), or value.astimezone() for local time"
        )
    return round(value.timestamp() * 1000)


class Converted(Generic[SetT, GetT]):
    """Is the default of a field of a dataclass, which takes values of `SetT` and has them as `GetT`.

    `given` is `SetT`, for signatures.
    """

    given: ClassVar[Any] = Duration

    def __init__(self, default: GetT) -> None:
        self._default = default
        self._name = ""

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> GetT: ...

    @overload
    def __get__(self, instance: object, owner: type) -> GetT: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        return self._default if instance is None else instance.__dict__[self._name]

    def __set__(self, instance: object, value: SetT) -> None:
        instance.__dict__[self._name] = self._convert(value)

    def _convert(self, value: Any) -> Any:
        return milliseconds(value)


class Milliseconds(Converted[Duration, int]):
    """Is an option that is a duration."""


class OptionalMilliseconds(Converted[Duration | None, int | None]):
    """Is an option that is a duration, or None."""

    given = Duration | None


class OptionalEpochMs(Converted[Moment | None, int | None]):
    """Is an option that is a moment, or None."""

    given = Moment | None

    def _convert(self, value: Any) -> Any:
        return epoch_ms(self._name, value)
