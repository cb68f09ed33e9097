"""Decide which requests reach their handlers, and do so where access control is off.

Java accepts administrators' requests from anybody who reaches the port, unless its access control
is on. Without access control this server accepts them only from its own machine and from addresses
that its operator has named. With it, `cometmq.access` judges every request.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from cometmq.errors import CometMQError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.request_type import AnyRequestType, ResourceKind, Right
from cometmq.remoting.connection import AnyRequest, Connection
from cometmq.remoting.dispatch import Handler
from cometmq.runtime.sockets.address_list import AddressList, is_own_machine

KEY: Final = "adminFrom"


class Access(Protocol):
    """Decides who may send which request. `Handlers` puts it in front of the handlers."""

    # Whether `check_resource` and `check_again` check anything.
    checks_resources: bool

    def guarded(self, request_type: AnyRequestType, handler: Handler[Any]) -> Handler[Any]:
        """Return a handler that checks the sender of a request before it calls `handler`.

        Return `handler` itself where there is nothing to check, so that it costs nothing.
        """

    def check_resource(
        self,
        request_type: AnyRequestType,
        connection: Connection,
        request: AnyRequest,
        kind: ResourceKind,
        name: str,
    ) -> None:
        """Check a resource that a request does not name and that its handler has found.

        Such is the topic of a message that is asked for by its place in the log. Raises
        CometMQError unless the sender has the request's right to it.
        """

    def check_again(
        self, request_type: AnyRequestType, connection: Connection, request: AnyRequest
    ) -> None:
        """Judge a request that was let in, and has waited since, by the rules of now.

        Raises CometMQError if its account is gone or has lost the right to the resources that the
        request names.
        """

    def sender_of(
        self, request_type: AnyRequestType, connection: Connection, request: AnyRequest
    ) -> str:
        """Return the account of a request that was let in; "" if none was asked for."""

    def permits(
        self,
        account: str,
        connection: Connection,
        request_type: AnyRequestType,
        kind: ResourceKind,
        name: str,
    ) -> bool:
        """Return whether an account may send a request about this resource over its connection.

        Unlike `check_resource` this asks about the sender of an earlier request, and counts no
        refusal.
        `account` is what `sender_of` returned.
        """

    def admits(self, connection: Connection) -> bool:
        """Return whether a request that reached its handler came from an administrator."""

    def refusal(
        self,
        connection: Connection,
        request_type: AnyRequestType,
        why: str = "",
        remedy: str = "",
    ) -> CometMQError:
        """Return the error for a request that the handler does not take from this peer."""


class AdminAccess:
    """Recognises administrators by the address of their connection.

    `admin_from` lists the addresses and networks of administrators. Raises ConfigError if the text
    is not such a list.
    """

    checks_resources = False

    def __init__(self, admin_from: str = "") -> None:
        self._networks = AddressList(KEY, admin_from)

    def admits(self, connection: Connection) -> bool:
        """Return whether the peer is this machine, by any of its addresses, or is in the list."""
        ip = connection.peer_ip
        return is_own_machine(ip, connection.local_ip) or ip in self._networks

    def guarded(self, request_type: AnyRequestType, handler: Handler[Any]) -> Handler[Any]:
        """Return a handler that checks the sender if only administrators may send the request.

        For every other request return `handler` itself, so that the check costs nothing there.
        """
        if request_type.right is not Right.ADMIN:
            return handler

        def handle(connection: Connection, request: AnyRequest) -> RemotingCommand | None:
            if not self.admits(connection):
                raise self.refusal(connection, request_type)
            return handler(connection, request)

        return handle

    def check_resource(
        self,
        request_type: AnyRequestType,
        connection: Connection,
        request: AnyRequest,
        kind: ResourceKind,
        name: str,
    ) -> None:
        """Let the request pass: there are no rights to single resources."""

    def check_again(
        self, request_type: AnyRequestType, connection: Connection, request: AnyRequest
    ) -> None:
        """Let the request pass: the address of its connection does not change."""

    def sender_of(
        self,
        request_type: AnyRequestType,  # noqa: ARG002 - as of other `Access`
        connection: Connection,  # noqa: ARG002 - the same
        request: AnyRequest,  # noqa: ARG002 - the same
    ) -> str:
        """Return "": no request names an account."""
        return ""

    def permits(
        self,
        account: str,  # noqa: ARG002 - as of other `Access`
        connection: Connection,  # noqa: ARG002 - the same
        request_type: AnyRequestType,  # noqa: ARG002 - the same
        kind: ResourceKind,  # noqa: ARG002 - the same
        name: str,  # noqa: ARG002 - the same
    ) -> bool:
        """Return True: there are no rights to single resources."""
        return True

    def refusal(
        self,
        connection: Connection,
        request_type: AnyRequestType,
        why: str = "",
        remedy: str = "",
    ) -> CometMQError:
        """Return the error for a request that this peer may not send.

        `why` replaces the usual reason, and `remedy` the usual advice to name the peer's address.
        """
        reason = why or "it is for administrators"
        remedy = remedy or (
            f"Send it from the server's own machine, or add {connection.peer_ip} to {KEY} in the "
            "server's configuration and restart it"
        )
        return not_taken(connection, request_type, f"{reason}. {remedy}")


def not_taken(connection: Connection, request_type: AnyRequestType, why: str) -> CometMQError:
    """Return the error for a request that this peer may not send."""
    return CometMQError(
        f"request code {request_type.code} ({request_type.name}) is not taken from "
        f"{connection.peer}: {why}",
        code=ResponseCode.NO_PERMISSION,
    )
