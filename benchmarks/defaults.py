"""What `tnctl init` and `tnctl train`, unedited, reach beside boosted trees, on the same rows.

    pip install lightgbm catboost pandas
    python -m benchmarks.defaults [--seeds 1] [--only NAME …]

Sets: benchmarks/defaults_data.py. Nobody sees the test rows before the end. LightGBM has its
defaults with early stopping on a tenth of the training rows and ids as categories; `means` is the
same with out-of-fold target means in their place; CatBoost has its defaults with early stopping.
Seeds are of the models. Results are kept below benchmarks/data/defaults, and are not computed
twice. The interval is of the difference to the best of the others in 200 paired bootstraps of the
test rows.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
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
Floats = NDArray[np.float64]


def tables_of(folder: Path) -> tuple[pa.Table, pa.Table]:
    """The training and the test rows."""
    parts = []
    for part in ("train", "test"):
        days = sorted((folder / part).glob("*.parquet"))
        parts.append(pa.concat_tables(map(pq.read_table, days or [folder / f"{part}.parquet"])))
    return parts[0], parts[1]


def tnctl_predictions(folder: Path, seed: int, to: Path) -> None:
    """Train the first conf as it is, with its command line, and predict the test rows."""
    conf, run = to / "first.yaml", to / "run"

    def tnctl(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "tnctl", *words], check=True, capture_output=True)

    files = [str(folder / f"{part}.parquet") for part in ("train", "test")]
    tnctl("init", *files, "label=label", f"to={conf}")
    words = ["evaluation.ablate=false", "train.threads=1", f"seed={seed}"]
    tnctl("train", f"conf={conf}", f"output={run}", *words)
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

            options = {"objective": "binary", "verbose": -1, "num_threads": 1, "seed": seed}
            data = lightgbm.Dataset(
                rows[~held], labels[~held], categorical_feature=categories, free_raw_data=False
            )
            validation = lightgbm.Dataset(rows[held], labels[held], reference=data)
            stopping = lightgbm.early_stopping(STOPPING, verbose=False)
            model = lightgbm.train(options, data, 2000, [validation], callbacks=[stopping])
            predictions = model.predict(others)
        np.save(to / "predictions.npy", predictions)

    return predict


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


def result(name: str, contender: str, seed: int) -> tuple[Floats, float]:
    """The predictions of test rows and the seconds, computed unless they are there."""
    folder = defaults_data.written(OUTPUT / "sets", name)
    to = OUTPUT / "results" / folder.name / f"{contender}-{seed}"
    if not (to / "seconds.json").exists():
        to.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        CONTENDERS[contender](folder, seed, to)
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


def rows_of(name: str, seeds: int) -> list[list[str]]:
    """The rows of the table for a set."""
    folder = defaults_data.written(OUTPUT / "sets", name)
    labels = tables_of(folder)[1]["label"].to_numpy().astype(np.float64)
    base = logloss(np.full(len(labels), labels.mean()), labels)
    mean, table = {}, []
    for contender in CONTENDERS:
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    names = [name for name in defaults_data.SETS if name != "drifting"]
    parser.add_argument("--only", choices=names, nargs="+", default=names)
    given = parser.parse_args()
    table = [[
        "", "", "AUC", "logloss", "NE", "COPC", "seconds", "AUC less the best's", "logloss"
    ]]  # fmt: skip
    for name in given.only:
        table += rows_of(name, given.seeds)
        print(timing.table(table[-5:]), flush=True)
    print(timing.table(table))


if __name__ == "__main__":
    main()
