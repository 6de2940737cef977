"""What `tnctl init` and `tnctl train`, unedited, reach beside boosted trees, on the same rows.

    pip install lightgbm catboost pandas
    python -m benchmarks.defaults [--seeds 1] [--only NAME …] [--search]

Sets: benchmarks/defaults_data.py. Nobody sees the test rows before the end. LightGBM has its
defaults with early stopping on a tenth of the training rows and ids as categories; `means` is the
same with out-of-fold target means in their place; CatBoost has its defaults with early stopping.
With --search are also the best of 20 trials of `tnctl train -m sweep.trials=20`, and of 20 that
Optuna makes with LightGBM, by AUC on its validation rows. Of the drifting days the table has COPC
of each day before it was trained. Seeds are of the models. Results are kept below
benchmarks/data/defaults, and are not computed twice. The interval is of the difference to the best
of the others in 200 paired bootstraps of the test rows.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks import defaults_data, timing
from benchmarks.workload import FOLDER
from tnctl.evaluation.metrics import auc

OUTPUT = FOLDER / "defaults"
BOOTSTRAPS = 200
STOPPING = 50  # trees without a better validation
SMOOTHING = 10  # rows of the mean label that a target mean has beside its values
FOLDS = 5
TRIALS = 20
Floats = NDArray[np.float64]


def tables_of(folder: Path) -> tuple[pa.Table, pa.Table]:
    """The training and the test rows."""
    parts = []
    for part in ("train", "test"):
        days = sorted((folder / part).glob("*.parquet"))
        parts.append(pa.concat_tables(map(pq.read_table, days or [folder / f"{part}.parquet"])))
    return parts[0], parts[1]


def tnctl(*words: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "tnctl", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def tnctl_predictions(folder: Path, seed: int, to: Path, trials: int = 0) -> None:
    """Train the first conf as it is, or the best of some trials, and predict the test rows."""
    conf, run = to / "first.yaml", to / "run"
    files = [str(folder / f"{part}.parquet") for part in ("train", "test")]
    tnctl("init", *files, "label=label", f"to={conf}")
    words = [f"conf={conf}", "evaluation.ablate=false", "train.threads=1", f"seed={seed}"]
    if trials:
        search = [f"output={to / 'search'}", "-m", f"sweep.trials={trials}"]
        # The command that trains the best, without its output.
        words = shlex.split(tnctl("train", *words, *search))[2:-1]
    tnctl("train", *words, f"output={run}")
    table = to / "predicted.parquet"
    tnctl("predict", f"output={run}", f"to={table}")
    columns = pq.read_table(table)
    np.save(to / "predictions.npy", columns["prediction"].to_numpy())


def trees_predictions(kind: str) -> Callable[[Path, int, Path], None]:
    """Predictions by one of the libraries."""

    def predict(folder: Path, seed: int, to: Path) -> None:
        train, test = tables_of(folder)
        labels = train["label"].to_numpy().astype(int)
        random = np.random.default_rng(seed)
        held = random.random(len(labels)) < 0.1
        columns, categories = encoded(train, test)
        if kind == "means":
            columns = with_means(columns, categories, labels, random)
            categories = []
        rows, others = (np.column_stack(part) for part in zip(*columns, strict=True))
        if kind == "CatBoost":
            from catboost import CatBoostClassifier, Pool
            from pandas import DataFrame

            def pool(values: Floats, labels: NDArray | None = None) -> Any:
                frame = DataFrame({str(n): values[:, n] for n in range(values.shape[1])})
                names = [str(n) for n in categories]
                frame = frame.astype(dict.fromkeys(names, int)).astype(dict.fromkeys(names, str))
                return Pool(frame, labels, cat_features=names)

            model = CatBoostClassifier(
                verbose=0, thread_count=1, random_seed=seed, early_stopping_rounds=STOPPING,
                allow_writing_files=False,
            )  # fmt: skip
            model.fit(pool(rows[~held], labels[~held]), eval_set=pool(rows[held], labels[held]))
            predictions = model.predict_proba(pool(others))[:, 1]
        else:
            import lightgbm

            def trained(**searched: float) -> Any:
                options = {"objective": "binary", "verbose": -1, "num_threads": 1, "seed": seed}
                data = lightgbm.Dataset(rows[~held], labels[~held], categorical_feature=categories)
                validation = lightgbm.Dataset(rows[held], labels[held], reference=data)
                stopping = lightgbm.early_stopping(STOPPING, verbose=False)
                options |= searched
                return lightgbm.train(options, data, 2000, [validation], callbacks=[stopping])

            if kind == "LightGBM searched":
                model = searched_trees(trained, rows[held], labels[held], seed)
            else:
                model = trained()
            predictions = model.predict(others)
        np.save(to / "predictions.npy", predictions)

    return predict


def searched_trees(
    trained: Callable[..., Any], rows: Floats, labels: NDArray[np.int64], seed: int
) -> Any:
    """The best of 20 models by their AUC on validation rows."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    models = {}

    def area(trial: Any) -> float:
        models[trial.number] = model = trained(
            learning_rate=trial.suggest_float("learning_rate", 0.01, 0.2, log=True),
            num_leaves=trial.suggest_int("num_leaves", 7, 127, log=True),
            min_data_in_leaf=trial.suggest_int("min_data_in_leaf", 5, 300, log=True),
            feature_fraction=trial.suggest_float("feature_fraction", 0.4, 1.0),
            lambda_l2=trial.suggest_float("lambda_l2", 1e-3, 100, log=True),
            cat_smooth=trial.suggest_float("cat_smooth", 1, 300, log=True),
        )
        return auc(model.predict(rows), labels) or 0.5

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(area, TRIALS)
    return models[study.best_trial.number]


