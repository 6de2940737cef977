"""Warm start: a new run goes on from a checkpoint whose conf is another, or says why it cannot."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest

from tnctl import documents, schema
from tnctl.checkpoint import chain
from tnctl.checkpoint.document import Clock
from tnctl.checkpoint.document import OptimizerEntry as SavedOptimizer
from tnctl.checkpoint.document import SegmentEntry as SavedSegment
from tnctl.checkpoint.load import load
from tnctl.data.sources import Source
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import windows
from tnctl.errors import UserError
from tnctl.evaluation.inference import Inference
from tnctl.evaluation.split_scoring import features_of
from tnctl.model.building import build
from tnctl.schema import Conf, Data, Slot, Warm
from tnctl.tables import InitialWeights as TableInitial
from tnctl.tables import Pool, RowOptimizer, Segment, SlotPlan, SparseTable, Workspace
from tnctl.tables.records import decay_factors
from tnctl.training.warm import warm_start as warm
from tnctl.training.warm.pairing import check_inputs, pair

STEP = 12  # of the checkpoint of `trained`
ROWS = 574


def conf_of(folder, change=None, **of_warm):
    """The conf of a run, changed by `change(values)`, with a warm start from that run."""
    values = chain.newest(str(folder / "run")).conf()
    values["data"]["root"] = str(folder / "clicks")
    values["output"] = str(folder / "new")
    if change is not None:
        change(values)
    values["warm"] = {"start": str(folder / "run"), **of_warm}
    return schema.from_values(values)


def begun(folder, change=None, **of_warm):
    """The model that a warm start begins with, and its report."""
    conf = conf_of(folder, change, **of_warm)
    start = warm.begin(conf)
    model = build(conf, start.statistics(no_measuring))
    start.fill(model)
    return model, documents.plain(start.report)


def no_measuring():
    raise AssertionError("nothing starts anew that needs statistics")


def saved_model(folder):
    """The model that was saved."""
    checkpoint = chain.newest(str(folder / "run"))
    return load(checkpoint, schema.from_values(checkpoint.conf()))


def logits(model, folder):
    conf = dataclasses.replace(
        model.conf, data=dataclasses.replace(model.conf.data, root=str(folder / "clicks"))
    )
    inference = Inference(model, 1024)
    source = Source(conf, "validation")
    return np.concatenate(list(map(inference, windows(source, features_of(conf, model)))))


def rows_of(model, group):
    """The records of a group, by id."""
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        if group in layout.groups:
            records = np.concatenate([*table.records(), np.empty(0, table.record_dtype)])
            of_group = records[records["group"] == layout.groups[group]]
            return {int(record["id"]): record for record in of_group}
    raise AssertionError(group)


def same_rows(model, old, fields, group="user_id", old_group=None):
    """The rows of a group, which has the ids of the old one, and in these fields its values."""
    rows, were = rows_of(model, group), rows_of(old, old_group or group)
    assert rows.keys() == were.keys()
    for id_, row in rows.items():
        for field in fields:
            np.testing.assert_array_equal(row[field], were[id_][field])
    return rows.values()


def kernel(model, name="deep/dense/kernel", state=None):
    number = model.variable_names.index(name)
    part = model.dense.weights if state is None else model.dense.states[state]
    return part[number].reshape(tuple(model.variables[number].shape))


def added(name="more", **keys):
    def change(values):
        like = dataclasses.asdict(Slot(**keys))
        values["slots"] = {"user_id": values["slots"].pop("user_id"), name: like} | values["slots"]

    return change


def test_with_nothing_changed_the_model_is_the_one_before_bit_for_bit(trained):
    model, report = begun(trained)
    old = saved_model(trained)
    for new, other in zip(model.tables, old.tables, strict=True):
        records = [np.concatenate(list(table.records())) for table in (new, other)]
        assert records[0].tobytes() == records[1].tobytes()
    for array, other in zip(
        [*model.dense.weights, *itertools.chain(*model.dense.states), *model.moving],
        [*old.dense.weights, *itertools.chain(*old.dense.states), *old.moving],
        strict=True,
    ):
        assert array.tobytes() == other.tobytes()
    assert model.dense.step == old.dense.step == STEP
    np.testing.assert_array_equal(logits(model, trained), logits(old, trained))
    assert {entry["outcome"] for entry in report["inputs"]} == {"matched"}
    assert report["notes"] == []
    assert report["dense"]["matched"] == model.variable_names
    assert report["step"] == STEP
    [users] = [entry for entry in report["inputs"] if entry["input"] == "user_id"]
    assert users["rows"] == len(rows_of(model, "user_id"))


def test_an_added_slot_starts_anew_and_changes_nothing_else(trained):
    model, report = begun(trained, added(column="region"), new=["more"])
    old = saved_model(trained)
    assert rows_of(model, "more") == {}
    fields = {*model.tables[0].record_dtype.names} - {"group"}  # its number
    for group in ("user_id", "item_id", "shared", "interests", "price_range"):
        same_rows(model, old, fields, group)
    # Without a row its embedding is zeros, so whatever its new weights are, nothing comes of it.
    np.testing.assert_allclose(logits(model, trained), logits(old, trained), atol=2e-6)
    new, was = kernel(model), kernel(old)
    assert len(new) == len(was) + 4
    np.testing.assert_array_equal(np.delete(new, slice(4, 8), axis=0), was)
    fresh = build(model.conf, model.statistics)
    np.testing.assert_array_equal(new[4:8], kernel(fresh)[4:8])
    np.testing.assert_array_equal(kernel(model, state=0)[4:8], 0)
    assert (kernel(model, state=1)[:4] > 0).any()
    assert "deep/dense/kernel" in report["dense"]["partly"]
    assert {"input": "more", "outcome": "new", "from": None, "rows": None} in report["inputs"]


def test_a_dropped_slot_leaves_its_rows_and_weights_behind(trained):
    model, report = begun(trained, lambda values: values["slots"].pop("item_id"), drop=["item_id"])
    old = saved_model(trained)
    at = old.layout.pooled["item_id"][0]
    was = np.delete(kernel(old), slice(at, at + 4), axis=0)
    np.testing.assert_array_equal(kernel(model), was)
    assert sum(table.rows for table in model.tables) == ROWS - len(rows_of(old, "item_id"))
    assert any("rows of group item_id are left out" in note for note in report["notes"])
    gone = {"input": None, "outcome": "dropped", "from": "item_id", "rows": None}
    assert gone in report["inputs"]


def renamed(values):
    """Other names, and another order: columns of x of the same shape mean others."""
    slots = values["slots"]
    user = slots.pop("user_id") | {"column": "user_id"}
    values["slots"] = dict(reversed(slots.items())) | {"user": user}
    values["numeric"] = {
        "quality": values["numeric"]["quality"],
        "cost": values["numeric"]["price"] | {"column": "price"},
    }


def test_renamed_and_reordered_inputs_take_their_weights_along(trained):
    model, report = begun(trained, renamed, rename={"user": "user_id", "cost": "price"})
    old = saved_model(trained)
    assert model.variable_names == old.variable_names
    assert kernel(model).shape == kernel(old).shape
    assert (kernel(model) != kernel(old)).any()
    np.testing.assert_allclose(logits(model, trained), logits(old, trained), atol=2e-6)
    assert rows_of(model, "user").keys() == rows_of(old, "user_id").keys()
    assert report["notes"] == []
    [user] = [entry for entry in report["inputs"] if entry["input"] == "user"]
    assert user["from"] == "user_id"


def test_a_wider_embedding_keeps_its_first_coordinates(trained):
    model, report = begun(trained, lambda values: values["embedding"].update(width=6))
    old = saved_model(trained)
    conf = model.conf
    for group in ("user_id", "shared"):
        rows, were = rows_of(model, group), rows_of(old, group)
        assert rows.keys() == were.keys()
        fresh = build(conf, model.statistics).tables[0]
        ids = np.array(sorted(rows), np.uint64)
        number = model.layout.tables[0].groups[group]
        made = fresh.fresh_records(np.full(len(ids), number, np.uint16), ids)
        for id_, initial in zip(ids, made, strict=True):
            row, was = rows[int(id_)], were[int(id_)]
            np.testing.assert_array_equal(row["embedding"][:4], was["embedding"])
            np.testing.assert_array_equal(row["embedding"][4:], initial["embedding"][4:])
            for field in ("linear", "linear.accumulator", "embedding.accumulator"):
                np.testing.assert_array_equal(row[field], was[field])
    for name, (at, _) in old.layout.pooled.items():
        now = model.layout.pooled[name][0]
        np.testing.assert_array_equal(kernel(model)[now : now + 4], kernel(old)[at : at + 4])
    assert any("are 6 wide and were 4" in note for note in report["notes"])


def test_linear_weights_of_one_side_only(trained):
    model, report = begun(trained, lambda values: values["slots"]["user_id"].update(linear=False))
    assert "group user_id: linear weights are left out" in report["notes"]
    for row in same_rows(model, saved_model(trained), ["embedding"]):
        assert "linear" not in row.dtype.names


def adam(values):
    values["optimizer"]["embedding"] = {"name": "adam", "learning_rate": 0.01}


def test_another_optimizer_is_refused_or_its_state_starts_anew(trained):
    with pytest.raises(UserError, match=r"embedding weights of group .*warm.optimizer=fresh"):
        begun(trained, adam)
    model, report = begun(trained, adam, optimizer="fresh")
    for row in same_rows(model, saved_model(trained), ["embedding"]):
        assert not row["embedding.steps"].any()
        assert not row["embedding.v"].any()
        np.testing.assert_array_equal(row["linear.accumulator"], np.float32(1e-6))
    np.testing.assert_array_equal(logits(model, trained), logits(saved_model(trained), trained))
    assert model.dense.step == 0
    assert not any(state.any() for state in model.dense.states[0])
    assert report["optimizer"] == "fresh"


def test_another_learning_rate_keeps_the_state(trained):
    def slower(values):
        values["optimizer"]["embedding"]["learning_rate"] = 0.02

    model, report = begun(trained, slower)
    same_rows(model, saved_model(trained), ["embedding.accumulator"])
    assert any("learning_rate 0.02, it was 0.05" in note for note in report["notes"])


@pytest.mark.parametrize("l1", [0.0, 0.003])
def test_ftrl_goes_on_from_weights_that_another_optimizer_made(trained, l1):
    """Its weights are made of its state: with a state of zeros, one update would lose them."""

    def ftrl(values):
        rule = {"name": "ftrl", "learning_rate": 0.1, "l1": l1, "l2": 0.5}
        rule["initial_accumulator"] = 0.2
        values["optimizer"].update(linear=rule, embedding=rule)
        values["slots"]["user_id"]["group"] = None

    model, _ = begun(trained, ftrl, optimizer="fresh")
    [table] = model.tables
    [layout] = model.layout.tables
    rows = rows_of(model, "user_id")
    ids = np.array(list(rows), np.uint64)
    batch = Workspace(table, [SlotPlan(layout.groups["user_id"], "sum", 0)])
    batch.find(ids, np.arange(len(ids) + 1, dtype=np.uint32), len(ids), insert=True)
    zeros = [np.zeros((len(ids), 1), np.float32), np.zeros((len(ids), 4), np.float32)]
    batch.accumulate(zeros)
    batch.apply()
    for id_, row in rows_of(model, "user_id").items():
        for name in ("linear", "embedding"):
            np.testing.assert_allclose(row[name], rows[id_][name], rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (lambda v: v["slots"]["user_id"].update(seed=3), "slots.user_id: seed is 3"),
        (lambda v: v["slots"]["price_range"].update(buckets=9), "buckets is 9 here and was 8"),
        (lambda v: v["numeric"]["price"].update(transform="none"), "numeric.price: transform is"),
        (lambda v: v["embedding"].update(width=3), "width is 3 here and was 4"),
        (lambda v: v.update(compat="tensornet"), "compat is tensornet here and was None"),
        (lambda v: v["optimizer"].update(updates="all"), "optimizer.updates is all"),
        (lambda v: v["recipe"].update(hidden=[16, 4]), "recipe.hidden is .*warm.dense=fresh"),
        (
            lambda v: v.update(recipe={"name": "dcn", "hidden": [16, 8]}),
            "recipe.name is dcn here and was deepfm in .*warm.dense=fresh",
        ),
        (
            lambda v: v["optimizer"]["dense"].update(beta1=0.8),
            "dense weights are trained with beta1 0.8 here, and were with beta1 0.9",
        ),
        (
            lambda v: v["life"]["eviction"].update(show=2.0),
            "life.eviction.show .*kept none: all its rows would be removed",
        ),
        (lambda v: v["slots"].pop("device"), r"has input device, .*Give warm.drop=\[device\]"),
        (added(), r"has no input more, which this conf has. Give warm.new=\[more\]"),
        ({"rename": {"user_id": "user"}}, r"warm.rename: .*no input 'user'.*'user_id'"),
        ({"new": ["user"]}, "warm.new: this conf has no input 'user'"),
        ({"rename": {"user_id": "user_id"}, "drop": ["user_id"]}, "warm.rename and in warm.drop"),
        (
            {"new": ["item_id"], "drop": ["item_id"], "rename": {"user_id": "device"}},
            r"Give warm.new=\[item_id,device\] .* and warm.drop=\[item_id,user_id\], or .*"
            r"warm.rename={user_id: device, device: user_id}$",
        ),
        ({"rename": {"user_id": "item_id"}}, "has no input item_id.*and .* has input user_id"),
        ({"rename": {"user_id": "price"}, "new": ["price"], "drop": ["user_id"]}, "kind is a slot"),
    ],
)
def test_what_would_be_silently_wrong_is_refused(trained, case, message):
    """A change of the conf, or keys of `warm` that do not fit."""
    change, keys = (None, case) if isinstance(case, dict) else (case, {})
    with pytest.raises(UserError, match=message):
        begun(trained, change, **keys)


def test_an_input_can_start_anew_under_its_own_name(trained):
    change = lambda values: values["slots"]["user_id"].update(seed=3)  # noqa: E731
    model, _ = begun(trained, change, new=["user_id"], drop=["user_id"])
    assert rows_of(model, "user_id") == {}
    fresh = build(model.conf, model.statistics)
    np.testing.assert_array_equal(kernel(model)[:4], kernel(fresh)[:4])


def test_dense_weights_start_anew_when_case(trained):
    def deeper(values):
        values["recipe"] = {"name": "dcn", "hidden": [8]}

    model, report = begun(trained, deeper, dense="fresh")
    fresh = build(model.conf, model.statistics)
    for array, other in zip(model.dense.weights, fresh.dense.weights, strict=True):
        np.testing.assert_array_equal(array, other)
    assert sum(table.rows for table in model.tables) == ROWS
    assert report["dense"]["new"] == model.variable_names


def test_groups_are_taken_apart_and_not_together(trained):
    def apart(values):
        values["slots"]["device"]["group"] = None

    model, report = begun(trained, apart)
    for group in ("device", "shared"):
        same_rows(model, saved_model(trained), ["embedding"], group, "shared")
    assert "the rows of group shared are copied to shared, device" in report["notes"] or (
        "the rows of group shared are copied to device, shared" in report["notes"]
    )

    def together(values):
        values["slots"]["user_id"]["group"] = "shared"

    with pytest.raises(UserError, match="an id would have two rows"):
        begun(trained, together)


def test_a_vocabulary_may_grow_at_its_end():
    old = Conf(
        recipe={"name": "lr"},
        slots={"a": Slot(ids="vocabulary", vocabulary=["x", "y"])},
        data=Data(train="none"),
    )

    def check_vocabulary(words, **keys):
        slot = Slot(ids="vocabulary", vocabulary=words, **keys)
        conf = dataclasses.replace(old, slots={"a": slot})
        check_inputs(pair("there", old, conf), Statistics(), Statistics())

    check_vocabulary(["x", "y", "z"])
    for words in (["x"], ["y", "x"], ["z", "x", "y"]):
        with pytest.raises(UserError, match=r"slots.a: vocabulary is"):
            check_vocabulary(words)
    with pytest.raises(UserError, match=r"slots.a: oov is 2"):
        check_vocabulary(["x", "y"], oov=2)


def test_crosses_are_of_the_same_parts():
    def conf(cross, slots=("a", "b"), **keys):
        return Conf(
            recipe={"name": "lr"},
            slots={**{name: Slot() for name in slots}, "both": Slot(cross=cross)},
            data=Data(train="none"),
            **keys,
        )

    old = conf(["a", "b"])
    named = conf(["c", "b"], ("c", "b"), warm=Warm(start="s", rename={"c": "a"}))
    check_inputs(pair("there", old, named), Statistics(), Statistics())
    turned = conf(["b", "a"], warm=Warm(start="s"))
    with pytest.raises(UserError, match=r"slots.both: cross is"):
        check_inputs(pair("there", old, turned), Statistics(), Statistics())


def table_of(decay, shows=False, **optimizer):
    optimizer = (
        RowOptimizer("sgd", 0.1, decay=decay) if not optimizer else RowOptimizer(**optimizer)
    )
    segment = Segment("embedding", 2, "concat", optimizer)
    table = SparseTable([segment], 1, Pool(1), shows=shows)
    table.add_group(0, "a", [TableInitial("normal", 1.0)])
    saved = SavedOptimizer.of(optimizer)
    described = SavedSegment(name="embedding", width=2, output="concat", optimizer=saved)
    return table, SimpleNamespace(segments=[described])


def test_decayed_weights_come_as_they_read():
    """With another decay, the steps since a row's last change must not be counted again."""
    old, part = table_of(0.5)
    old.set_step(3)
    records = old.fresh_records(np.zeros(5, np.uint16), np.arange(5, dtype=np.uint64))
    ones = (np.ones(5), np.ones(5))
    factor = decay_factors(old.segments[0].optimizer.decay_factor, np.array([7], np.uint32))[0]
    for decay, changed, expected in ((0.5, 3, 1.0), (0.0, 3, factor), (0.25, 10, factor)):
        new, _ = table_of(decay)
        new.set_step(10)
        convert = warm.Conversion(part, new, Clock(10), True)
        made = convert(records, records["group"], ones)
        assert (made["changed"] == changed).all()
        np.testing.assert_allclose(made["embedding"], records["embedding"] * expected, rtol=1e-7)
        new.insert_records(made[np.argsort(new.hashes(made["group"], made["id"]))].view("u1"))
        for record in records:
            read = new.lookup(0, int(record["id"]))
            np.testing.assert_allclose(read, record["embedding"] * factor, rtol=1e-6)


