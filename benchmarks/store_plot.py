"""Draw a line chart as SVG, without a library: linear axes from zero, one line per curve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 280, 40, 50
TICKS = 5
# Colour-blind readers, too, can tell these apart (Okabe and Ito).
COLOURS = ("#d55e00", "#e69f00", "#cc79a7", "#0072b2", "#56b4e9", "#009e73")


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    points: list[tuple[float, float]]


def plot(title: str, x_name: str, y_name: str, curves: list[Curve]) -> str:
    """Return the chart of `curves`; there must be at least one."""
    x_step = _step(max(x for curve in curves for x, _ in curve.points))
    y_step = _step(max(y for curve in curves for _, y in curve.points))
    x_scale = (WIDTH - LEFT - RIGHT) / (TICKS * x_step)
    y_scale = (HEIGHT - TOP - BOTTOM) / (TICKS * y_step)

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + x * x_scale, HEIGHT - BOTTOM - y * y_scale

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text((LEFT + WIDTH - RIGHT) / 2, TOP - 18, title, "middle"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_name, "middle"),
        _text(12, TOP - 18, y_name, "start"),
    ]
    for tick in range(TICKS + 1):
        x, bottom = place(tick * x_step, 0)
        _, y = place(0, tick * y_step)
        parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "#ddd"))
        parts.append(_text(x, bottom + 18, f"{tick * x_step:g}", "middle"))
        parts.append(_text(LEFT - 8, y + 4, f"{tick * y_step:g}", "end"))
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(*point) for point in curve.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = TOP + 10 + 20 * number
        parts.append(_line(WIDTH - RIGHT + 20, y, WIDTH - RIGHT + 44, y, colour, 2))
        parts.append(_text(WIDTH - RIGHT + 50, y + 4, curve.name, "start"))
    return "\n".join((*parts, "</svg>"))


def _step(highest: float) -> float:
    """Return a round number of which TICKS steps reach as high."""
    if highest <= 0:
        return 1.0
    rough = highest / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )
