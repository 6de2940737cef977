"""`cluster` on the command line: any conf takes it, nothing that is saved has it; its modes."""

import dataclasses

import pytest
from conftest import CONF

from tnctl import saved_conf, schema, shipped
from tnctl.cli.commands import COMMANDS
from tnctl.composing import compose
from tnctl.errors import UserError
from tnctl.training.run_folder import NOT_COMPARED

FOUR = ["cluster=local", "cluster.workers=3", "seed=7", "cluster.timeout=9"]
ASYNC = ["cluster=local", "cluster.mode=async"]
OWN = "defaults: [schema, _self_]\nrecipe: {name: lr}\nslots: {a: {}}\n"


def composed(path, *overrides):
    return compose.compose(path, list(overrides))


@pytest.mark.parametrize("start", range(len(FOUR)))
def test_a_conf_that_does_not_list_the_group_takes_it_in_any_order(tmp_path, start):
    (tmp_path / "own.yaml").write_text(CONF + "cluster: {workers: 5}\n")
    conf = composed(tmp_path / "own.yaml", *FOUR[start:], *FOUR[:start])
    assert conf.cluster == schema.Cluster(start="local", workers=3, timeout=9.0)
    assert conf.seed == 7
    assert composed(tmp_path / "own.yaml", "cluster=local").cluster.workers == 5


def test_a_shipped_conf_and_one_that_lists_the_group_take_it(tmp_path):
    deepfm = shipped.folder("conf") / "deepfm.yaml"
    assert composed(deepfm, "cluster=local", "cluster.workers=2").cluster.start == "local"
    assert composed(deepfm).cluster == schema.Cluster()
    (tmp_path / "own.yaml").write_text(OWN.replace("schema,", "schema, {cluster: local},"))
    assert composed(tmp_path / "own.yaml").cluster.start == "local"
    assert composed(tmp_path / "own.yaml", "cluster=local").cluster.start == "local"
    assert composed(tmp_path / "own.yaml", "cluster.start=null").cluster.start is None


def test_other_groups_need_not_be_listed_either(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    conf = composed(tmp_path / "own.yaml", "data=generated", "recipe=deepfm", "recipe.hidden=[4]")
    assert conf.recipe["name"] == "deepfm" and conf.recipe["hidden"] == [4]
    assert conf.data.format == "generated" and list(conf.slots)[:2] == ["a", "user_id"]


def test_a_file_of_the_users_own_group_is_checked(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    (tmp_path / "cluster").mkdir()
    mine = tmp_path / "cluster" / "mine.yaml"
    mine.write_text("start: local\nworkers: 4\n")
    assert composed(tmp_path / "own.yaml", "cluster=mine").cluster.workers == 4
    mine.write_text("start: local\nwokers: 4\n")
    with pytest.raises(UserError, match=r"no key 'cluster\.wokers'"):
        composed(tmp_path / "own.yaml", "cluster=mine")


@pytest.mark.parametrize("command", ["ablate", "split-graph", "prepare"])
@pytest.mark.parametrize("key", ["cluster=local", "cluster.workers=2", "+cluster=local"])
def test_commands_of_one_process_refuse_it(cli, tmp_path, command, key):
    assert command in COMMANDS
    (tmp_path / "own.yaml").write_text(CONF)
    done = cli(command, "conf=own.yaml", key, cwd=tmp_path)
    assert done.code == 2 and "this command runs in one process" in done.line


def test_fewer_workers_are_given_by_cluster_workers(cli, tmp_path):
    (tmp_path / "own.yaml").write_text(CONF)
    done = cli("train", "conf=own.yaml", "cluster=ray", "cluster.min_workers=1", cwd=tmp_path)
    assert done.code == 2 and "no longer has the key 'cluster.min_workers'. After" in done.line


def test_a_sweep_refuses_it(cli, tmp_path):
    (tmp_path / "own.yaml").write_text(CONF)
    done = cli("train", "conf=own.yaml", "-m", "seed=1,2", "cluster=local", cwd=tmp_path)
    assert done.code == 2 and "Leave out cluster=local and its keys; where" in done.line


def test_keys_of_workers_that_nothing_starts(cli, tmp_path):
    (tmp_path / "own.yaml").write_text(CONF)
    done = cli("check", "conf=own.yaml", "cluster.timeout=30", cwd=tmp_path)
    assert done.code == 2
    assert done.line.endswith("cluster.timeout is for workers, which nothing starts. Leave it out, "
                              "or add cluster=local")  # fmt: skip
    done = cli("check", "conf=own.yaml", "cluster.timeout=30", "cluster.start=null", cwd=tmp_path)
    assert "cluster" not in done.err and "was not found" in done.err


def test_no_saved_conf_has_it():
    from tnctl.saved_conf import conf_to_json

    conf = composed(shipped.folder("conf") / "deepfm.yaml", "cluster=local", "cluster.workers=2")
    saved = conf_to_json(conf)
    assert saved == conf_to_json(dataclasses.replace(conf, cluster=schema.Cluster()))
    assert "cluster" not in saved and "monitor" not in saved and "cluster" in NOT_COMPARED
    saved_conf.check(saved)
    with pytest.raises(saved_conf.ForeignValueError, match="no checkpoint keeps it"):
        saved_conf.check({**saved, "cluster": {"start": "local"}})
    with pytest.raises(saved_conf.ForeignValueError, match="monitor says where"):
        saved_conf.check({**saved, "monitor": {"prometheus": "other.prom"}})


def test_help_shows_the_group_of_the_commands_that_take_it(cli, tmp_path):
    assert "cluster=               env, local" in cli("train", "-h", cwd=tmp_path).out
    assert "cluster.workers=1" in cli("train", "--help", cwd=tmp_path).out
    assert "cluster.workers=1" in cli("evaluate", "--help", cwd=tmp_path).out
    assert "cluster" not in cli("ablate", "--help", cwd=tmp_path).out


@pytest.mark.parametrize(("overrides", "words"), [
    ([*ASYNC, "train.deterministic=true"], "train.deterministic=true is for cluster.mode=sync"),
    (["cluster=local", "cluster.staleness=2"], "cluster.staleness is for cluster.mode=async"),
    ([*ASYNC, "cluster.staleness=-1"], "staleness"),
    (["cluster=local", "cluster.mode=hybrid"], "no choice .hybrid.. It is gone. Take sync"),
    ([*ASYNC, "cluster.workers=2", "cluster.backup=1"], "cluster.backup is for cluster.mode=sync"),
    ([*ASYNC, "optimizer.clip_norm=1"], "optimizer.clip_norm is for cluster.mode=sync"),
])  # fmt: skip
def test_what_a_mode_does_not_do_is_refused(tmp_path, overrides, words):
    (tmp_path / "own.yaml").write_text(OWN)
    with pytest.raises(UserError, match=words) as refused:
        composed(tmp_path / "own.yaml", *overrides).check_training()
    assert "\n" not in str(refused.value)


def test_staleness_is_unlimited_unless_it_is_given(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    assert composed(tmp_path / "own.yaml", *ASYNC).cluster.staleness is None
    assert composed(tmp_path / "own.yaml", *ASYNC, "cluster.staleness=0").cluster.staleness == 0
