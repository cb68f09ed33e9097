"""Define the settings of a pipeline, and read them from a TOML file.

A file may have a table for the cluster, one for Spark and one for each pipeline:

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from cometmq.errors import CometMQError, ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.pipelines.catalogue import PIPELINES
from cometmq.runtime.spelling import likely_meant

log = get_logger(__name__)

T = TypeVar("T")

_TABLE_NAME: Final = re.compile(r"\w+")


class Settings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The base of a table's class: keys are the fields' names, and other keys are refused."""


def check_names(names: Iterable[str], key: str, check: Callable[[str], object]) -> None:
    """Raise ConfigError for a name that `check` refuses, or that occurs twice."""
    seen = set()
    for name in names:
        try:
            check(name)
        except CometMQError as error:
            raise ConfigError(f"{key}: {error}") from error
        if name in seen:
            raise ConfigError(f"{key} names {name} twice")
        seen.add(name)


class ClusterConfig(Settings, frozen=True):
    """namesrv: name-server addresses, host:port, separated by semicolons.

    namespace: the namespace in front of topics and groups, as clients use it.
    access_key: the access key that signs requests; a file or an environment variable holds the secret
        key.
    secret_key_file: the file that holds the secret key.
    secret_key_env: the environment variable that holds the secret key.
    security_token_file: the file that holds a security token, if one is needed.
    security_token_env: the environment variable that holds a security token, if one is needed.
    tls: use TLS; any of the keys that follow turns it on, too.
    tls_ca_file: the file with the certificate authorities to trust; if left out, those of the system.
    tls_cert_file: this side's certificate, for servers that ask for one.
    tls_key_file: the key of this side's certificate.
    tls_key_password_file: the file that holds the password of the key.
    tls_key_password_env: the environment variable that holds the password of the key.
    tls_verify: false trusts any certificate.
    tls_check_hostname: false accepts a certificate that names another host.

    See `cometmq.spark.connecting`.
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
        """Return the options of the source and sink `rocketmq` for this cluster. Raise
        ConfigError.
        """
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
    """master: `local[*]`, `spark://host:7077`, `yarn`, …; if left out, spark-submit's choice.

    config: Spark's own settings.
    """

    master: str | None = None
    config: dict[str, str] = {}


class Decode(Settings, frozen=True):
    """format: the format of the bodies: `json`, `avro` or `protobuf`.

    schema: the file with the JSON Schema, the Avro schema or the `.proto` file, relative to the directory of
        this file. JSON without a schema gets one from the first 1,000 archived messages of each topic, and
        keeps it.
    message: the Protobuf message; if left out, the first one of the file.
    wire: `confluent` for bodies that begin with 0 and the id of a schema; without a registry the id is
        ignored. `property` for messages with the id in the property SCHEMA_ID, the default with a registry.
    table: the name of the topic's table; if left out, the topic's name. Not for patterns.
    registry: the URL of a schema registry with Confluent's REST interface, in place of schema.
    registry_user: the user name for the registry, with a password.
    registry_password_file: the file with the password.
    registry_password_env: the environment variable with the password.
    registry_token_file: the file with a bearer token, in place of user and password.
    registry_token_env: the environment variable with a bearer token, in place of user and password.
    """

    format: Literal["json", "avro", "protobuf"]
    schema: str | None = None
    message: str | None = None
    wire: Literal["plain", "property", "confluent"] | None = None
    table: str | None = None
    registry: str | None = None
    registry_user: str | None = None
    registry_password_file: str | None = None
    registry_password_env: str | None = None
    registry_token_file: str | None = None
    registry_token_env: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for values that do not fit."""
        if self.registry is None:
            for key in self.__struct_fields__:
                if key.startswith("registry_") and getattr(self, key) is not None:
                    raise ConfigError(f"{key} is given without a registry: give registry, its URL")
            if self.wire == "property":
                raise ConfigError(
                    "wire is 'property', which needs a registry: give registry, its URL"
                )
        elif self.schema is not None or self.wire == "plain":
            raise ConfigError(
                "registry is given, so each message names its schema: leave schema out, and set wire to "
                "'property' or 'confluent', or leave it out"
            )
        if self.schema is None and self.registry is None and self.format != "json":
            raise ConfigError(
                f"format is {self.format!r}, and such bodies do not name their fields: give schema, the "
                "file with their schema, or registry"
            )
        if self.message is not None and self.format != "protobuf":
            raise ConfigError(
                f"message is {self.message!r}, which is for format = 'protobuf': leave it out"
            )
        if self.table is not None and not _TABLE_NAME.fullmatch(self.table):
            raise ConfigError(
                f"table is {self.table!r}, give a name of letters, digits and underscores"
            )


