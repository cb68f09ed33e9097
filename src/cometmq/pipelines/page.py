"""Write a report as one self-contained HTML file that fetches nothing."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipelines.report import Report, Section, Table
from cometmq.runtime.state_files.durable import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

_TEMPLATE: Final = "report.html"
# The colours of figures and page; neighbours also differ in lightness.
COLOURS: Final = ("#1f5fa8", "#e07b39", "#3a8f5c", "#b3354b", "#7a5ea8", "#8a8a8a")


def write_page(report: Report, path: Path) -> None:
    """Write the report's page. Raise OSError; the page is then as before."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("cometmq.pipelines", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    environment.filters["has_numbers"] = has_numbers
    environment.tests["table"] = lambda section: isinstance(section, Table)
    sections: list[Section] = report.sections()
    html = environment.get_template(_TEMPLATE).render(report=report, sections=sections)
    write_atomically(path, html.encode())


def has_numbers(table: Table, column: int) -> bool:
    """Return whether a column holds numbers, some of which may be missing."""
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(
        isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells
    )


def shown(value: object) -> str:
    """Return a cell's text, for the page and for a terminal."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S")
        case _:
            return str(value)


def new_plot(width: float = 9, height: float = 3.5) -> tuple[Any, Any]:
    """Return a matplotlib figure and its axes in the style of all reports. Sizes are in inches."""
    from matplotlib.figure import Figure as Plot

    plot = Plot(figsize=(width, height), layout="constrained")
    axes = plot.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_prop_cycle(color=COLOURS)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return plot, axes


def svg_of(plot: Plot) -> str:
    """Return the element <svg> of a figure."""
    import io

    import matplotlib as mpl

    text = io.StringIO()
    # Text stays text: small, sharp, and found by a search in the page.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cometmq"}):
        plot.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]
