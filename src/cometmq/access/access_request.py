"""Hold what access control needs to know of one request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from cometmq.model import names
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Ext, Request, ext_of
from cometmq.protocol.header import Header
from cometmq.protocol.request_type import AnyRequestType, ResourceKind

if TYPE_CHECKING:
    from cometmq.access.rules import Identity

_REPLIES: Final = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)


class AccessRequest:
    """One request as rules judge it: its row of the request table, its parts, and who sent it.

    `ext` has all ext fields as texts, also those that the typed header lacks. For the loop's thread,
    while the request is served.
    """

    __slots__ = ("ext", "peer", "peer_ip", "request", "row")

    def __init__(self, row: AnyRequestType, request: Request[Any], peer: str, peer_ip: str) -> None:
        self.row = row
        self.request = request
        self.peer = peer
        self.peer_ip = peer_ip
        self.ext: Ext = ext_of(request)

    @property
    def header(self) -> Header:
        header: Header = self.request.header
        return header

    @property
    def body(self) -> bytes:
        """Return the bytes of the body."""
        return self.request.body

    @property
    def typed_body(self) -> Any:
        """Return the decoded body; None if the request has no body.

        Raises ProtocolError.
        """
        return self.row.typed_body(self.request) if self.body else None

    def is_reply(self, topic: str, identity: Callable[[], Identity]) -> bool:
        """Say whether this is a reply, which any known account may send: only the asker gets it.

        Other topics than that of this server's cluster are topics like all others, whatever their names.
        """
        return self.row.code in _REPLIES and (
            topic == f"{identity().cluster}_{names.REPLY_TOPIC_POSTFIX}"
        )

    def resources(self) -> Iterator[tuple[ResourceKind, str]]:
        """Yield kind and name of each resource that the request names, as its row says.

        Decode the body only if a name stands in it: check the signature first. Raises ProtocolError.
        """
        header = self.request.header
        for resource in self.row.resources:
            path = resource.path
            if resource.in_body or resource.separator:
                body = self.typed_body if resource.in_body else None
                for name in resource.names(header, body):
                    yield resource.kind, name
            elif path:
                # No path of a header has more than one step. A field may be left out.
                value: str | None = getattr(header, path)
                if value:
                    yield resource.kind, value
