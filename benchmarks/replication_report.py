"""Show what `benchmarks.replication` found: on screen, as JSON, as a plot, and as tables in README.md."""

from __future__ import annotations

import datetime
import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.table import Table

from benchmarks.report import Cells, complaint, markdown, rewrite_section
from benchmarks.store_plot import Curve, plot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from benchmarks.measure import Measurement

BEGIN = "<!-- replication:begin (written by `python -m benchmarks.replication`) -->"
END = "<!-- replication:end -->"


@dataclass(slots=True)
class SyncFigures:
    """Holds the rounds of one row of one pair."""

    measurements: list[Measurement]
    slave_us_per_send: list[float]


@dataclass(slots=True)
class Lag:
    """Holds how far a slave was behind, at each of `seconds`; of ms only where that is known."""

    seconds: list[float]
    bytes_behind: list[int]
    ms_behind: list[float]
    sends_per_second: float
    caught_up_seconds: float

    @classmethod
    def of(
        cls,
        samples: Sequence[tuple[float, int, int]],
        sends_per_second: float,
        caught_up_seconds: float,
    ) -> Self:
        """Return the lag from samples of time, master's end and slave's end.

        The time of a lag is how long ago the master's log ended where the slave's ends now, drawn from
        the samples by straight lines.
        """
        behind = [max(0, ahead - end) for _, ahead, end in samples]
        ms = [_ms_behind(samples, at, end) for at, _, end in samples]
        seconds = [at for at, _, _ in samples]
        return cls(seconds, behind, ms, sends_per_second, caught_up_seconds)


def _ms_behind(samples: Sequence[tuple[float, int, int]], now: float, end: int) -> float:
    before = None
    for at, ahead, _ in samples:
        if at > now:
            break
        if ahead >= end:
            if before is None or ahead == before[1]:
                return max(0.0, (now - at) * 1000)
            share = (end - before[1]) / (ahead - before[1])
            return max(0.0, (now - before[0] - share * (at - before[0])) * 1000)
        before = (at, ahead)
    return 0.0


@dataclass(slots=True)
class CatchUp:
    """Holds how an empty slave got so many bytes, from its first request to the last byte."""

    size: int
    seconds: float
    master_cpu_seconds: float
    slave_cpu_seconds: float

    @property
    def rate(self) -> float:
        """MB/s."""
        return self.size / self.seconds / 1e6


@dataclass(slots=True)
class Result:
    """Holds everything, by the pair's label where both have it."""

    machine: dict[str, str]
    options: dict[str, str]
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    # By row, then by pair.
    sync: dict[str, dict[str, SyncFigures]] = field(default_factory=dict)
    lag: dict[str, Lag] = field(default_factory=dict)
    catch_up: dict[str, CatchUp] = field(default_factory=dict)
    # MB/s.
    limits: dict[str, float] = field(default_factory=dict)

    @property
    def trustworthy(self) -> bool:
        return all(
            measured.trustworthy
            for row in self.sync.values()
            for figures in row.values()
            for measured in figures.measurements
        )


def sync_cells(result: Result) -> Cells:
    labels = list(result.settings)
    heading = ["SYNC_MASTER, connections × in flight, body"]
    heading += [f"{label}, sends/s" for label in labels]
    heading += [f"{label} p50 / p99, ms" for label in labels]
    heading += [f"{label} CPU, µs/send: master + slave" for label in labels]
    cells = [[*heading, "ratio"]]
    for title, row in result.sync.items():
        rates = {label: _rates(figures) for label, figures in row.items()}
        line = [title]
        line += [
            f"{statistics.median(rate):,.0f} ({min(rate):,.0f}–{max(rate):,.0f}){_doubt(row[label])}"
            for label, rate in rates.items()
        ]
        line += [_latency(figures) for figures in row.values()]
        line += [_cpu(figures) for figures in row.values()]
        first, *_, last = (statistics.median(rate) for rate in rates.values())
        cells.append([*line, f"{last / first:.2f}×"])
    return cells


