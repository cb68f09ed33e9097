"""Runs the processes of `cometmq proxy --processes`: each listens at the same port, under one supervisor."""

from __future__ import annotations

import sys
from typing import Final, NoReturn

from cometmq.cli.servers.processes import STOP_LIMIT_S, LogOptions
from cometmq.errors import ConfigError
from cometmq.runtime.sockets.addresses import join_address

READY_MARK: Final = " serves gRPC at "
MOST_PROCESSES: Final = 64


def check_processes(count: int, host: str, port: int) -> None:
    """Raise ConfigError if so many processes cannot listen there.

    The kernel would let them share the port of a stranger that allows it, too.
    """
    from cometmq.runtime.sockets.ports import listen_fault

    if count > MOST_PROCESSES:
        raise ConfigError(f"--processes {count}: the limit is {MOST_PROCESSES}")
    if port == 0:
        raise ConfigError(
            "--processes needs a port: with --port 0 each process would take another one"
        )
    if fault := listen_fault(host, port):
        raise ConfigError(
            f"the proxy cannot listen at {join_address(host, port)}: {fault}; choose another port"
        )


def run_proxies(count: int, options: list[str], log_options: LogOptions) -> NoReturn:
    """Become the supervisor of `count` proxies with these options."""
    from cometmq.logs.levels import parse_levels
    from cometmq.runtime.supervision.plan import Member, Plan, become_supervisor

    as_json = log_options.format == "json" or (
        log_options.format is None and (log_options.file is not None or not sys.stderr.isatty())
    )
    shown = ["proxy", "--processes", str(count), *options]
    command = [sys.executable, "-P", "-m", "cometmq", *shown]
    command += ["--log-format", "json" if as_json else "text", "--log-level", log_options.level]
    plan = Plan(
        members=[
            Member(f"proxy-{index}", [*command, "--process", str(index)]) for index in range(count)
        ],
        kind="proxy",
        kinds="proxies",
        ready_mark=READY_MARK,
        log_file=None if log_options.file is None else str(log_options.file.resolve()),
        log_file_bytes=log_options.file_mib << 20,
        kept_log_files=log_options.kept_files,
        log_json=as_json,
        log_threshold=parse_levels(log_options.level).of("cometmq.runtime.supervision"),
        stop_limit_s=STOP_LIMIT_S,
    )
    become_supervisor(plan, shown)
