"""From a checkpoint to Redis and back by the command line: export, delta, verify, score."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from redis_servers import needs_redis_server

from tnctl.serving.rows import redis_embeddings

redis = pytest.importorskip("redis")
pytestmark = needs_redis_server

STEPS = (6, 12)


@pytest.fixture(scope="module")
def folder(cli, ran, tmp_path_factory):
    """A run with two checkpoints, and the graph of the newest."""
    from conftest import CONF, write_clicks

    folder = tmp_path_factory.mktemp("redis")
    write_clicks(folder / "clicks")
    (folder / "small.yaml").write_text(CONF)
    ran(
        "train", "conf=small.yaml", "output=run", "save.every_steps=6", "save.keep=0",
        "evaluation.ablate=false", "data.test=null", cwd=folder,
    )  # fmt: skip
    assert cli("split-graph", "output=run", "to=graph", cwd=folder).code == 0
    return folder


def checkpoint(step):
    return f"checkpoint=run/checkpoints/step-{step:010}"


def export(cli, folder, step, to, *more):
    return cli("export-embeddings", checkpoint(step), f"to={to}", *more, cwd=folder)


def rows_of(server, prefix):
    """All fields of the current version: (group, field) -> value."""
    with server.client() as client:
        version = client.get(f"{prefix}:current").split()[0]
        rows = {}
        for key in client.keys(f"{prefix}:{version.decode()}:*:*"):
            group = key.split(b":")[-2]
            rows |= {(group, name): value for name, value in client.hgetall(key).items()}
        return rows


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_full_and_delta_are_a_full_export(cli, ran, folder, server, precision):
    how = [] if precision == "float32" else [f"precision={precision}"]
    first, last = STEPS
    done = export(cli, folder, first, server.url, *how, "grace=0")
    assert done.code == 0, done.err
    assert str(server.socket) in done.err
    done = export(cli, folder, last, server.url, *how, "since=current")
    assert done.code == 0, done.err
    done = export(cli, folder, last, server.url, *how, "prefix=whole")
    assert done.code == 0, done.err
    assert rows_of(server, "tnctl") == rows_of(server, "whole")
    manifests = [redis_embeddings.current(server.url, prefix) for prefix in ("tnctl", "whole")]
    assert [manifest.sequence for manifest in manifests] == [1, 0]
    counts = [[(e.group, e.rows) for e in manifest.groups] for manifest in manifests]
    assert counts[0] == counts[1]
    lines = [redis_embeddings.RedisEmbeddings(server.url, p).golden() for p in ("tnctl", "whole")]
    assert lines[0] == lines[1] and len(lines[0].splitlines()) == 200

    ran("verify-serving", checkpoint(last), "graph=graph", f"embeddings={server.url}", cwd=folder)


def test_scores_are_those_of_files(cli, ran, folder, server):
    assert export(cli, folder, STEPS[1], server.url, "prefix=ctr").code == 0
    assert export(cli, folder, STEPS[1], "files").code == 0
    rows = (folder / "clicks" / "validation.csv").read_text().splitlines()[:30]
    (folder / "few.csv").write_text("\n".join(rows) + "\n")
    scores = {}
    for name, where in {
        "redis": [f"embeddings={server.url}", "prefix=ctr"],
        "files": ["embeddings=files"],
    }.items():
        to = folder / f"{name}.scores"
        ran("score", "graph=graph", *where, "input=few.csv", f"to={to}", cwd=folder)
        scores[name] = to.read_text()
    assert scores["redis"] == scores["files"] and len(scores["redis"].splitlines()) >= 29


def test_what_is_refused(cli, folder, server):
    first, last = STEPS
    secret = f"unix://me:secret@{server.socket}"
    done = export(cli, folder, first, secret)
    assert done.code == 1 and "refuses a command" in done.last and "secret" not in done.err
    done = export(cli, folder, first, server.url, "since=current")
    assert done.code == 1 and "no complete export under prefix tnctl" in done.last
    done = export(cli, folder, last, server.url, f"since={secret}")
    assert done.code == 2 and "another Redis" in done.last and "secret" not in done.err
    done = export(cli, folder, first, "elsewhere", f"since={secret}")
    assert done.code == 2 and "secret" not in done.err
    done = export(cli, folder, first, secret, f"to={secret}")
    assert done.code == 2 and "given twice" in done.last and "secret" not in done.err
    done = cli("split-graph", "output=run", f"to={secret}", cwd=folder)
    assert done.code == 1 and "secret" not in done.err
    done = export(cli, folder, first, server.url, "grace=soon")
    assert done.code == 2 and "grace" in done.last


@pytest.mark.long
def test_the_command_is_killed_at_random_moments(cli, folder, server):
    """The command as a process: whatever it was at, the next one completes the export."""
    random.seed(seed := random.SystemRandom().randrange(1000))
    assert export(cli, folder, STEPS[0], server.url, "grace=0").code == 0
    base = rows_of(server, "tnctl")
    assert export(cli, folder, STEPS[1], server.url, "prefix=whole").code == 0
    whole = rows_of(server, "whole")
    command = [
        sys.executable, "-m", "tnctl", "export-embeddings", checkpoint(STEPS[1]),
        f"to={server.url}", "grace=0",
    ]  # fmt: skip
    began = time.monotonic()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    seconds = time.monotonic() - began
    for _ in range(4):
        process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(seconds / 2, seconds))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert rows_of(server, "tnctl") in (base, whole), seed
    done = export(cli, folder, STEPS[1], server.url, "grace=0")
    assert done.code == 0, (seed, done.err)
    assert rows_of(server, "tnctl") == whole
    with server.client() as client:
        versions = client.hgetall("tnctl:versions")
        assert [json.loads(version)["state"] for version in versions.values()] == ["complete"]
