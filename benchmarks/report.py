"""Show what a run found: on screen, as JSON under `results/`, and as the table in README.md."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from _typeshed import DataclassInstance
    from rich.console import Console

    from benchmarks.load import LoadResult
    from benchmarks.measure import Measurement, Row
    from benchmarks.memory import Memory

BASELINE = "Java"
SUBJECT = "CometMQ"
EQUAL_WORK_SENDS = 200_000
BEGIN = "<!-- send-path:begin (written by `python -m benchmarks.send_path`) -->"
END = "<!-- send-path:end -->"


@dataclass(slots=True)
class PeerFigures:
    settings: dict[str, str]
    startup_seconds: list[float] = field(default_factory=list)
    measurements: dict[str, list[Measurement]] = field(default_factory=dict)
    memory_idle: Memory | None = None
    memory_equal_work: Memory | None = None
    memory_after: Memory | None = None
    anonymous_peak_kib: int = 0


@dataclass(slots=True)
class Report:
    machine: dict[str, str]
    options: dict[str, str]
    rows: tuple[Row, ...]
    ceiling: dict[str, Measurement] = field(default_factory=dict)
    peers: dict[str, PeerFigures] = field(default_factory=dict)

    @property
    def trustworthy(self) -> bool:
        return all(measured.trustworthy for measured in self.all_measurements())

    def all_measurements(self) -> Iterable[Measurement]:
        for figures in self.peers.values():
            for measurements in figures.measurements.values():
                yield from measurements


def machine() -> dict[str, str]:
    uname = os.uname()
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": f"{os.cpu_count()} × {models[0] if models else platform.machine()}",
        "memory": f"{memory_bytes / 2**30:.0f} GiB",
        "kernel": f"{uname.sysname} {uname.release}",
        "load average before": f"{os.getloadavg()[0]:.2f}",
    }


def complaint(measured: Measurement) -> str:
    """Return why a measurement is not to be trusted."""
    load = measured.load
    parts = [
        f"{count} answers with code {code} ({load.error_remarks[code]})"
        for code, count in load.errors.items()
    ]
    if measured.stored not in (None, load.acked_total):
        parts.append(f"{load.acked_total} acknowledged, {measured.stored} stored")
    return "; ".join(parts)


# Tables -------------------------------------------------------------------------------------------

Cells: TypeAlias = list[list[str]]


def rate_cells(result: Report) -> Cells:
    """Return a heading, then a line per row: median of the rounds, lowest and highest round."""
    heading = ["connections × in flight, body"]
    for label in result.peers:
        heading += [f"{label}, messages/s", "lowest–highest round"]
    cells = [[*heading, "ratio"]]
    for row in result.rows:
        measured = _measured(result, row)
        line = [row.title]
        for measurements in measured.values():
            line += _rate(measurements)
        cells.append([*line, _ratio(measured)])
    return cells


def detail_cells(result: Report) -> Cells:
    """Return a heading, then per row: latency, CPU time, and how far the generator's limit is."""
    heading = ["connections × in flight, body"]
    heading += [f"{label} p50 / p99, ms" for label in result.peers]
    heading += [f"{label} CPU, µs/message" for label in result.peers]
    cells = [[*heading, "generator CPU, of a core", "generator ceiling, messages/s"]]
    for row in result.rows:
        measured = _measured(result, row)
        line = [row.title]
        line += [_latency(measurements) for measurements in measured.values()]
        line += [_cpu(measurements) for measurements in measured.values()]
        line.append(" / ".join(_generator_share(group) for group in measured.values()))
        ceiling = result.ceiling.get(row.name)
        line.append("–" if ceiling is None else f"{ceiling.load.acked_per_second:,.0f}")
        cells.append(line)
    return cells


def cost_cells(result: Report) -> Cells:
    """Return a heading, then start-up and memory; one column per peer."""
    cells = [["", *result.peers]]
    figures = list(result.peers.values())

    def line(title: str, value: Callable[[PeerFigures], str]) -> None:
        cells.append([title, *(value(each) for each in figures)])

    line("start-up: spawn to first accepted send, s", _startup)
    line("idle: resident (VmRSS)", lambda each: _mib(each.memory_idle, "resident_kib"))
    line("idle: anonymous (RssAnon)", lambda each: _mib(each.memory_idle, "anonymous_kib"))
    work = f"after the first {EQUAL_WORK_SENDS:,} sends of 1 KiB"
    line(f"{work}: peak resident", lambda each: _mib(each.memory_equal_work, "peak_resident_kib"))
    line(f"{work}: anonymous", lambda each: _mib(each.memory_equal_work, "anonymous_kib"))
    line(
        "whole run: peak resident (VmHWM)",
        lambda each: _mib(each.memory_after, "peak_resident_kib"),
    )
    line(
        "whole run: peak anonymous (RssAnon)",
        lambda each: f"{each.anonymous_peak_kib / 1024:,.0f} MiB",
    )
    line("at the end: proportional (PSS)", lambda each: _mib(each.memory_after, "proportional_kib"))
    line("at the end: file-backed", lambda each: _mib(each.memory_after, "file_backed_kib"))
    line("messages acknowledged = stored, in the rounds", _proof)
    return cells


def setting_cells(result: Report) -> Cells:
    cells = [["setting", "value"]]
    cells += [[name, value] for name, value in {**result.machine, **result.options}.items()]
    for label, figures in result.peers.items():
        cells += [[f"{label} {name}", value] for name, value in figures.settings.items()]
    return cells


