"""What `monitor` writes of a run: a file for Prometheus, a run of MLflow; docs/operations.md."""

import json
import math
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from test_daily import DAILY, TRAIN, write_day, write_days

from tnctl.files import streams
from tnctl.saved_conf import conf_to_json
from tnctl.schema import from_values
from tnctl.training.report import mlflow_run, prometheus

PAGE = Path(__file__).parent.parent / "docs/operations.md"
HEAD = re.compile(r"# (HELP|TYPE) (tnctl_[a-z_]+) (.+)")
SAMPLE = re.compile(r"(tnctl_[a-z_]+)\{(.*)\} (\S+)")
LABEL = re.compile(r'([a-z]+)="((?:[^"\\\n]|\\[\\"n])*)"(,|$)')
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parsed(text):
    """The figures of a file by name and labels; each name has one HELP and TYPE, then its lines."""
    figures, heads = {}, []
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("#"):
            kind, name, rest = HEAD.fullmatch(line).groups()
            heads.append((kind, name))
            assert kind == "HELP" or rest in ("gauge", "counter")
            continue
        name, labels, value = SAMPLE.fullmatch(line).groups()
        assert heads[-2:] == [("HELP", name), ("TYPE", name)]
        assert "".join(match[0] for match in LABEL.finditer(labels)) == labels
        pairs = {
            match[1]: re.sub(r"\\.", lambda escape: ESCAPES[escape[0]], match[2])
            for match in LABEL.finditer(labels)
        }
        key = (name, *sorted(pairs.items()))
        assert key not in figures
        figures[key] = float(value)
    assert len(heads) == len(set(heads))
    return figures


def figures_of(path, output="run"):
    """The figures of a run, by name, and name.head.split where there are such labels."""
    figures = {}
    for (name, *labels), value in parsed(path.read_text()).items():
        labels = dict(labels)
        if labels.pop("run") == output:
            figures[".".join([name, *labels.values()]).removeprefix("tnctl_")] = value
    return figures


def test_a_run_with_validation(workspace, ran):
    started = time.time()
    train = ("train", "conf=small.yaml", "recipe=lr", "output=run", "monitor.prometheus=m.prom")
    ran(*train, cwd=workspace)
    figures = figures_of(workspace / "m.prom")
    report = json.loads((workspace / "run/report.json").read_text())
    for name in prometheus.METRICS:
        assert figures[f"{name}.label.test"] == report[name]
        assert figures[f"{name}.label.validation"] == report["validation"][name]
    assert figures["steps"] == report["steps"] and figures["exit_code"] == figures["running"] == 0
    assert figures["rows"] == sum(table["rows"] for table in report["tables"].values())
    assert figures["run_seconds"] == report["timing"]["seconds"]
    assert figures["gate_refused"] == 0 and "export_timestamp_seconds" not in figures
    saved = figures["checkpoint_timestamp_seconds"]
    assert started <= saved <= figures["success_timestamp_seconds"] <= time.time()
    # No checkpoint keeps the section, so the run resumes with another one, or none.
    [folder] = (workspace / "run/checkpoints").iterdir()
    assert "monitor" not in json.loads((folder / "conf.json").read_text())
    ran(*train[:-1], cwd=workspace)
    assert figures_of(workspace / "m.prom") == figures
    # A finished run is a success, and has its figures where the file is new.
    ran(*train[:-1], "monitor.prometheus=new.prom", cwd=workspace)
    again = figures_of(workspace / "new.prom")
    assert again["auc.label.test"] == figures["auc.label.test"]
    assert again["success_timestamp_seconds"] > figures["success_timestamp_seconds"]
    # An export adds its time, and nothing else, where the command line names the file.
    ran("export-embeddings", "output=run", cwd=workspace)
    assert figures_of(workspace / "m.prom") == figures
    ran("export-embeddings", "output=run", "monitor.prometheus=m.prom", "to=e", cwd=workspace)
    exported = figures_of(workspace / "m.prom")
    assert exported.pop("export_timestamp_seconds") > saved
    assert exported == figures
    ran("publish", "output=run", "monitor.prometheus=new.prom", "to=online", cwd=workspace)
    assert figures_of(workspace / "new.prom")["export_timestamp_seconds"] > saved