@pytest.mark.parametrize("keeps_state", [True, False])
@pytest.mark.parametrize("lazy_l2", [0.2, 0.1, 0.0])
def test_rows_with_lazy_l2_come_as_they_read(lazy_l2, keeps_state):
    """Its decay goes by the accumulator: with another one the steps are not counted again."""
    rule = {"name": "adagrad", "learning_rate": 0.1, "initial_accumulator": 0.5}
    old, part = table_of(0, **rule, lazy_l2=0.2)
    old.set_step(3)
    records = old.fresh_records(np.zeros(5, np.uint16), np.arange(5, dtype=np.uint64))
    records["embedding.accumulator"][:, 0] = [0.5, 1, 2, 3, 4]
    old.insert_records(records[np.argsort(old.hashes(records["group"], records["id"]))].view("u1"))
    old.set_step(10)
    new, _ = table_of(0, **rule, lazy_l2=lazy_l2)
    new.set_step(10)
    convert = warm.Conversion(part, new, Clock(10), keeps_state)
    made = convert(records, records["group"], (np.ones(5), np.ones(5)))
    stays = lazy_l2 == 0.2 and keeps_state
    assert (made["changed"] == (3 if stays or not lazy_l2 else 10)).all()
    new.insert_records(made[np.argsort(new.hashes(made["group"], made["id"]))].view("u1"))
    for record, left in zip(records, 1 - 0.02 / np.sqrt([0.5, 1, 2, 3, 4]), strict=True):
        read = old.lookup(0, int(record["id"]))
        np.testing.assert_allclose(read, record["embedding"] * left**7, rtol=1e-5)
        np.testing.assert_allclose(new.lookup(0, int(record["id"])), read, rtol=1e-6)


