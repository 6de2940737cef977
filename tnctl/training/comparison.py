"""Runs in a folder, at any depth, compared: their confs, order, and spread over seeds."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import JsonValue

from tnctl import files, limits
from tnctl.checkpoint import listing
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import Checkpoint, newest_first, open_checkpoint
from tnctl.checkpoint.document import Evaluation, number_of
from tnctl.data.day_records import DayRecord
from tnctl.documents import DocumentError, plain
from tnctl.errors import Failure, UserError, did_you_mean, quoted
from tnctl.evaluation.metrics import METRICS
from tnctl.saved_conf import conf_of, conf_to_json
from tnctl.training import run_folder
from tnctl.training.report.report_document import Report, rank
from tnctl.training.run_folder import FOLDERS, LOG, MADE_FROM_A_RUN, NOT_COMPARED, REPORT

State = Literal["finished", "unfinished", "failed", "pruned", "damaged"]
ENDS: dict[str, State] = {run_folder.FAILED: "failed", run_folder.PRUNED: "pruned"}
LOG_BYTES = 16 << 20  # of a log whose end is looked at
SOURCE = "sha256"  # beside recipe.name: two runs of one recipe may have other code
ABSENT = object()  # in the place of a value that a conf does not have
SHOWN_METRICS = ("auc", "logloss")  # beside the one that orders the runs
# Keys that say which data the metrics are of, and of what; with data.split, data.train too.
EVALUATED = (
    "data.root", "data.validation", "data.test", "data.split", "data.prepared", "data.label",
    "data.labels", "data.weight",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run. `validation` and `test` are metrics of the model that is kept, by their names.

    Of daily training `validation` is the mean over its days, each before it was trained. Of a run
    that is not finished, `validation`, `step` and `rows` are of its newest checkpoint; it has
    failed, or a search has pruned it, if its log ends so, and its `problem` is the reason. `conf`
    has plain values, with those of keys that an older tnctl did not have. It is None where no
    checkpoint can be read.
    """

    name: str
    output: str
    state: State
    problem: str | None = None
    conf: dict[str, Any] | None = None
    step: int | None = None
    validation: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None
    rows: int | None = None
    bytes: int | None = None

    @property
    def seed(self) -> int | None:
        return None if self.conf is None else int(self.conf["seed"])


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, and the deviation of a sample (n - 1 below the fraction)."""

    mean: float
    deviation: float


@dataclass(frozen=True, kw_only=True)
class SeedGroup:
    """Finished runs whose confs differ in `seed` only, one for each seed."""

    runs: tuple[RunSummary, ...]
    validation: dict[str, Spread]
    test: dict[str, Spread]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs if run.seed is not None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs from the best to the worst by a metric of data.validation, those without it last.

    Runs that are evaluated on the same data are together, in the order of the best of them.
    `keys` are the keys in which confs differ; `values` has the value of each in each run, by its
    name, but for runs without a conf. `skipped` has sentences about what is not listed.
    """

    folder: str
    metric: str
    runs: tuple[RunSummary, ...]
    keys: tuple[str, ...]
    values: dict[str, dict[str, Any]]
    seeds: tuple[SeedGroup, ...]
    skipped: tuple[str, ...]

    @property
    def metrics(self) -> dict[str, list[str]]:
        """The metrics to show of `validation` and `test`, as far as any run has them."""
        names = dict.fromkeys((self.metric, *SHOWN_METRICS))
        return {
            split: [name for name in names if any(name in getattr(run, split) for run in self.runs)]
            for split in ("validation", "test")
        }

    def notes(self) -> list[str]:
        """What a reader should know of the order."""
        if not any(self.metric in run.validation for run in self.runs):
            return [
                f"no run has {self.metric} on data.validation, so they are in the order of their "
                "names; tests are not for choosing"
            ]
        confs = [run.conf for run in self.runs if run.conf is not None]
        if len({_data_of(conf) for conf in confs}) > 1:
            data = [key for key in self.keys if key.startswith(_keys_of_data(confs))]
            return [
                f"runs differ in {', '.join(data)}: those with the same data are together, and "
                "only they can be compared"
            ]
        return []


