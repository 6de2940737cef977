"""Files on any URL: names, globs, compression, errors in one line, nothing half-written."""

import contextlib
import errno
import gzip
import os
import subprocess
import sys
import tempfile
import tracemalloc
import uuid
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from tnctl import files
from tnctl.errors import Failure, UserError
from tnctl.files import storage, streams


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


def test_links_to_files_are_files(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "kept.csv").write_text("a\n1\n")
    for name in ("1.csv", "2.csv"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "kept.csv")
    (tmp_path / "data/broken.csv").symlink_to(tmp_path / "gone.csv")
    (tmp_path / "data/folder.csv").symlink_to(tmp_path)
    names = [str(tmp_path / "data/1.csv"), str(tmp_path / "data/2.csv")]
    for spec in ("*.csv", "[12].csv"):
        assert files.expand(spec, str(tmp_path / "data")) == names


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


@pytest.mark.parametrize("kind", ["a root", "none"])
def test_a_bracket_in_the_name_of_a_folder_that_is_there_is_a_letter(root, kind):
    for name in ("run[1]/sub/a.csv", "run1/sub/a.csv", "run1/[2]/a.csv", "run[1]/[2]/b.csv"):
        files.write_bytes(files.join(root, name), name.encode())
    prefix, start = ("", root) if kind == "a root" else (files.join(root, ""), None)

    def read(spec):
        return [files.read_bytes(url).decode() for url in files.expand(prefix + spec, start)]

    assert read("run[1]/sub/*.csv") == ["run[1]/sub/a.csv"]
    assert read("run[1]/*/a.csv") == ["run[1]/sub/a.csv"]
    assert read("run[1]/[2]/*.csv") == ["run[1]/[2]/b.csv"]
    assert read("run[1]/") == ["run[1]/[2]/b.csv", "run[1]/sub/a.csv"]
    assert read("run[1]/*/") == ["run[1]/[2]/b.csv", "run[1]/sub/a.csv"]
    # Without such a folder it is a choice of letters.
    assert read("run[0-2]/sub/*.csv") == ["run1/sub/a.csv"]
    refused(lambda: read("run[0-2]/[2]/*.csv"), "matches no file")


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
    files.remove_file(files.join(root, "no.csv"))
    files.remove_empty_folder(files.join(root, "nothing"))


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