def test_show_and_click_read_as_before_under_another_decay():
    days = ((100, 1), (101, 5), (104, 9))
    changed = np.array([0, 1, 4, 5, 8, 9, 12], np.uint32)
    expected = [4, 4, 4, 3, 3, 0, 0]
    np.testing.assert_array_equal(warm.ages(days, changed), expected)
    np.testing.assert_array_equal(warm.ages((), changed), 0)
    old, part = table_of(0.0, shows=True)
    old.set_step(3)
    records = old.fresh_records(np.zeros(7, np.uint16), np.arange(7, dtype=np.uint64))
    records["changed"] = changed
    records["show"], records["click"] = 8, 3
    was, now = np.full(7, 0.5), np.full(7, 0.25)
    new, _ = table_of(0.0, shows=True)
    new.set_step(12)
    made = warm.Conversion(part, new, Clock(12, days), True)
    read = 8 * 0.5 ** np.array(expected[1:])
    for decay in (was, now):
        transferred = made(records[1:], records["group"][1:], (was[1:], decay[1:]))
        then = np.array(expected[1:])
        np.testing.assert_allclose(transferred["show"][:, 0] * decay[1:] ** then, read, rtol=1e-6)
        np.testing.assert_allclose(transferred["click"][:, 0] / transferred["show"][:, 0], 3 / 8)
    faster, _ = table_of(0.5, shows=True)
    faster.set_step(12)
    made = warm.Conversion(part, faster, Clock(12, days), True)
    transferred = made(records[1:], records["group"][1:], (was[1:], was[1:]))
    assert (transferred["changed"] == 12).all()
    np.testing.assert_allclose(transferred["show"][:, 0], read, rtol=1e-6)


