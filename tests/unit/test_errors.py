"""The flags of each error for the loops that may try again."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from cometmq import errors
from cometmq.errors import (
    ANSWER_MEANINGS,
    AccessDeniedError,
    CometMQError,
    ConnectError,
    ConnectionLostError,
    DamagedMessageError,
    FilterExpressionError,
    IllegalArgumentError,
    LimitError,
    ProtocolError,
    QueueLockedError,
    RemoteError,
    RequestTimeoutError,
    RouteNotFoundError,
    ServersFailedError,
    Stored,
    StoreError,
    TooManyRequestsError,
)
from cometmq.protocol.codes import ResponseCode


@pytest.mark.parametrize(
    ("error", "retriable", "refresh_route", "stored"),
    [
        (ConnectError("x"), True, True, Stored.NO),
        (RouteNotFoundError("x"), True, True, Stored.NO),
        (TooManyRequestsError("x"), True, False, Stored.NO),
        (ConnectionLostError("x"), True, True, Stored.UNKNOWN),
        (RequestTimeoutError("x"), True, True, Stored.UNKNOWN),
        (ProtocolError("x"), False, False, Stored.UNKNOWN),
        (IllegalArgumentError("x"), False, False, Stored.NO),
        (QueueLockedError("x"), True, False, Stored.NO),
    ],
)
def test_what_a_failed_exchange_says(
    error: CometMQError, retriable: bool, refresh_route: bool, stored: Stored
) -> None:
    assert (error.retriable, error.refresh_route, error.stored) == (
        retriable,
        refresh_route,
        stored,
    )


@pytest.mark.parametrize(
    ("code", "retriable", "refresh_route", "stored"),
    [
        (ResponseCode.SYSTEM_ERROR, True, False, Stored.UNKNOWN),
        (ResponseCode.SYSTEM_BUSY, True, False, Stored.NO),
        (ResponseCode.SERVICE_NOT_AVAILABLE, True, False, Stored.NO),
        (ResponseCode.FLOW_CONTROL, True, False, Stored.NO),
        (ResponseCode.TOPIC_NOT_EXIST, True, True, Stored.NO),
        (ResponseCode.GO_AWAY, True, True, Stored.NO),
        (ResponseCode.NO_PERMISSION, False, True, Stored.NO),
        (ResponseCode.NO_BUYER_ID, False, True, Stored.NO),
        (ResponseCode.NOT_IN_CURRENT_UNIT, False, True, Stored.NO),
        (ResponseCode.FLUSH_DISK_TIMEOUT, False, False, Stored.YES),
        (ResponseCode.SLAVE_NOT_AVAILABLE, False, False, Stored.YES),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, False, False, Stored.YES),
        (ResponseCode.MESSAGE_ILLEGAL, False, False, Stored.NO),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, False, False, Stored.NO),
        (31_999, False, False, Stored.NO),
    ],
)
def test_what_a_response_code_says(
    code: int, retriable: bool, refresh_route: bool, stored: Stored
) -> None:
    error = RemoteError("x", code=code)
    assert (error.retriable, error.refresh_route, error.stored) == (
        retriable,
        refresh_route,
        stored,
    )


def test_every_code_with_a_meaning_has_a_name() -> None:
    assert set(ResponseCode) >= ANSWER_MEANINGS.keys()


@pytest.mark.parametrize("code", sorted(ANSWER_MEANINGS))
def test_who_asks_stays_the_same_whatever_the_code(code: int) -> None:
    error = AccessDeniedError("x", code=code)
    assert (error.retriable, error.refresh_route, error.stored) == (False, False, Stored.NO)


# Arguments of the constructors that want more than a text. The others take the text, and either
# all of the common ones or none.
ARGUMENTS: dict[type[CometMQError], tuple[tuple[Any, ...], dict[str, Any]]] = {
    FilterExpressionError: (("no such operator", 1, 7), {}),
    LimitError: (("topics", 6, "maxTopics", 5, "remove some"), {"code": 2}),
    DamagedMessageError: (("damaged",), {"queue_offset": 7, "data": b"x"}),
    ServersFailedError: (
        ("some failed",),
        {"results": {"a:1": [1]}, "errors": {"b:1": RequestTimeoutError("late", address="b:1")}},
    ),
}
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CometMQError)
]


def facts(error: BaseException) -> dict[str, object]:
    """Return all facts of an error; errors within it as their facts."""
    inner = {address: facts(each) for address, each in getattr(error, "errors", {}).items()}
    return {"type": type(error), "args": error.args, **vars(error), "errors": inner}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_crosses_processes_with_all_that_it_tells(kind: type[CometMQError]) -> None:
    common = {"code": 1, "remark": "r", "address": "a:1"}
    args, keywords = ARGUMENTS.get(kind, (("x",), {} if issubclass(kind, StoreError) else common))
    error = kind(*args, **keywords)
    error.add_note("while it was tested")
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert str(copied) == str(error)
        assert facts(copied) == facts(error)


@pytest.mark.parametrize(
    ("inner", "stored"),
    [
        ([RequestTimeoutError("x"), RequestTimeoutError("y")], Stored.UNKNOWN),
        ([RequestTimeoutError("x"), ConnectError("y")], Stored.UNKNOWN),
        ([ConnectError("x"), ConnectError("y")], Stored.NO),
    ],
)
def test_servers_that_may_have_stored_a_message_are_not_said_to_have_none(
    inner: list[CometMQError], stored: Stored
) -> None:
    by_address = {str(number): error for number, error in enumerate(inner)}
    assert ServersFailedError("x", results={}, errors=by_address).stored is stored
