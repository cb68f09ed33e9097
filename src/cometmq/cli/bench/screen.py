"""Show a benchmark: Java's report lines, a live line on a terminal, a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cometmq.cli.bench.stats import LatencyHistogram
from cometmq.errors import ConfigError
from cometmq.logs.setup import configure_logging

_PERCENTILES: Final = (("p50", 50), ("p90", 90), ("p99", 99), ("p999", 99.9))


class BenchScreen:
    """Prints the reports of a benchmark.

    `as_json` keeps standard output for the one JSON object at the end; everything else then goes to
    standard error. Raises ConfigError when the directory of `save` does not exist.
    """

    def __init__(self, *, as_json: bool = False, save: Path | None = None) -> None:
        if save is not None and not save.parent.is_dir():
            # Checked before the run, not after it.
            raise ConfigError(f"the result cannot be written to {save}: no such directory")
        self._as_json = as_json
        self._save = save
        self._console = Console(stderr=as_json, highlight=False, emoji=False, markup=False)

    def say(self, line: str) -> None:
        """Print a line: whole into a pipe, broken between words on a terminal."""
        self._console.print(line, soft_wrap=not self._console.is_terminal)

    def report(self, java_line: str, short_line: str) -> None:
        """Print the short line on a terminal, and Java's line anywhere else, such as a log."""
        line = short_line if self._console.is_terminal else java_line
        if line:
            self.say(line)

    @contextmanager
    def running(self, status: Callable[[], str]) -> Iterator[None]:
        """Show `status()` on a terminal within the context, again several times a second."""
        if not self._console.is_terminal:
            yield
            return
        with Live(
            get_renderable=lambda: Text(status(), no_wrap=True, overflow="ellipsis"),
            console=self._console,
            refresh_per_second=4,
            transient=True,
        ):
            # Configured here, so that a warning is printed above the live line, not through it.
            configure_logging("warning", json=False, stream=sys.stderr)
            yield
        configure_logging("warning", json=False)

    def show_latencies(self, rows: Mapping[str, LatencyHistogram]) -> None:
        table = Table(box=box.ROUNDED)
        table.add_column("latency, ms")
        for name in ("mean", *(name for name, _ in _PERCENTILES), "max"):
            table.add_column(name, justify="right")
        for name, latencies in rows.items():
            table.add_row(
                name,
                _ms(latencies.mean_ms),
                *(_ms(latencies.percentile_ms(percent)) for _, percent in _PERCENTILES),
                _ms(latencies.max_ms),
            )
        self._console.print(table)

    def show_verdict(self, holds: bool, text: str, notes: Sequence[str]) -> None:
        word = Text("OK " if holds else "FAILED ", style="bold green" if holds else "bold red")
        self._console.print(word.append(text, style="not bold default"))
        for note in notes:
            self.say(note)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result as JSON to standard output and to the file, if wanted.

        Raises ConfigError.
        """
        text = msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
        if self._as_json:
            sys.stdout.write(text.decode())
        if self._save is not None:
            try:
                self._save.write_bytes(text)
            except OSError as error:
                raise ConfigError(
                    f"the result cannot be written to {self._save}: {error.strerror}"
                ) from error


def time_text(now_ms: int) -> str:
    """Return a time as the local time, as Java's benchmark prints it (UtilAll.timeMillisToHumanString2)."""
    return datetime.fromtimestamp(now_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


def duration_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02}:{rest:02}"


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"