ONE_MORE = ("conf=small.yaml", "warm.start=run", "+slots.more={column: region}", "warm.new=[more]")


def test_from_the_command_line(run_copy, ran):
    """Started, told, reported, gone on with, and not done twice."""
    done = ran("train", *ONE_MORE, "output=new", "train.epochs=2", cwd=run_copy)
    assert "warm start from run/checkpoints/step-0000000012" in done.err
    report = json.loads((run_copy / "new/report.json").read_text())
    outcomes = {entry["input"]: entry["outcome"] for entry in report["warm"]["inputs"]}
    assert outcomes["more"] == "new"
    assert outcomes["user_id"] == "matched"
    assert report["steps"] == STEP + 24
    assert report["epochs"][0]["step"] == STEP + 12
    first = json.loads((run_copy / "run/report.json").read_text())
    assert report["epochs"][0]["loss"] < first["epochs"][0]["loss"]
    # The checkpoint it began with is needed no longer.
    (run_copy / "run").rename(run_copy / "gone")
    done = ran("train", *ONE_MORE, "output=new", "train.epochs=2", cwd=run_copy)
    assert "nothing to do" in done.err
    (run_copy / "new/report.json").unlink()
    ran("train", *ONE_MORE, "output=new", "train.epochs=2", cwd=run_copy)
    again = json.loads((run_copy / "new/report.json").read_text())
    assert again["warm"] == report["warm"]
    ran("evaluate", "output=new", cwd=run_copy)


