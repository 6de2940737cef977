"""report.html: the results of a run on one page that opens without a network."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tnctl.checkpoint.document import number_of
from tnctl.evaluation.metrics import METRICS, main_metrics, shown
from tnctl.evaluation.value_figures import FIGURES as FIGURES_BY_VALUE
from tnctl.evaluation.value_figures import ValueFigures
from tnctl.progress import clock, size
from tnctl.training.report.markup import (
    NONE,
    NOTHING,
    Markup,
    Point,
    Series,
    diagonal,
    fill,
    joined,
    lines,
    number,
    table_of,
)
from tnctl.training.report.report_document import Baseline, LogLine, RecalibratedHead, Report

DAYS_SHOWN = 400
# Of recalibration: ctr does not change, and pctr comes near to it.
FIGURES = ("logloss", "ne", "ctr", "pctr", "copc")
NOTE = (
    "Figures are of data.validation, to which slope and intercept were fitted. The order of "
    "predictions stays, and so does the AUC. Evaluations while training were before this."
)


@dataclass(frozen=True)
class InputRow:
    """A line of the table of inputs; None where there is no value, or none was measured."""

    name: str
    kind: str
    coverage: float | None = None  # share of examples that have an id (numbers: that are not 0)
    ids: float | None = None  # per example
    group: str | None = None
    rows: int | None = None
    bytes: int | None = None
    norm: float | None = None  # mean norm of the group's embeddings
    importance: float | None = None  # by how much the metric falls with the input shuffled


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
    tables = [(name, f"{table.rows:,}", size(table.bytes)) for name, table in report.tables.items()]
    conf_text = json.dumps(conf, indent=2, ensure_ascii=False, default=str)
    sections = [
        _header(title, conf, report),
        _tiles(report),
        _section("Weak points", joined(map(_note, report.weak_points or ()))),
        _section("Training", _curves(lines_logged), "curves"),
        _section(f"Calibration on data.{report.split}", _calibration(report), "curves"),
        _section("Inputs", _inputs(inputs, report)),
        _section("Beside boosted trees", baseline_table(report)),
        _section("Metrics", _metrics(report)),
        *(
            _section(f"By {name}", table_of(("value", "rows", *FIGURES_BY_VALUE), by_value(values)))
            for name, values in (report.by or {}).items()
        ),
        _section("Recalibration", recalibration_table(report)),
        _section("Days", _days(report)),
        _section("Where the time went", _time(report)),
        _section("Tables", table_of(("table", "rows", "memory"), tables)),
        _section("Conf", fill("conf", text=conf_text)),
    ]
    return fill("page", title=title, sections=joined(sections, "\n"))


def _section(name: str, body: Markup, kind: str = "block") -> Markup:
    return fill("section", name=name, kind=kind, body=body) if body else body


def _note(text: str) -> Markup:
    return fill("note", text=text)


def _header(title: str, conf: dict[str, Any], report: Report) -> Markup:
    facts = [
        f"recipe {conf['recipe'].get('name', '')}",
        f"{len(conf['slots'])} slots",
        f"{len(conf['numeric'])} numbers",
        f"{report.steps:,} steps of {conf['train']['batch_size']:,}",
        f"seed {conf['seed']}",
    ]
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
        tiles.append((metric.title, _shown(value, ".5f"), note))
    if (copc := report.figure("copc")) is not None:
        clicked, predicted = (report.figure(key) or 0.0 for key in ("ctr", "pctr"))
        tiles.append(("COPC", f"{copc:.4f}", f"{clicked:.4f} clicked, {predicted:.4f} predicted"))
    rows = sum(table.rows for table in report.tables.values())
    memory = size(sum(table.bytes for table in report.tables.values()))
    tiles.append(("rows", number(rows), f"{memory} and {report.dense_weights:,} dense weights"))
    if speed := report.timing.examples_per_second:
        note = f"the run took {clock(report.timing.seconds)}"
        tiles.append(("examples per second", f"{speed:,.0f}", note))
    filled = (fill("tile", name=name, value=value, note=note) for name, value, note in tiles)
    return fill("tiles", tiles=joined(filled))


def _curves(lines_logged: Sequence[LogLine]) -> Markup:
    steps = [line for line in lines_logged if line.event == "step"]
    evaluations = [line for line in lines_logged if line.event == "evaluation"]

    def trained(key: str) -> list[Point]:
        return [(line.step, value) for line in steps if (value := getattr(line, key)) is not None]

    def evaluated(key: str) -> list[Point]:
        points = [(line.step, number_of(line.validation, key)) for line in evaluations]
        return [(step, value) for step, value in points if value is not None]

    charts = [
        lines("loss", "step", [
            Series("training", trained("loss"), 1),
            Series("validation logloss", evaluated("logloss"), 2, dots=True),
            Series("validation MSE", [] if evaluated("logloss") else evaluated("mse"), 2, True),
        ]),
        lines("AUC", "step", [
            Series("training, of the epoch so far", trained("running_auc"), 1),
            Series("validation", evaluated("auc"), 2, dots=True),
            Series("validation GAUC", evaluated("gauc"), 3, dots=True),
        ]),
    ]  # fmt: skip
    rows = trained("rows")
    if len({count for _, count in rows[len(rows) // 4 :]}) > 1:
        charts.append(lines("rows of all tables", "step", [Series("rows", rows, 1)]))
    factors = trained("rate_factor")
    if len({factor for _, factor in factors}) > 1:
        charts.append(lines("factor of all learning rates", "step", [Series("factor", factors, 3)]))
    return joined(charts)


def _calibration(report: Report) -> Markup:
    tenths = [(mean, label) for mean, label in report.bins("calibration", "prediction", "label")]
    chart = diagonal(
        "mean label of tenths of the examples",
        "mean prediction",
        Series("tenths, by prediction", tenths, 1, True),
    )
    return joined([chart, _histogram(report)]) if tenths else NOTHING


def _histogram(report: Report) -> Markup:
    """How the predictions of examples with and without a click are distributed."""

    def shares(label: str) -> list[Point]:
        bins = report.bins("histogram", "up_to", label)
        total = sum(count for _, count in bins)
        return [
            ((low + high) / 2, count / total)
            for (low, _), (high, count) in pairwise([[0.0, 0.0], *bins])
            if total > 0
        ]

    return lines(
        "shares of each label by prediction",
        "prediction; the last point has all above it",
        [Series("label 0", shares("negatives"), 1), Series("label 1", shares("positives"), 2)],
    )


def _inputs(inputs: Sequence[InputRow], report: Report) -> Markup:
    if not inputs:
        return NOTHING
    highest = max(row.importance or 0.0 for row in inputs)
    measured = any(row.importance is not None for row in inputs)
    groups = [row.group for row in inputs if row.group is not None]
    shared = {group for group in groups if groups.count(group) > 1}
    names = ["input", "kind", "coverage", "ids per example", "rows", "bytes", "mean norm"]
    names += ["importance"] if measured else []
    rows = []
    for row in inputs:
        name = f" ({row.group})" if row.rows is not None and row.group in shared else ""
        # Without a bar an input that every example has.
        covered = None if row.coverage is None or row.coverage >= 1 else row.coverage
        cells = [
            _sorted_cell(row.kind, row.kind),
            _sorted_cell(row.coverage, _shown(row.coverage, ".1%"), covered),
            _sorted_cell(row.ids, _shown(row.ids, ".2f")),
            _sorted_cell(row.rows, _shown(row.rows, ",") + name),
            _sorted_cell(row.bytes, NONE if row.bytes is None else size(row.bytes)),
            _sorted_cell(row.norm, _shown(row.norm, ".4f")),
        ]
        if measured:
            lost = row.importance
            share = None if lost is None or highest <= 0 else max(lost / highest, 0.0)
            cells.append(_sorted_cell(lost, _shown(lost, "+.5f"), share))
        rows.append((row.name, *cells))
    split = f"data.{report.split}" if report.split else "no data"
    notes = [f"Coverage and ids per example are of {split}: of a number, how often it is not 0."]
    if shared:
        notes.append("Slots of one share group (its name in brackets) have the same rows.")
    if measured:
        notes.append(
            f"Importance is the {report.importance_of} lost when the input's values are shuffled "
            "between rows, together with what is made of them."
        )
    return joined([table_of(names, rows, "sortable"), _note(" ".join(notes))])


def _sorted_cell(value: Any, text: str, share: float | None = None) -> Markup:
    fragment = "sorted_cell" if share is None else "bar_cell"
    width = f"{min(share or 0.0, 1.0):.4f}"
    return fill(fragment, value="" if value is None else value, text=text, share=width)


def _metrics(report: Report) -> Markup:
    names = [name for name in METRICS if name != "calibration"]
    columns = [report.metrics, *report.heads.values()]
    rows = [
        (key, *(_shown(number_of(of_head, key), ".6f") for of_head in columns))
        for key in (*names, "reference_auc")
        if key in report.metrics
    ]
    main = str(report.metrics.get("head", "main head"))
    heads = report.heads
    return table_of(["", main if heads else f"data.{report.split}", *heads], rows)


def _days(report: Report) -> Markup:
    """Each day with the metrics of the model before it was trained on the day."""
    days = report.days or ()
    if not days:
        return NOTHING
    newest = days[-DAYS_SHOWN:][::-1]
    known = next((day.before for day in newest if day.before), {})
    keys = [key for key in ("auc", "gauc", "logloss", "mse") if key in known]
    rows = []
    for day in newest:
        figures = [_shown(number_of(day.before or {}, key), ".5f") for key in keys]
        name, share = max(day.new_ids.items(), key=lambda of_slot: of_slot[1], default=("", None))
        most = NONE if share is None else f"{name} {share:.1%}"
        evicted = f"{sum((day.evicted or {}).values()):,}"
        rows.append((day.day, f"{day.rows:,}", *figures, most, evicted, "; ".join(day.accepted)))
    names = ("day", "examples", *keys, "most new ids", "rows evicted", "accepted")
    note = (
        "Metrics are of the model before it was trained on the day; new ids are the share of "
        "occurrences of ids without a row."
    )
    if len(days) > len(newest):
        note += f" These are the last {len(newest):,} of {len(days):,}."
    return joined([_note(note), table_of(names, rows)])


def _time(report: Report) -> Markup:
    timing = report.timing
    waited = timing.input_wait_seconds
    seconds = {
        "steps": timing.training_seconds - waited,
        "waiting for input": waited,
        "evaluation": timing.evaluation_seconds,
        "checkpoints": timing.save_seconds,
    }
    seconds["all else"] = max(timing.seconds - sum(seconds.values()), 0.0)
    parts = [(name, max(value, 0.0)) for name, value in seconds.items()]
    total = sum(value for _, value in parts)
    if not total:
        return NOTHING
    bars, keys = [], []
    for colour, (name, value) in enumerate(parts, 1):
        text = f"{name} {clock(seconds[name])} ({seconds[name] / total:.0%})"
        bars.append(fill("time_bar", colour=colour, share=f"{value / total:.4f}"))
        keys.append(fill("time_key", colour=colour, text=text))
    return fill("time", bars=joined(bars), keys=joined(keys))


def _shown(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def by_value(values: Sequence[ValueFigures]) -> list[list[str]]:
    """For each value of a column its text, its rows and their metrics."""
    return [
        [
            "all others" if of.value is None else of.value or "(empty)",
            f"{of.examples:,}",
            *(shown(getattr(of, name), 4) for name in FIGURES_BY_VALUE),
        ]
        for of in values
    ]


def in_words(head: RecalibratedHead) -> str:
    """What recalibration did to a head, on one line."""
    # By days there are none: each was for the day after.
    names = [name for name in ("logloss", "ne", "copc") if name in head.before]
    changes = "; " * bool(names) + ", ".join(
        f"{name} {changed(head, name, '->')}" for name in names
    )
    return f"slope {head.slope:.5g}, intercept {head.intercept:.5g}{changes}"


def changed(head: RecalibratedHead, name: str, arrow: str) -> str:
    """A figure of a head before and after."""
    before, after = (shown(number_of(figures, name), 5) for figures in (head.before, head.after))
    return f"{before} {arrow} {after}"


def recalibration_table(report: Report) -> Markup:
    """The section of the page, empty without a recalibration."""
    heads = report.recalibration or {}
    names = [name for name in FIGURES if name != "ctr"]
    rows = [
        (head, f"{of.slope:.5g}", f"{of.intercept:.5g}", *(changed(of, key, "→") for key in names))
        for head, of in heads.items()
    ]
    table = table_of(("head", "slope", "intercept", *names), rows)
    return joined([table, _note(NOTE)]) if rows else NOTHING


def side_by_side(report: Report, baseline: Baseline) -> list[tuple[str, str, str]]:
    """The name of a figure, its value of the recipe, and its value of the baseline.

    Metrics are those of the report's split.
    """
    others, timing = baseline.of_split(report.split), report.timing
    rows = [
        (metric.title, shown(value, 5), shown(number_of(others, metric.name), 5))
        for metric, value in main_metrics(report.metrics)
    ]
    seconds = timing.training_seconds + timing.evaluation_seconds
    recalibration = report.recalibration or {}
    if recalibration or baseline.recalibration is not None:
        # Without the name of a head there is only one.
        heads = [of for head, of in recalibration.items() if baseline.head in (None, head)]
        of_both = (heads[0] if heads else None, baseline.recalibration)
        slopes = [NONE if fitted is None else f"{fitted.slope:.5g}" for fitted in of_both]
        rows.append(("slope of recalibration", slopes[0], slopes[1]))
    return [
        *rows,
        ("rows of data.train", f"{baseline.rows_seen:,}", f"{baseline.rows:,}"),
        ("trees", NONE, f"{baseline.trees:,}"),
        ("seconds", f"{seconds:,.1f}", f"{timing.baseline_seconds or 0:,.1f}"),
    ]


def baseline_table(report: Report) -> Markup:
    """The section of the page, empty without a baseline."""
    baseline = report.baseline
    if baseline is None:
        return NOTHING
    heading = f"data.{report.split}" if report.split else ""
    notes = []
    if baseline.rows < baseline.rows_seen:
        notes.append(
            f"The trees were trained on {baseline.rows / baseline.rows_seen:.1%} of the rows of "
            "data.train, chosen by a hash of their numbers."
        )
    if baseline.head is not None:
        notes.append(f"Both are of head {baseline.head}.")
    notes.append(
        f"The trees have {baseline.columns:,} columns, {baseline.categorical:,} of them with "
        "categories."
    )
    rows = side_by_side(report, baseline)
    table = table_of((heading, "recipe", baseline.library), rows)
    return joined([table, _note(" ".join(notes))])