def compare(folder: str, metric: str | None = None) -> Comparison:
    """The runs under a folder or URL. Raises Failure when there is none, and when it is no folder.

    `metric` orders them, by default the one that most of them monitor. Raises UserError for one
    that has no better and worse.
    """
    ordering = [name for name, of in METRICS.items() if of.greater_is_better is not None]
    if metric is not None and metric not in ordering:
        raise UserError(f"no metric {quoted(metric)}. {did_you_mean(metric, ordering)}")
    top = folder.rstrip("/") or "/"
    runs, skipped = runs_under(top)
    if not runs:
        why = f"{files.in_folder(folder)}{f': {skipped[0]}' if skipped else ''}"
        raise Failure(f"{folder} has no run{why}. Give the folder or URL that runs were written to")
    if metric is None:
        monitors = [str(run.conf["evaluation"]["monitor"]) for run in runs if run.conf is not None]
        metric = next((name for name, _ in Counter(monitors).most_common(1)), "auc")
    by_data: dict[str, list[RunSummary]] = {}
    for run in sorted(runs, key=lambda run: rank(run.validation.get(metric), metric)):
        by_data.setdefault(_data_of(run.conf), []).append(run)
    ordered = [run for group in by_data.values() for run in group]
    confs = [run.conf for run in ordered if run.conf is not None]
    keys = [key for key in differing(confs) if not _is_of_a_recipe(key, confs)]
    return Comparison(
        folder=top,
        metric=metric,
        runs=tuple(ordered),
        keys=tuple(keys),
        values={run.name: {key: value_at(run.conf, key) for key in keys} for run in ordered
                if run.conf is not None},
        seeds=tuple(over_seeds(ordered, metric)),
        skipped=tuple(skipped),
    )  # fmt: skip


# ---- Confs -------------------------------------------------------------------------------


def _data_of(conf: Mapping[str, Any] | None) -> str:
    """What tells the data that a run with a conf is evaluated on from others."""
    if conf is None:
        return ""
    values = [value_at(conf, key) for key in _keys_of_data([conf])]
    return json.dumps(values, sort_keys=True, default=str)


