"""Deterministic damage: the same seed makes the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

MAX_INPUT_LENGTH = 8192

Damage = Callable[[Random, bytes, Sequence[bytes]], bytes]

# Where decoders stumble: limits of lengths and integers, and what JSON is made of.
_NUMBERS = [0, 1, 2, 4, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0xFF_FFFF, 0x100_0000]
_NUMBERS += [0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0xDAA320A7, 0xDAA320AB, 0xCBD43194]
_TOKENS = [b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"\\u", b"\\ud800", b"null", b"true"]
_TOKENS += [b"{{", b"}:", b"-1:", b'{"$ref":"$', b'"$ref"', b"1e999", b"9" * 30, b"\xff", b"\xc3"]
_TOKENS += [b"\x01", b"\x02", b"\x01\x02", b"||", b" ", b"\n", b"\0" * 8, b"[" * 40, b'{"a":' * 40]


def mutate(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """`data` after one to five kinds of damage; `corpus` lends parts of other inputs."""
    for _ in range(random.choice([1, 1, 1, 2, 3, 5])):
        damage = random.choice(_DAMAGES)
        data = damage(random, data, corpus)
    return data[:MAX_INPUT_LENGTH]


def cuts(random: Random, data: bytes) -> list[bytes]:
    """`data` in reads of random lengths."""
    places = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(6)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def _place(random: Random, data: bytes) -> int:
    return random.randrange(len(data) + 1)


def _flip_bit(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    if not data:
        return data
    damaged = bytearray(data)
    damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(damaged)


def _set_bytes(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = _place(random, data)
    new = random.randbytes(random.choice([1, 1, 2, 4, 8]))
    return data[:at] + new + data[at + len(new) :]


def _set_number(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = _place(random, data)
    width = random.choice([1, 2, 4, 4, 8])
    number = random.choice([*_NUMBERS, len(data), len(data) - at]) + random.choice([-1, 0, 0, 1])
    return data[:at] + (number % (1 << 8 * width)).to_bytes(width, "big") + data[at + width :]


def _insert_token(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = _place(random, data)
    return data[:at] + random.choice(_TOKENS) + data[at:]


def _delete(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = _place(random, data)
    return data[:at] + data[at + random.choice([1, 2, 4, 16, 64]) :]


def _truncate(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    return data[: _place(random, data)]


def _repeat(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    start, end = sorted((_place(random, data), _place(random, data)))
    return data[:end] + data[start:end] * random.choice([1, 1, 2, 20]) + data[end:]


def _splice(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = random.choice(corpus)
    start, end = sorted((_place(random, other), _place(random, other)))
    at = _place(random, data)
    return data[:at] + other[start:end] + data[at:]


def _append(random: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    return data + random.choice(corpus)


_DAMAGES: Final[list[Damage]] = [
    _flip_bit,
    _set_bytes,
    _set_number,
    _insert_token,
    _delete,
    _truncate,
    _repeat,
    _splice,
    _append,
]
