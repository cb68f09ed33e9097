"""Know the settings of brokers: their defaults, and whether a change takes effect without a restart.

`broker_settings.json` holds the default values of this release and of Apache RocketMQ 5.5.0, except
those that depend on the machine. Tests compare it with both brokers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from cometmq.runtime.configuration.config import HIDDEN, hide_secrets

_FILE: Final = Path(__file__).with_name("broker_settings.json")
# A key that only CometMQ's brokers have.
_OURS: Final = "maxHeldPullsPerConnection"


@dataclass(frozen=True, slots=True)
class Setting:
    """Is a setting in force at a broker.

    `default` is None where it is not known or depends on the machine. `is_changeable` says that a
    change takes effect at once. A secret is hidden.
    """

    key: str
    value: str
    default: str | None
    is_changeable: bool

    @property
    def is_changed(self) -> bool:
        """Whether the value differs from the default; False if the default is not known."""
        return self.default is not None and not _same(self.value, self.default)


def settings_of(config: Mapping[str, str]) -> list[Setting]:
    """Return the settings of a broker of CometMQ or of Java, from what `brokers.config` returned.

    Java's brokers of other releases than 5.5 are compared with 5.5's defaults.
    """
    table = _table()
    defaults: Mapping[str, str] = table["cometmq" if _OURS in config else "java"]
    changeable = frozenset(table["changeable"])
    return [
        Setting(key, value, None if value == HIDDEN else defaults.get(key), key in changeable)
        for key, value in sorted(hide_secrets(config).items())
    ]


def _same(value: str, default: str) -> bool:
    try:
        return float(value) == float(default)
    except ValueError:
        return value == default


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(_FILE.read_text("utf-8"))
    return table
