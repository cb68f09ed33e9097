"""Guard the requests of a server by rules: nobody who is unknown gets further than this.

Java: the RPC hooks that BrokerController.initialAcl registers (ACL 1.0), and AuthenticationPipeline
with AuthorizationPipeline (ACL 2.0).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from cometmq.access.asked import Asked
from cometmq.access.refusals import Refusals
from cometmq.access.rules import Judge, Rules
from cometmq.errors import AccessRefusedError, CometMQError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.request_type import AnyRequestType, ResourceKind
from cometmq.remoting.access import not_taken
from cometmq.remoting.connection import AnyRequest, Connection
from cometmq.remoting.dispatch import Handler
from cometmq.remoting.request_order import RequestOrder
from cometmq.runtime import metric_catalogue
from cometmq.runtime.clock import Clock
from cometmq.runtime.exposition import Exposition
from cometmq.runtime.slices import run_slices

# The names in so long a body are judged in steps of so many names: each may take 30 µs.
LARGE_BYTES: Final = 32 * 1024
_NAMES_AT_ONCE: Final = 8
# A client's farewell must not overtake its heartbeat.
_IN_ORDER: Final = frozenset({RequestCode.UNREGISTER_CLIENT})


class AccessControl:
    """Has `rules` judge every request before its handler sees it (an `Access` of `remoting`)."""

    checks_resources = True

    def __init__(self, rules: Rules, clock: Clock) -> None:
        self.rules = rules
        self.refusals = Refusals(clock)
        self._order = RequestOrder()
        self._prepared: set[int] = set()

    def guarded(self, request_type: AnyRequestType, handler: Handler[Any]) -> Handler[Any]:
        check, refused = self.rules.check, self.refusals.add

        def handle(connection: Connection, request: AnyRequest) -> RemotingCommand | None:
            asked = Asked(request_type, request, connection.peer, connection.peer_ip)
            try:
                check(asked)
            except AccessRefusedError as error:
                refused(asked, error)
                raise
            return handler(connection, request)

        if request_type.code in _IN_ORDER or any(each.in_body for each in request_type.resources):
            return self._guarded_in_order(request_type, handle, handler)
        return handle

    def _guarded_in_order(
        self, request_type: AnyRequestType, small: Handler[Any], handler: Handler[Any]
    ) -> Handler[Any]:
        """Return a handler that judges the names in large bodies in steps, and serves others by `small`;
        what a client sends behind a large one waits for its end.
        """
        order = self._order

        def handle(connection: Connection, request: AnyRequest) -> RemotingCommand | None:
            if len(request.body) < LARGE_BYTES:
                if not order.has_long(connection):
                    return small(connection, request)
                return order.serve(connection, request, lambda: small(connection, request))
            asked = Asked(request_type, request, connection.peer, connection.peer_ip)
            try:
                # Now: what strangers send waits for nobody, and nobody waits for it.
                self.rules.check_sender(asked)
            except AccessRefusedError as error:
                self.refusals.add(asked, error)
                raise

            order.serve_long(
                connection, request, lambda: self._serve_judged(connection, asked, handler)
            )
            return None

        return handle

    async def _serve_judged(
        self, connection: Connection, asked: Asked, handler: Handler[Any]
    ) -> RemotingCommand | None:
        await self._judge(asked)
        return None if connection.closed else handler(connection, asked.request)

    async def _judge(self, asked: Asked) -> None:
        """Judge all names of a request, by the rules of the moment when this begins."""
        row = asked.row
        try:
            judge = self.rules.judge(asked)
            if judge is None:
                return
            if row.code not in self._prepared:
                await asyncio.to_thread(row.body.prepare)
                self._prepared.add(row.code)
            await run_slices(_judged(judge, asked))
        except AccessRefusedError as error:
            self.refusals.add(asked, error)
            raise

    def check_resource(
        self,
        request_type: AnyRequestType,
        connection: Connection,
        request: AnyRequest,
        kind: ResourceKind,
        name: str,
    ) -> None:
        asked = Asked(request_type, request, connection.peer, connection.peer_ip)
        try:
            self.rules.check_resource(asked, kind, name)
        except AccessRefusedError as error:
            self.refusals.add(asked, error)
            raise

    def check_again(
        self, request_type: AnyRequestType, connection: Connection, request: AnyRequest
    ) -> None:
        # Without the signature, which was checked: a second look would take it for a replay.
        asked = Asked(request_type, request, connection.peer, connection.peer_ip)
        try:
            judge = self.rules.judge(asked)
            if judge is not None:
                for _ in _judged(judge, asked):
                    pass
        except AccessRefusedError as error:
            self.refusals.add(asked, error)
            raise

    def sender_of(
        self, request_type: AnyRequestType, connection: Connection, request: AnyRequest
    ) -> str:
        return self.rules.sender_of(
            Asked(request_type, request, connection.peer, connection.peer_ip)
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
        """Write the metrics of the rules, and how many requests were refused why."""
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


def _judged(judge: Judge, asked: Asked) -> Iterator[None]:
    """Judge the names in the header, then those in the body in steps."""
    count = 0
    for resource in asked.row.resources:
        if not resource.in_body:
            for name in resource.names(asked.header):
                judge.check(resource.kind, name)
                count += 1
    for value in asked.row.body.name_steps(asked.body):
        yield
        if value is None:
            continue
        for resource in asked.row.resources:
            if not resource.in_body:
                continue
            for name in resource.names(asked.header, value):
                judge.check(resource.kind, name)
                count += 1
                if count % _NAMES_AT_ONCE == 0:
                    yield
    if not count:
        judge.check_unnamed()
