"""Requests of administrators, taken from their addresses only.

Java takes them from anybody who reaches the port unless its access control is on. Ours has none yet,
so that these requests come from the server's own machine or from an address that its operator named.
"""

from __future__ import annotations

from typing import Any, Final

from cometmq.errors import CometMQError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.request_type import AnyRequestType, Right
from cometmq.remoting.connection import AnyRequest, Connection
from cometmq.remoting.dispatch import Handler
from cometmq.runtime.networks import Networks, is_loopback

KEY: Final = "adminFrom"


class AdminAccess:
    """Tells administrators by the address of their connection; `admin_from` names their hosts.

    Raises ConfigError for a text that is no list of addresses and networks.
    """

    def __init__(self, admin_from: str = "") -> None:
        self._networks = Networks(KEY, admin_from)

    def admits(self, connection: Connection) -> bool:
        """Whether the peer is this machine, by loopback or by any of its addresses, or was named."""
        ip = connection.peer_ip
        return is_loopback(ip) or ip == connection.local_ip or ip in self._networks

    def guarded(self, request_type: AnyRequestType, handler: Handler[Any]) -> Handler[Any]:
        """The handler itself, or for a request of administrators one that asks who sends it.

        What others send costs nothing more.
        """
        if request_type.right is not Right.ADMIN:
            return handler

        def handle(connection: Connection, request: AnyRequest) -> RemotingCommand | None:
            if not self.admits(connection):
                raise self.refusal(connection, request_type)
            return handler(connection, request)

        return handle

    def refusal(
        self,
        connection: Connection,
        request_type: AnyRequestType,
        why: str = "",
        remedy: str = "",
    ) -> CometMQError:
        """The error for a request that this peer may not send; `why` says more of the reason, `remedy`
        what helps where an administrator's address does not.
        """
        reason = why or "it is for administrators"
        remedy = remedy or (
            f"Send it from the server's own machine, or add {connection.peer_ip} to {KEY} in the "
            "server's configuration and restart it"
        )
        return CometMQError(
            f"request code {request_type.code} ({request_type.name}) is not taken from "
            f"{connection.peer}: {reason}. {remedy}",
            code=ResponseCode.NO_PERMISSION,
        )
