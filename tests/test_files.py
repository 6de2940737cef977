"""Files on any URL: names, globs, compression, errors in one line, nothing half-written."""

import errno
import gzip
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from tnctl import files
from tnctl.errors import Failure, UserError


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path):
    if request.param == "local":
        return str(tmp_path)
    return f"memory://test-{uuid.uuid4().hex}"


def refused(action, *words):
    with pytest.raises(Failure) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return text


@pytest.mark.parametrize(
    ("start", "name", "expected"),
    [
        (None, "a.csv", "a.csv"),
        ("data", "a.csv", "data/a.csv"),
        ("data/", "a.csv", "data/a.csv"),
        ("memory://", "a.csv", "memory://a.csv"),
        ("s3://bucket/x", "a.csv", "s3://bucket/x/a.csv"),
        ("s3://bucket/x", "/abs/a.csv", "/abs/a.csv"),
        ("s3://bucket/x", "gs://other/a.csv", "gs://other/a.csv"),
    ],
)
def test_join(start, name, expected):
    assert files.join(start, name) == expected


def test_expand_sorts_globs_and_keeps_lists(root):
    for name in ("b.csv", "a.csv", "c.txt", "sub/d.csv"):
        files.write_bytes(files.join(root, name), b"x")

    def names(spec):
        return [url.rsplit("/", 1)[-1] for url in files.expand(spec, root)]

    assert names("*.csv") == ["a.csv", "b.csv"]
    assert names(["c.txt", "*.csv"]) == ["c.txt", "a.csv", "b.csv"]
    assert names("**/*.csv") == ["a.csv", "b.csv", "d.csv"]
    assert names("?.csv") == ["a.csv", "b.csv"]
    for url in files.expand("*.csv", root):
        assert files.read_bytes(url) == b"x"


@pytest.mark.parametrize(
    "name", ["part-[0-9].csv", "day=2024-01-01/x", "x?a=b", "a#b", "{day}.csv", "a*b"]
)
def test_an_exact_name_wins_over_a_glob(root, name):
    url = files.join(root, name)
    files.write_bytes(url, b"exact")
    files.write_bytes(files.join(root, "part-1.csv"), b"1")
    assert files.expand(name, root) == [url]
    assert files.read_bytes(url) == b"exact"


def test_glob_characters_in_the_root_are_letters(tmp_path):
    root = str(tmp_path / "run[1]*")
    files.write_bytes(root + "/a.csv", b"right")
    files.write_bytes(str(tmp_path / "run1" / "a.csv"), b"wrong")
    assert [files.read_bytes(url) for url in files.expand("*.csv", root)] == [b"right"]


def test_a_new_file_is_listed_at_once(root):
    files.write_bytes(files.join(root, "a.csv"), b"x")
    assert files.list_folder(root) == ["a.csv"]
    files.write_bytes(files.join(root, "b/c.csv"), b"x")
    assert files.list_folder(root) == ["a.csv", "b"]
    assert len(files.expand("**/*.csv", root)) == 2


