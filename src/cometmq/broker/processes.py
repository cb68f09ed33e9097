"""Share one configuration among the brokers of `cometmq broker --processes`
(docs/internals/composition.md).

Broker i is called `brokerName-i`. Its store is in the directory of that name beneath
`storePathRootDir`, and each of its ports is the configured one and i times STRIDE more.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from cometmq.access.config import AccessConfig
from cometmq.broker.config import BrokerConfig
from cometmq.errors import ConfigError
from cometmq.replication.config import ReplicationConfig
from cometmq.store.config import StoreConfig

# Leaves room for the port of the VIP channel, which is 2 lower than a broker's, and that of
# replication, which is 1 higher. Java's examples have brokers of one machine 10 apart, too.
STRIDE: Final = 10
MOST_PROCESSES: Final = 64
_HIGHEST_PORT: Final = 65535
_VIP_DISTANCE: Final = 2
# The name of a file of a commit log: an offset.
_LOG_FILE: Final = re.compile(r"[0-9]{20}")

Configs: TypeAlias = tuple[BrokerConfig, StoreConfig, ReplicationConfig, AccessConfig]


class Port(NamedTuple):
    """A port that a broker listens on, and which key says so."""

    broker: str
    use: str
    key: str
    host: str
    number: int
    # A broker starts without its VIP channel if it must.
    is_needed: bool = True


def member_configs(configs: Configs, index: int) -> Configs:
    """Return the settings of broker `index` of those that share `configs`. Raises ConfigError."""
    config, store, replication, access = configs
    name = f"{config.broker_name}-{index}"
    moved = dataclasses.replace(
        config,
        broker_name=name,
        listen_port=_moved(config.listen_port, index, "listenPort", name),
        advertised_port=_moved(config.advertised_port, index, "advertisedPort", name),
        metrics_prom_exporter_port=_moved(
            config.metrics_prom_exporter_port, index, "metricsPromExporterPort", name
        ),
    )
    log_root = store.store_path_commit_log
    moved_store = dataclasses.replace(
        store,
        store_path_root_dir=store.store_path_root_dir / name,
        store_path_commit_log=None if log_root is None else log_root / name,
    )
    moved_replication = dataclasses.replace(
        replication,
        ha_listen_port=_moved(replication.ha_listen_port, index, "haListenPort", name),
        advertised_ha_port=_moved(replication.advertised_ha_port, index, "advertisedHaPort", name),
        ha_master_address=_moved_address(replication.ha_master_address, index, name),
    )
    # The files of accounts are the same for all.
    return moved, moved_store, moved_replication, access


def _moved(port: int, index: int, key: str, broker: str) -> int:
    """Return the port of broker `index`; 0 stays 0, which takes a free one."""
    moved = port + index * STRIDE if port else 0
    if moved > _HIGHEST_PORT:
        raise ConfigError(
            f"{key}={port} leaves no port for the broker {broker}: that would be {moved}, and the "
            f"highest is {_HIGHEST_PORT}; set a lower {key}, or run fewer processes"
        )
    return moved


def _moved_address(address: str | None, index: int, broker: str) -> str | None:
    """Return where broker `index` of a slave's machine finds its master, which is moved alike."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal():
        return address  # a client that connects to it gets the error
    return f"{host}:{_moved(int(port), index, 'haMasterAddress', broker)}"


# -- ports --


def ports_of(configs: Configs) -> Iterator[Port]:
    """Yield the ports that a broker listens on, without those that it chooses itself."""
    config, _, replication, _ = configs
    name, host = config.broker_name, config.bind_address
    if config.listen_port:
        yield Port(name, "port", "listenPort", host, config.listen_port)
        if config.vip_channel_enable and config.listen_port > _VIP_DISTANCE:
            vip = config.listen_port - _VIP_DISTANCE
            yield Port(name, "VIP port", "listenPort", host, vip, is_needed=False)
    if not replication.is_slave and (replication.ha_listen_port or config.listen_port):
        key = "haListenPort" if replication.ha_listen_port else "listenPort"
        ha = replication.ha_listen_port or config.listen_port + 1
        yield Port(name, "replication port", key, host, ha)
    if config.metrics_exporter_type == "PROM" and config.metrics_prom_exporter_port:
        exporter = config.metrics_prom_exporter_host.strip() or host
        number = config.metrics_prom_exporter_port
        yield Port(name, "metrics port", "metricsPromExporterPort", exporter, number)


