"""Runs side by side on one page that opens without a network, in the style of report.html."""

from collections.abc import Callable, Mapping, Sequence

from tnctl.errors import printable
from tnctl.progress import clock, size
from tnctl.training.comparison.run_comparison import (
    ABSENT,
    Comparison,
    SeedGroup,
    Spread,
    value_text,
)
from tnctl.training.comparison.run_summary import RunSummary
from tnctl.training.report import LogLine, number_of
from tnctl.training.report.charts import Series, diagonal, lines
from tnctl.training.report.fragments import Markup, fill, joined, table_of, table_row

COLOURS = 10  # of the page, and so the most runs that charts show
NONE = "–"
LONGEST_NAME = 48  # characters of a run's name in a legend
# The log of each run that charts show, by the run's name.
Logs = Mapping[str, Sequence[LogLine]]


def charted(comparison: Comparison) -> list[RunSummary]:
    """The runs that charts show: the best."""
    return list(comparison.runs[:COLOURS])


def render(
    comparison: Comparison, logs: Logs, links: Mapping[str, str], notes: Sequence[str] = ()
) -> str:
    """The whole page, HTML that is well-formed XML too.

    `links` are the URLs of reports by the names of runs, relative to the page. `notes` are
    sentences about what is not shown.
    """
    title = printable(f"Runs of {comparison.folder}")
    count = len(comparison.runs)
    facts = [
        f"{count:,} run{'s'[: count != 1]}",
        f"ordered by {comparison.metric} on data.validation",
    ]
    remarks = [*comparison.notes(), *comparison.skipped, *notes]
    if count > COLOURS:
        remarks.append(f"Charts show the first {COLOURS} of {count:,} runs.")
    sections = [
        fill("header", title=title, facts=joined(fill("fact", text=fact) for fact in facts)),
        joined(fill("note", text=printable(remark)) for remark in remarks),
        _section("Runs", _runs(comparison, links)),
        _section("Over seeds", _seeds(comparison)),
        _section("Learning curves", _curves(comparison, logs), "curves"),
        _section("Calibration", _calibration(comparison), "curves"),
    ]
    return fill("page", title=title, sections=joined(sections, "\n"))


def _section(name: str, body: Markup, kind: str = "block") -> Markup:
    return fill("section", name=name, kind=kind, body=body) if body else body


def _runs(comparison: Comparison, links: Mapping[str, str]) -> Markup:
    columns = [(split, name) for split, names in comparison.metrics.items() for name in names]
    colours = {run.name: number for number, run in enumerate(charted(comparison), 1)}
    best, rows = comparison.best, []
    for run in comparison.runs:
        text: object = printable(run.name)
        if run.name in links:
            text = fill("link", url=links[run.name], text=text)
        head = text
        if run.name in colours:
            head = fill("chart_key", colour=colours[run.name], name=text)
        values = comparison.values.get(run.name)
        cells = [
            _sorted(None if values is None else values[key], value_text) for key in comparison.keys
        ]
        cells += [_sorted(getattr(run, split).get(name), _metric) for split, name in columns]
        cells += [
            _sorted(run.seconds, clock),
            _sorted(run.rows, "{:,}".format),
            _sorted(run.bytes, size),
            _sorted(run.step, "{:,}".format),
            fill("cell", text=printable(state_of(run))),
        ]
        rows.append(table_row(head, cells, "best_row" if run in best else "row"))
    heads = [f"{split} {name}" for split, name in columns]
    names = ("run", *comparison.keys, *heads, "time", "rows", "memory", "steps", "state")
    return table_of(names, rows, "sortable")


def _sorted(value: object, form: Callable[..., str]) -> Markup:
    """A cell with a value to sort by; empty values come last."""
    if value is None or value is ABSENT:
        return fill("sorted_cell", value="", text=NONE)
    text = printable(form(value))
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else text
    return fill("sorted_cell", value=number, text=text)


def _metric(value: float) -> str:
    return f"{value:.5f}"


