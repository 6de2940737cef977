"""report.html: what a run did, on one page that opens without a network."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tnctl.progress import clock, size
from tnctl.training.charts import Series, diagonal, lines, number
from tnctl.training.report import LogLine, Report, number_of

# What is shown of an input that the conf does not have, or that nobody measured.
NONE = "–"
DAYS_SHOWN = 400


@dataclass(frozen=True)
class InputRow:
    """What the page says of one input; None is what does not exist or was not measured."""

    name: str
    kind: str
    coverage: float | None = None
    """share of examples that have an id (numbers: that are not 0)"""
    ids: float | None = None
    """ids per example"""
    group: str | None = None
    rows: int | None = None
    bytes: int | None = None
    norm: float | None = None
    """mean norm of the group's embeddings"""
    importance: float | None = None
    """what the metric loses without the input"""


def render(
    title: str,
    conf: dict[str, Any],
    report: Report,
    lines_logged: Sequence[LogLine],
    inputs: Sequence[InputRow],
) -> str:
    """The page as a whole, HTML that is well-formed XML too.

    `conf` as plain values; `lines_logged` are those of log.jsonl.
    """
    sections = [
        _header(title, conf, report),
        _tiles(report),
        _section("Training", _curves(lines_logged), "curves"),
        _section(f"Calibration on data.{report.split}", _calibration(report), "curves"),
        _section("Inputs", _inputs(inputs, report)),
        _section("Metrics", _metrics(report)),
        _section("Evaluations", _evaluations(report)),
        _section("Days", _days(report)),
        _section("Where the time went", _time(report)),
        _section("Tables", _tables(report)),
        _section("Conf", _conf(conf)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)} · tnctl</title><style>{STYLE}</style></head>\n<body><main>"
        + "\n".join(part for part in sections if part)
        + f"</main>\n<script>{SCRIPT}</script></body></html>\n"
    )


def _section(name: str, body: str, kind: str = "") -> str:
    if not body:
        return ""
    return f"<section><h2>{escape(name)}</h2><div class='{kind or 'block'}'>{body}</div></section>"


def _header(title: str, conf: dict[str, Any], report: Report) -> str:
    facts = [
        f"recipe {conf['recipe'].get('name', '')}",
        f"{len(conf['slots'])} slots",
        f"{len(conf['numeric'])} numbers",
        f"{report.steps:,} steps of {conf['train']['batch_size']:,}",
        f"seed {conf['seed']}",
    ]
    shown = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return f"<header><h1>{escape(title)}</h1><ul>{shown}</ul></header>"


def _tiles(report: Report) -> str:
    tiles = []
    where = f"on data.{report.split}" if report.split else ""
    for key, name in (("auc", "AUC"), ("gauc", "GAUC"), ("logloss", "logloss"), ("mse", "MSE")):
        value = report.figure(key)
        if value is None or (key == "mse" and "logloss" in report.metrics):
            continue
        note = where
        if key == "auc" and (reference := report.figure("reference_auc")) is not None:
            note += f", the reference {reference:.4f}"
        tiles.append((name, f"{value:.5f}", note))
    if (copc := report.figure("copc")) is not None:
        clicked, predicted = (report.figure(key) or 0.0 for key in ("ctr", "pctr"))
        note = f"{clicked:.4f} clicked, {predicted:.4f} predicted"
        tiles.append(("COPC", f"{copc:.4f}", note))
    rows = sum(table.rows for table in report.tables.values())
    held = sum(table.bytes for table in report.tables.values())
    note = f"{size(held)} and {report.dense_weights:,} dense weights"
    tiles.append(("rows", number(rows), note))
    speed = report.timing.examples_per_second
    if speed:
        whole = clock(report.timing.seconds)
        tiles.append(("examples per second", f"{speed:,.0f}", f"the run took {whole}"))
    return (
        "<div class='tiles'>"
        + "".join(
            f"<div class='tile'><span>{escape(name)}</span><strong>{escape(value)}</strong>"
            f"<small>{escape(note)}</small></div>"
            for name, value, note in tiles
        )
        + "</div>"
    )


def _curves(lines_logged: Sequence[LogLine]) -> str:
    steps = [line for line in lines_logged if line.event == "step"]
    evaluations = [line for line in lines_logged if line.event == "evaluation"]

    def trained(key: str) -> list[tuple[float, float]]:
        points = [(line.step, getattr(line, key)) for line in steps]
        return [(step, value) for step, value in points if value is not None]

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
        lines("rows of all tables", "step", [Series("rows", trained("rows"), 1)]),
    ]  # fmt: skip
    factors = trained("rate_factor")
    if len({factor for _, factor in factors}) > 1:
        charts.append(lines("factor of all learning rates", "step", [Series("factor", factors, 3)]))
    return "".join(charts)


