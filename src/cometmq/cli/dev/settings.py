"""Combine the servers' settings for `cometmq dev`: its own defaults, a file, and `--set`.

A file may be the broker.conf of a production broker. It names ports, directories and a role that
belong to that machine; here the options of the command decide those, so the file's are left aside
and the screen names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cometmq.access.config import AccessConfig
from cometmq.broker import config as broker_config
from cometmq.errors import ConfigError
from cometmq.namesrv import config as namesrv_config
from cometmq.runtime.configuration.config import keys_of, load_properties, new_config

# The settings of a broker of `cometmq dev`, unless a file or an option says otherwise.
DEFAULTS: Final[Mapping[str, str]] = {
    # A user who tries things out tries SQL92, too.
    "enablePropertyFilter": "true",
    # The store preallocates files. With these sizes a new store takes 16 MiB and 120 kB a queue,
    # where RocketMQ's own sizes would take a gigabyte and 6 MB.
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(6000 * 20),
}
# Keys that the command itself sets, and the option that decides each.
_DECIDED_BY: Final[Mapping[str, str]] = {
    "advertisedHaPort": "--broker-port",
    "advertisedPort": "--broker-port",
    "bindAddress": "--host",
    "brokerId": "--slaves",
    "brokerIP1": "--host",
    "brokerIP2": "--host",
    "brokerName": "--brokers",
    "configStorePath": "--store",
    "haListenPort": "--broker-port",
    "haMasterAddress": "--slaves",
    "kvConfigPath": "--store",
    "listenPort": "--port and --broker-port",
    "logLevel": "--log-level",
    "metricsExporterType": "the command, which always serves /metrics",
    "metricsPromExporterHost": "--host",
    "metricsPromExporterPort": "the command, which takes a free port",
    "namesrvAddr": "--port",
    "storePathCommitLog": "--store",
    "storePathRootDir": "--store",
}


@dataclass(frozen=True, slots=True)
class DevSettings:
    """Holds what the file and `--set` say, by the servers that it is for.

    `left_aside` are the file's keys that options of the command decide.
    """

    of_brokers: Mapping[str, str]
    of_name_server: Mapping[str, str]
    source: str = "cometmq dev"
    file: Path | None = None
    left_aside: tuple[str, ...] = ()

    @property
    def has_access_control(self) -> bool:
        """Whether the settings ask for signed requests."""
        config, _ = new_config(AccessConfig, self.of_brokers)
        return config is not None and config.is_on


NO_SETTINGS: Final = DevSettings(DEFAULTS, {})


def dev_settings(file: Path | None, given: Iterable[str]) -> DevSettings:
    """Return the settings of a file and of `--set KEY=VALUE`, which counts where both have a key.

    Raises ConfigError for an entry that is no KEY=VALUE and for one that an option of the command
    decides. Whether keys and values fit is checked when the servers are made.
    """
    chosen = _chosen(given)
    read = {} if file is None else load_properties(file)
    left_aside = tuple(key for key in read if key in _DECIDED_BY)
    properties = {key: text for key, text in read.items() if key not in _DECIDED_BY} | chosen
    if properties.get("brokerRole", "").strip() == "SLAVE":
        raise ConfigError(
            "brokerRole=SLAVE: the brokers of cometmq dev are masters, --slaves adds slaves"
        )
    ours = _keys(broker_config.CONFIG_CLASSES)
    theirs = _keys(namesrv_config.CONFIG_CLASSES)
    named = [str(file)] if file is not None else []
    return DevSettings(
        # A key that neither kind of server knows is reported by the broker.
        {**DEFAULTS, **{k: v for k, v in properties.items() if k in ours or k not in theirs}},
        {key: text for key, text in properties.items() if key in theirs},
        " and ".join([*named, "--set"] if chosen else named) or "cometmq dev",
        file,
        left_aside,
    )


def _chosen(given: Iterable[str]) -> dict[str, str]:
    chosen = {}
    for entry in given:
        key, sign, text = entry.partition("=")
        key = key.strip()
        if not sign or not key:
            raise ConfigError(
                f"--set {entry}: this is no KEY=VALUE; write, say, --set transactionTimeOut=60000"
            )
        if key in _DECIDED_BY:
            raise ConfigError(f"--set {entry}: cometmq dev takes {key} from {_DECIDED_BY[key]}")
        chosen[key] = text.strip()
    return chosen


def _keys(classes: Iterable[type]) -> set[str]:
    return {key for cls in classes for key in keys_of(cls)}


def properties_of(**fields: Any) -> dict[str, str]:
    """Return values as a properties file has them."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in fields.items()
    }
