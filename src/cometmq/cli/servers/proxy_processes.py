"""Run the processes of `cometmq proxy --processes`: each listens at the same port, under one supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from cometmq.cli.servers.processes import supervise
from cometmq.errors import ConfigError
from cometmq.runtime.sockets.addresses import join_address

if TYPE_CHECKING:
    from cometmq.cli.servers.log_options import LogOptions

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


def run_proxies(count: int, options: list[str], logs: LogOptions) -> NoReturn:
    """Become the supervisor of `count` proxies with these options."""
    supervise(
        [f"proxy-{index}" for index in range(count)],
        ["proxy", "--processes", str(count), *options],
        logs,
        ready_mark=READY_MARK,
        kind="proxy",
        kinds="proxies",
    )
