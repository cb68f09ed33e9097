"""The command `cometmq broker` (Java: mqbroker, BrokerStartup)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.cli.servers.local_proxy import ProxyOptions, check_proxy_options, with_proxy
from cometmq.cli.servers.log_options import LogOptions, begin_log
from cometmq.cli.servers.serving import (
    ConfigFile,
    Lenient,
    Open,
    PrintConfig,
)
from cometmq.cli.spread import spread

if TYPE_CHECKING:
    from cometmq.broker.operation.config_handlers import GivenConfig
    from cometmq.broker.processes import Configs

# The keys that `-m` shows, a part of those of `-p` (Java: @ImportantField).
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


_NamesrvAddr = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namesrvAddr",
        metavar="HOST:PORT",
        help="Name servers, separated by semicolons; overrides the file's namesrvAddr and "
        "the environment's NAMESRV_ADDR.",
    ),
]
_PrintImportant = Annotated[
    bool,
    typer.Option(
        "-m", "--printImportantConfig", help="Print the important settings only and exit."
    ),
]
_Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        help="Run N brokers, each in a process of its own: brokerName-0 and on, each with a "
        "store of that name beneath storePathRootDir and with ports 10 higher than those of "
        "the one before.",
    ),
]
_EnableProxy = Annotated[
    bool,
    typer.Option(
        "--enable-proxy",
        help="Also serve the gRPC clients of RocketMQ 5, in this process (the extra proxy).",
    ),
]
_ProxyPort = Annotated[
    int | None,
    typer.Option(
        "--proxy-port",
        min=0,
        max=65535,
        help="The port of --enable-proxy: that of its file, else 8081; 0 takes a free one.",
    ),
]
_ProxyConfigFile = Annotated[
    Path | None,
    typer.Option(
        "-pc",
        "--proxyConfigPath",
        metavar="FILE",
        help="For --enable-proxy: a JSON file with the keys of RocketMQ's rmq-proxy.json.",
    ),
]


@spread
def broker(
    config_file: ConfigFile = None,
    namesrv_addr: _NamesrvAddr = None,
    print_config: PrintConfig = False,
    print_important: _PrintImportant = False,
    lenient: Lenient = False,
    *,
    open_to_all: Open = False,
    processes: _Processes = None,
    enable_proxy: _EnableProxy = False,
    proxy_port: _ProxyPort = None,
    proxy_config: _ProxyConfigFile = None,
    process: Annotated[int | None, typer.Option("--process", min=0, hidden=True)] = None,
    logs: LogOptions,
) -> None:
    """Run a broker, or several under one supervisor."""
    from cometmq.broker.config import CONFIG_CLASSES
    from cometmq.broker.processes import check_single, member_configs
    from cometmq.cli.servers.processes import (
        check_members,
        member_index,
        run_supervisor,
    )
    from cometmq.cli.servers.serving import read_config_file, report_unknown_keys
    from cometmq.runtime.host.bus_errors import explain_bus_errors
    from cometmq.tls.config import DEFAULT_TLS_FILE, with_tls_file

    index = member_index(processes, process)
    check_proxy_options(
        enable_proxy=enable_proxy, port=proxy_port, config_file=proxy_config, processes=processes
    )
    properties = with_tls_file(read_config_file(config_file), DEFAULT_TLS_FILE)
    if lenient and index is None:  # the misspelt keys that it lets pass are logged
        begin_log(logs.log_level or "info")
    configs = load_configs(properties, namesrv_addr, config_file, lenient=lenient)
    config, store_config, _, access = configs
    access.protected_mode = access.protected_mode and not open_to_all
    config.log_level = logs.log_level or config.log_level
    if print_config or print_important:
        if processes is None:
            _print_config(configs, properties, important=print_important)
        for number in range(processes or 0):
            member = member_configs(configs, number)
            typer.echo(f"# {member[0].broker_name}")
            _print_config(member, properties, important=print_important)
        return
    if processes is not None and index is None:
        begin_log(config.log_level, replace(logs, log_file=None))
        members = check_members(configs, processes)
        flags = ["--lenient"] * lenient + ["--open"] * open_to_all
        shared = replace(logs, log_level=config.log_level)
        run_supervisor(members, shared, config_file, namesrv_addr, flags)
    begin_log(config.log_level, logs)
    explain_bus_errors(logs.log_file)
    report_unknown_keys(properties, *CONFIG_CLASSES)
    if index is None:
        check_single(store_config.store_path_root_dir, config.broker_name)
    else:
        configs = member_configs(configs, index)
    from cometmq.broker.operation.config_handlers import GivenConfig

    is_member = index is not None
    given = GivenConfig(properties, config_file, is_shared=is_member)
    proxy = ProxyOptions(proxy_port, proxy_config, lenient) if enable_proxy else None
    _run(configs, given, is_member=is_member, proxy=proxy)


def _print_config(configs: Configs, properties: Mapping[str, str], *, important: bool) -> None:
    from cometmq.runtime.configuration.config import effective_properties, format_properties

    shown = effective_properties(configs, properties)
    if important:
        shown = {key: text for key, text in shown.items() if key in IMPORTANT_KEYS}
    typer.echo(format_properties(shown), nl=False)


def _run(
    configs: Configs, given: GivenConfig, *, is_member: bool, proxy: ProxyOptions | None
) -> None:
    """Run one broker, which a supervisor has started if it `is_member`, with a proxy beside it if asked for."""
    from cometmq.broker.server import Broker
    from cometmq.cli.servers.processes import READY_MARK, end_with_supervisor
    from cometmq.cli.servers.serving import say, serve
    from cometmq.runtime.loop import run

    async def main() -> None:
        server = Broker(*configs, given=given)
        both = None if proxy is None else with_proxy(server, proxy)

        def say_ready() -> None:
            config = server.config
            ready = (
                f"The broker[{config.broker_name}, {server.address}]{READY_MARK}serializeType=JSON"
            )
            if config.namesrv_addr:
                ready += f" and name server is {config.namesrv_addr}"
            if server.metrics_address is not None:
                ready += f". Metrics are at http://{server.metrics_address}/metrics"
            if both is not None:
                ready += f". The proxy serves gRPC at {both.endpoint}, without TLS"
            say(ready)

        if is_member:
            await serve(server, say_ready, until_input_ends=True, on_stop=end_with_supervisor)
        else:
            await serve(both or server, say_ready)

    run(main())


def load_configs(
    properties: Mapping[str, str],
    namesrv_addr: str | None,
    file: Path | None,
    *,
    lenient: bool = False,
) -> Configs:
    """Make the configurations of the broker, its store and its copies. Raises ConfigError.

    The name servers come from the option, else the file, else the environment's NAMESRV_ADDR.
    """
    from cometmq.broker.config import broker_configs, check_name_servers

    configs = broker_configs(properties, source=str(file), file=file, lenient=lenient)
    config = configs[0]
    config.namesrv_addr = (
        namesrv_addr or config.namesrv_addr or os.environ.get("NAMESRV_ADDR") or None
    )
    check_name_servers(config)
    return configs
