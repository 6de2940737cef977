"""Makes runs/ and defaults.json: runs that later versions resume, and defaults that they keep.

    python tests/golden/make_runs.py

Run it with the Python of an older checkout, whose tnctl then writes the files. They are committed
as bytes. Runs of a newer version get a folder of their own, and the old ones stay. So do the values
of defaults.json; only new keys are added to it.

    defaults.json       the default of every key of a conf, of the settings of each shipped recipe
                        (recipe.NAME.SETTING) and of each optimizer (rule.NAME.SETTING)
    runs/data.tar.xz    data/: three days of two files of clicks, and rows for validation;
                        prepared/: the same as `tnctl prepare` writes it
    runs/CASE-WORKERS.tar.xz
                        run/: the folder of a run that was stopped in the middle, without its
                        graphs, which nothing reads when a run is resumed
    runs/reports.json   what the report of each of them had in the end
"""

import contextlib
import dataclasses
import json
import math
import os
import random
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

HERE = Path(__file__).resolve().parent
# Files have their names as the conf gives them, and no pattern: a checkpoint has the absolute paths
# of those that are looked up.
CONF: dict[str, Any] = {
    "seed": 7,
    "output": "run",
    "recipe": {"name": "deepfm", "hidden": [4]},
    "slots": {
        "user": {"missing": "value"},
        "item": {},
        "tags": {"separator": "|", "pooling": "mean"},
        "seen": {"separator": "|", "group": "item"},
        "age": {"ids": "quantiles", "buckets": 4},
    },
    "numeric": {"price": {"transform": "standardize"}},
    "embedding": {"width": 3},
    "optimizer": {
        "linear": {"name": "ftrl", "learning_rate": 0.1},
        "embedding": {"name": "adam", "learning_rate": 0.05},
        "dense": {"name": "adam", "learning_rate": 0.02},
    },
    "data": {
        "train": [f"data/2026-01-0{day}-{part}.csv" for day in (1, 2, 3) for part in "ab"],
        "validation": "data/validation.csv",
        "label": {"column": "clicked"}, "window": 32,
    },
    "train": {"batch_size": 16, "threads": 1},
    "evaluation": {"ablate": False, "keep": "last"},
    "save": {"keep": 1},
}  # fmt: skip
LIFE = {
    "sketch": 65_536,
    "admission": {"after": 2},
    "shows": {"keep": True, "decay": 0.5},
    "eviction": {"unseen_steps": 4, "every_steps": 3},
}
# What each case changes of CONF, and the step at which it is stopped with one worker and with two:
# in a pass of 18 steps, or 9; for days in the second, of 6 steps, or 3.
CASES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "plain": ({"train": {"epochs": 2}}, (25, 13)),
    "days": (
        {"data": {"train": ["data/{day}-a.csv", "data/{day}-b.csv"], "validation": None}},
        (9, 5),
    ),
    "deltas": (
        {"save": {"every_steps": 2, "full_every": 4, "compression": "zstd"}},
        (5, 5),
    ),
    "life": ({"life": LIFE}, (11, 5)),
    "warm": ({"warm": {"start": "parent"}}, (9, 5)),
    "prepared": ({"data": {"prepared": "prepared"}}, (9, 5)),
}
PARENT = {"output": "parent", "embedding": {"width": 2}}
REPORTED = ("steps", "auc", "logloss", "epochs", "days", "warm", "tables", "life")
MODIFIED = 1_767_225_600  # of all data, in seconds: runs are resumed from files of this time only


def values_of(changes: dict[str, Any]) -> dict[str, Any]:
    """CONF with changes: sections have those of the keys that are given."""
    values = dict(CONF)
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return values


def train(values: dict[str, Any], workers: int, stop: int | None = None) -> dict[str, Any] | None:
    """What the report of a run has of REPORTED; None for one that is stopped after a step."""
    import cluster_in_one_process

    from tnctl import schema
    from tnctl.cluster.rank_0.cluster_workers import ClusterWorkers
    from tnctl.errors import Stopped
    from tnctl.training import run
    from tnctl.training.workers import Batches

    conf = schema.from_values(values)
    with pytest.MonkeyPatch.context() as patch:
        if stop is not None:
            kind = Batches if workers == 1 else ClusterWorkers
            cluster_in_one_process.stop_at(patch, kind, stop + 1)
        try:
            if workers == 1:
                report = run.train(conf, golden=1)
            else:
                report, errors = cluster_in_one_process.train_together(conf, workers, golden=1)
                assert not errors, errors
        except Stopped:
            return None
    values = json.loads(report.to_bytes())
    return {key: values[key] for key in REPORTED if key in values}


