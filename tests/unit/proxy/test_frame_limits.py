"""Test how many frames the clients of an address may send."""

from __future__ import annotations

from cometmq.proxy.port.frame_limits import FrameLimit


def allowed(limit: FrameLimit, network: str, now_s: float, asked: int = 100) -> int:
    return sum(limit.take(network, 1, now_s) for _ in range(asked))


def test_an_address_may_send_as_many_at_once_as_in_two_seconds() -> None:
    limit = FrameLimit(lambda: 10)
    assert allowed(limit, "10.0.0.1", 5.0) == 20
    assert allowed(limit, "10.0.0.2", 5.0) == 20
    assert allowed(limit, "10.0.0.1", 5.5) == 5
    assert allowed(limit, "10.0.0.1", 6.5) == 10
    assert allowed(limit, "10.0.0.1", 60.0) == 20


def test_all_frames_of_a_read_are_within_the_limit_or_none() -> None:
    limit = FrameLimit(lambda: 10)
    assert limit.take("10.0.0.1", 20, 5.0)
    assert not limit.take("10.0.0.1", 11, 6.0)
    assert not limit.take("10.0.0.1", 1, 6.0), "frames beyond the limit count, too"
    assert limit.take("10.0.0.1", 1, 6.5)


def test_a_forgotten_address_may_send_no_more_than_before() -> None:
    limit = FrameLimit(lambda: 10)
    assert allowed(limit, "10.0.0.1", 5.0) == 20
    limit.forget(6.0)
    assert allowed(limit, "10.0.0.1", 6.0) == 10
    limit.forget(8.5)
    assert allowed(limit, "10.0.0.1", 8.5) == 20
