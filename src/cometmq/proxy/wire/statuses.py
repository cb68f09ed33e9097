"""Turn errors into the Status that an answer carries (Java: ResponseBuilder).

Clients drop or isolate an endpoint when a call ends with a gRPC error, so errors go into the answer's Status.
"""

from __future__ import annotations

from typing import Final

from cometmq.errors import (
    AccessDeniedError,
    CometMQError,
    FilterExpressionError,
    IllegalArgumentError,
    RemoteError,
    RemotingError,
    RequestTimeoutError,
    RouteNotFoundError,
    TooManyRequestsError,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.proxy.wire import messaging_pb2 as wire

_LONGEST_TEXT: Final = 1024

_OF_ANSWERS: Final[dict[int, wire.Code]] = {
    ResponseCode.SYSTEM_BUSY: wire.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: wire.NOT_IMPLEMENTED,
    ResponseCode.TOPIC_NOT_EXIST: wire.TOPIC_NOT_FOUND,
    ResponseCode.NO_PERMISSION: wire.FORBIDDEN,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: wire.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: wire.CONSUMER_GROUP_NOT_FOUND,
}


class RefusedError(CometMQError):
    """Refuses a call, with the code of its Status; `limit` names the limit that was hit, if one was."""

    def __init__(self, status_code: wire.Code, text: str, limit: str = "") -> None:
        super().__init__(text, limit=limit)
        self.status_code = status_code


def status(code: wire.Code, text: str = "") -> wire.Status:
    return wire.Status(code=code, message=text[:_LONGEST_TEXT] or wire.Code.Name(code))


def ok() -> wire.Status:
    return status(wire.OK)


def code_of(error: CometMQError) -> wire.Code:
    """Return the code for this kind of error."""
    if isinstance(error, RefusedError):
        return error.status_code
    if isinstance(error, RouteNotFoundError):
        return wire.TOPIC_NOT_FOUND
    if isinstance(error, AccessDeniedError):
        return wire.UNAUTHORIZED
    if isinstance(error, RemoteError):
        return _OF_ANSWERS.get(error.code or 0, wire.INTERNAL_SERVER_ERROR)
    if isinstance(error, TooManyRequestsError):
        return wire.TOO_MANY_REQUESTS
    if isinstance(error, RequestTimeoutError):
        return wire.PROXY_TIMEOUT
    if isinstance(error, RemotingError):
        return wire.INTERNAL_SERVER_ERROR
    if isinstance(error, FilterExpressionError):
        return wire.ILLEGAL_FILTER_EXPRESSION
    if isinstance(error, IllegalArgumentError):
        return wire.BAD_REQUEST
    return wire.INTERNAL_SERVER_ERROR


def status_of(error: CometMQError) -> wire.Status:
    return status(code_of(error), str(error))


def of_all(each: list[wire.Status]) -> wire.Status:
    """Return the status of an answer with several entries: the status of the entries if all have
    the same one.
    """
    codes = {one.code for one in each}
    return each[0] if len(codes) == 1 else status(wire.MULTIPLE_RESULTS)
