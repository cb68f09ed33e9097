"""Lists of addresses and networks, and the addresses of sockets."""

from __future__ import annotations

import pytest

from cometmq.protocol.messages.ids import pack_host
from cometmq.runtime.sockets.address_list import AddressList, plain_ip


@pytest.mark.parametrize(
    ("of_socket", "plain"),
    [
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("::ffff:0:102:304", "::ffff:0:102:304"),
        ("::ffff:1:2:3:4", "::ffff:1:2:3:4"),
        ("2001:db8::ffff:7", "2001:db8::ffff:7"),
        ("10.0.0.7", "10.0.0.7"),
    ],
)
def test_only_what_stands_for_an_ipv4_address_becomes_one(of_socket: str, plain: str) -> None:
    assert plain_ip(of_socket) == plain
    # Records store it: whoever comes from such an address would not get a connection otherwise.
    pack_host(plain, 1)


@pytest.mark.parametrize("text", ["::ffff:10.0.0.7", "::ffff:10.0.0.0/120", "::ffff:0:0/96"])
def test_ipv4_addresses_written_as_ipv6_are_meant(text: str) -> None:
    listed = AddressList("slavesFrom", text)
    assert "10.0.0.7" in listed
    assert "::ffff:10.0.0.7" in listed
    assert "2001:db8::7" not in listed


def test_a_network_of_all_ipv6_addresses_has_no_ipv4_ones() -> None:
    assert "10.0.0.7" not in AddressList("slavesFrom", "::/0")
    assert "2001:db8::7" in AddressList("slavesFrom", "::/0")
