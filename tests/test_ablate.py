"""`tnctl ablate`: each input taken away in turn, against files in which it is empty."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from tnctl.data.batches import Batch
from tnctl.evaluation import ablation
from tnctl.evaluation.split_scoring import Counts
from tnctl.model.layout import Layout, RowKind, Sequence, TableLayout
from tnctl.schema import Optimizer

SLOTS = ("user_id", "item_id", "device", "region", "interests", "price_range")


def table_layout(slots, spreads):
    return TableLayout(
        "t", RowKind(4, True, False, Optimizer(), Optimizer()), slots, spreads,
        {slot: n for n, slot in enumerate(slots)}, tuple(range(len(slots))), (0,) * len(slots),
    )  # fmt: skip


LAYOUT = Layout(
    (table_layout(("a", "seq", "b"), (1, 3, 1)), table_layout(("c",), (1,))),
    {"number": 1, "vector": 2, "hot": 3},
    ("hot",),
    20,
    14,
    {"seq": Sequence(0, 3, 4, 0)},
)


def random_batch(rows=17, seed=0):
    rng = np.random.default_rng(seed)
    ids, offsets, weights = [], [], []
    for table in LAYOUT.tables:
        lengths = rng.integers(0, 4, (rows, table.cells))
        offsets.append(np.append(0, np.cumsum(lengths)).astype(np.uint32))
        ids.append(rng.integers(0, 2**63, lengths.sum()).astype(np.uint64))
        weights.append(rng.random(len(ids[-1])).astype(np.float32))
    weights[1] = None
    numeric = rng.integers(0, 2, (rows, 6)).astype(np.float32)
    labels = np.zeros((rows, 1), np.float32)
    return Batch(ids, offsets, weights, numeric, labels, None, None, None, None)


def cells_of(batch, table):
    """[row][cell] -> [(id, weight)], the slow obvious way."""
    width = LAYOUT.tables[table].cells
    offsets, ids = batch.offsets[table], batch.ids[table]
    weights = batch.weights[table]
    weights = np.ones(len(ids)) if weights is None else weights
    cells = [
        list(zip(ids[s:e].tolist(), weights[s:e].tolist(), strict=True))
        for s, e in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ]
    return [cells[row * width : (row + 1) * width] for row in range(batch.rows)]


PLACES = {"a": (0, [0]), "seq": (0, [1, 2, 3]), "b": (0, [4]), "c": (1, [0])}


@pytest.mark.parametrize("name", PLACES)
def test_without_a_slot_its_cells_are_empty(name):
    batch = random_batch()
    cells = [cells_of(batch, table) for table in (0, 1)]
    without = ablation.without(batch, LAYOUT, name)
    table, places = PLACES[name]
    for row in cells[table]:
        for place in places:
            row[place] = []
    assert [cells_of(without, table) for table in (0, 1)] == cells
    assert without.weights[1] is None
    assert [part.dtype for part in without.offsets] == [np.uint32] * 2
    assert without.numeric is batch.numeric
    # The batch itself is as it was.
    assert len(batch.ids[0]) == len(random_batch().ids[0])


@pytest.mark.parametrize(("name", "columns"), [("number", [0]), ("vector", [1, 2]),
                                               ("hot", [3, 4, 5])])  # fmt: skip
def test_without_numbers_their_columns_are_zeros(name, columns):
    batch = random_batch()
    expected = batch.numeric.copy()
    expected[:, columns] = 0
    without = ablation.without(batch, LAYOUT, name)
    assert np.array_equal(without.numeric, expected)
    assert without.ids is not batch.ids or without.ids == batch.ids
    assert np.array_equal(batch.numeric, random_batch().numeric)


def test_counts_of_inputs():
    counts = Counts(LAYOUT)
    batches = [random_batch(rows, seed) for seed, rows in enumerate((1, 17, 30))]
    for batch in batches:
        counts.add(batch)
    assert counts.examples == 48
    for name, (table, places) in PLACES.items():
        lengths = [
            sum(len(row[place]) for place in places)
            for batch in batches
            for row in cells_of(batch, table)
        ]
        assert counts.ids[name] == sum(lengths)
        assert counts.present[name] == sum(length > 0 for length in lengths)
    numeric = np.concatenate([batch.numeric for batch in batches])
    assert counts.present["vector"] == int((numeric[:, 1] + numeric[:, 2] > 0).sum())
    assert counts.ids["hot"] == int(numeric[:, 3:].sum())


def evaluated(cli, folder, *overrides):
    done = cli("evaluate", "output=run", "data.test=null", *overrides, cwd=folder)
    assert done.code == 0, done.err
    return json.loads(done.out)


def emptied(folder, column):
    """The validation file with nothing in one column."""
    path = folder / "clicks/validation.csv"
    options = pyarrow.csv.ConvertOptions(
        column_types={name: pa.string() for name in path.read_text().splitlines()[0]
                      .replace('"', "").split(",")},
        strings_can_be_null=True,
    )  # fmt: skip
    table = pyarrow.csv.read_csv(path, convert_options=options)
    place = table.schema.get_field_index(column)
    table = table.set_column(place, column, pa.nulls(table.num_rows, pa.string()))
    to = folder / "clicks/emptied.csv"
    pyarrow.csv.write_csv(table, to, pyarrow.csv.WriteOptions(quoting_style="none"))
    return "data.validation=emptied.csv"


def test_every_input_is_worth_what_its_absence_costs(run_copy, cli):
    done = cli("ablate", "output=run", cwd=run_copy)
    assert done.code == 0, done.err
    printed = json.loads(done.out)
    whole = evaluated(cli, run_copy)
    assert (printed["split"], printed["examples"]) == ("validation", 900)
    assert (printed["metric"], printed["whole"]) == ("auc", whole["auc"])
    inputs = {entry["name"]: entry for entry in printed["inputs"]}
    assert set(inputs) == {*SLOTS, "price", "quality"}
    losses = [entry["loss"] for entry in printed["inputs"]]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 0.001
    for entry in inputs.values():
        assert entry["loss"] == whole["auc"] - entry["metric"]
    # item_id has missing=value and price is read twice, so for these the file says another thing.
    for name in ("user_id", "device", "region", "interests", "quality"):
        assert inputs[name]["metric"] == evaluated(cli, run_copy, emptied(run_copy, name))["auc"]
    report = json.loads((run_copy / "run/report.json").read_text())
    rows = report["tables"]["embedding4"]["rows"]
    of_slots = [inputs[name] for name in SLOTS if name != "region"]  # region shares with device
    assert inputs["region"]["rows"] == inputs["device"]["rows"]
    assert sum(entry["rows"] for entry in of_slots) == rows
    assert (
        abs(sum(entry["bytes"] for entry in of_slots) - report["tables"]["embedding4"]["bytes"]) < 5
    )
    assert inputs["price"]["rows"] is None
    # A person sees the same, sorted.
    shown = [line.split()[0] for line in done.err.splitlines() if "+0." in line or "-0." in line]
    assert shown == [entry["name"] for entry in printed["inputs"]]


def test_in_parts_as_at_once(trained, cli, monkeypatch):
    whole = cli("ablate", "output=run", cwd=trained).out
    monkeypatch.setattr(ablation, "FLOATS_KEPT", 900 * 3)
    assert cli("ablate", "output=run", cwd=trained).out == whole


def test_without_data_it_says_so(trained, cli):
    done = cli("ablate", "output=run", "data.validation=null", "data.test=null", cwd=trained)
    assert done.code == 2
    assert "data.validation=FILES" in done.last
    done = cli("ablate", "output=run", "data.validation=null", cwd=trained)
    assert json.loads(done.out)["split"] == "test"
