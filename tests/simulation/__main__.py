"""Runs simulations: many seeds, one seed again, or a schedule from a file.

python -m tests.simulation --seeds 100 --jobs 2
python -m tests.simulation --seed 4711
python -m tests.simulation --schedule short.json
python -m tests.simulation --seeds 100 --kinds popped,popped-in-order
python -m tests.simulation --found
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import logging
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
from tests.simulation.limit import LIMIT_S, RunTooLongError, limited
from tests.simulation.run import Figures, Outcome, run
from tests.simulation.schedule import KINDS, Schedule, draw, read, write
from tests.simulation.shrink import RUNS, Shrinker

# Seeds that once found a fault, each with its virtual hours.
FOUND: Final = Path(__file__).with_name("found_seeds.txt")
_LINE: Final = 300
_LINES: Final = 12
_NO_FIGURES: Final = Figures(0.0, 0.0, 0, 0, 0, 0, 0, Counter())


class Verdict(NamedTuple):
    """Is what of an outcome goes from one process to another."""

    seed: int
    hours: float
    failures: list[str]
    figures: Figures


def main() -> None:
    options = _options()
    with quiet():
        if options.schedule is not None:
            sys.exit(_one(read(options.schedule), options))
        if options.seed is not None:
            sys.exit(_one(draw(options.seed, hours=options.hours, store=options.store), options))
        sys.exit(_many(options))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds to run")
    parser.add_argument("--first", type=int, help="the first seed; a fresh one by default")
    parser.add_argument(
        "--kinds",
        type=lambda text: frozenset(text.split(",")),
        default=frozenset(),
        help=f"run only seeds that have one of these workloads: {','.join(KINDS)}",
    )
    parser.add_argument("--seed", type=int, help="run this seed only, and say more about it")
    parser.add_argument("--schedule", type=Path, help="run the schedule in this file")
    parser.add_argument(
        "--found", action="store_true", help=f"run the seeds of {FOUND.name}, with their hours"
    )
    parser.add_argument("--hours", type=float, default=0.5, help="virtual hours of a run")
    parser.add_argument("--seconds", type=float, help="begin no further run after this real time")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help="end a run after this real time, in seconds"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument(
        "--store", help="a store directory, or a slice, that the brokers begin with"
    )
    parser.add_argument("--history", type=Path, help="write the history of the run to this file")
    parser.add_argument("--shrink", action="store_true", help="cut a schedule that fails")
    parser.add_argument(
        "--cuts", type=Path, default=Path(), help="the directory for schedules that were cut"
    )
    return parser.parse_args()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep servers and clients from logging the faults that they meet."""
    disabled = logging.root.manager.disable
    before = structlog.get_config() if structlog.is_configured() else None
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        logging.disable(disabled)
        if before is None:
            structlog.reset_defaults()
        else:
            structlog.configure(**before)


def command(seed: int, hours: float, store: str | None) -> str:
    """Return the one command that replays a seed."""
    text = f"make sim SEED={seed} HOURS={hours:g}"
    return f"{text} STORE={store}" if store else text


def short_of(failure: str) -> str:
    """Return what of a failure fits on a screen: the history, which `--history` writes, has it all."""
    lines = [line if len(line) < _LINE else f"{line[:_LINE]}…" for line in failure.splitlines()]
    if len(lines) > 2 * _LINES:
        lines[_LINES:-_LINES] = ["…"]
    return "\n".join(f"    {line}" for line in lines)


def _one(schedule: Schedule, options: argparse.Namespace) -> int:
    try:
        with limited(f"seed {schedule.seed}", options.limit):
            outcome = run(schedule)
    except RunTooLongError as error:
        print(error)
        return 1
    if options.history is not None:
        options.history.write_text("\n".join(outcome.history.lines()) + "\n")
    for failure in outcome.failures[:10]:
        print(short_of(failure))
    if outcome.failures:
        how = f"    python -m tests.simulation --schedule {options.schedule}"
        if options.schedule is None:
            how = f"    {command(schedule.seed, options.hours, options.store)}"
        print(f"Replay it by\n{how}")
    tell([outcome.figures], int(bool(outcome.failures)))
    if outcome.failures and options.shrink:
        shrink(outcome, options.cuts / f"{schedule.name}.json")
    return 1 if outcome.failures else 0


def shrink(outcome: Outcome, file: Path) -> Schedule:
    """Cut a schedule that fails, and write the short one."""
    shrinker = Shrinker(lambda shorter: bool(run(shorter).kinds & outcome.kinds), RUNS)
    short = shrinker.shrink(outcome.schedule)
    write(short, file)
    print(
        f"After {shrinker.runs} runs {len(short.workloads)} of {len(outcome.schedule.workloads)} "
        f"workloads and {len(short.faults)} of {len(outcome.schedule.faults)} faults are left:\n"
        f"    python -m tests.simulation --schedule {file}"
    )
    return short