def encoded(train: pa.Table, test: pa.Table) -> tuple[list[tuple[Floats, Floats]], list[int]]:
    """Each input as numbers, of the training and the test rows; and which are categories."""
    columns, categories = [], []
    for name in train.column_names[1:]:
        both = pa.chunked_array(train[name].chunks + test[name].chunks).combine_chunks()
        if pa.types.is_string(both.type):
            categories.append(len(columns))
            both = both.dictionary_encode().indices
        elif pa.types.is_integer(both.type) and len(both.unique()) > len(both) ** 0.5:
            categories.append(len(columns))  # codes of ids
            both = both.dictionary_encode().indices
        values = both.to_numpy(zero_copy_only=False).astype(np.float64)
        columns.append((values[: len(train)], values[len(train) :]))
    return columns, categories


def with_means(
    columns: Sequence[tuple[Floats, Floats]],
    categories: Sequence[int],
    labels: NDArray[np.int64],
    random: np.random.Generator,
) -> list[tuple[Floats, Floats]]:
    """The columns with smoothed mean labels for categories, of training rows from other folds."""
    folds, mean, made = random.integers(0, FOLDS, len(labels)), labels.mean(), list(columns)
    for place in categories:
        codes, others = (part.astype(np.int64) for part in columns[place])
        size = int(max(codes.max(), others.max())) + 1

        def means(rows: NDArray[np.bool_], codes=codes, size=size) -> Floats:
            clicks = np.bincount(codes[rows], labels[rows], size)
            counts = np.bincount(codes[rows], minlength=size)
            return (clicks + SMOOTHING * mean) / (counts + SMOOTHING)

        of_rows = np.empty(len(labels))
        for fold in range(FOLDS):
            of_rows[folds == fold] = means(folds != fold)[codes[folds == fold]]
        made[place] = (of_rows, means(np.ones(len(labels), bool))[others])
    return made


CONTENDERS: dict[str, Callable[[Path, int, Path], None]] = {
    "tnctl": tnctl_predictions,
    **{name: trees_predictions(name) for name in ("LightGBM", "means", "CatBoost")},
}
SEARCHES = {
    "tnctl searched": partial(tnctl_predictions, trials=TRIALS),
    "LightGBM searched": trees_predictions("LightGBM searched"),
}


def result(name: str, contender: str, seed: int) -> tuple[Floats, float]:
    """The predictions of test rows and the seconds, computed unless they are there."""
    folder = defaults_data.written(OUTPUT / "sets", name)
    to = OUTPUT / "results" / folder.name / f"{contender}-{seed}"
    if not (to / "seconds.json").exists():
        to.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        (CONTENDERS | SEARCHES)[contender](folder, seed, to)
        (to / "seconds.json").write_text(json.dumps(time.perf_counter() - started))
    return np.load(to / "predictions.npy"), json.loads((to / "seconds.json").read_text())


