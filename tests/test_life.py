"""A row's life from outside: a conf with rules, batches, and what a naive table makes of them."""

import collections
import csv
import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tnctl import schema
from tnctl.checkpoint import load as loading
from tnctl.checkpoint import rows
from tnctl.data.batches import Batch
from tnctl.data.statistics_document import Statistics
from tnctl.errors import UserError
from tnctl.evaluation.inference import Inference
from tnctl.model import building
from tnctl.model.layout import plan
from tnctl.model.parameter_tables import table_figures
from tnctl.training import row_life
from tnctl.training.check import sample
from tnctl.training.step import TrainingStep

ROOT = Path(__file__).parents[1]
RATE = 0.25
SGD = {"name": "sgd", "learning_rate": RATE}
ADDS = """
from keras import ops

def build(inputs):
    values, _ = inputs.sequence("history")
    total = inputs.linear + ops.sum(values, axis=[1, 2])[:, None]
    return total + 0.1 * ops.sum(inputs.x, axis=1, keepdims=True)
"""
SLOTS = {
    "user": {},
    "tags": {"pooling": "mean"},
    "item": {"group": "items"},
    "history": {"group": "items", "pooling": "none", "max_length": 3},
}
DAYS = [(10, 1), (11, 5), (14, 9)]
STEPS, BATCH = 12, 6


def conf_of(folder, rules, **changes):
    (folder / "adds.py").write_text(ADDS)
    return schema.from_values(
        {
            "recipe": {"name": str(folder / "adds.py")},
            "output": "none",
            "slots": SLOTS,
            "embedding": {"width": 2, "initial": {"kind": "normal", "scale": 0.3}},
            "optimizer": {"linear": SGD, "embedding": SGD, "dense": SGD},
            "train": {"batch_size": BATCH, "threads": 2},
            "life": rules,
            **changes,
        }
    )


def batch_of(model, seed, rows=BATCH, ids=40):
    """Cells of zero to two ids; small ids are met more often than large ones."""
    random = np.random.default_rng(seed)
    every, offsets = [], []
    for table in model.layout.tables:
        counts = []
        for _ in range(rows):
            for slot, spread in zip(table.slots, table.spreads, strict=True):
                if slot in model.layout.sequences:
                    length = random.integers(0, spread + 1)
                    counts += [1] * length + [0] * (spread - length)
                else:
                    counts.append(random.integers(0, 3))
        offsets.append(np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32))
        every.append((ids * random.random(sum(counts)) ** 3).astype(np.uint64))
    labels = (random.random((rows, 1)) < 0.5).astype(np.float32)
    numeric = np.empty((rows, 0), np.float32)
    return Batch(every, offsets, [None] * len(every), numeric, labels, None, None, None, None)


