"""Runs in a folder, at any depth, compared: their confs, order, and spread over seeds."""

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tnctl import files
from tnctl.checkpoint import listing
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.documents import plain
from tnctl.errors import Failure, UserError, did_you_mean, quoted
from tnctl.evaluation.metrics import METRICS
from tnctl.training.comparison.run_summary import SOURCE, ForeignError, RunSummary, summary_of
from tnctl.training.run_folder import FOLDERS, LOG, MADE_FROM_A_RUN, NOT_COMPARED, REPORT

ABSENT = object()  # in the place of a value that a conf does not have
# Folders of a run in which no other run is.
INNER = {*FOLDERS, *MADE_FROM_A_RUN}
SHOWN_METRICS = ("auc", "logloss")  # beside the one that orders the runs
# Keys that say which data the metrics are of, and of what; with data.split, data.train too.
EVALUATED = (
    "data.root", "data.validation", "data.test", "data.split", "data.prepared", "data.label",
    "data.labels", "data.weight",
)  # fmt: skip


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
    name, None for a run without a conf. `skipped` has sentences about what is not listed.
    """

    folder: str
    metric: str
    runs: tuple[RunSummary, ...]
    keys: tuple[str, ...] = ()
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: tuple[SeedGroup, ...] = ()
    skipped: tuple[str, ...] = ()

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
    if metric is not None and (metric not in METRICS or not _orders(metric)):
        raise UserError(
            f"no metric {quoted(metric)}. {did_you_mean(metric, filter(_orders, METRICS))}"
        )
    top = folder.rstrip("/") or "/"
    names_by_run, skipped = runs_under(top)
    runs = []
    for name, names in names_by_run.items():
        try:
            runs.append(summary_of(name, url_of(top, name), names))
        except ForeignError as error:
            skipped.append(f"skipped {name}: {error}")
    if not runs:
        why = f"{files.in_folder(folder)}{f': {skipped[0]}' if skipped else ''}"
        raise Failure(f"{folder} has no run{why}. Give the folder or URL that runs were written to")
    metric = metric or _monitored(runs)
    ordered = _by_data(sorted(runs, key=lambda run: _rank(run, metric)))
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


def _orders(name: str) -> bool:
    return METRICS[name].greater_is_better is not None


def _monitored(runs: Sequence[RunSummary]) -> str:
    """The metric that most runs monitor, of those that order."""
    counts = Counter(run.monitor for run in runs if run.monitor in METRICS)
    return next((str(name) for name, _ in counts.most_common(1)), "auc")


def _sign(metric: str) -> int:
    return -1 if METRICS[metric].greater_is_better else 1


def _rank(run: RunSummary, metric: str) -> tuple[bool, float, str]:
    value = run.validation.get(metric)
    return value is None, 0.0 if value is None else _sign(metric) * value, run.name


def _by_data(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Runs of the same data together, else in their order."""
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        groups.setdefault(_data_of(run.conf), []).append(run)
    return [run for group in groups.values() for run in group]


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

    def rank(group: SeedGroup) -> tuple[bool, float, str]:
        spread = group.validation.get(metric)
        value = 0.0 if spread is None else _sign(metric) * spread.mean
        return spread is None, value, group.runs[0].name

    return sorted(spreads, key=rank)


def _spreads(results: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """The mean and deviation of each metric that all runs have."""
    names = [name for name in METRICS if all(name in result for result in results)]
    columns = {name: [result[name] for result in results] for name in names}
    return {
        name: Spread(statistics.fmean(values), statistics.stdev(values))
        for name, values in columns.items()
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


def runs_under(folder: str) -> tuple[dict[str, set[str]], list[str]]:
    """All runs under a folder, by their names there, with the names of their files.

    A folder that is a run itself has the name `.`. Symbolic links and hidden folders are not
    followed. The list has a sentence for each folder that cannot be looked into. Raises Failure
    when `folder` itself cannot be listed.
    """
    runs: dict[str, set[str]] = {}
    skipped: list[str] = []
    remaining = ["."]
    while remaining:
        name = remaining.pop()
        url = url_of(folder, name)
        try:
            entries = files.listed(url)
        except Failure as error:
            if name == ".":
                raise
            skipped.append(f"skipped {name}: {error}")
            continue
        if is_run(url, entries):
            runs[name] = {entry.name for entry in entries}
        remaining += [
            entry.name if name == "." else f"{name}/{entry.name}"
            for entry in entries
            if entry.kind == "folder" and entry.name not in INNER and entry.name[0] != "."
        ]
    return dict(sorted(runs.items())), skipped


def url_of(folder: str, name: str) -> str:
    """The output of a run, by its name under a folder."""
    return folder if name == "." else files.join(folder, name)


def is_run(url: str, entries: list[files.Listed]) -> bool:
    """Whether a folder has what a run begins or ends with: a log, a report or checkpoints."""
    kinds = {entry.name: entry.kind for entry in entries}
    if kinds.get(REPORT) == "file" or kinds.get(LOG) == "file":
        return True
    return kinds.get(CHECKPOINTS) == "folder" and any(
        listing.NAME.fullmatch(name) for name in files.list_folder(files.join(url, CHECKPOINTS))
    )
