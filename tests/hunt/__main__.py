"""Hunt for faults with all that draws, until the time is over: `make hunt`.

    python -m tests.hunt                                   thirty minutes, two lanes
    python -m tests.hunt --minutes 600 --only simulation,fuzz
    python -m tests.hunt --list

A failure prints the command that replays it, and stays in build/hunt; build/hunt/log.jsonl keeps what all
hunts have covered. Ends with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from tests.hunt.kinds import KINDS, ROOT, Kind
from tests.hunt.runner import Hunt

DIRECTORY: Final = ROOT / "build" / "hunt"
_SCREEN: Final = 160


def main(kinds: tuple[Kind, ...] = KINDS) -> int:
    options = _options(kinds)
    chosen = [kind for kind in kinds if not options.only or kind.name in options.only.split(",")]
    for kind in list(chosen):
        if reason := kind.why_not():
            _say(f"left out: {kind.name} ({reason})")
            chosen.remove(kind)
    if options.list:
        for kind in chosen:
            _say(f"{kind.name:<20} weight {kind.weight}")
        return 0
    if not chosen:
        _say("nothing to hunt with")
        return 1
    # A hunt in the background of a script may have been started with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    hunt = Hunt(chosen, options.directory, minutes=options.minutes, rng=random.Random(), say=_say)
    tick = _Progress(hunt).show if sys.stdout.isatty() else _nothing
    try:
        hunt.run(options.lanes, tick)
    except KeyboardInterrupt:
        _say("interrupted")
    for line in hunt.table():
        _say(line)
    return 1 if hunt.failures() else 0


def _options(kinds: tuple[Kind, ...]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.hunt", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to hunt")
    parser.add_argument("--lanes", type=int, default=2, help="attempts side by side")
    parser.add_argument("--only", default="", help="kinds, separated by commas")
    parser.add_argument("--list", action="store_true", help="show the kinds, and run nothing")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = {kind.name for kind in kinds}
    if unknown := set(filter(None, options.only.split(","))) - names:
        parser.error(f"no kind is called {', '.join(sorted(unknown))}; --list shows them all")
    if options.minutes <= 0 or options.lanes < 1:
        parser.error("--minutes must be more than 0, and --lanes at least 1")
    return options


class _Progress:
    """A line of a terminal that is written again each second."""

    def __init__(self, hunt: Hunt) -> None:
        self._hunt = hunt
        self._shown_s = 0.0

    def show(self) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= 1:
            self._shown_s = now_s
            with _SAYING:
                sys.stdout.write(f"\r\x1b[K{self._hunt.progress()[:_SCREEN]}\r")
                sys.stdout.flush()


_SAYING: Final = threading.Lock()


def _nothing() -> None:
    """Show no progress: what is written to a file or a pipe is read later."""


def _say(text: str) -> None:
    with _SAYING:
        if sys.stdout.isatty():
            sys.stdout.write("\r\x1b[K")
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