class Naive:
    """All tables of a model as dictionaries, by the words of docs/life.md."""

    def __init__(self, model, days=()):
        self.model, self.days, self.step = model, list(days), 0
        self.rows, self.met = {}, collections.Counter()
        self.evicted = self.admitted = 0
        self.counting = True

    def day(self, step):
        return max([day for day, first in self.days if first <= step], default=0)

    @property
    def today(self):
        return max([day for day, _ in self.days], default=0)

    def rules(self, key):
        return self.model.layout.tables[key[0]].lives[key[1]]

    def counts(self, key):
        row = self.rows[key]
        kept = self.rules(key).shows.decay ** (self.today - self.day(row["changed"]))
        return row["show"] * kept, row["click"] * kept

    def read(self, key, added=(0, 0)):
        """[linear, embedding, and with cvm the counts], of a key without a row zeros.

        `added` is what the example itself has added to the counts.
        """
        kind = self.model.layout.tables[key[0]].kind
        if key not in self.rows:
            return np.zeros(1 + kind.columns)
        weights = self.rows[key]["weights"]
        if not kind.cvm:
            return weights
        show, click = (max(n - part, 0) for n, part in zip(self.counts(key), added, strict=True))
        click = min(click, show)
        return np.append(weights, [show, math.log(click + 1) - math.log(show + 1)])

    def positions(self, batch):
        """(example, slot, place, key, share) of every id, in the order of the batch."""
        for number, table in enumerate(self.model.layout.tables):
            cell = 0
            for example in range(batch.rows):
                for slot, group, spread in zip(
                    table.slots, table.group_of, table.spreads, strict=True
                ):
                    first, last = (int(batch.offsets[number][c]) for c in (cell, cell + spread))
                    cell += spread
                    share = 1 / (last - first) if slot == "tags" and last > first else 1.0
                    for place, id_ in enumerate(batch.ids[number][first:last]):
                        yield example, slot, place, (number, group, int(id_)), share

    def inputs(self, batch, reads):
        layout = self.model.layout
        x = np.zeros((batch.rows, layout.width))
        apart = np.zeros((batch.rows, layout.sequences_width))
        linear = np.zeros(batch.rows)
        for (example, slot, place, _, share), read in zip(
            self.positions(batch), reads, strict=True
        ):
            linear[example] += share * read[0]
            if slot in layout.sequences:
                sequence = layout.sequences[slot]
                at = sequence.column + place * sequence.width
                apart[example, at : at + sequence.width] = read[1:]
            else:
                at, width = layout.pooled[slot]
                x[example, at : at + width] += share * read[1:]
        return x, apart, linear

    def train(self, batch):
        """One step; returns the inputs that the model must have had."""
        self.step += 1
        owners = []
        for _, _, _, key, _ in self.positions(batch):
            if key not in self.rows:
                self.met[key] += self.counting
                if self.met[key] >= self.rules(key).admission.after:
                    self.insert(key)
            owners.append(key if key in self.rows else None)
        nobody = {key: np.zeros_like(self.read(key)) for _, _, _, key, _ in self.positions(batch)}
        times = collections.Counter((e, key) for e, _, _, key, _ in self.positions(batch))
        reads = []
        for owner, (example, _, _, key, _) in zip(owners, self.positions(batch), strict=True):
            count = 0 if self.counting else times[example, key]
            added = count, count * batch.labels[example, 0]
            reads.append(nobody[key] if owner is None else self.read(key, added))
        x, apart, linear = self.inputs(batch, reads)
        logits = linear + 0.1 * x.sum(axis=1) + sequence_weights(self.model, apart).sum(axis=1)
        errors = (1 / (1 + np.exp(-logits)) - batch.labels[:, 0]) / batch.rows
        moves, shows, clicks = {}, collections.Counter(), collections.Counter()
        for owner, (example, slot, _, key, share) in zip(
            owners, self.positions(batch), strict=True
        ):
            if owner is None:
                continue
            of_embedding = 1.0 if slot in self.model.layout.sequences else 0.1
            width = self.model.layout.tables[key[0]].width
            gradient = errors[example] * share * np.array([1.0] + [of_embedding] * width)
            moves[key] = moves.get(key, 0) + gradient
            shows[key] += self.counting
            clicks[key] += self.counting * float(batch.labels[example, 0])
        for key, gradient in moves.items():
            row, counted = self.rows[key], self.counts(key)
            row["weights"] = row["weights"] - RATE * gradient
            row["show"], row["click"] = counted[0] + shows[key], counted[1] + clicks[key]
            row["changed"] = self.step
        return x, apart, linear

    def insert(self, key):
        table = self.model.tables[key[0]]
        [fresh] = table.fresh_records(np.array([key[1]], np.uint16), np.array([key[2]], np.uint64))
        weights = np.concatenate([fresh["linear"], fresh["embedding"]]).astype(np.float64)
        self.rows[key] = {"weights": weights, "show": 0.0, "click": 0.0, "changed": self.step}
        self.admitted += 1

    def goes(self, key):
        rules, (show, click) = self.rules(key).eviction, self.counts(key)
        row, unseen = self.rows[key], False
        if rules.unseen_steps is not None:
            unseen |= self.step - row["changed"] > rules.unseen_steps
        if rules.unseen_days is not None:
            unseen |= self.today - self.day(row["changed"]) > rules.unseen_days
        few = rules.show is not None and show < rules.show
        either = (few and unseen) if rules.logic == "and" else (few or unseen)
        score = (show - click) * rules.nonclick + click * rules.click_weight
        return either or (rules.score is not None and score < rules.score)

    def evict(self):
        gone = [key for key in self.rows if self.goes(key)]
        for key in gone:
            del self.rows[key]
        self.evicted += len(gone)
        return len(gone)