def state_of(run: RunSummary) -> str:
    """The state of a run, with the reason where something is wrong."""
    at = "" if run.state == "finished" or run.step is None else f" at step {run.step:,}"
    return f"{run.state}{at}" if run.problem is None else f"{run.state}{at}: {run.problem}"


def _seeds(comparison: Comparison) -> Markup:
    columns = [(split, name) for split, names in comparison.metrics.items() for name in names]
    rows = []
    for group in comparison.seeds:
        cells = [_spread(getattr(group, split).get(name)) for split, name in columns]
        seeds = fill("cell", text=", ".join(map(str, group.seeds)))
        rows.append(table_row(printable(words_of(comparison, group)), [seeds, *cells]))
    names = ("conf", "seeds", *(f"{split} {name}" for split, name in columns))
    table = table_of(names, rows, "sortable")
    note = (
        "Mean and standard deviation (of a sample) of finished runs whose confs differ in the seed "
        "only."
    )
    return joined([table, fill("note", text=note)]) if rows else Markup()


def _spread(spread: Spread | None) -> Markup:
    return _sorted(None if spread is None else spread.mean, lambda _: spread_text(spread))


def spread_text(spread: Spread | None) -> str:
    """A mean with its deviation."""
    return NONE if spread is None else f"{spread.mean:.5f} ± {spread.deviation:.5f}"


def words_of(comparison: Comparison, group: SeedGroup) -> str:
    """What a group's confs have that others do not: `KEY=VALUE …`, else the name of a run."""
    values = comparison.values[group.runs[0].name]
    words = [
        f"{key}={value_text(value)}"
        for key, value in values.items()
        if key != "seed" and value is not ABSENT
    ]
    return " ".join(words) or f"as {group.runs[0].name}"


def _curves(comparison: Comparison, logs: Logs) -> Markup:
    metrics = dict.fromkeys((comparison.metric, "logloss"))
    return joined(
        [
            *(_validation_curve(comparison, logs, metric) for metric in metrics),
            _training_curve(comparison, logs, "loss", "training loss"),
            _training_curve(comparison, logs, "running_auc", "training AUC, of the epoch so far"),
        ]
    )


def _validation_curve(comparison: Comparison, logs: Logs, metric: str) -> Markup:
    series = []
    for colour, run in enumerate(charted(comparison), 1):
        values = [
            (line.step, number_of(line.validation, metric))
            for line in logs.get(run.name, ())
            if line.event == "evaluation"
        ]
        points = [(float(step), value) for step, value in values if value is not None]
        series.append(Series(short(run.name), points, colour, dots=True))
    return lines(f"validation {metric}", "step", series)


def _training_curve(comparison: Comparison, logs: Logs, key: str, label: str) -> Markup:
    series = []
    for colour, run in enumerate(charted(comparison), 1):
        points = [
            (float(line.step), value)
            for line in logs.get(run.name, ())
            if line.event == "step" and (value := getattr(line, key)) is not None
        ]
        series.append(Series(short(run.name), points, colour))
    return lines(label, "step", series)


def _calibration(comparison: Comparison) -> Markup:
    """A chart for each split that reports are of: predictions and labels are of the same rows."""
    charts = []
    for split in ("test", "validation"):
        series = [
            Series(short(run.name), _tenths(run), colour, dots=True)
            for colour, run in enumerate(charted(comparison), 1)
            if run.report is not None and run.report.split == split
        ]
        label = f"mean label on data.{split}, of tenths of the examples"
        charts.append(diagonal(label, "mean prediction", series))
    return joined(charts)


def _tenths(run: RunSummary) -> list[tuple[float, float]]:
    bins = [] if run.report is None else run.report.calibration
    return [(entry["prediction"], entry["label"]) for entry in bins]


def short(name: str) -> str:
    """The end of a name, as much as a legend has room for."""
    text = printable(name)
    return text if len(text) <= LONGEST_NAME else f"…{text[-LONGEST_NAME:]}"
