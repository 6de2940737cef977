"""The day gate: what it takes of a day, against counting by hand, and what it refuses."""

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tnctl import documents, schema
from tnctl.data.batches import taken
from tnctl.data.day_records import DayRecord, OfDay
from tnctl.data.statistics_document import Statistics
from tnctl.errors import UserError
from tnctl.evaluation.split_scoring import features_of
from tnctl.model.building import build
from tnctl.model.parameters import Parameters
from tnctl.schema import Gate
from tnctl.tables.columns import hash_bytes, mix64
from tnctl.training.days import day_figures, gate
from tnctl.training.days.day_figures import DayFigures, DistinctEstimate, Repeats
from tnctl.training.days.gate import findings, turned_round

ROWS = 2000
CONF = {
    "recipe": {"name": "lr"},
    "output": "run",
    "slots": {
        "user": {},
        "item": {"missing": "value"},
        "campaign": {},
        "device": {"group": "shared"},
        "tags": {"separator": "|"},
        "rare": {"group": "shared"},
        "size": {"ids": "vocabulary", "vocabulary": ["s", "m", "l"], "indicator": True},
    },
    "numeric": {"price": {"transform": "log1p"}, "age": {}},
    "data": {"train": "x", "label": {"column": "label"}},
    "train": {"batch_size": 256},
}


def zipf(random, rows, ids, power=1.0):
    share = 1 / np.arange(1, ids + 1) ** power
    return random.choice(ids, rows, p=share / share.sum())


def renewed(name, ids, day, new):
    """Texts of ids, a share `new` of which is replaced by others each day."""
    born = np.zeros(len(ids), int)
    for number in range(1, day + 1):
        keys = np.array(
            [
                hash_bytes(f"{name} {id_number} {number}".encode())
                for id_number in range(ids.max() + 1)
            ]
        )
        born[(mix64(keys.astype(np.uint64)) / 2.0**64 < new)[ids]] = number
    return [f"{name}{id_}.{age}" for id_, age in zip(ids, born, strict=True)]


def columns_of(day, rows=ROWS, new=0.3):
    """A day of clicks: columns of texts and numbers."""
    random = np.random.default_rng(day)
    items, tags = zipf(random, rows, 500), random.integers(0, 5, rows)
    return {
        "user": renewed("u", random.integers(0, 800, rows), day, new),
        "item": renewed("i", items, day, new),
        "campaign": renewed("c", zipf(random, rows, 50, 0.7), day, new),
        "device": [f"d{drawn}" for drawn in zipf(random, rows, 3)],
        "tags": ["|".join(f"t{number}" for number in random.integers(0, 100, n)) for n in tags],
        "rare": [f"r{number}" if number < 50 else None for number in random.integers(0, 800, rows)],
        "size": [("s", "m", "l")[number] for number in random.integers(0, 3, rows)],
        "price": random.lognormal(2, 1, rows),
        "age": random.integers(18, 80, rows).astype(float),
        "label": (random.random(rows) < 0.1 + 0.3 * (items % 7 == 0)).astype(float),
    }


def model_of(**changed):
    return build(schema.from_values({**CONF, **changed}), Statistics())


def looked(model, columns, edges=None, insert=True, batch=256):
    """What the gate takes of a day; its ids get rows afterwards."""
    features = features_of(model.conf, model)
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    window = features.encode(table, lambda row: ("x", row))
    order = np.arange(window.rows, dtype=np.uint32)
    batches = [taken(window, order[at : at + batch]) for at in range(0, window.rows, batch)]
    has_rows = any(table.rows for table in model.tables)

    def contains(table, groups, ids):
        return model.tables[table].contains(groups, ids)

    figures = DayFigures(model, edges or {}, contains if has_rows else None)
    parameters = Parameters(model)
    for part in batches:
        figures.add(part)
    day = figures.result()
    for part in batches if insert else []:
        parameters.find(part, insert=True)
    return day


@pytest.fixture(scope="module")
def week():
    """A model that has seen four days of which 30 % of the ids were new, and these days."""
    model, days = model_of(), []
    for day in range(4):
        rows = ROWS + 500 * (day % 3)
        figures = looked(model, columns_of(day, rows), days[0].edges() if days else None)
        assert not findings(Gate(), figures, days), day
        days.append(figures)
    return model, days


def judged(week, columns, **thresholds):
    model, days = week
    day = looked(model, columns, days[0].edges(), insert=False)
    return [finding.sentence for finding in findings(replace(Gate(), **thresholds), day, days)]


