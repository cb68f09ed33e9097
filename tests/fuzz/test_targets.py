"""Any bytes give a value or one of our errors, in time that their length deserves.

Each run replays the inputs that are kept (`corpus`), and a few hundred damaged ones for each target,
always the same. `make fuzz` goes on from there for as long as one likes, guided by coverage. An
input that finds a fault is added to `corpus/found.txt`, with what was wrong.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from tests.fuzz import corpus, figures, log_watch
from tests.fuzz.mutation import MAX_INPUT_LENGTH
from tests.fuzz.smallest import smallest
from tests.fuzz.target import LONG_BYTES, REFUSALS, Target, TooSlowError, feed, lengthened
from tests.fuzz.targets import all_targets

from cometmq import _compiled

TARGETS = all_targets()
# By cost: a server takes some milliseconds for an input.
SHORT_RUN_INPUTS = 300
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@pytest.fixture(autouse=True)
def watched_log() -> Iterator[None]:
    """Servers in a target say there what is a fault of theirs."""
    before = structlog.get_config() if structlog.is_configured() else None
    log_watch.watch()
    yield
    if before is None:
        structlog.reset_defaults()
    else:
        structlog.configure(**before)


def checked(target: Target, data: bytes) -> object:
    try:
        return feed(target, data)
    except BaseException as error:
        error.add_note(f"target {target.name}, input {data!r}")
        raise


@each_target
def test_kept_inputs_give_a_value_or_our_error(target: Target) -> None:
    """At least half of the sound inputs give a value: a target that refuses all would try nothing."""
    taken = 0
    for data in target.corpus:
        assert len(data) <= MAX_INPUT_LENGTH
        taken += not isinstance(checked(target, data), REFUSALS)
    assert taken >= len(target.corpus) / 2
    for data in corpus.kept(target.name):
        assert len(data) <= MAX_INPUT_LENGTH
        checked(target, data)


@each_target
def test_damaged_bytes_give_a_value_or_our_error(target: Target) -> None:
    sound = [*target.corpus, *corpus.kept(target.name)]
    for number in range(int(SHORT_RUN_INPUTS / target.cost)):
        source = random.Random(f"{target.name} {number}")
        checked(target, target.mutate(source, source.choice(sound), sound))


@each_target
def test_long_inputs_take_no_longer_than_they_deserve(target: Target) -> None:
    """Work that grows with the square of a length shows at a length of 64 KiB."""
    sound = [*target.corpus, *corpus.kept(target.name)]
    for number in range(6 if target.takes_long else 0):
        source = random.Random(f"{target.name} long {number}")
        data = lengthened(source, source.choice(sound))
        assert len(data) >= LONG_BYTES / 2
        checked(target, data)


def test_names_differ_and_all_that_is_kept_belongs_to_a_target() -> None:
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names)
    assert {path.stem for path in corpus.HERE.glob("*.corpus")} <= set(names)
    rows = [line for line in corpus.FOUND.read_text().splitlines() if line[:1] != "#"]
    assert {row.split(" ", 1)[0] for row in rows} <= set(names)
    size = sum(path.stat().st_size for path in corpus.HERE.iterdir())
    assert size < 600_000, f"{size} bytes of kept inputs; keep fewer"


@pytest.mark.skipif(
    _compiled.state() != "", reason="nothing is compiled, so there is nothing to compare"
)
def test_compiled_modules_give_the_same_outcomes_as_interpreted_ones() -> None:
    command = [sys.executable, "-m", "tests.fuzz.outcomes"]
    texts = [
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            # Values are compared as they are printed, sets too.
            env={**os.environ, "COMETMQ_PURE": pure, "PYTHONHASHSEED": "0"},
        ).stdout.splitlines()
        for pure in ("0", "1")
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 100


# What finds faults finds those that are there.


def test_an_input_that_takes_too_long_is_a_fault() -> None:
    def square(_: random.Random, data: bytes) -> None:
        end_s = time.thread_time() + (len(data) / 1000) ** 2 / 40
        while time.thread_time() < end_s:
            pass

    target = Target("square", [b"x"], square, cost=0.1)
    feed(target, b"x" * 1000)
    with pytest.raises(TooSlowError, match="3000 bytes took"):
        feed(target, b"x" * 3000)


def test_an_input_that_raises_another_error_is_a_fault() -> None:
    def fails(_: random.Random, data: bytes) -> int:
        return data[3]

    with pytest.raises(IndexError):
        feed(Target("fails", [b"abcd"], fails), b"ab")


def test_the_smallest_corpus_reaches_what_the_whole_one_does() -> None:
    [target] = [one for one in TARGETS if one.name == "tags"]
    alone = target._replace(corpus=[])
    kept = smallest(alone, [b"a || b", b"a || b || c", b"*", b"a || b || c || d || e"])
    # How often a line runs counts in steps, so a third tag may be something new or not.
    assert kept[:2] == [b"*", b"a || b"]
    assert len(kept) < 4


def test_kept_inputs_are_packed_and_unpacked() -> None:
    inputs = [b"", b"b", b"a" * 5000, bytes(range(256))]
    packed = corpus.pack([*inputs, b"b"])
    assert corpus.unpack(packed) == sorted(inputs)
    assert packed == corpus.pack(reversed(inputs))


def test_figures_add_up_and_stay_between_their_marks(tmp_path: Path) -> None:
    sums, page = tmp_path / "sums.json", tmp_path / "page.md"
    page.write_text(f"before\n{figures.BEGIN}\nold\n{figures.END}\nafter\n")
    figures.add(sums, {"a": (1000, 5.0, 10), "b": (1, 1.0, 2)})
    figures.add(sums, {"a": (2000, 6.0, 9)})
    figures.record(sums, page)
    text = page.read_text()
    assert "| a | 3,000 | 11 | 10 |" in text
    assert "3,001 inputs" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
