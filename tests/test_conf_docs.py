"""docs/conf.md is what the schema says, and says every key."""

import re
from pathlib import Path

import pytest

from tnctl import schema
from tnctl.cli import help as helping
from tnctl.cli import reference
from tnctl.schema import NoChoice, OutOfRange

PAGE = Path(__file__).parent.parent / "docs/conf.md"


def test_the_page_is_made_from_the_schema():
    assert PAGE.read_text() == reference.page(), "docs/conf.md is old: make docs"


def test_every_key_is_on_the_page():
    documented = set()
    for titles, table in re.findall(r"^### (.*)\n\n.*\n\n((?:\|.*\n)+)", reference.page(), re.M):
        places = re.findall(r"`([\w.]+)`", titles) or [""]
        for key in re.findall(r"^\| `(\w+)`", table, re.M):
            documented |= {f"{place}.{key}".lstrip(".") for place in places}
    assert documented == set(schema.all_keys())


def test_every_key_has_a_sentence():
    for path, key in schema.all_keys().items():
        assert 3 < len(key.sentence) < 250, path
        assert not key.sentence.endswith("."), path


def test_rules_are_those_of_the_classes():
    keys = schema.all_keys()
    rule = keys["train.batch_size"].rule
    assert isinstance(rule, OutOfRange)
    assert (rule.low, rule.high) == (1, 1_048_576)
    rule = keys["optimizer.dense.momentum"].rule  # of sgd alone
    assert isinstance(rule, OutOfRange)
    assert (rule.low, rule.high) == (0, 0.9999)
    rule = keys["slots.NAME.pooling"].rule
    assert isinstance(rule, NoChoice)
    assert rule.choices == ("sum", "mean", "sqrtn", "none")
    assert keys["data.root"].rule is None
    assert keys["data.shuffle"].rule is None


def test_keys_take_the_names_of_the_user():
    assert "slots.user.width" in schema.keys_like("slots.user.x")
    assert "optimizer.groups.user.linear.l2" in schema.keys_like("optimizer.groups.user")
    assert len(schema.keys_like("data.labels.ctr.column")) == len(schema.all_keys())
    assert schema.branches() == [
        "slots",
        "numeric",
        "optimizer.groups",
        "data.labels",
        "life.groups",
    ]


@pytest.mark.parametrize("command", sorted(helping.USED))
def test_what_a_command_is_said_to_use_exists(command):
    for prefix in helping.USED[command]:
        assert any(f"{path}.".startswith(f"{prefix}.") for path in schema.all_keys()), prefix
    assert set(schema.all_keys()) >= helping.TRAINING_ONLY
