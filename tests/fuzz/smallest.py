"""Choose the fewest and shortest inputs that still reach all code that the whole corpus reaches.

Lines and the steps between them are counted by the interpreter itself, so it needs no atheris, and
takes a while.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from tests.fuzz import corpus, log_watch
from tests.fuzz.target import REFUSALS, Target, feed
from tests.fuzz.targets import targets_of

_OURS: Final = f"{Path('src/cometmq').resolve()}/"
_MOST_INPUTS: Final = 3000
_MOST_BYTES: Final = 40_000

Step = tuple[CodeType, int, int]


def keep_smallest(module: str, name: str, directory: Path) -> None:
    """Keep in the tree what a run has found for a target, as little as reaches the same code."""
    target = next(one for one in targets_of(module) if one.name == name)
    log_watch.watch()
    found = [path.read_bytes() for path in sorted(directory.glob("*"))]
    corpus.keep(name, smallest(target, [*corpus.kept(name), *found]))


def smallest(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Return inputs that reach, beyond the sound ones, all that `inputs` reach; shortest first."""
    reached: set[Step] = set()
    for data in target.corpus:
        reached |= steps_of(target, data)
    kept: list[bytes] = []
    size = 0
    for data in sorted(set(inputs), key=lambda one: (len(one), one))[:_MOST_INPUTS]:
        new = steps_of(target, data) - reached
        if new and size + len(data) <= _MOST_BYTES:
            reached |= new
            kept.append(data)
            size += len(data)
    return kept


def steps_of(target: Target, data: bytes) -> set[Step]:
    """Return the steps from line to line in our code that an input takes."""
    steps: set[Step] = set()
    last: dict[FrameType, int] = {}

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            steps.add((frame.f_code, last.get(frame, 0), frame.f_lineno))
            last[frame] = frame.f_lineno
        elif event == "return":
            last.pop(frame, None)
        return line

    def call(frame: FrameType, _event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        feed(target, data)
    except (REFUSALS, AssertionError):
        pass
    finally:
        sys.settrace(before)
    return steps
