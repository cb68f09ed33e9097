"""The address of this machine, as seen from others."""

from __future__ import annotations

import socket

import pytest

from cometmq.runtime.network import TCP_NETWORK


def test_this_machine_reaches_itself_from_loopback() -> None:
    assert TCP_NETWORK.own_address("127.0.0.1", 9876) == "127.0.0.1"


def test_the_own_address_is_an_ip_address() -> None:
    socket.inet_pton(socket.AF_INET, TCP_NETWORK.own_address("192.0.2.1", 9))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "300.1.1.1", ""])
def test_a_host_that_cannot_be_reached_gives_loopback(host: str) -> None:
    assert TCP_NETWORK.own_address(host, 9876) in ("127.0.0.1", "::1")
