"""Match the addresses of peers with the white lists of ACL 1.0 (Java: RemoteAddressStrategyFactory).

The forms of an address:

    *                           everybody (also *.*.*.* and *:*:*:*:*:*:*:*)
    10.1.2.3, 2001:db8::1       one address
    10.1.2.3,10.1.2.4           any of these
    10.1.2.{3,4}                any of these
    10.1.2.*, 10.1.*.*          a whole network
    10.1.2.3-9, 10.1.2-5.*      a range, of one part
    2001:db8::1-200, 2001:db8::1-200:*

Java ignores what follows the first part that is a range; here it has to match, too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from cometmq.errors import ConfigError

_EVERYBODY: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_BRACES: Final = re.compile(r"([^{}]+)\{([^{}]+)\}")
_MOST_ADDRESSES: Final = 4_096
# A part of an address: one number, or all of them, or from one to another.
_PART: Final = re.compile(r"(\*)|([0-9a-fA-F]{1,4})(?:-([0-9a-fA-F]{1,4}))?")


class _Family(NamedTuple):
    parts: int
    highest: int
    separator: str
    base: int


_IPV4: Final = _Family(4, 255, ".", 10)
_IPV6: Final = _Family(8, 0xFFFF, ":", 16)

Ranges = tuple[tuple[int, int], ...]


class WhiteList:
    """The addresses from which requests need no signature. `repr` shows how they were written."""

    def __init__(self, texts: list[str]) -> None:
        """Read each text. Raises ConfigError for one that has none of the forms above."""
        self.texts = texts
        self._everybody = False
        self._single: set[ipaddress.IPv4Address | ipaddress.IPv6Address] = set()
        self._ranges: list[Ranges] = []
        for text in texts:
            self._add(text)

    def __bool__(self) -> bool:
        return self._everybody or bool(self._single) or bool(self._ranges)

    def __contains__(self, peer_ip: str) -> bool:
        if self._everybody:
            return True
        if not self._single and not self._ranges:
            return False
        try:
            address = ipaddress.ip_address(peer_ip.partition("%")[0])
        except ValueError:
            return False
        if address in self._single:
            return True
        packed = address.packed
        if len(packed) == _IPV4.parts:
            numbers = list(packed)
        else:
            numbers = [packed[i] << 8 | packed[i + 1] for i in range(0, 16, 2)]
        return any(_matches(numbers, ranges) for ranges in self._ranges)

    def __repr__(self) -> str:
        return f"WhiteList({self.texts!r})"

    def _add(self, given: str) -> None:
        text = given.strip()
        if not text:
            return
        if text in _EVERYBODY:
            self._everybody = True
            return
        for single in _alternatives(text):
            ranges = _ranges(single)
            if all(low == high for low, high in ranges):
                self._single.add(_address(ranges))
            elif single != text:
                raise _wrong(given, "a list has single addresses only")
            else:
                self._ranges.append(ranges)
        if len(self._single) > _MOST_ADDRESSES or len(self._ranges) > _MOST_ADDRESSES:
            raise _wrong(given, f"a white list has at most {_MOST_ADDRESSES} addresses")


def _alternatives(text: str) -> Iterator[str]:
    """Yield the addresses of a list; a text that is none as it is."""
    if (braces := _BRACES.fullmatch(text)) is not None:
        if braces[1][-1] not in ".:":
            raise _wrong(text, "braces stand for the whole last part")
        yield from (braces[1] + last.strip() for last in braces[2].split(","))
    elif "," in text:
        yield from (part.strip() for part in text.split(",") if part.strip())
    else:
        yield text


def _ranges(text: str) -> Ranges:
    family = _IPV6 if ":" in text else _IPV4
    tokens = _expanded(text) if family is _IPV6 else text.split(".")
    if len(tokens) != family.parts:
        raise _wrong(text, f"it has {len(tokens)} parts instead of {family.parts}")
    return tuple(_range(text, token.strip(), family) for token in tokens)


def _expanded(text: str) -> list[str]:
    """Return the parts of an IPv6 address, with those for which `::` stands."""
    head, gap, tail = text.partition("::")
    before, after = head.split(":") if head else [], tail.split(":") if tail else []
    if not gap:
        return before
    missing = max(_IPV6.parts - len(before) - len(after), 1)
    return [*before, *["0"] * missing, *after]


def _range(text: str, token: str, family: _Family) -> tuple[int, int]:
    part = _PART.fullmatch(token)
    if part is None:
        raise _wrong(text, f"{token!r:.40} is no part of an address")
    if part[1]:
        return 0, family.highest
    try:
        low = int(part[2], family.base)
        high = low if part[3] is None else int(part[3], family.base)
    except ValueError:  # hexadecimal digits in an IPv4 address
        raise _wrong(text, f"{token!r:.40} is no part of an address") from None
    if not low <= high <= family.highest:
        raise _wrong(
            text, f"{token} is not within 0 and {family.highest:{'x' if family is _IPV6 else 'd'}}"
        )
    return low, high


def _address(ranges: Ranges) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if len(ranges) == _IPV4.parts:
        return ipaddress.IPv4Address(bytes(low for low, _ in ranges))
    return ipaddress.IPv6Address(b"".join(low.to_bytes(2, "big") for low, _ in ranges))


def _matches(numbers: list[int], ranges: Ranges) -> bool:
    return len(numbers) == len(ranges) and all(
        low <= number <= high for number, (low, high) in zip(numbers, ranges, strict=True)
    )


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"{text!r:.100} is no address of a white list: {why}")
