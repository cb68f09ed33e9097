"""The names of a host, and the address by which others reach it."""

from __future__ import annotations

import errno
import ipaddress
import socket

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.runtime.sockets.addresses import (
    Reach,
    is_own_address,
    look_up,
    own_address,
    reach_of,
    resolve,
)


def test_a_peer_on_this_host_sees_loopback() -> None:
    assert own_address("127.0.0.1", 9876) == "127.0.0.1"


def test_the_own_address_is_one_that_can_be_bound() -> None:
    address = own_address()
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family) as bound:
        bound.bind((address, 0))


def test_a_host_without_a_way_outside_has_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    assert own_address() == "127.0.0.1"


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "300.1.1.1", "", "a..b", "x" * 64 + ".org"]
)
def test_a_peer_that_cannot_be_reached_gives_loopback(host: str) -> None:
    assert own_address(host, 9876) in ("127.0.0.1", "::1")


def test_a_broker_is_called_after_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "rack7")
    assert BrokerConfig().broker_name == "rack7"
    monkeypatch.setattr(socket, "gethostname", lambda: "")
    assert BrokerConfig().broker_name == "DEFAULT_BROKER"


async def test_a_host_is_resolved_to_its_address() -> None:
    assert await resolve("127.0.0.1") == "127.0.0.1"
    assert ipaddress.ip_address(await resolve("localhost")).is_loopback


async def test_what_cannot_be_a_host_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match=r"'a\.\.b' is not a host name"):
        await resolve("a..b")


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("10.0.0.5", Reach.ANYBODY),
        ("2001:db8::1", Reach.ANYBODY),
        ("127.0.0.1", Reach.THIS_MACHINE),
        ("::1", Reach.THIS_MACHINE),
        ("172.17.0.2", Reach.CONTAINERS),
        ("172.18.0.2", Reach.ANYBODY),
        ("169.254.3.4", Reach.LINK),
        ("0.0.0.0", Reach.NOBODY),
    ],
)
def test_who_reaches_an_address(address: str, reach: Reach) -> None:
    assert reach_of(address) is reach


def test_loopback_is_this_machines_and_a_documentation_address_is_not() -> None:
    assert is_own_address("127.0.0.1")
    assert not is_own_address("203.0.113.9")


def test_a_name_that_cannot_be_one_has_no_address() -> None:
    assert look_up("127.0.0.1") == "127.0.0.1"
    assert look_up("a..b") is None
