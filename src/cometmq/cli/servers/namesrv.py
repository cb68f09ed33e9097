"""The command `cometmq namesrv` (Java: mqnamesrv, NamesrvStartup)."""

from __future__ import annotations

import typer

from cometmq.cli.servers.log_options import LogOptions, begin_log
from cometmq.cli.servers.serving import (
    ConfigFile,
    Lenient,
    Open,
    PrintConfig,
)
from cometmq.cli.spread import spread


@spread
def namesrv(
    config_file: ConfigFile = None,
    print_config: PrintConfig = False,
    lenient: Lenient = False,
    open_to_all: Open = False,
    *,
    logs: LogOptions,
) -> None:
    """Run a name server."""
    from cometmq.cli.servers.serving import (
        read_config_file,
        report_unknown_keys,
        say,
        serve,
    )
    from cometmq.namesrv.config import CONFIG_CLASSES, namesrv_configs
    from cometmq.runtime.configuration.config import effective_properties, format_properties
    from cometmq.runtime.sockets.addresses import join_address
    from cometmq.tls.config import DEFAULT_TLS_FILE, with_tls_file

    properties = with_tls_file(read_config_file(config_file), DEFAULT_TLS_FILE)
    if lenient:  # the misspelt keys that it lets pass are logged
        begin_log(logs.log_level or "info")
    config, access = namesrv_configs(
        properties, source=str(config_file), file=config_file, lenient=lenient
    )
    access.protected_mode = access.protected_mode and not open_to_all
    config.log_level = logs.log_level or config.log_level
    if config_file is not None:
        # UPDATE_NAMESRV_CONFIG writes its changes back to the file that the settings came from.
        config.config_store_path = config_file.resolve()
    if print_config:
        typer.echo(format_properties(effective_properties([config, access], properties)), nl=False)
        return

    from cometmq.namesrv.server import NameServer
    from cometmq.runtime.loop import run

    begin_log(config.log_level, logs)
    report_unknown_keys(properties, *CONFIG_CLASSES)

    async def main() -> None:
        server = NameServer(config, access, properties=properties)

        def say_ready() -> None:
            ready = (
                "The Name Server boot success. serializeType=JSON, "
                f"address {join_address(config.bind_address, server.port)}"
            )
            if server.metrics_address is not None:
                ready += f". Metrics are at http://{server.metrics_address}/metrics"
            say(ready)

        await serve(server, say_ready)

    run(main())
