"""The sender of a request, by the headers of proxies."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.console.web.proxies import take_forwarded
from cometmq.runtime.sockets.address_list import AddressList
from cometmq.runtime.sockets.addresses import network_of

TRUSTED = AddressList("trusted_proxies", "10.0.0.0/8 2001:db8:1::/48")


def scope(peer: str, *headers: tuple[str, str]) -> dict[str, Any]:
    return {
        "client": (peer, 4000),
        "scheme": "http",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }


@pytest.mark.parametrize(
    ("peer", "given", "client"),
    [
        ("10.0.0.7", ["203.0.113.7"], "203.0.113.7"),
        # The peer of a socket for both families of addresses.
        ("::ffff:10.0.0.7", ["203.0.113.7"], "203.0.113.7"),
        ("2001:db8:1::5", ["[2001:db8:2::1]:80"], "2001:db8:2::1"),
        # The audit log has one name for an address.
        ("10.0.0.7", ["::ffff:203.0.113.7"], "203.0.113.7"),
        ("10.0.0.7", ["[fe80::1%<b>eth0]:80"], "fe80::1"),
        # A client may send such headers; a proxy appends to them, or adds its own.
        ("10.0.0.7", ["8.8.8.8, 203.0.113.7"], "203.0.113.7"),
        ("10.0.0.7", ["8.8.8.8", "203.0.113.7"], "203.0.113.7"),
        ("10.0.0.7", ["203.0.113.7, 10.0.0.8, 10.0.0.9"], "203.0.113.7"),
        ("10.0.0.7", ["10.0.0.8"], "10.0.0.8"),
        ("10.0.0.7", ["203.0.113.7, unknown"], "10.0.0.7"),
        ("10.0.0.7", [", ,"], "10.0.0.7"),
        ("10.0.0.7", [], "10.0.0.7"),
        ("10.0.0.7", ["\xff\x00[[]:::"], "10.0.0.7"),
        ("10.0.0.7", ["203.0.113.7," + "10.0.0.8," * 50], "10.0.0.8"),
    ],
)
def test_the_last_address_that_is_no_proxy_counts(peer: str, given: list[str], client: str) -> None:
    made = scope(peer, *(("x-forwarded-for", value) for value in given))
    assert take_forwarded(made, TRUSTED)
    assert made["client"][0] == client


def test_a_stranger_tells_nothing_of_himself() -> None:
    made = scope("203.0.113.9", ("x-forwarded-for", "10.0.0.7"), ("x-forwarded-proto", "https"))
    assert not take_forwarded(made, TRUSTED)
    assert (made["client"], made["scheme"]) == (("203.0.113.9", 4000), "http")
    assert not take_forwarded(made, AddressList("trusted_proxies", ""))


@pytest.mark.parametrize(
    ("given", "scheme"),
    [("https", "https"), ("HTTPS", "https"), ("http, https", "https"), ("https,http", "http"), ("gopher", "http")],
)  # fmt: skip
def test_the_scheme_is_that_of_the_last_hop(given: str, scheme: str) -> None:
    made = scope("10.0.0.7", ("x-forwarded-proto", given))
    take_forwarded(made, TRUSTED)
    assert made["scheme"] == scheme


def test_one_subscriber_of_ipv6_is_one_client() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::2") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:10.0.0.7") == network_of("10.0.0.7") == "10.0.0.7"
    assert network_of("nonsense") == "nonsense"
