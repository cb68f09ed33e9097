"""Check what users write after `.option(…)`: names must exist, and values must fit.

All checks run on the driver, before a job starts. An error shows a value only if the value cannot
be a secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from cometmq.errors import IllegalArgumentError, UnknownOptionError
from cometmq.spark import kafka_names
from cometmq.spark.gaps import GapLog
from cometmq.spark.secrets import refuse

MAX_PARTITIONS: Final = 100_000

# Hadoop writes paths as file:/data and file:///data.
_URI: Final = re.compile(r"([A-Za-z][\w+.-]*:)(//[^/]*)?(/.*)?", re.DOTALL)
_HERE: Final = ("", "//", "//localhost")

_DURATION: Final = re.compile(r"(\d{1,18}) ?(ms|s|m|min|h|d|)", re.ASCII)
_UNITS_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


def ms_of(duration: str) -> int | None:
    """Return a duration such as 500ms, 30s, 15m or 1h in ms, None if it is none. A mere number is in ms."""
    found = _DURATION.fullmatch(duration.lower())
    return None if found is None else int(found[1]) * _UNITS_MS[found[2]]


class Options:
    """The options of one source or sink by name; the case of names does not matter.

    Raises UnknownOptionError for an option that is not among `known`, and IllegalArgumentError for
    a secret.
    """

    def __init__(
        self, source: str, given: Mapping[str, str], known: Iterable[str], kind: str = "source"
    ) -> None:
        self._source = source
        self._what = f"the {kind} {source}"
        refuse(self._what, given)
        names = {name.lower(): name for name in known}
        self._given: dict[str, str] = {}
        for name, value in given.items():
            official = names.get((kafka_names.ours(name) or name).lower())
            if official is None:
                raise UnknownOptionError(
                    f"{self._what} has no option {name}{_meant(name, names)}. Options are "
                    f"{', '.join(sorted(names.values()))}"
                )
            if official in self._given:
                # Spark gives names in small letters, and in any order.
                other = kafka_names.alias_of(official) or name
                raise IllegalArgumentError(
                    f"{other} is another name of {official}, and {self._what} is given both: leave "
                    "one out"
                )
            self._given[official] = value

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def __repr__(self) -> str:
        return f"Options({self._source!r}, {sorted(self._given)})"

    def text(self, name: str) -> str | None:
        """Return the value without blanks around it, or None if the option is not given.

        Raise IllegalArgumentError for an empty value.
        """
        value = self._given.get(name)
        if value is None:
            return None
        if not value.strip():
            raise self.error(name, "is empty; give it a value or leave it out")
        return value.strip()

    def need(self, name: str, example: str) -> str:
        value = self.text(name)
        if value is None:
            raise IllegalArgumentError(
                f'{self._what} needs the option {name}, for example .option("{name}", "{example}")'
            )
        return value

    def number(self, name: str, low: int, high: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            raise self.error(name, f"is {value!r}, it must be a whole number") from None
        if not low <= number <= high:
            raise self.error(name, f"is {number}, it must lie in {low}..{high}")
        return number

    def duration_ms(self, name: str, most_ms: int) -> int | None:
        """Return a duration such as 500ms, 30s, 15m or 1h, in ms; a mere number is in ms."""
        text = self.text(name)
        if text is None:
            return None
        duration_ms = ms_of(text)
        if duration_ms is None:
            raise self.error(name, f"is {text!r}, it must be a duration such as 500ms, 30s or 15m")
        if duration_ms > most_ms:
            raise self.error(name, f"is {text}, it must not be above {most_ms // 1000}s")
        return duration_ms

    def need_path(self, name: str, example: str) -> str:
        return self._path(name, self.need(name, example))

    def path(self, name: str) -> str | None:
        """Return a path of this machine, made absolute because workers have other working
        directories.

        Hadoop's notation file:///data is accepted, too. Raise IllegalArgumentError for other file
        systems.
        """
        text = self.text(name)
        return None if text is None else self._path(name, text)

    def paths(self, name: str) -> tuple[str, ...]:
        """Return several paths, separated by commas; none if the option is not given."""
        texts = (self.text(name) or "").split(",")
        return tuple(self._path(name, text.strip()) for text in texts if text.strip())

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _TRUE + _FALSE:
            raise self.error(name, f"is {value!r}, it must be true or false")
        return value.lower() in _TRUE

    def one_of(self, *names: str) -> str | None:
        """Return which of the options is given, or None. Raise IllegalArgumentError for more than
        one.
        """
        given = [name for name in names if name in self._given]
        if len(given) > 1:
            raise IllegalArgumentError(
                f"{self._what} takes one of {' and '.join(given)}, not several of them"
            )
        return given[0] if given else None

    def error(self, name: str, fault: str) -> IllegalArgumentError:
        return IllegalArgumentError(f"the option {name} of {self._what} {fault}")

    def _path(self, name: str, text: str) -> str:
        uri = _URI.fullmatch(text)
        if uri is None:
            return str(Path(text).absolute())
        scheme, host, path = uri.groups("")
        if scheme.lower() != "file:" or host not in _HERE or not path:
            raise self.error(
                name,
                f"is {text}; it must be a path that the driver and all workers have themselves, such "
                "as /data: mount that file system, or copy what is in it",
            )
        return str(Path(path))


def _meant(name: str, names: Mapping[str, str]) -> str:
    """Suggest one of our options (by their names in lower case) for a wrong name."""
    advice = kafka_names.instead_of(name)
    if advice is not None:
        return f", which is Kafka's: {advice}"
    known = {**{other.lower(): other for other in kafka_names.ALIASES}, **names}
    near = difflib.get_close_matches(name.lower(), known, 1)
    if not near:
        return ""
    meant = names.get((kafka_names.ours(near[0]) or near[0]).lower())
    return "" if meant is None else f"; did you mean {meant}"


def topic_names(options: Options) -> frozenset[str]:
    names = {name.strip() for name in options.need("subscribe", "orders,payments").split(",")}
    if "" in names:
        raise options.error("subscribe", "has an empty topic name among the commas")
    return frozenset(names)


def topic_pattern(options: Options) -> re.Pattern[str]:
    text = options.need("subscribePattern", "orders-.*")
    try:
        return re.compile(text)
    except re.error as error:
        raise options.error(
            "subscribePattern", f"is {text!r}, no regular expression: {error}"
        ) from error


def gap_log(options: Options) -> GapLog:
    """Return where gaps go. Raise IllegalArgumentError unless gapLog and failOnDataLoss fit
    together.
    """
    directory = options.path("gapLog")
    if options.flag("failOnDataLoss", True):
        if directory is not None:
            raise options.error(
                "gapLog", "is for failOnDataLoss=false: a read that fails leaves no gaps"
            )
    elif directory is None:
        raise options.error(
            "failOnDataLoss",
            "is false, so give gapLog too, a directory that all workers can write to: each gap is "
            "noted there, and spark.read.json gives them as a table",
        )
    return GapLog(directory)
