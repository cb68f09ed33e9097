"""List what the hunt runs: everything that draws. A kind draws one attempt at a time.

The hunt draws the seed itself and hands it on, so that the log knows it and a command repeats it.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_TESTS: Final = ROOT / "tests"
_SEEDS: Final = 1 << 31
_PYTEST: Final = ("-m", "pytest", "-q", "-x", "--color=no", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Attempt:
    """One process: what Python is to run, with which settings, and what that covers."""

    arguments: tuple[str, ...]
    covers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    # How many seeds or modules, for the table.
    count: int = 1
    python: Path = Path(sys.executable)

    def command(self) -> str:
        """Return the line for a shell that does the same, from the top of the checkout."""
        python = Path(os.path.relpath(self.python, ROOT))
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.settings.items()]
        return " ".join([*settings, shlex.join([str(python), *self.arguments])])


@dataclass(frozen=True)
class Kind:
    """One row of the table."""

    name: str
    # Its share of the time, beside those of the others.
    weight: int
    # What an attempt takes about; none is begun with less time left.
    usual_s: float
    # An attempt that takes longer on a quiet machine hangs; `tests.pace` gives other machines more time.
    limit_s: float
    draw: Callable[[random.Random], Attempt]
    unit: str = "seeds"
    # Why it cannot be run here, or an empty text.
    why_not: Callable[[], str] = str
    # What cuts a failure short, of an attempt and what it said. None where its command is short enough.
    cut: Callable[[Attempt, str], Attempt | None] = lambda _attempt, _output: None


def replay(attempt: Attempt, output: str) -> str:
    """Return the shortest command that is known to repeat a failure, by what the attempt said."""
    # Pytest also shows the lines of a test that make this sentence, and those end in a quotation mark.
    said = re.findall(r"replay it (?:with|by)\s+([\w./].*)$", output, re.MULTILINE)
    if said:
        return str(said[0]).strip()
    settings = dict(attempt.settings)
    for name in settings:
        # A test prints the seed of each life; the last one is that of the life that failed.
        if lives := re.findall(rf"^{name}=(\d+)$", output, re.MULTILINE):
            settings[name] = lives[-1]
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", output, re.MULTILINE)
    arguments = [one for one in attempt.arguments if not failed or not one.startswith("tests/")]
    return Attempt(
        (*arguments, *dict.fromkeys(failed)), attempt.covers, settings, python=attempt.python
    ).command()


def _seed(rng: random.Random) -> int:
    return rng.randrange(_SEEDS)


def _seeded(
    variable: str, *paths: str, python: Path = Path(sys.executable), **settings: object
) -> Callable[[random.Random], Attempt]:
    """Return what draws an attempt of some test modules with a seed in a variable."""

    def draw(rng: random.Random) -> Attempt:
        seed = str(_seed(rng))
        given = {variable: seed, **{name: str(value) for name, value in settings.items()}}
        return Attempt((*_PYTEST, *paths), f"seed {seed}", given, python=python)

    return draw


def _simulation(rng: random.Random) -> Attempt:
    first, hours = _seed(rng), rng.choice((0.03, 0.1, 0.5))
    count = {0.03: 40, 0.1: 20, 0.5: 8}[hours]
    options = ("--first", str(first), "--seeds", str(count), "--hours", f"{hours:g}")
    covers = f"seeds {first} to {first + count - 1}, {hours:g} h"
    return Attempt(("-m", "tests.simulation", *options), covers, count=count)


def _shrink(attempt: Attempt, output: str) -> Attempt | None:
    found = re.search(r"make sim SEED=(\d+) HOURS=([\d.]+)", output)
    if found is None:
        return None
    options = ("--seed", found[1], "--hours", found[2], "--shrink", "--cuts", "build/hunt")
    return Attempt(("-m", "tests.simulation", *options), f"seed {found[1]}")


def _modules(folder: str, wanted: str = "") -> list[str]:
    return sorted(
        str(path.relative_to(ROOT))
        for path in (_TESTS / folder).rglob("test_*.py")
        if wanted in path.read_text()
    )


def _delays(rng: random.Random) -> Attempt:
    module, seed = rng.choice(_modules("integration")), str(_seed(rng))
    settings = {"COMETMQ_DELAYS_SEED": seed}
    return Attempt((*_PYTEST, "-p", "tests.delays", module), f"{module}, seed {seed}", settings)


def _examples(rng: random.Random) -> Attempt:
    # Those below need PySpark.
    apart = ("tests/unit/spark/", "tests/unit/pipelines/")
    found = [one for one in _modules("unit", "from hypothesis") if not one.startswith(apart)]
    modules, seed = rng.sample(found, min(5, len(found))), _seed(rng)
    options = (f"--hypothesis-seed={seed}", *modules)
    covers = f"seed {seed}, {', '.join(modules)}"
    return Attempt((*_PYTEST, *options), covers, {"COMETMQ_EXPLORE": "1"}, len(modules))


def _orders(rng: random.Random) -> Attempt:
    room, seed = rng.choice(["tests/unit", "tests/fuzz", "tests/integration"]), str(_seed(rng))
    modules = _modules(room.removeprefix("tests/"))
    some = sorted(rng.sample(modules, min(12, len(modules))))
    settings = {"COMETMQ_ORDER_SEED": seed}
    covers = f"seed {seed}, {', '.join(some)}"
    return Attempt((*_PYTEST, "-p", "tests.order", *some), covers, settings, len(some))


def _fuzz(rng: random.Random) -> Attempt:
    from tests.fuzz.targets import all_targets

    target = rng.choice([target.name for target in all_targets()])
    options = ("--seconds", "30", "--slice", "30", "--jobs", "1", "--targets", target)
    return Attempt(("-m", "tests.fuzz", *options), target, python=_python(".venv-fuzz"))


def _python(environment: str) -> Path:
    return ROOT / environment / "bin" / "python"


def _needs(environment: str, target: str) -> Callable[[], str]:
    def why_not() -> str:
        ready = (ROOT / environment / ".ready").exists()
        return "" if ready else f"no {environment} here; `make {target}` sets it up"

    return why_not


def _no_spark() -> str:
    if missing := _needs(".venv-spark", "spark")():
        return missing
    found = subprocess.run([ROOT / "scripts" / "java-for-spark"], check=False)
    return "" if found.returncode == 0 else "Spark needs Java 17 or newer"


def _no_namespaces() -> str:
    if shutil.which("ip") is None:
        return "`ip` (iproute2) is not installed"
    return "" if os.geteuid() == 0 else "only root can make network namespaces"


_SPARK: Final = _python(".venv-spark")
KINDS: Final = (
    Kind("simulation", 6, 30, 900, _simulation, cut=_shrink),
    Kind(
        "crash lives",
        4,
        60,
        1200,
        _seeded("COMETMQ_CRASH_SEED", "tests/crash/test_simulated_crashes.py", COMETMQ_CRASHES=500),
    ),
    Kind(
        "killed brokers",
        2,
        60,
        900,
        _seeded("COMETMQ_CRASH_SEED", "tests/crash/test_killed_brokers.py", COMETMQ_KILLS=20),
    ),
    Kind(
        "killed waits",
        1,
        60,
        900,
        _seeded("COMETMQ_CRASH_SEED", "tests/crash/test_killed_waits.py", COMETMQ_WAIT_KILLS=6),
    ),
    Kind(
        "killed pops",
        1,
        60,
        900,
        _seeded("COMETMQ_CRASH_SEED", "tests/crash/test_killed_pops.py", COMETMQ_POP_KILLS=20),
    ),
    Kind(
        "killed proxies",
        1,
        60,
        900,
        _seeded("COMETMQ_CRASH_SEED", "tests/crash/test_killed_proxies.py", COMETMQ_GRPC_KILLS=6),
    ),
    Kind(
        "lost nodes",
        2,
        120,
        1200,
        _seeded("COMETMQ_CRASH_SEED", "tests/crash/test_lost_nodes.py", COMETMQ_LOSSES=12),
        why_not=_no_namespaces,
    ),
    Kind(
        "storms",
        1,
        60,
        900,
        _seeded(
            "COMETMQ_STORM_SEED",
            "tests/crash/test_rebalance_storm.py",
            "tests/integration/test_rebalance_storm.py",
        ),
    ),
    Kind(
        "wake-ups",
        1,
        30,
        600,
        _seeded("COMETMQ_WAKEUP_SEED", "tests/integration/test_wakeups.py"),
    ),
    Kind("delays put in", 3, 60, 900, _delays, unit="modules"),
    Kind("new examples", 2, 60, 1200, _examples, unit="modules"),
    Kind("orders", 1, 60, 900, _orders, unit="modules"),
    Kind(
        "delay model",
        1,
        30,
        900,
        _seeded("COMETMQ_DELAY_SEED", "tests/unit/broker/test_delay_model.py"),
    ),
    Kind(
        "transaction model",
        1,
        30,
        900,
        _seeded("COMETMQ_TRANSACTION_SEED", "tests/unit/broker/test_transactions_model.py"),
    ),
    Kind(
        "deliveries",
        1,
        10,
        300,
        _seeded("COMETMQ_DELIVERY_SEED", "tests/unit/broker/test_delivery.py"),
    ),
    Kind("fuzz", 1, 40, 900, _fuzz, unit="targets", why_not=_needs(".venv-fuzz", "fuzz")),
    Kind(
        "kills under Spark",
        2,
        240,
        1800,
        _seeded(
            "COMETMQ_SPARK_SEED", "tests/spark/test_kills.py", python=_SPARK, COMETMQ_SPARK_KILLS=10
        ),
        why_not=_no_spark,
    ),
    Kind(
        "kills of a table service",
        1,
        200,
        1800,
        _seeded(
            "COMETMQ_TABLE_SEED",
            *("tests/spark/test_table_service.py", "-mcrash"),
            python=_SPARK,
            COMETMQ_TABLE_KILLS=10,
        ),
        why_not=_no_spark,
    ),
    Kind(
        "streams of Spark",
        1,
        120,
        1200,
        _seeded("COMETMQ_SPARK_SEED", "tests/spark/test_stream_model.py", python=_SPARK),
        why_not=_no_spark,
    ),
)