def test_refusals_on_the_command_line_remove_nothing(run_copy, cli):
    for arguments, code, message in (
        (("warm.start=nowhere", "output=new"), 1, "is no checkpoint"),
        (("warm.start=run", "output=run", "overwrite=true"), 2, "is in the output of this run"),
        (
            ("warm.start=run", "+slots.more={column: region}", "output=new", "overwrite=true"),
            2,
            "warm.new=[more]",
        ),
        (("warm.new=[user_id]",), 2, "start=CHECKPOINT"),
    ):
        done = cli("train", "conf=small.yaml", *arguments, cwd=run_copy)
        assert done.code == code, done.err
        assert message in done.last
        assert (run_copy / "run/report.json").exists()
        assert not (run_copy / "new").exists()


def test_a_schedule_begins_anew(run_copy, ran):
    """The clock goes on, but a learning rate that fell to nothing would train nothing."""
    schedule = ("optimizer.schedule.name=cosine", "optimizer.schedule.decay_steps=13")
    ran("train", "conf=small.yaml", "warm.start=run", "output=new", *schedule, cwd=run_copy)
    lines = [json.loads(line) for line in (run_copy / "new/log.jsonl").read_text().splitlines()]
    [step] = [line for line in lines if line["event"] == "step"]
    assert step["step"] == 20
    assert step["rate_factor"] == pytest.approx((1 + np.cos(np.pi * 7 / 13)) / 2)