def check_ports(members: list[Configs], fault_of: Callable[[str, int], str | None]) -> None:
    """Raise ConfigError that names the port and its broker if one is taken or meant twice.

    `fault_of` says why a host and port cannot be listened on, None if they can.
    """
    known: dict[int, Port] = {}
    for port in (port for configs in members for port in ports_of(configs)):
        if port.number > _HIGHEST_PORT:
            raise ConfigError(
                f"the {port.use} of the broker {port.broker} would be {port.number}, and the highest "
                f"is {_HIGHEST_PORT}: set a lower {port.key}"
            )
        if (other := known.setdefault(port.number, port)) is not port:
            raise ConfigError(
                f"{port.number} would be the {other.use} of the broker {other.broker} and the "
                f"{port.use} of {port.broker}: set another "
                f"{' or '.join(dict.fromkeys((port.key, other.key)))} (each broker's ports are "
                f"{STRIDE} higher than those of the one before)"
            )
        if port.is_needed and (fault := fault_of(port.host, port.number)):
            raise ConfigError(
                f"the broker {port.broker} cannot have its {port.use} {port.number}: {fault}; free "
                f"it, or set another {port.key} (each broker's ports are {STRIDE} higher than those "
                "of the one before)"
            )


# -- stores --


def check_root(root: Path, names: list[str], log_root: Path | None = None) -> list[str]:
    """Raise ConfigError if `root` or `log_root` has the store of a single broker, or if `root` has
    stores under another name only. `log_root` is storePathCommitLog.

    Return the names of stores beneath `root` that no broker of `names` would serve.
    """
    mark = _mark_of(root)
    log_moves = log_root if log_root is not None and _has_log(log_root) else None
    if mark or log_moves:
        raise ConfigError(
            f"{log_moves or root} has the store of a single broker ({mark or 'commitlog'}), whose "
            f"messages none of the brokers {names[0]} to {names[-1]} would serve: set another "
            f"storePathRootDir, or stop that broker and make it the store of {names[0]}: "
            + " && ".join(_moves(root, log_moves, names[0]))
        )
    if not root.is_dir():
        return []
    stem = names[0].rpartition("-")[0]
    stores = sorted(path.name for path in root.iterdir() if _is_numbered(path) and _mark_of(path))
    own = [name for name in stores if name.rpartition("-")[0] == stem]
    if stores and not own:
        other = stores[0].rpartition("-")[0]
        raise ConfigError(
            f"{root} has stores of brokers of another name ({stores[0]}), which none of the brokers "
            f"{names[0]} to {names[-1]} would serve: set brokerName={other}, rename the directories, "
            "or set another storePathRootDir"
        )
    return [name for name in own if name not in names]


def _moves(root: Path, log_root: Path | None, name: str) -> Iterator[str]:
    """Yield the commands that make the store of a single broker that of the broker `name`."""
    if log_root is not None:
        yield _move(log_root, name)
    # Its log may lie beneath the other files.
    is_beneath = log_root is not None and log_root.parent == root
    yield _move(root, name, *([log_root.name] if log_root is not None and is_beneath else []))


def _move(directory: Path, name: str, *staying: str) -> str:
    stay = " ".join(f"! -name {shlex.quote(one)}" for one in (name, *staying))
    source, target = shlex.quote(str(directory)), shlex.quote(str(directory / name))
    return (
        f"mkdir -p {target} && find {source} -mindepth 1 -maxdepth 1 {stay} -exec mv -t {target} "
        "{} +"
    )


def check_single(root: Path, broker_name: str) -> None:
    """Raise ConfigError if a single broker would begin an empty store beside those of several."""
    first = root / f"{broker_name}-0"
    if not _mark_of(root) and _mark_of(first):
        raise ConfigError(
            f"{root} has the stores of several brokers ({first.name}), which a single broker would "
            "not serve: give --processes, or set another storePathRootDir"
        )


def _mark_of(directory: Path) -> str:
    """Return the file that shows that a directory is the store of one broker, "" if it is none.

    A commit log that lies elsewhere may have the logs of several brokers beneath `commitlog`. Of a
    directory of another user nothing is known; a broker that opens it says so with the remedy.
    """
    try:
        if _has_log(directory / "commitlog"):
            return "commitlog"
        return "checkpoint" if (directory / "checkpoint").exists() else ""
    except PermissionError:
        return ""


def _has_log(directory: Path) -> bool:
    return directory.is_dir() and any(
        _LOG_FILE.fullmatch(path.name) for path in directory.iterdir()
    )


def _is_numbered(path: Path) -> bool:
    stem, _, number = path.name.rpartition("-")
    return bool(stem) and number.isdecimal()