def test_missing_files_globs_and_folders_are_failures(root):
    files.write_bytes(files.join(root, "sub/a.csv"), b"x")
    refused(lambda: files.expand("no.csv", root), "no.csv", "not found", "data.root")
    refused(lambda: files.expand("no*.csv", root), "no*.csv", "matches no file")
    refused(lambda: files.expand("sub", root), "sub", "folder", "glob")
    refused(lambda: files.open_input(files.join(root, "no.csv")), "no.csv", "not found")
    refused(lambda: files.size(files.join(root, "no.csv")), "no.csv", "not found")
    refused(lambda: files.open_input("nosuch://x/a.csv"), "nosuch://x/a.csv")
    assert not files.exists(files.join(root, "no.csv"))
    assert files.list_folder(files.join(root, "nothing")) == []
    files.remove(files.join(root, "no.csv"))


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".zstd", ""])
def test_reading_decompresses_by_suffix(root, suffix):
    text = b"a,b\n1,2\n" * 100_000
    codec = files.CODECS.get(suffix)
    stored = pa.compress(text, codec, asbytes=True) if codec == "zstd" else text
    stored = (
        gzip.compress(text[:400_000]) + gzip.compress(text[400_000:]) if codec == "gzip" else stored
    )
    url = files.join(root, "a.csv" + suffix)
    files.write_bytes(url, stored)
    with files.open_input(url) as stream:
        assert stream.read(10) == text[:10]
        rest = []
        while part := stream.read(65_536):
            rest.append(part)
    assert text[:10] + b"".join(rest) == text
    assert files.size(url) == len(stored)
    assert files.read_bytes(url) == stored


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_truncated_compressed_file_is_a_failure(tmp_path, suffix):
    text = os.urandom(1_000_000)
    stored = gzip.compress(text) if suffix == ".gz" else pa.compress(text, "zstd", asbytes=True)
    url = str(tmp_path / ("a.csv" + suffix))
    files.write_bytes(url, stored[: len(stored) // 2])

    def read_all():
        with files.open_input(url) as stream:
            while stream.read(1 << 16):
                pass

    refused(read_all, url, "damaged or cut short")


def test_an_exception_leaves_no_partial_file(root):
    url = files.join(root, "new/a.bin")
    with pytest.raises(ZeroDivisionError), files.open_output(url) as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    if "://" not in root:
        assert not files.exists(url)
    with files.open_output(url) as stream:
        stream.write(b"whole")
    assert files.read_bytes(url) == b"whole"


def test_a_discarded_upload_is_not_completed(monkeypatch):
    class Upload:
        closed = discarded = False

        def write(self, data):
            return len(data)

        def discard(self):
            self.discarded = True

        def close(self):
            raise AssertionError("completed")

    class Storage:
        def open(self, _path, _mode, **_):
            return upload

    upload = Upload()
    monkeypatch.setattr(files, "_storage", lambda _: (Storage(), "x"))
    with pytest.raises(ZeroDivisionError), files.open_output("s3://bucket/x") as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    assert upload.discarded
    assert upload.closed


def test_a_fingerprint_tells_a_changed_file(root):
    url = files.join(root, "a.csv")
    files.write_bytes(url, b"one")
    first = files.fingerprint(url)
    assert first["bytes"] == 3 and first["modified"]
    assert files.fingerprint(url) == first
    files.write_bytes(url, b"three")
    assert files.fingerprint(url) != first
    refused(lambda: files.fingerprint(files.join(root, "gone")), "gone", "not found")


def test_free_bytes_of_a_folder_to_be(tmp_path):
    assert files.free_bytes(tmp_path / "not/yet") > 0


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ["no space"]),
        (PermissionError("no"), ["permission denied"]),
        (ImportError("Install s3fs"), ["s3fs", "package"]),
        (RuntimeError("two\nlines"), ["two", "storage"]),
    ],
)
def test_backend_errors_are_translated(error, words):
    def fail():
        with files.translated("s3://bucket/x", "written"):
            raise error

    refused(fail, "s3://bucket/x", *words)


def test_a_users_mistake_passes_through():
    with pytest.raises(UserError, match="mine"), files.translated("x"):
        raise UserError("mine")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_told():
    def fill():
        with files.translated("out", "written"), open("/dev/full", "wb") as stream:
            stream.write(b"x" * 100_000)
            stream.flush()

    refused(fill, "out", "no space", "Free some")


def test_a_file_in_the_place_of_a_folder_is_told(tmp_path):
    (tmp_path / "run").write_bytes(b"")
    refused(lambda: files.write_bytes(str(tmp_path / "run" / "a"), b"x"), "run/a", "file")


CHILD = """
import os, sys
from tnctl import files
from tnctl.errors import Failure
files.exists(".")
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    files.open_input(sys.argv[1]).read()
except Failure as error:
    print(error)
try:
    files.write_bytes(sys.argv[2], b"x")
except Failure as error:
    print(error)
"""


def test_unreadable_and_unwritable_files_are_told():
    # Not under tmp_path, which other users cannot enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "a.csv").write_bytes(b"x")
        (folder / "a.csv").chmod(0)
        (folder / "closed").mkdir(mode=0o555)
        command = [sys.executable, "-c", CHILD, f"{name}/a.csv", f"{name}/closed/b/c"]
        here = {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[1])}
        done = subprocess.run(command, capture_output=True, text=True, env=here)
    assert done.returncode == 0, done.stderr
    read, written = done.stdout.splitlines()
    assert "a.csv could not be read: permission denied" in read
    assert "c could not be written: permission denied" in written


def test_folders_travel_whole(root, tmp_path):
    source = tmp_path / "from"
    for name in ("graph.pb", "variables/a.data", "variables/b.gz"):
        files.write_bytes(str(source / name), name.encode())
    target = files.join(root, "to/graph")
    files.upload_folder(source, target)
    assert files.list_folder(target) == ["graph.pb", "variables"]
    files.download_folder(target, tmp_path / "back")
    for name in ("graph.pb", "variables/a.data", "variables/b.gz"):
        assert (tmp_path / "back" / name).read_bytes() == name.encode()
    files.remove(target)
    assert not files.exists(target)
    refused(lambda: files.download_folder(target, tmp_path / "again"), "graph")


def test_local_path():
    assert files.local_path("a/b") == Path("a/b")
    assert files.local_path("file:///a/b") == Path("/a/b")
    assert files.local_path("s3://a/b") is None
