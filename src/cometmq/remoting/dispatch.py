"""Map request codes to handlers (Java: NettyRemotingAbstract.processorTable)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

from cometmq.errors import ProtocolError
from cometmq.metrics.limit_hits import LimitHits
from cometmq.protocol.command import RemotingCommand, Request, RequestDecoder
from cometmq.protocol.header import HeaderT
from cometmq.protocol.request_type import Action, AnyRequestType, RequestType, ResourceKind, Right

if TYPE_CHECKING:
    from cometmq.remoting.access import Access
    from cometmq.remoting.connection import Connection
    from cometmq.remoting.http.request_meter import RequestMeter

# A handler returns the answer, and the connection sends it by `Connection.reply`. A handler that
# returns None sends the answer itself, now or later, by `reply`, `reply_encoded`, `reply_failure` or
# `reply_when`; or it sends none, if the request is never answered.
Handler = Callable[["Connection", Request[HeaderT]], RemotingCommand | None]
# A handler that is a coroutine function runs as a task; `Connection.reply_when` sends its answer.
AsyncHandler = Callable[["Connection", Request[HeaderT]], Awaitable[RemotingCommand | None]]

UNSERVED: Final = -1
# The name of the limits of bodies' lengths: each row of the request table has its own.
BODY_LIMIT: Final = "MAX_BODY_LENGTH"
# The senders of requests that run and inspect a cluster. They come behind those of its clients when the loop is late.
_OF_ADMINISTRATION: Final = (Right.INSPECT, Right.BROKER, Right.ADMIN)
# The actions of requests that only read. Their refusals are ordinary answers and do not belong in
# an operator's log.
_OF_QUESTIONS: Final = frozenset({Action.GET, Action.LIST})


class Handlers:
    """Maps the request codes that `cometmq.protocol.requests` declares to their handlers.

    With `access`, which servers pass, requests are served only to those who may send them. With
    `meter` requests are timed, but for the most frequent ones.
    """

    def __init__(self, access: Access | None = None, meter: RequestMeter | None = None) -> None:
        self._access = access
        self.meter = meter
        # Whether `check_resource` and `check_again` check anything: a handler that has to do work before
        # a check looks here first.
        self.checks_resources = access is not None and access.checks_resources
        # How many requests were answered by an error, by their code and that of the answer.
        # Requests that nobody serves have the code UNSERVED.
        self.refused: dict[tuple[int, int], int] = {}
        self.limit_hits = LimitHits()
        self.decoder = RequestDecoder()
        # The rows of the requests that have a handler, by code.
        self.request_types: dict[int, AnyRequestType] = {}
        # The codes of those that run and inspect the cluster; see `ServingTurns`.
        self.administration: set[int] = set()
        # The codes of requests that change nothing.
        self.questions: set[int] = set()
        self._handlers: dict[int, Handler[Any]] = {}
        self._barred: set[int] = set()
        self._conditions: dict[int, Callable[[], None]] = {}
        # The dict's own method: it is called for every frame.
        self.get: Callable[[int], Handler[Any] | None] = self._handlers.get

    def register(
        self,
        request_type: RequestType[HeaderT, Any, Any, Any],
        handler: Handler[HeaderT] | AsyncHandler[HeaderT],
    ) -> None:
        """Serve the requests of a row with `handler`.

        If the row asks for a task, a limit on the body or a check of the sender, `register` wraps
        the handler accordingly. A request that needs none of them pays nothing for them.
        """
        code = request_type.code
        if code in self._barred:
            return
        if self.meter is not None:
            handler = self.meter.timed(code, handler)
        assert code not in self._handlers, f"request code {code} is registered twice"
        self.request_types[code] = request_type
        if request_type.right in _OF_ADMINISTRATION:
            self.administration.add(code)
        if request_type.actions and set(request_type.actions) <= _OF_QUESTIONS:
            self.questions.add(code)
        self.decoder.register(code, request_type.header)
        if inspect.iscoroutinefunction(handler):
            served = _as_task(handler)
        else:
            served = cast("Handler[HeaderT]", handler)
        if code in self._conditions:
            served = _on_condition(self._conditions[code], served)
        if self._access is not None:
            served = self._access.guarded(request_type, served)
        # Before access control, which may decode the body.
        if request_type.body.max_length is not None:
            served = _bounded(request_type, served, request_type.body.max_length)
        self._handlers[code] = served

    def check_resource(
        self,
        request_type: AnyRequestType,
        connection: Connection,
        request: Request[Any],
        kind: ResourceKind,
        name: str,
    ) -> None:
        """Check a resource that the request does not name; see `Access.check_resource`."""
        if self._access is not None:
            self._access.check_resource(request_type, connection, request, kind, name)

    def check_again(
        self, request_type: AnyRequestType, connection: Connection, request: Request[Any]
    ) -> None:
        """Judge a request that has waited by the rules of now; see `Access.check_again`."""
        if self._access is not None:
            self._access.check_again(request_type, connection, request)

    def sender_of(
        self, request_type: AnyRequestType, connection: Connection, request: Request[Any]
    ) -> str:
        """Return the account of a request, "" without access control; see `Access.sender_of`."""
        access = self._access
        return "" if access is None else access.sender_of(request_type, connection, request)

    def permits(
        self,
        account: str,
        connection: Connection,
        request_type: AnyRequestType,
        kind: ResourceKind,
        name: str,
    ) -> bool:
        """Say what `account` may do, True without access control; see `Access.permits`."""
        return self._access is None or self._access.permits(
            account, connection, request_type, kind, name
        )

    def set_condition(self, request_type: AnyRequestType, check: Callable[[], None]) -> None:
        """Have `check` called before each request of a row is served; an error that it raises
        refuses the request. Call this before a handler is registered for the row.
        """
        assert request_type.code not in self.request_types, "it is registered already"
        self._conditions[request_type.code] = check

    def bar(
        self, request_type: RequestType[HeaderT, Any, Any, Any], refuse: Handler[HeaderT]
    ) -> None:
        """Have `refuse` answer the requests of a row, even if a handler registers for them later."""
        self.register(request_type, refuse)
        self._barred.add(request_type.code)


def _as_task(handler: AsyncHandler[HeaderT]) -> Handler[HeaderT]:
    def begin(connection: Connection, request: Request[HeaderT]) -> None:
        connection.reply_when(request, handler(connection, request))

    return begin


def _on_condition(check: Callable[[], None], handler: Handler[HeaderT]) -> Handler[HeaderT]:
    def handle(connection: Connection, request: Request[HeaderT]) -> RemotingCommand | None:
        check()
        return handler(connection, request)

    return handle


def _bounded(
    request_type: AnyRequestType, handler: Handler[HeaderT], limit: int
) -> Handler[HeaderT]:
    def bounded(connection: Connection, request: Request[HeaderT]) -> RemotingCommand | None:
        length = len(request.body)
        if length > limit:
            raise ProtocolError(
                f"the body of {request_type.name} has {length} bytes, the limit {BODY_LIMIT} is "
                f"{limit} for this request; send less at once",
                limit=BODY_LIMIT,
            )
        return handler(connection, request)

    return bounded
