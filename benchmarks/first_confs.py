"""What `tnctl init` reaches, beside a conf written by hand, on eleven forms of data.

    python -m benchmarks.first_confs [--rows 30000] [--seeds 1] [--only NAME …]

Each form has a planted truth and traps (benchmarks/planted_tables.py). Both confs are trained as
they are, on the same rows and scored on the same fifth of them, and the last column says what share
of the hand-written conf's AUC above 0.5 the first conf has. With several seeds, each has rows and
first weights of its own, and the table has means with the deviation of the share; the forms take
turns, so that a slow hour is in all of them.
"""

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tnctl
from benchmarks import planted_tables, timing
from benchmarks.workload import FOLDER
from tnctl.starting.first_conf import first_conf

OUTPUT = FOLDER / "first-confs"
TEST = 0.2
DAYS = 10
# What all hand-written confs share: ordinary settings for some ten thousand rows.
COMMON = """\
defaults: [schema, {recipe: deepfm}, _self_]
recipe: {hidden: [64, 32], dropout: 0.3}
train: {batch_size: 128, epochs: 10}
evaluation: {patience: 2}
"""
SPLIT = "{validation: 0.1}"
LAST = "{validation: 0.1, by: last}"
LOG = """\
data: {FILES, delimiter: ";", missing: ["", "?"], label: {column: clicked}, split: SPLIT}
slots:
  user_id: {}
  item: {}
  tags: {separator: "|", pooling: mean}
  price: {ids: quantiles, buckets: 64, missing: value}
  age: {ids: quantiles, buckets: 16}
numeric: {price_number: {column: price, transform: log1p}}
"""
CRITEO = "\n".join(
    [
        "data:",
        "  FILES",
        "  header: false",
        '  delimiter: "\\t"',
        "  columns: [label, "
        + ", ".join([f"I{k}" for k in range(1, 14)] + [f"C{k}" for k in range(1, 27)])
        + "]",
        "  split: SPLIT",
        "slots:",
        *(f"  I{k}: {{ids: quantiles, buckets: 64, missing: value}}" for k in range(1, 14)),
        *(f"  C{k}: {{missing: value}}" for k in range(1, 27)),
    ]
)
RATINGS = """\
data: {FILES, label: {column: rating, above: 3}, split: SPLIT}
slots: {userId: {}, movieId: {}, genres: {separator: "|", pooling: mean}}
"""
LIBSVM = """\
data: {FILES, format: libsvm, split: SPLIT, label: {column: label, above: 0}}
slots:
""" + "\n".join(
    f'  f{k}: {{column: "{k}:", ids: quantiles, buckets: 32, missing: value}}' for k in range(1, 13)
)
RECORDS = """\
data: {FILES, format: tfrecord, split: SPLIT}
slots:
  slot_1: {}
  items: {pooling: mean, missing: value}
  price: {ids: quantiles, buckets: 64}
numeric: {price_number: {column: price, transform: log1p}}
"""
PARQUET = """\
data: {FILES, format: parquet, label: {column: click}, split: SPLIT}
slots:
  user: {}
  item: {}
  clicked_items: {pooling: mean, missing: value}
  recent: {ids: integer, padding: 0, pooling: mean}
  shop_id: {ids: quantiles, buckets: 128, missing: value}
  price: {ids: quantiles, buckets: 64}
numeric:
  price_number: {column: price, transform: log1p}
  vector: {width: 4, transform: standardize}
"""
JSON_LINES = """\
data: {FILES, format: jsonl, split: SPLIT}
slots:
  user: {}
  item: {}
  history: {pooling: mean, missing: value}
  genres: {pooling: mean}
  price: {ids: quantiles, buckets: 64, missing: value}
numeric: {price_number: {column: price, transform: log1p}}
"""
ORC = """\
data: {FILES, format: orc, label: {column: click}, split: SPLIT}
slots: {user: {}, item: {}, price: {column: context.price, ids: quantiles, buckets: 64}}
numeric: {price_number: {column: context.price, transform: log1p}}
"""
TEXT_LABEL = """\
data:
  FILES
  header: false
  strip: true
  columns: [age, user, item, sex, income]
  missing: ["", "?"]
  label: {column: income, positive: [">50K"]}
  split: SPLIT
slots: {age: {ids: quantiles, buckets: 16}, user: {}, item: {missing: value}, sex: {}}
"""


