"""Checkpoints of a stranger, their checksums made to fit: nothing in them is run or resolved."""

import hashlib
import json
import math
import os
import shutil
from types import SimpleNamespace

import keras
import pytest
from mutated_documents import reseal
from test_file_urls import spec_that_runs

from tnctl import files, saved_conf, schema
from tnctl.checkpoint.chain import newest_or_fail, open_checkpoint
from tnctl.composing import compose
from tnctl.data.day_records import Fingerprint, is_day
from tnctl.data.sources import Source
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError
from tnctl.model import recipes
from tnctl.saved_conf import conf_to_json
from tnctl.schema import Conf, Slot
from tnctl.training import run

# deepfm, and a file that tells that the code was run.
CODE = """\
from pathlib import Path

from tnctl.recipes.deepfm import build

Path("RUN").touch()
"""
BUILDING = ("evaluate", "ablate", "verify-serving", "predict")
SERVING = ("split-graph", "export-embeddings")


def newest(folder):
    [*_, checkpoint] = sorted((folder / "run/checkpoints").iterdir())
    return checkpoint


def change(checkpoint, changing, **changed):
    """Save another conf in a checkpoint: `changing` gets its values."""
    values = json.loads((checkpoint / "conf.json").read_text())
    values = changing(values) or values
    (checkpoint / "conf.json").write_text(json.dumps(values))
    reseal(checkpoint, **changed)


@pytest.fixture(scope="module")
def stranger(trained, tmp_path_factory):
    """A folder with a run whose checkpoint has a recipe of its own; marks of it are in RUN."""
    folder = tmp_path_factory.mktemp("stranger")
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    checkpoint = newest(folder)
    code = checkpoint / "extra/recipe.py"
    code.parent.mkdir(exist_ok=True)
    code.write_text(CODE)
    name = str(code.relative_to(folder))
    recipe = {"name": name, "hidden": [16, 8]}
    digest = hashlib.sha256(CODE.encode()).hexdigest()
    change(checkpoint, lambda v: v.update(recipe=recipe), recipe={**recipe, "sha256": digest})
    conf = (folder / "small.yaml").read_text().replace("{recipe: deepfm}, ", "")
    conf = conf.replace("recipe: {", f"recipe: {{name: {name}, ")
    (folder / "own.yaml").write_text(conf)
    return folder, name


@pytest.fixture
def run_of_code(stranger):
    """Whether the code of the checkpoint was run since it was last asked."""

    def was_run():
        mark = stranger[0] / "RUN"
        ran = mark.exists()
        mark.unlink(missing_ok=True)
        return ran

    was_run()
    return was_run


def test_code_of_a_checkpoint_is_not_run(cli, ran, stranger, run_of_code):
    folder, name = stranger
    for command in BUILDING:
        for named in ("output=run", f"checkpoint={newest(folder)}"):
            to = ["to=scores.csv"] if command == "predict" else []
            done = cli(command, named, *to, cwd=folder)
            assert done.code == 2, (command, done.err)
            assert "give recipe.name=/" in done.last and done.last.endswith(f"{name} to run it")
            assert not run_of_code(), command
    for command in SERVING:
        done = cli(command, "output=run", "to=" + command, cwd=folder)
        assert done.code == 0, (command, done.err)
        assert not run_of_code(), command
    ran("checkpoint", "inspect", "run", cwd=folder)
    # Another setting of the recipe does not name its file.
    for given in ("recipe.hidden=[16,8]", "recipe={}", "++recipe={hidden: [16, 8]}"):
        done = cli("evaluate", "output=run", given, cwd=folder)
        assert (done.code, run_of_code()) == (2, False), done.err


def test_code_that_the_user_names_is_run(ran, stranger, run_of_code):
    folder, name = stranger
    for named in (f"recipe.name={name}", f"recipe={name}", f"++recipe.name='{name}'"):
        ran("evaluate", "output=run", named, cwd=folder)
        assert run_of_code(), named
    ran("evaluate", "conf=own.yaml", "output=run", cwd=folder)
    assert run_of_code()


def test_code_of_the_users_conf_must_be_what_was_trained(cli, ran, stranger, run_of_code):
    folder, name = stranger
    recipes._digests.clear()  # as in a process of its own
    (folder / name).write_text(CODE + "# other code\n")
    try:
        done = cli("evaluate", "conf=own.yaml", "output=run", cwd=folder)
        assert done.code == 2, done.err
        assert "is not the file that run/checkpoints/" in done.last
        assert not run_of_code()
        named = f"recipe.name={name}"
        done = ran("evaluate", "conf=own.yaml", "output=run", named, cwd=folder)
        assert f"{name} has changed since run/checkpoints/" in done.err
        assert run_of_code()
    finally:
        (folder / name).write_text(CODE)


