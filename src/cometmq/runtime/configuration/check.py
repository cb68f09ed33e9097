"""Find all mistakes in a server's configuration and report them at once, with the file's lines.

Three kinds of mistakes keep a server from starting: values that do not fit; misspelt keys, which
neither we nor any release of RocketMQ know; and keys that ask for a protection that CometMQ does
not give. A key that Java knows and that has no effect here is otherwise no mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.configuration.config import (
    Mistake,
    keys_of,
    line_numbers,
    new_config,
    parse_steps,
    unknown_keys,
)
from cometmq.runtime.spelling import did_you_mean

log = get_logger(__name__)

_MOST_SHOWN: Final = 20
# So many mistakes that are only counted are noted in a step.
_COUNTED_AT_ONCE: Final = 256
# Several times the size of all Java's keys. The loop parses an update's text, about a megabyte a
# second.
MAX_UPDATE_BYTES: Final = 128 * 1024


class Promise(NamedTuple):
    """A protection, or a service, that a configuration key asks for and that CometMQ does not give.

    `is_asked` says whether a value of the key asks for it; Java's default never does.
    `complaint` continues the error text after `key=value`.
    """

    is_asked: Callable[[str], bool]
    complaint: str


def is_true(text: str) -> bool:
    return text.lower() == "true"


def is_one_of(*words: str) -> Callable[[str], bool]:
    return lambda text: text.lower() in words


_TLS_BY_KEYS: Final = (
    "is the name of a field in Java, and no key of a file: write tls.server.mode, tls.enable, "
    "tls.server.need.client.auth and so on"
)

# Java's exporters are OTLP_GRPC, PROM and LOG.
_EXPORTER: Final = Promise(
    lambda text: text not in ("DISABLE", "PROM"),
    "asks for an exporter that CometMQ does not have: set PROM, which serves /metrics over HTTP on "
    "metricsPromExporterPort (a collector can scrape it and pass it on), or DISABLE",
)
_TLS: Final = Promise(is_true, _TLS_BY_KEYS)
_ENFORCING: Final = Promise(is_one_of("enforcing"), _TLS_BY_KEYS)
_CLIENT_CERTIFICATES: Final = Promise(is_one_of("require", "optional"), _TLS_BY_KEYS)

# These apply to every server.
SERVER_PROMISES: Final[Mapping[str, Promise]] = {
    "metricsExporterType": _EXPORTER,
    "tlsEnable": _TLS,
    "tlsServerMode": _ENFORCING,
    "tlsMode": _ENFORCING,
    "tlsServerAuthClient": _TLS,
    "tlsServerNeedClientAuth": _CLIENT_CERTIFICATES,
    "tlsClientAuthServer": _TLS,
}


def broken_promises(
    properties: Mapping[str, str], promises: Mapping[str, Promise]
) -> list[Mistake]:
    """Return a mistake for each entry that asks for a protection which CometMQ does not give."""
    mistakes = []
    for key, promise in promises.items():
        text = properties.get(key, "").strip()
        if text and promise.is_asked(text):
            mistakes.append(Mistake(key, f"{key}={text} {promise.complaint}"))
    return mistakes


def misspelt_keys(
    properties: Mapping[str, str], *classes: type, server: str, also: Iterable[str] = ()
) -> list[Mistake]:
    """Return a mistake for each key that nobody knows.

    A key is known if it belongs to one of the config classes or to a release of RocketMQ, or is in
    `also`. `server` names the kind of server in the mistakes' texts.
    """
    mistakes: list[Mistake] = []
    for _ in misspelt_steps(properties, *classes, server=server, also=also, mistakes=mistakes):
        pass
    return mistakes


def misspelt_steps(
    properties: Mapping[str, str],
    *classes: type,
    server: str,
    also: Iterable[str],
    mistakes: list[Mistake],
) -> Iterator[None]:
    """Add to `mistakes` what `misspelt_keys` returns, in steps."""
    strangers = set(unknown_keys(properties, *classes)).difference(also)
    if not strangers:
        return
    # Imported here because the list is long and most starts do not need it.
    from cometmq.runtime.configuration.java_keys import JAVA_KEYS

    known = JAVA_KEYS.union(*map(keys_of, classes))
    yield
    for number, key in enumerate(sorted(strangers - JAVA_KEYS)):
        # Comparing one key with all known ones takes a millisecond.
        guess = did_you_mean(key, known) if number < _MOST_SHOWN else ""
        text = f"this {server} knows no {key:.100}, nor does any of Java's{guess}"
        mistakes.append(Mistake(key, text))
        if number < _MOST_SHOWN or number % _COUNTED_AT_ONCE == 0:
            yield


def checked_configs(
    classes: Iterable[type[Any]],
    properties: Mapping[str, str],
    *,
    server: str,
    source: str,
    file: Path | None = None,
    promises: Mapping[str, Promise],
    also: Iterable[str] = (),
    lenient: bool = False,
) -> list[Any]:
    """Make a config of each class from `properties`. Raises one ConfigError with all the mistakes.

    `also` are keys that are known besides those of the classes and of Java's brokers.

    The error calls the properties `source` and takes line numbers from `file`, if they come from
    one. `lenient` logs misspelt keys as warnings; the other mistakes still raise.
    """
    configs, misspelt, mistakes = find_mistakes(
        tuple(classes), properties, server=server, promises=promises, also=also
    )
    if lenient:
        for mistake in misspelt:
            log.warning("misspelt key without effect", key=mistake.key, why=mistake.text)
    else:
        mistakes += [
            Mistake(key, f"{text} (--lenient starts all the same)") for key, text in misspelt
        ]
    if mistakes:
        raise ConfigError(_listed(mistakes, source, file))
    return configs


def find_mistakes(
    classes: tuple[type[Any], ...],
    properties: Mapping[str, str],
    *,
    server: str,
    promises: Mapping[str, Promise],
    also: Iterable[str] = (),
) -> tuple[list[Any], list[Mistake], list[Mistake]]:
    """Make a config of each class, None in the place of one that cannot be made.

    Return the configs, the misspelt keys, and all other mistakes.
    """
    misspelt = misspelt_keys(properties, *classes, server=server, also=(*promises, *also))
    mistakes = broken_promises(properties, promises)
    configs = []
    for cls in classes:
        config, wrong = new_config(cls, properties)
        configs.append(config)
        mistakes += wrong
    return configs, misspelt, mistakes


def prepare() -> None:
    """Load what an update needs. Takes some tens of milliseconds the first time; for any thread."""
    import javaproperties  # noqa: F401 - starts without a file need none of these

    import cometmq.runtime.configuration.java_keys  # noqa: F401 - the list is long


def check_update(
    changes: Mapping[str, str],
    classes: Iterable[type],
    *,
    server: str,
    source: str,
    promises: Mapping[str, Promise],
    given: Iterable[str] = (),
) -> Iterator[None]:
    """Raise ConfigError if an update has misspelt keys or asks for a protection that is not there.

    In steps: an update may have thousands of keys. `given` are the keys that the configuration has already. They count as known: they passed at the
    start, so an update may change them.
    """
    mistakes = broken_promises(changes, promises)
    yield from misspelt_steps(
        changes, *classes, server=server, also=(*promises, *given), mistakes=mistakes
    )
    if mistakes:
        raise ConfigError(_listed(mistakes, source, None))


def check_changeable(
    changes: Mapping[str, str],
    shown: Mapping[str, str],
    changeable: Container[str],
    *,
    server: str,
    source: str,
) -> dict[str, str]:
    """Return the entries of an update that change something.

    `shown` has the values in force, without secrets: a tool may send all of it back with one line
    changed. Raises ConfigError if a key outside `changeable` would change. That list has no key
    that names a file, an address, a command, code or a credential, so that nobody who can send the
    request can reach further than the server's own settings (CVE-2023-33246, CVE-2023-37582).
    """
    wanted = {key: text for key, text in changes.items() if shown.get(key) != text}
    if fixed := sorted(key for key in wanted if key not in changeable):
        raise ConfigError(
            f"{source}: {', '.join(fixed)} cannot be changed while the {server} runs: set it in the "
            f"configuration file and restart the {server}. docs/reference/configuration.md marks the "
            "keys that requests may change as live"
        )
    return wanted


def decode_update(body: bytes | memoryview, source: str, changes: dict[str, str]) -> Iterator[None]:
    """Put the entries of an update's body into `changes`, in steps. Raises ConfigError; `source` is the
    update's name.
    """
    if len(body) > MAX_UPDATE_BYTES:
        raise ConfigError(
            f"{source} has {len(body)} bytes, the limit is {MAX_UPDATE_BYTES}; send changed keys only"
        )
    try:
        text = bytes(body).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8: {error}") from error
    yield from parse_steps(text, source, changes)


def _listed(mistakes: list[Mistake], source: str, file: Path | None) -> str:
    lines = line_numbers(file) if file is not None else {}
    mistakes.sort(key=lambda mistake: lines.get(mistake.key, 0))
    if len(mistakes) == 1:
        place = f" (line {lines[mistakes[0].key]})" if mistakes[0].key in lines else ""
        return f"{source}: {mistakes[0].text}{place}"
    listed = [f"{source} has {len(mistakes)} mistakes:"]
    for key, text in mistakes[:_MOST_SHOWN]:
        listed.append(f"  line {lines[key]}: {text}" if key in lines else f"  {text}")
    if len(mistakes) > _MOST_SHOWN:
        listed.append(f"  and {len(mistakes) - _MOST_SHOWN} more")
    return "\n".join(listed)