def _calibration(report: Report) -> str:
    bins = report.calibration
    if not bins:
        return ""
    points = [(one["prediction"], one["label"]) for one in bins]
    chart = diagonal(
        "mean label of tenths of the examples",
        "mean prediction",
        [Series("tenths, by prediction", points, 1, dots=True)],
    )
    body = "".join(
        f"<tr><th>{place}</th><td>{one['prediction']:.5f}</td><td>{one['label']:.5f}</td>"
        f"<td>{_ratio(one['label'], one['prediction'])}</td><td>{one['count']:,.0f}</td></tr>"
        for place, one in enumerate(bins, 1)
    )
    return chart + _table(
        ("tenth", "prediction", "label", "label / prediction", "examples"), body, ""
    )


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.3f}" if other else NONE


def _inputs(inputs: Sequence[InputRow], report: Report) -> str:
    if not inputs:
        return ""
    highest = max((row.importance or 0.0 for row in inputs), default=0.0)
    measured = any(row.importance is not None for row in inputs)
    sharing = [row.group for row in inputs if row.group is not None]
    names = ["input", "kind", "coverage", "ids per example", "rows", "bytes", "mean norm"]
    names += ["importance"] if measured else []
    body = ""
    for row in inputs:
        shared = "" if row.group is None or sharing.count(row.group) == 1 else f" ({row.group})"
        cells = [
            (row.kind, row.kind, None),
            (row.coverage, _percent(row.coverage), row.coverage),
            (row.ids, NONE if row.ids is None else f"{row.ids:.2f}", None),
            (row.rows, NONE if row.rows is None else f"{row.rows:,}{shared}", None),
            (row.bytes, NONE if row.bytes is None else size(row.bytes), None),
            (row.norm, NONE if row.norm is None else f"{row.norm:.4f}", None),
        ]
        if measured:
            lost = row.importance
            share = None if lost is None or highest <= 0 else max(lost / highest, 0.0)
            cells.append((lost, NONE if lost is None else f"{lost:+.5f}", share))
        body += f"<tr><th>{escape(row.name)}</th>{''.join(_cell(*cell) for cell in cells)}</tr>"
    where = f"data.{report.split}" if report.split else "no data"
    notes = [f"Coverage and ids per example are of {where}: of a number, how often it is not 0."]
    if any(sharing.count(group) > 1 for group in sharing):
        notes.append("Slots of one share group (its name in brackets) have the same rows.")
    if measured:
        notes.append(f"Importance is the {report.importance_of} lost when the input is zeroed.")
    return _table(names, body, "sortable") + f"<p class='note'>{escape(' '.join(notes))}</p>"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"


def _cell(value: Any, shown: str, share: float | None) -> str:
    bar = "" if share is None else f" class='bar' style='--share:{min(share, 1.0):.4f}'"
    order = "" if value is None else escape(str(value))
    return f"<td data-value='{order}'{bar}>{escape(shown)}</td>"


def _metrics(report: Report) -> str:
    keys = [
        key
        for key in ("auc", "gauc", "logloss", "ctr", "pctr", "copc", "accuracy", "mse", "mae",
                    "mape", "reference_auc")
        if key in report.metrics
    ]  # fmt: skip
    if not keys:
        return ""
    heads = report.heads
    body = ""
    for key in keys:
        values = [report.figure(key), *(number_of(of, key) for of in heads.values())]
        cells = "".join(f"<td>{NONE if v is None else f'{v:.6f}'}</td>" for v in values)
        body += f"<tr><th>{escape(key)}</th>{cells}</tr>"
    main = str(report.metrics.get("head", "main head"))
    names = ["", main if heads else f"data.{report.split}", *heads]
    return _table(names, body, "")


def _evaluations(report: Report) -> str:
    evaluations = report.evaluations
    if not evaluations:
        return ""
    keys = [key for key in ("auc", "gauc", "logloss", "mse", "accuracy", "copc")
            if key in evaluations[0].validation]  # fmt: skip
    best = None if report.best is None else report.best.step
    body = ""
    for one in evaluations:
        mark = " class='best'" if one.step == best else ""
        figures = [one.figure(key) for key in keys]
        values = "".join(f"<td>{NONE if v is None else f'{v:.5f}'}</td>" for v in figures)
        body += f"<tr{mark}><th>{one.step:,}</th><td>{one.epoch}</td>{values}</tr>"
    note = f"<p class='note'>The best, at step {best:,}, is marked.</p>" if best else ""
    return _table(("step", "epoch", *keys), body, "") + note


