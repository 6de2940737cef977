"""Many kinds of slots in one model: where each stands, what is pooled, which rows a step moves.

The recipe adds everything up, so the gradient of the logit is 1 for every input and the expected
rows can be worked out by hand: with SGD a row moves by rate * sum of (y - p) / B * its share.
"""

import numpy as np
import pytest

from tnctl import schema
from tnctl.data.batches import Batch
from tnctl.data.statistics_document import Statistics
from tnctl.errors import UserError
from tnctl.model import building
from tnctl.model.layout import plan
from tnctl.training.step import TrainingStep

ADDS = """
from keras import ops

def build(inputs):
    values, lengths = inputs.sequence("history")
    total = inputs.linear + ops.sum(inputs.x, axis=1, keepdims=True)
    total += ops.sum(values, axis=[1, 2])[:, None]
    return total + 0.01 * ops.cast(lengths, "float32")[:, None]
"""
RATE = 0.5
SGD = {"name": "sgd", "learning_rate": RATE}
SLOTS = {
    "user": {},
    "wide": {"width": 6},
    "only_linear": {"width": 0},
    "only_embedding": {"linear": False},
    "tags": {"weights": "tag_weights", "pooling": "mean"},
    "frozen": {"frozen": True},
    "item": {"group": "items"},
    "history": {"group": "items", "pooling": "none", "max_length": 3},
    "own_rate": {},
    "hot": {"ids": "modulo", "size": 4, "indicator": True},
}


def conf_of(folder, **changes):
    (folder / "adds.py").write_text(ADDS)
    values = {
        "recipe": {"name": str(folder / "adds.py")},
        "output": "none",
        "slots": SLOTS,
        "numeric": {"price": {}, "vector": {"width": 2}},
        "embedding": {"width": 2, "initial": {"kind": "normal", "scale": 0.3}},
        "optimizer": {
            "linear": SGD,
            "embedding": SGD,
            "dense": SGD,
            "groups": {"own_rate": {"embedding": {"name": "sgd", "learning_rate": 0.25}}},
        },
        "train": {"batch_size": 5, "threads": 2},
        **changes,
    }
    return schema.from_values(values)


def batch_of(model, rows, seed):
    """Cells of zero to three ids (a sequence: at most one a place), with weights for `tags`."""
    random = np.random.default_rng(seed)
    ids, offsets, weights = [], [], []
    for table in model.layout.tables:
        counts = []
        for _ in range(rows):
            for slot, spread in zip(table.slots, table.spreads, strict=True):
                if slot in model.layout.sequences:
                    length = random.integers(0, spread + 1)
                    counts += [1] * length + [0] * (spread - length)
                else:
                    counts.append(random.integers(0, 4))
        offsets.append(np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32))
        ids.append(random.integers(0, 6, sum(counts)).astype(np.uint64))
        weighted = any(model.conf.slots[slot].weights for slot in table.slots)
        of_table = np.ones(sum(counts), np.float32)
        if weighted:
            cell_slots = np.repeat(np.arange(len(table.slots)), table.spreads)
            owner = np.repeat(np.tile(cell_slots, rows), counts)
            at = table.slots.index("tags")
            of_table[owner == at] = random.random((owner == at).sum()).astype(np.float32) + 0.1
        weights.append(of_table if weighted else None)
    return Batch(
        ids=ids,
        offsets=offsets,
        weights=weights,
        numeric=random.normal(size=(rows, 7)).astype(np.float32),
        labels=(random.random((rows, 1)) < 0.5).astype(np.float32),
        weight=None,
        reference=None,
        group=None,
        carried=None,
    )


def cells_of(model, batch):
    """Every id of a batch: (table, slot, example, place, group, id, its share of the pooled)."""
    for number, table in enumerate(model.layout.tables):
        cell = 0
        for example in range(batch.rows):
            for slot, group, spread in zip(table.slots, table.group_of, table.spreads, strict=True):
                first, last = (int(batch.offsets[number][c]) for c in (cell, cell + spread))
                cell += spread
                ids = batch.ids[number][first:last]
                shares = np.ones(len(ids))
                if batch.weights[number] is not None:
                    shares = batch.weights[number][first:last].astype(np.float64)
                if model.conf.slots[slot].pooling == "mean" and len(ids):
                    shares = shares / shares.sum()
                for place, (id_, share) in enumerate(zip(ids, shares, strict=True)):
                    yield number, slot, example, place, group, int(id_), share


