"""Read RocketMQ's properties files and fill typed config classes from them.

A config class is a plain mutable dataclass: fields in snake case, each with a default, of type
`bool`, `int`, `float`, `str`, `Path` or an `Enum`, or one of these `| None`. Its key in a file is
the field's name in camel case (`flush_disk_type` is `flushDiskType`), or `metadata["key"]` where
that rule does not give RocketMQ's key (`brokerIP1`). `metadata["min"]` and `metadata["max"]` bound
a number. Nothing of this module is needed to write such a class, so every room can have one.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from cometmq.errors import ConfigError
from cometmq.logs.secret_names import names_secret

T = TypeVar("T")

_INT: Final = re.compile(r"[+-]?[0-9]{1,19}")
_LINE_ENDS: Final = re.compile(r"\r\n|\n|\r")
# Characters that a reader takes for the end of a key, or for a comment; and blanks that it skips.
_KEY_ENDS: Final = re.compile(r"[ \t\f=:]|^[#!]")
_LEADING_BLANK: Final = re.compile(r"^[ \t\f]")
_BEHIND_BACKSLASH: Final = r"\\\g<0>"
_LONG_MAX: Final = 2**63 - 1
_LINE_END: Final = re.compile(r"\r\n?|\n")
# A line takes ten microseconds.
_LINES_AT_ONCE: Final = 16


# Files and texts


def load_properties(path: str | Path) -> dict[str, str]:
    """Return the entries of a properties file. Raises ConfigError that names file and remedy.

    UTF-8 is tried before ISO-8859-1, which is what Java reads: files in ASCII with `\\uXXXX`
    escapes mean the same either way.
    """
    try:
        text = _read(Path(path))
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"the properties file {path} cannot be read: {reason}") from error
    return parse_properties(text, str(path))


def line_numbers(path: str | Path) -> dict[str, int]:
    """Return the line in which each key of a properties file stands, none if it is unreadable."""
    import javaproperties

    lines, line = {}, 1
    try:
        for part in javaproperties.parse(_read(Path(path))):
            if isinstance(part, javaproperties.KeyValue):
                lines[part.key] = line
            line += len(_LINE_END.findall(part.source))
    except (OSError, ValueError):
        pass
    return lines


def _read(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("iso-8859-1")


def change_properties(path: str | Path, changes: Mapping[str, str]) -> str:
    """Return the text of a properties file with new values for `changes`; comments and all other
    lines stay as they are. Raises OSError.
    """
    import javaproperties

    text = _read(Path(path))
    file = javaproperties.PropertiesFile.loads(text if text.endswith("\n") else f"{text}\n")
    for key, value in changes.items():
        file[key] = value
    return str(file.dumps())


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Return the entries of a text in properties form; `source` names the text in a ConfigError."""
    properties: dict[str, str] = {}
    for _ in parse_steps(text, source, properties):
        pass
    return properties


def parse_steps(text: str, source: str, properties: dict[str, str]) -> Iterator[None]:
    """Put the entries of a text in properties form into `properties`, some lines in a step."""
    # Imported here because it draws in an XML and an HTTP library, which a start without a file
    # should not wait for.
    import javaproperties

    try:
        for number, part in enumerate(javaproperties.parse(_unfolded(text)), 1):
            if isinstance(part, javaproperties.KeyValue):
                properties[part.key] = part.value
            if number % _LINES_AT_ONCE == 0:
                yield
    except ValueError as error:
        raise ConfigError(f"{source} is no properties text: {error}") from error


def _unfolded(text: str) -> str:
    """Join every continued line of the text to the next one.

    javaproperties would do that too, but in a time that grows with the square of their number.
    """
    if "\\" not in text:
        return text
    lines: list[str] = []
    joined: list[str] = []
    for line in _LINE_ENDS.split(text):
        part = line.lstrip(" \t\f")
        if not joined and part.startswith(("#", "!")):
            lines.append(line)
            continue
        bare = part.rstrip("\\")
        if (len(part) - len(bare)) % 2:
            joined.append(part[:-1])
        else:
            lines.append("".join(joined) + part)
            joined = []
    return "\n".join([*lines, "".join(joined)])


def format_properties(properties: Mapping[str, str]) -> str:
    """Return `key=value` lines sorted by key, as Java prints and stores them."""
    return "".join(
        f"{_KEY_ENDS.sub(_BEHIND_BACKSLASH, _escaped(key))}="
        f"{_LEADING_BLANK.sub(_BEHIND_BACKSLASH, _escaped(properties[key]))}\n"
        for key in sorted(properties)
    )


def _escaped(text: str) -> str:
    # Only characters that would not survive reading: Java's readers of this text split at the first
    # `=`.
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


