"""Runs in a folder, at any depth, compared: their confs, order, and spread over seeds."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import getitem
from typing import Any, Literal

from pydantic import JsonValue

from tnctl import files, limits
from tnctl.checkpoint import listing
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import Checkpoint, newest_first, open_checkpoint
from tnctl.checkpoint.document import EvaluationEntry, number_of
from tnctl.data.day_records import DayRecord
from tnctl.documents import DocumentError, plain
from tnctl.errors import Failure, UserError, did_you_mean, quoted
from tnctl.evaluation.metrics import METRICS
from tnctl.ownership import LOG
from tnctl.saved_conf import conf_of, conf_to_json
from tnctl.training import run_folder
from tnctl.training.report.report_document import Report, rank
from tnctl.training.run_folder import FOLDERS, MADE_FROM_A_RUN, NOT_COMPARED, REPORT

State = Literal["finished", "unfinished", "failed", "pruned", "damaged"]
ENDS: dict[str, State] = {run_folder.FAILED: "failed", run_folder.PRUNED: "pruned"}
LOG_BYTES = 16 << 20  # of a log whose end is looked at
SOURCE = "sha256"  # beside recipe.name: two runs of one recipe may have other code
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
    step_milliseconds: float | None = None
    dense_weights: int | None = None
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
class RunComparison:
    """Runs from the best to the worst by a metric of data.validation, those without it last.

    Runs that are evaluated on the same data are together, in the order of the best of them.
    `keys` are the keys in which confs differ; `values` has the value of each in each run that has
    the key, by the run's name, but for runs without a conf. `skipped` has sentences about what is
    not listed.
    """

    folder: str
    metric: str
    runs: tuple[RunSummary, ...]
    keys: tuple[str, ...]
    values: dict[str, dict[str, Any]]
    seeds: tuple[SeedGroup, ...]
    """the groups with the best means first"""
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


def compare(folder: str, metric: str | None = None) -> RunComparison:
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
    confs = {run.name: run.conf for run in ordered if run.conf is not None}
    differ = differing([*confs.values()])
    keys = [key for key in differ if not _is_of_a_recipe(key, [*confs.values()])]
    return RunComparison(
        folder=top,
        metric=metric,
        runs=tuple(ordered),
        keys=tuple(keys),
        values={name: values_at(conf, keys) for name, conf in confs.items()},
        seeds=tuple(over_seeds(ordered, differ, metric)),
        skipped=tuple(skipped),
    )


# ---- Confs -------------------------------------------------------------------------------


def _data_of(conf: Mapping[str, Any] | None) -> str:
    """What tells the data that a run with a conf is evaluated on from others."""
    return (
        "" if conf is None else json.dumps(values_at(conf, _keys_of_data([conf])), sort_keys=True)
    )


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
        values = [conf[name] for conf in confs if name in conf]
        if key in NOT_COMPARED:
            continue
        if len(values) < len(confs) or any(value != values[0] for value in values[1:]):
            are_sections = len(values) == len(confs) and all(
                isinstance(value, Mapping) for value in values
            )
            keys += differing(values, key) if are_sections else [key]
    return keys


def _is_of_a_recipe(key: str, confs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a key differs only because recipes do: one has the setting, or other source."""
    if not key.startswith("recipe.") or key == "recipe.name":
        return False
    values: dict[str, Any] = {}
    for conf in confs:
        name = str(conf["recipe"].get("name"))
        for value in values_at(conf, [key]).values():
            if values.setdefault(name, value) != value:
                return False
    first, *others = values.values()
    return key == f"recipe.{SOURCE}" or all(value == first for value in others)


