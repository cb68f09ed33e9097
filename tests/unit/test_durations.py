"""Durations and moments as users give them, and errors of ours as those of Python."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import cometmq.aio
from cometmq import ConsumeReport, ConsumeResult, Message
from cometmq.errors import (
    CometMQError,
    ConnectError,
    ConnectionLostError,
    IllegalArgumentError,
    RequestTimeoutError,
    SilentServerError,
)
from cometmq.model.durations import epoch_ms, milliseconds

NOBODY = "127.0.0.1:1"


def test_a_timedelta_is_as_many_milliseconds_and_never_shorter() -> None:
    assert milliseconds(timedelta(hours=2)) == 7_200_000
    assert milliseconds(timedelta(microseconds=1)) == 1
    assert milliseconds(timedelta(0)) == 0
    assert milliseconds(250) == 250


def test_a_moment_has_a_time_zone() -> None:
    moment = datetime(2026, 11, 29, 12, 0, 0, 500_000, UTC)
    assert epoch_ms("at", moment) == 1_795_953_600_500
    elsewhere = moment.astimezone(timezone(timedelta(hours=8)))
    assert epoch_ms("at", elsewhere) == 1_795_953_600_500
    with pytest.raises(IllegalArgumentError, match=r"has no time zone.*astimezone"):
        epoch_ms("at", datetime(2026, 11, 29))  # noqa: DTZ001 - the mistake that is meant


def test_a_message_is_delayed_by_either_kind() -> None:
    assert Message("t", b"x", delay_ms=timedelta(minutes=5)).delay_ms == 300_000
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    message = Message("t", b"x", deliver_at_ms=moment)
    assert message.deliver_at_ms == int(moment.timestamp()) * 1000
    message.delay_ms = timedelta(seconds=1)
    assert message.properties == {"TIMER_DELAY_MS": "1000"}
    with pytest.raises(IllegalArgumentError, match="delay_ms is -1000"):
        Message("t", b"x", delay_ms=timedelta(seconds=-1))


def test_options_take_timedeltas_and_check_their_range() -> None:
    options: dict[str, Any] = {"namesrv": NOBODY}
    cometmq.aio.Producer("g", send_timeout_ms=timedelta(seconds=5), **options)
    cometmq.aio.SimpleConsumer("g", wait_ms=timedelta(seconds=1), **options)
    at = datetime.now(UTC)
    cometmq.aio.LitePullConsumer("g", consume_timestamp_ms=at, **options)
    cometmq.PushConsumer("g", close_timeout_ms=timedelta(seconds=1), **options).close()
    with pytest.raises(IllegalArgumentError, match="wait_ms is 172800000, it must lie in"):
        cometmq.aio.SimpleConsumer("g", wait_ms=timedelta(days=2), **options)
    wrong: Any = 1.5
    with pytest.raises(IllegalArgumentError, match=r"whole number in .* or a timedelta"):
        cometmq.aio.SimpleConsumer("g", wait_ms=wrong, **options)


def test_a_report_takes_a_timedelta() -> None:
    report = ConsumeReport(
        ConsumeResult.SUSPEND, suspend_current_queue_time_ms=timedelta(seconds=2)
    )
    assert report.suspend_current_queue_time_ms == 2000


@pytest.mark.parametrize(
    ("kind", "python"),
    [
        (RequestTimeoutError, TimeoutError),
        (SilentServerError, TimeoutError),
        (ConnectError, ConnectionError),
        (ConnectionLostError, ConnectionError),
    ],
)
def test_timeouts_and_lost_connections_are_pythons_and_survive_a_pickle(
    kind: type[CometMQError], python: type[Exception]
) -> None:
    error = kind("no answer within 3 s", address="host:9876")
    assert isinstance(error, python)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert str(other) == str(error) == "no answer within 3 s"
        assert (other.args, other.address) == (error.args, "host:9876")
