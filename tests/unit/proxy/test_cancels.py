"""Test how many calls the clients of an address may cancel."""

from __future__ import annotations

import pytest

from cometmq.proxy.configuration import front_config
from cometmq.proxy.port.cancels import Cancels


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_config, "MAX_CANCELS_PER_SECOND", 10)


def allowed(cancels: Cancels, network: str, now_s: float, asked: int = 100) -> int:
    return sum(cancels.count(network, now_s) for _ in range(asked))


def test_an_address_may_cancel_as_many_calls_at_once_as_in_two_seconds() -> None:
    cancels = Cancels()
    assert allowed(cancels, "10.0.0.1", 5.0) == 20
    assert allowed(cancels, "10.0.0.2", 5.0) == 20
    assert allowed(cancels, "10.0.0.1", 5.5) == 5
    assert allowed(cancels, "10.0.0.1", 6.5) == 10
    assert allowed(cancels, "10.0.0.1", 60.0) == 20


def test_what_is_forgotten_makes_no_difference() -> None:
    cancels = Cancels()
    assert allowed(cancels, "10.0.0.1", 5.0) == 20
    cancels.forget(6.0)
    assert allowed(cancels, "10.0.0.1", 6.0) == 10
    cancels.forget(8.5)
    assert allowed(cancels, "10.0.0.1", 8.5) == 20