def test_a_digest_runs_no_code_and_waits_for_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text(CODE)
    assert recipes.digest_of("code.py") == hashlib.sha256(CODE.encode()).hexdigest()
    assert not (tmp_path / "RUN").exists()
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    for name in ("pipe.py", "folder.py"):
        with pytest.raises(UserError, match="is no file"):
            recipes.digest_of(name)


# ---- What a saved conf may hold ----


def put(key, value):
    """Puts a value at a key of a conf, its parts apart by /."""

    def changing(values):
        *parents, last = key.split("/")
        for name in parents:
            values = values[name]
        values[last] = value

    return changing


HOSTILE = {
    "environment": (put("data/root", "http://localhost:1/${oc.env:TOKEN}"), "data.root"),
    "reference": (put("output", "${data.root}"), "output"),
    "in a list": (put("data/train", ["a.csv", "${oc.env:TOKEN}"]), "data.train[1]"),
    "in a recipe": (put("recipe/hidden", {"a": [{"b": "${oc.env:TOKEN}"}]}), "recipe.hidden.a"),
    "in a key": (put("recipe/${oc.env:TOKEN}", 1), "recipe.$"),
    "in a slot's name": (put("slots/${oc.env:TOKEN}", {}), "slots.$"),
    "defaults": (put("defaults", ["schema", "/data/evil"]), "'defaults' is no key"),
    "hydra": (put("hydra", {"searchpath": ["file:///"]}), "'hydra' is no key"),
    "hydra below": (put("recipe/hydra", {"run": 1}), "'recipe.hydra' is no key"),
    "target": (put("recipe/_target_", "os.system"), "'recipe._target_' is no key"),
    "target of data": (put("data/_target_", "os.system"), "'data._target_' is no key"),
    "an unknown key": (put("data/rooot", "x"), "no key 'data.rooot'"),
    "missing": (put("data/root", "???"), "data.root is '???'"),
    "not a number": (put("seed", "1"), "seed must be a whole number. Received: seed=1"),
    "true for a number": (put("seed", True), "seed must be a whole number. Received: seed=True"),
    "nan": (put("train/batch_size", float("nan")), "train.batch_size is nan"),
    "text for keys": (put("data", "x"), "data takes no value"),
    "keys for text": (put("data/root", {"a": 1}), "data.root must be text"),
    "a list in a list": (put("data/carry", [["a"]]), "data.carry[0] must be text"),
    "null": (put("output", None), "output needs a value"),
    "a recipe's path": (put("recipe/name", "../conf/evil"), "recipe.name is '../conf/evil'"),
    "an absolute path": (put("recipe/name", "/etc/passwd"), "recipe.name is '/etc/passwd'"),
    "a recipe of nothing": (put("recipe", None), "recipe needs a value"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_saved_conf_is_plain_values(run_copy, case, monkeypatch):
    monkeypatch.setenv("TOKEN", "sesame")
    changing, said = HOSTILE[case]
    checkpoint = newest(run_copy)
    change(checkpoint, changing)
    with pytest.raises(DamagedError) as failed:
        open_checkpoint(str(checkpoint)).conf()
    message = str(failed.value)
    assert "conf.json was saved by a newer tnctl or another program: " in message
    assert said in message
    assert "sesame" not in message
    assert "\n" not in message


def test_every_command_checks_it(cli, run_copy, monkeypatch):
    """The value is neither resolved nor asked for; nothing is written."""
    monkeypatch.setenv("TOKEN", "sesame")
    change(newest(run_copy), HOSTILE["environment"][0])
    paths = sorted(run_copy.rglob("*"))
    for command in (
        *([name, "output=run", "to=new"] for name in (*SERVING, "predict")),
        ["evaluate", "output=run"],
        ["ablate", "output=run"],
        ["evaluate", "conf=small.yaml", "output=run"],
        ["verify-serving", "output=run", "graph=g", "embeddings=e"],
        ["checkpoint", "verify", "run"],
        ["checkpoint", "diff", "run", "run"],
        ["train", "conf=small.yaml", "output=new", f"warm.start={run_copy}/run"],
        ["train", "conf=small.yaml", "output=run"],
    ):
        done = cli(*command, cwd=run_copy)
        assert done.code == 1, (command, done.err)
        reason = "conf.json was saved by a newer tnctl or another program: data.root is"
        assert reason in done.err, command
        assert "sesame" not in done.out + done.err
        shutil.rmtree(run_copy / "new", ignore_errors=True)
    assert sorted(run_copy.rglob("*")) == paths
    done = cli("checkpoint", "list", "run", "--json", cwd=run_copy)
    assert (done.code, json.loads(done.out)[-1]["monitor"]) == (0, None)


@pytest.mark.parametrize("hidden", [[2_000_000, 2_000_000], [600, 600]])
def test_settings_that_make_more_weights_are_refused_before_they_are_made(
    cli, run_copy, hidden, monkeypatch
):
    change(newest(run_copy), put("recipe/hidden", hidden))
    made = []
    initialise = keras.Variable._initialize
    monkeypatch.setattr(
        keras.Variable,
        "_initialize",
        lambda variable, value: (
            made.append(math.prod(variable.shape)) or initialise(variable, value)
        ),
    )
    done = cli("evaluate", "output=run", cwd=run_copy)
    assert done.code == 1 and max(made, default=0) < 1000
    assert f"'hidden': {hidden}" in done.last
    assert "has fewer dense weights than its conf makes" in done.last


# ---- URLs that only a checkpoint names ----


def test_urls_that_do_more_than_name_files_are_not_opened(cli, ran, run_copy):
    """Of an older fsspec the spec's templates run what stands in them; of any they may not end."""
    mark, spec = run_copy / "RUN", run_copy / "spec.json"
    spec.write_text(spec_that_runs(mark))
    url = f"reference://x::file://{spec}"
    change(newest(run_copy), put("data/test", url))
    paths = sorted(run_copy.rglob("*"))
    for command in (
        *([name, "output=run", "to=new"] for name in (*SERVING, "predict")),
        ["evaluate", f"checkpoint={newest(run_copy)}", "data.root=clicks"],
        ["evaluate", "output=run", f"data.test={{files: '{url}'}}"],
        ["ablate", "output=run"],
        ["verify-serving", "output=run", "graph=g", "embeddings=e"],
    ):
        done = cli(*command, cwd=run_copy)
        assert done.code == 2, (command, done.err)
        key = "data.test.files" if "{" in command[-1] else "data.test"
        assert f"{key} in the conf of " in done.last
        assert "is 'reference://x::file://" in done.last
        assert f"If you mean it, give {key}=… on the command line" in done.last
    # Not even by the user's own word.
    done = cli("evaluate", "output=run", f"data.test={url}", cwd=run_copy)
    assert (done.code, "protocol reference, which renders" in done.last) == (2, True), done.err
    assert sorted(run_copy.rglob("*")) == paths
    # What the user names may be whatever fsspec has.
    chained = f"data.test=simplecache::file://{run_copy}/clicks/test.csv"
    ran("evaluate", "output=run", chained, cwd=run_copy)
    ran("checkpoint", "inspect", "run", cwd=run_copy)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("/proc/kmsg", "a file of the kernel"), ("/dev/zero", "a device"), ("fifo", "a FIFO")],
)
def test_what_is_no_regular_file_is_not_read(cli, run_copy, name, kind):
    """Reading it may never end. What only looks like a name of a file stays one."""
    os.mkfifo(run_copy / "clicks/fifo")
    for spec in (name, f"{name[:-1]}[{name[-1]}]"):
        change(newest(run_copy), put("data/test", spec))
        done = cli("evaluate", "output=run", cwd=run_copy)
        assert done.code in (1, 2), done.err
        if spec == name:
            assert f"is '{name}', {kind}, and of what a checkpoint names" in done.last
        # What the user names is read as data from regular files only, too.
        done = cli("evaluate", "output=run", f"data.test='{name}'", cwd=run_copy)
        assert (done.code, f"{name} is {kind}, and data is read" in done.last) == (1, True)


