"""report.html: the results of a run on one page that opens without a network or a script."""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

from tnctl.checkpoint.document import number_of
from tnctl.evaluation.metrics import METRICS, main_metrics, shown
from tnctl.evaluation.split_scoring import FIGURES_BY_VALUE
from tnctl.limits import size
from tnctl.progress import clock
from tnctl.training.report.report_document import LogLine, Report
from tnctl.training.report.terminal_tables import (
    NONE,
    by_value,
    day_table,
    in_words,
    side_by_side,
)

LEFT, RIGHT, TOP, BOTTOM = 58, 466, 12, 224  # the edges of a chart, as in page.html
MOST_POINTS = 400
TICKS = 5  # of an axis, about
DAYS_SHOWN = 400
Point = tuple[float, float]


@dataclass(frozen=True)
class InputRow:
    """A line of the table of inputs; None where there is no value, or none was measured."""

    name: str
    kind: str
    coverage: float | None = None  # share of examples that have an id (numbers: that are not 0)
    ids: float | None = None  # per example
    rows: int | None = None
    bytes: int | None = None
    norm: float | None = None  # mean norm of the group's embeddings
    importance: float | None = None  # by how much the metric falls with the input shuffled
    group: str | None = None


# The columns of the table of inputs: a field of InputRow, and how it is written.
INPUT_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "kind": ("kind", str),
    "coverage": ("coverage", "{:.1%}".format),
    "ids per example": ("ids", "{:.2f}".format),
    "rows": ("rows", "{:,}".format),
    "bytes": ("bytes", size),
    "mean norm": ("norm", "{:.4f}".format),
    "importance": ("importance", "{:+.5f}".format),
}


def render(
    title: str,
    conf: dict[str, Any],
    report: Report,
    lines_logged: Sequence[LogLine],
    inputs: Sequence[InputRow],
) -> str:
    """The whole page, HTML that is well-formed XML too.

    `conf` as plain values; `lines_logged` are the lines of log.jsonl.
    """
    conf_text = json.dumps(conf, indent=2, ensure_ascii=False, default=str)
    sections = [
        _header(title, conf, report),
        _tiles(report),
        _section("Weak points", joined(map(_note, report.weak_points or ()))),
        _section("Training", _curves(lines_logged), "curves"),
        _section(f"Calibration on data.{report.split}", _calibration(report), "curves"),
        _section("Inputs", _inputs(inputs, report)),
        _section("Beside boosted trees", _baseline(report)),
        _section("Metrics", _metrics(report)),
        *(
            _section(f"By {name}", table_of(("value", "rows", *FIGURES_BY_VALUE), by_value(values)))
            for name, values in (report.by or {}).items()
        ),
        _section("Recalibration", joined(
            _note(f"{head}: {in_words(of_head)}")
            for head, of_head in (report.recalibration or {}).items()
        )),
        _section("Days", _days(report)),
        _section("Conf", fill("conf", text=conf_text)),
    ]  # fmt: skip
    return fill("page", title=title, sections=joined(sections, "\n"))


# ---- Markup ------------------------------------------------------------------------------


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


def _section(name: str, body: Markup, kind: str = "block") -> Markup:
    return fill("section", name=name, kind=kind, body=body) if body else body


def _note(text: str) -> Markup:
    return fill("note", text=text)


# ---- Charts ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """A named line, of the n-th colour of the page; `dots` marks each of its points."""

    name: str
    points: Sequence[Point]
    colour: int
    dots: bool = False