def test_days_and_the_gate(tmp_path, ran, cli):
    (tmp_path / "daily.yaml").write_text(DAILY)
    train = (*TRAIN, "recipe=lr", "monitor.prometheus=m.prom", "life.eviction.unseen_days=1")
    write_days(tmp_path, (1, 2, 3))
    ran(*train, cwd=tmp_path)
    report = json.loads((tmp_path / "run/report.json").read_text())
    figures, last = figures_of(tmp_path / "m.prom"), report["days"][-1]
    assert figures["auc.label.next_day"] == last["before"]["auc"]
    assert figures["day_examples"] == last["rows"]
    midnight = datetime.fromtimestamp(figures["day_timestamp_seconds"], UTC)
    assert midnight == datetime(2024, 1, 3, tzinfo=UTC)
    evicted = sum(life["evicted"] for life in report["life"].values())
    assert figures["evicted_rows"] == evicted > 0
    # The gate refuses a day: what is known of the run stays, and the time of its last success.
    empty = ("item_id", lambda table: pa.nulls(len(table), pa.string()))
    write_day(tmp_path, "2024-01-04", 4 * 900, change=empty)
    assert cli(*train, cwd=tmp_path).code == 1
    refused = figures_of(tmp_path / "m.prom")
    assert (refused["gate_refused"], refused["exit_code"], refused["running"]) == (1, 1, 0)
    assert refused["success_timestamp_seconds"] == figures["success_timestamp_seconds"]
    assert refused["update_timestamp_seconds"] > figures["update_timestamp_seconds"]
    assert refused["day_timestamp_seconds"] == figures["day_timestamp_seconds"]
    ran(*train, "accept=true", cwd=tmp_path)
    accepted = figures_of(tmp_path / "m.prom")
    assert accepted["gate_accepted"] >= 1 and accepted["gate_refused"] == 0


def test_the_file_holds_several_runs_and_any_name(tmp_path):
    url, odd = str(tmp_path / "m.prom"), 'a"b\\n\nc},{x="y"} 1'
    prometheus.put(url, {("tnctl_auc", prometheus.labels(odd, head='h"', split="test")): 0.5})
    prometheus.put(url, {("tnctl_auc", prometheus.labels("s3://k:secret@b/r", head="h")): math.nan})
    prometheus.put(url, {("tnctl_running", prometheus.labels(odd)): 1})
    figures = parsed(Path(url).read_text())
    assert len(figures) == 3
    assert figures["tnctl_auc", ("head", 'h"'), ("run", odd), ("split", "test")] == 0.5
    assert figures["tnctl_running", ("run", odd)] == 1
    assert "secret" not in Path(url).read_text()