def show(result: Report, console: Console) -> None:
    titles = (
        "Messages acknowledged, or pulled, per second",
        "Latency and CPU",
        "Start-up and memory",
        "Settings",
    )
    for title, cells in zip(titles, _all_cells(result), strict=True):
        table = Table(title=title, show_lines=False)
        for index, name in enumerate(cells[0]):
            table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
        for line in cells[1:]:
            table.add_row(*line)
        console.print(table)
    if not result.trustworthy:
        console.print("[red]Some rounds are not to be trusted, see above.[/red]")


def show_tables(tables: Iterable[Cells], console: Console) -> None:
    """Print tables, the first line of each being its head."""
    for head, *lines in tables:
        table = Table(*head)
        for line in lines:
            table.add_row(*line)
        console.print(table)


def write(result: Report, directory: Path) -> list[Path]:
    """Write `results/send-path-<time>.json` and the table of README.md; return their paths."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    results = directory / "results" / f"send-path-{stamp}.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(asdict(result), indent=1) + "\n")
    readme = directory / "README.md"
    tables = "\n\n".join(markdown(cells) for cells in _all_cells(result))
    source = f"Raw figures of every round: `results/{results.name}`."
    rewrite_section(readme, BEGIN, END, f"{tables}\n\n{source}")
    return [results, readme]


def rewrite_section(readme: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between two marker lines."""
    before, begin_found, rest = readme.read_text().partition(begin)
    _, end_found, after = rest.partition(end)
    assert begin_found, f"{readme} lost its begin marker"
    assert end_found, f"{readme} lost its end marker"
    readme.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def write_rounds(
    name: str,
    marks: tuple[str, str],
    rounds: Mapping[str, Mapping[str, Sequence[DataclassInstance]]],
    settings: Mapping[str, str],
    tables: Sequence[Cells],
) -> None:
    """Keep every round of a comparison, by row and by who was measured, and put its tables between
    two marker lines of README.md.
    """
    here = Path(__file__).parent
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    results = here / "results" / f"{name}-{stamp}.json"
    results.parent.mkdir(exist_ok=True)
    raw = {
        row: {who: [asdict(one) for one in each] for who, each in by_who.items()}
        for row, by_who in rounds.items()
    }
    results.write_text(json.dumps({"settings": settings, "rounds": raw}, indent=1) + "\n")
    text = "\n\n".join(markdown(table) for table in tables)
    source = f"Raw figures of every round: `results/{results.name}`."
    rewrite_section(here / "README.md", *marks, f"{text}\n\n{source}")


def _all_cells(result: Report) -> tuple[Cells, ...]:
    return rate_cells(result), detail_cells(result), cost_cells(result), setting_cells(result)


def markdown(cells: Cells) -> str:
    lines = [f"| {' | '.join(line)} |" for line in cells]
    lines.insert(1, "| --- |" + " ---: |" * (len(cells[0]) - 1))
    return "\n".join(lines)


# Cells --------------------------------------------------------------------------------------------


def _rates(measurements: list[Measurement]) -> list[float]:
    return [measured.load.acked_per_second for measured in measurements]


def _measured(result: Report, row: Row) -> dict[str, list[Measurement]]:
    return {label: figures.measurements[row.name] for label, figures in result.peers.items()}


def _rate(measurements: list[Measurement]) -> list[str]:
    rates = _rates(measurements)
    mark = "" if all(measured.trustworthy for measured in measurements) else " (!)"
    return [
        f"{statistics.median(rates):,.0f}{mark}",
        f"{min(rates):,.0f}–{max(rates):,.0f}",
    ]


def _generator_share(measurements: list[Measurement]) -> str:
    return f"{statistics.median(measured.generator_cpu_share for measured in measurements):.0%}"


def _ratio(measured: dict[str, list[Measurement]]) -> str:
    if not {BASELINE, SUBJECT} <= measured.keys():
        return "–"
    baseline = statistics.median(_rates(measured[BASELINE]))
    return f"{statistics.median(_rates(measured[SUBJECT])) / baseline:.2f}×"


def _latency(measurements: list[Measurement]) -> str:
    return " / ".join(
        _median_ms(measurements, get)
        for get in (lambda load: load.latency_p50_us, lambda load: load.latency_p99_us)
    )


def _median_ms(measurements: list[Measurement], get: Callable[[LoadResult], float | None]) -> str:
    values = [value for measured in measurements if (value := get(measured.load)) is not None]
    return f"{statistics.median(values) / 1000:.2f}" if values else "–"


def _cpu(measurements: list[Measurement]) -> str:
    costs = [c for measured in measurements if (c := measured.server_cpu_us_per_send) is not None]
    return f"{statistics.median(costs):.1f}" if costs else "–"


def _startup(figures: PeerFigures) -> str:
    return f"{statistics.median(figures.startup_seconds):.2f}"


def _mib(memory: Memory | None, name: str) -> str:
    return "–" if memory is None else f"{getattr(memory, name) / 1024:,.0f} MiB"


def _proof(figures: PeerFigures) -> str:
    measurements = [each for group in figures.measurements.values() for each in group]
    acked = sum(each.load.acked_total for each in measurements if each.stored is not None)
    stored = sum(each.stored or 0 for each in measurements)
    errors = sum(sum(each.load.errors.values()) for each in measurements)
    suffix = f", {errors:,} refused" if errors else ""
    return (
        f"{acked:,} = {stored:,}{suffix}" if acked == stored else f"{acked:,} ≠ {stored:,}{suffix}"
    )
