"""Run the brokers of `cometmq broker --processes`: each a process, under one supervisor."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from cometmq.errors import ConfigError, StoreLockedError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from cometmq.broker.processes import Configs
    from cometmq.cli.servers.log_options import LogOptions

log = get_logger(__name__)

READY_MARK: Final = " boot success. "
# A stop writes the tables in memory, which takes 22 seconds with 50,000 topics. systemd and Docker are
# configured to wait for 120.
STOP_LIMIT_S: Final = 100
# How long brokers without their supervisor, which was killed, may go on serving.
_SERVING_LIMIT_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.1


def member_index(processes: int | None, process: int | None) -> int | None:
    """Return the number of this process among them, None if it is none of them. Raises
    ConfigError.
    """
    if process is not None and (processes is None or process >= processes):
        raise ConfigError(f"--process {process} needs --processes with a larger number")
    return process


def end_with_supervisor() -> None:
    """Have this process killed if it does not stop in time. To be called when a stop begins.

    Usually the supervisor sees to that, but it may be gone.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(STOP_LIMIT_S)


def check_members(configs: Configs, count: int) -> list[Configs]:
    """Return the settings of all brokers. Raises ConfigError if these could not all run."""
    from cometmq.broker.processes import (
        MOST_PROCESSES,
        check_ports,
        check_root,
        member_configs,
    )
    from cometmq.runtime.sockets.ports import listen_fault

    if count > MOST_PROCESSES:
        raise ConfigError(f"--processes {count}: the limit is {MOST_PROCESSES}")
    members = [member_configs(configs, index) for index in range(count)]
    root = configs[1].store_path_root_dir
    names = [config.broker_name for config, *_ in members]
    for unserved in check_root(root, names, configs[1].store_path_commit_log):
        log.warning(
            "nobody serves the messages of a store",
            store=str(root / unserved),
            remedy="run as many processes as before until consumers have read it",
        )
    waited = _wait_for_former(members)
    check_ports(members, _patient_listen_fault if waited else listen_fault)
    return members


def _wait_for_former(members: list[Configs]) -> bool:
    """Wait for brokers whose supervisor was killed; return whether there were any.

    They stop by themselves, but have their stores and some ports until they have written what is in
    memory. Brokers that go on serving belong to another supervisor; brokers that need their ports
    then report an error.
    """
    from cometmq.runtime.sockets.ports import listen_fault

    began = SYSTEM_CLOCK.monotonic()
    reported = False
    while used := [member for member in members if _is_in_use(member[1].store_path_root_dir)]:
        serves = any(
            not config.listen_port or listen_fault(config.bind_address, config.listen_port)
            for config, *_ in used
        )
        if SYSTEM_CLOCK.monotonic() - began > (_SERVING_LIMIT_S if serves else STOP_LIMIT_S):
            return False
        if not reported:
            reported = True
            log.warning(
                "brokers of another supervisor still run; waiting for them to stop",
                brokers=[config.broker_name for config, *_ in used],
            )
        SYSTEM_CLOCK.sleep(_LOOK_AGAIN_S)
    return reported


def _is_in_use(store: Path) -> bool:
    from cometmq.store.reading.files import kept_from_brokers

    try:
        with kept_from_brokers(store):
            return False
    except StoreLockedError:
        return True
    except OSError:
        return False  # the broker itself reports what is wrong with its store


def _patient_listen_fault(host: str, port: int) -> str | None:
    """Return why a port cannot be had; one of a process that ends may take a moment."""
    from cometmq.runtime.sockets.ports import listen_fault

    deadline = SYSTEM_CLOCK.monotonic() + _SERVING_LIMIT_S
    while (fault := listen_fault(host, port)) and SYSTEM_CLOCK.monotonic() < deadline:
        SYSTEM_CLOCK.sleep(_LOOK_AGAIN_S)
    return fault


def run_supervisor(
    members: list[Configs],
    logs: LogOptions,
    config_file: Path | None,
    namesrv_addr: str | None,
    flags: list[str],
) -> NoReturn:
    """Become the supervisor of a broker for each member; each gets the `flags`."""
    options = ["broker", "--processes", str(len(members))]
    if config_file is not None:
        options += ["-c", str(config_file)]
    if namesrv_addr is not None:
        options += ["-n", namesrv_addr]
    names = [config.broker_name for config, *_ in members]
    supervise(names, [*options, *flags], logs, ready_mark=READY_MARK)


def supervise(
    names: list[str],
    options: list[str],
    logs: LogOptions,
    *,
    ready_mark: str,
    kind: str = "broker",
    kinds: str = "brokers",
) -> NoReturn:
    """Become the supervisor of one process `cometmq OPTIONS --process INDEX` for each name.

    All write to the log of the supervisor, for which `logs` gives a level.
    """
    from cometmq.logs.levels import parse_levels
    from cometmq.runtime.supervision.plan import Member, Plan, become_supervisor

    assert logs.log_level is not None
    command = [sys.executable, "-P", "-m", "cometmq", *options]
    command += ["--log-format", "json" if logs.is_json else "text", "--log-level", logs.log_level]
    plan = Plan(
        members=[
            Member(name, [*command, "--process", str(index)]) for index, name in enumerate(names)
        ],
        kind=kind,
        kinds=kinds,
        ready_mark=ready_mark,
        log_file=None if logs.log_file is None else str(logs.log_file.resolve()),
        log_file_bytes=logs.log_file_mib << 20,
        kept_log_files=logs.log_files,
        log_json=logs.is_json,
        log_threshold=parse_levels(logs.log_level).of("cometmq.runtime.supervision"),
        stop_limit_s=STOP_LIMIT_S,
    )
    become_supervisor(plan, options)