def _days(report: Report) -> str:
    """Each day with the metrics of the model before it was trained on the day."""
    days = report.days or ()
    if not days:
        return ""
    shown = days[-DAYS_SHOWN:]
    known = next((one.before for one in reversed(shown) if one.before), {})
    keys = [key for key in ("auc", "gauc", "logloss", "mse") if key in known]
    body = ""
    for one in reversed(shown):
        values = [number_of(one.before or {}, key) for key in keys]
        figures = "".join(f"<td>{NONE if v is None else f'{v:.5f}'}</td>" for v in values)
        new = max(one.new_ids.items(), key=lambda two: two[1], default=None)
        most = NONE if new is None else f"{escape(new[0])} {new[1]:.1%}"
        accepted = escape("; ".join(one.accepted))
        body += (
            f"<tr><th>{escape(one.day)}</th><td>{one.rows:,}</td>{figures}<td>{most}</td>"
            f"<td>{sum((one.evicted or {}).values()):,}</td><td>{accepted}</td></tr>"
        )
    names = ("day", "examples", *keys, "most new ids", "rows evicted", "accepted")
    note = f" These are the last {len(shown):,} of {len(days):,}." if len(days) > len(shown) else ""
    return (
        "<p class='note'>Metrics are of the model before it was trained on the day; new ids are "
        f"the share of occurrences of ids without a row.{note}</p>" + _table(names, body, "")
    )


def _time(report: Report) -> str:
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
        return ""
    bars = "".join(
        f"<span class='c{colour}' style='flex-grow:{max(seconds, 0) / total:.4f}'></span>"
        for _, seconds, colour in parts
    )
    keys = "".join(
        f"<span class='key'><i class='c{colour}'></i>{escape(name)} "
        f"{clock(seconds)} ({seconds / total:.0%})</span>"
        for name, seconds, colour in parts
    )
    return f"<div class='stack'>{bars}</div><p class='legend'>{keys}</p>"


def _tables(report: Report) -> str:
    body = "".join(
        f"<tr><th>{escape(name)}</th><td>{table.rows:,}</td><td>{size(table.bytes)}</td></tr>"
        for name, table in report.tables.items()
    )
    return _table(("table", "rows", "memory"), body, "") if body else ""


def _conf(conf: dict[str, Any]) -> str:
    text = escape(json.dumps(conf, indent=2, ensure_ascii=False, default=str))
    return f"<details><summary>every key of this run</summary><pre>{text}</pre></details>"


