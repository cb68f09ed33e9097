"""Balancers in front of the proxy: the addresses of clients, and the order of their connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import ip_address
from typing import cast

import pytest

from cometmq.proxy.port.balancers import Balancers, Header, read_header
from cometmq.runtime.sockets.address_list import AddressList
from cometmq.runtime.sockets.arrivals import Arrival

TEXT = b"PROXY TCP6 ::ffff:1.2.3.4 ::1 4567 8081\r\n"
BYTES = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24"
    + ip_address("::ffff:1.2.3.4").packed
    + ip_address("::1").packed
    + (4567).to_bytes(2, "big")
    + (8081).to_bytes(2, "big")
)


@pytest.mark.parametrize("data", [TEXT, BYTES])
def test_a_client_of_ipv4_that_a_balancer_names_in_ipv6_has_its_ipv4_address(data: bytes) -> None:
    assert read_header(data) == Header(len(data), ("1.2.3.4", 4567))


class Slow:
    """Stands for an arrival that sends its header after others have come."""

    peer_ip, peer, made_at = "127.0.0.1", "127.0.0.1:1", 0.0
    is_closed = False

    def when_sent(self, _count: int, then: Callable[[], None]) -> None:
        self.then = then

    def peek(self, _count: int) -> bytes:
        return TEXT

    def discard(self, count: int) -> None:
        assert count == len(TEXT)

    def close(self) -> None:
        self.is_closed = True

    def comes_from(self, ip: str, port: int) -> None:
        assert (ip, port) == ("1.2.3.4", 4567)


async def test_a_connection_counts_from_its_header_on() -> None:
    served: list[Arrival] = []
    trusted = AddressList("haproxyFrom", "127.0.0.1")
    balancers = Balancers(trusted, served.append, lambda _: None, full=lambda _: "", timeout_s=10)
    slow = Slow()
    balancers.arrived(cast("Arrival", slow))
    before_s = asyncio.get_running_loop().time()
    slow.then()
    if balancers.waiting_count:
        slow.then()
    assert served == [cast("Arrival", slow)]
    assert slow.made_at >= before_s


async def test_the_oldest_that_waits_makes_room_where_a_limit_is_met() -> None:
    hits: list[str] = []
    trusted = AddressList("haproxyFrom", "127.0.0.1")
    balancers = Balancers(
        trusted, lambda _: None, hits.append, full=lambda _: "RLIMIT_NOFILE", timeout_s=10
    )
    slow = [Slow(), Slow(), Slow()]
    for one in slow:
        balancers.arrived(cast("Arrival", one))
    assert [one.is_closed for one in slow] == [True, True, False]
    assert hits == ["RLIMIT_NOFILE"] * 2
    balancers.close()
