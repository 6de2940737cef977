"""Exports, their deltas, folding and graphs on S3: two servers, and what goes wrong with one."""

import errno
import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import s3_servers
from dataless_runs import Run, conf_of
from mutated_documents import sealed
from repeated_exports import Served, data

from tnctl import files, manifest
from tnctl.checkpoint import load as loading
from tnctl.errors import Failure, UserError
from tnctl.serving.publishing import publish, published
from tnctl.serving.rows.embeddings import open_embeddings
from tnctl.serving.rows.export import export
from tnctl.serving.rows.export_document import ExportManifest
from tnctl.serving.rows.folding import fold

pytest.importorskip("s3fs")

BUCKET = "served"
HERE = f"s3://{BUCKET}"
NAMES = ("dictionary", "fold", "graph")


@pytest.fixture(scope="module", params=s3_servers.SERVERS)
def server(request, tmp_path_factory):
    """The port of a server, a process of its own."""
    with s3_servers.started(request.param, tmp_path_factory.mktemp(request.param)) as port:
        yield port


@pytest.fixture
def proxy(server, monkeypatch):
    """A proxy before the server, whose address is the storage's; an empty bucket is there."""
    with s3_servers.proxy_before(server, BUCKET, monkeypatch) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def served(trained, tmp_path_factory):
    return Served(trained / "run", tmp_path_factory.mktemp("served"), NAMES)


