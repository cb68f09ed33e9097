"""Serve the calls about the proxy's own process: its figures, and the level of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cometmq._version import __version__
from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.logs.setup import change_log_level
from cometmq.proxy.administration.asking import Parts
from cometmq.proxy.calls import Caller
from cometmq.proxy.wire import admin_pb2 as admin
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError, ok
from cometmq.runtime.sockets.addresses import is_loopback

log = get_logger(__name__)

_Request = admin.ChangeLogLevelRequest
# Our logs have no level below debug.
_LEVELS: Final = {
    _Request.TRACE: "debug",
    _Request.DEBUG: "debug",
    _Request.INFO: "info",
    _Request.WARN: "warning",
    _Request.ERROR: "error",
}


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Holds the proxy's name, the number of its open connections, and whether it checks users."""

    name: Callable[[], str]
    connection_count: Callable[[], int]
    checks_users: bool


@dataclass(frozen=True, slots=True)
class ChangedLevel:
    """Is the outcome of ChangeLogLevel. Its answer on the wire has no status."""

    status: wire.Status
    remark: str = ""

    @property
    def answer(self) -> admin.ChangeLogLevelResponse:
        return admin.ChangeLogLevelResponse(remark=self.remark)


async def change_log_level_of(
    parts: Parts, caller: Caller, request: admin.ChangeLogLevelRequest
) -> ChangedLevel:
    """Change the level of this process's log until its end.

    Without access control only callers on this machine may do that, as with a broker's configuration; loopback
    shows that they are on it.
    """
    if not parts.figures.checks_users and not is_loopback(caller.ip):
        raise RefusedError(
            wire.FORBIDDEN,
            "without access control the level of the log can be changed only by loopback, and the call came from "
            f"{caller.ip}; set authenticationEnabled=true, or call the proxy at 127.0.0.1 on its own machine",
        )
    level = _LEVELS.get(request.level)
    if level is None:
        raise RefusedError(
            wire.BAD_REQUEST,
            f"level {request.level} is unknown; choose one of {', '.join(_Request.Level.keys())}",
        )
    try:
        change_log_level(level)
    except ConfigError as error:
        raise RefusedError(wire.PRECONDITION_FAILED, str(error)) from error
    log.warning(
        "the level of the log was changed by a client",
        level=level,
        peer=caller.peer,
        user=caller.account,
    )
    return ChangedLevel(
        ok(),
        f"the log of {parts.figures.name()} has the level {level} until this process ends; other processes are unchanged",
    )


async def get_proxy_runtime_stats(
    parts: Parts, _caller: Caller, _request: admin.GetProxyRuntimeStatsRequest
) -> admin.GetProxyRuntimeStatsResponse:
    stored, delivered = parts.calls.throughput.rates(asyncio.get_running_loop().time())
    producers, consumers = parts.clients.count_by_role()
    return admin.GetProxyRuntimeStatsResponse(
        status=ok(),
        proxy_name=parts.figures.name(),
        version=__version__,
        in_tps=stored,
        out_tps=delivered,
        connections=parts.figures.connection_count(),
        producers=producers,
        consumers=consumers,
    )
