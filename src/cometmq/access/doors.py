"""Say who may come to a server's ports, before any request is looked at."""

from __future__ import annotations

from cometmq.access.config import AccessConfig
from cometmq.logs.loggers import get_logger
from cometmq.remoting.protected import ProtectedMode
from cometmq.runtime.sockets.addresses import bare_host, is_loopback, join_address

log = get_logger(__name__)


def requests_protection(access: AccessConfig, server: str) -> ProtectedMode | None:
    """Return what keeps other machines from sending requests, None if nothing does."""
    return ProtectedMode.of_requests(server) if access.serves_own_machine_only else None


def pages_protection(access: AccessConfig) -> ProtectedMode | None:
    """Return what keeps other machines from reading /metrics and /lag, None if nothing does.

    No access control guards these pages, so they stay protected when it is on.
    """
    if not access.protected_mode:
        return None
    return ProtectedMode.of_pages("metricsFrom", access.metrics_from)


def log_who_is_served(access: AccessConfig, server: str, host: str, port: int) -> None:
    """Log at a start who is served on a port that other machines reach."""
    if access.is_on or is_loopback(bare_host(host)):
        return
    address = join_address(host, port)
    if access.protected_mode:
        log.info(
            "other machines are refused, because there is no access control",
            server=server,
            address=address,
            remedy="switch it on (aclEnable, authenticationEnabled), or set protectedMode=false",
        )
    else:
        log.warning(
            "every host that reaches this port is served",
            server=server,
            address=address,
            meaning="there is no access control and protectedMode is false: every host that reaches "
            "the port can send and read all messages and change offsets",
            remedy="switch access control on (aclEnable, authenticationEnabled), or let only trusted "
            "hosts reach the port (bindAddress, a firewall)",
        )
