"""Draw how the times of each measure are spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipelines.page import COLOURS, new_plot, svg_of
from cometmq.pipelines.report import Figure

if TYPE_CHECKING:
    from cometmq.pipelines.trace.report import Latency

# The busiest lines of each measure; the table has the others.
_MOST_LINES: Final = len(COLOURS)
# A logarithmic axis has no place for 0 ms.
_LEAST_MS: Final = 0.5
_GREY: Final = "#8a8a8a"


def latency_figure(latencies: Sequence[Latency], titles: Mapping[str, str]) -> Figure:
    """Draw a panel for each measure: the share of messages that took at most a given time, by topic
    and group.

    titles: the names of the measures, in the order of the panels.
    """
    plot, only = new_plot(11, 5.6)
    only.remove()
    panels = plot.subplots(2, 2, sharex=True, sharey=True)
    left_out = 0
    for axes, (measure, title) in zip(panels.flat, titles.items(), strict=True):
        of = [each for each in latencies if each.measure == measure]
        shown = sorted(of, key=lambda each: -each.count)[:_MOST_LINES]
        left_out += len(of) - len(shown)
        for each, colour in zip(shown, COLOURS, strict=False):
            xs, ys = zip(*_points(each), strict=True)
            label = each.topic if each.group is None else f"{each.topic}, {each.group}"
            axes.step(xs, ys, where="post", label=f"{label} ({each.count:,})", color=colour)
            axes.fill_between(xs, ys, step="post", color=colour, alpha=0.08)
        axes.set_title(title, loc="left", size=10, weight="bold")
        _style(axes)
        if shown:
            axes.legend(loc="lower right", frameon=False, fontsize=8)
        else:
            axes.text(0.5, 0.5, "not known", ha="center", transform=axes.transAxes, color=_GREY)
    highest = max((bound for each in latencies for bound in each.histogram), default=1)
    panels[0, 0].set_xlim(_LEAST_MS * 0.8, max(10, highest * 1.6))
    more = f" The {left_out} with fewer messages are in the table." if left_out else ""
    return Figure(
        "How the times are spread",
        svg_of(plot),
        "The share of messages that took at most this long; below 1 ms is drawn at "
        f"{_LEAST_MS}.{more}",
    )


def _style(axes: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.set_xscale("log")
    axes.set_ylim(0, 103)
    axes.xaxis.set_major_locator(LogLocator(numticks=12))
    axes.xaxis.set_major_formatter(lambda value, _: _time(value))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    axes.tick_params(labelbottom=True, labelsize=8)
    axes.axhline(99, color=_GREY, linewidth=0.8, linestyle=":")
    axes.annotate("p99", (1, 99), xycoords=("axes fraction", "data"), size=7, va="center")


def _time(ms: float) -> str:
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"


def _points(each: Latency) -> Iterator[tuple[float, float]]:
    """Yield the points at which the line rises."""
    done = 0
    first = min(each.histogram)
    yield max(_LEAST_MS, first * 0.8), 0.0
    for bound, count in sorted(each.histogram.items()):
        done += count
        yield max(_LEAST_MS, float(bound)), 100 * done / each.count
