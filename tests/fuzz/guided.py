"""Fuzz one target in this process, guided by the coverage that atheris counts: see `__main__`.

    python -m tests.fuzz.guided MODULE TARGET --directory DIR --inputs N --seconds S

DIR/corpus has the inputs, which grow; DIR/faults gets the first input of each fault. Once a second
and at the end a line of JSON says how many inputs were fed. The output of libFuzzer goes to stderr.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import traceback
from pathlib import Path
from random import Random
from typing import Final

import atheris
from tests.fuzz import corpus, log_watch
from tests.fuzz.mutation import MAX_INPUT_LENGTH
from tests.fuzz.target import Target, feed, lengthened
from tests.fuzz.targets import targets_of

# One input in so many is followed by a long one.
_LONG_EVERY: Final = 1024
_HANGS_AFTER_S: Final = 120


class Guided:
    """Feeds what libFuzzer asks for; goes on after a fault, of which it keeps the first input."""

    def __init__(self, target: Target, directory: Path) -> None:
        self._target = target
        self._faults = directory / "faults"
        self._faults.mkdir(parents=True, exist_ok=True)
        self._sound = [*target.corpus, *corpus.kept(target.name)]
        self._known: set[str] = set()
        self._count = 0
        self._said_at_s = time.monotonic()

    def one(self, data: bytes) -> None:
        self._count += 1
        self._feed(data)
        if self._target.takes_long and self._count % _LONG_EVERY == 0:
            self._count += 1
            self._feed(lengthened(Random(self._count), data))
        if self._count % 16 == 0 and time.monotonic() - self._said_at_s >= 1:
            self.say()

    def mutate(self, data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.4:
            return bytes(atheris.Mutate(data, max_size))
        return self._target.mutate(random, data, self._sound)[:max_size]

    def say(self) -> None:
        self._said_at_s = time.monotonic()
        print(json.dumps({"inputs": self._count, "faults": len(self._known)}), flush=True)  # noqa: T201 - the runner reads it

    def _feed(self, data: bytes) -> None:
        try:
            feed(self._target, data)
        except Exception as error:  # noqa: BLE001 - each is a fault to keep
            self._keep(data, error)

    def _keep(self, data: bytes, error: Exception) -> None:
        places = [
            f"{Path(frame.filename).name}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
            if "cometmq" in frame.filename or "tests" in frame.filename
        ]
        fault = f"{type(error).__name__} at {' '.join(places[-3:])}"
        if fault in self._known:
            return
        self._known.add(fault)
        name = hashlib.sha1(fault.encode(), usedforsecurity=False).hexdigest()[:12]
        (self._faults / f"{name}.input").write_bytes(data)
        reported = "".join(traceback.format_exception(error))
        (self._faults / f"{name}.txt").write_text(f"{fault}\n\n{reported}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("module")
    parser.add_argument("target")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--inputs", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=0)
    given = parser.parse_args()
    # What the module imports of ours is counted; nothing of it was imported before.
    with atheris.instrument_imports(include=["cometmq"], enable_loader_override=False):
        target = next(one for one in targets_of(given.module) if one.name == given.target)
    inputs = given.directory / "corpus"
    inputs.mkdir(parents=True, exist_ok=True)
    for data in [*target.corpus, *corpus.kept(target.name)]:
        name = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        (inputs / name).write_bytes(data)
    log_watch.watch()
    guided = Guided(target, given.directory)
    options = [
        f"-max_len={MAX_INPUT_LENGTH}",
        f"-timeout={_HANGS_AFTER_S}",
        "-rss_limit_mb=2048",
        "-len_control=20",
        "-reload=0",
        f"-artifact_prefix={given.directory}/faults/",
        *([f"-runs={given.inputs}"] if given.inputs else []),
        *([f"-max_total_time={given.seconds}"] if given.seconds else []),
    ]
    atheris.Setup([sys.argv[0], *options, str(inputs)], guided.one, custom_mutator=guided.mutate)
    # It ends the process.
    atheris.Fuzz()


if __name__ == "__main__":
    main()
