"""The command `cometmq proxy` (Java: mqproxy, ProxyStartup)."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from cometmq.cli.servers.local_proxy import ProxyConfigFile, proxy_missing
from cometmq.cli.servers.serving import (
    Lenient,
    LogFileMib,
    LogFiles,
    LogFormat,
    LogLevel,
    LogPath,
)
from cometmq.logs.file import FILE_MIB, KEPT_FILES

_TLS_TEXTS: Final = {
    "disabled": "without TLS",
    "permissive": "with and without TLS",
    "enforcing": "with TLS only",
}


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
    open_to_all: Annotated[
        bool,
        typer.Option("--open", help="Listen at all addresses, though there is no access control."),
    ] = False,
    lenient: Lenient = False,
    log_level: LogLevel = None,
    log_file: LogPath = None,
    log_format: LogFormat = None,
    log_file_mib: LogFileMib = FILE_MIB,
    log_files: LogFiles = KEPT_FILES,
) -> None:
    """Run a proxy: serve the gRPC clients of RocketMQ 5 in front of a cluster, ours or Java's."""
    from cometmq.cli.servers.local_proxy import read_configs
    from cometmq.cli.servers.serving import begin_log, say, serve
    from cometmq.client.limits import namesrv_addresses
    from cometmq.errors import ConfigError, IllegalArgumentError

    try:
        from cometmq.proxy.config import ProxyConfig
        from cometmq.proxy.keys import CLUSTER, LOCAL
        from cometmq.proxy.server import Proxy
    except ImportError as error:
        raise proxy_missing(error) from error
    from cometmq.runtime.loop import run
    from cometmq.runtime.sockets.addresses import ANY_IPV4, is_loopback, join_address

    begin_log(log_level or "info", log_file, log_format, log_file_mib, log_files)
    settings, front, control = read_configs(config_file, lenient=lenient)
    if settings.proxy_mode == LOCAL:
        raise ConfigError(
            f"proxyMode={LOCAL} asks for a proxy in the broker's process: run cometmq broker --enable-proxy, or "
            f"set {CLUSTER}"
        )
    addresses = namesrv_addresses(namesrv or settings.namesrv_addr)
    is_for_all = open_to_all or control.authentication_enabled
    address = host or (ANY_IPV4 if is_for_all else "127.0.0.1")
    if not is_for_all and not is_loopback(address):
        raise IllegalArgumentError(
            f"other machines can reach --host {address}, and access control is off; set "
            "authenticationEnabled=true in the file of -pc, add --open, or listen at 127.0.0.1"
        )
    chosen = settings.grpc_server_port if port is None else port

    async def main() -> None:
        server = Proxy(
            ProxyConfig(addresses, address, chosen, settings=settings, front=front, control=control)
        )

        def say_ready() -> None:
            ready = (
                f"The proxy serves gRPC at {join_address(address, server.port)}, "
                f"{_TLS_TEXTS[front.mode]}, for {';'.join(addresses)}"
            )
            if server.metrics_address is not None:
                ready += f". Metrics are at http://{server.metrics_address}/metrics"
            say(ready)

        await serve(server, say_ready)

    run(main())