def found_seeds(path: Path = FOUND) -> list[tuple[int, float]]:
    """Return the seeds that once found a fault, and the virtual hours of each."""
    lines = [line.split(maxsplit=2) for line in path.read_text().splitlines() if line[:1] != "#"]
    return [(int(seed), float(hours)) for seed, hours, _ in lines]


def _many(options: argparse.Namespace) -> int:
    if options.found:
        seeds = found_seeds()
    else:
        first = secrets.randbelow(1 << 31) if options.first is None else options.first
        seeds = [(seed, options.hours) for seed in _chosen(first, options)]
    verdicts: list[Verdict] = []
    for verdict in _verdicts(seeds, options):
        verdicts.append(verdict)
        if verdict.failures:
            print(f"seed {verdict.seed} FAILED; replay it by")
            print(f"    {command(verdict.seed, verdict.hours, options.store)}")
            for failure in verdict.failures[:3]:
                print(short_of(failure))
        if sys.stdout.isatty() or len(verdicts) % 20 == 0:
            print(f"{len(verdicts)} of {len(seeds)} seeds", flush=True)
    failed = [each for each in verdicts if each.failures]
    tell([each.figures for each in verdicts], len(failed))
    if failed and options.shrink:
        schedule = draw(failed[0].seed, hours=failed[0].hours, store=options.store)
        shrink(run(schedule), options.cuts / f"{schedule.name}.json")
    return 1 if failed else 0


def _chosen(first: int, options: argparse.Namespace) -> Iterator[int]:
    """Yield as many seeds as are to be run, those with the workloads that were asked for."""
    if unknown := options.kinds - set(KINDS):
        sys.exit(f"no workload is called {min(unknown)}; there are {', '.join(KINDS)}")
    fitting = (
        seed
        for seed in itertools.count(first)
        if not options.kinds
        or options.kinds & {each.kind for each in draw(seed, hours=options.hours).workloads}
    )
    return itertools.islice(fitting, options.seeds)


def _verdicts(seeds: Iterable[tuple[int, float]], options: argparse.Namespace) -> Iterator[Verdict]:
    """Run seeds, some at a time; give each verdict when it is there."""
    ends = time.monotonic() + options.seconds if options.seconds else float("inf")
    waiting = iter(seeds)
    with ProcessPoolExecutor(options.jobs) as pool:
        running: dict[Future[Verdict], int] = {}
        while True:
            while len(running) < options.jobs and time.monotonic() < ends:
                if (following := next(waiting, None)) is None:
                    break
                seed, hours = following
                args = (seed, hours, options.store, options.limit)
                running[pool.submit(_verdict, *args)] = seed
            if not running:
                return
            done = next(as_completed(running))
            seed = running.pop(done)
            try:
                yield done.result()
            except BrokenProcessPool:
                others = ", ".join(map(str, sorted(running.values())))
                sys.exit(
                    f"a process of this run ended while it was at seed {seed}"
                    + (f", or one of {others}" if others else "")
                    + "; what it said is above"
                )


@cache
def _leave_out_modules() -> None:
    """Have the collector of this process leave out what the first run has imported: a fifth of the
    time of all runs went into looking at it again.
    """
    gc.freeze()


def _verdict(seed: int, hours: float, store: str | None, limit_s: float) -> Verdict:
    try:
        with quiet(), limited(f"seed {seed}", limit_s):
            outcome = run(draw(seed, hours=hours, store=store))
            _leave_out_modules()
    except RunTooLongError as error:
        return Verdict(seed, hours, [str(error)], _NO_FIGURES)
    return Verdict(seed, hours, outcome.failures, outcome.figures)


def tell(figures: list[Figures], failed: int) -> None:
    """Print what runs did, together."""
    virtual_h = sum(each.cluster_seconds for each in figures) / 3600
    real_s = sum(each.real_seconds for each in figures)
    faults: Counter[str] = sum((each.faults for each in figures), Counter[str]())
    rows: list[tuple[str, Any]] = [
        ("runs", len(figures)),
        ("failed", failed),
        ("cluster-hours", f"{virtual_h:.1f}"),
        ("real seconds of work", f"{real_s:.1f}"),
        ("times faster than real", f"{virtual_h * 3600 / max(real_s, 1e-9):,.0f}"),
        ("messages sent", sum(each.sent for each in figures)),
        ("sends acknowledged", sum(each.acknowledged for each in figures)),
        ("deliveries", sum(each.delivered for each in figures)),
        ("events in histories", sum(each.events for each in figures)),
        ("checks of an invariant", sum(each.checks for each in figures)),
        ("faults", sum(faults.values())),
    ]
    for name, value in rows:
        print(f"{name:24} {value}")
    print("by kind:", ", ".join(f"{name} {count}" for name, count in faults.most_common()))


if __name__ == "__main__":
    main()
