"""Test that requests which would grow in memory are refused before they are parsed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.proxy.configuration import config
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.parsing import parsed
from cometmq.proxy.wire.statuses import RefusedError

MOST = config.MAX_DETAIL_BYTES


def send_of(*bodies: bytes, properties: int = 0) -> wire.SendMessageRequest:
    messages = [
        wire.Message(
            topic=wire.Resource(name="orders"),
            body=body,
            user_properties={str(number): "x" * 100 for number in range(properties)},
        )
        for body in bodies
    ]
    return wire.SendMessageRequest(messages=messages)


def test_long_bodies_are_taken() -> None:
    request = send_of(bytes(4 * 1024 * 1024), bytes(8 * 1024 * 1024))
    assert parsed(wire.SendMessageRequest, request.SerializeToString()) == request


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (wire.SendMessageRequest, b"\x0a\x00" * MOST),
        (wire.SendMessageRequest, b"\x0a\x05\x12\x03\x0a\x01a" * MOST),
        (wire.SendMessageRequest, send_of(b"b", properties=8_000).SerializeToString()),
        (wire.AckMessageRequest, b"\x1a\x00" * MOST),
        (
            wire.TelemetryCommand,
            wire.Settings(user_agent={"hostname": "h" * MOST}).SerializeToString(),
        ),
    ],
)
def test_what_would_grow_is_refused_by_the_limit(kind: Any, raw: bytes) -> None:
    with pytest.raises(RefusedError, match="MAX_DETAIL_BYTES") as refused:
        parsed(kind, raw)
    assert refused.value.status_code == wire.PAYLOAD_TOO_LARGE


def test_a_damaged_request_is_refused_by_its_name() -> None:
    with pytest.raises(RefusedError, match="SendMessageRequest") as refused:
        parsed(wire.SendMessageRequest, b"\x0a\xff")
    assert refused.value.status_code == wire.BAD_REQUEST


@given(st.binary(max_size=200), st.integers(0, 40))
def test_any_bytes_give_a_request_or_an_error_of_our_own(raw: bytes, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "MAX_DETAIL_BYTES", most)
        try:
            request = parsed(wire.SendMessageRequest, raw)
        except RefusedError:
            return
    assert isinstance(request, wire.SendMessageRequest)
