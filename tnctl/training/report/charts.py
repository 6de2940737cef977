"""Charts as inline SVG: they need neither a script nor a network."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tnctl.training.report.fragments import Markup, fill, joined

WIDTH, HEIGHT = 480, 264
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 40
MOST_POINTS = 400
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A named line, of the n-th colour of the page; `dots` marks each of its points."""

    name: str
    points: Sequence[Point]
    colour: int
    dots: bool = False


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most MOST_POINTS of the finite points, evenly, with the first and the last."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) <= MOST_POINTS:
        return finite
    last = len(finite) - 1
    return [finite[round(n * last / (MOST_POINTS - 1))] for n in range(MOST_POINTS)]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """About so many round numbers from `low` to `high`: multiples of 1, 2 or 5 powers of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A number in few characters: 0.7312, 1,200, 3.5M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:,.4g}M"
    if size >= 1000:
        return f"{value:,.0f}"
    if size and size < 1e-4:
        return f"{value:.1e}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if size < 1 else f"{value:.4g}"


@dataclass(frozen=True)
class Scale:
    """From values low … high to places start … end of a chart."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def scale_of(values: Sequence[float], start: float, end: float, margin: float) -> Scale:
    """The scale of values, with a margin around them; around one value, a range of its size."""
    low, high = min(values), max(values)
    room = (high - low) * margin or (0.0 if high > low else abs(low) * 0.05 or 0.5)
    return Scale(low - room, high + room, start, end)


def lines(label: str, x_name: str, series: Sequence[Series]) -> Markup:
    """A line chart with a legend; empty when there is nothing to show."""
    shown = [
        Series(line.name, points, line.colour, line.dots or len(points) == 1)
        for line in series
        if (points := thinned(line.points))
    ]
    if not shown:
        return Markup()
    x_scale = scale_of([x for line in shown for x, _ in line.points], LEFT, WIDTH - RIGHT, 0.0)
    y_scale = scale_of([y for line in shown for _, y in line.points], HEIGHT - BOTTOM, TOP, 0.06)
    return _chart(label, _grid(x_scale, y_scale, x_name), shown, x_scale, y_scale)


def diagonal(label: str, x_name: str, series: Sequence[Series]) -> Markup:
    """A chart of shares against shares, with the diagonal on which they are equal."""
    shown = [line for line in series if line.points]
    if not shown:
        return Markup()
    high = 1.05 * (max(max(x, y) for line in shown for x, y in line.points) or 1.0)
    x_scale = Scale(0.0, high, LEFT, WIDTH - RIGHT)
    y_scale = Scale(0.0, high, HEIGHT - BOTTOM, TOP)
    equal = fill(
        "chart_equal",
        start_x=x_scale(0),
        start_y=y_scale(0),
        end_x=x_scale(high),
        end_y=y_scale(high),
    )
    grid = joined([_grid(x_scale, y_scale, x_name), equal])
    return _chart(label, grid, shown, x_scale, y_scale)


def _grid(x_scale: Scale, y_scale: Scale, x_name: str) -> Markup:
    parts = []
    for value in ticks(y_scale.low, y_scale.high):
        y = y_scale(value)
        parts.append(fill("grid_line", left=LEFT, right=WIDTH - RIGHT, y=y))
        parts.append(fill("y_tick", x=LEFT - 7, y=y + 4, text=number(value)))
    parts += [
        fill("x_tick", x=x_scale(value), y=HEIGHT - BOTTOM + 17, text=number(value))
        for value in ticks(x_scale.low, x_scale.high)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    return joined([*parts, fill("x_name", x=middle, y=HEIGHT - 5, text=x_name)])


def _chart(
    label: str, grid: Markup, shown: Sequence[Series], x_scale: Scale, y_scale: Scale
) -> Markup:
    """The series over a grid, with their legend and what the page's script shows on hovering."""
    parts, data = [], []
    for line in shown:
        at = [(x_scale(x), y_scale(y), x, y) for x, y in line.points]
        path = "L".join(f"{x} {y}" for x, y, _, _ in at)
        parts.append(fill("chart_line", colour=line.colour, path=path))
        if line.dots:
            parts += [fill("chart_dot", colour=line.colour, x=x, y=y) for x, y, _, _ in at]
        data.append({"name": line.name, "at": at})
    return fill(
        "chart",
        label=label,
        legend=joined(fill("chart_key", colour=line.colour, name=line.name) for line in shown),
        width=WIDTH,
        height=HEIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        data=json.dumps(data),
        grid=grid,
        series=joined(parts),
    )