# Config classes


class Mistake(NamedTuple):
    """Says what is wrong with the entry of a key; `text` names the key, the value and the rule."""

    key: str
    text: str


def from_properties(
    cls: type[T], properties: Mapping[str, str], source: str = "the properties"
) -> T:
    """Make a config of class `cls` with the values of its keys in `properties`; ignore other keys.

    Raises ConfigError that names `source`, the key, the value and the rule that it breaks.
    """
    config, mistakes = new_config(cls, properties)
    if config is None:
        raise ConfigError(f"{source}: {'; '.join(text for _, text in mistakes)}")
    return config


def new_config(cls: type[T], properties: Mapping[str, str]) -> tuple[T | None, list[Mistake]]:
    """Make a config as `from_properties` does, but return every mistake instead of raising."""
    values, mistakes = _values(cls, properties)
    if mistakes:
        return None, mistakes
    try:
        return cls(**values), []
    except ConfigError as error:  # a rule that the class checks itself
        text = str(error)
        return None, [Mistake(text.partition("=")[0].partition(":")[0], text)]


def to_properties(config: object, *, secrets: bool = False) -> dict[str, str]:
    """Return the texts of a config's fields by key; leave out fields that are None.

    Leave out secrets, too, unless they are asked for.
    """
    texts = {}
    cls: type = type(config)
    for key, setting in _settings(cls).items():
        value = getattr(config, setting.name)
        if value is not None and (secrets or not setting.secret):
            texts[key] = _text(value)
    return texts


def keys_of(cls: type) -> Iterable[str]:
    """Return the keys that a config class has."""
    return _settings(cls).keys()


def unknown_keys(properties: Mapping[str, str], *classes: type) -> list[str]:
    """Return the keys that none of the config classes has, sorted."""
    known = {key for cls in classes for key in keys_of(cls)}
    return sorted(set(properties) - known)


# Stands for a secret where a configuration is shown.
HIDDEN: Final = "******"


