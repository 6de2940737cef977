"""What a search by validation data reaches on UCI Adult, beside boosted trees with as many trials.

    python -m benchmarks.adult_search [--trials 30] [--seeds 3]

A tenth of adult.data (in the folder TNCTL_TEST_DATA) is kept aside as validation data, the same
rows for both. Both make the same number of Optuna trials by its AUC. The best of each is trained on
all of adult.data with several seeds, as long as was best on validation data, and only then scored
on adult.test, once.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import optuna
import pyarrow as pa
from numpy.typing import NDArray

import tnctl
from benchmarks import timing
from benchmarks.workload import FOLDER
from tnctl.data.sources import Source
from tnctl.evaluation.metrics import auc
from tnctl.training import run_folder
from tnctl.training.search import search_loop

OUTPUT = FOLDER / "adult-search"
SPLIT = ("data.split.validation=0.1",)
EPOCHS = 12
SPACE = (
    "recipe=wide_deep,deepfm,dcn",
    "recipe.hidden=[32],[64,32],[128,64],[256,128]",
    "recipe.dropout=interval(0,0.6)",
    "embedding.width=choice(4,8,16)",
    "train.batch_size=choice(128,256,512,1024)",
    "optimizer.dense.learning_rate=tag(log,interval(1e-4,3e-2))",
    "optimizer.embedding.learning_rate=tag(log,interval(1e-3,3e-1))",
    "optimizer.linear.learning_rate=tag(log,interval(1e-3,3e-1))",
    "optimizer.embedding.l2=tag(log,interval(1e-7,1e-3))",
)
LABEL = "income"
NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
MOST_TREES = 3000
PATIENCE = 100  # trees without a better AUC

Floats = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    root = os.environ.get("TNCTL_TEST_DATA")
    if not root:
        sys.exit("TNCTL_TEST_DATA is not set to the folder that has adult/")
    shutil.rmtree(OUTPUT, ignore_errors=True)
    data = ["conf=adult", f"data.root={root}/adult"]
    seeds = range(1, given.seeds + 1)
    rows = [["", "validation AUC of the best", "test AUC, mean", "its deviation", "seconds"]]
    for name, measure in (("tnctl", of_tnctl), ("LightGBM", of_trees)):
        started = time.perf_counter()
        best, tests = measure(data, given.trials, seeds)
        rows.append([
            name, f"{best:.5f}", f"{statistics.mean(tests):.5f}",
            f"{statistics.stdev(tests):.5f}" if len(tests) > 1 else "",
            f"{time.perf_counter() - started:.0f}",
        ])  # fmt: skip
    print(f"{given.trials} trials, {given.seeds} seeds\n{timing.table(rows)}")


# ---- tnctl ------------------------------------------------------------------------


def of_tnctl(data: list[str], trials: int, seeds: Sequence[int]) -> tuple[float, list[float]]:
    """The best validation AUC of a search, and the test AUC of each seed."""
    line = train(
        *data, *SPLIT, "-m", f"sweep.trials={trials}", *SPACE, f"train.epochs={EPOCHS}",
        "evaluation.patience=2", "evaluation.every_steps=100", "evaluation.ablate=false",
        f"output={OUTPUT}/search",
    )  # fmt: skip
    print(line)
    command = shlex.split(line)[2:]
    study = optuna.load_study(study_name="sweep", storage=journal(OUTPUT / "search/sweep.journal"))
    report = run_folder.finished(
        f"{OUTPUT}/search/{search_loop.folder_of(study.best_trial.number)}"
    )
    whole = [
        "data.split.validation=0", f"train.epochs={search_loop.passes_of_best(report)}",
        "evaluation.patience=null", "evaluation.every_steps=null", "evaluation.keep=last",
    ]  # fmt: skip
    names = {word.partition("=")[0] for word in (*whole, "output=")}
    best = [word for word in command if word.partition("=")[0] not in names]
    tests = []
    for seed in seeds:
        output = OUTPUT / f"seed-{seed}"
        train(*best, *whole, f"seed={seed}", f"output={output}")
        tests.append(float(json.loads((output / "report.json").read_text())["auc"]))
    return float(study.best_value), tests


def train(*arguments: str) -> str:
    """What `tnctl train` prints on standard output."""
    command = [sys.executable, "-m", "tnctl", "train", *arguments]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def journal(path: Path) -> Any:
    """The record of a search, as Optuna reads it."""
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    return optuna.storages.JournalStorage(backend)


# ---- LightGBM ---------------------------------------------------------------------


def of_trees(data: list[str], trials: int, seeds: Sequence[int]) -> tuple[float, list[float]]:
    """The same of boosted trees, whose categories and numbers are the columns as they are."""
    conf = tnctl.compose(data[0].removeprefix("conf="), [*data[1:], *SPLIT])
    columns = [name for name in conf.data.columns or [] if name != LABEL]
    tables = {
        split: pa.concat_tables(
            piece.table for piece in Source(conf, split).pieces([*columns, LABEL])
        )
        for split in ("train", "validation", "test")
    }
    codes = {
        name: {value: code for code, value in enumerate(sorted(set(texts(tables, name))))}
        for name in columns
        if name not in NUMBERS
    }
    categories = [place for place, name in enumerate(columns) if name in codes]
    examples = {split: matrix(columns, table, codes) for split, table in tables.items()}

    def fit(values: dict[str, Any], train: tuple[Floats, Floats], trees: int, **more: Any) -> Any:
        parameters = {"objective": "binary", "metric": "auc", "verbosity": -1, **values}
        dataset = lightgbm.Dataset(*train, categorical_feature=categories)
        return lightgbm.train(parameters, dataset, trees, **more)

    def objective(trial: Any) -> float:
        values = {
            "num_leaves": trial.suggest_int("num_leaves", 4, 256, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.2, log=True),
            "min_data_in_leaf": trial.suggest_int("min_data_in_leaf", 5, 200, log=True),
            "feature_fraction": trial.suggest_float("feature_fraction", 0.3, 1.0),
            "bagging_fraction": trial.suggest_float("bagging_fraction", 0.5, 1.0),
            "bagging_freq": 1,
            "lambda_l2": trial.suggest_float("lambda_l2", 1e-3, 100, log=True),
            "cat_smooth": trial.suggest_float("cat_smooth", 1, 100, log=True),
        }
        held = lightgbm.Dataset(*examples["validation"], categorical_feature=categories)
        stopping = lightgbm.early_stopping(PATIENCE, verbose=False)
        model = fit(values, examples["train"], MOST_TREES, valid_sets=[held], callbacks=[stopping])
        trial.set_user_attr("values", values)
        trial.set_user_attr("trees", model.best_iteration)
        return float(model.best_score["valid_0"]["auc"])

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=1, multivariate=False)
    )
    study.optimize(objective, n_trials=trials)
    best = study.best_trial.user_attrs
    (inputs, labels), (more_inputs, more_labels) = examples["train"], examples["validation"]
    both = np.concatenate([inputs, more_inputs]), np.concatenate([labels, more_labels])
    test_inputs, test_labels = examples["test"]
    tests = []
    for seed in seeds:
        model = fit({**best["values"], "seed": seed}, both, best["trees"])
        area = auc(model.predict(test_inputs, raw_score=True), test_labels)
        assert area is not None
        tests.append(area)
    return float(study.best_value), tests


def texts(tables: dict[str, pa.Table], name: str) -> list[str]:
    """The values of a column of training data, without spaces around them."""
    return [
        str(value).strip() for split in ("train", "validation")
        for value in tables[split].column(name).to_pylist()
    ]  # fmt: skip


def matrix(
    columns: list[str], table: pa.Table, codes: dict[str, dict[str, int]]
) -> tuple[Floats, Floats]:
    """Rows as float64 [rows, columns] (NaN: a category that training data lacks), and labels."""
    inputs = np.empty((table.num_rows, len(columns)))
    for place, name in enumerate(columns):
        values = [str(value).strip() for value in table.column(name).to_pylist()]
        known = codes.get(name)
        inputs[:, place] = [
            float(value) if known is None else known.get(value, np.nan) for value in values
        ]
    labels = [">50K" in str(value) for value in table.column(LABEL).to_pylist()]
    return inputs, np.array(labels, np.float64)


if __name__ == "__main__":
    main()
