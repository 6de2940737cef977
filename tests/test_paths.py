"""Where relative paths start: the folder of the conf file, or the working folder."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from mutated_documents import reseal

from tnctl import files, saved_conf, schema
from tnctl.cluster.joining.members import digests_of
from tnctl.composing import compose
from tnctl.data import days, sources
from tnctl.data.day_records import DayRecord
from tnctl.data.sources import Source
from tnctl.data.unit_records import checksum, record_of
from tnctl.errors import Failure, UserError
from tnctl.training import run
from tnctl.training.plan import days_left

GOLDEN = Path(__file__).parent / "golden/checkpoint"
CONF = """\
defaults: [schema, {recipe: lr}, _self_]
data: {root: ../data, train: train.csv, validation: [validation.csv], label: {column: y}}
slots: {a: {}, b: {ids: vocabulary, vocabulary_file: words.txt}}
train: {batch_size: 8}
evaluation: {ablate: false}
"""
NO_ROOT = CONF.replace("root: ../data, ", "").replace("words", "../data/words")
RECIPE = """\
import keras
def build(inputs):
    return keras.layers.Dense(1)(inputs.linear)
"""


@pytest.fixture
def project(tmp_path):
    """confs/my.yaml beside data/; and the folders cwd/ and third/, which have nothing."""
    for name in ("confs", "data", "cwd", "third"):
        (tmp_path / name).mkdir()
    (tmp_path / "confs/my.yaml").write_text(CONF)
    lines = ["a,b,y", *(f"{i % 7},{'xz'[i % 2]},{i % 2}" for i in range(60))]
    for name in ("train", "validation"):
        (tmp_path / f"data/{name}.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "data/words.txt").write_text("x\nz\n")
    return tmp_path


def works(done):
    assert done.code == 0, done.err
    return done


def refused(done, *words, code=1):
    assert done.code == code and len(done.last.splitlines()) == 1, done.err
    for word in words:
        assert str(word) in done.last, done.last


def conf_of(project, *overrides):
    return compose.compose(project / "confs/my.yaml", list(overrides))


def saved(run):
    [path] = Path(run).glob("checkpoints/*/conf.json")
    return json.loads(path.read_text())


# ---- Commands ----------------------------------------------------------------


def test_a_conf_and_its_run_work_from_any_folder(project, cli):
    conf, cwd, third = f"conf={project}/confs/my.yaml", project / "cwd", project / "third"
    works(cli("train", conf, "output=run", "golden=2", cwd=cwd))
    values = saved(cwd / "run")
    assert values["data"]["root"] == "../data" and values["output"] == "run"
    assert values["paths"] == {"folder": str(project / "confs"), "given": []}
    output = f"output={cwd}/run"
    assert "nothing to do" in works(cli("train", conf, output, cwd=third)).err
    for command in (
        ("evaluate", output),
        ("predict", output, "to=scores.csv"),
        ("check", conf),
        ("prepare", conf, "to=prepared"),
        ("train", conf, "data.prepared=prepared", "output=again", "golden=0"),
        ("train", conf, "-m", "seed=1,2", "output=sweep", "golden=0"),
    ):
        works(cli(*command, cwd=third))
    assert not list((project / "confs").glob("*/"))


def test_a_moved_project(project, cli):
    conf, old = f"conf={project}/confs/my.yaml", project / "confs"
    works(cli("train", conf, "output=run", "golden=2", cwd=project / "cwd"))
    moved = project / "moved"
    moved.mkdir()
    for name in ("confs", "data"):
        shutil.move(project / name, moved / name)
    refused(cli("evaluate", "output=run", cwd=project / "cwd"), f"{old}/../data", "was not found")
    conf = f"conf={moved}/confs/my.yaml"
    done = cli("train", conf, "output=run", "train.epochs=2", "golden=2", cwd=project / "cwd")
    assert "resum" in works(done).err
    works(cli("evaluate", conf, "output=run", cwd=project / "cwd"))


def test_what_is_not_there_names_the_folder_that_was_searched(project, cli):
    conf, cwd = f"conf={project}/confs/my.yaml", project / "cwd"
    confs = project / "confs"
    refused(cli("check", conf, "data.train=no.csv", cwd=cwd), f"{confs}/../data/no.csv was not")
    refused(cli("check", conf, "data.train=no*.csv", cwd=cwd), f"{confs}/../data/no*.csv matches")
    refused(cli("check", conf, "data.train=no/", cwd=cwd), f"{confs}/../data/no/ names no folder")
    words = "slots.b.vocabulary_file=no.txt"
    refused(cli("check", conf, words, cwd=cwd), f"{confs}/../data/no.txt was not found")
    root = "data.root=data"
    (confs / "my.yaml").write_text(
        CONF.replace(", b: {ids: vocabulary, vocabulary_file: words.txt}", "")
    )
    refused(cli("check", conf, root, cwd=cwd), f"data/train.csv was not found in {cwd}.")
    refused(cli("check", conf, root, "data.train=*.c", cwd=cwd), f"*.c matches no file in {cwd}.")
    refused(cli("check", conf, root, "data.train=t/", cwd=cwd), f"data/t/ in {cwd} names no folder")
    refused(cli("check", conf, "data.train='no-{day}.csv'", cwd=cwd), f"there in {confs}/../data.")
    (confs / "my.yaml").write_text(CONF + "warm: {start: runs/old}\n")
    refused(cli("train", conf, cwd=cwd), f"warm.start={confs}/runs/old is no checkpoint")
    refused(cli("train", conf, "warm.start=old", cwd=cwd), f"=old is no checkpoint in {cwd}")
    overrides = ("data.prepared=p", "warm.start=null")
    refused(cli("train", conf, *overrides, cwd=cwd), f"p has no manifest.json in {cwd}")
    recipe = "recipe.name=no.py"
    refused(cli("train", conf, recipe, overrides[1], cwd=cwd), f"cannot read {cwd}/no.py", code=2)


def test_two_workers_in_other_working_folders(project, monkeypatch):
    conf = conf_of(project, "data.train=[train.csv,validation.csv]")
    [first, second] = Source(conf, "train").units(2)
    # Worker 0 names files to the others, whose copies of the project may be elsewhere.
    assert (first.file, second.file) == ("../data/train.csv", "../data/validation.csv")
    elsewhere = dataclasses.replace(conf, paths=schema.Paths(folder="/elsewhere"))
    assert digests_of(elsewhere) == digests_of(conf)
    assert checksum(Source(conf, "train").units(2)) == checksum([first, second])
    monkeypatch.chdir(project / "third")
    given = schema.from_values(json.loads(json.dumps(dataclasses.asdict(conf))))
    assert sum(piece.table.num_rows for piece in Source(given, "train").pieces(["a"], second)) == 60


# ---- Which folder ------------------------------------------------------------


def test_paths_of_a_file_and_of_the_command_line(project):
    confs, data = project / "confs", project / "confs/../data"
    conf = conf_of(project)
    assert Source(conf, "train").files == [f"{data}/train.csv"]
    # Names start from data.root, wherever they are given.
    conf = conf_of(project, "data.train=validation.csv", "slots.b.vocabulary_file=words.txt")
    assert Source(conf, "train").files == [f"{data}/validation.csv"]
    assert str(data / "words.txt") in sources.files_read(conf)
    assert conf_of(project, "data.root=other").root_of("data.train") == "other"
    assert conf_of(project, "data={root: other}").root_of("data.train") == "other"
    assert conf_of(project, "data={window: 8}").root_of("data.train") == str(data)
    # Without data.root, a name starts where it is given.
    (confs / "my.yaml").write_text(NO_ROOT)
    conf = conf_of(project, "data.train=x.csv")
    assert conf.root_of("data.train") is None
    assert conf.root_of("data.validation") == conf.root_of("slots.b.vocabulary_file") == str(confs)
    conf = conf_of(project, "data.train={files: x.csv}", "data.split.validation=0.1")
    assert conf.root_of("data.train") is None
    conf = conf_of(project, "data.validation=null", "data.split.validation=0.1")
    shutil.copy(project / "data/train.csv", confs)
    assert Source(conf, "validation").files == [f"{confs}/train.csv"]


def test_other_files_that_a_conf_names(project):
    confs = project / "confs"
    (confs / "my.yaml").write_text(
        CONF.replace("{recipe: lr}, ", "")
        + "recipe: {name: own.py}\nwarm: {start: old}\n"
        + "cluster: {start: local, tls: {certificate: a.pem, key: /b.pem, authority: c.pem}}\n"
    )
    (confs / "own.py").write_text(RECIPE)
    conf = conf_of(project, "+data.prepared=p")
    assert conf.recipe == {"name": "own.py"} and conf.recipe_name == f"{confs}/own.py"
    assert conf.paths.path("warm.start", "old") == f"{confs}/old"
    assert conf.paths.path("data.prepared", "p") == "p"
    assert conf.tls.certificate == f"{confs}/a.pem" and conf.tls.key == "/b.pem"
    assert conf_of(project, "recipe=own.py").recipe_name == "own.py"
    with pytest.raises(UserError, match="no setting 'width'"):
        conf_of(project, "recipe.width=3")
    for text in ("/a", "s3://b/a", "~/a", "file:/a", "memory://a", "zip://a::s3://b"):
        assert conf.paths.path("warm.start", text) == text


def test_the_folder_of_a_group_is_that_of_the_conf(project):
    group = project / "confs/data"
    group.mkdir()
    (group / "mine.yaml").write_text("root: ../data/mine\n")
    conf = conf_of(project, "+data=mine")
    assert conf.root_of("data.train") == f"{project}/confs/../data/mine"


def test_a_shipped_conf_starts_in_the_working_folder():
    conf = compose.compose(compose.conf_file("criteo"), ["data.root=x"])
    assert conf.paths == schema.Paths() and conf.root_of("data.train") == "x"


# ---- What is saved -----------------------------------------------------------


def test_files_of_checkpoints_are_named_from_the_folder(project):
    conf = conf_of(project, "data.train=*.csv")
    names = [file.file for file in Source(conf, "train").fingerprints()]
    assert names == ["../data/train.csv", "../data/validation.csv"]
    outside = conf_of(project, f"data.train={project}/data/train.csv")
    assert Source(outside, "train").fingerprints()[0].file == f"{project}/data/train.csv"


def test_units_of_an_earlier_tnctl(project):
    """Which named the files of a glob by whole paths."""
    conf = conf_of(project, "data.train=*.csv")
    cut = Source(conf, "train").units(2)
    whole = [dataclasses.replace(unit, file=f"{project}/confs/{unit.file}") for unit in cut]
    record = record_of(whole, 2)
    assert Source(conf, "train").units_again(record, "") == cut
    with pytest.raises(Failure, match="is cut into 2 units"):
        Source(conf, "train").units_again(dataclasses.replace(record, sha256="0" * 64), "")


def test_a_checkpoint_without_the_key_starts_in_the_working_folder(cli, tmp_path):
    conf = saved_conf.conf_of(json.loads((GOLDEN / "conf.json").read_text()), "golden")
    assert conf.paths == schema.Paths() and conf.root_of("data.train") is None
    command = ("evaluate", f"checkpoint={GOLDEN}", "to=x", "data.test=clicks.csv")
    command = ("predict", *command[1:])
    refused(cli(*command, cwd=tmp_path), f"clicks.csv was not found in {tmp_path}")
    shutil.copy(GOLDEN.parent / "clicks.csv", tmp_path)
    works(cli(*command, cwd=tmp_path))


def test_a_run_without_the_key_is_resumed_from_the_working_folder(project, cli):
    """Where its conf file is has no effect: the version that began the run did not ask for it."""
    old = project / "old.yaml"
    old.write_text(CONF.replace("../data", "data"))
    works(cli("train", "conf=old.yaml", "output=run", cwd=project))
    [checkpoint] = (project / "run/checkpoints").iterdir()
    values = json.loads((checkpoint / "conf.json").read_text())
    del values["paths"]
    (checkpoint / "conf.json").write_text(json.dumps(values))
    reseal(checkpoint)
    old.rename(project / "confs/old.yaml")
    command = ("train", "conf=confs/old.yaml", "train.epochs=2", "output=run")
    assert "resuming" in works(cli(*command, cwd=project)).err
    assert "confs/data/train.csv was not found" in cli(*command[:3], "output=b", cwd=project).last


def test_days_of_a_folder_that_is_gone_are_not_trained_on_every_day(project):
    """Files of trained days may be removed; their folder is where the next ones are expected."""
    (project / "confs/my.yaml").write_text(CONF.replace("train.csv", "'{day}/a.csv'"))
    conf = conf_of(project)
    record = [DayRecord(day="2024-01-01", number=1, rows=8, first_step=0, last_step=1, before=None)]
    assert days_left(conf, record, accept=False) == []
    (project / "data").rename(project / "gone")
    with pytest.raises(Failure, match=r"no day of data\.train=.* is there in .*confs/\.\./data"):
        days_left(conf, record, accept=False)


@pytest.mark.parametrize("folder", ["confs", "s3://bucket", "/a::memory://b", "/a\ud800", "", 3])
def test_a_strangers_folder_is_a_plain_path(folder):
    values = json.loads((GOLDEN / "conf.json").read_text())
    values["paths"] = {"folder": folder, "given": []}
    with pytest.raises((Failure, saved_conf.ForeignValueError), match=r"paths\.folder"):
        saved_conf.check(values)
        saved_conf.conf_of(values, "golden")


def test_a_pass_under_way_resumes_where_conf_and_data_were_moved(project):
    def checkpoint(files_then):
        return SimpleNamespace(data=files_then, position=SimpleNamespace(day=None, units=None))

    names = ["data.train=*.csv"]
    then = Source(conf_of(project, *names), "train").fingerprints()
    whole = [dataclasses.replace(f, file=f"{project}/confs/{f.file}") for f in then]
    run.check_data(conf_of(project, *names), checkpoint(whole))  # of an earlier tnctl
    moved = project / "moved"
    moved.mkdir()
    for name in ("confs", "data"):
        shutil.move(project / name, moved / name)
    run.check_data(conf_of(moved, *names), checkpoint(then))
    (moved / "data/train.csv").unlink()
    with pytest.raises(Failure, match=f"{moved}/confs/../data/train.csv is missing"):
        run.check_data(conf_of(moved, "data.train=train.csv"), checkpoint(then[:1]))


# ---- tnctl init --------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "to", "root"),
    [
        (["data/*.csv"], "confs/first.yaml", "../data"),
        (["data/train.csv"], "first.yaml", "data"),
        (["data/train.csv", "data/validation.csv"], "confs/first.yaml", ".."),
        (["train.csv"], "../confs/first.yaml", "../data"),
        (["train.csv"], "first.yaml", None),
        (["ROOT/data/train.csv"], "confs/first.yaml", "ROOT/data"),
        (["data/d={day}/train.csv"], "confs/first.yaml", "../data"),
    ],
)
def test_init_writes_a_root_that_works_from_any_folder(project, cli, words, to, root):
    cwd = project / "data" if words == ["train.csv"] else project
    for day in ("2026-01-01", "2026-01-02") if "{day}" in words[0] else ():
        (project / f"data/d={day}").mkdir()
        shutil.copy(project / "data/train.csv", project / f"data/d={day}")
    words = [word.replace("ROOT", str(project)) for word in words]
    works(cli("init", *words, "label=y", f"to={to}", cwd=cwd))
    conf = compose.compose(cwd / to, [])
    assert conf.data.root == (root and root.replace("ROOT", str(project)))
    day = "2026-01-01" if "{day}" in words[0] else None
    assert all(map(files.exists, Source(days.conf_of_day(conf, day), "train").files))
