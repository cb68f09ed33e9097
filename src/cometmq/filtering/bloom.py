"""Make a message's bit map with a Bloom filter: which groups' SQL92 expressions it may match.

Java: BloomFilter, BitsArray, BloomFilterData; the hash is Guava's murmur3_128. A group's positions
on a topic are those of the text `group#topic`. Bit p of a bit map is bit p % 8, counted from the
lowest, of byte p // 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.errors import IllegalArgumentError

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


@dataclass(frozen=True)
class BloomFilter:
    """Is a Bloom filter of `bit_count` bits, of which each text sets `position_count`."""

    bit_count: int
    position_count: int

    @classmethod
    def create(cls, error_rate_per_cent: int, expected_count: int) -> BloomFilter:
        """Make a filter for a number of texts and a rate of false hits in per cent.

        They are a broker's `expectConsumerNumUseFilter` and `maxErrorRateOfBloomFilter`. Raises
        IllegalArgumentError.
        """
        if not 1 <= error_rate_per_cent < 100:
            raise IllegalArgumentError(
                f"maxErrorRateOfBloomFilter={error_rate_per_cent}: must be from 1 to 99"
            )
        if expected_count < 1:
            raise IllegalArgumentError(
                f"expectConsumerNumUseFilter={expected_count}: must be at least 1"
            )
        rate = error_rate_per_cent / 100
        position_count = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(
            expected_count * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2))
        )
        return cls(-(-bits // 8) * 8, position_count)

    def positions(self, text: str) -> tuple[int, ...]:
        """Return the positions of `text`, in the order in which consumerFilter.json lists them."""
        value = murmur3_128_low(text.encode())
        low, high = value & 0xFFFFFFFF, value >> 32
        found = []
        for factor in range(1, self.position_count + 1):
            combined = (low + factor * high) & 0xFFFFFFFF
            # Java computes with an int32 and flips all bits when it is negative.
            found.append((combined ^ 0xFFFFFFFF if combined >> 31 else combined) % self.bit_count)
        return tuple(found)

    def bit_map(self, of: Sequence[Sequence[int]]) -> bytes:
        """Return the bit map in which the positions of all these texts are set."""
        bits = bytearray(self.bit_count // 8)
        for positions in of:
            for position in positions:
                bits[position // 8] |= 1 << position % 8
        return bytes(bits)

    def hits(self, bit_map: bytes, positions: Sequence[int]) -> bool:
        """Return whether all positions are set. `bit_map` must have `bit_count` bits."""
        assert len(bit_map) * 8 == self.bit_count
        return all(bit_map[position // 8] >> position % 8 & 1 for position in positions)


def murmur3_128_low(data: bytes) -> int:
    """Return the first half of MurmurHash3_x64_128 with seed 0, as an unsigned number."""
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for start in range(0, whole, 16):
        k1 = int.from_bytes(data[start : start + 8], "little")
        k2 = int.from_bytes(data[start + 8 : start + 16], "little")
        h1 = ((_rotl(h1 ^ _mix1(k1), 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 = ((_rotl(h2 ^ _mix2(k2), 31) + h1) * 5 + 0x38495AB5) & _MASK
    tail = data[whole:]
    h1 ^= _mix1(int.from_bytes(tail[:8], "little")) ^ len(data)
    h2 ^= _mix2(int.from_bytes(tail[8:], "little")) ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_final_mix(h1) + _final_mix(h2)) & _MASK


def _rotl(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mix1(value: int) -> int:
    return _rotl(value * _C1 & _MASK, 31) * _C2 & _MASK


def _mix2(value: int) -> int:
    return _rotl(value * _C2 & _MASK, 33) * _C1 & _MASK


def _final_mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
