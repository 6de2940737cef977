"""The command line: fast help, composing confs, overrides, errors of one line."""

import json
import os
import re
import resource
import subprocess
import sys

import pytest
import yaml

from tnctl import schema, shipped
from tnctl.cli.commands import COMMANDS

FIXED_KEYS = [
    "seed", "output", "recipe", "slots", "data.root", "data.train", "data.validation", "data.test",
    "train.batch_size", "train.epochs", "train.deterministic", "train.precision",
]  # fmt: skip


def cpu_seconds_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_seconds(*arguments):
    """The least CPU time of seven runs of Python; wall time depends on other processes."""
    times = []
    for _ in range(7):
        started = cpu_seconds_of_children()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        times.append(cpu_seconds_of_children() - started)
    return min(times)


def test_help_is_fast():
    bare = cpu_seconds("-c", "pass")
    assert cpu_seconds("-m", "tnctl", "--help") < max(0.3, 10 * bare)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys\nfrom tnctl.cli import main\n"
        f"try: main({arguments})\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    heavy = {"tensorflow", "keras", "hydra", "omegaconf", "pyarrow", "numpy", "fsspec", "rich"}
    assert not loaded & heavy


def test_help_names_commands_and_confs(process, tmp_path):
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        done = process(*arguments, cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        for name in [*COMMANDS, *shipped.confs()]:
            assert name in done.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(process, tmp_path, command):
    done = process(command, "--help", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    lines = [line.strip() for line in done.out.splitlines()]
    for argument in COMMANDS[command].takes:
        assert any(line.startswith(f"{argument}= ") for line in lines), argument
    keys = {line.split("=")[0] for line in lines if re.match(r"[\w.]+=\S", line)}
    for key in schema.all_keys() if command in ("train", "check") else ():
        owner = schema.all_keys()[key].owner
        alike = [
            name for name, declaration in schema.all_keys().items() if declaration.owner is owner
        ]
        assert keys & set(alike), key
    for key in FIXED_KEYS if command in ("train", "check") else ():
        assert key.replace("slots", "slots.NAME.column") in keys
    if command in ("evaluate", "predict", "ablate"):
        assert {"output", "data.test", "train.batch_size"} <= keys
        assert not keys & {"train.epochs", "data.train", "data.shuffle", "optimizer.linear.name"}
    if command == "split-graph":
        assert keys == {"output"}
    for group in () if COMMANDS[command].keys == () else ("data", "recipe"):
        for path in (shipped.folder("conf") / group).glob("*.yaml"):
            assert path.stem in done.out


@pytest.mark.parametrize("command", COMMANDS)
def test_short_help_of_a_command(process, tmp_path, command):
    done = process(command, "-h", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) <= 85
    assert f"usage: tnctl {command}" in done.out
    assert all(len(line) <= 110 or line[:5] == "usage" for line in done.out.splitlines())


def test_help_fits_a_terminal(process, tmp_path):
    done = process("train", "--help", cwd=tmp_path, env={"COLUMNS": "80"})
    too_long = [line for line in done.out.splitlines() if len(line) > 80]
    assert all(line.startswith("usage") for line in too_long)


def test_every_conf_and_group_composes(cli, tmp_path):
    folder = shipped.folder("conf")
    data = sorted(path.stem for path in (folder / "data").glob("*.yaml"))
    recipes = sorted(path.stem for path in (folder / "recipe").glob("*.yaml"))
    assert recipes == shipped.recipes()
    cases = [(conf, []) for conf in shipped.confs()]
    cases += [("deepfm", [f"data={name}"]) for name in data]
    cases += [("adult", [f"recipe={name}"]) for name in recipes]
    for conf, overrides in cases:
        done = cli("train", f"conf={conf}", *overrides, "data.root=x", "--cfg", "job", cwd=tmp_path)
        assert (done.code, done.err) == (0, ""), (conf, overrides, done.err)
        composed = yaml.safe_load(done.out)
        assert composed["recipe"]["name"] in recipes
        assert composed["slots"]
        assert composed["data"]["train"]
    assert not list(tmp_path.iterdir())


def test_cfg_job_prints_and_runs_nothing(process, tmp_path):
    done = process(*CLI, "seed=7", "--cfg", "job", "train.batch_size=17", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    composed = yaml.safe_load(done.out)
    assert composed["seed"] == 7
    assert composed["train"]["batch_size"] == 17
    assert composed["recipe"].items() >= {"name": "deepfm", "hidden": [64, 32]}.items()
    assert not list(tmp_path.iterdir())


def test_overrides_of_every_form(ran, tmp_path):
    done = ran(
        "train", "conf=deepfm", "recipe=lr", "~slots.user_id", "slots.item_id.pooling=mean",
        "optimizer.dense.learning_rate=1e-5", "data.validation=null", "data.train=[a.csv,b.csv]",
        "data.test={files: c.csv, skip_rows: 1}", "data.delimiter='\\t'", "--cfg", "job",
        cwd=tmp_path,
    )  # fmt: skip
    composed = yaml.safe_load(done.out)
    assert composed["recipe"]["name"] == "lr"
    assert composed["embedding"]["width"] == 0
    assert "user_id" not in composed["slots"]
    assert composed["slots"]["item_id"]["pooling"] == "mean"
    assert float(composed["optimizer"]["dense"]["learning_rate"]) == 1e-5
    assert composed["data"]["validation"] is None
    assert composed["data"]["train"] == ["a.csv", "b.csv"]
    assert composed["data"]["test"] == {"files": "c.csv", "skip_rows": 1}


ADDED = [
    ("+slots.new.column=x", ["slots", "new", "column"], "x"),
    ("+slots.new={column: x, pooling: mean}", ["slots", "new", "pooling"], "mean"),
    ("+slots.new.vocabulary_file=a{b}#", ["slots", "new", "vocabulary_file"], "a{b}#"),
    ("+data.labels.ctr.column=x", ["data", "labels", "ctr", "column"], "x"),
    (
        "+optimizer.groups.device.embedding.name=adam",
        ["optimizer", "groups", "device", "embedding", "name"],
        "adam",
    ),
    ("+train.epochs=2", ["train", "epochs"], 2),
    ("+slots.user_id.column=uid", ["slots", "user_id", "column"], "uid"),
]


@pytest.mark.parametrize(("argument", "path", "value"), ADDED)
def test_a_plus_adds_a_name(ran, tmp_path, argument, path, value):
    done = ran("train", "conf=deepfm", argument, "--cfg", "job", cwd=tmp_path)
    setting = composed = yaml.safe_load(done.out)
    for part in path:
        setting = setting[part]
    assert setting == value
    assert composed["slots"]["user_id"]["pooling"] == "sum"


def test_another_recipe_leaves_out_what_it_does_not_have(cli, ran, tmp_path):
    (tmp_path / "mine.py").write_text("def build(inputs, *, depth: int = 2): ...\n")
    for override, recipe in (
        (["recipe=lr"], {"name": "lr", "l2": 0.0}),
        (["recipe=mine.py"], {"name": "mine.py"}),
        (["recipe.name=mine.py", "recipe.depth=3"], {"name": "mine.py", "depth": 3}),
    ):
        done = ran("train", "conf=deepfm", *override, "--cfg", "job", cwd=tmp_path)
        assert yaml.safe_load(done.out)["recipe"] == recipe
    done = cli(*CLI, "recipe=mine.py", "recipe.dept=3", cwd=tmp_path)
    assert "'depth'" in done.line


def test_ones_own_file_wins_over_a_shipped_one_of_its_name(ran, tmp_path):
    (tmp_path / "my/data").mkdir(parents=True)
    text = "# @package _global_\ndata: {train: '0:7', format: generated}\nslots: {user_id: {}}\n"
    (tmp_path / "my/data/generated.yaml").write_text(text)
    (tmp_path / "my/deepfm.yaml").write_text(
        "defaults: [schema, recipe: deepfm, data: generated, _self_]\nseed: 5\n"
    )
    done = ran("train", "conf=my/deepfm.yaml", "--cfg", "job", cwd=tmp_path)
    composed = yaml.safe_load(done.out)
    assert composed["seed"] == 5
    assert composed["data"]["train"] == "0:7"
    assert list(composed["slots"]) == ["user_id"]
    assert composed["recipe"]["hidden"] == [400, 400, 400]


GROUP_FILE = """\
# @package _global_
data: {train: '0:7', format: generated}
slots: {user_id: {}}
"""


@pytest.mark.parametrize(
    ("conf", "place", "options"),
    [
        ("deepfm", "data", []),  # in the current folder
        ("my/run.yaml", "data", []),
        ("my/run.yaml", "my/data", []),  # beside the conf
        ("deepfm", "it's, here/data", ["--config-dir", "it's, here"]),
        ("my/run.yaml", "more/data", ["--config-dir=more"]),
    ],
)
def test_a_file_of_ones_own_group(cli, ran, tmp_path, conf, place, options):
    (tmp_path / "my").mkdir()
    (tmp_path / "my/run.yaml").write_text("defaults: [deepfm, _self_]\nseed: 5\n")
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place / "mine.yaml").write_text(GROUP_FILE)
    done = ran("train", f"conf={conf}", "data=mine", *options, "--cfg", "job", cwd=tmp_path)
    composed = yaml.safe_load(done.out)
    assert (composed["data"]["train"], list(composed["slots"])) == ("0:7", ["user_id"])
    assert composed["seed"] == (5 if conf == "my/run.yaml" else 1)
    if options:
        done = cli("train", f"conf={conf}", "data=mine", "--cfg", "job", cwd=tmp_path)
        assert "no data 'mine'" in done.line


def test_the_current_folder_comes_after_what_is_shipped(cli, ran, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/criteo.yaml").write_text(GROUP_FILE)
    done = ran("train", "conf=deepfm", "data=criteo", "data.root=x", "--cfg", "job", cwd=tmp_path)
    assert yaml.safe_load(done.out)["data"]["train"] != "0:7"
    more = ["--config-dir", ".", "--cfg", "job"]
    (tmp_path / "deepfm.yaml").write_text("defaults: [schema, recipe: lr, data: criteo, _self_]\n")
    done = cli("train", "conf=deepfm.yaml", *more, cwd=tmp_path)
    assert yaml.safe_load(done.out)["data"]["train"] == "0:7"


def test_a_folder_with_the_name_of_a_key_is_no_group(ran, tmp_path):
    (tmp_path / "output").mkdir()
    (tmp_path / "run.yaml").write_text("defaults: [deepfm, _self_]\n")
    done = ran("train", "conf=run.yaml", "output=output", "--cfg", "job", cwd=tmp_path)
    assert yaml.safe_load(done.out)["output"] == "output"


def test_resolved_values_are_shown(cli, tmp_path):
    (tmp_path / "run.yaml").write_text("defaults: [deepfm, _self_]\n")
    shown = cli("train", "conf=run.yaml", "--cfg", "job", cwd=tmp_path)
    assert yaml.safe_load(shown.out)["output"] == "runs/${hydra:job.config_name}"
    done = cli("train", "conf=run.yaml", "--cfg", "job", "--resolve", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert yaml.safe_load(done.out)["output"] == "runs/run"


def test_what_hydra_would_do_is_refused_in_a_file(cli, tmp_path):
    (tmp_path / "run.yaml").write_text("defaults: [deepfm, _self_]\nhydra: {run: {dir: x}}\n")
    done = cli("train", "conf=run.yaml", cwd=tmp_path)
    assert done.code == 2 and "no key 'hydra'" in done.line
    (tmp_path / "run.yaml").write_text(
        "defaults: [deepfm, {override hydra/launcher: joblib}, _self_]\n"
    )
    assert "no key 'hydra/launcher'" in cli("train", "conf=run.yaml", cwd=tmp_path).line


CLI = ["train", "conf=deepfm"]
MISTAKES = [
    (["trian"], ["no command 'trian'", "'train'"]),
    (["train"], ["conf=NAME", "deepfm"]),
    (["train", "deepfm"], ["give conf=NAME, or conf=FILE.yaml of your own", "deepfm"]),
    (["train", "-cn"], ["give conf=NAME"]),
    ([*CLI, "-cn", "lr"], ["no option -cn", "conf=NAME"]),
    ([*CLI, "--resolve"], ["--resolve goes with --cfg job"]),
    ([*CLI, "--cfg", "job", "--config-dir", "nope"], ["'nope' is no folder"]),
    ([*CLI, "--config-dir"], ["--config-dir takes a folder"]),
    ([*CLI, f"data={'x' * 300}"], ["no data 'xxx"]),
    ([*CLI, "hydra.run.dir=x"], ["no key 'hydra.run.dir'", "output=URL"]),
    ([*CLI, "-m", "seed=1,2", "hydra.sweep.dir=x"], ["no key 'hydra.sweep.dir'", "output=URL"]),
    ([*CLI, "hydra.searchpath=[s3://x]"], ["'s3://x' is no folder"]),
    (["train", "conf=deepfn"], ["no conf 'deepfn'", "'deepfm'", "ends in .yaml"]),
    (["train", "conf=my/run.yaml"], ["no conf file my/run.yaml", "deepfm"]),
    (["train", "conf="], ["conf= is empty"]),
    ([*CLI, "conf=lr"], ["conf= is given twice"]),
    ([*CLI, "train.bach_size=3"], ["'train.bach_size'", "'train.batch_size'"]),
    ([*CLI, "data=criteoo"], ["no data 'criteoo'", "'criteo'"]),
    ([*CLI, "recipe=deepmf"], ["no recipe 'deepmf'", "'deepfm'"]),
    ([*CLI, "recipe.hiden=3"], ["'recipe.hiden'", "'hidden'"]),
    ([*CLI, "recipe=lr", "recipe.hidden=[3]"], ["recipe lr has no setting 'hidden'"]),
    ([*CLI, "train.batch_size=big"], ["train.batch_size", "whole number", "train.batch_size=big"]),
    ([*CLI, "data.shuffle=maybe"], ["data.shuffle", "true or false", "maybe"]),
    ([*CLI, "train.batch_size=0"], ["train.batch_size", "between 1 and 1,048,576", "=0"]),
    ([*CLI, "optimizer.dense.name=adamm"], ["optimizer.dense.name", "'adamm'", "'adam'"]),
    ([*CLI, "optimizer.dense.initial_accumulator=1"], ["optimizer.dense.initial_accumulator"]),
    ([*CLI, "slots.user_id.poling=sum"], ["slots.user_id.poling", "'slots.user_id.pooling'"]),
    ([*CLI, "slots.user.pooling=sum"], ["no slots.user", "--cfg job", "'slots.user_id.pooling'"]),
    ([*CLI, "~slots.usr_id"], ["no slots.usr_id", "'slots.user_id'"]),
    ([*CLI, "slots.new.column=x"], ["no slots.new", "+slots.new.column="]),
    ([*CLI, "slots=3"], ["slots takes no value", "+slots.NAME.column="]),
    ([*CLI, "slots.user_id.cross=x"], ["slots.user_id.cross is a list", "cross=x"]),
    ([*CLI, "data.labels.ctr.column=x"], ["no data.labels.ctr", "+data.labels.ctr.column="]),
    ([*CLI, "+optimizer.groups.devic.linear.name=sgd"], ["optimizer.groups.devic", "'device'"]),
    ([*CLI, "optimizer.groups.device.linear.name=sgd"], ["+optimizer.groups.device.linear.name="]),
    ([*CLI, "train.epochs=null"], ["train.epochs needs a value"]),
    ([*CLI, "seed=1,2"], ["seed=1,2 has several values", "-m"]),
    ([*CLI, "recipe=nope.py"], ["nope.py"]),
    ([*CLI, "to=x"], ["takes no to=", "predict"]),
    ([*CLI, "step=9"], ["takes no step=", "checkpoint=OUTPUT/checkpoints/step-…"]),
    ([*CLI, "graph=x"], ["takes no graph=", "verify-serving and score take it"]),
    ([*CLI, "format=redis"], ["takes no format=", "export-embeddings, publish and score take it"]),
    ([*CLI, "overwrite=yes"], ["overwrite", "true or false"]),
    ([*CLI, "train.batch_size"], ["train.batch_size", "key=value"]),
    ([*CLI, "--bogus"], ["--bogus"]),
    ([*CLI, "--cfg", "jop"], ["'jop'", "job"]),
    (["train", "conf=criteo"], ["data.root is not given", "data.root="]),
    (["evaluate"], ["output=URL", "checkpoint=URL", "conf=NAME"]),
    (["split-graph", "conf=deepfm", "format=parquet"], ["takes no format="]),
    (["split-graph", "conf=deepfm", "-m"], ["-m is for train"]),
    (["check"], ["conf=NAME"]),
    (["check", "conf=deepfm", "format=xml"], ["no format 'xml'", "json"]),
    (["check", "conf=deepfm", "rows=0"], ["rows", "at least 1"]),
    ([*CLI, "output="], ["output is empty"]),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=lambda v: " ".join(v)[:40])
def test_a_mistake_is_one_line(cli, tmp_path, arguments, words):
    done = cli(*arguments, cwd=tmp_path)
    assert done.code == 2
    assert done.out == ""
    assert done.line.startswith("tnctl")
    for word in words:
        assert word in done.line
    assert not list(tmp_path.iterdir())


NO_HINT = "`tnctl train --help` lists every key"
RATES = (
    "Did you mean 'optimizer.dense.learning_rate', 'optimizer.embedding.learning_rate' or "
    "'optimizer.linear.learning_rate'?"
)
HINTS = {
    "train.learning_rate=0.1": RATES,
    "lr=0.1": RATES,
    "numerics={x:{}}": "Did you mean 'numeric'?",
    "train.device=gpu": "tnctl computes on CPUs; train.threads is the number of threads",
    "evaluation.baseline=true": "Did you mean 'baseline.enabled'?",
    "train.embedding=3": NO_HINT,
    "optimizer.embedding.lr=1": "Did you mean 'optimizer.embedding.learning_rate'?",
    "save.every=3": "Did you mean 'save.every_steps'?",
    "metrics=auc": "Did you mean 'evaluation.monitor'?",
    "unknown=4": NO_HINT,
    "train.seed=1": "Did you mean 'seed'?",
    "life.evicton.show=3": "Did you mean 'life.eviction'?",
}


@pytest.mark.parametrize("argument", HINTS)
def test_a_hint_is_of_the_same_section_or_a_synonym(cli, tmp_path, argument):
    done = cli(*CLI, argument, cwd=tmp_path)
    key = argument.partition("=")[0]
    assert done.line == f"tnctl train: no key '{key}'. {HINTS[argument]}"


def test_synonyms_lead_to_keys():
    known = schema.all_keys()
    assert {key for keys in schema.SYNONYMS.values() for key in keys} <= known.keys()


def test_a_setting_is_compared_without_its_section(cli, tmp_path):
    done = cli(*CLI, "recipe.dim=3", cwd=tmp_path)
    assert "no setting 'dim'" in done.line
    assert "Did you mean" not in done.line


PATHS = ["{day}", "day=2024-01-01/", "part-[0-9]", "?a=b", "#"]
MORE_PATHS = ["it's", 'a"b', "a,b", "x:y", "é", "[a", "$x"]


@pytest.mark.parametrize("path", PATHS + MORE_PATHS)
def test_a_path_reaches_tnctl_as_it_is(ran, tmp_path, path):
    keys = ["data.root", "data.train", "data.validation", "data.test", "output"]
    done = ran("train", "conf=deepfm", *(f"{k}={path}" for k in keys), "--cfg", "job", cwd=tmp_path)
    composed = yaml.safe_load(done.out)
    assert composed["output"] == path
    for key in keys[:-1]:
        assert composed["data"][key.removeprefix("data.")] == path


# In data.train {day} stands for the days that are there: tests/test_daily.py.
@pytest.mark.parametrize("path", ["day=2024-01-01/", "part-[0-9]"])
def test_real_files_of_such_names(ran, workspace, path):
    """Read from, and written to, as they are; `evaluate` finds the run by the same name."""
    name = f"{path}in.csv"
    (workspace / "clicks" / name).parent.mkdir(parents=True, exist_ok=True)
    os.replace(workspace / "clicks/validation.csv", workspace / "clicks" / name)
    ran(
        "train", "conf=small.yaml", f"data.train={name}", "data.validation=null", "data.test=null",
        f"output={path}out", cwd=workspace,
    )  # fmt: skip
    report = json.loads((workspace / f"{path}out/report.json").read_text())
    assert report["epochs"][0]["examples"] == 900
    done = ran("evaluate", f"output={path}out", f"data.test={name}", cwd=workspace)
    assert json.loads(done.out)["examples"] == 900


@pytest.mark.parametrize("width", [0, -5])
def test_widths_that_make_no_model(cli, tmp_path, width):
    done = cli(*CLI, "data.train=0:2000", f"recipe.hidden=[{width}]", cwd=tmp_path)
    assert done.code == 2
    assert f"at least 1 wide. Received: {width}" in done.last
