"""report.html: the results of a run on one page that opens without a network."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tnctl.evaluation.metrics import METRICS, main_metrics, shown
from tnctl.evaluation.value_figures import FIGURES as FIGURES_BY_VALUE
from tnctl.evaluation.value_figures import ValueFigures
from tnctl.progress import clock, size
from tnctl.training.report.charts import Series, diagonal, lines, number
from tnctl.training.report.fragments import NONE, Markup, fill, joined, table_of, table_row
from tnctl.training.report.report_document import (
    Baseline,
    LogLine,
    RecalibratedHead,
    Report,
    number_of,
)
from tnctl.training.report.worker_figures import ExchangeReport, WorkerFigures

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
    conf_text = json.dumps(conf, indent=2, ensure_ascii=False, default=str)
    sections = [
        _header(title, conf, report),
        _tiles(report),
        _section("Weak points", _weak_points(report)),
        _section("Training", _curves(lines_logged), "curves"),
        _section(f"Calibration on data.{report.split}", _calibration(report), "curves"),
        _section("Inputs", _inputs(inputs, report)),
        _section("Beside boosted trees", baseline_table(report)),
        _section("Metrics", _metrics(report)),
        *(_section(f"By {name}", _by_value(of)) for name, of in (report.by or {}).items()),
        _section("Recalibration", recalibration_table(report)),
        _section("Days", _days(report)),
        _section("Where the time went", _time(report)),
        _section("Tables", _tables(report)),
        _section("Conf", fill("conf", text=conf_text)),
    ]
    return fill("page", title=title, sections=joined(sections, "\n"))


def _section(name: str, body: Markup, kind: str = "block") -> Markup:
    return fill("section", name=name, kind=kind, body=body) if body else body


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

    def trained(key: str) -> list[tuple[float, float]]:
        return [(line.step, value) for line in steps if (value := getattr(line, key)) is not None]

    def evaluated(key: str) -> list[tuple[float, float]]:
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
    bins = report.calibration
    if not bins:
        return Markup()
    chart = diagonal(
        "mean label of tenths of the examples",
        "mean prediction",
        [Series("tenths, by prediction", [(b["prediction"], b["label"]) for b in bins], 1, True)],
    )
    return joined([chart, _histogram(report)])


def _histogram(report: Report) -> Markup:
    """How the predictions of examples with and without a click are distributed."""
    bins = report.histogram
    ends = [0.0, *(entry["up_to"] for entry in bins)]
    middles = [(low + high) / 2 for low, high in pairwise(ends)]

    def shares(key: str) -> list[tuple[float, float]]:
        total = sum(entry[key] for entry in bins)
        return [
            (middle, entry[key] / total)
            for middle, entry in zip(middles, bins, strict=True)
            if total > 0
        ]

    return lines(
        "shares of each label by prediction",
        "prediction; the last point has all above it",
        [Series("label 0", shares("negatives"), 1), Series("label 1", shares("positives"), 2)],
    )


def _inputs(inputs: Sequence[InputRow], report: Report) -> Markup:
    if not inputs:
        return Markup()
    highest = max((row.importance or 0.0 for row in inputs), default=0.0)
    measured = any(row.importance is not None for row in inputs)
    groups = [row.group for row in inputs if row.group is not None]
    shared = {group for group in groups if groups.count(group) > 1}
    names = ["input", "kind", "coverage", "ids per example", "rows", "bytes", "mean norm"]
    names += ["importance"] if measured else []
    rows = []
    for row in inputs:
        name = f" ({row.group})" if row.rows is not None and row.group in shared else ""
        cells = [
            _sorted_cell(row.kind, row.kind),
            _sorted_cell(row.coverage, _shown(row.coverage, ".1%"), _part_covered(row.coverage)),
            _sorted_cell(row.ids, _shown(row.ids, ".2f")),
            _sorted_cell(row.rows, _shown(row.rows, ",") + name),
            _sorted_cell(row.bytes, NONE if row.bytes is None else size(row.bytes)),
            _sorted_cell(row.norm, _shown(row.norm, ".4f")),
        ]
        if measured:
            lost = row.importance
            share = None if lost is None or highest <= 0 else max(lost / highest, 0.0)
            cells.append(_sorted_cell(lost, _shown(lost, "+.5f"), share))
        rows.append(table_row(row.name, cells))
    split = f"data.{report.split}" if report.split else "no data"
    notes = [f"Coverage and ids per example are of {split}: of a number, how often it is not 0."]
    if shared:
        notes.append("Slots of one share group (its name in brackets) have the same rows.")
    if measured:
        notes.append(
            f"Importance is the {report.importance_of} lost when the input's values are shuffled "
            "between rows, together with what is made of them."
        )
    return joined([table_of(names, rows, "sortable"), fill("note", text=" ".join(notes))])


def _part_covered(coverage: float | None) -> float | None:
    """What a bar shows; None, without a bar, of an input that every example has."""
    return None if coverage is None or coverage >= 1 else coverage


def _sorted_cell(value: Any, text: str, share: float | None = None) -> Markup:
    fragment = "sorted_cell" if share is None else "bar_cell"
    width = f"{min(share or 0.0, 1.0):.4f}"
    return fill(fragment, value="" if value is None else value, text=text, share=width)


def _metrics(report: Report) -> Markup:
    names = [name for name in METRICS if name != "calibration"]
    keys = [key for key in (*names, "reference_auc") if key in report.metrics]
    heads = report.heads
    rows = [
        table_row(key, [_shown(number_of(of_head, key), ".6f") for of_head in columns])
        for columns in [(report.metrics, *heads.values())]
        for key in keys
    ]
    main = str(report.metrics.get("head", "main head"))
    return table_of(["", main if heads else f"data.{report.split}", *heads], rows)


def _days(report: Report) -> Markup:
    """Each day with the metrics of the model before it was trained on the day."""
    days = report.days or ()
    if not days:
        return Markup()
    newest = days[-DAYS_SHOWN:][::-1]
    known = next((day.before for day in newest if day.before), {})
    keys = [key for key in ("auc", "gauc", "logloss", "mse") if key in known]
    rows = []
    for day in newest:
        figures = [_shown(number_of(day.before or {}, key), ".5f") for key in keys]
        name, share = max(day.new_ids.items(), key=lambda of_slot: of_slot[1], default=("", None))
        most = NONE if share is None else f"{name} {share:.1%}"
        evicted = sum((day.evicted or {}).values())
        cells = (f"{day.rows:,}", *figures, most, f"{evicted:,}", "; ".join(day.accepted))
        rows.append(table_row(day.day, cells))
    names = ("day", "examples", *keys, "most new ids", "rows evicted", "accepted")
    note = (
        "Metrics are of the model before it was trained on the day; new ids are the share of "
        "occurrences of ids without a row."
    )
    if len(days) > len(newest):
        note += f" These are the last {len(newest):,} of {len(days):,}."
    return joined([fill("note", text=note), table_of(names, rows)])


def _time(report: Report) -> Markup:
    timing = report.timing
    waited = timing.input_wait_seconds
    parts = [
        ("steps", timing.training_seconds - waited, 1),
        ("waiting for input", waited, 2),
        ("evaluation", timing.evaluation_seconds, 3),
        ("checkpoints", timing.save_seconds, 4),
    ]
    rest = timing.seconds - sum(seconds for _, seconds, _ in parts)
    parts.append(("all else", max(rest, 0.0), 5))
    total = sum(max(seconds, 0.0) for _, seconds, _ in parts)
    if not total:
        return Markup()
    bars = [
        fill("time_bar", colour=colour, share=f"{max(seconds, 0) / total:.4f}")
        for _, seconds, colour in parts
    ]
    keys = [
        fill("time_key", colour=colour, text=f"{name} {clock(seconds)} ({seconds / total:.0%})")
        for name, seconds, colour in parts
    ]
    whole = fill("time", bars=joined(bars), keys=joined(keys))
    exchange = timing.exchange or ExchangeReport()
    return joined([whole, _workers(timing.workers, exchange) if timing.workers else Markup()])


def _workers(processes: Sequence[WorkerFigures], exchange: ExchangeReport) -> Markup:
    """What each worker and server owns, exchanged and waited for."""
    workers = [process for process in processes if process.role == "worker"]
    servers = len(processes) - len(workers)
    names = [*range(len(workers)), *(f"server {number}" for number in range(servers))]
    of_workers: dict[str, Sequence[object]] = {
        "computing": [f"{w.share(w.compute_seconds):.0%}" for w in workers],
        "for data": [f"{w.share(w.input_wait_seconds):.0%}" for w in workers],
        "for others": [f"{w.share(w.worker_wait_seconds + w.idle_seconds):.0%}" for w in workers],
        "exchanging": [f"{w.share(w.exchange_seconds):.0%}" for w in workers],
    }
    note = (
        "Rows that a worker owns, what it sent and received, and shares of its time in steps: it "
        "computed, waited for data, waited for other workers, and for the answers of owners."
    )
    if any(worker.left_out for worker in workers):
        of_workers["left out"] = [f"{worker.left_out:,}" for worker in workers]
        note += " Left out are the steps that began without it; it trained their batches later."
    if exchange.awaited:
        of_workers["waited for it"] = [f"{seconds:,.1f} s" for seconds in exchange.awaited]
    if exchange.staleness:
        of_workers["mean staleness"] = [f"{of.mean:.2f}" for of in exchange.staleness]
        of_workers["most"] = [of.max for of in exchange.staleness]
        of_workers["most ahead"] = [of.ahead for of in exchange.staleness]
        note += (
            " Staleness: how many batches, of any worker, were applied after the rows of a batch "
            "were read and before its gradients were; ahead: of the slowest worker, in batches."
        )
    columns = {
        "rows": [f"{process.rows:,}" for process in processes],
        "memory": [size(process.bytes) for process in processes],
        "network": [f"{process.bytes_per_second / 1e6:.1f} MB/s" for process in processes],
        **{head: [*cells, *[NONE] * servers] for head, cells in of_workers.items()},
    }
    cells_of_rows = zip(*columns.values(), strict=True)
    rows = [table_row(name, cells) for name, cells in zip(names, cells_of_rows, strict=True)]
    return joined([table_of(("worker", *columns), rows), fill("note", text=note)])


def _tables(report: Report) -> Markup:
    rows = [
        table_row(name, (f"{table.rows:,}", size(table.bytes)))
        for name, table in report.tables.items()
    ]
    return table_of(("table", "rows", "memory"), rows)


def _shown(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _by_value(values: Sequence[ValueFigures]) -> Markup:
    rows = [
        table_row(
            words_of(of),
            [f"{of.examples:,}", *(shown(getattr(of, name), 4) for name in FIGURES_BY_VALUE)],
        )
        for of in values
    ]
    return table_of(("value", "rows", *FIGURES_BY_VALUE), rows)


def words_of(value: ValueFigures) -> str:
    """Which rows the figures are of."""
    return "all others" if value.value is None else value.value or "(empty)"


def _weak_points(report: Report) -> Markup:
    return joined(fill("note", text=sentence) for sentence in report.weak_points or ())


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
        table_row(
            head,
            [
                f"{of_head.slope:.5g}",
                f"{of_head.intercept:.5g}",
                *(changed(of_head, name, "→") for name in names),
            ],
        )
        for head, of_head in heads.items()
    ]
    table = table_of(("head", "slope", "intercept", *names), rows)
    return joined([table, fill("note", text=NOTE)]) if rows else Markup()


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
        return Markup()
    rows = [table_row(name, cells) for name, *cells in side_by_side(report, baseline)]
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
    table = table_of((heading, "recipe", baseline.library), rows)
    return joined([table, fill("note", text=" ".join(notes))])
