"""The command `cometmq proxy` (Java: mqproxy, ProxyStartup)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from cometmq.cli.servers.local_proxy import ProxyConfigFile
from cometmq.cli.servers.log_options import LogOptions, begin_log
from cometmq.cli.servers.serving import (
    Lenient,
)
from cometmq.cli.spread import spread

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.proxy.configuration.config import ProxyConfig

_TLS_TEXTS: Final = {
    "disabled": "without TLS",
    "permissive": "with and without TLS",
    "enforcing": "with TLS only",
}


@spread
def proxy(
    namesrv: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namesrvAddr",
            metavar="HOST:PORT",
            help="The name servers, separated by semicolons; else those of the file or NAMESRV_ADDR.",
        ),
    ] = None,
    config_file: ProxyConfigFile = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="The port: that of the file, else 8081; 0 takes a free one.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="The address to listen at: 127.0.0.1, with access control all addresses.",
        ),
    ] = None,
    *,
    open_to_all: Annotated[
        bool,
        typer.Option("--open", help="Listen at all addresses, though there is no access control."),
    ] = False,
    lenient: Lenient = False,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            metavar="N",
            min=1,
            help="Run N processes that listen at the same port, under one supervisor.",
        ),
    ] = None,
    process: Annotated[int | None, typer.Option("--process", min=0, hidden=True)] = None,
    logs: LogOptions,
) -> None:
    """Run a proxy: serve the gRPC clients of RocketMQ 5 in front of a cluster, ours or Java's."""
    from cometmq.cli.servers.processes import member_index

    index = member_index(processes, process)
    level = logs.log_level or "info"
    is_supervisor = processes is not None and index is None
    begin_log(level, replace(logs, log_file=None) if is_supervisor else logs)
    config = _config(namesrv, config_file, port, host, is_open=open_to_all, lenient=lenient)
    if processes is not None and index is None:
        options = ["--open"] * open_to_all + ["--lenient"] * lenient
        if config_file is not None:
            options += ["-pc", str(config_file)]
        _supervise(config, processes, options, replace(logs, log_level=level))
    if index is not None:
        config.shares_port = True
        # Each process has metrics of its own.
        config.front.metrics_prom_exporter_port += index
    _run(config)


def _config(
    namesrv: str | None,
    config_file: Path | None,
    port: int | None,
    host: str | None,
    *,
    is_open: bool,
    lenient: bool,
) -> ProxyConfig:
    """Return what a proxy serves, by the options and the file. Raises ConfigError, IllegalArgumentError."""
    from cometmq.cli.servers.local_proxy import read_configs
    from cometmq.client.limits import namesrv_addresses
    from cometmq.errors import ConfigError, IllegalArgumentError
    from cometmq.proxy.configuration.config import ProxyConfig
    from cometmq.proxy.configuration.keys import CLUSTER, LOCAL
    from cometmq.runtime.sockets.addresses import ANY_IPV4, is_loopback

    settings, front, control = read_configs(config_file, lenient=lenient)
    if settings.proxy_mode == LOCAL:
        raise ConfigError(
            f"proxyMode={LOCAL} asks for a proxy in the broker's process: run cometmq broker --enable-proxy, or "
            f"set {CLUSTER}"
        )
    addresses = namesrv_addresses(namesrv or settings.namesrv_addr)
    is_for_all = is_open or control.authentication_enabled
    address = host or (ANY_IPV4 if is_for_all else "127.0.0.1")
    if not is_for_all and not is_loopback(address):
        raise IllegalArgumentError(
            f"other machines can reach --host {address}, and access control is off; set "
            "authenticationEnabled=true in the file of -pc, add --open, or listen at 127.0.0.1"
        )
    chosen = settings.grpc_server_port if port is None else port
    return ProxyConfig(addresses, address, chosen, settings=settings, front=front, control=control)


def _supervise(config: ProxyConfig, count: int, options: list[str], logs: LogOptions) -> NoReturn:
    """Become the supervisor of `count` proxies."""
    from cometmq.cli.servers.proxy_processes import check_processes, run_proxies

    check_processes(count, config.bind_address, config.port)
    where = ["-n", ";".join(config.namesrv), "--host", config.bind_address]
    run_proxies(count, [*where, "--port", str(config.port), *options], logs)


def _run(config: ProxyConfig) -> None:
    """Run one proxy, which a supervisor has started if it shares its port."""
    from cometmq.cli.servers.processes import end_with_supervisor
    from cometmq.cli.servers.proxy_processes import READY_MARK
    from cometmq.cli.servers.serving import say, serve
    from cometmq.proxy.server import Proxy
    from cometmq.runtime.loop import run
    from cometmq.runtime.sockets.addresses import join_address

    async def main() -> None:
        server = Proxy(config)

        def say_ready() -> None:
            ready = (
                f"The proxy{READY_MARK}{join_address(config.bind_address, server.port)}, "
                f"{_TLS_TEXTS[server.front.mode]}, for {';'.join(config.namesrv)}"
            )
            if server.metrics_address is not None:
                ready += f". Metrics are at http://{server.metrics_address}/metrics"
            say(ready)

        if config.shares_port:
            await serve(server, say_ready, until_input_ends=True, on_stop=end_with_supervisor)
        else:
            await serve(server, say_ready)

    run(main())
