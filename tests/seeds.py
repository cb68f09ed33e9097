"""Where tests that draw begin: a fixed seed, one that the environment names, or a fresh one.

A plain run draws the same each time, so that it says something about the change that it is for. A
variable such as COMETMQ_CRASH_SEED names another seed, for example the one that a failure printed. With
`fresh` the run draws one that no run had before, and its last lines print it: that is for hunting.
"""

from __future__ import annotations

import os
import secrets
from typing import Final

FRESH: Final = "fresh"
FIXED: Final = 1
_END: Final = 1 << 32

# The variables that were `fresh`, and what was drawn.
_drawn: dict[str, int] = {}


def is_exploring() -> bool:
    """Return whether hypothesis draws new examples (COMETMQ_EXPLORE=1), as hunts do."""
    return os.environ.get("COMETMQ_EXPLORE") == "1"


def examples(count: int) -> int:
    """Return how many examples hypothesis draws: `count` if they are new in each run, else a third of it.

    If each run draws the same examples, a third of them finds nearly as much as all.
    """
    return count if is_exploring() else -(-count // 3)


def draw_fresh_seeds() -> None:
    """Put a number in the place of each `fresh`.

    Call it before xdist starts its workers, which inherit the number: all of them draw the same.
    """
    for name, value in os.environ.items():
        if name.startswith("COMETMQ_") and name.endswith("_SEED") and value == FRESH:
            _drawn[name] = secrets.randbelow(_END)
    os.environ.update({name: str(seed) for name, seed in _drawn.items()})


def drawn_seeds() -> list[str]:
    """Return the settings that repeat what this process drew."""
    return [f"{name}={seed}" for name, seed in sorted(_drawn.items())]


def seed_of(name: str, fixed: int = FIXED) -> int:
    """Return the seed that the variable names, or else `fixed`; print the setting that repeats it."""
    value = os.environ.get(name) or str(fixed)
    if not (value.isascii() and value.isdecimal()) or int(value) >= _END:
        raise ValueError(
            f"{name}={value} is no seed; give a number from 0 to {_END - 1}, or `{FRESH}` to draw one"
        )
    print(f"{name}={value}")  # noqa: T201 - shown when the test fails
    return int(value)
