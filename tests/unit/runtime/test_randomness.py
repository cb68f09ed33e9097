"""Random numbers of a seed, and those that no two processes share."""

from __future__ import annotations

import os
import pickle
import uuid

from cometmq.runtime.randomness import SYSTEM_RANDOMNESS, Randomness


def test_one_seed_gives_the_same_numbers() -> None:
    one, other = Randomness(7), Randomness(7)
    assert one.token_hex(16) == other.token_hex(16)
    assert one.randrange(1000) == other.randrange(1000)
    assert one.token_hex(16) != Randomness(8).token_hex(16)


def test_a_token_is_as_long_as_asked() -> None:
    assert len(bytes.fromhex(SYSTEM_RANDOMNESS.token_hex(12))) == 12


def test_uuids_are_random_ones_and_come_from_the_seed() -> None:
    one, again, other = (Randomness(seed).uuid4() for seed in (7, 7, 8))
    assert one == again != other
    assert (one.version, one.variant) == (4, uuid.RFC_4122)


def test_a_fork_does_not_repeat_the_tokens_of_its_parent() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, SYSTEM_RANDOMNESS.token_hex(16).encode())
            os._exit(0)
        finally:
            os._exit(1)
    ours = SYSTEM_RANDOMNESS.token_hex(16)
    _, status = os.waitpid(pid, 0)
    theirs = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(theirs) == 32
    assert theirs != ours


def test_a_pickle_does_not_repeat_the_tokens_of_its_writer() -> None:
    assert pickle.loads(pickle.dumps(SYSTEM_RANDOMNESS)) is SYSTEM_RANDOMNESS
