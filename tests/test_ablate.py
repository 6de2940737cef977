"""`tnctl ablate`: each input shuffled in turn, against files in which its column is."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from tnctl import schema
from tnctl.data.batches import Batch
from tnctl.evaluation import importance
from tnctl.evaluation.importance import shuffled_together
from tnctl.evaluation.split_scoring import Counts
from tnctl.model.layout import Layout, RowKind, Sequence, TableLayout
from tnctl.schema import Optimizer
from tnctl.tables.columns import permutation

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
NUMBERS = {"number": [0], "vector": [1, 2], "hot": [3, 4, 5]}


@pytest.mark.parametrize("names", [*[{name} for name in PLACES], {"seq", "c"}, {"a", "b", "vector"},
                                   *[{name} for name in NUMBERS], {*PLACES, *NUMBERS}])  # fmt: skip
def test_inputs_come_from_the_rows_of_the_donor(names):
    batch, donor = random_batch(seed=0), random_batch(seed=1)
    expected = [cells_of(batch, table) for table in (0, 1)]
    given = [cells_of(donor, table) for table in (0, 1)]
    numeric = batch.numeric.copy()
    for name in names & PLACES.keys():
        table, places = PLACES[name]
        for row, of_donor in zip(expected[table], given[table], strict=True):
            for place in places:
                row[place] = of_donor[place]
    for name in names & NUMBERS.keys():
        numeric[:, NUMBERS[name]] = donor.numeric[:, NUMBERS[name]]
    mixed = importance.exchanged(batch, donor, LAYOUT, names)
    assert [cells_of(mixed, table) for table in (0, 1)] == expected
    assert np.array_equal(mixed.numeric, numeric)
    assert mixed.weights[1] is None
    assert [part.dtype for part in mixed.offsets] == [np.uint32] * 2
    # The batches themselves are as they were.
    for unchanged, seed in ((batch, 0), (donor, 1)):
        assert np.array_equal(unchanged.numeric, random_batch(seed=seed).numeric)
        for table in (0, 1):
            assert cells_of(unchanged, table) == cells_of(random_batch(seed=seed), table)


def test_what_is_made_of_an_input_is_shuffled_with_it():
    conf = schema.from_values({
        "recipe": {"name": "lr"},
        "slots": {
            "user": {}, "age": {"ids": "quantiles", "buckets": 8}, "shop": {"column": "place"},
            "user_age": {"cross": ["user", "age"]}, "user_place": {"cross": ["user", "place"]},
            "all": {"cross": ["age", "user", "shop"]}, "hour": {"column": "at", "ids": "hour"},
            "weekday": {"column": "at", "ids": "weekday"}, "user_hour": {"cross": ["user", "hour"]},
            "tags": {"weights": "height", "separator": "|"},
        },
        "numeric": {"years": {"column": "age"}, "both": {"columns": ["age", "height"]},
                    "height": {}, "since": {"column": "at", "since": "2026-01-01"}},
    })  # fmt: skip
    together = shuffled_together(conf, [*conf.slots, *conf.numeric])
    of_age = {"age", "years", "both", "user_age", "all"}
    assert {name: set(others) - {name} for name, others in together.items()} == {
        "user": {"user_age", "user_place", "all", "user_hour"},
        "age": of_age - {"age"}, "years": of_age - {"years"}, "height": {"both"}, "both": set(),
        "shop": {"user_place", "all"}, "user_age": {"all"}, "user_place": {"all"}, "all": set(),
        "hour": {"user_hour"}, "weekday": set(), "user_hour": set(), "since": set(), "tags": set(),
    }  # fmt: skip


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


def shuffled(folder, column, window):
    """The validation file with one column shuffled within windows of so many rows."""
    path = folder / "clicks/validation.csv"
    options = pyarrow.csv.ConvertOptions(
        column_types={name: pa.string() for name in path.read_text().splitlines()[0]
                      .replace('"', "").split(",")},
        strings_can_be_null=True,
    )  # fmt: skip
    table = pyarrow.csv.read_csv(path, convert_options=options)
    place = table.schema.get_field_index(column)
    drawn = [
        start + permutation(1, importance.SHUFFLES, number, min(window, len(table) - start))
        for number, start in enumerate(range(0, len(table), window))
    ]
    values = table.column(place).take(pa.array(np.concatenate(drawn)))
    table = table.set_column(place, column, values)
    to = folder / "clicks/shuffled.csv"
    pyarrow.csv.write_csv(table, to, pyarrow.csv.WriteOptions(quoting_style="none"))
    return "data.validation=shuffled.csv"


@pytest.mark.parametrize("window", [pytest.param(1024, marks=pytest.mark.long), 256])
def test_every_input_is_worth_what_shuffling_its_column_costs(run_copy, cli, ran, window):
    done = ran("ablate", "output=run", f"data.window={window}", cwd=run_copy)
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
    for name in (*SLOTS[:-1], "price", "quality"):
        assert (
            inputs[name]["metric"]
            == evaluated(cli, run_copy, shuffled(run_copy, name, window))["auc"]
        ), name
    # They read the same column.
    assert inputs["price_range"]["metric"] == inputs["price"]["metric"]
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
    monkeypatch.setattr(importance, "FLOATS_KEPT", 900 * 3)
    assert cli("ablate", "output=run", cwd=trained).out == whole


def test_without_data_it_says_so(trained, cli):
    done = cli("ablate", "output=run", "data.validation=null", "data.test=null", cwd=trained)
    assert done.code == 2
    assert "data.validation=FILES" in done.last
    open_size = "train.batch_size=null"  # commands that train nothing take the largest
    done = cli("ablate", "output=run", "data.validation=null", open_size, cwd=trained)
    assert json.loads(done.out)["split"] == "test"


PLANTED = """\
defaults: [schema, {recipe: lr}, _self_]
slots: {strong: {}, middle: {}, weak: {}, noise: {}, a: {}, b: {},
        a_b: {cross: [a, b]}, noise_a: {cross: [noise, a]}}