def test_what_is_taken_is_what_counting_finds(week, monkeypatch):
    monkeypatch.setattr(day_figures, "ROWS_AT_A_TIME", 300)
    model, days = week
    columns = columns_of(7)
    day = looked(model, columns, days[0].edges(), insert=False, batch=100)
    assert day.examples == ROWS
    assert day.labels == {"label": pytest.approx(np.mean(columns["label"]))}
    known = {
        (layout.slots[number], int(id_))
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
        for records in table.records()
        for id_, group in zip(records["id"], records["group"], strict=True)
        for number in range(len(layout.slots))
        if layout.group_of[number] == group
    }
    for name in ("user", "item", "device", "tags", "rare"):
        cells = [[] if not cell else cell.split("|") for cell in columns[name]]
        ids = [hash_bytes(text.encode()) for cell in cells for text in cell]
        figures = day.inputs[name]
        assert figures.occurrences == len(ids)
        assert figures.coverage == sum(map(bool, cells)) / ROWS
        assert figures.length == len(ids) / sum(map(bool, cells))
        assert figures.distinct == len(set(ids))
        assert figures.known == pytest.approx(sum((name, text) in known for text in ids) / len(ids))
        buckets = mix64(np.array(ids, np.uint64)) >> np.uint64(58)
        assert figures.histogram == np.bincount(buckets.astype(int), minlength=64).tolist()
    price = np.log1p(columns["price"]).astype(np.float32)
    places = np.searchsorted(day.inputs["price"].edges, price)
    assert day.inputs["price"].histogram == np.bincount(places, minlength=10).tolist()
    assert day.inputs["size"].histogram == [columns["size"].count(size) for size in "sml"]
    assert documents.parse(OfDay, json.dumps(documents.plain(day)).encode()) == day
    other = replace(day, inputs={**day.inputs, "size": day.inputs["price"]})
    assert day.same_rows(day) and not any(map(day.same_rows, (days[0], other)))


def test_a_day_like_the_others_passes(week):
    for seed, rows in ((11, ROWS), (12, 400), (13, 60), (14, 1), (15, 3 * ROWS)):
        columns = {**columns_of(seed, rows), "user": columns_of(4, rows)["user"]}
        columns |= {name: columns_of(4, rows)[name] for name in ("item", "campaign")}
        assert judged(week, columns) == [], rows


@pytest.mark.parametrize("sizes", [(60, 3000, 20, 1000), (1, 500, 1), (150, 150, 150, 150)])
def test_days_of_other_sizes_pass(sizes):
    """What few examples say by chance is not held against a day, nor what few said before."""
    model, days = model_of(), []
    for day, rows in enumerate(sizes):
        figures = looked(model, columns_of(day, rows), days[0].edges() if days else None)
        assert findings(Gate(), figures, days) == [], day
        days.append(figures)


def hashed_again(texts):
    return [text and "|".join(f"{part}x" for part in text.split("|")) for text in texts]