def sequence_weights(model, apart):
    """The columns of sequences that are weights."""
    sequence = model.layout.sequences["history"]
    places = apart.reshape(len(apart), sequence.length, sequence.width)
    return places[:, :, : 2 if sequence.cvm else sequence.width].reshape(len(apart), -1)


def rows_of(model):
    """Every row of a model's tables by its key."""
    return {
        (number, int(row["group"]), int(row["id"])): row
        for number, table in enumerate(model.tables)
        for part in table.records()
        for row in part
    }


def assert_equal(model, naive):
    rows_ = rows_of(model)
    assert rows_.keys() == naive.rows.keys()
    for key, expected in naive.rows.items():
        weights = np.concatenate([rows_[key]["linear"], rows_[key]["embedding"]])
        np.testing.assert_allclose(weights, expected["weights"], rtol=1e-4, atol=1e-5)
        assert rows_[key]["changed"] == expected["changed"]
        if "show" in rows_[key].dtype.names:
            np.testing.assert_allclose(rows_[key]["show"], expected["show"], rtol=1e-5)
            np.testing.assert_allclose(rows_[key]["click"], expected["click"], rtol=1e-5, atol=1e-6)


def train_both(step, naive, batch):
    """One step of both, from the same inputs."""
    step(batch)
    assert_inputs_equal(step._buffers, naive.train(batch))


