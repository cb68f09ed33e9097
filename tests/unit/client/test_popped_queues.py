"""How long a message that a listener refused is hidden, and which options choose who divides the queues."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.aio import PushConsumer
from cometmq.client.consuming.popped_queues import delay_ms
from cometmq.client.consuming.push_consumer import PushConsumerOptions
from cometmq.errors import IllegalArgumentError


@pytest.mark.parametrize(
    ("level", "times", "expected_s"),
    [(0, 0, 10), (0, 1, 30), (0, 15, 7200), (0, 400, 7200), (1, 9, 1), (3, 9, 10), (18, 0, 7200)],
)
def test_refused_messages_wait_as_long_as_in_pull_mode(
    level: int, times: int, expected_s: int
) -> None:
    assert delay_ms(level, times) == expected_s * 1000


@pytest.mark.parametrize(
    ("options", "division"),
    [
        ({}, None),
        ({"mode": "pop"}, "pop"),
        ({"mode": "pop", "orderly": True}, "pop"),
        ({"client_rebalance": False}, "ask"),
        ({"client_rebalance": False, "pop_batch_size": 8}, "ask"),
        # As in Java.
        ({"client_rebalance": False, "orderly": True}, None),
        ({"client_rebalance": False, "message_model": "BROADCASTING"}, None),
    ],
)
def test_who_divides_the_queues(options: dict[str, Any], division: str | None) -> None:
    assert PushConsumerOptions("billing", **options).division == division


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mode": "push"}, "mode is 'push'; it is 'pull' or 'pop'"),
        ({"pop_batch_size": 8}, "pop_batch_size means nothing to a consumer of mode='pull'"),
        ({"mode": "pop", "pop_batch_size": 33}, "pop_batch_size"),
        ({"mode": "pop", "pop_invisible_ms": 4_999}, "pop_invisible_ms"),
        ({"mode": "pop", "consume_from": "CONSUME_FROM_TIMESTAMP"}, "TIMESTAMP"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(IllegalArgumentError, match=match):
        PushConsumer("billing", **options)