def values_at(conf: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """The values of dotted keys, but for those that a conf does not have. Names have no dots."""
    values = {}
    for key in keys:
        with suppress(KeyError, TypeError):
            values[key] = reduce(getitem, key.split("."), conf)
    return values


def value_text(value: Any) -> str:
    """A value of a conf as one would write it, in one line."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def short_names(keys: Sequence[str]) -> list[str]:
    """Each key by its last two parts, unless another one ends so too."""
    ends = [".".join(key.split(".")[-2:]) for key in keys]
    return [end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)]


# ---- Seeds -------------------------------------------------------------------------------


def over_seeds(runs: Sequence[RunSummary], keys: Sequence[str], metric: str) -> list[SeedGroup]:
    """Finished runs that differ in `seed` only, of all `keys` that do, at least two seeds.

    Of several runs with one seed, which have the same results, the first by name counts.
    """
    groups: dict[str, dict[int, RunSummary]] = {}
    for run in sorted(runs, key=lambda run: run.name):
        if run.state == "finished" and run.conf is not None and run.seed is not None:
            values = values_at(run.conf, (key for key in keys if key != "seed"))
            groups.setdefault(json.dumps(values, sort_keys=True), {}).setdefault(run.seed, run)
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


def to_json(comparison: RunComparison) -> dict[str, Any]:
    """A comparison as plain values: docs/train.md has the keys."""
    runs, seeds = [], []
    for run in comparison.runs:
        values = plain(replace(run, conf=None))
        del values["conf"]
        differences = comparison.values.get(run.name, {})
        runs.append({**values, "seed": run.seed, "differences": differences})
    for group in comparison.seeds:
        differences = dict(comparison.values[group.runs[0].name])
        differences.pop("seed", None)
        seeds.append({
            "runs": [run.name for run in group.runs], "seeds": group.seeds,
            "differences": differences,
            "validation": plain(group.validation), "test": plain(group.test),
        })  # fmt: skip
    return {
        "folder": comparison.folder, "metric": comparison.metric, "runs": runs, "seeds": seeds,
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
    remaining = ["."]
    names_of_runs: dict[str, set[str]] = {}
    while remaining:
        name = remaining.pop()
        try:
            entries = files.listed(_url(folder, name))
        except Failure as error:
            if name == ".":
                raise
            skipped.append(f"skipped {name}: {error}")
            continue
        kinds = {entry.name: entry.kind for entry in entries}
        if _is_run(_url(folder, name), kinds):
            names_of_runs[name] = set(kinds)
        remaining += [
            f"{name}/{inner}".removeprefix("./")
            for inner, kind in kinds.items()
            if kind == "folder" and inner not in (*FOLDERS, *MADE_FROM_A_RUN) and inner[0] != "."
        ]
    for name, names in sorted(names_of_runs.items()):
        run = summary_of(name, _url(folder, name), names)
        if isinstance(run, RunSummary):
            runs.append(run)
        else:
            skipped.append(f"skipped {name}: {run}")
    return runs, skipped


def _url(folder: str, name: str) -> str:
    return folder if name == "." else files.join(folder, name)


def _is_run(url: str, kinds: Mapping[str, str]) -> bool:
    """Whether a folder has what a run begins or ends with: a log, a report or checkpoints."""
    return "file" in (kinds.get(REPORT), kinds.get(LOG)) or (
        kinds.get(CHECKPOINTS) == "folder"
        and any(map(listing.NAME.fullmatch, files.list_folder(files.join(url, CHECKPOINTS))))
    )


def summary_of(name: str, output: str, names: set[str]) -> RunSummary | str:
    """What is known of the run at `output`, whose files have `names`; or why it is no run.

    Damage is told in `problem`.
    """
    report, problem = _report(output) if REPORT in names else (None, None)
    checkpoint, conf, damage = _checkpoint(output) if CHECKPOINTS in names else (None, None, None)
    run = RunSummary(name=name, output=output, state="damaged", conf=conf)
    if report is not None:
        best = report.best.step if report.best is not None and report.best.kept else None
        validation = report.of_split("validation") or _kept(report.evaluations, best)
        tables, seconds = report.tables.values(), report.timing.seconds
        return replace(
            run,
            state="finished",
            # Damage of a newer checkpoint concerns who resumes the run, and not its results.
            problem=damage if conf is None else None,
            step=report.steps,
            validation=_figures(validation) or _of_days(report.days or ()),
            test=_figures(report.of_split("test")),
            seconds=seconds if math.isfinite(seconds) else None,
            step_milliseconds=report.step_milliseconds,
            dense_weights=report.dense_weights,
            rows=sum(table.rows for table in tables),
            bytes=sum(table.bytes for table in tables),
        )
    log = _log(output) if LOG in names else None
    if checkpoint is None and damage is None and log is None:
        return problem or f"{files.join(output, LOG)} is no log of tnctl"
    if (problem := problem or damage) is None:
        state, problem = log or ("unfinished", None)
        run = replace(run, state=state)
    if checkpoint is None:
        return replace(run, problem=problem or "no checkpoint yet")
    content = checkpoint.manifest
    validation = content.validation or {}
    if content.validation is None and content.recalibration is None:
        validation = _kept(content.metrics.evaluations, None)
    return replace(
        run,
        problem=problem,
        step=content.steps_trained,
        validation=_figures(validation) or _of_days(content.days),
        rows=content.rows,
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


def _kept(evaluations: Sequence[EvaluationEntry], best: int | None) -> dict[str, JsonValue]:
    """The metrics of the model that is kept: of the best step, else of the last evaluation."""
    chosen = [entry for entry in evaluations if best is None or entry.step == best]
    return dict(chosen[-1].validation) if chosen else {}