def assert_inputs_equal(buffers, expected):
    x, sequences, linear = expected
    np.testing.assert_allclose(buffers.x, x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(buffers.sequences, sequences, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(buffers.linear[:, 0], linear, rtol=1e-4, atol=1e-5)


RULES = {
    "nothing": {},
    "after": {"admission": {"after": 3}},
    "shows": {"shows": {"keep": True}},
    "cvm": {"shows": {"cvm": True, "decay": 0.5}, "admission": {"after": 2}},
    "cvm of one group": {"groups": {"items": {"shows": {"cvm": True}}}},
    "unseen steps": {"eviction": {"unseen_steps": 2}},
    "unseen days": {"eviction": {"unseen_days": 1}, "admission": {"after": 2}},
    "show": {"eviction": {"show": 1.6}},
    "show or days": {"eviction": {"show": 0.9, "unseen_days": 3}, "shows": {"decay": 0.6}},
    "show and days": {"eviction": {"show": 2.0, "unseen_days": 2, "logic": "and"}},
    "score": {"eviction": {"score": 0.6, "nonclick": 0.3}},
    "one group": {"groups": {"user": {"eviction": {"unseen_steps": 1}}}},
}


@pytest.mark.parametrize("name", RULES)
def test_training_is_what_a_naive_table_does(tmp_path, name):
    conf = conf_of(tmp_path, RULES[name])
    model = building.build(conf, Statistics())
    step, naive = TrainingStep(model, BATCH), Naive(model)
    removed = 0
    for number in range(1, STEPS + 1):
        if any(first == number for _, first in DAYS):
            if number > 1:
                by_group, gone = row_life.end_of_period(model), naive.evict()
                assert sum(by_group.values()) == gone
                removed += gone
            naive.days = [day for day in DAYS if day[1] <= number]
            for table in model.tables:
                table.set_days(naive.days)
        train_both(step, naive, batch_of(model, number))
        assert_equal(model, naive)
    by_group, gone = row_life.end_of_period(model), naive.evict()
    assert sum(by_group.values()) == gone
    assert_equal(model, naive)
    removed += gone
    assert bool(removed) == (conf.life.eviction.removes or name == "one group"), removed
    check_figures(model, naive, removed)
    check_reading(model, naive)


@pytest.mark.parametrize("name", ["after", "cvm", "cvm of one group", "show"])
def test_a_second_pass_is_what_a_naive_table_does(tmp_path, name):
    """It counts nothing, and an example reads the counts without its own part."""
    model = building.build(conf_of(tmp_path, RULES[name]), Statistics())
    step, naive = TrainingStep(model, BATCH), Naive(model)
    for naive.counting in (True, False):
        for table in model.tables:
            table.set_counting(naive.counting)
        for seed in range(1, STEPS + 1):
            train_both(step, naive, batch_of(model, seed))
        assert sum(row_life.end_of_period(model).values()) == naive.evict()
        assert_equal(model, naive)
    check_reading(model, naive)


def check_figures(model, naive, removed):
    """What is told is what happened."""
    figures = row_life.figures(model.layout, table_figures(model))
    if figures.keys() == {"user", "tags", "items"}:
        assert sum(of_group.admitted for of_group in figures.values()) == naive.admitted
        assert sum(of_group.rows for of_group in figures.values()) == len(naive.rows)
        waiting = sum(key not in naive.rows for key in naive.met)
        if model.layout.tables[0].waits and not removed:
            assert sum(of_group.waiting for of_group in figures.values()) == waiting
    assert sum(of_group.evicted for of_group in figures.values()) == removed
    shown = row_life.totals(model.layout, table_figures(model))
    assert ("waiting" in shown) == any(table.waits for table in model.layout.tables)
    assert shown.get("evicted", "0") == f"{removed:,}"


def check_reading(model, naive):
    """Inference reads the counts of today, zeros for ids without a row, and changes nothing."""
    records = [part.tobytes() for table in model.tables for part in table.records()]
    inference, batch = Inference(model, BATCH), batch_of(model, 99)
    inference(batch)
    reads = [naive.read(key) for _, _, _, key, _ in naive.positions(batch)]
    assert_inputs_equal(inference.buffers, naive.inputs(batch, reads))
    assert records == [part.tobytes() for table in model.tables for part in table.records()]


def test_rules_hold_every_so_many_steps(tmp_path):
    conf = conf_of(tmp_path, {"eviction": {"unseen_steps": 1, "every_steps": 4}})
    model = building.build(conf, Statistics())
    step, naive = TrainingStep(model, BATCH), Naive(model)
    for number in range(1, STEPS + 1):
        batch = batch_of(model, number)
        step(batch)
        naive.train(batch)
        if number % 4 == 0:
            assert naive.evict()
        assert_equal(model, naive)


@pytest.mark.parametrize("shows", [False, True])
def test_a_bound_holds_after_every_step(tmp_path, shows):
    """The least valuable go: the lowest score with shows, else the longest unseen."""
    rules = {"shows": {"keep": shows}, "groups": {"user": {"eviction": {"rows": 17}}}}
    if shows:
        rules["groups"]["user"]["shows"] = {"keep": True}
    model = building.build(conf_of(tmp_path, rules), Statistics())
    step = TrainingStep(model, BATCH)
    layout, table = model.layout.tables[0], model.tables[0]
    number, gone = layout.groups["user"], 0
    for seed in range(1, 20):
        before = {key: row for key, row in rows_of(model).items() if key[:2] == (0, number)}
        batch = batch_of(model, seed)
        step(batch)
        after = {key: row for key, row in rows_of(model).items() if key[:2] == (0, number)}
        lost = before.keys() - after.keys()
        gone += len(lost)
        assert table.group_rows(number) == len(after) <= 17
        if lost:
            assert len(after) <= 17 - 17 // 16

            def worth(row):
                if not shows:
                    return row["changed"]
                return (row["show"][0] - row["click"][0]) * 0.1 + row["click"][0]

            # What was lost did not change in this step, or it would not be in `before` alike.
            assert max(worth(before[key]) for key in lost) <= max(map(worth, after.values()))
    assert gone
    assert row_life.figures(model.layout, table_figures(model))["user"].evicted >= gone


def test_a_bound_in_bytes_is_one_in_rows(tmp_path):
    model = building.build(conf_of(tmp_path, {"eviction": {"bytes": 1024}}), Statistics())
    step = TrainingStep(model, BATCH)
    for seed in range(1, 30):
        step(batch_of(model, seed, ids=500))
    [table] = model.tables
    for number in model.layout.tables[0].groups.values():
        assert 0 < table.group_rows(number) * table.stride <= 1024
    assert table.group_rows(0) > 1024 / table.stride / 2


def test_the_chance_of_a_row(tmp_path):
    """About so many occurrences make a row, the same in another batch size and thread count."""
    runs = []
    for threads in (1, 3):
        conf = conf_of(
            tmp_path,
            {"admission": {"probability": 0.1}},
            train={"batch_size": BATCH, "threads": threads},
        )
        model = building.build(conf, Statistics())
        step = TrainingStep(model, BATCH)
        occurrences = 0
        for seed in range(60):
            batch = batch_of(model, seed, ids=1_000_000)
            occurrences += sum(map(len, batch.ids))
            step(batch)
        runs.append([part.tobytes() for table in model.tables for part in table.records()])
        share = sum(table.rows for table in model.tables) / occurrences
        assert 0.05 < share < 0.16
    assert runs[0] == runs[1]


def test_groups_of_another_rhythm_are_tables_of_their_own(tmp_path):
    """So a rule that is due looks at the rows of its own groups only."""
    rules = {
        "eviction": {"unseen_steps": 1, "every_steps": 3},
        "groups": {"user": {"eviction": {"unseen_steps": 1}}},
    }
    model = building.build(conf_of(tmp_path, rules), Statistics())
    assert [table.slots for table in model.layout.tables] == [
        ("user",),
        ("tags", "item", "history"),
    ]
    step = TrainingStep(model, BATCH)
    for seed in range(6):
        step(batch_of(model, seed))
    figures = row_life.figures(model.layout, table_figures(model))
    assert figures["user"].evicted == 0 < figures["items"].evicted
    assert row_life.end_of_period(model)["user"] > 0


def test_kinds_of_rows_and_places_in_x(tmp_path):
    slots = SLOTS | {"cross": {"cross": ["user", "tags"], "width": 0}, "kept": {"frozen": True}}
    rules = {"shows": {"cvm": True}, "groups": {"tags": {"shows": {"keep": True}}}}
    conf = conf_of(tmp_path, rules, slots=slots)
    layout = plan(conf, Statistics())
    kinds = {table.slots: (table.kind.shows, table.kind.cvm) for table in layout.tables}
    assert kinds == {
        ("user", "item", "history"): (True, True),
        ("tags",): (True, False),
        ("cross",): (True, False),
        ("kept",): (False, False),
    }
    assert layout.pooled == {"user": (0, 4), "item": (4, 4), "tags": (8, 2), "kept": (10, 2)}
    assert layout.sequences["history"].width == 4
    assert layout.sequences_width == 12


SEES = """
from keras import ops

def build(inputs):
    assert inputs.slots == {"user": 2, "tags": 2, "item": 2}, inputs.slots
    assert inputs.sequences == {"history": (3, 2)}
    assert inputs.embeddings.shape == (None, 3, 2)
    values, _ = inputs.sequence("history")
    parts = [inputs.slot("user"), inputs.counts("item"), values, inputs.counts("history")]
    parts.append(inputs.embeddings)
    sizes = (2, 2, 6, 6, 6)
    flat = [ops.reshape(part, (-1, size)) for part, size in zip(parts, sizes)]
    whole = ops.concatenate(flat, axis=1)
    return {f"c{i}": whole[:, i : i + 1] for i in range(22)}
"""
TAGS_KEEP = {"tags": {"shows": {"keep": True}}}


@pytest.mark.parametrize("groups", [{}, TAGS_KEEP])
def test_what_a_recipe_sees(tmp_path, groups):
    """Embeddings without counts, and counts by name."""
    (tmp_path / "sees.py").write_text(SEES)
    conf = conf_of(
        tmp_path,
        {"shows": {"cvm": True}, "groups": groups},
        recipe={"name": str(tmp_path / "sees.py")},
        data={"labels": {"c0": {"column": "a"}}},
    )
    model = building.build(conf, Statistics())
    step = TrainingStep(model, BATCH)
    for seed in range(3):
        step(batch_of(model, seed))
    inference = Inference(model, BATCH)
    logits = inference(batch_of(model, 0))
    x = inference.buffers.x
    apart = inference.buffers.sequences.reshape(BATCH, 3, 4)
    starts = {name: column for name, (column, _) in model.layout.pooled.items()}
    parts = [x[:, starts["user"] :][:, :2], x[:, starts["item"] + 2 :][:, :2]]
    parts += [apart[:, :, :2].reshape(BATCH, 6), apart[:, :, 2:].reshape(BATCH, 6)]
    parts += [x[:, start:][:, :2] for start in starts.values()]
    np.testing.assert_array_equal(logits, np.concatenate(parts, axis=1))
    assert parts[1].any()
    assert parts[3].any()


@pytest.mark.parametrize("groups", [{}, TAGS_KEEP])
def test_a_tower_takes_the_logarithm_of_shows(tmp_path, groups):
    (tmp_path / "deep.py").write_text(
        "from keras import ops\n\n"
        "def build(inputs):\n"
        "    at = [[column] for column in range(inputs.x.shape[1])]\n"
        "    logits = {f'c{i}': ops.take(inputs.deep, at[i], axis=1) for i in range(len(at))}\n"
        "    return logits\n"
    )
    width = 12 if not groups else 10
    conf = conf_of(
        tmp_path,
        {"shows": {"cvm": True}, "groups": groups},
        recipe={"name": str(tmp_path / "deep.py")},
        data={"labels": {"c0": {"column": "a"}}},
    )
    model = building.build(conf, Statistics())
    step = TrainingStep(model, BATCH)
    for seed in range(3):
        step(batch_of(model, seed))
    inference = Inference(model, BATCH)
    deep = inference(batch_of(model, 0))
    expected = inference.buffers.x.copy()
    assert expected.shape[1] == width
    for name in model.layout.with_cvm & model.layout.pooled.keys():
        show = model.layout.pooled[name][0] + 2
        assert expected[:, show].max() > 1
        expected[:, show] = np.log1p(expected[:, show])
    np.testing.assert_allclose(deep, expected, rtol=1e-6)


def test_a_full_sketch_is_told(tmp_path, capsys):
    """The share of new ids that are counted before they came, and a word at the period's end."""
    conf = conf_of(tmp_path, {"admission": {"after": 3}, "sketch": 65536})
    model = building.build(conf, Statistics())
    [table] = model.tables
    assert row_life.miscounted(table.sketch) == 0
    row_life.end_of_period(model)
    assert capsys.readouterr().err == ""
    step = TrainingStep(model, BATCH)
    random = np.random.default_rng(1)
    [plans] = [layout.cells for layout in model.layout.tables]
    ids = random.integers(0, 2**62, BATCH * plans * 1000).astype(np.uint64)
    offsets = np.arange(0, len(ids) + 1, 1000, dtype=np.uint32)
    labels = np.zeros((BATCH, 1), np.float32)
    numeric = np.empty((BATCH, 0), np.float32)
    step(Batch([ids], [offsets], [None], numeric, labels, None, None, None, None))
    share = row_life.miscounted(table.sketch)
    # Of n ids in a range, each of its w counters of a line is hit by none with (1 - 1/w)^n.
    w, n = 65536 / 64 / 4, len(ids) / 64
    assert share == pytest.approx((1 - (1 - 1 / w) ** n) ** 4, rel=0.25)
    row_life.end_of_period(model)
    assert "life.sketch is small for table embedding2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rules": {"admission": {"after": 2, "probability": 0.5}}}, "`after` or `probability`"),
        ({"rules": {"admission": {"after": 256}}}, "between 1 and 255"),
        ({"rules": {"eviction": {"logic": "and", "show": 1}}}, "logic=and needs show, and"),
        ({"rules": {"eviction": {"rows": 9, "bytes": 9999}}}, "not by both"),
        ({"rules": {"eviction": {"every_steps": 9}}}, "say which rows too"),
        ({"rules": {"groups": {"usr": {}}}}, "life.groups.usr: no slot has this group"),
        (
            {
                "rules": {"groups": {"user": {"eviction": {"rows": 9}}}},
                "slots": SLOTS | {"user": {"frozen": True}},
            },
            "life.groups.user: its rows are frozen",
        ),
        (
            {
                "rules": {"groups": {"user": {"shows": {"cvm": True}}}},
                "slots": SLOTS | {"user": {"width": 0}},
            },
            "life.groups.user.shows.cvm follows an embedding",
        ),
        (
            {"rules": {"shows": {"cvm": True}}, "slots": {"user": {"width": 0}}},
            "no slot has one",
        ),
        (
            {
                "rules": {"groups": {"user": {"eviction": {"rows": 9}}}},
                "optimizer": {"updates": "all"},
            },
            "optimizer.updates=all has every row from the start",
        ),
        (
            {"rules": {"shows": {"cvm": True}}, "train": {"loss": {"name": "mse"}}},
            "train.loss=mse has none",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, changes, words):
    with pytest.raises(UserError) as refused:
        conf_of(tmp_path, **changes)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_days_need_daily_training(tmp_path):
    conf = conf_of(tmp_path, {"eviction": {"unseen_days": 3}}, data={"train": "clicks.csv"})
    with pytest.raises(UserError, match=r"life\.eviction\.unseen_days counts days"):
        row_life.check(conf)
    row_life.check(conf_of(tmp_path, {"eviction": {"unseen_days": 3}}, data={"train": "{day}.csv"}))


