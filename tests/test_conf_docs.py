"""docs/conf.md is what the schema says, and says every key."""

import math
import re
from pathlib import Path

import pytest

from tnctl import schema
from tnctl.cli import help as helping
from tnctl.cli.commands import COMMANDS
from tnctl.errors import UserError

PAGE = Path(__file__).parent.parent / "docs/conf.md"


def test_the_page_is_made_from_the_schema():
    assert PAGE.read_text() == helping.page(), "docs/conf.md is old: make docs"


def test_every_key_is_on_the_page():
    documented = set()
    for titles, table in re.findall(r"^### (.*)\n\n.*\n\n((?:\|.*\n)+)", helping.page(), re.M):
        places = re.findall(r"`([\w.]+)`", titles) or [""]
        for key in re.findall(r"^\| `(\w+)`", table, re.M):
            documented |= {f"{place}.{key}".lstrip(".") for place in places}
    assert documented == set(schema.all_keys())


def test_every_key_has_a_sentence():
    for path, key in schema.all_keys().items():
        sentence = key.declaration.sentence
        assert 3 < len(sentence) < 330, path
        assert not sentence.endswith("."), path


def test_declarations():
    keys = schema.all_keys()
    assert keys["train.batch_size"].declaration.limit == "between 1 and 1,048,576"
    assert keys["optimizer.dense.momentum"].declaration.limit == "between 0 and 0.9999"
    assert keys["optimizer.dense.momentum"].declaration.only_for == ("name", ("sgd",))
    assert keys["slots.NAME.pooling"].declaration.choices == ("sum", "mean", "sqrtn", "none")
    assert keys["numeric.NAME.deviation"].declaration.limit == "above 0"
    assert keys["life.sketch"].declaration.limit.endswith(" bytes")
    assert keys["data.skip_rows"].declaration.limit == "at least 0"
    assert keys["data.root"].declaration.limit == ""


def test_help_and_the_page_have_ranges_and_conditions(monkeypatch):
    """Of every key its sentence, its range and what it is only for, in both."""
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(helping, "WIDEST", 1000)
    text = helping.command_help("train", "", whole=True)
    text = " ".join(text.split())
    page = helping.page().replace("\\|", "|")
    for path, key in schema.all_keys().items():
        limit, meaning = key.declaration.limit, key.declaration.meaning
        assert f"{meaning} ({limit})" in text if limit else meaning in text, path
        assert meaning in page and limit in page, path
    assert "train.batch_size=null examples per step (null: chosen" in text
    assert "(default: 0); only for name=sgd (between 0 and 0.9999)" in text
    assert "ids=hash or modulo or vocabulary (between 0" in text
    assert keys_only_for("optimizer.dense", "name") >= {"epsilon", "beta1", "l1", "momentum"}
    assert keys_only_for("optimizer.schedule", "name") == {
        "decay_steps", "decay_rate", "boundaries", "factors", "end", "reduce", "patience",
    }  # fmt: skip
    assert keys_only_for("train.loss", "name") == {"smoothing", "gamma", "alpha"}
    assert keys_only_for("numeric.NAME", "transform") == {"mean", "deviation"}


def keys_only_for(section, selector):
    return {
        key.name
        for path, key in schema.all_keys().items()
        if path == f"{section}.{key.name}" and key.declaration.only_for[0] == selector
    }


def test_conditions_leave_out_what_compat_chooses():
    declaration = schema.all_keys()["optimizer.linear.l1"].declaration
    assert "tensornet_ftrl" in declaration.only_for[1]
    assert declaration.condition == "name=ftrl"
    assert declaration.meaning == "makes weights exactly zero (default: 0); only for name=ftrl"


def test_defaults_of_optimizers_are_those_of_the_table_in_c():
    sentences = {path: key.declaration.sentence for path, key in schema.all_keys().items()}
    for setting in ("epsilon", "initial_accumulator", "beta1", "beta2", "momentum", "l1", "beta"):
        for name in ("adagrad", "adam", "ftrl", "sgd"):
            if setting not in schema.RULES[name]:
                continue
            default = f"{schema.RULES[name][setting]:g}"
            sentence = sentences[f"optimizer.linear.{setting}"]
            assert f"{name} {default}" in sentence or f"(default: {default})" in sentence


def test_every_default_is_allowed_and_no_value_beyond_a_range_is():
    for path, key in schema.all_keys().items():
        declaration = key.declaration
        declaration.check(path, key.default)
        beyond = [declaration.low - 1, declaration.high * 2 + 1, math.nan]
        if not declaration.includes_low:
            beyond.append(declaration.low)
        for value in beyond if declaration.limit else ():
            with pytest.raises(UserError, match="must be"):
                declaration.check(path, value)
            with pytest.raises(UserError, match="must be"):
                declaration.check(path, [value])
        for value in (declaration.low, declaration.high) if declaration.includes_low else ():
            if math.isfinite(value):
                declaration.check(path, value)
        if declaration.choices:
            with pytest.raises(UserError, match="has no choice"):
                declaration.check(path, "nope")


def test_keys_take_the_names_of_the_user():
    assert "slots.user.width" in schema.keys_like("slots.user.x")
    assert "optimizer.groups.user.linear.l2" in schema.keys_like("optimizer.groups.user")
    assert len(schema.keys_like("data.labels.ctr.column")) == len(schema.all_keys())
    branches = ["slots", "numeric", "optimizer.groups", "data.times", "data.labels", "life.groups"]
    assert schema.branches() == branches


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_what_a_command_is_said_to_use_exists(command):
    for prefix in COMMANDS[command].keys or ():
        assert any(f"{path}.".startswith(f"{prefix}.") for path in schema.all_keys()), prefix
    assert set(schema.all_keys()) >= helping.TRAINING_ONLY