def lag_cells(result: Result) -> Cells:
    heading = ["slave of an ASYNC_MASTER at full load", "sends/s", "behind, median", "99 %", "most"]
    cells = [[*heading, "in step after the load"]]
    for label, lag in result.lag.items():
        marks = [0.5, 0.99, 1.0]
        bytes_behind = [_at(lag.bytes_behind, share) / 1e6 for share in marks]
        ms_behind = [_at(lag.ms_behind, share) for share in marks]
        line = [label, f"{lag.sends_per_second:,.0f}"]
        line += [
            f"{b:,.2f} MB, {ms:,.0f} ms" for b, ms in zip(bytes_behind, ms_behind, strict=True)
        ]
        cells.append([*line, f"{lag.caught_up_seconds:.2f} s"])
    return cells


def catch_up_cells(result: Result) -> Cells:
    cells = [["an empty slave catches up", "MB/s", "CPU, ms per MB: master + slave"]]
    for label, caught in result.catch_up.items():
        megabytes = caught.size / 1e6
        cpu = caught.master_cpu_seconds, caught.slave_cpu_seconds
        cost = " + ".join(f"{seconds * 1000 / megabytes:.2f}" for seconds in cpu)
        cells.append([label, f"{caught.rate:,.0f}", cost])
    cells += [[f"limit: {name}", f"{rate:,.0f}", "–"] for name, rate in result.limits.items()]
    return cells


def setting_cells(result: Result) -> Cells:
    cells = [["setting", "value"]]
    cells += [[name, value] for name, value in {**result.machine, **result.options}.items()]
    for label, settings in result.settings.items():
        cells += [[f"{label} {name}", value] for name, value in settings.items()]
    return cells


def show(result: Result, console: Console) -> None:
    for cells in _all_cells(result):
        table = Table()
        for index, name in enumerate(cells[0]):
            table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
        for line in cells[1:]:
            table.add_row(*line)
        console.print(table)
    for title, row in result.sync.items():
        for label, figures in row.items():
            for measured in figures.measurements:
                if not measured.trustworthy:
                    console.print(f"[red]{title}, {label}: {complaint(measured)}[/red]")


def write(result: Result, directory: Path) -> list[Path]:
    """Write `results/replication-<time>.json`, the plot, and the tables of README.md; return the paths."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    results = directory / "results" / f"replication-{stamp}.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(asdict(result), indent=1) + "\n")
    picture = directory / "results" / "replication-lag.svg"
    curves = [
        Curve(label, [(at, ms) for at, ms in zip(lag.seconds, lag.ms_behind, strict=True)])
        for label, lag in result.lag.items()
    ]
    title = "How far a slave is behind its ASYNC_MASTER at full load"
    picture.write_text(plot(title, "seconds of load", "ms behind", curves) + "\n")
    readme = directory / "README.md"
    sync, lag, catch_up, settings = (markdown(cells) for cells in _all_cells(result))
    text = "\n\n".join(
        (
            sync,
            lag,
            f"![How far a slave is behind its master](results/{picture.name})",
            catch_up,
            settings,
            f"Raw figures: `results/{results.name}`.",
        )
    )
    rewrite_section(readme, BEGIN, END, text)
    return [results, picture, readme]


def _all_cells(result: Result) -> tuple[Cells, ...]:
    return sync_cells(result), lag_cells(result), catch_up_cells(result), setting_cells(result)


def _rates(figures: SyncFigures) -> list[float]:
    return [measured.load.acked_per_second for measured in figures.measurements]


def _doubt(figures: SyncFigures) -> str:
    return "" if all(measured.trustworthy for measured in figures.measurements) else " (!)"


def _latency(figures: SyncFigures) -> str:
    p50 = [measured.load.latency_p50_us or 0.0 for measured in figures.measurements]
    p99 = [measured.load.latency_p99_us or 0.0 for measured in figures.measurements]
    return f"{statistics.median(p50) / 1000:.2f} / {statistics.median(p99) / 1000:.2f}"


def _cpu(figures: SyncFigures) -> str:
    master = [measured.server_cpu_us_per_send or 0.0 for measured in figures.measurements]
    slave = statistics.median(figures.slave_us_per_send)
    return f"{statistics.median(master):.1f} + {slave:.1f}"


def _at(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
