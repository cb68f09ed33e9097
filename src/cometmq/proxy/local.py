"""Run a proxy in a broker's process, on the broker's loop (Java: proxyMode LOCAL, LocalMessageService).

The proxy reaches its broker by a connection within the process (`runtime/sockets/within.py`): the broker serves
it as it serves any other one, with the same limits, access control and back-pressure. Other brokers and name
servers are reached over the network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from cometmq.access.config import AccessConfig
from cometmq.client.limits import namesrv_addresses
from cometmq.errors import ConfigError
from cometmq.proxy.configuration.config import ProxyConfig
from cometmq.proxy.server import Proxy
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.runtime.sockets.addresses import ANY_IPV4, bare_host, is_loopback, join_address
from cometmq.runtime.sockets.network import Network

_LOOPBACK: Final = "127.0.0.1"


class BrokerSettings(Protocol):
    broker_name: str
    namesrv_addr: str | None
    bind_address: str
    broker_ip1: str
    broker_cluster_name: str


class OwnBroker(Protocol):
    """Is a broker as the proxy in its process sees it."""

    on_stop: list[Callable[[], Awaitable[None]]]

    @property
    def config(self) -> BrokerSettings: ...

    @property
    def access(self) -> AccessConfig: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def network_within(self) -> Network: ...


class LocalProxy:
    """Runs a proxy beside a broker that is started; the broker stops it before it closes its connections.

    Waiting receives then end at once, because a broker that stops answers the pops behind them.
    """

    def __init__(self, broker: OwnBroker, settings: ProxyConfig) -> None:
        self._broker = broker
        self._settings = settings
        self._proxy: Proxy | None = None

    @property
    def endpoint(self) -> str:
        """The address that clients take as their endpoint."""
        return join_address(self._host, self.proxy.port)

    @property
    def proxy(self) -> Proxy:
        assert self._proxy is not None, "it is not started"
        return self._proxy

    async def start(self) -> None:
        """Start to serve. Raises ConfigError."""
        broker, settings = self._broker, self._settings
        if not broker.config.namesrv_addr:
            raise ConfigError(
                "a proxy looks up the routes of topics at name servers, and this broker has none; set "
                "namesrvAddr or give -n, or leave out --enable-proxy"
            )
        settings.namesrv = namesrv_addresses(broker.config.namesrv_addr)
        settings.bind_address = _bind_address(broker)
        # The broker's own users, by its own credentials.
        settings.control = broker.access
        settings.front.rocketmq_cluster_name = broker.config.broker_cluster_name
        proxy = Proxy(
            settings,
            network=broker.network_within(),
            endpoints=lambda port: _endpoints(self._host, port),
        )
        await proxy.start()
        self._proxy = proxy
        broker.on_stop.append(proxy.close)

    @property
    def _host(self) -> str:
        """The host by which clients reach the proxy."""
        bound = self._settings.bind_address
        return self._broker.config.broker_ip1 if bare_host(bound) in (ANY_IPV4, "::") else bound


class BrokerWithProxy:
    """Starts a broker and then its proxy, and stops both."""

    def __init__(self, broker: OwnBroker, settings: ProxyConfig) -> None:
        self._broker = broker
        self._local = LocalProxy(broker, settings)

    @property
    def endpoint(self) -> str:
        """The address that clients take as their endpoint."""
        return self._local.endpoint

    async def start(self) -> None:
        """Start both. Raises ConfigError; then neither runs."""
        await self._broker.start()
        try:
            await self._local.start()
        except BaseException:
            await self._broker.close()
            raise

    async def close(self) -> None:
        """Stop both. Idempotent."""
        await self._broker.close()


def _bind_address(broker: OwnBroker) -> str:
    """Return the broker's own address to listen at, and that of this machine only if it is protected.

    With access control it listens where the broker does: each call is signed.
    """
    bound = broker.config.bind_address
    if not broker.access.serves_own_machine_only or is_loopback(bare_host(bound)):
        return bound
    return _LOOPBACK


def _endpoints(host: str, port: int) -> wire.Endpoints:
    bare = bare_host(host)
    try:
        scheme = wire.IPv6 if ipaddress.ip_address(bare).version == 6 else wire.IPv4
    except ValueError:
        scheme = wire.DOMAIN_NAME
    return wire.Endpoints(scheme=scheme, addresses=[wire.Address(host=bare, port=port)])
