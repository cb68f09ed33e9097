"""The command `cometmq namesrv` (Java: mqnamesrv, NamesrvStartup)."""

from __future__ import annotations

import typer

from cometmq.cli.serving import ConfigFile, Lenient, LogLevel, PrintConfig


def namesrv(
    config_file: ConfigFile = None,
    print_config: PrintConfig = False,
    lenient: Lenient = False,
    log_level: LogLevel = "info",
) -> None:
    """Run a name server."""
    from cometmq.cli.serving import read_config_file, report_unknown_keys, say, serve
    from cometmq.namesrv.config import NamesrvConfig, namesrv_config
    from cometmq.runtime.config import effective_properties, format_properties
    from cometmq.runtime.logging import configure_logging

    properties = read_config_file(config_file)
    if lenient:  # the misspelt keys that it lets pass are logged
        configure_logging(log_level)
    config = namesrv_config(properties, source=str(config_file), file=config_file, lenient=lenient)
    if config_file is not None:
        # UPDATE_NAMESRV_CONFIG writes its changes back to the file that the settings came from.
        config.config_store_path = config_file.resolve()
    if print_config:
        typer.echo(format_properties(effective_properties([config], properties)), nl=False)
        return

    from cometmq.namesrv.server import NameServer
    from cometmq.runtime.loop import run

    configure_logging(log_level)
    report_unknown_keys(properties, NamesrvConfig)

    async def main() -> None:
        server = NameServer(config, properties=properties)

        def say_ready() -> None:
            ready = (
                "The Name Server boot success. serializeType=JSON, "
                f"address {config.bind_address}:{server.port}"
            )
            if server.metrics_address is not None:
                ready += f". Metrics are at http://{server.metrics_address}/metrics"
            say(ready)

        await serve(server, say_ready)

    run(main())
