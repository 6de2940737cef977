"""A line chart over powers of two as an SVG file, for pages of the documentation."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tnctl.training.report.charts import Scale, number, ticks

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 210, 34, 48
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito
STYLE = (
    "text{font:13px sans-serif;fill:#222}.axis{fill:#555}.grid{stroke:#ddd}"
    "path{fill:none;stroke-width:2}.dashed{stroke-dasharray:6 4}"
)


@dataclass(frozen=True)
class Line:
    """A line of (workers, value), in the n-th colour."""

    name: str
    points: Sequence[tuple[int, float]]
    colour: int
    dashed: bool = False


def chart(title: str, x_name: str, lines: Sequence[Line], marks: Sequence[tuple[int, str]]) -> str:
    """The chart: values from 0 to their highest, and a vertical line with words at each mark."""
    places = sorted({workers for line in lines for workers, _ in line.points})
    x_scale = Scale(0, len(places) - 1, LEFT, WIDTH - RIGHT)
    highest = max(value for line in lines for _, value in line.points)
    y_scale = Scale(0.0, highest * 1.05, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20">{escape(title)}</text>',
    ]
    for value in ticks(0.0, highest * 1.05):
        y = y_scale(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        parts.append(_label(LEFT - 8, y + 4, number(value), "end"))
    for place, workers in enumerate(places):
        parts.append(_label(x_scale(place), HEIGHT - BOTTOM + 20, f"{workers}"))
    parts.append(_label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name))
    for workers, words in marks:
        x = x_scale(places.index(workers))
        parts.append(f'<path class="dashed" stroke="#999" d="M{x} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(_label(x - 5, TOP + 12, words, "end"))
    for row, line in enumerate(lines):
        parts += _drawn(line, row, places, x_scale, y_scale)
    return "\n".join([*parts, "</svg>", ""])


def _label(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text class="axis" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def _drawn(
    line: Line, row: int, places: Sequence[int], x_scale: Scale, y_scale: Scale
) -> list[str]:
    """A line and its entry in the legend."""
    path = "L".join(f"{x_scale(places.index(n))} {y_scale(value)}" for n, value in line.points)
    kind = f'stroke="{COLOURS[line.colour]}"' + (' class="dashed"' if line.dashed else "")
    left, y = WIDTH - RIGHT + 20, TOP + 12 + 22 * row
    return [
        f'<path {kind} d="M{path}"/>',
        f'<path {kind} d="M{left} {y - 4}h26"/>',
        f'<text x="{left + 34}" y="{y}">{escape(line.name)}</text>',
    ]
