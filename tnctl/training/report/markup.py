"""The markup of report.html: parts of page.html that Python fills in, tables, and charts as SVG."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from pathlib import Path
from string import Template

NONE = "–"  # shown where there is no value, or none was measured
LEFT, RIGHT, TOP, BOTTOM = 58, 466, 12, 224  # the edges of a chart, as in page.html
MOST_POINTS = 400
TICKS = 5  # of an axis, about
Point = tuple[float, float]


class Markup(str):
    """Text that is HTML already. Any other text is escaped where it is filled in."""


NOTHING = Markup()


@cache
def fragments() -> dict[str, Template]:
    """The parts of page.html by their names."""
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    _, *parts = re.split(r"^<!-- (\w+) -->\n", text, flags=re.MULTILINE)
    return {
        name: Template(body.removesuffix("\n"))
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def fill(name: str, /, **values: object) -> Markup:
    """A part of the page with its values, escaped unless they are Markup.

    Raises KeyError when a value is missing.
    """
    texts = {
        key: value if isinstance(value, Markup) else escape(str(value))
        for key, value in values.items()
    }
    return Markup(fragments()[name].substitute(texts))


def joined(parts: Iterable[Markup], separator: str = "") -> Markup:
    """Parts of the page one after the other; those that are empty are left out."""
    return Markup(separator.join(part for part in parts if part))


def table_of(names: Iterable[object], rows: Iterable[Sequence[object]], kind: str = "") -> Markup:
    """A table with the names of its columns; empty when there are no rows.

    A row is its head and its cells, of text or Markup.
    """
    filled = [
        fill("row", head=head, cells=joined(
            cell if isinstance(cell, Markup) else fill("cell", text=cell) for cell in cells
        ))
        for head, *cells in rows
    ]  # fmt: skip
    heads = joined(fill("column", name=name) for name in names)
    return fill("table", kind=kind, heads=heads, rows=joined(filled)) if filled else NOTHING


# ---- Charts, which need neither a script nor a network -----------------------------------


@dataclass(frozen=True)
class Series:
    """A named line, of the n-th colour of the page; `dots` marks each of its points."""

    name: str
    points: Sequence[Point]
    colour: int
    dots: bool = False


def lines(label: str, x_name: str, series: Sequence[Series]) -> Markup:
    """A line chart with a legend; empty when there is nothing to show."""
    shown = [
        replace(line, points=points, dots=line.dots or len(points) == 1)
        for line in series
        if (points := thinned(line.points))
    ]
    if not shown:
        return NOTHING
    xs, ys = zip(*(point for line in shown for point in line.points), strict=True)
    return _chart(label, x_name, shown, _axis(xs, LEFT, RIGHT, 0), _axis(ys, BOTTOM, TOP, 0.06))


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most MOST_POINTS of the finite points, evenly, with the first and the last."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) <= MOST_POINTS:
        return finite
    last = len(finite) - 1
    return [finite[round(n * last / (MOST_POINTS - 1))] for n in range(MOST_POINTS)]


def diagonal(label: str, x_name: str, series: Series) -> Markup:
    """A chart of shares against shares, with the diagonal on which they are equal."""
    points = thinned(series.points)
    if not points:
        return NOTHING
    high = 1.05 * (max(map(max, points)) or 1.0)
    axes = Axis(0, high, LEFT, RIGHT), Axis(0, high, BOTTOM, TOP)
    return _chart(label, x_name, [replace(series, points=points)], *axes, fill("chart_equal"))


@dataclass(frozen=True)
class Axis:
    """From values low … high to coordinates start … end of a chart."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """The coordinates and texts of round numbers: multiples of 1, 2 or 5 powers of ten."""
        rough = (self.high - self.low) / TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(self(n * step), number(n * step)) for n in range(first, last + 1)]


def _axis(values: Sequence[float], start: float, end: float, margin: float) -> Axis:
    """The axis of values, with a margin around them; around one value, a range of its size."""
    low, high = min(values), max(values)
    room = (high - low) * margin or (0.0 if high > low else abs(low) * 0.05 or 0.5)
    return Axis(low - room, high + room, start, end)


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


def _chart(
    label: str,
    x_name: str,
    shown: Sequence[Series],
    x_axis: Axis,
    y_axis: Axis,
    beside: Markup = NOTHING,
) -> Markup:
    """The series over a grid, with their legend and what the page's script shows on hovering."""
    grid = [fill("y_tick", y=y, below=y + 4, text=text) for y, text in y_axis.ticks()]
    grid += [fill("x_tick", x=x, text=text) for x, text in x_axis.ticks()]
    parts, data = [], []
    for line in shown:
        at = [(x_axis(x), y_axis(y), x, y) for x, y in line.points]
        path = "L".join(f"{x} {y}" for x, y, _, _ in at)
        parts.append(fill("chart_line", colour=line.colour, path=path))
        if line.dots:
            parts += [fill("chart_dot", colour=line.colour, x=x, y=y) for x, y, _, _ in at]
        data.append({"name": line.name, "at": at})
    return fill(
        "chart",
        label=label,
        legend=joined(fill("chart_key", colour=line.colour, name=line.name) for line in shown),
        data=json.dumps(data),
        grid=joined([*grid, fill("x_name", text=x_name), beside]),
        series=joined(parts),
    )
