"""A run on S3: against a server process, through a proxy that cuts connections."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import s3_servers
from dataless_runs import LIFE, Run, conf_of

from tnctl import files
from tnctl.checkpoint import load as loading
from tnctl.checkpoint import rows, spool
from tnctl.errors import Failure

pytest.importorskip("s3fs")

BUCKET = "clicks"
TABLE = "embedding3"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The port of a moto server, a process of its own."""
    with s3_servers.started("moto", tmp_path_factory.mktemp("moto")) as port:
        yield port


@pytest.fixture
def proxy(server, monkeypatch):
    """A proxy before the server, whose address is the storage's; an empty bucket is there."""
    monkeypatch.setattr(spool, "SECONDS_BEFORE_RETRY", 0.05)
    with s3_servers.proxy_before(server, BUCKET, monkeypatch) as proxy:
        yield proxy


@pytest.mark.usefixtures("proxy")
def test_a_whole_run(run_copy, cli, ran):
    """Every command, with the checkpoints, the graph and the embeddings on S3."""
    output = f"s3://{BUCKET}/runs/a"
    done = ran("train", "conf=small.yaml", f"output={output}", "save.full_every=2", cwd=run_copy)
    for command in ("evaluate", "split-graph", "export-embeddings", "verify-serving"):
        done = cli(command, f"output={output}", cwd=run_copy)
        assert done.code == 0, (command, done.err)
    again = cli("train", "conf=small.yaml", f"output={output}", "save.full_every=2", cwd=run_copy)
    assert "finished" in again.err
    local = json.loads((run_copy / "run/report.json").read_text())
    remote = json.loads(files.read_bytes(f"{output}/report.json"))
    for report in (local, remote):
        report.pop("timing")
    assert remote == local


@pytest.mark.long
@pytest.mark.usefixtures("proxy")
def test_deltas_on_s3_are_those_of_a_disk(tmp_path):
    settings = {"full_every": 3, "keep": 2, "spool": str(tmp_path / "spool"), "compression": "zstd"}
    runs = [Run(conf_of(to, settings, LIFE)) for to in (tmp_path / "run", f"s3://{BUCKET}/run")]
    for _ in range(5):
        for run in runs:
            run.train(4)
            run.evict()
            run.save()
    checkpoints = [loading.newest(run.conf.output) for run in runs]
    assert loading.digest(checkpoints[0]) == loading.digest(checkpoints[1])
    names = [files.list_folder(files.join(run.conf.output, "checkpoints")) for run in runs]
    assert names[0] == names[1]
    assert len(names[0]) == 2  # a full one and the delta that is built on it
    assert os.listdir(tmp_path / "spool") == []


def grown(run, count):
    """Give a run's table so many rows more."""
    [table], ids = run.model.tables, np.arange(10**6, 10**6 + count, dtype=np.uint64)
    groups = np.zeros(count, np.uint16)
    order = np.argsort(table.hashes(groups, ids))
    table.reserve(count + table.rows)
    table.insert_records(table.fresh_records(groups, ids[order]))
    return run


@pytest.mark.parametrize("share", [
    pytest.param(0.02, marks=pytest.mark.long), 0.5, pytest.param(0.9, marks=pytest.mark.long),
])  # fmt: skip
def test_a_connection_cut_while_uploading_leaves_the_one_before(tmp_path, proxy, share):
    output = f"s3://{BUCKET}/cut{share}"
    run = Run(conf_of(output, {"spool": str(tmp_path / "spool")}))
    first = run.train(2).save()
    grown(run, 300_000).train(1)
    proxy.cut_after(int(share * 300_000 * run.model.tables[0].record_dtype.itemsize))
    with pytest.raises(Failure) as caught:
        run.save()
    assert proxy.cut
    assert "\n" not in str(caught.value)
    assert "could not be written" in str(caught.value) and output in str(caught.value)
    proxy.restore()
    assert loading.newest(output).folder == first
    # The connection is back: the next one is whole, and what was left of the other goes.
    run.train(1)
    second = run.save()
    assert loading.newest(output).folder == second
    assert sum(map(len, rows.stream(loading.newest(output), TABLE))) == run.model.tables[0].rows
    assert list((tmp_path / "spool").iterdir()) == []
    later = Run(run.conf, loading.newest(output), run.model, run.steps)
    third = later.train(1).save()
    kept = [Path(folder).name for folder in (first, second, third)]
    assert files.list_folder(f"{output}/checkpoints") == kept


def test_a_connection_cut_for_a_moment_is_tried_again(tmp_path, proxy):
    run = Run(conf_of(f"s3://{BUCKET}/moment", {"spool": str(tmp_path / "spool")}))
    run.train(2).save()
    grown(run, 100_000).train(1)
    proxy.cut_after(1_000_000, cuts=2)
    folder = run.save()
    assert proxy.cut == 2
    assert loading.newest(run.conf.output).folder == folder
    assert sum(map(len, rows.stream(loading.newest(run.conf.output), TABLE))) > 100_000


def test_a_connection_cut_while_loading_is_an_error(tmp_path, proxy):
    run = grown(Run(conf_of(f"s3://{BUCKET}/load", {"spool": str(tmp_path)})).train(2), 100_000)
    checkpoint = loading.open_checkpoint(run.save())
    proxy.cut_after(0)
    with pytest.raises(Failure) as caught:
        list(rows.stream(checkpoint, TABLE))
    assert checkpoint.folder in str(caught.value) and "\n" not in str(caught.value)
    proxy.restore()
    assert sum(map(len, rows.stream(checkpoint, TABLE))) > 100_000


@pytest.mark.long
def test_training_goes_on_when_the_storage_is_back(run_copy, cli, ran, proxy):
    """One line, the exit code 1, and the same command finishes."""
    command = ["train", "conf=small.yaml", f"output=s3://{BUCKET}/back", "save.every_steps=4"]
    assert cli(*command, "train.epochs=1", cwd=run_copy).code == 0
    command += ["train.epochs=2", "overwrite=true"]
    proxy.cut_after(600_000)
    done = cli(*command, cwd=run_copy)
    assert done.code == 1 and proxy.cut, done.err
    assert "Traceback" not in done.err
    proxy.restore()
    ran(*command[:-1], cwd=run_copy)


@pytest.mark.usefixtures("proxy")
def test_fingerprints():
    url = f"s3://{BUCKET}/data/a.csv"
    files.write_bytes(url, b"a,b\n")
    fingerprint = files.fingerprint(url)
    assert fingerprint["bytes"] == 4 and fingerprint["etag"]
    files.write_bytes(url, b"a,c\n")
    assert files.fingerprint(url) != fingerprint
