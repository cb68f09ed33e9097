"""Guard the requests of a server by rules: nobody who is unknown gets further than this.

Java: the RPC hooks that BrokerController.initialAcl registers (ACL 1.0), and AuthenticationPipeline
with AuthorizationPipeline (ACL 2.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cometmq.access.access_request import AccessRequest
from cometmq.access.refusals import Refusals
from cometmq.access.rules import Rules
from cometmq.errors import AccessRefusedError, CometMQError
from cometmq.metrics import catalogue as metric_catalogue
from cometmq.metrics.exposition import Exposition
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.request_type import AnyRequestType, ResourceKind
from cometmq.remoting.access import not_taken
from cometmq.remoting.connection import AnyRequest, Connection
from cometmq.remoting.dispatch import Handler
from cometmq.runtime.clock import Clock


class AccessControl:
    """Has `rules` judge every request before its handler sees it (an `Access` of `remoting`)."""

    checks_resources = True

    def __init__(self, rules: Rules, clock: Clock) -> None:
        self.rules = rules
        self.refusals = Refusals(clock)

    def guarded(self, request_type: AnyRequestType, handler: Handler[Any]) -> Handler[Any]:
        check, refused = self.rules.check, self.refusals.add

        def handle(connection: Connection, request: AnyRequest) -> RemotingCommand | None:
            asked = AccessRequest(request_type, request, connection.peer, connection.peer_ip)
            try:
                check(asked)
            except AccessRefusedError as error:
                refused(asked, error)
                raise
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
        asked = AccessRequest(request_type, request, connection.peer, connection.peer_ip)
        try:
            self.rules.check_resource(asked, kind, name)
        except AccessRefusedError as error:
            self.refusals.add(asked, error)
            raise

    def check_again(
        self, request_type: AnyRequestType, connection: Connection, request: AnyRequest
    ) -> None:
        asked = AccessRequest(request_type, request, connection.peer, connection.peer_ip)
        try:
            self.rules.judge(asked)
        except AccessRefusedError as error:
            self.refusals.add(asked, error)
            raise

    def sender_of(
        self, request_type: AnyRequestType, connection: Connection, request: AnyRequest
    ) -> str:
        return self.rules.sender_of(
            AccessRequest(request_type, request, connection.peer, connection.peer_ip)
        )

    def permits(
        self,
        account: str,
        connection: Connection,
        request_type: AnyRequestType,
        kind: ResourceKind,
        name: str,
    ) -> bool:
        return self.rules.permits(account, connection.peer_ip, request_type, kind, name)

    def collect(self, out: Exposition) -> Iterator[None]:
        """Write the metrics of the rules, and the numbers of refused requests by reason."""
        out.begin(metric_catalogue.ACCESS_REFUSED)
        for reason, count in sorted(self.refusals.counts.items()):
            out.sample(count, reason)
        yield
        yield from self.rules.collect(out)

    def admits(self, connection: Connection) -> bool:  # noqa: ARG002 - as of other `Access`
        """Return True: requests for administrators reach their handlers from administrators only."""
        return True

    def refusal(
        self,
        connection: Connection,
        request_type: AnyRequestType,
        why: str = "",
        remedy: str = "",
    ) -> CometMQError:
        reason = why or "it is for administrators"
        return not_taken(connection, request_type, f"{reason}. {remedy}" if remedy else reason)
