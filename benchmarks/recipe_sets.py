"""Generated clicks with a known truth: a set for each kind of interaction of a recipe.

A set is a function of a random stream that draws the weights of its truth, and returns a function
of (stream, n) that draws n rows. Ids are numbers, different in each slot; a history has
the ids of candidates. Every truth is the logit of a click, by label.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

Stream = np.random.Generator
Array = NDArray[np.float64]
FIELDS, IDS, WIDTH = 8, 40, 4
LENGTH, KINDS, CANDIDATES = 10, 10, 200
PLACES = 10
PART = 100_000  # rows that are drawn at a time
HISTORY, CANDIDATE, POSITION = "history", "f0", "position"


@dataclass(frozen=True)
class Rows:
    """Rows of a set; `logits` and `labels` by label."""

    ids: NDArray[np.int64]  # [n, slots], 1 and more
    logits: dict[str, Array]  # [n], without the effect of the position
    labels: dict[str, NDArray[np.float32]]
    numbers: NDArray[np.float32] | None = None  # [n, numbers]
    history: NDArray[np.int64] | None = None  # [n, LENGTH], 0 past its end
    position: NDArray[np.int64] | None = None  # [n], ids of their own


Draw = Callable[[Stream, int], Rows]


def ids_and_vectors(
    truth: Stream, ids: int = IDS
) -> tuple[Callable[[Stream, int], NDArray[np.int64]], Array]:
    """What draws ids [n, FIELDS], each field's evenly; and a vector for each id."""
    first = 1 + ids * np.arange(FIELDS)
    vectors = truth.normal(size=(1 + ids * FIELDS, WIDTH))
    return lambda random, n: first + random.integers(0, ids, (n, FIELDS)), vectors


def spread(raw: Array, by: float, base: float = -1.0) -> Array:
    """Logits of this mean and deviation. Parts are large, so their moments differ little."""
    return base + by * (raw - raw.mean()) / raw.std()


def clicks(random: Stream, logits: Array) -> NDArray[np.float32]:
    return (random.random(len(logits)) < 1 / (1 + np.exp(-logits))).astype(np.float32)


def single(random: Stream, ids: NDArray[np.int64], raw: Array, **others: NDArray) -> Rows:
    """Rows of one label."""
    logits = spread(raw, 1.5)
    return Rows(ids, {"label": logits}, {"label": clicks(random, logits)}, **others)


def weighted_pairs(truth: Stream) -> Callable[[Array], Array]:
    """Products of all pairs of vectors [n, F, d], weighted by signs; FM has one weight for all."""
    weights = np.triu(truth.choice([-1.0, 0.0, 1.0], (FIELDS, FIELDS)), 1)
    return lambda v: np.einsum("nid,ij,njd->n", v, weights, v, optimize=True)


def pairs(truth: Stream) -> Draw:
    """Products of pairs of fields, with a weight for each pair."""
    draw, vectors = ids_and_vectors(truth)
    of_pairs, first = weighted_pairs(truth), truth.normal(size=FIELDS * WIDTH)

    def rows(random: Stream, n: int) -> Rows:
        ids = draw(random, n)
        v = vectors[ids]
        return single(random, ids, of_pairs(v) + v.reshape(n, -1) @ first)

    return rows