def _table(names: Iterable[str], body: str, kind: str) -> str:
    heads = "".join(f"<th scope='col'>{escape(name)}</th>" for name in names)
    return (
        f"<div class='scroll'><table class='{kind}'><thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


STYLE = """
:root{color-scheme:light dark;--paper:#fbfbfa;--card:#fff;--ink:#1d2126;--soft:#667079;
--line:#e3e5e8;--c1:#2465d1;--c2:#d2620a;--c3:#12875b;--c4:#8b46c8;--c5:#9aa3ab;--best:#eaf3ff}
@media (prefers-color-scheme:dark){:root{
--paper:#14171a;--card:#1c2024;--ink:#e7eaed;--soft:#98a2ab;
--line:#2e3439;--c1:#6ea4ff;--c2:#ff9e57;--c3:#4fd0a0;--c4:#c79bf2;--c5:#79838b;--best:#1d2c42}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%}
main{max-width:1080px;margin:0 auto;padding:28px 20px 64px}
header{margin-bottom:20px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 6px;overflow-wrap:anywhere}
header ul{list-style:none;margin:0;padding:0;display:flex;flex-wrap:wrap;
gap:4px 18px;color:var(--soft)}
h2{font-size:1.05rem;margin:36px 0 10px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tile span{display:block;color:var(--soft);font-size:.85rem}
.tile strong{display:block;font-size:1.5rem;line-height:1.3;font-weight:650}
.tile small{color:var(--soft);font-size:.8rem;display:block;line-height:1.35}
.curves{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:14px}
.chart,.block,.curves>.scroll{background:var(--card);
border:1px solid var(--line);border-radius:10px;
padding:12px 14px;margin:0;min-width:0}
.chart{position:relative}
figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:2px 14px;font-size:.88rem}
figcaption b{font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;color:var(--soft);font-size:.85rem;margin:0}
.key{white-space:nowrap}
.key i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:5px;
background:var(--c)}
.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}
svg{display:block;width:100%;height:auto;margin-top:6px;touch-action:pan-y}
svg text{fill:var(--soft);font-size:12px}
svg .y{text-anchor:end}svg .x{text-anchor:middle}
.grid{stroke:var(--line);fill:none}
.line{stroke:var(--c);fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.dot{fill:var(--c);stroke:var(--card);stroke-width:1}
.equal{stroke:var(--soft);stroke-dasharray:4 4;fill:none}
.cursor{stroke:var(--soft);visibility:hidden}
.tip{position:absolute;pointer-events:none;background:var(--ink);color:var(--paper);font-size:.8rem;
line-height:1.35;padding:4px 8px;border-radius:6px;white-space:pre;z-index:1}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{padding:5px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th:first-child{text-align:left;position:sticky;left:0;background:var(--card)}
tbody th{font-weight:550}
thead th{color:var(--soft);font-weight:500}
tbody tr:last-child>*{border-bottom:0}
.sortable thead th{cursor:pointer}
.sortable thead th[aria-sort=ascending]::after{content:" ↑"}
.sortable thead th[aria-sort=descending]::after{content:" ↓"}
.bar{background:linear-gradient(90deg,color-mix(in srgb,var(--c1) 22%,transparent)
calc(var(--share)*100%),transparent 0)}
.best>*,.best th:first-child{background:var(--best);font-weight:600}
.note{color:var(--soft);font-size:.85rem;margin:10px 0 0}
.stack{display:flex;height:22px;border-radius:6px;overflow:hidden;margin-bottom:10px}
.stack span{background:var(--c);min-width:1px}
pre{overflow-x:auto;font-size:.82rem;margin:8px 0 0}
summary{cursor:pointer;color:var(--soft)}
@media (max-width:560px){main{padding:18px 12px 48px}svg text{font-size:14px}
.tile strong{font-size:1.25rem}}
@media print{body{background:#fff}.chart,.block,.tile{break-inside:avoid}}
"""

# No character of it means anything to a parser of XML.
SCRIPT = """
for (const svg of document.querySelectorAll('svg[data-series]')) {
  const series = JSON.parse(svg.dataset.series), figure = svg.parentElement;
  const cursor = svg.querySelector('.cursor'), tip = figure.querySelector('.tip');
  const shown = (v) => Number(v.toPrecision(6)).toLocaleString('en', {maximumFractionDigits: 6});
  const hide = () => { tip.hidden = true; cursor.style.visibility = 'hidden'; };
  svg.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect(), frame = figure.getBoundingClientRect();
    const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const near = series.map((one) => [one.name, one.at.reduce(
      (best, at) => Math.abs(best[0] - x) > Math.abs(at[0] - x) ? at : best)]);
    const at = near.reduce((a, b) => Math.abs(a[1][0] - x) > Math.abs(b[1][0] - x) ? b : a)[1];
    cursor.setAttribute('transform', 'translate(' + at[0] + ' 0)');
    cursor.style.visibility = 'visible';
    tip.textContent = [shown(at[2])].concat(
      near.map(([name, one]) => (name ? name + ' ' : '') + shown(one[3]))).join('\\n');
    tip.hidden = false;
    const left = box.left - frame.left + at[0] * box.width / svg.viewBox.baseVal.width;
    tip.style.left = Math.max(4, Math.min(left + 10, frame.width - tip.offsetWidth - 4)) + 'px';
    tip.style.top = box.top - frame.top + 8 + 'px';
  });
  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('pointercancel', hide);
}
for (const table of document.querySelectorAll('table.sortable')) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute('aria-sort') !== 'descending';
      heads.forEach((other) => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const key = (row) => {
        const text = row.cells[column].dataset.value ?? row.cells[column].textContent;
        return text !== '' ? (isNaN(text) ? text : Number(text)) : null;
      };
      const compare = (a, b) => {
        const x = key(a), y = key(b);
        if (x === null || y === null) return (x === null) - (y === null);
        const way = typeof x === 'number' ? x - y : String(x).localeCompare(String(y));
        return down ? -way : way;
      };
      body.append(...[...body.rows].sort(compare));
    };
    head.addEventListener('click', sort);
    head.addEventListener('keydown', (event) => { if (event.key === 'Enter') sort(); });
  });
}
"""