def test_a_write_that_is_cut_short_leaves_the_old_file(tmp_path, monkeypatch):
    url = tmp_path / "m.prom"
    samples = {("tnctl_running", prometheus.labels("run")): 1}
    prometheus.put(str(url), samples)
    old, written = url.read_text(), []

    def killed(source, _):
        written.append(Path(source).name)
        raise KeyboardInterrupt

    monkeypatch.setattr(streams.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        prometheus.put(str(url), dict.fromkeys(samples, 0))
    assert url.read_text() == old
    assert written and not written[0].endswith(".prom")  # which the collector would read


def test_what_is_refused(workspace, cli):
    train = ("train", "conf=small.yaml", "recipe=lr", "output=run")
    done = cli(*train, "monitor.prometheus=figures.txt", cwd=workspace)
    assert done.code == 2 and "monitor.prometheus names a file that ends in .prom" in done.line
    (workspace / "mine.prom").write_text("up 1\n")
    done = cli(*train, "monitor.prometheus=mine.prom", cwd=workspace)
    assert done.code == 2 and "mine.prom is not a file that tnctl wrote" in done.last
    assert (workspace / "mine.prom").read_text() == "up 1\n"
    assert not (workspace / "run/log.jsonl").exists()
    (workspace / "link.prom").symlink_to("mine.prom")
    assert cli(*train, "monitor.prometheus=link.prom", cwd=workspace).code == 2


def test_a_file_that_cannot_be_written_any_more_is_one_line(workspace, ran, monkeypatch):
    put, calls = prometheus.put, []

    def failing(url, samples):
        calls.append(url)
        if len(calls) > 1:
            raise prometheus.UserError(f"{url} cannot be written: No space left on device", 1)
        put(url, samples)

    monkeypatch.setattr(prometheus, "put", failing)
    train = ("train", "conf=small.yaml", "recipe=lr", "output=run", "monitor.prometheus=m.prom")
    done = ran(*train, cwd=workspace)
    assert done.err.count("warning: m.prom cannot be written") == 1 and len(calls) > 3
    assert figures_of(workspace / "m.prom")["running"] == 1


# ---- MLflow ------------------------------------------------------------------


def test_without_mlflow_training_does_not_begin(workspace, cli, monkeypatch):
    monkeypatch.setattr(mlflow_run.importlib.util, "find_spec", lambda _: None)
    done = cli("train", "conf=small.yaml", "output=run", "monitor.mlflow=sqlite:///m.db",
               cwd=workspace)  # fmt: skip
    assert done.code == 2 and done.line.endswith("pip install 'tnctl[mlflow]'")
    assert not (workspace / "run").exists()


def test_parameters_are_keys_without_secrets():
    conf = from_values({
        "recipe": {"name": "lr"}, "output": "s3://b/run", "seed": 7,
        "slots": {"user": {"column": "uid"}},
        "data": {"train": "https://me:secret@host/a.csv"},
        "monitor": {"mlflow": "https://me:secret@host"},
    })  # fmt: skip
    given = mlflow_run.parameters(conf_to_json(conf))
    assert (given["seed"], given["recipe.name"], given["train.epochs"]) == ("7", "lr", "1")
    assert given["slots.user.column"] == "uid" and "slots.user.width" not in given
    assert not any("secret" in value for value in given.values())
    assert not any(key.startswith("monitor") for key in given)


def test_a_run_of_mlflow_is_continued(workspace, ran, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "clicks")
    uri = f"sqlite:///{workspace}/mlflow.db"
    train = ("train", "conf=small.yaml", "recipe=lr", "output=run", f"monitor.mlflow={uri}")
    ran(*train, cwd=workspace)
    client = MlflowClient(uri)
    [experiment] = [e for e in client.search_experiments() if e.name == "clicks"]
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["train.batch_size"] == "256"
    assert run.data.tags["tnctl.output"] == "run" and run.info.run_name == "run"
    report = json.loads((workspace / "run/report.json").read_text())
    assert run.data.metrics["test/auc"] == report["auc"]
    [point] = client.get_metric_history(run.info.run_id, "train/loss")
    assert (point.step, point.value) == (report["steps"], report["epochs"][0]["loss"])
    ran(*train, "train.epochs=2", cwd=workspace)
    [same] = client.search_runs([experiment.experiment_id])
    assert same.info.run_id == run.info.run_id and same.info.status == "FINISHED"
    assert len(client.get_metric_history(run.info.run_id, "train/loss")) == 2
    # Deleted there, it is a new one, as with overwrite=true.
    client.delete_run(run.info.run_id)
    for argument in ("train.epochs=3", "overwrite=true"):
        ran(*train, argument, cwd=workspace)
    runs = client.search_runs([experiment.experiment_id])
    assert len({run.info.run_id, *(new.info.run_id for new in runs)}) == 3
    assert not (workspace / "mlruns").exists()


def test_a_server_that_is_away_is_one_line(workspace, ran):
    started = time.monotonic()
    done = ran("train", "conf=small.yaml", "recipe=lr", "output=run",
               "monitor.mlflow=http://me:secret@127.0.0.1:9", cwd=workspace)  # fmt: skip
    assert time.monotonic() - started < 60
    [line] = [line for line in done.err.splitlines() if "takes no figures" in line]
    assert line.endswith("Training goes on")
    assert "secret" not in done.err + (workspace / "run/log.jsonl").read_text()


# ---- The page ----------------------------------------------------------------


def test_files_of_the_page_are_valid_and_name_figures_that_exist():
    text = PAGE.read_text()
    documents = [
        document
        for block in re.findall(r"```yaml\n(.*?)```", text, re.S)
        for document in yaml.safe_load_all(block)
    ]
    assert {document.get("kind") for document in documents} >= {"CronJob"}
    [alerts] = [document["groups"] for document in documents if "groups" in document]
    assert all(rule["expr"] and rule["alert"] for group in alerts for rule in group["rules"])
    assert "```python" in text
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        compile(block, str(PAGE), "exec")
    named = set(re.findall(r"tnctl_[a-z_]+", text))
    assert named == set(prometheus.FIGURES)
