"""Any bytes give a value or one of our errors, in bounded time.

A few hundred damaged inputs per decoder in every test run, always the same ones. With
COMETMQ_FUZZ_SECONDS=n, n seconds in all from a new seed (or from COMETMQ_FUZZ_SEED); a failure names
seed and input, and the input then becomes a unit test.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator

import pytest
from tests.fuzz.mutation import MAX_INPUT_LENGTH, mutate
from tests.fuzz.targets import REFUSALS, TARGETS, Target

SECONDS = float(os.environ.get("COMETMQ_FUZZ_SECONDS", "0"))
SEED = os.environ.get("COMETMQ_FUZZ_SEED") or (str(random.getrandbits(32)) if SECONDS else "0")
SHORT_RUN_INPUTS = 300


# An input takes less than a millisecond, so whoever runs into the timeout hangs.
@pytest.mark.timeout(SECONDS / len(TARGETS) + 300)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_bytes_give_a_value_or_our_error(target: Target) -> None:
    for number in _inputs():
        source = random.Random(f"{SEED} {target.name} {number}")
        data = mutate(source, source.choice(target.corpus), target.corpus)
        try:
            with contextlib.suppress(REFUSALS):
                target.run(source, data)
        except BaseException as error:
            error.add_note(f"target {target.name}, seed {SEED}, input {number}: {data!r}")
            raise


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_sound_bytes_are_no_error(target: Target) -> None:
    for data in target.corpus:
        assert len(data) <= MAX_INPUT_LENGTH
        # Bodies and registrations pick a type by chance, so a refusal of theirs says nothing here.
        with contextlib.suppress(
            *([REFUSALS] if target.name in ("bodies", "registration") else [])
        ):
            target.run(random.Random(0), data)


def _inputs() -> Iterator[int]:
    if not SECONDS:
        yield from range(SHORT_RUN_INPUTS)
        return
    end = time.monotonic() + SECONDS / len(TARGETS)
    number = 0
    while time.monotonic() < end:
        yield number
        number += 1