@pytest.mark.parametrize("url", ["simplecache::https://h/a", "github://o:r@main/a", "data:,a"])
def test_every_key_of_a_saved_conf_that_names_a_file(trained, url):
    saved = newest_or_fail(str(trained / "run")).conf()
    for key, leaf in (
        ("output", "output"),
        ("data/root", "data.root"),
        ("data/train", "data.train"),
        ("data/validation", "data.validation"),
        ("data/prepared", "data.prepared"),
        ("save/spool", "save.spool"),
        ("warm/start", "warm.start"),
        ("slots/item_id/vocabulary_file", "slots.item_id.vocabulary_file"),
        ("recipe/column", "recipe.column"),
    ):
        values = json.loads(json.dumps(saved))
        put(key, url)(values)
        with pytest.raises(UserError, match=f"{leaf} in the conf of run is .*give {leaf}=… on"):
            saved_conf.refuse_odd_urls(values, "run", {"seed", "data", "slots", "recipe"})
        saved_conf.refuse_odd_urls(values, "run", {leaf})
        put(key, ["a.csv", url])(values)
        with pytest.raises(UserError, match=rf"{leaf}\[1\] in the conf of run is .*give {leaf}=…"):
            saved_conf.refuse_odd_urls(values, "run", set())
        put(key, {"files": [url]})(values)
        with pytest.raises(UserError, match=f"give {leaf}.files=… on"):
            saved_conf.refuse_odd_urls(values, "run", {leaf})
    values = json.loads(json.dumps(saved))
    put("data/train", url)(values)
    put("data/test", {"files": [url, "b", url]})(values)
    with pytest.raises(UserError, match=r"give data\.train=… data\.test\.files=… on"):
        saved_conf.refuse_odd_urls(values, "run", set())
    # Texts of the data are no URLs.
    put("data/missing", [url])(saved)
    put("slots/item_id/separator", "::")(saved)
    saved_conf.refuse_odd_urls(saved, "run", set())