# From outside: files, commands, checkpoints.


def occurrences(path):
    """Of every value of user_id in a CSV file: how often it stands there, and with label 1."""
    met, clicked = collections.Counter(), collections.Counter()
    with open(path) as file:
        for row in csv.DictReader(file):
            met[row["user_id"]] += 1
            clicked[row["user_id"]] += int(row["label"])
    return met, clicked


def group_records(checkpoint, name):
    """The records of a share group, and its entry in the manifest."""
    for table in checkpoint.manifest.tables:
        for group in table.groups:
            if group.name == name:
                parts = list(rows.stream(checkpoint, table.name))
                every = np.concatenate(parts)
                return every[every["group"] == group.number], group
    raise AssertionError(name)


def test_train_with_admission_and_counts(workspace, ran):
    """Rows of ids met three times and more; shows from the third on; serving reads the same.

    The second pass counts nothing.
    """
    rules = [
        "train.epochs=2",
        "life.admission.after=3",
        "life.shows.cvm=true",
        "+life.groups.shared={admission: {after: 1}, shows: {keep: true}}",
    ]
    ran("train", "conf=small.yaml", "output=run", *rules, cwd=workspace)
    checkpoint = loading.newest(str(workspace / "run"))
    met, clicked = occurrences(workspace / "clicks/train.csv")
    records, group = group_records(checkpoint, "user_id")
    often = [value for value, count in met.items() if count >= 3]
    assert len(records) == len(often) == group.rows
    assert (group.admitted, group.evicted) == (len(often), 0)
    assert group.waiting == len(met) - len(often)
    assert records["show"].sum() == sum(met[value] - 2 for value in often)
    assert 0 < records["click"].sum() <= sum(clicked[value] for value in often)
    shared, _ = group_records(checkpoint, "shared")
    assert shared["show"].sum() == 2 * sum(met.values())
    assert shared["click"].sum() == 2 * sum(clicked.values())
    report = json.loads((workspace / "run/report.json").read_text())
    assert report["life"]["user_id"]["waiting"] == group.waiting

    for command in ("split-graph", "export-embeddings", "verify-serving", "evaluate"):
        ran(command, "output=run", cwd=workspace)
    served = json.loads((workspace / "run/graph/serving.json").read_text())
    [user] = [entry for entry in served["signatures"]["by_slot"] if entry["name"] == "user_id"]
    assert user["shape"] == [6]
    assert served["slots"]["user_id"]["cvm"] is True
    assert served["slots"]["device"]["cvm"] is False
    exported = pq.read_table(workspace / "run/embeddings/user_id.parquet").to_pydict()
    by_id = dict(zip(exported["id"], exported["embedding"], strict=True))
    for record in records:
        row = by_id[int(record["id"])]
        show, click = float(record["show"][0]), float(record["click"][0])
        np.testing.assert_array_equal(np.float32(row[:4]), record["embedding"])
        assert row[4] == show
        assert row[5] == pytest.approx(math.log(click + 1) - math.log(show + 1), rel=1e-6, abs=1e-7)

    # An id that waits reads as one that never was, and not as one that has a row.
    waiting = next(value for value, count in met.items() if count < 3)
    with open(workspace / "clicks/test.csv") as file:
        names, cells = list(csv.reader(file))[:2]
    at = names.index("user_id")
    rows_ = [
        [*cells[:at], user_id, *cells[at + 1 :]] for user_id in (waiting, "never_seen", often[0])
    ]
    with open(workspace / "clicks/asked.csv", "w") as file:
        csv.writer(file).writerows([names, *rows_])
    ran("predict", "output=run", "data.test=asked.csv", "to=asked.parquet", cwd=workspace)
    logits = pq.read_table(workspace / "asked.parquet").column("logit").to_pylist()
    assert logits[0] == logits[1] != logits[2]


