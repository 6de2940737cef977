"""Conf files that are too large, or whose aliases make them so: one line."""

import pytest

from tnctl import limits
from tnctl.cli import conf_files
from tnctl.errors import UserError

HEAD = "defaults: [schema, {recipe: lr}, _self_]\nslots: {a: {}}\n"
LAUGHS = "".join(f"x{k}: &x{k} [{', '.join([f'*x{k - 1}'] * 9)}]\n" for k in range(1, 12))
MERGES = "".join(f"x{k}: &x{k} {{<<: [{', '.join([f'*x{k - 1}'] * 9)}]}}\n" for k in range(1, 12))
BOMBS = {
    "aliases": HEAD + "x0: &x0 [ha]\n" + LAUGHS,
    "merges": HEAD + "x0: &x0 {a: b}\n" + MERGES,
    "in the list of defaults": "x0: &x0 [ha]\n" + LAUGHS + "defaults: *x11\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_confs_of_too_many_values(tmp_path, cli, name):
    (tmp_path / "own.yaml").write_text(BOMBS[name])
    done = cli("train", "conf=own.yaml", cwd=tmp_path)
    assert done.code == 2
    assert "own.yaml has over 100,000 keys and values" in done.line


def test_a_conf_at_the_limit_of_values_and_one_beyond(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "CONF_VALUES", 1000)
    path = tmp_path / "own.yaml"
    # The mapping, its key, the list.
    path.write_text("x: [" + "1," * 997 + "]\n")
    assert len(conf_files.read(path)["x"]) == 997
    path.write_text("x: [" + "1," * 998 + "]\n")
    with pytest.raises(UserError, match="over 1,000 keys and values"):
        conf_files.read(path)


def test_a_conf_at_the_limit_of_bytes_and_one_beyond(tmp_path, cli):
    path = tmp_path / "own.yaml"
    path.write_text(HEAD + "#" * (limits.CONF_BYTES - len(HEAD)))
    assert cli("train", "conf=own.yaml", "--cfg", "job", cwd=tmp_path).code == 0
    with path.open("a") as file:
        file.write("#")
    done = cli("train", "conf=own.yaml", cwd=tmp_path)
    assert "own.yaml has 1,048,577 bytes, and a conf at most 1,048,576" in done.line
    assert done.code == 2


def test_aliases_within_the_limit_and_bombs_in_groups(tmp_path, cli):
    shared = "x: &x {ids: integer}\n"
    (tmp_path / "own.yaml").write_text(
        "defaults: [schema, {recipe: own}, _self_]\n"
        + "slots: {a: &a {ids: integer}, b: *a, c: {<<: *a, column: d}}\n"
    )
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/own.yaml").write_text("name: lr\n")
    done = cli("train", "conf=own.yaml", "--cfg", "job", cwd=tmp_path)
    assert (done.code, done.out.count("ids: integer")) == (0, 3), done.err
    (tmp_path / "recipe/own.yaml").write_text("name: lr\nx0: &x0 [ha]\n" + LAUGHS + shared)
    done = cli("train", "conf=own.yaml", cwd=tmp_path)
    assert "own.yaml has over 100,000 keys and values" in done.line