def _keys_of_data(confs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The keys that say which data confs are evaluated on."""
    is_kept_back = any(conf["data"].get("validation") is None for conf in confs)
    return (*EVALUATED, "data.train") if is_kept_back else EVALUATED


def differing(confs: Sequence[Mapping[str, Any]], path: str = "") -> list[str]:
    """The dotted keys in which confs differ, as plain values, but for those that do not matter.

    A section that a conf does not have, such as a slot, is a key of its own.
    """
    keys: list[str] = []
    for name in dict.fromkeys(name for conf in confs for name in conf):
        key = f"{path}.{name}".lstrip(".")
        values = [conf.get(name, ABSENT) for conf in confs]
        if key in NOT_COMPARED:
            continue
        if all(isinstance(value, Mapping) for value in values):
            keys += differing(values, key)
        elif any(value != values[0] for value in values[1:]):
            keys.append(key)
    return keys


def _is_of_a_recipe(key: str, confs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a key differs only because recipes do: one has the setting, or other source."""
    if not key.startswith("recipe.") or key == "recipe.name":
        return False
    values: dict[str, Any] = {}
    for conf in confs:
        name, value = str(conf["recipe"].get("name")), value_at(conf, key)
        if value is not ABSENT and values.setdefault(name, value) != value:
            return False
    first, *others = values.values()
    return key == f"recipe.{SOURCE}" or all(value == first for value in others)


def value_at(conf: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, ABSENT without one. Names have no dots."""
    value: Any = conf
    for name in key.split("."):
        value = value.get(name, ABSENT) if isinstance(value, Mapping) else ABSENT
    return value


def without(conf: Mapping[str, Any], keys: set[str], path: str = "") -> dict[str, Any]:
    """A copy of a conf without dotted keys."""
    return {
        name: without(value, keys, key) if isinstance(value, Mapping) else value
        for name, value in conf.items()
        if (key := f"{path}.{name}".lstrip(".")) not in keys
    }


def value_text(value: Any) -> str:
    """A value of a conf as one would write it, in one line."""
    if value is ABSENT:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def short_names(keys: Sequence[str]) -> list[str]:
    """Each key by its last two parts, or as many as tell it from the others."""

    def ends(key: str, count: int) -> str:
        return ".".join(key.split(".")[-count:])

    names = []
    for key in keys:
        counts = range(2, key.count(".") + 2)
        unique = (n for n in counts if sum(ends(other, n) == ends(key, n) for other in keys) == 1)
        names.append(ends(key, next(unique, key.count(".") + 1)))
    return names


# ---- Seeds -------------------------------------------------------------------------------


def over_seeds(runs: Sequence[RunSummary], metric: str) -> list[SeedGroup]:
    """Finished runs whose confs differ in `seed` only, at least two seeds; the best mean first.

    Of several runs with one seed, which have the same results, the first by name counts.
    """
    groups: dict[str, dict[int, RunSummary]] = {}
    for run in sorted(runs, key=lambda run: run.name):
        if run.state == "finished" and run.conf is not None and run.seed is not None:
            same = json.dumps(without(run.conf, {*NOT_COMPARED, "seed"}), sort_keys=True)
            groups.setdefault(same, {}).setdefault(run.seed, run)
    spreads = [
        SeedGroup(
            runs=tuple(by_seed[seed] for seed in sorted(by_seed)),
            validation=_spreads([run.validation for run in by_seed.values()]),
            test=_spreads([run.test for run in by_seed.values()]),
        )
        for by_seed in groups.values()
        if len(by_seed) > 1
    ]

    def key(group: SeedGroup) -> tuple[bool, float, str]:
        spread = group.validation.get(metric)
        return *rank(None if spread is None else spread.mean, metric), group.runs[0].name

    return sorted(spreads, key=key)


def _spreads(results: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """The mean and deviation of each metric that all runs have."""
    return {
        name: Spread(statistics.fmean(values), statistics.stdev(values))
        for name, values in _of_all(results).items()
    }


def _of_all(results: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """The values of each metric that all results have; none without results."""
    names = [name for name in METRICS if results and all(name in result for result in results)]
    return {name: [result[name] for result in results] for name in names}


def to_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as plain values: docs/train.md has the keys."""

    def differences(name: str, skipped: str = "") -> dict[str, Any]:
        values = comparison.values.get(name, {})
        return {
            key: value for key, value in values.items() if value is not ABSENT and key != skipped
        }

    return {
        "folder": comparison.folder,
        "metric": comparison.metric,
        "runs": [
            {
                **{key: value for key, value in plain(run).items() if key != "conf"},
                "seed": run.seed,
                "differences": differences(run.name),
            }
            for run in comparison.runs
        ],
        "seeds": [
            {
                "runs": [run.name for run in group.runs], "seeds": group.seeds,
                "differences": differences(group.runs[0].name, "seed"),
                "validation": plain(group.validation), "test": plain(group.test),
            }
            for group in comparison.seeds
        ],
        "skipped": list(comparison.skipped),
    }  # fmt: skip


# ---- Folders -----------------------------------------------------------------------------


def runs_under(folder: str) -> tuple[list[RunSummary], list[str]]:
    """All runs under a folder, sorted by their names there.

    A folder that is a run itself has the name `.`. Symbolic links and hidden folders are not
    followed. The second list has a sentence for each folder that cannot be looked into, or has a
    file of a run's name that tnctl did not write. Raises Failure when `folder` itself cannot be
    listed.
    """
    runs: list[RunSummary] = []
    skipped: list[str] = []
    remaining = [("", folder)]
    names_of_runs: dict[str, set[str]] = {}
    while remaining:
        name, url = remaining.pop()
        try:
            entries = files.listed(url)
        except Failure as error:
            if not name:
                raise
            skipped.append(f"skipped {name}: {error}")
            continue
        if _is_run(url, entries):
            names_of_runs[name or "."] = {entry.name for entry in entries}
        remaining += [
            (f"{name}/{entry.name}".lstrip("/"), files.join(url, entry.name))
            for entry in entries
            if entry.kind == "folder"
            and entry.name not in (*FOLDERS, *MADE_FROM_A_RUN)
            and entry.name[0] != "."
        ]
    for name, names in sorted(names_of_runs.items()):
        run = summary_of(name, folder if name == "." else files.join(folder, name), names)
        if isinstance(run, RunSummary):
            runs.append(run)
        else:
            skipped.append(f"skipped {name}: {run}")
    return runs, skipped


def _is_run(url: str, entries: list[files.Listed]) -> bool:
    """Whether a folder has what a run begins or ends with: a log, a report or checkpoints."""
    kinds = {entry.name: entry.kind for entry in entries}
    if "file" in (kinds.get(REPORT), kinds.get(LOG)):
        return True
    return kinds.get(CHECKPOINTS) == "folder" and any(
        listing.NAME.fullmatch(name) for name in files.list_folder(files.join(url, CHECKPOINTS))
    )


def summary_of(name: str, output: str, names: set[str]) -> RunSummary | str:
    """What is known of the run at `output`, whose files have `names`; or why it is no run.

    Damage is told in `problem`.
    """
    report, problem = _report(output) if REPORT in names else (None, None)
    checkpoint, conf, damage = _checkpoint(output) if CHECKPOINTS in names else (None, None, None)
    if report is not None:
        # Damage of a newer checkpoint concerns who resumes the run, and not its results.
        damage = damage if conf is None else None
        run = RunSummary(name=name, output=output, state="finished", problem=damage, conf=conf)
        return _with_results(run, report)
    log = _log(output) if LOG in names else None
    if checkpoint is None and damage is None and log is None:
        return problem or f"{files.join(output, LOG)} is no log of tnctl"
    state: State = "damaged"
    if (problem := problem or damage) is None:
        state, problem = log or ("unfinished", None)
    if checkpoint is None:
        problem = problem or "no checkpoint yet"
        return RunSummary(name=name, output=output, state=state, problem=problem)
    content = checkpoint.manifest
    validation = content.validation
    if validation is None and content.recalibration is None:
        validation = _kept(content.metrics.evaluations, None)
    return RunSummary(
        name=name,
        output=output,
        state=state,
        problem=problem,
        conf=conf,
        step=content.steps_trained,
        validation=_figures(validation or {}) or _of_days(content.days),
        rows=content.rows,
    )


def _with_results(run: RunSummary, report: Report) -> RunSummary:
    best = report.best.step if report.best is not None and report.best.kept else None
    validation = report.of_split("validation") or _kept(report.evaluations, best)
    tables = report.tables.values()
    return replace(
        run,
        step=report.steps,
        validation=_figures(validation) or _of_days(report.days or ()),
        test=_figures(report.of_split("test")),
        seconds=report.timing.seconds if math.isfinite(report.timing.seconds) else None,
        rows=sum(table.rows for table in tables),
        bytes=sum(table.bytes for table in tables),
    )


def _figures(metrics: dict[str, JsonValue]) -> dict[str, float]:
    """The metrics that are known by name and are finite numbers."""
    values = ((name, number_of(metrics, name)) for name in METRICS)
    return {name: value for name, value in values if value is not None and math.isfinite(value)}


def _of_days(days: Sequence[DayRecord]) -> dict[str, float]:
    """The means of the metrics that all days have which were evaluated before they were trained."""
    evaluated = [_figures(day.before) for day in days if day.before is not None]
    return {name: statistics.fmean(values) for name, values in _of_all(evaluated).items()}


def _report(output: str) -> tuple[Report | None, str | None]:
    """The report of a run, or why there is none."""
    url = files.join(output, REPORT)
    try:
        return Report.parse(files.read_bytes(url, most=limits.MANIFEST_BYTES)), None
    except DocumentError as error:
        return None, f"{url} is damaged or no report of this tnctl: {error}"
    except Failure as error:
        return None, str(error)


def _checkpoint(output: str) -> tuple[Checkpoint | None, dict[str, Any] | None, str | None]:
    """The newest checkpoint with a conf that can be used, the conf, and what is damaged."""
    damage: str | None = None
    try:
        for folder in newest_first(files.join(output, CHECKPOINTS)):
            try:
                checkpoint = open_checkpoint(folder)
                conf = conf_to_json(conf_of(checkpoint.conf(), folder))
            except Failure as error:
                damage = damage or str(error)
                continue
            conf["recipe"][SOURCE] = checkpoint.manifest.recipe.sha256[:8]
            return checkpoint, conf, damage
    except Failure as error:
        damage = damage or str(error)
    return None, None, damage


def _log(output: str) -> tuple[State, str | None] | None:
    """How the log of a run without a report ends, and why; None where no run can have written it.

    A run's log is empty, or has a line of a run.
    """
    try:
        if not run_folder.is_of_a_run(output, LOG_BYTES):
            return None
        last = run_folder.lines_of(output, LOG_BYTES)[-1:]
    except Failure:
        return None
    if last and last[0].event in ENDS and last[0].reason:
        return ENDS[last[0].event], last[0].reason
    return "unfinished", None


def _kept(evaluations: Sequence[Evaluation], best: int | None) -> dict[str, JsonValue]:
    """The metrics of the model that is kept: of the best step, else of the last evaluation."""
    chosen = [entry for entry in evaluations if best is None or entry.step == best]
    return dict(chosen[-1].validation) if chosen else {}
