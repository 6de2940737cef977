"""`tnctl runs`: runs side by side, against figures worked out by hand; damage in one line each."""

import json
import math
import shutil
from pathlib import Path

import pytest
from mutated_documents import reseal

from tnctl.training import comparison

GOLDEN = Path(__file__).parent / "golden/checkpoint"
EVIL = "<script>alert(1)<"


def metrics(auc):
    return {"examples": 700, "auc": auc, "logloss": 1 - auc, "ctr": 0.2, "copc": 1.0}


def put(values, key, value):
    *parents, last = key.split(".")
    for name in parents:
        values = values[name]
    if value is None:
        del values[last]
    else:
        values[last] = value


def add_run(output, *, validation=(), test=None, best=None, finished=True, log=True, **changes):
    """A run as `train` leaves it: `validation` has the AUC after each pass of 10 steps.

    `changes` are keys of its conf, their dots as `__`.
    """
    checkpoint = output / "checkpoints/step-0000000020"
    shutil.copytree(GOLDEN, checkpoint)
    values = json.loads((checkpoint / "conf.json").read_text())
    values["output"] = str(output)
    for key, value in changes.items():
        put(values, key.replace("__", "."), value)
    (checkpoint / "conf.json").write_text(json.dumps(values))
    evaluations = [
        {"step": 10 * n, "epoch": n, "validation": metrics(auc)}
        for n, auc in enumerate(validation, 1)
    ]
    watch = {"best": best, "best_step": 10, "without": 0, "flat": 0, "plateau": 1.0}
    kept = {"epochs": [], "evaluations": evaluations, "watch": watch, "log_lines": 0}
    reseal(checkpoint, metrics=kept)
    if log:
        lines = [{"event": "step", "step": n, "loss": 1 / n, "running_auc": 0.5} for n in (10, 20)]
        lines += [{"event": "evaluation", **evaluation} for evaluation in evaluations]
        (output / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if finished:
        kept_best = {"monitor": "auc", "value": best, "step": 10, "kept": True}
        report = {
            **({} if test is None else metrics(test)),
            "split": None if test is None else "test", "steps": 20, "epochs": [
                {"epoch": n, "step": 10 * n, "examples": 64, "loss": 0.5, "running_auc": None}
                for n in (1, 2)
            ],
            "evaluations": evaluations, **({} if best is None else {"best": kept_best}),
            "tables": {"embedding3": {"rows": 22, "bytes": 1 << 20}}, "dense_weights": 9,
            "checkpoint": "checkpoints/step-0000000020",
            "timing": {"seconds": 75.0, "examples_per_second": 400.0},
        }  # fmt: skip
        (output / "report.json").write_text(json.dumps(report))


@pytest.fixture
def runs(tmp_path):
    """Three seeds of one conf, one run of another, one under way, and what is none."""
    folder = tmp_path / "runs"
    for seed, auc in ((1, 0.70), (2, 0.74), (3, 0.72)):
        add_run(folder / f"sweep/seed={seed}", validation=[0.6, auc], test=auc - 0.01, seed=seed)
    wide = {"embedding__width": 16, "recipe__hidden": [64, 32], "slots__campaign": None}
    add_run(folder / "wide", validation=[0.8, 0.5], best=0.8, test=0.6, seed=1, **wide)
    add_run(folder / "going", validation=[0.65], finished=False, seed=9)
    (folder / "notes").mkdir()
    (folder / "notes/readme.txt").write_text("none of them")
    return folder


def listed(cli, *arguments, cwd):
    done = cli("runs", *arguments, "--json", cwd=cwd)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_runs_are_in_the_order_of_validation(runs, cli):
    content = listed(cli, cwd=runs.parent)
    assert content["metric"] == "auc"
    # `wide` kept its best model, of step 10; the others are of their last evaluation.
    assert [(run["name"], run["validation"]["auc"]) for run in content["runs"]] == [
        ("wide", 0.8), ("sweep/seed=2", 0.74), ("sweep/seed=3", 0.72), ("sweep/seed=1", 0.7),
        ("going", 0.65),
    ]  # fmt: skip
    [wide, second, *_, going] = content["runs"]
    assert wide["test"]["auc"] == 0.6
    assert wide["differences"] == {"seed": 1, "recipe.hidden": [64, 32], "embedding.width": 16}
    assert second["differences"]["slots.campaign"]["ids"] == "integer"
    assert (second["seconds"], second["rows"], second["bytes"]) == (75.0, 22, 1 << 20)
    assert (second["dense_weights"], second["step_milliseconds"]) == (9, 1000 * 128 / 20 / 400)
    assert (going["dense_weights"], going["step_milliseconds"]) == (None, None)
    assert (going["state"], going["problem"], going["step"]) == ("unfinished", None, 2)
    assert (going["seed"], going["rows"], going["seconds"], going["test"]) == (9, 22, None, {})
    assert content["skipped"] == []


def test_another_metric_orders_them_in_its_own_direction(runs, cli):
    content = listed(cli, "runs", "metric=logloss", cwd=runs.parent)
    values = [run["validation"]["logloss"] for run in content["runs"]]
    assert values == sorted(values)
    done = cli("runs", "metric=acu", cwd=runs.parent)
    assert done.code == 2
    assert "no metric 'acu'. Did you mean 'auc'?" in done.line
    assert "no metric 'copc'" in cli("runs", "metric=copc", cwd=runs.parent).line


def test_the_mean_over_seeds(runs, cli):
    add_run(runs / "again/seed=1", validation=[0.1, 0.70], test=0.69, seed=1, train__threads=1)
    [group] = listed(cli, "runs", cwd=runs.parent)["seeds"]
    # One run of seed 1: the threads of a run do not matter to its result.
    assert group["runs"] == ["again/seed=1", "sweep/seed=2", "sweep/seed=3"]
    assert group["seeds"] == [1, 2, 3]
    values = [0.70, 0.74, 0.72]
    mean = sum(values) / 3
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    spread = group["validation"]["auc"]
    assert spread["mean"] == pytest.approx(mean)
    assert spread["deviation"] == pytest.approx(deviation)
    assert group["test"]["auc"]["mean"] == pytest.approx(mean - 0.01)
    assert set(group["differences"]) == {"recipe.hidden", "embedding.width", "slots.campaign"}


def test_code_of_a_recipe_is_a_difference(runs, cli):
    for manifest in runs.glob("sweep/seed=2/checkpoints/*/manifest.json"):
        recipe = json.loads(manifest.read_text())["recipe"]
        reseal(manifest.parent, recipe={**recipe, "sha256": "ab" * 32})
    content = listed(cli, "runs", cwd=runs.parent)
    assert content["seeds"][0]["seeds"] == [1, 3]
    by_name = {run["name"]: run["differences"] for run in content["runs"]}
    assert by_name["sweep/seed=2"]["recipe.sha256"] == "abababab"


def test_an_unfinished_run_has_the_figures_of_its_checkpoints_model(tmp_path, cli):
    """That is the best model, where a run was killed after it had kept it."""
    for name, step in (("kept", 10), ("going", 20)):
        add_run(tmp_path / "runs" / name, validation=[0.8, 0.5], best=0.8, finished=False)
        [checkpoint] = (tmp_path / "runs" / name).glob("checkpoints/*")
        metrics = json.loads((checkpoint / "manifest.json").read_text())["metrics"]
        reseal(checkpoint, clock={"step": step, "days": []}, metrics={**metrics, "steps": 20})
    by_name = {run["name"]: run for run in listed(cli, cwd=tmp_path)["runs"]}
    assert {name: run["validation"]["auc"] for name, run in by_name.items()} == {
        "kept": 0.8, "going": 0.5,
    }  # fmt: skip
    assert {(run["state"], run["step"]) for run in by_name.values()} == {("unfinished", 20)}


def test_a_daily_run_has_the_mean_over_its_days(tmp_path, cli):
    days = [
        {
            "day": f"2026-11-0{n}", "number": n, "first_step": 10 * n, "last_step": 10 * n + 9,
            "rows": 700, "before": None if auc is None else metrics(auc),
        }
        for n, auc in enumerate((None, 0.75, 0.5), 1)
    ]  # fmt: skip
    for name, finished in (("finished", True), ("going", False)):
        folder = tmp_path / "runs" / name
        add_run(folder, finished=finished)
        [checkpoint] = folder.glob("checkpoints/*")
        reseal(checkpoint, days=[*days[:2], {**days[2], "last_step": None}])
    report = folder.parent / "finished/report.json"
    report.write_text(json.dumps({**json.loads(report.read_text()), "days": days}))
    for run in listed(cli, cwd=tmp_path)["runs"]:
        assert (run["validation"]["auc"], run["validation"]["logloss"]) == (0.625, 0.375)


def test_the_table_on_the_standard_output(runs, cli):
    done = cli("runs", "runs", cwd=runs.parent)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    # Settings of training come before what is of the data.
    keys = ["seed", "recipe.hidden", "embedding.width", "slots.campaign"]
    assert lines[0].split()[:5] == ["run", *keys]
    wide = next(line for line in lines if line.startswith("wide"))
    for word in ("[64,32]", "0.80000", "0.60000", "1:15", "22", "1.0 MiB"):
        assert word in wide.split() or word in wide, word
    assert [line.split()[0] for line in lines[1:4]] == ["wide", "sweep/seed=2", "sweep/seed=3"]
    going = next(line for line in lines if line.startswith("going"))
    assert "unfinished" in going
    assert any("0.72000 ± 0.02000" in line for line in lines)


def test_a_run_that_failed_is_listed_with_its_error(workspace, cli):
    """Before its first checkpoint and after it; when it is resumed, the log has no such line."""
    training = ("train", "conf=small.yaml", "output=runs/a", "save.every_steps=2")

    def listed_after(split):
        path = workspace / f"clicks/{split}.csv"
        good = path.read_text()
        path.write_text(f"{good}1,2\n")
        done = cli(*training, cwd=workspace)
        path.write_text(good)
        assert done.code == 1 and "columns, received 2" in done.last, done.err
        [run] = listed(cli, "runs", cwd=workspace)["runs"]
        assert run["state"] == "failed" and f"tnctl train: {run['problem']}" == done.last
        last = json.loads((workspace / "runs/a/log.jsonl").read_text().splitlines()[-1])
        assert (last["event"], last["reason"]) == ("failed", run["problem"])
        return run["step"], last["timing"]["seconds"]

    assert listed_after("train")[0] is None
    assert listed_after("validation")[0] is None
    step, seconds = listed_after("test")
    assert step >= 2
    assert "failed at step" in cli("runs", cwd=workspace).out
    done = cli(*training, cwd=workspace)
    assert done.code == 0 and "resuming from" in done.err, done.err
    [run] = listed(cli, "runs", cwd=workspace)["runs"]
    assert (run["state"], run["problem"]) == ("finished", None)
    assert run["seconds"] > seconds > 0
    assert "failed" not in (workspace / "runs/a/log.jsonl").read_text()


def test_without_validation_the_names_order_them_and_a_line_says_so(tmp_path, ran):
    for name, test in (("b", 0.9), ("a", 0.6)):
        add_run(tmp_path / "runs" / name, test=test)
    done = ran("runs", cwd=tmp_path)
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == ["a", "b"]
    assert "no run has auc on data.validation" in done.line


def test_runs_on_the_same_data_are_together(tmp_path):
    places = {"a": ("v1", 0.9), "b": ("v2", 0.8), "c": ("v1", 0.6), "d": ("v2", 0.7)}
    for name, (validation, auc) in places.items():
        add_run(tmp_path / name, validation=[auc], data__validation=validation, data__root="clicks")
    split = {"validation": 0.1, "test": 0.0, "by": "rows", "seed": 0}
    for name, files, auc in (("e", "x.csv", 0.85), ("f", "y.csv", 0.95), ("g", "x.csv", 0.65)):
        data = {"data__validation": None, "data__train": files, "data__split": split}
        add_run(tmp_path / name, validation=[auc], **data)
    compared = comparison.compare(str(tmp_path))
    assert [run.name for run in compared.runs] == ["f", "a", "c", "e", "g", "b", "d"]
    [note] = compared.notes()
    differ = note.partition(":")[0].removeprefix("runs differ in ").split(", ")
    assert set(differ) == {"data.train", "data.validation", "data.root", "data.split.validation"}
    # Other labels are other data too.
    for name, positive, auc in (("a", "yes", 0.7), ("b", "no", 0.9), ("c", "yes", 0.6)):
        add_run(tmp_path / "labels" / name, validation=[auc], data__label__positive=[positive])
    compared = comparison.compare(str(tmp_path / "labels"))
    assert [run.name for run in compared.runs] == ["b", "a", "c"]
    assert "runs differ in data.label.positive" in compared.notes()[0]


def test_columns_of_other_data_are_not_in_the_table(runs, cli):
    other = {"data__train": "other.csv", "data__validation": "more.csv"}
    add_run(runs / "other", validation=[0.9], test=0.9, **other)
    done = cli("runs", "runs", cwd=runs.parent)
    assert "runs differ in data.train, data.validation" in done.err
    heading = done.out.splitlines()[0].split()
    assert "train" in " ".join(heading) and not any(word.startswith("slots") for word in heading)
    assert "more keys differ; --json has all" in done.err


def test_names_and_values_are_only_text(tmp_path, cli):
    """Of a stranger's folder, on the terminal."""
    for name, text in ((f"{EVIL}\x1b[2J", EVIL), ("b\nc", "\x1b]0;x\x07")):
        add_run(tmp_path / "runs" / name, validation=[0.5], test=0.5, data__train=text)
    done = cli("runs", cwd=tmp_path)
    assert "\x1b" not in done.out and "\x07" not in done.out
    assert len(done.out.splitlines()) == 3


def test_a_trial_that_a_search_ended_is_pruned(workspace, cli, monkeypatch):
    pytest.importorskip("optuna")
    from tnctl.composing.compose import compose
    from tnctl.training.search.search_loop import run_trial

    monkeypatch.chdir(workspace)
    keys = ["recipe=lr", "train.epochs=2", "train.batch_size=512", "output=runs/trial-0000"]
    conf = compose(workspace / "small.yaml", [*keys, "data.test=null"])
    assert run_trial(conf, 5, lambda _: True) is None
    [run] = listed(cli, cwd=workspace)["runs"]
    reason = "other trials were better after as many evaluations"
    assert (run["state"], run["problem"]) == ("pruned", reason)
    # Judged otherwise it goes on, and its log has no such line.
    assert run_trial(conf, 5, lambda _: False) is not None
    assert "pruned" not in Path("runs/trial-0000/log.jsonl").read_text()
    assert listed(cli, cwd=workspace)["runs"][0]["state"] == "finished"


def test_damage_and_what_is_no_run(runs, ran):
    (runs / "wide/report.json").write_text('{"split": 3}')
    (runs / "sweep/seed=1/report.json").write_bytes(b"\xff\x00")
    shutil.rmtree(runs / "sweep/seed=1/checkpoints")
    [conf] = runs.glob("sweep/seed=2/checkpoints/*/conf.json")
    conf.write_text("{}")
    [manifest] = runs.glob("going/checkpoints/*/manifest.json")
    manifest.write_text("[" * 100_000)
    newer = {**json.loads(GOLDEN.joinpath("conf.json").read_text()), "new_key": 3}
    [checkpoint] = runs.glob("sweep/seed=3/checkpoints/*")
    (checkpoint / "conf.json").write_text(json.dumps(newer))
    reseal(checkpoint)
    for name, text in (("theirs", '{"loss": 3}\n'), ("text", "epoch 1\n")):
        (runs / name).mkdir()
        (runs / name / "log.jsonl").write_text(text)
    (runs / "json").mkdir()
    (runs / "json/report.json").write_text('{"report": "of another program"}')
    (runs / "begun").mkdir()
    (runs / "begun/log.jsonl").write_text("")
    done = ran("runs", "runs", "--json", cwd=runs.parent)
    assert "Traceback" not in done.err
    content = json.loads(done.out)
    by_name = {run["name"]: run for run in content["runs"]}
    assert by_name["wide"]["state"] == "damaged"
    assert "report.json is damaged" in by_name["wide"]["problem"]
    assert by_name["wide"]["validation"]["auc"] == 0.5  # of its checkpoint; keep=last
    assert "manifest.json" in by_name["going"]["problem"]
    assert "conf.json is cut short" in by_name["sweep/seed=2"]["problem"]
    assert by_name["sweep/seed=2"]["state"] == "finished"
    assert by_name["sweep/seed=2"]["validation"]["auc"] == 0.74
    assert "new_key" in by_name["sweep/seed=3"]["problem"]
    assert by_name["begun"]["problem"] == "no checkpoint yet"
    assert set(by_name) == {"wide", "going", "begun", *(f"sweep/seed={seed}" for seed in (1, 2, 3))}
    assert sorted(line.split(":")[0] for line in content["skipped"]) == [
        "skipped json", "skipped text", "skipped theirs",
    ]  # fmt: skip
    table = ran("runs", "runs", cwd=runs.parent)
    assert len(table.err.splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], ["nowhere has no run"]),
        ([], ["runs has no run"]),
        (["empty"], ["empty has no run"]),
        (["a", "b"], ["one folder or URL", "a b"]),
        (["output=a"], ["without output=", ": a"]),
        (["--jsn"], ["no option --jsn"]),
        (["empty", "conf=x"], ["takes no conf="]),
        (["empty", "html=a.html"], ["no longer has html=", "--json"]),
        (["nope://x"], ["nope"]),
        (["file"], ["file has no run"]),
    ],
)
def test_a_mistake_is_one_line(tmp_path, cli, arguments, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    done = cli("runs", *arguments, cwd=tmp_path)
    assert done.code in (1, 2)
    assert done.out == ""
    for word in words:
        assert word in done.line


def test_links_and_circles(tmp_path, cli):
    add_run(tmp_path / "runs/a", validation=[0.5])
    (tmp_path / "runs/circle").symlink_to(tmp_path / "runs")
    (tmp_path / "runs/.hidden").mkdir()
    add_run(tmp_path / "runs/.hidden/b", validation=[0.5])
    done = cli("runs", cwd=tmp_path)
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == ["a"]


def test_a_run_by_itself_and_runs_in_a_run(runs, cli):
    content = listed(cli, "runs/wide", cwd=runs.parent)
    assert [(run["name"], run["differences"]) for run in content["runs"]] == [(".", {})]
    add_run(runs / "wide/seed=5", validation=[0.9], seed=5)
    names = {run["name"] for run in listed(cli, "runs/wide/", cwd=runs.parent)["runs"]}
    assert names == {".", "seed=5"}


def test_on_another_storage(runs, cli):
    fsspec = pytest.importorskip("fsspec")
    storage = fsspec.filesystem("memory")
    try:
        storage.put(str(runs), "/compared", recursive=True)
        local = listed(cli, "runs", cwd=runs.parent)
        remote = listed(cli, "memory://compared", cwd=runs.parent)
        for content in (local, remote):
            for run in content["runs"]:
                del run["output"]
        assert remote["runs"] == local["runs"]
        assert remote["seeds"] == local["seeds"]
    finally:
        storage.rm("/compared", recursive=True)


def test_differing_keys_against_flat_confs():
    confs = [
        {"a": 1, "b": {"x": [1], "y": None}, "output": "p"},
        {"a": 1, "b": {"x": [2], "y": None, "z": 0}, "output": "q"},
        {"a": 1, "b": {"x": [1], "y": None}, "c": {"d": 1}, "output": "r"},
    ]
    assert comparison.differing(confs) == ["b.x", "b.z", "c"]
    assert comparison.differing(confs[:1] * 2) == []
    values = [comparison.values_at(conf, ["b.z", "a.x"]) for conf in confs]
    assert values == [{}, {"b.z": 0}, {}]
    assert comparison.short_names(["seed", "a.b.c", "x.b.c", "recipe.name", "o.d.name"]) == [
        "seed", "a.b.c", "x.b.c", "recipe.name", "d.name"
    ]  # fmt: skip
