"""The proxy of `cometmq dev`, beside the first master: gRPC clients of RocketMQ 5 find the whole cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq import extras
from cometmq.cli.servers.local_proxy import ProxyOptions, local_proxy
from cometmq.errors import ConfigError
from cometmq.runtime.sockets.ports import listen_fault

if TYPE_CHECKING:
    from cometmq.broker.server import Broker
    from cometmq.cli.dev.servers import DevPlan

_USUAL_PORT: Final = 8081
_PACKAGES: Final = ("grpc", "google.protobuf")


def is_installed() -> bool:
    """Say whether the packages of the extra `proxy` are there."""
    return not extras.lacking(*_PACKAGES)


class DevProxy:
    """Runs a proxy beside a broker. `port` None stands for the usual one, or a free one if that is taken.

    `endpoint` is known after `start`. The broker stops the proxy.
    """

    def __init__(self, plan: DevPlan, port: int | None) -> None:
        self._plan = plan
        self._port = port
        self.endpoint = ""

    async def start(self, broker: Broker) -> None:
        """Begin to serve. Raises ConfigError if the port is taken."""
        port = self._port
        if port is None:
            port = 0 if listen_fault(self._plan.host, _USUAL_PORT) else _USUAL_PORT
        local = local_proxy(broker, ProxyOptions(port))
        try:
            await local.start()
        except ConfigError:
            if self._port is not None or port == 0:
                raise
            # Another process took the port just now.
            local = local_proxy(broker, ProxyOptions(0))
            await local.start()
        self.endpoint = local.endpoint


def proxy_for(
    plan: DevPlan, *, wanted: bool | None, port: int | None
) -> tuple[DevProxy | None, str]:
    """Return the proxy that the options ask for, None for none, and why there is none though nobody refused it.

    `wanted` None asks for one if its packages are there. Raises ConfigError.
    """
    if wanted is False:
        if port is not None:
            raise ConfigError("--no-proxy and --proxy-port: give one of them")
        return None, ""
    asked = wanted or port is not None
    if plan.settings.has_access_control:
        lacks = "the settings ask for access control, and the proxy has no account"
        if asked:
            raise ConfigError(f"{lacks}; add --no-proxy")
        return None, f"not started: {lacks}"
    if is_installed():
        return DevProxy(plan, port), ""
    if asked:
        raise extras.missing("proxy", "the proxy", extras.lacking(*_PACKAGES))
    return None, f"not installed: {extras.command('proxy')}"
