"""Show pipelines on a terminal: bars while they run, tables when they are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table as Screen

from cometmq.cli.markup import as_markup
from cometmq.pipelines.page import has_numbers, shown
from cometmq.pipelines.progress import Progress
from cometmq.pipelines.report import Report, Table

_MOST_ROWS: Final = 40

_console: Final = Console(highlight=False, soft_wrap=True)


@contextmanager
def progress() -> Iterator[Progress]:
    """Show bars on stderr if it is a terminal, else a line for each step."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console) as bars:
        yield _Bars(bars)


class _Lines(Progress):
    def __init__(self, console: Console) -> None:
        self._console = console

    def end(self, step: str, outcome: str) -> None:
        self._console.print(as_markup(f"{step}: {outcome or 'done'}"))


class _Bars(Progress):
    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def begin(self, step: str) -> None:
        # A stream has the same steps for months, and they would fill the screen and the memory.
        if (before := self._tasks.get(step)) is not None:
            self._bars.remove_task(before)
        self._tasks[step] = self._bars.add_task(as_markup(step), total=None, said="")

    def advance(self, step: str, done: int, total: int | None) -> None:
        said = f"{done:,} of {total:,}" if total else f"{done:,}"
        self._bars.update(self._tasks[step], completed=done, total=total, said=said)

    def end(self, step: str, outcome: str) -> None:
        self._bars.update(self._tasks[step], completed=1, total=1, said=as_markup(outcome))


def print_report(report: Report, files: Sequence[Path]) -> None:
    for section in report.sections():
        if isinstance(section, Table) and not section.page_only:
            _print_table(section)
    word = "[bold green]OK[/]" if report.holds else "[bold red]LOOK[/]"
    _console.print(word, as_markup(report.summary))
    _console.print("report:", ", ".join(as_markup(str(file)) for file in files))


def _print_table(table: Table) -> None:
    if not table.rows:
        _console.print(f"[bold]{as_markup(table.title)}[/]: {as_markup(table.empty)}")
        return
    screen = Screen(
        title=as_markup(table.title), title_justify="left", title_style="bold", show_edge=False
    )
    for at, name in enumerate(table.columns):
        is_number = has_numbers(table, at)
        # A long name is folded, because a part of it would be no name. A number is kept in one
        # line, because in two it would look like two numbers.
        screen.add_column(
            as_markup(name),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,
        )
    for row in table.rows[:_MOST_ROWS]:
        screen.add_row(*(as_markup(shown(cell)) for cell in row))
    _console.print(screen)
    if len(table.rows) > _MOST_ROWS:
        _console.print(f"and {len(table.rows) - _MOST_ROWS:,} more: see the report")
