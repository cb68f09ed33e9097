"""Show what a run of `benchmarks.store` found: on screen, as JSON and a plot under `results/`, and
as its part of README.md.
"""

from __future__ import annotations

import datetime
import json
import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table

from benchmarks.report import BASELINE, SUBJECT, Cells, markdown, rewrite_section
from benchmarks.store_plot import Curve, plot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

BEGIN = "<!-- store:begin (written by `python -m benchmarks.store`) -->"
END = "<!-- store:end -->"
PLOTTED_KINDS = ("clean", "killed", "killed, no checkpoint")
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Round:
    count: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds


@dataclass(frozen=True, slots=True)
class Start:
    """Holds the time until the store takes messages, and until the index has all messages, too."""

    seconds: float
    index_seconds: float


@dataclass(slots=True)
class PeerFigures:
    """Holds the figures of one peer: `rows` by title, `starts` by kind and size (GiB, by `:g`)."""

    settings: dict[str, str]
    rows: dict[str, list[Round]] = field(default_factory=dict)
    starts: dict[str, dict[str, list[Start]]] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    machine: dict[str, str]
    options: dict[str, str]
    sizes_gib: tuple[float, ...]
    kinds: tuple[str, ...]
    peers: dict[str, PeerFigures] = field(default_factory=dict)


def rate_cells(result: Report) -> Cells:
    """Return a heading, then operations: median of the rounds, lowest and highest round."""
    heading = ["operation"]
    for label in result.peers:
        heading += [f"{label}, messages/s", "lowest–highest round"]
    cells = [[*heading, "ratio"]]
    titles = dict.fromkeys(title for figures in result.peers.values() for title in figures.rows)
    for title in titles:
        rates = {
            label: [each.rate for each in figures.rows[title]]
            for label, figures in result.peers.items()
        }
        line = [title]
        for values in rates.values():
            line += [
                f"{statistics.median(values):,.0f}",
                f"{min(values):,.0f}–{max(values):,.0f}",
            ]
        cells.append([*line, _ratio(rates, lambda subject, baseline: subject / baseline)])
    return cells


def start_cells(result: Report) -> Cells:
    """Return a heading, then one line per kind of start and size."""
    heading = ["start", "store"]
    heading += [f"{label}, s" for label in result.peers]
    heading += ["times faster"]
    heading += [f"{label} with index, s" for label in result.peers]
    cells = [[*heading, "times faster"]]
    for kind in result.kinds:
        for size_gib in result.sizes_gib:
            starts = {
                label: figures.starts[kind][f"{size_gib:g}"]
                for label, figures in result.peers.items()
            }
            line = [kind, f"{size_gib:g} GiB"]
            for seconds_of in (_open_seconds, _index_seconds):
                seconds = {label: list(map(seconds_of, each)) for label, each in starts.items()}
                line += [f"{statistics.median(values):.2f}" for values in seconds.values()]
                line.append(_ratio(seconds, lambda subject, baseline: baseline / subject))
            cells.append(line)
    return cells


def rebuild_cells(result: Report) -> Cells:
    """Return a heading, then how fast queues, without and with index, are rebuilt from the log."""
    kind, size = "rebuilt", f"{max(result.sizes_gib):g}"
    cells = [["rebuilt from the log, MiB of log a second", *result.peers, "ratio"]]
    if kind not in result.kinds:
        return cells
    mib = max(result.sizes_gib) * 1024
    # Java's store takes messages only when both are built.
    for title, seconds_of in (
        (f"until messages are taken, {size} GiB", _open_seconds),
        (f"consume queues and index, {size} GiB", _index_seconds),
    ):
        rates = {
            label: [mib / seconds_of(start) for start in figures.starts[kind][size]]
            for label, figures in result.peers.items()
        }
        medians = [f"{statistics.median(values):,.0f}" for values in rates.values()]
        ratio = _ratio(rates, lambda subject, baseline: subject / baseline)
        cells.append([title, *medians, ratio])
    return cells


def setting_cells(result: Report) -> Cells:
    cells = [["setting", "value"]]
    cells += [[name, value] for name, value in {**result.machine, **result.options}.items()]
    for label, figures in result.peers.items():
        cells += [[f"{label} {name}", value] for name, value in figures.settings.items()]
    return cells


def show(result: Report, console: Console) -> None:
    titles = ("Messages per second", "Starts", "Rebuild", "Settings")
    for title, cells in zip(titles, _all_cells(result), strict=True):
        table = Table(title=title)
        for index, name in enumerate(cells[0]):
            table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
        for line in cells[1:]:
            table.add_row(*line)
        console.print(table)


def write(result: Report, directory: Path) -> list[Path]:
    """Write `results/store-<time>.json`, `results/store-starts.svg` and the part of README.md."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    results = directory / "results" / f"store-{stamp}.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(asdict(result), indent=1) + "\n")
    picture = directory / "results" / "store-starts.svg"
    picture.write_text(
        plot("Start of a store against its size", "GiB", "seconds", curves(result)) + "\n"
    )
    readme = directory / "README.md"
    rates, starts, rebuild, settings = map(markdown, _all_cells(result))
    image = f"![Start time against store size](results/{picture.name})"
    source = f"Raw figures of every round: `results/{results.name}`."
    rewrite_section(
        readme, BEGIN, END, "\n\n".join((rates, starts, image, rebuild, settings, source))
    )
    return [results, picture, readme]


def curves(result: Report) -> list[Curve]:
    """Start time against size, for each peer and kind."""
    return [
        Curve(
            f"{label}, {kind}",
            [
                (size, statistics.median(map(_open_seconds, figures.starts[kind][f"{size:g}"])))
                for size in result.sizes_gib
            ],
        )
        for label, figures in result.peers.items()
        for kind in PLOTTED_KINDS
        if kind in result.kinds
    ]


def _all_cells(result: Report) -> tuple[Cells, Cells, Cells, Cells]:
    return rate_cells(result), start_cells(result), rebuild_cells(result), setting_cells(result)


def _open_seconds(start: Start) -> float:
    return start.seconds


def _index_seconds(start: Start) -> float:
    return start.index_seconds


def _ratio(values: dict[str, list[float]], ratio: Callable[[float, float], float]) -> str:
    if not {BASELINE, SUBJECT} <= values.keys():
        return NOTHING
    medians = {label: statistics.median(each) for label, each in values.items()}
    return f"{ratio(medians[SUBJECT], medians[BASELINE]):.2f}×"