def numbers(truth: Stream) -> Draw:
    """Products of pairs of fields, and of fields with what several numbers make together."""
    draw, vectors = ids_and_vectors(truth)
    of_pairs, mixed = weighted_pairs(truth), truth.normal(size=(4, WIDTH))

    def rows(random: Stream, n: int) -> Rows:
        ids, x = draw(random, n), random.normal(size=(n, 4))
        v, z = vectors[ids], np.maximum(x @ mixed, 0)
        raw = of_pairs(v) + (v[:, : FIELDS // 2].sum(1) * z).sum(1)
        return single(random, ids, raw, numbers=x.astype(np.float32))

    return rows


def triples(truth: Stream) -> Draw:
    """Products of three fields, beside products of two."""
    draw, vectors = ids_and_vectors(truth)
    of_pairs, first = weighted_pairs(truth), truth.normal(size=FIELDS * WIDTH)
    chosen = truth.permutation(list(combinations(range(FIELDS), 3)))[:8].T

    def rows(random: Stream, n: int) -> Rows:
        ids = draw(random, n)
        v = vectors[ids]
        a, b, c = (v[:, places] for places in chosen)
        raw = (a * b * c).sum((1, 2)) * 1.5 + of_pairs(v) + v.reshape(n, -1) @ first
        return single(random, ids, raw)

    return rows


def selected(truth: Stream) -> Draw:
    """A field says by attention which of the others counts."""
    draw, vectors = ids_and_vectors(truth)
    _, keys = ids_and_vectors(truth)

    def rows(random: Stream, n: int) -> Rows:
        ids = draw(random, n)
        scores = np.einsum("nd,nfd->nf", vectors[ids[:, 0]], keys[ids[:, 1:]])
        weights = np.exp(1.5 * scores)
        weights /= weights.sum(1, keepdims=True)
        return single(random, ids, (weights * vectors[ids[:, 1:], 0]).sum(1))

    return rows


def masked(truth: Stream) -> Draw:
    """Every number of the embeddings has a gate, which all of them together open or close."""
    draw, vectors = ids_and_vectors(truth)
    size = FIELDS * WIDTH
    gates, weights = truth.normal(size=(size, size)), truth.normal(size=size)

    def rows(random: Stream, n: int) -> Rows:
        ids = draw(random, n)
        x = vectors[ids].reshape(n, -1)
        return single(random, ids, (x * np.maximum(x @ gates, 0)) @ weights)

    return rows


def streams(truth: Stream) -> Draw:
    """Two networks, of what fields 0 and 1 let through of the embeddings, and their product."""
    draw, vectors = ids_and_vectors(truth)
    size = FIELDS * WIDTH
    gates = truth.normal(size=(2, WIDTH, size))
    units = truth.normal(size=(2, size, 8)) / np.sqrt(size)

    def rows(random: Stream, n: int) -> Rows:
        ids = draw(random, n)
        x = vectors[ids].reshape(n, -1)
        a, b = (
            np.tanh(2 * (x / (1 + np.exp(-2 * vectors[ids[:, k]] @ gates[k]))) @ units[k])
            for k in (0, 1)
        )
        return single(random, ids, (a * b).sum(1) + a[:, 0] + b[:, 0])

    return rows


def histories(truth: Stream, of_places: Callable[[NDArray[np.int64], Array], Array]) -> Draw:
    """Clicks on candidates of the kind of those in a history; `of_places` (lengths, matches)."""
    kinds, first = truth.integers(0, KINDS, CANDIDATES), truth.normal(size=CANDIDATES)
    second = truth.normal(size=IDS)

    def rows(random: Stream, n: int) -> Rows:
        candidate, other = random.integers(0, CANDIDATES, n), random.integers(0, IDS, n)
        history = random.integers(0, CANDIDATES, (n, LENGTH))
        lengths = random.integers(1, LENGTH + 1, n)
        present = np.arange(LENGTH) < lengths[:, None]
        matches = (kinds[history] == kinds[candidate][:, None]) & present
        raw = of_places(lengths, matches) + 0.5 * first[candidate] + 0.3 * second[other]
        ids = np.stack([1 + candidate, 1 + CANDIDATES + other], axis=1)
        return single(random, ids, raw, history=np.where(present, 1 + history, 0))

    return rows


def of_kind(_: NDArray[np.int64], matches: Array) -> Array:
    """How many of a history are of the candidate's kind."""
    return 2.0 * matches.sum(1)


def recent_of_kind(lengths: NDArray[np.int64], matches: Array) -> Array:
    """The last three attract, and earlier ones repel."""
    recent = np.arange(LENGTH) >= lengths[:, None] - 3
    return 2.0 * (matches * np.where(recent, 1.0, -1.0)).sum(1)


def several(truth: Stream, bases: dict[str, float], opposed: bool = False) -> Draw:
    """Labels over units that they share, some with few positives; or one against the others."""
    draw, vectors = ids_and_vectors(truth, 50 * IDS)
    units = truth.normal(size=(FIELDS * WIDTH, 16)) / np.sqrt(FIELDS * WIDTH)
    shared = truth.normal(size=16)
    weights = {label: shared + 0.5 * truth.normal(size=16) for label in bases}
    if opposed:
        apart = truth.normal(size=(len(bases), 16))
        signs = np.where(np.arange(len(bases)) == 1, -1, 1)
        weights = dict(zip(bases, signs[:, None] * shared + apart, strict=True))

    def rows(random: Stream, n: int) -> Rows:
        ids = draw(random, n)
        h = np.tanh(1.5 * vectors[ids].reshape(n, -1) @ units)
        logits = {k: spread(h @ weights[k], 1.5, base) for k, base in bases.items()}
        return Rows(ids, logits, {k: clicks(random, v) for k, v in logits.items()})

    return rows


def chain(truth: Stream) -> Draw:
    """A click, and a purchase that needs it."""
    rows_of_both = several(truth, {"click": -1.0, "purchase": -2.5})

    def rows(random: Stream, n: int) -> Rows:
        both = rows_of_both(random, n)
        p = np.prod([1 / (1 + np.exp(-logit)) for logit in both.logits.values()], axis=0)
        bought = both.labels["click"] * both.labels["purchase"]
        logits = both.logits | {"purchase": np.log(p / (1 - p))}
        return Rows(both.ids, logits, both.labels | {"purchase": bought})

    return rows


def domains(truth: Stream) -> Draw:
    """A domain, field 0, scales every number of the embeddings; a user, field 1, every unit."""
    draw, vectors = ids_and_vectors(truth)
    size = FIELDS * WIDTH
    scales = truth.choice([0.0, 2.0], (6, size))
    units, weights = truth.normal(size=(size, 16)) / np.sqrt(size), truth.normal(size=16)
    of_user = truth.normal(size=(WIDTH, 16))

    def rows(random: Stream, n: int) -> Rows:
        ids = draw(random, n)
        domain = random.integers(0, 6, n)
        ids[:, 0] = 1 + domain
        x = vectors[ids].reshape(n, -1) * scales[domain]
        gates = 2 / (1 + np.exp(-2 * vectors[ids[:, 1]] @ of_user))
        return single(random, ids, (np.tanh(2 * x @ units) * gates) @ weights)

    return rows


def position(truth: Stream) -> Draw:
    """The list shows high what field 0 promises, and a high place is clicked more often."""
    draw, vectors = ids_and_vectors(truth)
    of_pairs = weighted_pairs(truth)

    def rows(random: Stream, n: int) -> Rows:
        ids = draw(random, n)
        promise = vectors[ids[:, 0], 0]
        shown = np.argsort(np.argsort(-promise - 0.5 * random.normal(size=n))) * PLACES // n
        logits = spread(promise + 0.3 * of_pairs(vectors[ids]), 1.0)
        labels = clicks(random, logits - 0.3 * shown)
        places = 1 + IDS * FIELDS + shown
        return Rows(ids, {"label": logits}, {"label": labels}, position=places)

    return rows


SETS: dict[str, Callable[[Stream], Draw]] = {
    "pairs": pairs,
    "numbers": numbers,
    "triples": triples,
    "selected": selected,
    "masked": masked,
    "streams": streams,
    "candidate": partial(histories, of_places=of_kind),
    "order": partial(histories, of_places=recent_of_kind),
    "similar": partial(several, bases={"click": -1.0, "like": -4.0, "share": -4.0}),
    "opposed": partial(several, bases={"click": -1.0, "hide": -4.0, "share": -4.0}, opposed=True),
    "chain": chain,
    "domains": domains,
    "position": position,
}


def drawn(name: str, count: int, seed: int) -> tuple[Rows, Rows]:
    """Rows of a set to train on, and as many to test on, whose clicks know no position."""
    rows, starts = SETS[name](np.random.default_rng([seed, 0])), range(0, count, PART)

    def split(kind: int) -> Rows:
        streams = (np.random.default_rng([seed, kind, start]) for start in starts)
        sizes = (min(PART, count - start) for start in starts)
        return joined([rows(*given) for given in zip(streams, sizes, strict=True)])

    train, test = split(1), split(2)
    if test.position is not None:
        random = np.random.default_rng([seed, 3])
        labels = {k: clicks(random, logits) for k, logits in test.logits.items()}
        test = replace(test, labels=labels)
    return train, test


def joined(parts: list[Rows]) -> Rows:
    def of_labels(name: str) -> dict[str, NDArray]:
        values = [getattr(part, name) for part in parts]
        return {label: np.concatenate([v[label] for v in values]) for label in values[0]}

    def of_rows(name: str) -> NDArray | None:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)

    others = {name: of_rows(name) for name in ("ids", "numbers", "history", "position")}
    return Rows(logits=of_labels("logits"), labels=of_labels("labels"), **others)


def write(rows: Rows, path: Path) -> None:
    """A Parquet file: slots f0, f1, …, numbers n0, …, the history and the position, labels."""
    columns = {f"f{k}": pa.array(of_slot) for k, of_slot in enumerate(rows.ids.T)}
    if rows.numbers is not None:
        columns |= {f"n{k}": pa.array(of_number) for k, of_number in enumerate(rows.numbers.T)}
    if rows.history is not None:
        present = rows.history > 0
        ends = np.concatenate([[0], present.sum(1).cumsum()]).astype(np.int32)
        columns[HISTORY] = pa.ListArray.from_arrays(ends, rows.history[present])
    if rows.position is not None:
        columns[POSITION] = pa.array(rows.position)
    columns |= {name: pa.array(labels) for name, labels in rows.labels.items()}
    pa.parquet.write_table(pa.table(columns), path)