def test_days_pass_for_rows(workspace, ran):
    """Daily training by files: unseen rows go at a day's end, and counts decay day by day."""
    lines = (workspace / "clicks/train.csv").read_text().splitlines()
    days = ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-05"]
    expected: dict[str, list] = {}
    for number, day in enumerate(days):
        part = [lines[0], *lines[1 + 200 * number : 201 + 200 * number]]
        path = workspace / f"clicks/train-{day}.csv"
        path.write_text("\n".join(part) + "\n")
        today = int(day[-2:])
        met, clicked = occurrences(path)
        for value, count in met.items():
            show, click, changed = expected.get(value, (0, 0, today))
            left = 0.5 ** (today - changed)
            expected[value] = (show * left + count, click * left + clicked[value], today)
        expected = {value: row for value, row in expected.items() if today - row[2] <= 1}
    rules = ["life.eviction.unseen_days=1", "life.shows.cvm=true", "life.shows.decay=0.5"]
    settings = [
        "data.train=train-{day}.csv", "train.batch_size=64", "gate.enabled=false",
        "train.epochs=2",  # each day is counted once
    ]  # fmt: skip
    ran("train", "conf=small.yaml", "output=run", *rules, *settings, cwd=workspace)
    checkpoint = loading.newest(str(workspace / "run"))
    records, group = group_records(checkpoint, "user_id")
    assert len(records) == len(expected) == group.rows
    assert group.evicted > 0
    for field, at in (("show", 0), ("click", 1)):
        counts = np.sort(records[field][:, 0])
        np.testing.assert_allclose(counts, sorted(row[at] for row in expected.values()), rtol=1e-5)
    for command in ("split-graph", "export-embeddings", "verify-serving"):
        ran(command, "output=run", cwd=workspace)
    shows = pq.read_table(workspace / "run/embeddings/user_id.parquet").column("embedding")
    read = np.array(shows.to_pylist())[:, -2]
    kept = [row[0] * 0.5 ** (5 - row[2]) for row in expected.values()]
    np.testing.assert_allclose(np.sort(read), np.sort(kept), rtol=1e-5)