numeric: {noise_number: {transform: standardize}}
data: {train: train.csv, validation: validation.csv}
train: {batch_size: 256, epochs: 2}
evaluation: {keep: last}
"""


def write_planted(path, rows, seed):
    """Clicks by three slots and by whether a = b; the two columns of noise have no gap."""
    random = np.random.default_rng(seed)
    columns = {name: random.integers(0, 10, rows) for name in ("strong", "middle", "weak")}
    columns |= {name: random.integers(0, 2, rows) for name in ("a", "b")}
    logit = 2.0 * (columns["a"] == columns["b"]) - 1
    for name, effect in (("strong", 3.0), ("middle", 1.5), ("weak", 0.7)):
        logit += effect * (columns[name] % 2) - effect / 2
    columns["noise"] = random.integers(0, 3000, rows)
    columns["noise_number"] = 5 + random.normal(size=rows)
    columns["label"] = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)
    pyarrow.csv.write_csv(pa.table(columns), path)


def test_noise_is_worth_nothing_and_planted_inputs_come_in_their_order(tmp_path, ran):
    (tmp_path / "planted.yaml").write_text(PLANTED)
    write_planted(tmp_path / "train.csv", 30_000, seed=0)
    write_planted(tmp_path / "validation.csv", 50_000, seed=1)
    done = ran("train", "conf=planted.yaml", "output=run", cwd=tmp_path)
    report = json.loads((tmp_path / "run/report.json").read_text())
    lost, page = report["importance"], (tmp_path / "run/report.html").read_text()
    assert report["importance_of"] == "auc on data.validation"
    assert all(f">{value:+.5f}<" in page for value in lost.values())
    for name in ("noise", "noise_number", "noise_a"):
        assert abs(lost[name]) < 0.002, (name, lost)
    assert lost["strong"] > lost["a_b"] > lost["middle"] > lost["weak"] > 0.005
    # All that a and b tell is in their cross, which is shuffled with either.
    assert lost["a"] == pytest.approx(lost["a_b"], abs=0.005)
    assert lost["b"] == pytest.approx(lost["a_b"], abs=0.005)
    [words] = [line for line in done.err.splitlines() if line.startswith("auc lost when shuffled")]
    assert f"  strong {lost['strong']:.4f}, " in words
