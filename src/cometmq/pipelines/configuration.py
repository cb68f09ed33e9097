"""What a pipeline is told, and the TOML file that tells it.

A file has a table for the cluster, one for Spark and one for each pipeline, all optional:

    [cluster]
    namesrv = "127.0.0.1:9876"

    [spark]
    master = "local[*]"
    config = { "spark.driver.memory" = "2g" }

    [archive]
    topics = ["orders"]
    path = "/data/archive"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from cometmq.errors import ConfigError
from cometmq.pipelines.catalogue import PIPELINES

T = TypeVar("T")


class Settings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The base of a table's class: keys are the fields' names, and others are refused."""


class ClusterConfig(Settings, frozen=True):
    """namesrv: name-server addresses, host:port, separated by semicolons.

    namespace: in front of topics and groups, as clients have it.
    access_key and what follows: the options of the source `rocketmq` of these names, see
        `cometmq.spark.connecting`. Secrets are named by their file or environment variable.
    """

    namesrv: str | None = None
    namespace: str | None = None
    access_key: str | None = None
    secret_key_file: str | None = None
    secret_key_env: str | None = None
    security_token_file: str | None = None
    security_token_env: str | None = None
    tls: bool | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_key_password_file: str | None = None
    tls_key_password_env: str | None = None
    tls_verify: bool | None = None
    tls_check_hostname: bool | None = None

    def options(self) -> dict[str, str]:
        """The options of the source and sink `rocketmq` for this cluster. Raises ConfigError."""
        if not self.namesrv:
            raise ConfigError(
                "no name server is given: set namesrv in the table [cluster], "
                'for example namesrv = "127.0.0.1:9876"'
            )
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            _option(name): str(value).lower() if isinstance(value, bool) else value
            for name, value in given.items()
            if value not in (None, "")
        }


def _option(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class SparkConfig(Settings, frozen=True):
    """master: `local[*]`, `spark://host:7077`, `yarn`, …; what spark-submit says when it is left out.

    config: Spark's own settings.
    """

    master: str | None = None
    config: dict[str, str] = {}


class ConfigFile:
    """A pipeline file as it was read. Raises ConfigError naming the file and what is wrong in it."""

    _SHARED: Final = ("cluster", "spark")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tables: dict[str, Any] = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(
                f"the configuration file {path} cannot be read: {error.strerror or error}"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"the configuration file {path} is no TOML: {error}") from error
        known = (*self._SHARED, *PIPELINES)
        for name in self._tables:
            if name not in known:
                raise ConfigError(
                    f"{path} has a table [{name}], which nothing reads; tables are {', '.join(known)}"
                )

    def cluster(self) -> ClusterConfig:
        return self.table("cluster", ClusterConfig, required=False)

    def spark(self) -> SparkConfig:
        return self.table("spark", SparkConfig, required=False)

    def table(self, name: str, kind: type[T], *, required: bool = True) -> T:
        """The table [name] as a `kind`; without `required` its defaults where it is left out."""
        if required and name not in self._tables:
            raise ConfigError(
                f"{self.path} has no table [{name}]; give it one, with what {name} is to do"
            )
        table = self._tables.get(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{self.path}: {name} is a table; write [{name}], and its keys below")
        try:
            return msgspec.convert(table, kind, str_keys=True)
        except msgspec.ValidationError as error:
            # What is secret may stand in a wrong place of the shared tables.
            values = {} if name in self._SHARED else table
            said = _complaint(str(error), kind, values)
            raise ConfigError(f"{self.path}, table [{name}]: {said}") from error
        except ConfigError as error:  # a rule that the class checks itself
            raise ConfigError(f"{self.path}, table [{name}]: {error}") from error


# msgspec's words for types, and those of people who write TOML.
_TYPES: Final = {
    "array": "a list in brackets",
    "bool": "true or false",
    "date": "a day without a time",
    "datetime": "a time such as 2026-11-20T16:00:00Z",
    "float": "a number",
    "int": "a whole number",
    "object": "a table",
    "str": "text in quotes",
}
_KEY_OF: Final = re.compile(r" - at `\$\.(\w+)([^`]*)`$")
_MOST_LETTERS: Final = 100


def _complaint(text: str, kind: type, values: Mapping[str, Any]) -> str:
    """What msgspec says of a table, with its key, its value where it is in `values`, and a remedy."""
    keys = getattr(kind, "__struct_fields__", ())
    place = _KEY_OF.search(text)
    if place is None:
        if found := re.fullmatch(r"Object contains unknown field `(.*)`", text):
            return f"there is no key `{found[1]}`; keys are {', '.join(keys)}"
        if found := re.fullmatch(r"Object missing required field `(.*)`", text):
            return f"the key `{found[1]}` is missing; it has to be given"
        return text
    key, below = place.groups()
    said = text[: place.start()]
    found = re.fullmatch(r"Expected `(.*)`, got `(.*)`", said)
    if found:
        wanted = " or ".join(_TYPES.get(name, name) for name in _type_names(found[1]))
        said = f"give {wanted}, not {_TYPES.get(found[2], found[2])}"
    elif said.startswith("Invalid enum value") and (words := _words(kind, key)):
        said = f"give one of {', '.join(map(repr, words))}"
    elif said.startswith("Invalid RFC3339"):
        said = f"give {_TYPES['datetime']}, without quotes"
    if key not in values:
        return f"`{key}{below}`: {said}"
    value = str(values[key]) if not isinstance(values[key], str) else repr(values[key])
    if len(value) > _MOST_LETTERS:
        value = f"{value[:_MOST_LETTERS]}…"
    return f"`{key}` is {value}; {said}" + (f" (at `{key}{below}`)" if below else "")


def _type_names(text: str) -> list[str]:
    """Of `str | null` those that a file can give."""
    return [name for name in text.split(" | ") if name != "null"]


def _words(kind: type, key: str) -> tuple[Any, ...]:
    """What a key that takes one of a few words takes, nothing for other keys."""
    hint = get_type_hints(kind).get(key)
    return get_args(hint) if get_origin(hint) is Literal else ()
