"""Runs a proxy in the process of a broker, for `cometmq broker --enable-proxy` and `cometmq dev`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from cometmq.broker.server import Broker
    from cometmq.proxy.config import ProxyConfig
    from cometmq.proxy.local import BrokerWithProxy, LocalProxy

INSTALL: Final = "pip install 'cometmq[proxy]'"
_PORT: Final = 8081


class ProxyOptions(NamedTuple):
    port: int | None = None


def check_proxy_options(*, enable_proxy: bool, port: int | None, processes: int | None) -> None:
    """Raise ConfigError for options that do not fit together."""
    if not enable_proxy:
        if port is not None:
            raise ConfigError("--proxy-port needs --enable-proxy")
        return
    if processes is not None:
        raise ConfigError(
            "--enable-proxy runs a proxy beside one broker: leave out --processes, or start cometmq proxy "
            "for all brokers"
        )


def with_proxy(broker: Broker, options: ProxyOptions) -> BrokerWithProxy:
    """Return the broker with a proxy beside it. Raises ConfigError if the extra is not installed."""
    try:
        from cometmq.proxy.local import BrokerWithProxy
    except ImportError as error:
        raise proxy_missing(error) from error
    return BrokerWithProxy(broker, _settings(options))


def local_proxy(broker: Broker, options: ProxyOptions) -> LocalProxy:
    """Return a proxy for a broker that is started already. Raises ConfigError as `with_proxy` does."""
    try:
        from cometmq.proxy.local import LocalProxy
    except ImportError as error:
        raise proxy_missing(error) from error
    return LocalProxy(broker, _settings(options))


def _settings(options: ProxyOptions) -> ProxyConfig:
    from cometmq.proxy.config import ProxyConfig

    return ProxyConfig([], port=_PORT if options.port is None else options.port)


def proxy_missing(error: ImportError) -> ConfigError:
    """Return the error for a missing package of the extra."""
    return ConfigError(f"{error.name} is missing; install the extra: {INSTALL}")
