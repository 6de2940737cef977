"""Charts as inline SVG, by hand: no script is needed to read them, and no network."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

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
    """At most MOST_POINTS of them, evenly, with the first and the last; only finite ones."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) <= MOST_POINTS:
        return finite
    last = len(finite) - 1
    return [finite[round(n * last / (MOST_POINTS - 1))] for n in range(MOST_POINTS)]


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, some `about` of them, 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A number as short as it can be read: 0.7312, 1,200, 3.5M."""
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
    """The scale of some values with a margin around them; of one value, a range that has it."""
    low, high = min(values), max(values)
    room = (high - low) * margin or (0.0 if high > low else abs(low) * 0.05 or 0.5)
    return Scale(low - room, high + room, start, end)


def lines(label: str, x_name: str, series: Sequence[Series]) -> str:
    """A line chart with a legend; empty when there is nothing to show."""
    shown = [
        Series(s.name, points, s.colour, s.dots or len(points) == 1)
        for s in series
        if (points := thinned(s.points))
    ]
    if not shown:
        return ""
    x_scale = scale_of([x for one in shown for x, _ in one.points], LEFT, WIDTH - RIGHT, 0.0)
    y_scale = scale_of([y for one in shown for _, y in one.points], HEIGHT - BOTTOM, TOP, 0.06)
    return _figure(label, _grid(x_scale, y_scale, x_name), shown, x_scale, y_scale)


def diagonal(label: str, x_name: str, series: Sequence[Series]) -> str:
    """A chart of shares against shares, with the line where they are equal."""
    shown = [one for one in series if one.points]
    if not shown:
        return ""
    high = 1.05 * (max(max(x, y) for one in shown for x, y in one.points) or 1.0)
    x_scale = Scale(0.0, high, LEFT, WIDTH - RIGHT)
    y_scale = Scale(0.0, high, HEIGHT - BOTTOM, TOP)
    equal = f"M{x_scale(0)} {y_scale(0)}L{x_scale(high)} {y_scale(high)}"
    under = f'{_grid(x_scale, y_scale, x_name)}<path class="equal" d="{equal}"/>'
    return _figure(label, under, shown, x_scale, y_scale)


def _grid(x_scale: Scale, y_scale: Scale, x_name: str) -> str:
    parts = []
    for value in ticks(y_scale.low, y_scale.high):
        y = y_scale(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="y" x="{LEFT - 7}" y="{y + 4}">{number(value)}</text>')
    parts += [
        f'<text class="x" x="{x_scale(value)}" y="{HEIGHT - BOTTOM + 17}">{number(value)}</text>'
        for value in ticks(x_scale.low, x_scale.high)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="x name" x="{middle}" y="{HEIGHT - 5}">{escape(x_name)}</text>')
    return "".join(parts)


def _figure(label: str, under: str, shown: Sequence[Series], x_scale: Scale, y_scale: Scale) -> str:
    """The series over a grid, with their legend and what the page's script shows on hovering."""
    over, legend, data = "", "", []
    for one in shown:
        colour = f"c{one.colour}"
        at = [(x_scale(x), y_scale(y), x, y) for x, y in one.points]
        path = "L".join(f"{x} {y}" for x, y, _, _ in at)
        over += f'<path class="line {colour}" d="M{path}"/>'
        if one.dots:
            over += "".join(
                f'<circle class="dot {colour}" cx="{x}" cy="{y}" r="3.5"/>' for x, y, _, _ in at
            )
        legend += f'<span class="key"><i class="{colour}"></i>{escape(one.name)}</span>'
        data.append({"name": one.name, "at": at})
    return (
        f'<figure class="chart"><figcaption><b>{escape(label)}</b>'
        f'<span class="legend">{legend}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" '
        f'data-series="{escape(json.dumps(data))}">{under}{over}'
        f'<path class="cursor" d="M0 {TOP}V{HEIGHT - BOTTOM}"/></svg>'
        '<output class="tip" hidden="hidden"></output></figure>'
    )