def test_other_urls_of_a_checkpoint_are_not_opened(monkeypatch):
    """Names of data that is gone, and of days, which take the place of {day}."""
    urls = []
    monkeypatch.setattr(files, "exists", lambda url: urls.append(url) or True)
    monkeypatch.setattr(run, "conf_of_day", lambda conf, _: conf)

    def absent(*_):
        raise files.AbsentError("data.train matches no file")

    monkeypatch.setattr(Source, "fingerprints", absent)
    names = ["reference://x::/spec.json", "https://h/a.csv", "zip://a::b", "s3://***@h/a", "a.csv"]
    checkpoint = SimpleNamespace(
        data=[Fingerprint(file=name, bytes=1) for name in names],
        position=SimpleNamespace(day=None, at_start_of_pass=False, pass_=1),
        step=1,
    )
    with pytest.raises(files.AbsentError):
        run.check_data(Conf(recipe={"name": "lr"}, slots={"a": Slot()}, output="run"), checkpoint)
    assert urls == ["https://h/a.csv", "a.csv"]
    assert not is_day("2024::reference::x")


def test_values_out_of_range_are_the_checkpoints(cli, run_copy):
    change(newest(run_copy), put("train/batch_size", -1))
    for command in (["evaluate"], ["split-graph", "to=new"]):
        done = cli(*command, "output=run", cwd=run_copy)
        assert done.code == 1
        assert "the conf of run/checkpoints/" in done.last
        assert "train.batch_size" in done.last


def test_any_plain_value_comes_back(trained):
    """Texts that YAML takes for something else too."""
    values = newest_or_fail(str(trained / "run")).conf()
    texts = ["yes", "0x10", "1e3", "~", "null", "😀", "\ud83d", "\x7f", "{a: 1}", "$", "\\", "@x"]
    values["data"]["missing"] = texts
    values["slots"]["item_id"]["column"] = "2024-01-01"
    values["optimizer"]["dense"]["epsilon"] = 1e-08
    conf = compose.compose_run(compose.saved(values), [])
    assert conf_to_json(conf) == conf_to_json(schema.from_values(values))
    # Overrides are the user's own, and may be resolved.
    override = "data.root=${output}/data"
    assert (
        compose.compose_run(compose.saved(values), [override]).data.root
        == f"{values['output']}/data"
    )


def test_what_could_not_be_read_again_is_not_trained(cli, workspace):
    text = (workspace / "small.yaml").read_text()
    (workspace / "own.yaml").write_text(text.replace("root: clicks", "root: '\\${clicks}'"))
    done = cli("train", "conf=own.yaml", "output=run", cwd=workspace)
    assert done.code == 2
    assert "data.root is '${clicks}', which names a value" in done.line
    assert not (workspace / "run").exists()


def test_older_confs_may_lack_keys(trained):
    values = newest_or_fail(str(trained / "run")).conf()
    del values["gate"], values["train"]["xla"]
    saved_conf.check(values)
    assert saved_conf.conf_of(values, "run").gate == schema.Gate()
    with pytest.raises(Failure, match="the conf of run cannot be used: recipe needs a name"):
        saved_conf.conf_of({"seed": 1}, "run")