@dataclass(frozen=True)
class Form:
    """A form of data: what writes it (a path, rows= and seed=), its file, the hand-written conf."""

    write: Callable[..., object]
    file: str
    conf: str
    split: str = SPLIT


def days(folder: Path, rows: int, seed: int) -> None:
    """One file per day; the rows of the last days are what is scored."""
    folder.mkdir()
    for day in range(DAYS):
        path = folder / f"2026-11-{day + 1:02}.csv"
        options = {"rows": rows // DAYS, "seed": DAYS * seed + day, "first_day": day}
        planted_tables.log_with_semicolons(path, **options)


FORMS = {
    "semicolons": Form(planted_tables.log_with_semicolons, "log.csv", LOG, LAST),
    "criteo": Form(planted_tables.criteo_lines, "train.txt", CRITEO),
    "ratings": Form(planted_tables.ratings, "ratings.csv", RATINGS, LAST),
    "libsvm": Form(planted_tables.libsvm_numbers, "a.svm", LIBSVM),
    "tf.Example": Form(planted_tables.records, "a.tfrecord", RECORDS),
    "parquet": Form(planted_tables.parquet_with_lists, "a.parquet", PARQUET, LAST),
    "json": Form(planted_tables.json_lines, "a.jsonl", JSON_LINES, LAST),
    "orc": Form(planted_tables.orc_table, "a.orc", ORC, LAST),
    "gzip": Form(planted_tables.log_with_semicolons, "log.csv.gz", LOG, LAST),
    "days": Form(days, "days", LOG, LAST),
    "text label": Form(planted_tables.text_labels, "people.data", TEXT_LABEL),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", choices=FORMS, nargs="+", default=list(FORMS))
    given = parser.parse_args()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    reached: dict[str, list[tuple[float, float]]] = {name: [] for name in given.only}
    for seed in range(given.seeds):
        for name in given.only:
            folder = OUTPUT / f"{name.replace(' ', '-')}-{seed}"
            reached[name].append(areas(folder, FORMS[name], given.rows, seed))
            by_hand, first = reached[name][-1]
            print(f"{name}, seed {seed}: {by_hand:.5f} {first:.5f}", flush=True)
    table = [["", "by hand", "first conf", "of its AUC above 0.5", "deviation"]]
    table += [row_of(name, np.array(of_seeds)) for name, of_seeds in reached.items()]
    rows = f"{given.rows:,} rows, {given.seeds} seeds"
    print(f"{rows}, AUC on {TEST:.0%} of the rows\n{timing.table(table)}")


def row_of(name: str, of_seeds: NDArray[np.float64]) -> list[str]:
    """A row of the table, of AUCs [seeds, by hand and first]."""
    shares = (of_seeds[:, 1] - 0.5) / (of_seeds[:, 0] - 0.5)
    deviation = f"{shares.std(ddof=1):.1%}" if len(shares) > 1 else ""
    return [name, *(f"{area:.5f}" for area in of_seeds.mean(0)), f"{shares.mean():.1%}", deviation]


def areas(folder: Path, form: Form, rows: int, seed: int) -> tuple[float, float]:
    """The test AUC of the hand-written conf and of the first one."""
    folder.mkdir(parents=True)
    path = folder / form.file
    form.write(path, rows=rows, seed=7 + seed)
    first, by_hand = folder / "first.yaml", folder / "hand.yaml"
    first.write_text(first_conf([str(path)], name=first.name).text)
    train, overrides = str(path), [f"data.split.test={TEST}", f"seed={seed}"]
    if path.is_dir():  # the first conf keeps the last day for validation, the other one does not
        train = f"{path}/*.csv"
        overrides += [
            "data.validation=null", "data.split.validation=0.1", "data.split.by=last",
            f"data.train='{train}'",
        ]  # fmt: skip
    files = f'train: "{train}"'
    by_hand.write_text(COMMON + form.conf.replace("FILES", files).replace("SPLIT", form.split))
    return area(by_hand, overrides), area(first, overrides)


def area(conf: Path, overrides: list[str]) -> float:
    """The AUC on the test rows after training a conf."""
    output = f"output={conf.with_suffix('')}"
    run = tnctl.train(tnctl.compose(conf, [*overrides, output]))
    return float(run.report.metrics["auc"])


if __name__ == "__main__":
    main()