def write_data() -> None:
    """The files of data/."""
    header = "user,item,tags,seen,age,price,clicked"
    for day in (1, 2, 3, 4):
        for part in "ab" if day < 4 else "v":
            chance = random.Random(f"{day} {part}")
            lines = [header]
            for _ in range(48):
                number, price = day * 10 + chance.randrange(30), round(chance.gauss(5, 2), 2)
                tags = [chance.randrange(6) for _ in range(chance.randrange(4))]
                user = "" if chance.random() < 0.1 else f"u{day * 20 + chance.randrange(50)}"
                seen = "|".join(f"i{chance.randrange(70)}" for _ in range(chance.randrange(3)))
                odds = (number % 5 - 2) + (2 in tags) - (price - 5) / 2
                clicked = int(chance.random() < 1 / (1 + math.exp(-odds)))
                texts, age = "|".join(f"t{tag}" for tag in tags), chance.randrange(18, 70)
                lines.append(f"{user},i{number},{texts},{seen},{age},{price},{clicked}")
            name = f"2026-01-0{day}-{part}" if day < 4 else "validation"
            path = Path(f"data/{name}.csv")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
    set_times("data")


def set_times(folder: str) -> None:
    """Give the files of a folder a time without a part of a second, which archives keep."""
    for path in Path(folder).rglob("*"):
        os.utime(path, (MODIFIED, MODIFIED))


def write_runs() -> None:
    """Write everything below runs/."""
    from tnctl import schema
    from tnctl.data import preparing

    shutil.rmtree("runs", ignore_errors=True)
    to = Path("runs").resolve()
    to.mkdir()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_data()
        preparing.prepare(schema.from_values(CONF), "prepared")
        set_times("prepared")
        archive(to / "data", "data", "prepared")
        reports = {}
        train(values_of(PARENT), 1)
        for name, (changes, stops) in CASES.items():
            for workers, stop in enumerate(stops, 1):
                case, values = f"{name}-{workers}", values_of(changes)
                assert train(values, workers, stop) is None
                archive(to / case, "run")
                reports[case] = train(values, workers)
                shutil.rmtree("run")
    lines = (f"{json.dumps(case)}: {json.dumps(report)}" for case, report in reports.items())
    (to / "reports.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def archive(to: Path, *folders: str) -> None:
    """Write folders of the current one into an archive, without graphs and owners."""

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return None if entry.name.endswith("/graph") else entry

    with tarfile.open(f"{to}.tar.xz", "w:xz") as stream:
        for folder in folders:
            stream.add(folder, filter=kept)


def defaults() -> dict[str, Any]:
    """All defaults by path, as JSON holds them."""
    from tnctl import shipped
    from tnctl.model import recipes
    from tnctl.schema import RULES, Conf

    values = dict(of_section(Conf, ""))
    for name in shipped.recipes():
        for setting in recipes.declared(recipes.load(name)).values():
            if setting.default is not setting.empty:
                values[f"recipe.{name}.{setting.name}"] = setting.default
    for name, settings in RULES.items():
        values |= {f"rule.{name}.{setting}": value for setting, value in settings.items()}
    return json.loads(json.dumps(values))


def of_section(section: Any, path: str, defaults: Any = None) -> Any:
    """The paths and defaults of a section's keys; `defaults` is an object with those there."""
    from tnctl.schema import NAME, dataclass_of
    from tnctl.schema.declarations import default_of
    from tnctl.schema.keys import hints_of

    for declared in dataclasses.fields(section):
        key, hint = path + declared.name, hints_of(section)[declared.name]
        default = default_of(declared) if defaults is None else getattr(defaults, declared.name)
        inner = dataclass_of(hint)
        if inner is None or default is None:
            yield key, default
        if inner is not None:
            yield from of_section(inner, f"{key}.", default)
        elif get_origin(hint) is dict and dataclasses.is_dataclass(get_args(hint)[1]):
            yield from of_section(get_args(hint)[1], f"{key}.{NAME}.")


def main() -> None:
    """Write everything."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    sys.path.insert(0, str(HERE.parent))
    os.chdir(HERE)
    write_runs()
    Path("defaults.json").write_text(json.dumps(defaults(), indent=0) + "\n")


if __name__ == "__main__":
    main()
