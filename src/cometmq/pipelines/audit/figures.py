"""Draw the pictures of an audit: the numbers side by side, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cometmq.pipelines.page import COLOURS, new_plot, svg_of
from cometmq.pipelines.report import Figure

if TYPE_CHECKING:
    from cometmq.pipelines.audit.report import Cell

# Older hours and further queues are left out, so that the picture stays readable; the caption says
# how many.
_MOST_BARS: Final = 48
_MOST_LINES: Final = 40
# Red is left out because it marks faults in the other picture.
_BARS: Final = (*COLOURS[:3], *COLOURS[4:])
_GREEN, _AMBER, _RED = "#cfe8d8", "#f3c16b", "#c8384f"


def balance_figure(cells: Sequence[Cell], archived: bool, groups: Sequence[str]) -> Figure:
    """Draw sent, stored, archived and consumed by hour, or by queue if there is only one hour."""
    several = _several(cells)
    hours = {cell.hour for cell in cells if cell.hour is not None}
    by_hour = len(hours) > 1
    names = ["sent", "stored", *(["archived"] if archived else [])]
    names += ["consumed"] if len(groups) == 1 else [f"consumed by {group}" for group in groups]
    sums: dict[str, list[int]] = {}
    for cell in cells:
        place = (cell.hour or "unknown") if by_hour else _queue(cell, several)
        numbers = [cell.sent, cell.stored, *([cell.archived or 0] if archived else [])]
        numbers += [cell.consumed.get(group, 0) for group in groups]
        into = sums.setdefault(place, [0] * len(numbers))
        for at, number in enumerate(numbers):
            into[at] += number
    places = sorted(sums)[-_MOST_BARS:]
    plot, axes = new_plot()
    width = 0.84 / len(names)
    for at, name in enumerate(names):
        xs = [x - 0.42 + width * (at + 0.5) for x in range(len(places))]
        heights = [sums[place][at] for place in places]
        axes.bar(xs, heights, width * 0.92, label=name, color=_BARS[at % len(_BARS)])
    step = max(1, len(places) // 12)
    labels = [_hour(place) if by_hour else place for place in places]
    axes.set_xticks(range(0, len(places), step), labels[::step])
    if max((len(label) for label in labels), default=0) > 12:
        for label in axes.get_xticklabels():
            label.set(rotation=25, ha="right", rotation_mode="anchor")
    axes.set_ylabel("messages")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=len(names), frameon=False)
    left_out = len(sums) - len(places)
    caption = "Each group of bars is one " + ("hour of storing, UTC" if by_hour else "queue")
    more = f"; the {left_out:,} before are in the JSON" if left_out else ""
    return Figure("Sent, stored, archived, consumed", svg_of(plot), f"{caption}{more}.")


def difference_figure(cells: Sequence[Cell]) -> Figure:
    """Draw a map of queues and hours: green where all is equal, amber where explained, else red."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    several = _several(cells)
    worst: dict[str, int] = {}
    for cell in cells:
        difference = 2 if cell.unexplained else 1 if cell.explained else 0
        queue = _queue(cell, several)
        worst[queue] = max(worst.get(queue, 0), difference)
    # The queues that differ must not be those that are left out.
    lines = sorted(sorted(worst, key=lambda queue: (-worst[queue], queue))[:_MOST_LINES])
    all_hours = sorted({cell.hour or "unknown" for cell in cells})
    hours = all_hours[-_MOST_BARS:]
    grid = [[float("nan")] * len(hours) for _ in lines]
    counts: dict[tuple[int, int], tuple[int, int]] = {}
    for cell in cells:
        line, hour = _queue(cell, several), cell.hour or "unknown"
        if line in lines and hour in hours:
            y, x = lines.index(line), hours.index(hour)
            grid[y][x] = 2 if cell.unexplained else 1 if cell.explained else 0
            counts[y, x] = (cell.explained, cell.unexplained)
    plot, axes = new_plot(height=max(1.6, 0.34 * len(lines) + 1.1))
    axes.grid(visible=False)
    axes.pcolormesh(
        grid,
        cmap=ListedColormap([_GREEN, _AMBER, _RED]),
        vmin=-0.5,
        vmax=2.5,
        edgecolors="white",
        linewidth=2,
    )
    if len(hours) <= 16:
        for (y, x), (explained, unexplained) in counts.items():
            if explained or unexplained:
                text, colour = (
                    (f"{unexplained:,}", "white") if unexplained else (f"{explained:,}", "#4a3500")
                )
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=colour, size=9)
    step = max(1, len(hours) // 12)
    ticks = [at + 0.5 for at in range(0, len(hours), step)]
    axes.set_xticks(ticks, [_hour(hour) for hour in hours[::step]])
    axes.set_yticks([at + 0.5 for at in range(len(lines))], lines)
    axes.invert_yaxis()
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    handles = [
        Patch(color=colour, label=label)
        for colour, label in ((_GREEN, "equal"), (_AMBER, "explained"), (_RED, "unexplained"))
    ]
    axes.legend(
        handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False
    )
    caption = "Numbers are differences; the hour is that of storing, UTC"
    left_out = [
        f"{count:,} {what}"
        for count, what in (
            (len(worst) - len(lines), "queues with fewer differences"),
            (len(all_hours) - len(hours), "hours before"),
        )
        if count
    ]
    more = f"; {' and '.join(left_out)} are in the JSON" if left_out else ""
    return Figure("Differences by queue and hour", svg_of(plot), f"{caption}{more}.")


def _several(cells: Sequence[Cell]) -> bool:
    return len({cell.topic for cell in cells}) > 1


def _queue(cell: Cell, several_topics: bool) -> str:
    """Return the queue's name, with its topic if there are several topics."""
    queue = "no queue known" if cell.broker is None else cell.queue
    return f"{cell.topic} {queue}" if several_topics else queue


def _hour(hour: str) -> str:
    """Return 2026-11-20T16 as 20 Nov 16h."""
    if "T" not in hour:
        return hour
    time = datetime.fromisoformat(f"{hour}:00")
    return f"{time.day} {time:%b %Hh}"
