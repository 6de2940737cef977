"""Exports, their deltas, folding and graphs on S3: two servers, and what goes wrong with one."""

import errno
import os
import shutil
import urllib.request

import numpy as np
import pytest
import s3_servers
from saving import Run, conf_of

from tnctl import files, manifest
from tnctl.checkpoint import load as loading
from tnctl.errors import Failure
from tnctl.serving.embeddings import open_embeddings
from tnctl.serving.export import export
from tnctl.serving.fold import fold

pytest.importorskip("s3fs")

BUCKET = "served"
HERE = f"s3://{BUCKET}"
EXPORT = ["export-embeddings", "output=run"]
COMMANDS = {
    "dictionary": [*EXPORT, "format=dictionary"],
    "fold": ["fold", "embeddings=delta"],
    "graph": ["split-graph", "output=run"],
}


@pytest.fixture(scope="module", params=s3_servers.SERVERS)
def server(request, tmp_path_factory):
    """The port of a server, a process of its own."""
    with s3_servers.started(request.param, tmp_path_factory.mktemp(request.param)) as port:
        yield port


@pytest.fixture
def proxy(server, monkeypatch):
    """A proxy before the server, whose address is the storage's; an empty bucket is there."""
    proxy = s3_servers.Proxy(server)
    for key, value in s3_servers.settings(proxy.port).items():
        monkeypatch.setenv(key, value)
    s3_servers.empty_bucket(BUCKET)
    yield proxy
    proxy.restore()


@pytest.fixture(scope="module")
def place(trained, here, tmp_path_factory):
    """A folder with a run, and what each command makes of it on a disk."""
    folder = tmp_path_factory.mktemp("place") / "here"
    shutil.copytree(trained, folder)
    works(here, folder, [*COMMANDS["dictionary"], "to=full"])
    works(here, folder, [*COMMANDS["dictionary"], "since=full", "to=delta"])
    for name, command in COMMANDS.items():
        works(here, folder, [*command, f"to={name}"])
    return folder


def works(here, folder, command):
    done = here(*command, cwd=folder)
    assert done.code == 0, done.err


def refused(here, folder, command, *words, code=1):
    done = here(*command, cwd=folder)
    assert done.code == code, done.err
    for word in words:
        assert word in done.last, done.last


def found(name, url):
    """What is in a folder that counts: its files but the manifest, whose time may differ."""
    if name == "graph":
        content = manifest.read(url, "tnctl graph", "serving.json")
        return dict.fromkeys(content["files"])
    open_embeddings(url).close()
    content = manifest.read(url, "tnctl embeddings")
    return {file: files.read_bytes(files.join(url, file)) for file in content["files"]}


def complete(here, place, name):
    """The same command makes what it makes on a disk."""
    works(here, place, [*COMMANDS[name], f"to={HERE}/{name}"])
    assert found(name, f"{HERE}/{name}") == found(name, str(place / name))