@pytest.mark.usefixtures("proxy")
def test_a_chain_from_here_and_back(served, tmp_path):
    served.export(f"{HERE}/full")
    served.export(f"{HERE}/delta/", since=f"{HERE}/full")
    base = manifest.read(f"{HERE}/delta", ExportManifest).base
    assert base.folder == "full"  # it may be moved
    for to in (f"{HERE}/folded", f"{tmp_path}/folded"):
        fold(f"{HERE}/delta", to)
        assert data("fold", to) == data("fold", f"{served.folder}/dictionary")
    with pytest.raises(UserError, match=f"to={HERE}/full/ is {HERE}/full, which"):
        fold(f"{HERE}/delta", f"{HERE}/full/")
    ids = np.arange(1000, dtype=np.uint64)
    embeddings = [open_embeddings(url) for url in (f"{HERE}/delta", f"{served.folder}/dictionary")]
    for group in embeddings[0].groups:
        rows = [opened.lookup(group, ids) for opened in embeddings]
        assert rows[0][0].tobytes() == rows[1][0].tobytes()
    for opened in embeddings:
        opened.close()


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("name", ["fold", "graph"])
def test_an_exception_inside_a_write(served, monkeypatch, name):
    """Where fsspec would complete the object when its file is closed."""
    sizes = {file: len(content) for file, content in data(name, f"{served.folder}/{name}").items()}
    broken = next(file for file in sorted(sizes) if sizes[file] > 1000)
    write = files.OutputFile.write

    def failing(self, data):
        if self._url == f"{HERE}/{name}/{broken}":
            write(self, memoryview(data).cast("B")[:3])
            with files.translated(self._url, "written"):
                raise OSError(errno.EIO, "Input/output error")
        return write(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(files.OutputFile, "write", failing)
        served.refused(name, f"{HERE}/{name}", broken, "could not be written")
    assert not files.exists(f"{HERE}/{name}/{broken}")
    served.complete(name, f"{HERE}/{name}")


def test_a_version_that_is_cut_is_not_in_force(served, proxy):
    def published_anew():
        return publish(served.checkpoint, served.conf, f"{HERE}/online", keep=1, full=True)

    assert published_anew().number == 1
    proxy.cut_after(sum(map(len, data("graph", f"{served.folder}/graph").values())) // 2)
    with pytest.raises(Failure, match="could not be"):
        published_anew()
    proxy.restore()
    assert proxy.cut and published(f"{HERE}/online")[0].number == 1
    assert published_anew().number == 2
    kept = ["current.json", "embeddings-000002", "graph-000002"]
    assert files.list_folder(f"{HERE}/online") == kept


@pytest.mark.parametrize("name", ["fold", "graph"])
def test_a_server_that_dies_while_it_is_written_to(served, proxy, name):
    size = sum(map(len, data(name, f"{served.folder}/{name}").values()))
    proxy.cut_after(size // 2)
    with pytest.raises(Failure) as caught:
        served.make(name, f"{HERE}/{name}")
    assert (
        proxy.cut and f"{HERE}/{name}" in str(caught.value) and "could not be" in str(caught.value)
    )
    proxy.restore()
    with pytest.raises(Failure, match="so it holds no complete"):
        open_embeddings(f"{HERE}/{name}")
    served.complete(name, f"{HERE}/{name}")


def test_a_server_that_dies_while_it_is_read(served, proxy, tmp_path):
    served.export(f"{HERE}/full")
    proxy.cut_after(3000)
    with pytest.raises(Failure) as caught:
        fold(f"{HERE}/full", f"{tmp_path}/folded")
    assert proxy.cut and f"{HERE}/full" in str(caught.value) and "\n" not in str(caught.value)
    assert not Path(f"{tmp_path}/folded").exists()
    proxy.restore()
    fold(f"{HERE}/full", f"{tmp_path}/folded")
    assert data("fold", f"{tmp_path}/folded") == data("fold", f"{served.folder}/dictionary")


@pytest.mark.usefixtures("proxy")
def test_a_large_file_breaks_in_its_second_part(tmp_path, monkeypatch):
    """Of an upload in parts nothing is seen, and the same again completes it."""
    run = Run(conf_of(tmp_path / "run"))
    run.train(2)
    [table], count = run.model.tables, 250_000
    ids, groups = np.arange(10**6, 10**6 + count, dtype=np.uint64), np.zeros(count, np.uint16)
    table.reserve(count + table.rows)
    order = np.argsort(table.hashes(groups, ids))
    table.insert_records(table.fresh_records(groups, ids[order]))
    checkpoint = loading.open_checkpoint(run.save(golden=[]))
    write, passed = files.OutputFile.write, 0

    def failing(self, data):
        nonlocal passed
        passed += memoryview(data).nbytes
        if self._url.startswith(HERE) and passed > 5_500_000:
            raise RuntimeError("of any kind")
        return write(self, data)

    def made(to):
        return export(checkpoint, run.conf, to, encoding="dictionary", golden=0)

    def folded(to):
        return fold(str(tmp_path / "here"), to)

    made(str(tmp_path / "here"))
    for job in (made, folded):
        to, passed = f"{HERE}/{job.__name__}", 0
        with monkeypatch.context() as patched, pytest.raises(RuntimeError):
            patched.setattr(files.OutputFile, "write", failing)
            job(to)
        assert passed > 5_500_000
        assert files.list_folder(to) == [] or "item.dictionary" in files.list_folder(to)
        with pytest.raises(Failure, match="so it holds no complete"):
            open_embeddings(to)
        job(to)
        assert data("fold", to) == data("fold", f"{tmp_path}/here")


@pytest.mark.usefixtures("proxy")
def test_a_bucket_that_is_not_there(served, tmp_path):
    for name in NAMES:
        served.refused(name, f"s3://no-such-bucket/{name}", "could not be written")
    for url in ("s3://no-such-bucket/a", f"{HERE}/nothing"):
        with pytest.raises(Failure, match=f"{url} has no manifest.json, so it holds no"):
            fold(url, f"{tmp_path}/folded")


@pytest.fixture
def wrong_key(server, proxy, monkeypatch, request):
    """The storage knows another key than ours; moto only from when it is told to."""
    moto = "moto" in request.node.name
    if moto:
        checks_keys_after(server, b"0")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NOBODY")
    s3_servers.forget()
    yield proxy
    if moto:
        checks_keys_after(server, b"inf")


def checks_keys_after(port, requests):
    url, kind = f"http://127.0.0.1:{port}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(url, requests, kind)).close()


def denied(job, *given):
    with pytest.raises(Failure) as caught:
        job(*given)
    assert HERE in str(caught.value) and "permission denied" in str(caught.value)


@pytest.mark.usefixtures("wrong_key")
def test_credentials_that_are_wrong(served, tmp_path):
    for name in NAMES:
        denied(served.make, name, f"{HERE}/{name}")
    denied(fold, f"{HERE}/dictionary", f"{tmp_path}/folded")
    denied(open_embeddings, f"{HERE}/dictionary")
    assert not Path(f"{tmp_path}/folded").exists()


@pytest.mark.usefixtures("proxy")
def test_hostile_paths_on_s3_lead_nowhere(served):
    lead_nowhere(served, HERE)


def test_hostile_paths_lead_nowhere(served, tmp_path):
    lead_nowhere(served, str(tmp_path))
    lead_nowhere(served, f"memory://{tmp_path.name}")


def lead_nowhere(served, root):
    """A manifest with a checksum that fits, which names files outside of its folder."""
    files.upload_folder(f"{served.folder}/dictionary", f"{root}/export")
    files.write_bytes(f"{root}/secret", b"secret")
    url = f"{root}/export/manifest.json"
    content = json.loads(files.read_bytes(url))
    [entry, *_] = content["groups"]
    for path in ("../secret", "/etc/hosts", f"{root}/secret", "a/../../secret", "memory://secret"):
        hostile = json.loads(json.dumps(content))
        hostile["files"][path] = hostile["files"].pop(entry["file"])
        hostile["groups"][0]["file"] = path
        files.write_bytes(url, sealed(hostile))
        with pytest.raises(Failure, match="relative path"):
            fold(f"{root}/export", f"{root}/to")
        # Nor is it a reason to remove anything.
        with pytest.raises(UserError, match="tnctl did not write there"):
            served.export(f"{root}/export")
        assert files.read_bytes(f"{root}/secret") == b"secret"
    assert not files.list_folder(f"{root}/to")


@pytest.mark.usefixtures("proxy")
def test_what_is_foreign_on_s3_stays(served):
    files.write_bytes(f"{HERE}/mine/thesis.tex", b"mine")
    with pytest.raises(UserError, match=r"holds thesis\.tex"):
        served.export(f"{HERE}/mine")
    served.export(f"{HERE}/again")
    served.export(f"{HERE}/again")
    names = manifest.read(f"{HERE}/again", ExportManifest).files
    assert files.list_folder(f"{HERE}/again") == sorted([*names, manifest.NAME])
    files.write_bytes(f"{HERE}/again/user_id.index", b"changed by its owner")
    with pytest.raises(UserError, match=r"holds user_id\.index"):
        served.export(f"{HERE}/again")
    assert files.read_bytes(f"{HERE}/again/user_id.index") == b"changed by its owner"