def test_day_by_day(run_copy, ran):
    """Days that were trained are not trained again; rows of no day are of the first one."""
    lines = (run_copy / "clicks/train.csv").read_text().splitlines(keepends=True)
    days = run_copy / "clicks/days"
    days.mkdir()

    def write(day, first):
        (days / f"{day}.csv").write_text("".join([lines[0], *lines[first : first + 300]]))

    def trained_days(output):
        report = json.loads((run_copy / output / "report.json").read_text())
        return [day["day"] for day in report["days"]], report["tables"]["embedding4"]["rows"]

    daily = ("conf=small.yaml", "data.train=days/{day}.csv", "life.eviction.unseen_days=1")
    write("2024-05-01", 1)
    write("2024-05-02", 301)
    ran("train", *daily, "output=daily", "warm.start=run", cwd=run_copy)
    # Each row is a day old at most: without that, all but those of two small days would be gone.
    assert trained_days("daily") == (["2024-05-01", "2024-05-02"], ROWS)
    write("2024-05-03", 601)
    more = ("+slots.more={column: region}", "warm.new=[more]", "warm.start=daily")
    ran("train", *daily, *more, "output=next", cwd=run_copy)
    trained, rows = trained_days("next")
    assert trained == ["2024-05-01", "2024-05-02", "2024-05-03"]
    report = json.loads((run_copy / "next/report.json").read_text())
    assert report["steps"] - report["warm"]["step"] == 2  # of 300 rows
    checkpoint = chain.newest(str(run_copy / "next"))
    model = load(checkpoint, schema.from_values(checkpoint.conf()))
    assert len(rows_of(model, "more")) > 0
    # Two days old are the rows that only the run before the days had.
    assert rows < ROWS
    assert len(model.tables) == 1
    changed = np.concatenate([part["changed"] for part in model.tables[0].records()])
    assert changed.min() > STEP
