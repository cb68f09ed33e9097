"""Define fuzz targets, and feed one input to a target.

A target is fed any bytes. It returns a value or raises a CometMQError; any other exception is a
fault, and so is an assertion of its own that fails, or an input that takes more processor time than
its length deserves. All that a target draws by chance comes from the input itself, so bytes alone
repeat a run.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from tests.fuzz.mutation import mutate

from cometmq.errors import CometMQError

REFUSALS: Final = CometMQError
# What one input may cost, in seconds of processor time: far more than any decoder takes that is
# linear, on a slow machine and while coverage is counted, and far less than a square one takes for
# LONG_BYTES.
_ALLOWED_S: Final = 0.5
_ALLOWED_S_PER_BYTE: Final = 30e-6
LONG_BYTES: Final = 64 * 1024

Mutate = Callable[[Random, bytes, Sequence[bytes]], bytes]


class Target(NamedTuple):
    """A name (that of its files, too), sound inputs, and what takes the bytes.

    `mutate` damages an input so that its own lengths and counts stay right more often than by chance.
    `cost` says how much more than a decoder's input one of this target may take. With `takes_long`
    inputs of LONG_BYTES are fed, too. `is_twin` says that the compiled modules must give the same
    outcomes as the interpreted ones.
    """

    name: str
    corpus: list[bytes]
    run: Callable[[Random, bytes], Any]
    mutate: Mutate = mutate
    cost: float = 1.0
    takes_long: bool = True
    is_twin: bool = True


class TooSlowError(AssertionError):
    """An input took more processor time than its length deserves."""


def feed(target: Target, data: bytes) -> object:
    """Feed one input; return what came of it, a value or a refusal. Raises what is a fault."""
    outcome: object
    begun_at_s = time.thread_time()
    try:
        outcome = target.run(Random(zlib.crc32(data)), data)
    except REFUSALS as error:
        outcome = error
    took_s = time.thread_time() - begun_at_s
    allowed_s = target.cost * (_ALLOWED_S + len(data) * _ALLOWED_S_PER_BYTE)
    if took_s > allowed_s:
        raise TooSlowError(
            f"{len(data)} bytes took {took_s:.2f} s of processor time, more than {allowed_s:.2f} s"
        )
    return outcome


def lengthened(random: Random, data: bytes) -> bytes:
    """Return `data` with a part of it repeated up to LONG_BYTES: what grows with its square shows."""
    start, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    part = data[start:end] or b"\0"
    count = max(1, (LONG_BYTES - len(data)) // len(part))
    return data[:end] + part * count + data[end:]
