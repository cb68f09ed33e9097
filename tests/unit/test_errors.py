"""What each error says to the loops that may try again."""

from __future__ import annotations

import pytest

from cometmq.errors import (
    ANSWER_MEANINGS,
    AccessDeniedError,
    CometMQError,
    ConnectError,
    ConnectionLostError,
    IllegalArgumentError,
    ProtocolError,
    QueueLockedError,
    RemoteError,
    RequestTimeoutError,
    RouteNotFoundError,
    Stored,
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
