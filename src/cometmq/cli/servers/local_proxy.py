"""Run a proxy in the process of a broker, for `cometmq broker --enable-proxy` and `cometmq dev`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cometmq.cli.servers.serving import report_unknown_keys
from cometmq.errors import ConfigError
from cometmq.extras import needs

if TYPE_CHECKING:
    from cometmq.broker.server import Broker
    from cometmq.proxy.configuration.config import ProxyConfig
    from cometmq.proxy.configuration.keys import ProxyConfigs
    from cometmq.proxy.local import BrokerWithProxy, LocalProxy

# The short name is that of Java's mqproxy.
ProxyConfigFile = Annotated[
    Path | None,
    typer.Option(
        "-pc",
        "--proxyConfigPath",
        "--config",
        metavar="FILE",
        help="A JSON file with the keys of RocketMQ's rmq-proxy.json.",
    ),
]


class ProxyOptions(NamedTuple):
    port: int | None = None
    config_file: Path | None = None
    lenient: bool = False


def check_proxy_options(
    *, enable_proxy: bool, port: int | None, config_file: Path | None, processes: int | None
) -> None:
    """Raise ConfigError for options that do not fit together."""
    if not enable_proxy:
        for name, given in (("--proxy-port", port), ("-pc", config_file)):
            if given is not None:
                raise ConfigError(f"{name} needs --enable-proxy")
        return
    if processes is not None:
        raise ConfigError(
            "--enable-proxy runs a proxy beside one broker: leave out --processes, or start cometmq proxy "
            "for all brokers"
        )


def with_proxy(broker: Broker, options: ProxyOptions) -> BrokerWithProxy:
    """Return the broker with a proxy beside it. Raises MissingExtraError."""
    with needs("proxy", "the proxy"):
        from cometmq.proxy.local import BrokerWithProxy
    return BrokerWithProxy(broker, _config(options))


def local_proxy(broker: Broker, options: ProxyOptions) -> LocalProxy:
    """Return a proxy for a broker that is started already. Raises MissingExtraError."""
    with needs("proxy", "the proxy"):
        from cometmq.proxy.local import LocalProxy
    return LocalProxy(broker, _config(options))


def read_configs(file: Path | None, *, lenient: bool = False) -> ProxyConfigs:
    """Return the settings of a file, the defaults without one; log its keys without effect. Raises ConfigError."""
    from cometmq.proxy.configuration.keys import (
        CONFIG_CLASSES,
        default_configs,
        load_json,
        proxy_configs,
    )

    if file is None:
        return default_configs()
    properties = load_json(file)
    configs = proxy_configs(properties, source=str(file), lenient=lenient)
    known = ("tlsCertPath", "tlsKeyPath", "tlsKeyPassword")
    report_unknown_keys(
        {key: value for key, value in properties.items() if key not in known}, *CONFIG_CLASSES
    )
    return configs


def _config(options: ProxyOptions) -> ProxyConfig:
    from cometmq.proxy.configuration.config import ProxyConfig

    settings, front, control = read_configs(options.config_file, lenient=options.lenient)
    port = settings.grpc_server_port if options.port is None else options.port
    return ProxyConfig([], port=port, settings=settings, front=front, control=control)
