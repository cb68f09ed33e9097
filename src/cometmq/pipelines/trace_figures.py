"""The pictures of traces: how the times of each measure are spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from cometmq.pipelines.page import COLOURS, new_plot, svg_of
from cometmq.pipelines.report import Figure

if TYPE_CHECKING:
    from cometmq.pipelines.trace_report import Latency

# The busiest of each measure; the others are in the table.
_MOST_LINES: Final = len(COLOURS)
# 0 ms has no place on a logarithmic axis.
_LEAST_MS: Final = 0.5


def latency_figures(latencies: Sequence[Latency]) -> list[Figure]:
    """For each measure the share of messages that took at most so long, by topic and group."""
    figures = []
    for measure in dict.fromkeys(each.measure for each in latencies):
        of = [each for each in latencies if each.measure == measure]
        shown = sorted(of, key=lambda each: -each.count)[:_MOST_LINES]
        plot, axes = new_plot(height=3.2)
        for each in shown:
            xs, ys = zip(*_points(each), strict=True)
            label = each.topic if each.group is None else f"{each.topic}, {each.group}"
            axes.step(xs, ys, where="post", label=f"{label} ({each.count:,})", linewidth=1.8)
        axes.set_xscale("log")
        axes.set_xlabel("ms")
        axes.set_ylabel("% of messages")
        axes.set_ylim(0, 101)
        for share, name in ((50, "p50"), (99, "p99")):
            axes.axhline(share, color="#8a8a8a", linewidth=0.8, linestyle=":")
            axes.annotate(name, (1, share), xycoords=("axes fraction", "data"), size=8, va="bottom")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.legend(loc="lower right", frameon=False, fontsize=9)
        left_out = len(of) - len(shown)
        more = f" The {left_out} with fewer messages are in the table." if left_out else ""
        figures.append(
            Figure(
                measure.capitalize(),
                svg_of(plot),
                f"The share of messages that took at most so long; 0 ms is drawn at {_LEAST_MS}.{more}",
            )
        )
    return figures


def _points(each: Latency) -> Iterator[tuple[float, float]]:
    """Where the line rises."""
    done = 0
    first = min(each.histogram)
    yield max(_LEAST_MS, first * 0.8), 0.0
    for bound, count in sorted(each.histogram.items()):
        done += count
        yield max(_LEAST_MS, float(bound)), 100 * done / each.count
