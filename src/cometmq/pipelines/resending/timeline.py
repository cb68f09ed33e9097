"""Count with Spark when messages of each kind were stored, and draw the counts as bars."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from cometmq.pipelines.page import COLOURS, new_plot, svg_of
from cometmq.pipelines.report import Figure

# The kind of the messages that a pipeline does not choose.
PASSED_OVER: Final = "passed over"
_PASSED_OVER_COLOUR: Final = "#d5d9df"
_OTHERS: Final = "others"
_MOST_KINDS: Final = 5
_MOST_BARS: Final = 60
_FEW_HOURS: Final = 3
_HOUR_S: Final = 3600
_DAY_S: Final = 24 * _HOUR_S
_WIDTHS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600),
    *(_HOUR_S, 2 * _HOUR_S, 6 * _HOUR_S, _DAY_S, 7 * _DAY_S, 30 * _DAY_S, 365 * _DAY_S),
)


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """Counts messages of a kind from a moment (s since the epoch) on."""

    begin_s: int
    kind: str
    count: int


class Timeline(msgspec.Struct, frozen=True):
    """Bars over time. `width_s` is the duration that a bar stands for."""

    width_s: int
    bars: list[Bar]


def timeline_of(rows: Any, kind: Any, hour_count: int) -> Timeline:
    """Count rows by `store_time` and the column `kind`. They are of `hour_count` different hours.

    The driver gets a row for each kind and hour; if there are few hours, for each kind and second.
    """
    from pyspark.sql import functions as f

    unit_s = 1 if hour_count <= _FEW_HOURS else _HOUR_S
    begin = f.floor(f.unix_seconds("store_time") / unit_s) * unit_s
    counted = rows.groupBy(begin.alias("begin_s"), kind.alias("kind")).agg(
        f.count("*").alias("messages")
    )
    return fold([Bar(row.begin_s, row.kind, row.messages) for row in counted.collect()], unit_s)


def fold(bars: Sequence[Bar], unit_s: int) -> Timeline:
    """Merge bars into as few as a figure can show, each a multiple of `unit_s` wide."""
    if not bars:
        return Timeline(unit_s, [])
    first, last = min(bar.begin_s for bar in bars), max(bar.begin_s for bar in bars)
    fitting = (
        width
        for width in _WIDTHS_S
        if width >= unit_s and last // width - first // width < _MOST_BARS
    )
    width_s = next(fitting, last - first + 1)
    counts: Counter[tuple[int, str]] = Counter()
    for bar in bars:
        counts[bar.begin_s // width_s * width_s, bar.kind] += bar.count
    return Timeline(width_s, [Bar(*key, count) for key, count in sorted(counts.items())])


def timeline_figure(timeline: Timeline, title: str, what: str) -> Figure:
    """Draw a timeline. `what` names the messages on the axis and in the caption."""
    width_s = timeline.width_s
    totals: Counter[str] = Counter()
    for bar in timeline.bars:
        totals[bar.kind] += bar.count
    passed_over = totals.pop(PASSED_OVER, 0)
    kinds = [kind for kind, _ in totals.most_common(_MOST_KINDS)]
    heights: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for bar in timeline.bars:
        kind = bar.kind if bar.kind in kinds or bar.kind == PASSED_OVER else _OTHERS
        heights[kind][bar.begin_s] += bar.count
    plot, axes = new_plot()
    bottoms: Counter[int] = Counter()
    others = [_OTHERS] * (_OTHERS in heights)
    for number, kind in enumerate([*kinds, *others, *[PASSED_OVER] * bool(passed_over)]):
        colour = _PASSED_OVER_COLOUR if kind == PASSED_OVER else COLOURS[number % len(COLOURS)]
        places = sorted(heights[kind])
        axes.bar(
            [place / width_s for place in places],
            [heights[kind][place] for place in places],
            bottom=[bottoms[place] for place in places],
            align="edge",
            width=0.92,
            color=colour,
            label=kind,
        )
        bottoms.update(heights[kind])
    if bottoms:
        _label(axes, min(bottoms), max(bottoms), width_s)
        axes.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    axes.set_ylabel(what)
    return Figure(title, svg_of(plot), f"{what.capitalize()} in each {_duration(width_s)}, UTC.")


def _label(axes: Any, first_s: int, last_s: int, width_s: int) -> None:
    first, last = first_s // width_s, max(last_s // width_s, first_s // width_s + 5)
    step = -(-(last - first + 1) // 8)
    form = "%H:%M:%S" if width_s < 60 else "%m-%d %H:%M" if width_s < _DAY_S else "%Y-%m-%d"
    ticks = range(first, last + 1, step)
    names = [datetime.fromtimestamp(tick * width_s, UTC).strftime(form) for tick in ticks]
    axes.set_xticks(list(ticks), names)
    axes.set_xlim(first - 0.3, last + 1.3)


def _duration(seconds: int) -> str:
    for unit_s, name in ((_DAY_S, "day"), (_HOUR_S, "hour"), (60, "minute"), (1, "second")):
        if seconds >= unit_s:
            count = seconds // unit_s
            return name if count == 1 else f"{count} {name}s"
    raise AssertionError(seconds)
