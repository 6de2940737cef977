"""A saved conf that lacks a key has the value that the version without the key worked by."""

import copy
import importlib
import json
from pathlib import Path

import pytest
from mutated_documents import reseal

from tnctl import saved_conf, schema
from tnctl.checkpoint import load
from tnctl.checkpoint.chain import completed, differing_keys
from tnctl.errors import UserError
from tnctl.model.recipes import defaults_of
from tnctl.schema import keys
from tnctl.schema import values as values_module
from tnctl.training.search import search_loop

GOLDEN = Path(__file__).parent / "golden"
SAVED = {
    "output": "run",
    "recipe": {"name": "dcn", "hidden": [4]},
    "slots": {"a": {"seed": 3}, "b": {}, "t": {"ids": "hour"}},
    "optimizer": {"dense": {"name": "sgd"}, "groups": {"a": {"linear": None, "embedding": {}}}},
    "life": {"groups": {"a": {"shows": {"keep": True}}}},
    "data": {"train": "a.csv", "times": {"t": {}}, "labels": {"x": {"column": "y"}}},
    "numeric": {},
}
# Keys and sections that versions before lacked, at every kind of place.
ADDED = (
    "crosses", "baseline", "data.split", "data.skip_empty", "slots.user_id.max_norm",
    "numeric.price.since", "optimizer.dense.beta2", "train.loss.gamma", "life.eviction.bytes",
)  # fmt: skip


def without(values, key):
    """Take a key out of plain values."""
    *sections, name = key.split(".")
    for section in sections:
        values = values[section]
    del values[name]


def take_out(run, keys):
    """Take keys out of the confs of a run's checkpoints, as of a version that did not know them."""
    for folder in (run / "checkpoints").iterdir():
        path = folder / "conf.json"
        values = json.loads(path.read_text())
        for key in keys:
            without(values, key)
        path.write_text(json.dumps(values))
        reseal(folder)


def test_every_absent_key_gets_its_value():
    full = completed(SAVED)
    conf = schema.from_values(full)
    # What Hydra makes of a conf that leaves out the same keys.
    expected = json.loads(json.dumps(saved_conf.conf_to_json(conf)))
    assert full == {**expected, "recipe": full["recipe"]}
    assert conf.optimizer.dense.learning_rate == 0.001  # of dense weights, not of any optimizer
    assert full["optimizer"]["groups"]["a"]["linear"] is None
    assert full["optimizer"]["groups"]["a"]["embedding"]["name"] == "adagrad"
    assert full["life"]["groups"]["a"]["admission"] is None
    assert full["life"]["groups"]["a"]["shows"]["decay"] == 0.98
    assert full["data"]["times"]["t"]["format"] == "iso"
    assert full["slots"]["b"]["missing"] == "none" and full["numeric"] == {}
    assert full["recipe"] == {"name": "dcn", **defaults_of("dcn"), "hidden": [4]}
    assert completed(full) == full
    assert "cluster" not in full and "output" not in completed({})


def test_what_a_key_meant_when_it_was_absent(monkeypatch):
    monkeypatch.setitem(values_module.ABSENT, "slots.NAME.seed", 7)
    monkeypatch.setitem(values_module.ABSENT, "train.epochs", 5)
    full = completed({"slots": {"a": {}, "b": {"seed": 1}}})
    assert [full["slots"]["a"]["seed"], full["slots"]["b"]["seed"]] == [7, 1]
    assert full["train"]["epochs"] == 5 and full["train"]["batch_size"] is None
    with_loss = completed({"train": {"loss": {}}})
    assert with_loss["train"]["epochs"] == 5


def test_what_is_no_conf_stays_to_be_seen():
    """The conf of a search's study is only known to be plain values."""
    full = completed({"slots": 3, "train": {"unknown": 1}, "recipe": {"name": []}, "more": {}})
    assert full["slots"] == 3 and full["train"]["unknown"] == 1 and full["more"] == {}
    assert full["recipe"] == {"name": []}
    assert differing_keys({"slots": {}}, {"slots": 3}) == ["slots"]
    assert differing_keys({}, {"train": {"unknown": 1}}) == ["train.unknown"]


def test_a_run_whose_conf_lacks_keys_is_resumed(run_copy, cli):
    take_out(run_copy / "run", (*ADDED, "recipe.batch_norm"))
    done = cli("train", "conf=small.yaml", "output=run", cwd=run_copy)
    assert done.code == 0 and "nothing to do" in done.err, done.err
    for change in ("optimizer.dense.beta2=0.5", "recipe.batch_norm=true"):
        done = cli("train", "conf=small.yaml", "output=run", change, cwd=run_copy)
        key = change.partition("=")[0]
        assert done.code == 2 and f"these keys differ: {key}. " in done.last


def test_commands_read_a_model_whose_conf_lacks_keys(run_copy, cli, ran):
    take_out(run_copy / "run", ("optimizer", "embedding.initial", *ADDED[:6]))
    for given in (["conf=small.yaml"], []):
        done = ran("predict", *given, "output=run", "data.test=test.csv", cwd=run_copy)
    folder = str(next((run_copy / "run/checkpoints").iterdir()))
    assert load.open_checkpoint(folder).conf()["optimizer"]["dense"]["name"] == "adam"
    done = cli("predict", "conf=small.yaml", "output=run", "optimizer.clip_norm=1", cwd=run_copy)
    assert done.code == 2 and "optimizer.clip_norm" in done.last


def test_a_key_that_is_not_known_is_an_error_in_a_line(run_copy, cli):
    [folder] = (run_copy / "run/checkpoints").iterdir()
    path = folder / "conf.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"unknown": 1}))
    reseal(folder)
    done = cli("train", "conf=small.yaml", "output=run", cwd=run_copy)
    assert done.code == 1 and "no key 'unknown'" in done.last


def test_no_default_changes(monkeypatch):
    """A changed default changes what runs are that were saved, and confs that leave out the key."""
    monkeypatch.syspath_prepend(str(GOLDEN))
    now = importlib.import_module("make_runs").defaults()
    for key, default in json.loads((GOLDEN / "defaults.json").read_text()).items():
        if key in keys.REMOVED:
            continue
        assert key in now, f"{key} is gone: saved confs have it. Keep it, also if it does nothing"
        assert now[key] == default, (
            f"the default of {key} was {default} and is {now[key]}. A default never changes: leave "
            "it, and write the better value into the confs that are shipped and that init writes"
        )


def test_a_search_whose_conf_lacks_keys_goes_on():
    values = saved_conf.conf_to_json(schema.from_values(completed(SAVED)))
    wanted = {"parameters": [], "seed": 1, "conf": values}
    kept = copy.deepcopy(wanted)
    for key in ("crosses", "slots.a.keep", "train.epochs", "recipe.layers"):
        without(kept["conf"], key)
    search_loop.refuse_other_search(kept, wanted)
    changed = {**wanted, "conf": {**values, "train": {**values["train"], "epochs": 2}}}
    with pytest.raises(UserError, match=r"these differ: train\.epochs\."):
        search_loop.refuse_other_search(kept, changed)
