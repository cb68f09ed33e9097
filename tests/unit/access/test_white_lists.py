"""The forms of addresses in white lists, by what Java's RemoteAddressStrategyFactory takes."""

from __future__ import annotations

import pytest

from cometmq.access.plain.addresses import WhiteList
from cometmq.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "within", "beyond"),
    [
        ("*", ["1.2.3.4", "2001:db8::1"], []),
        ("*.*.*.*", ["1.2.3.4", "::1"], []),
        ("*:*:*:*:*:*:*:*", ["1.2.3.4", "::1"], []),
        ("", [], ["1.2.3.4", "::1", ""]),
        ("10.1.2.3", ["10.1.2.3"], ["10.1.2.4", "10.1.2.30", "::ffff:10.1.2.3"]),
        ("10.1.2.*", ["10.1.2.0", "10.1.2.255"], ["10.1.3.0", "110.1.2.1"]),
        ("10.1.*.*", ["10.1.0.0", "10.1.255.9"], ["10.2.0.0"]),
        ("10.*.*.*", ["10.0.0.0", "10.255.255.255"], ["11.0.0.0"]),
        ("10.1.2.3-9", ["10.1.2.3", "10.1.2.9"], ["10.1.2.2", "10.1.2.10"]),
        ("10.1.2-5.*", ["10.1.2.0", "10.1.5.255"], ["10.1.1.0", "10.1.6.0"]),
        ("10.1-2.*.*", ["10.1.0.0", "10.2.9.9"], ["10.3.0.0"]),
        # Java takes a range up to 0 for none, and what follows a range for anything.
        ("10.1.2.0-0", ["10.1.2.0"], ["10.1.2.1"]),
        ("10.1.2-3.7", ["10.1.2.7", "10.1.3.7"], ["10.1.2.8"]),
        ("10.1.2.{3,5}", ["10.1.2.3", "10.1.2.5"], ["10.1.2.4"]),
        ("10.1.2.3,10.9.9.9", ["10.1.2.3", "10.9.9.9"], ["10.1.2.4"]),
        ("2001:db8::1", ["2001:db8::1", "2001:0DB8:0::0001"], ["2001:db8::2"]),
        ("1050::5:600:300c:1", ["1050:0:0:0:5:600:300c:1"], ["1050::5:600:300c:2"]),
        ("1050::5:600:300c:*", ["1050::5:600:300c:1"], ["1050::5:600:300d:1"]),
        ("1050::5:600:300c:1-a", ["1050::5:600:300c:a"], ["1050::5:600:300c:b"]),
        ("2::ac5:78:1-200:*", ["2::ac5:78:200:7"], ["2::ac5:78:201:7"]),
        ("1050::5:600:300c:{1,5}", ["1050::5:600:300c:5"], ["1050::5:600:300c:2"]),
        ("fe80::1,fe80::2", ["fe80::1%eth0", "fe80::2"], ["fe80::3"]),
    ],
)
def test_addresses_are_within_or_beyond(text: str, within: list[str], beyond: list[str]) -> None:
    white = WhiteList([text])
    assert [address for address in within if address not in white] == []
    assert [address for address in beyond if address in white] == []
    assert bool(white) is bool(within)


@pytest.mark.parametrize(
    "text",
    [
        "10.1.2",
        "10.1.2.3.4",
        "10.1.2.256",
        "10.1.2.9-3",
        "10.1.2.-3",
        "10.1.2.a",
        "10.1.2.{3,x}",
        "10.1.{2,3}.4",
        "10.1.2{3,4}",
        "10.1.2.*,10.1.3.*",
        "1:2:3",
        "1::2::3",
        "12345::1",
        "nowhere",
        "-",
    ],
)
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a white list"):
        WhiteList([text])


def test_a_list_has_a_limit() -> None:
    with pytest.raises(ConfigError, match="4096"):
        WhiteList([f"10.0.{n >> 8}.{n & 255}" for n in range(4_097)])