def chart(label: str, x_name: str, series: Sequence[Series], *, shares: bool = False) -> Markup:
    """A line chart with a legend; empty when there is nothing to show.

    With `shares` x and y have one scale, with the diagonal on which they are equal.
    """
    lines = [
        replace(line, points=points, dots=line.dots or len(points) == 1)
        for line in series
        if (points := thinned(line.points))
    ]
    if not lines:
        return NOTHING
    xs, ys = zip(*(point for line in lines for point in line.points), strict=True)
    if shares:
        high = 1.05 * max(*xs, *ys) or 1.0
        x_axis, y_axis = Axis(0, high, LEFT, RIGHT), Axis(0, high, BOTTOM, TOP)
    else:
        x_axis, y_axis = _axis(xs, LEFT, RIGHT, 0), _axis(ys, BOTTOM, TOP, 0.06)
    grid = [fill("y_tick", y=y, below=y + 4, text=text) for y, text in y_axis.ticks()]
    grid += [fill("x_tick", x=x, text=text) for x, text in x_axis.ticks()]
    grid += [fill("x_name", text=x_name), fill("chart_equal") if shares else NOTHING]
    parts, data = [], []
    for line in lines:
        at = [(x_axis(x), y_axis(y), x, y) for x, y in line.points]
        path = "L".join(f"{x} {y}" for x, y, _, _ in at)
        parts.append(fill("chart_line", colour=line.colour, path=path))
        if line.dots:
            parts += [fill("chart_dot", colour=line.colour, x=x, y=y) for x, y, _, _ in at]
        data.append({"name": line.name, "at": at})  # for the page's script, on hovering
    return fill(
        "chart",
        label=label,
        legend=joined(fill("chart_key", colour=line.colour, name=line.name) for line in lines),
        data=json.dumps(data),
        grid=joined(grid),
        series=joined(parts),
    )


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most MOST_POINTS of the finite points, evenly, with the first and the last."""
    finite = [point for point in points if all(map(math.isfinite, point))]
    if len(finite) <= MOST_POINTS:
        return finite
    last = len(finite) - 1
    return [finite[round(n * last / (MOST_POINTS - 1))] for n in range(MOST_POINTS)]


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
        return [(self(n * step), f"{n * step:,.10g}") for n in range(first, last + 1)]


def _axis(values: Sequence[float], start: float, end: float, margin: float) -> Axis:
    """The axis of values, with a margin around them; around one value, a range of its size."""
    low, high = min(values), max(values)
    room = (high - low) * margin or (0.0 if high > low else abs(low) * 0.05 or 0.5)
    return Axis(low - room, high + room, start, end)


# ---- Sections ----------------------------------------------------------------------------


def _header(title: str, conf: dict[str, Any], report: Report) -> Markup:
    facts = [
        f"recipe {conf['recipe'].get('name', '')}",
        f"{len(conf['slots'])} slots",
        f"{len(conf['numeric'])} numbers",
        f"{report.steps:,} steps of {conf['train']['batch_size']:,}",
        f"seed {conf['seed']}",
    ]
    if (at := conf["evaluation"]["ndcg_at"]) is not None:
        facts.append(f"NDCG at rank {at:,}")
    if report.best is not None:
        facts.append(f"best at step {report.best.step:,}")
    return fill("header", title=title, facts=joined(fill("fact", text=fact) for fact in facts))


def _tiles(report: Report) -> Markup:
    tiles = []
    split = f"on data.{report.split}" if report.split else ""
    for metric, value in main_metrics(report.metrics):
        note = split
        if metric.name == "auc" and (reference := report.figure("reference_auc")) is not None:
            note += f", the reference {reference:.4f}"
        tiles.append((metric.title, shown(value, 5), note))
    if (copc := report.figure("copc")) is not None:
        clicked, predicted = (report.figure(key) or 0.0 for key in ("ctr", "pctr"))
        tiles.append(("COPC", f"{copc:.4f}", f"{clicked:.4f} clicked, {predicted:.4f} predicted"))
    rows = sum(table.rows for table in report.tables.values())
    memory = size(sum(table.bytes for table in report.tables.values()))
    tiles.append(("rows", f"{rows:,}", f"{memory} and {report.dense_weights:,} dense weights"))
    if speed := report.timing.examples_per_second:
        timing = report.timing
        note = (
            f"{clock(timing.seconds)}: training {clock(timing.training_seconds)}, of which "
            f"waiting for input {clock(timing.input_wait_seconds)}"
        )
        tiles.append(("examples per second", f"{speed:,.0f}", note))
    filled = (fill("tile", name=name, value=value, note=note) for name, value, note in tiles)
    return fill("tiles", tiles=joined(filled))


def _curves(lines_logged: Sequence[LogLine]) -> Markup:
    evaluations = [line for line in lines_logged if line.event == "evaluation"]

    def trained(key: str) -> list[Point]:
        steps = (line for line in lines_logged if line.event == "step")
        return [(line.step, value) for line in steps if (value := getattr(line, key)) is not None]

    def evaluated(key: str) -> list[Point]:
        points = [(line.step, number_of(line.validation, key)) for line in evaluations]
        return [(step, value) for step, value in points if value is not None]

    charts = [
        chart("loss", "step", [
            Series("training", trained("loss"), 1),
            Series("validation logloss", evaluated("logloss"), 2, dots=True),
            Series("validation MSE", [] if evaluated("logloss") else evaluated("mse"), 2, True),
        ]),
        chart("AUC", "step", [
            Series("training, of the epoch so far", trained("running_auc"), 1),
            Series("validation", evaluated("auc"), 2, dots=True),
            Series("validation GAUC", evaluated("gauc"), 3, dots=True),
        ]),
        chart("NDCG", "step", [Series("validation", evaluated("ndcg"), 2, dots=True)]),
    ]  # fmt: skip
    for label, key in (("rows of all tables", "rows"), ("learning rate factor", "rate_factor")):
        points = trained(key)
        if len({value for _, value in points}) > 1:
            charts.append(chart(label, "step", [Series(label, points, 1)]))
    return joined(charts)


def _calibration(report: Report) -> Markup:
    """Mean labels by prediction, and how the predictions of each label are distributed."""
    tenths = [(mean, label) for mean, label in report.bins("calibration", "prediction", "label")]
    if not tenths:
        return NOTHING

    def shares(label: str) -> list[Point]:
        bins = report.bins("histogram", "up_to", label)
        total = sum(count for _, count in bins)
        return [
            ((low + high) / 2, count / total)
            for (low, _), (high, count) in pairwise([[0.0, 0.0], *bins])
            if total > 0
        ]

    return joined([
        chart(
            "mean label of tenths of the examples",
            "mean prediction",
            [Series("tenths, by prediction", tenths, 1, True)],
            shares=True,
        ),
        chart(
            "shares of each label by prediction",
            "prediction; the last point has all above it",
            [Series("label 0", shares("negatives"), 1), Series("label 1", shares("positives"), 2)],
        ),
    ])  # fmt: skip


def _inputs(inputs: Sequence[InputRow], report: Report) -> Markup:
    groups = [row.group for row in inputs if row.group is not None]
    rows: list[list[object]] = []
    for row in inputs:
        rows.append([row.name])
        for field, form in INPUT_COLUMNS.values():
            value = getattr(row, field)
            text = NONE if value is None else form(value)
            if field == "rows" and groups.count(row.group or "") > 1:
                text += f" ({row.group})"
            rows[-1].append(fill("sorted_cell", value="" if value is None else value, text=text))
    split = f"data.{report.split}" if report.split else "no data"
    note = (
        f"Coverage and ids per example are of {split}: of a number, how often it is not 0. Slots "
        "with the name of a share group in brackets have its rows."
    )
    if report.importance_of:
        note += (
            f" Importance is the {report.importance_of} lost when the input's values are shuffled "
            "between rows, together with what is made of them."
        )
    table = table_of(["input", *INPUT_COLUMNS], rows, "sortable")
    return joined([table, _note(note)]) if rows else NOTHING


def _baseline(report: Report) -> Markup:
    baseline = report.baseline
    if baseline is None:
        return NOTHING
    heading = f"data.{report.split}" if report.split else ""
    note = (
        f"The trees were trained on {baseline.rows / (baseline.rows_seen or 1):.1%} of the rows of "
        f"data.train, with {baseline.columns:,} columns, {baseline.categorical:,} of them with "
        "categories."
    )
    if baseline.head is not None:
        note += f" Both are of head {baseline.head}."
    rows = side_by_side(report, baseline)
    return joined([table_of((heading, "recipe", baseline.library), rows), _note(note)])


def _metrics(report: Report) -> Markup:
    heads = report.heads
    rows = [
        (key, *(shown(number_of(of_head, key), 6) for of_head in (report.metrics, *heads.values())))
        for key in (*METRICS, "reference_auc")
        if key in report.metrics and key != "calibration"
    ]
    main = str(report.metrics.get("head", "main head"))
    return table_of(["", main if heads else f"data.{report.split}", *heads], rows)


def _days(report: Report) -> Markup:
    """Each day with the metrics of the model before it was trained on the day."""
    days = report.days or ()
    newest = days[-DAYS_SHOWN:]
    names, rows = day_table(newest)
    rows = [[*row, "; ".join(day.accepted)] for row, day in zip(rows, newest, strict=True)]
    note = (
        f"The last {len(newest):,} of {len(days):,} days, with the metrics of the model before it "
        "was trained on the day, and the share of occurrences of ids without a row."
    )
    table = table_of([*names, "accepted"], rows[::-1])
    return joined([_note(note), table]) if days else NOTHING