def logloss(predictions: Floats, labels: Floats) -> float:
    p = np.clip(predictions, 1e-7, 1 - 1e-7)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p)))


def interval(first: Floats, second: Floats, labels: Floats) -> tuple[str, str]:
    """The bounds of the difference in AUC and in logloss, over paired bootstraps."""
    random, differences = np.random.default_rng(0), []
    for _ in range(BOOTSTRAPS):
        rows = random.integers(0, len(labels), len(labels))
        values = [
            (auc(p[rows], labels[rows]) or 0.5, logloss(p[rows], labels[rows]))
            for p in (first, second)
        ]
        differences.append(np.subtract(*values))
    low, high = np.quantile(differences, (0.025, 0.975), axis=0)
    return tuple(f"{a:+.4f} to {b:+.4f}" for a, b in zip(low, high, strict=True))  # type: ignore[return-value]


def rows_of(name: str, seeds: int, search: bool) -> list[list[str]]:
    """The rows of the table for a set."""
    folder = defaults_data.written(OUTPUT / "sets", name)
    labels = tables_of(folder)[1]["label"].to_numpy().astype(np.float64)
    base = logloss(np.full(len(labels), labels.mean()), labels)
    mean, table = {}, []
    for contender in [*CONTENDERS, *(SEARCHES if search else ())]:
        results = [result(name, contender, seed) for seed in range(1, seeds + 1)]
        mean[contender] = np.mean([predictions for predictions, _ in results], axis=0)
        areas = [auc(predictions, labels) or 0.5 for predictions, _ in results]
        losses = [logloss(predictions, labels) for predictions, _ in results]
        copc = [labels.mean() / predictions.mean() for predictions, _ in results]
        table.append([
            name, contender, f"{np.mean(areas):.4f}", f"{np.mean(losses):.4f}",
            f"{np.mean(losses) / base:.4f}", f"{np.mean(copc):.3f}",
            f"{np.mean([seconds for _, seconds in results]):,.0f}", "", "",
        ])  # fmt: skip
    others = [contender for contender in CONTENDERS if contender != "tnctl"]
    best = min(others, key=lambda contender: logloss(mean[contender], labels))
    table[0][-2:] = interval(mean["tnctl"], mean[best], labels)
    if (folder / "truth.npy").exists():
        truth = np.load(folder / "truth.npy")
        loss = logloss(truth, labels)
        bayes = [f"{auc(truth, labels) or 0.5:.4f}", f"{loss:.4f}", f"{loss / base:.4f}"]
        table.append([name, "Bayes", *bayes, "1.000", "", "", ""])
    return table


def days() -> None:
    """Print the figures of each drifting day before it was trained."""
    folder = defaults_data.written(OUTPUT / "sets", "drifting")
    to = OUTPUT / "results" / "drifting"
    to.mkdir(parents=True, exist_ok=True)
    files = sorted(folder.glob("t*/*.parquet"))
    for file in files:
        (to / file.name).unlink(missing_ok=True)
        (to / file.name).symlink_to(file.resolve())
    tnctl("init", str(to / "{day}.parquet"), "label=label", f"to={to / 'first.yaml'}")
    words = ["evaluation.ablate=false", f"output={to / 'run'}", "overwrite=true"]
    tnctl("train", f"conf={to / 'first.yaml'}", *words)
    report = json.loads((to / "run" / "report.json").read_text())
    table = [["day", "AUC", "logloss", "COPC"]]
    for day in report["days"][1:]:
        figures = [day["before"][name] for name in ("auc", "logloss", "copc")]
        table.append([day["day"], *(f"{figure:.4f}" for figure in figures)])
    print(timing.table(table))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--search", action="store_true")
    names = list(defaults_data.SETS)
    parser.add_argument("--only", choices=names, nargs="+", default=names)
    given = parser.parse_args()
    table = [[
        "", "", "AUC", "logloss", "NE", "COPC", "seconds", "AUC less the best's", "logloss"
    ]]  # fmt: skip
    for name in given.only:
        if name == "drifting":
            days()
            continue
        table += rows_of(name, given.seeds, given.search)
        print(timing.table(table[-7:]), flush=True)
    print(timing.table(table))


if __name__ == "__main__":
    main()