class ConfigFile:
    """A pipeline file. Reading it raises ConfigError, which names the file and what is wrong in it.

    With `lenient`, unknown keys and tables are logged as warnings and ignored.
    """

    _SHARED: Final = ("cluster", "spark", "decode")

    def __init__(self, path: Path, *, lenient: bool = False) -> None:
        self.path = path
        self._lenient = lenient
        try:
            self._tables: dict[str, Any] = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(
                f"the configuration file {path} cannot be read: {error.strerror or error}"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"the configuration file {path} is no TOML: {error}") from error
        known = (*self._SHARED, *PIPELINES)
        strangers = [name for name in self._tables if name not in known]
        tables = ", ".join(f"[{name}]" for name in strangers)
        said = (
            f"{path} has a table {tables}, which no pipeline reads; tables are {', '.join(known)}"
        )
        self._refuse(strangers, known, said)

    def cluster(self) -> ClusterConfig:
        return self.table("cluster", ClusterConfig, required=False)

    def spark(self) -> SparkConfig:
        return self.table("spark", SparkConfig, required=False)

    def table(self, name: str, kind: type[T], *, required: bool = True) -> T:
        """Return the table [name] as a `kind`. Without `required`, a missing table gives the
        defaults.
        """
        if required and name not in self._tables:
            raise ConfigError(
                f"{self.path} has no table [{name}]; give it one, with the settings of {name}"
            )
        return self._read(name, self._tables.get(name, {}), kind)

    def decode(self) -> dict[str, Decode]:
        """Return the tables [decode.TOPIC] by topic or pattern. Their schemas are absolute paths."""
        found = {}
        for topic, table in self._table("decode", self._tables.get("decode", {})).items():
            read = self._read(f"decode.{topic}", table, Decode)
            if read.schema is not None:
                path = str(self.path.absolute().parent / read.schema)
                read = msgspec.structs.replace(read, schema=path)
            found[topic] = read
        return found

    def _table(self, name: str, table: object) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise ConfigError(f"{self.path}: {name} is a table; write [{name}], and its keys below")
        return table

    def _read(self, name: str, table: object, kind: type[T]) -> T:
        table = self._known_keys(name, self._table(name, table), kind)
        try:
            return msgspec.convert(table, kind, str_keys=True)
        except msgspec.ValidationError as error:
            # A secret may stand in the wrong place of the shared tables.
            values = {} if name in self._SHARED else table
            said = _complaint(str(error), kind, values)
            raise ConfigError(f"{self.path}, table [{name}]: {said}") from error
        except ConfigError as error:  # a rule that the class checks itself
            raise ConfigError(f"{self.path}, table [{name}]: {error}") from error

    def _known_keys(self, name: str, table: dict[str, Any], kind: type) -> dict[str, Any]:
        """Return the entries whose keys the class has. Refuse the others, or leave them out if
        lenient.
        """
        keys = getattr(kind, "__struct_fields__", ())
        strangers = [key for key in table if key not in keys]
        named = ", ".join(f"`{key}`" for key in strangers)
        said = f"{self.path}, table [{name}]: there is no key {named}; keys are {', '.join(keys)}"
        self._refuse(strangers, keys, said)
        return {key: value for key, value in table.items() if key in keys}

    def _refuse(self, strangers: list[str], known: Sequence[str], said: str) -> None:
        """Raise or log `said` about unknown words, with the known words that they resemble."""
        if not strangers:
            return
        guesses = [(word, likely_meant(word, known)) for word in strangers]
        if meant := [f"{guess} for {word}" for word, guess in guesses if guess]:
            said += f"; did you mean {', '.join(meant)}?"
        if not self._lenient:
            raise ConfigError(f"{said} (--lenient ignores unknown keys and tables)")
        log.warning("without effect in the file", why=said)


# msgspec's names of types, and the words for them in TOML.
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
    """Describe a refusal of msgspec, with the key, its value if `values` has it, and a remedy."""
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
    """Return the types of a text like `str | null` that a TOML file can hold."""
    return [name for name in text.split(" | ") if name != "null"]


def _words(kind: type, key: str) -> tuple[Any, ...]:
    """Return the words that a key accepts, nothing for keys that are not limited to a few words."""
    hint = get_type_hints(kind).get(key)
    return get_args(hint) if get_origin(hint) is Literal else ()