BROKEN = {
    "an empty column": ("user", lambda v: [None] * len(v), "slots.user: coverage 0.0%, 100.0%"),
    "an empty column with missing=value": ("item", lambda v: [None] * len(v), "slots.item: "),
    "an empty list": ("tags", lambda v: [""] * len(v), "slots.tags: coverage 0.0%"),
    "half of a column": ("device", lambda v: [None] * 1000 + v[1000:], "slots.device: coverage 50"),
    "an empty rare column": ("rare", lambda v: [None] * len(v), "slots.rare: coverage 0.0%, "),
    "hashed again": ("user", hashed_again, "slots.user: 100.0% of its occurrences are of ids with"),
    "hashed again, few": ("campaign", hashed_again, "slots.campaign: 100.0% of its occ"),
    "hashed again, very few": ("device", hashed_again, "slots.device: "),
    "hashed again, lists": ("tags", hashed_again, "slots.tags: 100.0%"),
    "one value": ("user", lambda v: v[:1] * len(v), "slots.user: "),
    "twice as long": ("tags", lambda v: [t and f"{t}|{t}" for t in v], "slots.tags: 4.9"),
    "only the first": ("tags", lambda v: [t.split("|")[0] for t in v], "slots.tags: 1 ids per"),
    "no number": ("price", lambda v: v * 0, "numeric.price: coverage 0.0%"),
    "one number": ("age", lambda v: v * 0 + 30, "numeric.age: population stability index"),
    "another unit": ("age", lambda v: v * 12, "numeric.age: population stability index"),
    "one choice": ("size", lambda v: ["s"] * len(v), "slots.size: "),
    "no clicks": ("label", lambda v: v * 0, "label label: its mean is 0, 0.1"),
    "labels inverted": ("label", lambda v: 1 - v, "label label: its mean is 0.8"),
    "all clicks": ("label", lambda v: v * 0 + 1, "label label: its mean is 1, 0.1"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_day_is_found(week, fault):
    name, change, sentence = BROKEN[fault]
    columns = columns_of(4)
    columns[name] = change(columns[name])
    [reason] = judged(week, columns)
    assert reason.startswith(sentence)
    assert "days before (gate." in reason or "from day to day before (gate." in reason


def test_ids_hashed_again_on_the_second_day():
    """One day tells what the next should know."""
    model = model_of()
    first = looked(model, columns_of(0))
    columns = columns_of(1)
    assert findings(Gate(), looked(model, columns, first.edges(), insert=False), [first]) == []
    columns["item"] = hashed_again(columns["item"])
    [finding] = findings(Gate(), looked(model, columns, first.edges(), insert=False), [first])
    assert finding.sentence.startswith("slots.item: 100.0% of its occurrences")
    assert "on the day before" in finding.sentence


def test_the_worst_is_told_first_and_four_are_told(week):
    columns = columns_of(4)
    for name in ("user", "item", "campaign", "device", "tags", "rare"):
        columns[name] = [None] * ROWS
    columns["label"] = columns["label"] * 0
    model, days = week
    worst_first = findings(Gate(), looked(model, columns, days[0].edges(), insert=False), days)
    assert [finding.weight for finding in worst_first] == sorted(
        (finding.weight for finding in worst_first), reverse=True
    )
    said = gate.in_words(worst_first)
    assert said.count("; ") == 4 and said.endswith("; and 3 more")


@pytest.mark.parametrize(
    ("name", "change", "threshold"),
    [
        ("device", lambda v: [None] * 1000 + v[1000:], {"coverage": 1.0, "stability": 9}),
        ("user", hashed_again, {"new_ids": 1.0, "stability": 9}),
        ("tags", lambda v: [t and f"{t}|{t}" for t in v], {"length": 3.0}),
        ("label", lambda v: 1 - v, {"label_rate": 20.0}),
        ("age", lambda v: v * 0 + 30, {"stability": 50.0}),
        ("user", lambda v: v[:1] * len(v), {"stability": 50.0, "distinct": 1e6, "new_ids": 1}),
    ],
)
def test_thresholds(week, name, change, threshold):
    columns = columns_of(4)
    columns[name] = change(columns[name])
    assert judged(week, columns)
    assert judged(week, columns, **threshold) == []


def test_a_list_without_values_has_no_ids():
    """Where missing=value each example has one, of missing values."""
    model = model_of(slots={"tags": {"separator": "|", "missing": "value"}}, numeric={})
    days = [looked(model, columns_of(day)) for day in range(3)]
    assert findings(Gate(), days[2], days[:2]) == []
    columns = columns_of(3)
    columns["tags"] = [""] * ROWS
    empty = looked(model, columns)
    assert (empty.inputs["tags"].length, empty.inputs["tags"].coverage) == (0, 1)
    [finding] = findings(Gate(), empty, days)
    assert finding.sentence.startswith("slots.tags: 0 ids per example that has any, 2.")
    assert findings(Gate(), looked(model, columns), [empty]) == []


def rotating(days, period, rows=400):
    """Days of a slot of 12 campaigns, all of which others replace after each period."""
    model = model_of(slots={"campaign": {}, "device": {}}, numeric={})
    for day in range(days):
        random = np.random.default_rng(day)
        columns = {
            "campaign": [f"c{day // period}.{drawn}" for drawn in zipf(random, rows, 12, 0.3)],
            "device": [f"d{drawn}" for drawn in zipf(random, rows, 3)],
            "label": (random.random(rows) < 0.2).astype(float),
        }
        yield looked(model, columns)


def recorded(number, accepted=()):
    """A day's record as a checkpoint keeps it once other days are compared to."""
    changes = {finding.name: finding.changes for finding in accepted if finding.changes} or None
    record = DayRecord(
        day=str(number + 1), number=number, first_step=1, last_step=1, rows=1, before=None,
        changes=changes,
    )  # fmt: skip
    return documents.parse(DayRecord, json.dumps(documents.plain(record.summary())).encode())


def test_a_change_like_an_accepted_one_is_ordinary():
    """Of 70 days of a slot that rotates every ten days only the first change is refused."""
    days, record, refused = [], [], []
    for number, day in enumerate(rotating(70, period=10)):
        reasons = findings(Gate(), day, days[-7:], gate.ordinary(record))
        refused += [number] if reasons else []
        assert {finding.name for finding in reasons} <= {"campaign"}
        record.append(recorded(number, reasons))
        days.append(day)
    assert refused == [10]
    assert findings(Gate(), days[20], days[13:20])  # the next change, had none been accepted
    assert record[10].changes["campaign"].keys() == {"new_ids", "stability"}
    assert "changes" not in documents.plain(record[11])
    # It is the campaign's, of these thresholds: other slots and greater changes are still refused.
    of_campaign = gate.ordinary(record)
    device = replace(days[-1].inputs["device"], coverage=0.1)
    campaign = replace(days[-1].inputs["campaign"], coverage=0.1)
    broken = replace(days[-1], inputs={"device": device, "campaign": campaign})
    names = {finding.name for finding in findings(Gate(), broken, days[-7:], of_campaign)}
    assert names == {"device", "campaign"}


def test_a_greater_change_than_the_accepted_one_is_refused(week):
    _, days = week
    device = days[-1].inputs["device"]

    def with_coverage(coverage):
        inputs = {**days[-1].inputs, "device": replace(device, coverage=coverage)}
        return replace(days[-1], inputs=inputs)

    [finding] = findings(Gate(), with_coverage(0.6), days)
    assert finding.changes == {"coverage": pytest.approx(0.4)}
    known = gate.ordinary([recorded(1), recorded(2, [finding])])
    assert findings(Gate(), with_coverage(0.6), days, known) == []
    assert findings(Gate(), with_coverage(0.3), days, known)
    [gone] = findings(Gate(), with_coverage(0.0), days, known)
    assert findings(Gate(), with_coverage(0.0), days, gate.ordinary([recorded(3, [gone])])) == []


def test_exempt_inputs(week):
    columns = {**columns_of(4), "device": [None] * ROWS, "price": np.zeros(ROWS)}
    assert len(judged(week, columns)) == 2
    assert judged(week, columns, exempt=["device", "price"]) == []
    with pytest.raises(UserError, match=r"^gate.exempt: no slot .* devise. Did you mean 'device'"):
        model_of(gate={"exempt": ["devise"]})


def test_numbers_as_labels():
    """Their mean may be anything: they are looked at as numbers are."""
    model = model_of(train={"batch_size": 256, "loss": {"name": "mse"}})
    days = []
    for day in range(3):
        columns = columns_of(day)
        columns["label"] = np.random.default_rng(day).normal(0, 1, ROWS)
        days.append(looked(model, columns, days[0].edges() if days else None))
        assert findings(Gate(), days[-1], days[:-1]) == []
    columns["label"] = columns["label"] + 3
    [finding] = findings(Gate(), looked(model, columns, days[0].edges()), days)
    assert finding.sentence.startswith("label label: population stability index")


def test_stability_index():
    even = [100] * 64
    assert gate.stability_index(even, even) == 0
    # A quarter of each share is even: p = 0.75 + 0.25 / 2 in one half and 0.125 in the other.
    assert gate.stability_index([8, 0], [0, 5]) == pytest.approx(2 * 0.75 * math.log(0.875 / 0.125))
    few, many = [1, 3, 4, 8], [100, 300, 400, 800]
    assert gate.stability_index(few, many) == pytest.approx(0)


def test_distinct_is_exact_then_estimated():
    for ids in (0, 1, 4095, 4096, 30_000, 300_000):
        counted = DistinctEstimate()
        hashes = mix64(np.arange(ids, dtype=np.uint64))
        for part in np.array_split(np.concatenate([hashes, hashes[: ids // 3]]), 7):
            counted.add(part)
        if ids < day_figures.DISTINCT_KEPT:
            assert counted.estimate() == ids
        assert counted.estimate() == pytest.approx(ids, rel=0.06)  # 4 standard errors


def test_repeats_in_the_second_half():
    random = np.random.default_rng(0)
    for rows in (1000, 400_000):
        ids = random.integers(0, rows // 2, rows)
        repeats = Repeats()
        for part in np.array_split(ids, 11):
            repeats.add(mix64(part.astype(np.uint64)))
        half = rows // 2
        assert repeats.share() == pytest.approx(np.isin(ids[half:], ids[:half]).mean(), abs=0.02)
    sessions = Repeats()
    sessions.add(mix64(np.repeat(np.arange(200, dtype=np.uint64), 5)))
    assert sessions.share() == pytest.approx(0, abs=0.01)
    assert Repeats().share() is None


def test_turned_round():
    assert turned_round(0.3, [0.7, 0.72], 1000, 9000)
    assert turned_round(0.3, [], 1000, 9000)
    assert not turned_round(0.3, [0.7], 5, 40)  # as chance has it
    assert not turned_round(0.3, [0.7, 0.4], 1000, 9000)  # never ranked right
    assert not turned_round(0.48, [0.7], 10_000, 90_000)
    assert not turned_round(0.3, [0.7], 0, 100)
