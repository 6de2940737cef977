"""What goes online, interrupted: one line, nothing that a reader takes; then it is done again."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys

import fsspec
import pytest

from tnctl import files, manifest
from tnctl.errors import Failure
from tnctl.serving.embeddings import open_embeddings

EXPORT = ["export-embeddings", "output=run"]
COMMANDS = {
    "parquet": EXPORT,
    "text": [*EXPORT, "format=text"],
    "dictionary": [*EXPORT, "format=dictionary"],
    "delta": [*EXPORT, "format=dictionary", "since=chain/0"],
    "fold": ["fold", "embeddings=chain/1"],
    "graph": ["split-graph", "output=run"],
}
COUNTS = {"graph": "serving.json"}  # what says that a folder counts; else the manifest


@pytest.fixture(scope="module")
def clean(trained, here, tmp_path_factory):
    """A folder with a run, and what each command makes of it when nothing happens."""
    folder = tmp_path_factory.mktemp("clean") / "here"
    shutil.copytree(trained, folder)
    done = here(*COMMANDS["dictionary"], "to=chain/0", cwd=folder)
    assert done.code == 0, done.err
    done = here(*COMMANDS["delta"], "to=chain/1", cwd=folder)
    assert done.code == 0, done.err
    for name, command in COMMANDS.items():
        done = here(*command, f"to=chain/{name}", cwd=folder)
        assert done.code == 0, done.err
    return folder


@pytest.fixture
def place(clean, tmp_path):
    """A folder of one's own with the run and the chain."""
    folder = tmp_path / "place"
    folder.mkdir()
    for name in ("run", "clicks", "small.yaml"):
        (folder / name).symlink_to(clean / name)
    for name in ("0", "1"):
        shutil.copytree(clean / "chain" / name, folder / "chain" / name)
    return folder


def contents(url):
    """Every file of a folder, which may be anywhere."""
    system, path = fsspec.url_to_fs(str(url))
    return {os.path.relpath(name, path): system.cat_file(name) for name in system.find(path)}


def data(url):
    """Every file but the manifest, which says where the base is."""
    return {name: some for name, some in contents(url).items() if name != manifest.NAME}


def counts(name, url):
    """Whether a reader takes a folder."""
    try:
        if name == "graph":
            manifest.read(str(url), "tnctl graph", "serving.json")
        else:
            open_embeddings(str(url)).close()
    except Failure as error:
        assert "\n" not in str(error)
        return False
    return True


def finished(here, clean, folder, name, to):
    """The same command makes what it would have made."""
    done = here(*COMMANDS[name], f"to={to}", cwd=folder)
    assert done.code == 0, done.err
    assert counts(name, folder / to if "://" not in to else to)
    found = data(folder / to if "://" not in to else to)
    expected = data(clean / "chain" / name)
    if name == "graph":  # TensorFlow does not write the same bytes twice
        assert found.keys() == expected.keys()
    else:
        assert found == expected


class Fault:
    """The storage refuses a file after some bytes of it; `happened` tells whether it did."""

    def __init__(self, monkeypatch, name, after, error):
        self.happened = False
        write, fault = files._Output.write, self
        passed = 0

        def failing(self, data):
            nonlocal passed
            if self._url.removesuffix(files.PART).endswith(f"/{name}"):
                size = memoryview(data).nbytes
                if passed + size > after:
                    write(self, memoryview(data).cast("B")[: after - passed])
                    fault.happened = True
                    with files.translated(self._url, "written"):
                        raise error
                passed += size
            return write(self, data)

        monkeypatch.setattr(files._Output, "write", failing)


@pytest.mark.parametrize("storage", ["disk", "elsewhere"])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_exception_inside_a_write(clean, place, here, monkeypatch, name, storage):
    """In some of its files, on a disk and on a storage that keeps what was written so far."""
    to = "served" if storage == "disk" else f"memory://faults/{name}"
    chance = random.Random(1)
    written = contents(clean / "chain" / name)
    last = COUNTS.get(name, manifest.NAME)
    chosen = [*chance.sample(sorted(written.keys() - {last}), 1 if name == "graph" else 3), last]
    for file in chosen:
        after = chance.randrange(len(written[file]))
        with monkeypatch.context() as patched:
            error = OSError(errno.EIO, "Input/output error")
            fault = Fault(patched, file, after, error)
            done = here(*COMMANDS[name], f"to={to}", cwd=place)
        assert fault.happened, file
        assert done.code == 1 and file in done.last and "could not be written" in done.last
        url = to if "://" in to else place / to
        assert not counts(name, url)
        # Elsewhere a part of it may stay: readers must not take it.
        assert storage != "disk" or not any(found.startswith(file) for found in contents(url))
    finished(here, clean, place, name, to)


def test_a_full_disk(clean, place, here, tmp_path):
    """A real one, where one may be mounted: a small file system with too much in it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        ballast = disk / "ballast"
        for name in ("dictionary", "fold", "graph"):
            size = sum(map(len, contents(clean / "chain" / name).values()))
            ballast.write_bytes(bytes((2 << 20) - size * 3 // 4))
            done = here(*COMMANDS[name], f"to={disk}/served", cwd=place)
            assert done.code == 1 and "no space is left there" in done.last, done.err
            assert f"{disk}/served" in done.last
            assert not counts(name, disk / "served")
            ballast.unlink()
            finished(here, clean, place, name, f"{disk}/served")
            shutil.rmtree(disk / "served")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# A child per kill: the imports take longer than all else.
KILLED = """
import json, os, signal, sys
from tnctl import files
from tnctl.cli import main
import tnctl.serving.export, tnctl.serving.fold, tnctl.serving.split

write = files._Output.write
codes = []
for arguments, left in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        def killing(self, data):
            global left
            size = memoryview(data).nbytes
            if size > left:
                write(self, memoryview(data).cast("B")[:left])
                if not files.local_path(self._url):
                    raise AssertionError("only what is on a disk stays after a kill")
                self._stream.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            left -= size
            return write(self, data)
        files._Output.write = killing
        main(arguments)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""


def test_kill_9(clean, place, here):
    """At random bytes of what is written, the manifest's too."""
    seed = random.SystemRandom().randrange(1000)
    chance = random.Random(seed)
    kills = []
    for name in ("parquet", "fold", "graph"):
        written = contents(clean / "chain" / name)
        size = sum(map(len, written.values()))
        last = len(written[COUNTS.get(name, manifest.NAME)])
        moments = chance.randrange(size - last), chance.randrange(size - last, size)
        kills += [(name, left, f"killed-{name}-{left}") for left in moments]
    jobs = [([*COMMANDS[name], f"to={to}"], left) for name, left, to in kills]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, json.dumps(jobs)],
        cwd=place, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    for (name, left, to), code in zip(kills, codes, strict=True):
        assert code == -9, (seed, name, left, done.stderr)
        assert (place / to).exists() and not counts(name, place / to), (seed, name, left)
    for name, _, to in kills[::2]:
        finished(here, clean, place, name, to)


def test_what_is_broken_off_by_the_user(clean, place, here, monkeypatch):
    """Ctrl-C in the middle of a file leaves nothing that counts, and no traceback."""
    for name in ("parquet", "fold"):
        with monkeypatch.context() as patched:
            write = files._Output.write

            def interrupted(self, data, write=write):
                write(self, data)
                raise KeyboardInterrupt

            patched.setattr(files._Output, "write", interrupted)
            done = here(*COMMANDS[name], "to=served", cwd=place)
        assert done.code == 130 and "interrupted" in done.last
        assert not counts(name, place / "served")
        finished(here, clean, place, name, "served")
        shutil.rmtree(place / "served")