def test_check_tells_the_rules(workspace, cli, ran):
    rules = [
        "life.admission.after=3", "life.shows.cvm=true", "life.eviction.rows=100",
        "life.sketch=65536",
    ]  # fmt: skip
    done = ran("check", "conf=small.yaml", *rules, "format=json", cwd=workspace)
    report = json.loads(done.out)
    met, _ = occurrences(workspace / "clicks/train.csv")
    user = report["lives"]["user_id"]
    assert user["ids"]["estimate"] == len(met)
    assert user["rows"]["estimate"] == min(100, sum(count >= 3 for count in met.values()))
    assert "a row from occurrence 3 in the data on" in user["rules"]
    assert "at most 100 rows" in user["rules"]
    [table] = report["tables"].values()
    assert table["sketch_bytes"] == 65536
    assert 0 < table["overcount"] < 1
    plain = json.loads(cli("check", "conf=small.yaml", "format=json", cwd=workspace).out)
    [without] = plain["tables"].values()
    assert table["row_bytes"] == pytest.approx(without["row_bytes"] + 8)
    assert plain["lives"] == {}
    done = cli("check", "conf=small.yaml", *rules, cwd=workspace)
    assert "show and ln(click+1) - ln(show+1) are inputs" in done.out + done.err
    assert "sketch of embedding4: 64 KiB" in done.out + done.err


def test_who_is_admitted_is_what_a_loop_finds():
    draw = np.random.default_rng(3)
    ids = draw.integers(0, 60, 300).astype(np.uint64)
    owners = np.sort(draw.integers(0, 100, 300))
    life = schema.RowLife(schema.Admission(after=4), schema.Shows(), schema.Eviction())
    firsts, times, waited = sample.admitted(ids, owners, life, 1)
    expected = [owners[ids == id_] for id_ in np.unique(ids)]
    assert list(firsts) == [rows_[3] for rows_ in expected if len(rows_) > 3]
    assert list(times) == [len(rows_) - 3 for rows_ in expected if len(rows_) > 3]
    assert waited == sum(min(len(rows_), 4) for rows_ in expected)
    life = schema.RowLife(schema.Admission(probability=0.3), schema.Shows(), schema.Eviction())
    many = np.arange(10_000, dtype=np.uint64)
    firsts, times, waited = sample.admitted(many, np.arange(10_000), life, 1)
    assert 2800 < len(firsts) < 3200
    assert waited == 10_000
    none = np.empty(0, np.uint64), np.empty(0, np.int64)
    assert [len(array) for array in sample.admitted(*none, life, 1)[:2]] == [0, 0]