def logits_of(model, batch):
    """The sum of everything, from the rows themselves."""
    total = batch.numeric.astype(np.float64).sum(axis=1)
    for number, slot, example, _, group, id_, share in cells_of(model, batch):
        row = model.tables[number].lookup(group, id_)
        total[example] += share * (0 if row is None else row.astype(np.float64).sum())
        total[example] += 0.01 * (slot == "history")
    return total


def test_the_places_of_all_kinds_of_slots(tmp_path):
    layout = plan(conf_of(tmp_path), Statistics())
    tables = {table.name: table.slots for table in layout.tables}
    assert tables == {
        "embedding2": ("user", "tags", "item", "history"),
        "embedding6": ("wide",),
        "linear": ("only_linear",),
        "embedding2_part2": ("only_embedding",),
        "embedding2_frozen": ("frozen",),
        "embedding2_part3": ("own_rate",),
    }
    assert layout.pooled == {
        "user": (0, 2),
        "tags": (2, 2),
        "item": (4, 2),
        "wide": (6, 6),
        "only_embedding": (12, 2),
        "frozen": (14, 2),
        "own_rate": (16, 2),
    }
    assert layout.numeric_columns == {"price": (18, 1), "vector": (19, 2), "hot": (21, 4)}
    assert layout.width == 25 and layout.sequences_width == 6
    assert [table.cells for table in layout.tables] == [6, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("rows", [5, 3])
def test_a_step_moves_each_row_by_its_share(tmp_path, rows):
    model = building.build(conf_of(tmp_path), Statistics())
    step = TrainingStep(model, 5)
    batch = batch_of(model, rows, 1)
    step(batch)
    before, moves = {}, {}
    p = 1 / (1 + np.exp(-logits_of(model, batch)))
    for number, _, example, _, group, id_, share in cells_of(model, batch):
        key = number, group, id_
        before[key] = model.tables[number].lookup(group, id_).astype(np.float64)
        gradient = (p[example] - batch.labels[example, 0]) / rows * share
        moves[key] = moves.get(key, 0) + gradient
    step(batch)
    for key, gradient in moves.items():
        number, group, id_ = key
        table = model.layout.tables[number]
        rates = np.full(len(before[key]), RATE)
        if table.slots == ("own_rate",):
            rates[1:] = 0.25
        if table.kind.frozen:
            rates[:] = 0
        after = model.tables[number].lookup(group, id_)
        np.testing.assert_allclose(after, before[key] - rates * gradient, rtol=1e-4, atol=1e-6)


def test_one_width_where_a_recipe_needs_it(tmp_path):
    conf = conf_of(tmp_path)
    conf.recipe = {"name": "deepfm", "hidden": [2]}
    with pytest.raises(UserError, match=r"one width, and slots\.wide has 6 where others have 2"):
        building.build(conf, Statistics())


def test_heads_and_labels_must_agree(tmp_path):
    (tmp_path / "heads.py").write_text(
        "def build(inputs):\n    return {'a': inputs.linear, 'b': inputs.linear * 2}\n"
    )
    labels = {"a": {"column": "a"}, "c": {"column": "c"}}
    for data, words in (({}, "heads a, b"), ({"labels": labels}, r"data\.labels\.c")):
        conf = conf_of(tmp_path, recipe={"name": str(tmp_path / "heads.py")}, data=data)
        with pytest.raises(UserError, match=words):
            building.build(conf, Statistics())


def test_moving_statistics_are_a_mean_at_first(tmp_path):
    """What they start with, zeros and ones, is of no batch and must not show."""
    (tmp_path / "norm.py").write_text(
        "from tnctl.model import layers\n\n"
        "def build(inputs):\n"
        "    norm = layers.BatchNorm(momentum=0.5, name='norm')(inputs.numeric)\n"
        "    return layers.Logit()(norm) + inputs.linear\n"
    )
    model = building.build(
        conf_of(tmp_path, recipe={"name": str(tmp_path / "norm.py")}), Statistics()
    )
    step = TrainingStep(model, 5)
    mean, variance = np.zeros(7), np.ones(7)
    for number, seed in enumerate(range(4), start=1):
        batch = batch_of(model, 5, seed)
        step(batch)
        rate = max(0.5, 1 / number)
        mean += rate * (batch.numeric.mean(axis=0) - mean)
        variance += rate * (batch.numeric.var(axis=0) - variance)
        np.testing.assert_allclose(model.moving[0], mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(model.moving[1], variance, rtol=1e-4, atol=1e-6)
