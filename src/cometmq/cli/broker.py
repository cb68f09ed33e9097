"""The command `cometmq broker` (Java: mqbroker, BrokerStartup)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.cli.serving import (
    ConfigFile,
    Lenient,
    LogFileMib,
    LogFiles,
    LogFormat,
    LogLevel,
    LogPath,
    PrintConfig,
)
from cometmq.runtime.log_file import FILE_MIB, KEPT_FILES

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.replication.config import ReplicationConfig
    from cometmq.store.config import StoreConfig

# Of the keys that `-p` shows, `-m` shows these (Java: @ImportantField).
IMPORTANT_KEYS: Final = frozenset(
    {
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerClusterName",
        "brokerId",
        "brokerIP1",
        "brokerName",
        "flushDiskType",
        "flushIntervalCommitLog",
        "listenPort",
        "mappedFileSizeCommitLog",
        "maxMessageSize",
        "msgTraceTopicName",
        "namesrvAddr",
        "rejectTransactionMessage",
        "storePathCommitLog",
        "storePathRootDir",
        "traceTopicEnable",
    }
)


def broker(
    config_file: ConfigFile = None,
    namesrv_addr: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namesrvAddr",
            metavar="HOST:PORT",
            help="Name servers, parted by semicolons; overrides the file's namesrvAddr and "
            "the environment's NAMESRV_ADDR.",
            show_default=False,
        ),
    ] = None,
    print_config: PrintConfig = False,
    print_important: Annotated[
        bool,
        typer.Option(
            "-m", "--printImportantConfig", help="Print the important settings only and exit."
        ),
    ] = False,
    lenient: Lenient = False,
    log_level: LogLevel = None,
    log_file: LogPath = None,
    log_format: LogFormat = None,
    log_file_mib: LogFileMib = FILE_MIB,
    log_files: LogFiles = KEPT_FILES,
) -> None:
    """Run a broker."""
    from cometmq.broker.config import CONFIG_CLASSES
    from cometmq.cli.serving import begin_log, read_config_file, report_unknown_keys, say, serve
    from cometmq.runtime.config import effective_properties, format_properties

    properties = read_config_file(config_file)
    if lenient:  # the misspelt keys that it lets pass are logged
        begin_log(log_level or "info")
    config, store_config, replication = load_configs(
        properties, namesrv_addr, config_file, lenient=lenient
    )
    config.log_level = log_level or config.log_level
    if print_config or print_important:
        shown = effective_properties([config, store_config, replication], properties)
        if print_important:
            shown = {key: text for key, text in shown.items() if key in IMPORTANT_KEYS}
        typer.echo(format_properties(shown), nl=False)
        return

    from cometmq.broker.operation.config_handlers import GivenConfig
    from cometmq.broker.server import Broker
    from cometmq.runtime.loop import run

    begin_log(config.log_level, log_file, log_format, log_file_mib, log_files)
    report_unknown_keys(properties, *CONFIG_CLASSES)

    async def main() -> None:
        server = Broker(
            config, store_config, replication, given=GivenConfig(properties, config_file)
        )

        def say_ready() -> None:
            ready = (
                f"The broker[{config.broker_name}, {server.address}] boot success. "
                "serializeType=JSON"
            )
            if config.namesrv_addr:
                ready += f" and name server is {config.namesrv_addr}"
            if server.metrics_address is not None:
                ready += f". Metrics are at http://{server.metrics_address}/metrics"
            say(ready)

        await serve(server, say_ready)

    run(main())


def load_configs(
    properties: Mapping[str, str],
    namesrv_addr: str | None,
    file: Path | None,
    *,
    lenient: bool = False,
) -> tuple[BrokerConfig, StoreConfig, ReplicationConfig]:
    """Make the configurations of the broker, its store and its copies. Raises ConfigError.

    The name servers come from the option, else the file, else the environment's NAMESRV_ADDR.
    """
    from cometmq.broker.config import broker_configs, check_name_servers

    config, store_config, replication = broker_configs(
        properties, source=str(file), file=file, lenient=lenient
    )
    config.namesrv_addr = (
        namesrv_addr or config.namesrv_addr or os.environ.get("NAMESRV_ADDR") or None
    )
    check_name_servers(config)
    return config, store_config, replication
