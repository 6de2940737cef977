"""The data of `benchmarks.defaults`: four sets with a planted truth, days that drift, and UCI's.

Each generated set has the probability of every row, so that Bayes' AUC and logloss are known: what
no model can expect to beat.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TEST = 0.2
DAYS = 16


@dataclass(frozen=True)
class Split:
    """Rows to train on, and later or other rows to score. `truth` [test rows]: probabilities."""

    train: pa.Table
    test: pa.Table
    truth: Floats | None = None
    days: bool = False
    """the column `day` of both names the file of a row"""


def sigmoid(z: Floats) -> Floats:
    return 1 / (1 + np.exp(-z))


def with_mean(logits: Floats, mean: float) -> Floats:
    """Probabilities of the logits, shifted so that their mean is `mean`."""
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sigmoid(logits + middle).mean() < mean else (low, middle)
    return sigmoid(logits + low)


def zipf(random: np.random.Generator, exponent: float, size: int, rows: int) -> NDArray[np.int64]:
    """Ranks below `size`, rank r with a probability that falls with (r + 1)^-exponent."""
    shares = np.cumsum((np.arange(size) + 1.0) ** -exponent)
    return np.searchsorted(shares, random.random(rows) * shares[-1])


def split_of(
    columns: Mapping[str, NDArray], probability: Floats, random: np.random.Generator
) -> Split:
    """Labels drawn by `probability`; the last fifth of the rows, which have no order, is scored."""
    labels = (random.random(len(probability)) < probability).astype(np.int64)
    table = pa.table({"label": labels, **columns})
    first = round((1 - TEST) * len(table))
    return Split(table.slice(0, first), table.slice(first), probability[first:])


def names_of(ids: NDArray[np.int64], prefix: str) -> pa.Array:
    """Texts such as u17, as a dictionary: what a log has."""
    values, places = np.unique(ids, return_inverse=True)
    texts = pa.array([f"{prefix}{value}" for value in values.tolist()])
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), texts).cast(
        pa.string()
    )


def pairwise(rows: int = 1_000_000, seed: int = 11) -> Split:
    """20 Zipf slots, of 1,000 to 200,000 ids; effects of ids, and of ids in ten pairs of slots."""
    random = np.random.default_rng(seed)
    sizes = np.geomspace(1_000, 200_000, 20).astype(int)
    ids = [zipf(random, 1.0, size, rows) for size in sizes]
    logits = np.zeros(rows)
    for size, column in zip(sizes, ids, strict=True):
        logits += 0.36 * random.standard_normal(size)[column]
    for _ in range(10):
        first, second = random.choice(20, 2, replace=False)
        left, right = (random.standard_normal((sizes[slot], 4)) / 2 for slot in (first, second))
        logits += 0.63 * (left[ids[first]] * right[ids[second]]).sum(1)
    columns = {f"c{slot}": names_of(column, f"{slot}_") for slot, column in enumerate(ids)}
    return split_of(columns, with_mean(logits, 0.10), random)


def rare(rows: int = 80_000, seed: int = 12) -> Split:
    """3 % positives, eight slots whose ids have a long tail, two numbers."""
    random = np.random.default_rng(seed)
    sizes = (20, 100, 500, 2_000, 10_000, 30_000, 60_000, 100_000)
    ids = [zipf(random, 0.9, size, rows) for size in sizes]
    numbers = random.standard_normal((2, rows))
    logits = 0.5 * numbers[0] - 0.3 * numbers[1] ** 2
    for size, column in zip(sizes, ids, strict=True):
        logits += 0.35 * random.standard_normal(size)[column]
    columns = {f"c{slot}": names_of(column, f"{slot}_") for slot, column in enumerate(ids)}
    columns |= {"price": np.exp(numbers[0]).round(3), "age": (40 + 10 * numbers[1]).round()}
    return split_of(columns, with_mean(logits, 0.03), random)


def ratings(rows: int = 100_000, seed: int = 13) -> Split:
    """Ratings of users and items, without times: effects of both, and tastes."""
    random = np.random.default_rng(seed)
    users, items = zipf(random, 0.6, 3_000, rows), zipf(random, 0.8, 6_000, rows)
    tastes, kinds = random.standard_normal((3_000, 6)), random.standard_normal((6_000, 6))
    genres = kinds[:, :3].argmax(1) * 4 + random.integers(0, 4, 6_000)
    logits = 0.7 * random.standard_normal(3_000)[users] + 0.7 * random.standard_normal(6_000)[items]
    logits += 0.35 * (tastes[users] * kinds[items]).sum(1)
    columns = {
        "user": names_of(users, "u"), "item": names_of(items, "i"),
        "genre": names_of(genres[items], "g"),
    }  # fmt: skip
    return split_of(columns, with_mean(logits, 0.55), random)


def access(rows: int = 33_000, seed: int = 14) -> Split:
    """Few ids of high cardinality, two decide together and hardly repeat; 94 % positive."""
    random = np.random.default_rng(seed)
    sizes = (7_500, 4_200, 180, 450, 2_300, 68, 340)
    exponents = (0.8, 0.9, 1.2, 1.1, 0.9, 1.3, 1.2)
    ids = [zipf(random, e, size, rows) for size, e in zip(sizes, exponents, strict=True)]
    logits = np.zeros(rows)
    for size, column, weight in zip(sizes, ids, (1.2, 1.2, 0.3, 0.4, 0.4, 0.2, 0.2), strict=True):
        logits += weight * random.standard_normal(size)[column]
    left, right = random.standard_normal((7_500, 3)), random.standard_normal((4_200, 3))
    logits += 0.6 * (left[ids[0]] * right[ids[1]]).sum(1)
    columns = {f"c{slot}": column * 7 + 11 for slot, column in enumerate(ids)}
    return split_of(columns, with_mean(logits, 0.94), random)


def drifting(rows_of_day: int = 60_000, seed: int = 15) -> Split:
    """16 days whose base rate has a slow trend, and jumps once; the last four days are scored."""
    random = np.random.default_rng(seed)
    sizes = (2_000, 5_000, 200, 30)
    effects = [0.6 * random.standard_normal(size) for size in sizes]
    tables, truths = [], []
    for day in range(DAYS):
        ids = [zipf(random, 1.0, size, rows_of_day) for size in sizes]
        level = -2.4 + 0.01 * day + (0.4 if day == 7 else 0)
        logits = level + sum(effect[column] for effect, column in zip(effects, ids, strict=True))
        probability = sigmoid(logits)
        labels = (random.random(rows_of_day) < probability).astype(np.int64)
        columns = {f"c{slot}": names_of(column, f"{slot}_") for slot, column in enumerate(ids)}
        name = f"2026-11-{day + 1:02}"
        tables.append(pa.table({"label": labels, **columns, "day": [name] * rows_of_day}))
        truths.append(probability)
    train, test = pa.concat_tables(tables[:-4]), pa.concat_tables(tables[-4:])
    return Split(train, test, np.concatenate(truths[-4:]), days=True)


def real_data() -> Path:
    return Path(os.environ["TNCTL_TEST_DATA"])


def adult() -> Split:
    """UCI Adult, with its own test file; text, without header."""
    names = (
        "age workclass fnlwgt education education_num marital_status occupation relationship race "
    )
    names += "sex capital_gain capital_loss hours_per_week native_country income"
    tables = []
    for file in ("adult.data", "adult.test"):
        lines = (real_data() / "adult" / file).read_text().replace(", ", ",").splitlines()
        rows = [line.rstrip(".") for line in lines if line.count(",") == 14]
        text = "\n".join([",".join(names.split()), *rows]).encode()
        table = pc.read_csv(pa.BufferReader(text))
        label = np.array([int(value == ">50K") for value in table["income"].to_pylist()])
        tables.append(table.drop_columns("income").add_column(0, "label", pa.array(label)))
    return Split(*tables)


def bank(shuffled: bool) -> Split:
    """UCI Bank Marketing in the order of time, or shuffled, without `duration`, a leak."""
    path = real_data() / "bank" / "bank-additional-full.csv"
    table = pc.read_csv(path, parse_options=pc.ParseOptions(delimiter=";"))
    label = table["y"].cast(pa.int64())
    table = table.drop_columns(["duration", "y"]).add_column(0, "label", label)
    if shuffled:
        table = table.take(np.random.default_rng(16).permutation(len(table)))
    first = round((1 - TEST) * len(table))
    return Split(table.slice(0, first), table.slice(first))


SETS: dict[str, Callable[[], Split]] = {
    "pairwise": pairwise,
    "rare": rare,
    "ratings": ratings,
    "access": access,
    "drifting": drifting,
    "adult": adult,
    "bank": lambda: bank(shuffled=False),
    "bank-shuffled": lambda: bank(shuffled=True),
}


def written(folder: Path, name: str) -> Path:
    """The folder of a set: train and test as Parquet (or files of days), truth.npy."""
    target = folder / name.replace(" ", "-")
    if (target / "complete").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    split = SETS[name]()
    for part, table in (("train", split.train), ("test", split.test)):
        if not split.days:
            pq.write_table(table, target / f"{part}.parquet")
            continue
        (target / part).mkdir(exist_ok=True)
        for day in sorted(set(table["day"].to_pylist())):
            rows = table.filter(pa.compute.equal(table["day"], day)).drop_columns("day")
            pq.write_table(rows, target / part / f"{day}.parquet")
    if split.truth is not None:
        np.save(target / "truth.npy", split.truth)
    (target / "complete").touch()
    return target