def test_what_is_no_file_is_written_to_and_never_removed(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with files.open_output(str(pipe)) as stream:
        stream.write(b"whole")
    assert os.read(reading, 10) == b"whole"
    with pytest.raises(ZeroDivisionError), files.open_output(str(pipe)):
        raise ZeroDivisionError
    assert pipe.is_fifo()
    os.close(reading)


class Upload(fsspec.spec.AbstractBufferedFile):
    """As adlfs has it: a part is uploaded when enough was written, and closing completes a file."""

    def __init__(self, parts, path, mode, **options):
        super().__init__(None, path, mode, **options)
        self.parts = parts
        self.ends = []

    def _upload_chunk(self, final=False):
        self.parts.append(self.buffer.getvalue())
        if final and (self.autocommit or type(self) is Upload):
            self.ends.append("completed")
        return True


class AbortedUpload(Upload):
    """As s3fs has it: only `commit` completes, and after `discard` there is no buffer."""

    def commit(self):
        self.ends.append("completed")

    def discard(self):
        self.ends.append("aborted")
        self.buffer = None


class UnreachedUpload(AbortedUpload):
    """As s3fs has it while the network is down."""

    def discard(self):
        raise OSError("no route to host")


class Storage(fsspec.AbstractFileSystem):
    """A storage whose uploads are of one kind; `parts` are in the order of their upload."""

    cachable = False

    def __init__(self, kind):
        super().__init__()
        self.kind, self.parts, self.uploads, self.removed = kind, [], [], []

    def _open(self, path, mode, block_size, autocommit, **_):
        self.uploads.append(
            self.kind(self.parts, path, mode, block_size=block_size, autocommit=autocommit)
        )
        return self.uploads[-1]

    def pipe_file(self, path, value, **_):  # noqa: ARG002 (fsspec's own)
        self.parts.append(value)

    def rm_file(self, path):
        self.removed.append(path)


@pytest.fixture
def uploaded(monkeypatch):
    """The parts of what is written elsewhere, in the order of their upload."""
    system = Storage(AbortedUpload)
    monkeypatch.setattr(streams, "storage", lambda _: (system, "x"))
    yield system.parts
    assert all(upload.ends in ([], ["completed"]) for upload in system.uploads)
    assert not system.transaction.files


@pytest.mark.parametrize("kind", [Upload, AbortedUpload, UnreachedUpload])
@pytest.mark.parametrize("written", [999, 1000])
def test_an_upload_after_an_exception_leaves_no_file(monkeypatch, kind, written):
    system = Storage(kind)
    monkeypatch.setattr(streams, "UPLOAD_BYTES", 1000)
    monkeypatch.setattr(streams, "storage", lambda _: (system, "x"))
    with pytest.raises(ZeroDivisionError), files.open_output("s3://bucket/x") as stream:
        stream.write(bytes(written))
        raise ZeroDivisionError
    assert len(system.uploads) == (written >= 1000)
    assert sum(map(len, system.parts)) == written // 1000 * 1000
    ends = {Upload: ["completed"], AbortedUpload: ["aborted"], UnreachedUpload: []}[kind]
    for upload in system.uploads:
        assert upload.closed and upload.ends == ends
    assert system.removed == (["x"] if kind is Upload and written >= 1000 else [])


@pytest.mark.parametrize("size", [0, 1000, 9007])
@pytest.mark.parametrize("held", [10, 10**6])
@pytest.mark.parametrize("at_a_time", [1, 700, 2500])
def test_parts_of_an_upload_are_of_one_size(monkeypatch, uploaded, size, held, at_a_time):
    monkeypatch.setattr(streams, "UPLOAD_BYTES", 1000)
    monkeypatch.setattr(streams, "HELD_BYTES", held)
    whole = os.urandom(size)
    with files.open_output("s3://bucket/x") as stream:
        for at in range(0, size, at_a_time):
            assert stream.tell() == at
            stream.write(whole[at : at + at_a_time])
        assert [len(part) for part in uploaded] == [1000] * (size // 1000)
    assert b"".join(uploaded) == whole
    assert {len(part) for part in uploaded[:-1]} <= {1000} and len(uploaded[-1]) <= 1000


def test_parts_grow_where_they_would_be_too_many(monkeypatch, uploaded):
    assert streams.UPLOAD_BYTES == 5 << 20  # the least that S3 takes
    monkeypatch.setattr(streams, "UPLOAD_BYTES", 10)
    monkeypatch.setattr(streams, "PARTS_OF_A_SIZE", 20)
    whole = os.urandom(1905)
    with files.open_output("s3://bucket/x") as stream:
        for at in range(0, len(whole), 19):
            stream.write(whole[at : at + 19])
    assert b"".join(uploaded) == whole
    sizes = [len(part) for part in uploaded if part]
    assert sizes == [10] * 20 + [20] * 20 + [40] * 20 + [80] * 6 + [25]


def test_an_upload_may_have_300_gib():
    """Of at most 10,000 parts, as S3 has them."""
    sizes = [streams.UPLOAD_BYTES << n // streams.PARTS_OF_A_SIZE for n in range(10_000)]
    assert sum(sizes) >= 300 << 30
    assert max(sizes) < 5 << 30


@pytest.mark.usefixtures("uploaded")
def test_many_uploads_at_once_hold_little_memory():
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(files.open_output(f"s3://bucket/{n}")) for n in range(26)]
        tracemalloc.start()
        for stream in opened:
            for _ in range(16):
                stream.write(bytes(storage.WRITE_BYTES))
        held, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 1 << 20 and most < 26 * streams.HELD_BYTES * 1.5


def test_a_temporary_folder_that_takes_no_part_is_told(uploaded, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))

    def write():
        with files.open_output("s3://bucket/x") as stream:
            stream.write(bytes(2 * streams.HELD_BYTES))

    refused(write, "gone could not be written")
    assert uploaded == []


HOLDS = """
import signal, sys
from pathlib import Path
from tnctl import files
folder = files.TemporaryFolder("test")
(Path(folder.name) / "large").mkdir()
print(folder.name, flush=True)
signal.pause()
"""


def test_what_a_killed_process_left_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = [sys.executable, "-c", HOLDS]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        theirs = Path(process.stdout.readline().strip())
        others = [tmp_path / "tnctl.test", tmp_path / "tnctl.tests.a"]
        for other in others:
            other.mkdir()
        (tmp_path / "tnctl.test.link").symlink_to(others[0])
        (tmp_path / "tnctl.test.file").write_bytes(b"")

        def made():
            """Whether theirs is there when one was made."""
            with files.TemporaryFolder("test") as ours:
                assert list(Path(ours).iterdir()) == []
                assert (theirs / "large").exists() == theirs.exists()
                with files.TemporaryFolder("test"):
                    assert Path(ours).exists()
            assert not Path(ours).exists()
            return theirs.exists()

        assert made()
        process.kill()
        process.wait()
        assert not made()
    assert all(other.exists() for other in others)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_temporary_folder_goes_with_its_object(tmp_path):
    folder = files.TemporaryFolder("test", tmp_path / "new")
    open_files = len(os.listdir("/proc/self/fd"))
    Path(folder.name, "a").write_bytes(b"x")
    folder.cleanup()
    folder.cleanup()
    assert os.listdir(tmp_path / "new") == []
    assert len(os.listdir("/proc/self/fd")) == open_files - 1
    folder = files.TemporaryFolder("test", tmp_path)
    del folder
    assert os.listdir(tmp_path) == ["new"]
    (tmp_path / "file").write_bytes(b"")
    refused(lambda: files.TemporaryFolder("test", tmp_path / "file"), "file could not be written")


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
        environment = {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[2])}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
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
    none = files.join(root, "to/none")
    refused(lambda: files.download_folder(none, tmp_path / "again"), "none")


def test_local_path():
    assert files.local_path("a/b") == Path("a/b")
    assert files.local_path("file:///a/b") == Path("/a/b")
    assert files.local_path("s3://a/b") is None


def test_a_file_that_cannot_take_its_place_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(Failure):
        files.write_bytes(str(tmp_path / "folder"), b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
