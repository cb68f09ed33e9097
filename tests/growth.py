"""How the cost of something grows with its size, measured so that a busy machine does not matter."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator

FACTOR = 4
# Four times the size may cost nine times as much: twice what is linear, half of what is square.
_MAX_GROWTH = 9
# Costs below this tell nothing.
FLOOR_S = 0.05
_RUNS = 5


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Keep the collector from running: when it does, and for how long, depends on what all tests before
    this one have left.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def check_growth(cost_of: Callable[[int], float], small: int, *, floor_s: float = FLOOR_S) -> None:
    """Fail if the cost (seconds of this thread's processor time) of FACTOR times `small` is not
    nearly linear in that of `small`. Whatever is measured is measured again before it fails.
    """
    with without_collector():
        costs = {small: cost_of(small), FACTOR * small: cost_of(FACTOR * small)}
        for _ in range(_RUNS):
            if costs[FACTOR * small] <= _MAX_GROWTH * costs[small] + floor_s:
                return
            costs = {size: min(cost, cost_of(size)) for size, cost in costs.items()}
    raise AssertionError(f"the cost grows faster than the size: seconds by size {costs}")


def cpu_seconds(work: Callable[[], object], *expected: type[Exception]) -> float:
    """The processor time of `work`, which may end in an expected error."""
    begun_at = time.thread_time()
    with contextlib.suppress(*expected):
        work()
    return time.thread_time() - begun_at