def hide_secrets(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties with the values hidden of all keys that resemble the name of a secret."""
    return {key: HIDDEN if text and names_secret(key) else text for key, text in properties.items()}


class Configuration:
    """Holds config objects and the keys that they do not know: all that a process was given.

    Unknown keys are kept and shown, so that a file of a Java server passes through unharmed. For
    the thread that owns the config objects.
    """

    def __init__(
        self,
        configs: Iterable[object],
        given: Mapping[str, str] | None = None,
        source: str = "the properties",
    ) -> None:
        self._configs = tuple(configs)
        self._source = source
        unknown = unknown_keys(given or {}, *map(type, self._configs))
        self._extra = {key: (given or {})[key] for key in unknown}
        self._values_of = [_values_getter(type(config)) for config in self._configs]
        self._shown_text = b""
        self._shown_values: list[Any] = []

    def properties(self, *, secrets: bool = False) -> dict[str, str]:
        """Return every key in force, the known ones with their current values.

        Leave out those of secrets unless they are asked for.
        """
        merged = dict(self._extra)
        for config in self._configs:
            merged.update(to_properties(config, secrets=secrets))
        return merged

    def shown(self) -> dict[str, str]:
        """Return what requests may see of it: every key in force, with the secrets hidden."""
        return hide_secrets(self.properties())

    def shown_text(self, more: Mapping[str, str] | None = None) -> bytes:
        """Return the lines of all that requests may see, and of `more`, as an answer's body.

        The text is kept until a value changes: making it takes a millisecond, and many may ask.
        """
        pairs = zip(self._values_of, self._configs, strict=True)
        values = [*(values_of(config) for values_of, config in pairs), dict(self._extra), more]
        if values != self._shown_values:
            self._shown_text = format_properties({**(more or {}), **self.shown()}).encode()
            self._shown_values = values
        return self._shown_text

    def text_to_save(self) -> str:
        """Return all that the configuration file has to hold, secrets included."""
        return format_properties(self.properties(secrets=True))

    def text(self) -> str:
        """Return what `-p` prints: every key in force, with the secrets hidden."""
        return format_properties(self.shown())

    def update(self, changes: Mapping[str, str], source: str | None = None) -> dict[str, str]:
        """Set known keys in the config objects and return those whose value changed.

        A key that is neither known nor given before is left out, as Java does. Nothing is changed
        when ConfigError is raised, as it is for a new value in a frozen config class.
        """
        label = source or self._source
        checked = [(config, _new_values(config, changes, label)) for config in self._configs]
        before = self.properties()
        for config, values in checked:
            for name, value in values.items():
                setattr(config, name, value)
        self._extra.update({key: changes[key] for key in self._extra if key in changes})
        return {key: text for key, text in self.properties().items() if before.get(key) != text}


def effective_properties(
    configs: Iterable[object], given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return what `-p` prints: the keys of the config objects and the unknown ones among `given`,
    with the secrets hidden.
    """
    return Configuration(configs, given).shown()


# Conversion


@dataclasses.dataclass(frozen=True)
class _Setting:
    name: str
    convert: Callable[[str], Any]
    optional: bool
    # No command and no request shows it (`metadata["secret"]`).
    secret: bool


@functools.cache
def _settings(cls: type) -> dict[str, _Setting]:
    assert dataclasses.is_dataclass(cls), f"{cls.__name__} is no dataclass"
    hints = typing.get_type_hints(cls)
    settings = {}
    for field in dataclasses.fields(cls):
        value_type, optional = _without_none(hints[field.name])
        key = field.metadata.get("key") or _camel(field.name)
        settings[key] = _Setting(
            field.name,
            _converter(value_type, field.metadata),
            optional,
            bool(field.metadata.get("secret")),
        )
    return settings


def _values_getter(cls: type) -> Callable[[object], Any]:
    """Return a function that returns the values of all fields of an object of the class."""
    return operator.attrgetter(*(setting.name for setting in _settings(cls).values()))


def _values(cls: type, properties: Mapping[str, str]) -> tuple[dict[str, Any], list[Mistake]]:
    """Return by field the values of the class's keys, and what is wrong with the others."""
    values: dict[str, Any] = {}
    mistakes = []
    for key, setting in _settings(cls).items():
        text = properties.get(key)
        if text is None:
            continue
        text = text.strip()
        try:
            empty = setting.optional and not text
            values[setting.name] = None if empty else setting.convert(text)
        except ValueError as error:
            mistakes.append(Mistake(key, f"{key}={text} does not fit, it must be {error}"))
    return values, mistakes


def _new_values(config: object, changes: Mapping[str, str], source: str) -> dict[str, Any]:
    """Return what `changes` would set in `config` that differs now. Raises ConfigError."""
    cls: type = type(config)
    given, mistakes = _values(cls, changes)
    if mistakes:
        raise ConfigError(f"{source}: {'; '.join(text for _, text in mistakes)}")
    values = {name: value for name, value in given.items() if getattr(config, name) != value}
    if values and cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # dataclasses do not declare it
        keys = [key for key, setting in _settings(cls).items() if setting.name in values]
        raise ConfigError(f"{source}: {', '.join(keys)} cannot be changed without a restart")
    return values


def _converter(value_type: Any, metadata: Mapping[str, Any]) -> Callable[[str], Any]:
    """Return a function from text to value whose ValueError carries the rule."""
    if value_type is bool:
        return _to_bool
    if value_type is int or value_type is float:
        low, high = metadata.get("min"), metadata.get("max")
        number: Callable[[str], int | float] = _to_int if value_type is int else _to_float
        return lambda text: _bounded(number(text), low, high)
    if value_type is str:
        return str
    if value_type is Path:
        return _to_path
    assert isinstance(value_type, type), f"a config field of type {value_type} is not supported"
    assert issubclass(value_type, Enum), f"a config field of type {value_type} is not supported"
    return lambda text: _to_enum(value_type, text)


def _to_bool(text: str) -> bool:
    # Java: Boolean.parseBoolean, which takes everything else for false.
    return text.lower() == "true"


def _to_path(text: str) -> Path:
    if not text:
        # To Path an empty text would be the present directory.
        raise ValueError("a path, it is empty")
    return Path(text)


def _to_int(text: str) -> int:
    if not _INT.fullmatch(text):
        raise ValueError("a whole number in decimal digits")
    return int(text)


def _to_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def _bounded(value: float, low: float | None, high: float | None) -> int | float:
    low = -_LONG_MAX - 1 if low is None else low
    high = _LONG_MAX if high is None else high
    if not low <= value <= high:
        raise ValueError(f"between {low} and {high}")
    return value


def _to_enum(enum_type: type[Enum], text: str) -> Enum:
    by_name = {member.name.upper(): member for member in enum_type}
    if member := by_name.get(text.upper()):
        return member
    raise ValueError(f"one of {', '.join(member.name for member in enum_type)}")


def _without_none(hint: Any) -> tuple[Any, bool]:
    if not isinstance(hint, types.UnionType) and typing.get_origin(hint) is not typing.Union:
        return hint, False
    rest = [part for part in typing.get_args(hint) if part is not types.NoneType]
    assert len(rest) == 1, f"a config field of type {hint} is not supported"
    return rest[0], True


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    return str(value)


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