@pytest.mark.usefixtures("proxy")
def test_a_chain_from_here_and_back(place, here, tmp_path):
    works(here, place, [*COMMANDS["dictionary"], f"to={HERE}/full"])
    works(here, place, [*COMMANDS["dictionary"], f"since={HERE}/full", f"to={HERE}/delta/"])
    base = manifest.read(f"{HERE}/delta", "tnctl embeddings")["base"]
    assert base["folder"] == "full"  # it may be moved
    works(here, place, ["fold", f"embeddings={HERE}/delta", f"to={HERE}/folded"])
    works(here, place, ["fold", f"embeddings={HERE}/delta", f"to={tmp_path}/folded"])
    for url in (f"{HERE}/folded", f"{tmp_path}/folded"):
        assert found("dictionary", url) == found("dictionary", str(place / "dictionary"))
    refused(
        here, place, ["fold", f"embeddings={HERE}/delta", f"to={HERE}/full"], f"{HERE}/full", code=2
    )
    ids = np.arange(1000, dtype=np.uint64)
    embeddings = [open_embeddings(url) for url in (f"{HERE}/delta", str(place / "dictionary"))]
    for group in embeddings[0].groups:
        rows = [one.lookup(group, ids) for one in embeddings]
        assert rows[0][0].tobytes() == rows[1][0].tobytes()
    for one in embeddings:
        one.close()


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("name", ["fold", "graph"])
def test_an_exception_inside_a_write(place, here, monkeypatch, name):
    """Fsspec would complete the object when its file is closed."""
    write = files._Output.write
    broken = next(
        file for file in sorted(found(name, str(place / name)))
        if (place / name / file).stat().st_size > 1000
    )  # fmt: skip

    def failing(self, data):
        if self._url.endswith(f"/{broken}"):
            write(self, memoryview(data).cast("B")[:3])
            with files.translated(self._url, "written"):
                raise OSError(errno.EIO, "Input/output error")
        return write(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(files._Output, "write", failing)
        refused(here, place, [*COMMANDS[name], f"to={HERE}/{name}"], broken, "could not be written")
    assert not files.exists(f"{HERE}/{name}/{broken}")
    with pytest.raises(Failure, match="so it is not a complete"):
        found(name, f"{HERE}/{name}")
    complete(here, place, name)


@pytest.mark.parametrize("name", ["dictionary", "fold"])
def test_a_server_that_dies_while_it_is_written_to(place, here, proxy, name):
    size = sum(path.stat().st_size for path in (place / name).rglob("*") if path.is_file())
    proxy.cut_after(size // 2)
    refused(here, place, [*COMMANDS[name], f"to={HERE}/{name}"], f"{HERE}/{name}", "could not be")
    assert proxy.cut
    proxy.restore()
    with pytest.raises(Failure, match="so it is not a complete"):
        found(name, f"{HERE}/{name}")
    complete(here, place, name)


@pytest.mark.usefixtures("proxy")
def test_a_large_file_breaks_in_its_second_part(tmp_path, monkeypatch):
    """Of an upload in parts nothing is seen, and the same again completes it."""
    monkeypatch.setattr(files, "UPLOAD_BYTES", 5 << 20)  # the least that S3 takes as a part
    run = Run(conf_of(tmp_path / "run"))
    run.train(2)
    [table], count = run.model.tables, 250_000
    ids, groups = np.arange(10**6, 10**6 + count, dtype=np.uint64), np.zeros(count, np.uint16)
    table.reserve(count + table.rows)
    order = np.argsort(table.hashes(groups, ids))
    table.insert_records(table.fresh_records(groups, ids[order]))
    checkpoint = loading.open_checkpoint(run.save(golden=[]))
    write, passed = files._Output.write, 0

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
            patched.setattr(files._Output, "write", failing)
            job(to)
        assert passed > 5_500_000
        assert files.list_folder(to) == [] or "item.dictionary" in files.list_folder(to)
        with pytest.raises(Failure, match="so it is not a complete"):
            open_embeddings(to)
        job(to)
        assert found("dictionary", to) == found("dictionary", str(tmp_path / "here"))


@pytest.mark.usefixtures("proxy")
def test_a_bucket_that_is_not_there(place, here):
    for name, command in COMMANDS.items():
        to = f"s3://no-such-bucket/{name}"
        refused(here, place, [*command, f"to={to}"], to, "could not be written")
    for url in ("s3://no-such-bucket/a", f"{HERE}/nothing"):
        refused(here, place, ["fold", f"embeddings={url}", "to=folded"], url, "so it is not a")


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


@pytest.mark.usefixtures("wrong_key")
def test_credentials_that_are_wrong(place, here):
    for name, command in COMMANDS.items():
        refused(here, place, [*command, f"to={HERE}/{name}"], HERE, "permission denied")
    refused(
        here, place, ["fold", f"embeddings={HERE}/dictionary", "to=a"], HERE, "permission denied"
    )
    assert not os.path.exists(place / "a")
