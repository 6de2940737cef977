"""What goes online, interrupted: one line, nothing that a reader takes; then it is done again."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import conftest
import pytest
from repeated_exports import COUNTS, Served, counts, data

from tnctl import files, manifest
from tnctl.serving.rows import folding

NAMES = ("parquet", "text", "dictionary", "delta", "fold", "graph")
COMMANDS = {
    "parquet": ["export-embeddings", "output=run"],
    "fold": ["fold", "embeddings=served/1"],
    "graph": ["split-graph", "output=run"],
}


@pytest.fixture(scope="module")
def place(trained, tmp_path_factory):
    """A folder with a run and, in served/, what each command makes of it."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "run").symlink_to(trained / "run")
    return folder


@pytest.fixture(scope="module")
def served(place):
    made = Served(place / "run", place / "served", NAMES)
    assert "golden.jsonl" in data("fold", f"{place}/served/fold")
    assert data("fold", f"{place}/served/fold") == data("text", f"{place}/served/dictionary")
    return made


def stored(url):
    """The size of every file in a local folder."""
    paths = [path for path in Path(url).rglob("*") if path.is_file()]
    return {path.relative_to(url).as_posix(): path.stat().st_size for path in paths}


class Fault:
    """The storage refuses a file after some bytes of it; `happened` tells whether it did."""

    def __init__(self, monkeypatch, name, after):
        self.happened = False
        write, fault, passed = files.OutputFile.write, self, 0

        def failing(self, data):
            nonlocal passed
            path = Path(self._url)
            if part := files.PART_NAME.fullmatch(path.name):
                path = path.with_name(part[1])
            if not path.as_posix().endswith((f"tried/{name}", f"tried.tnctl-new/{name}")):
                return write(self, data)
            view = memoryview(data).cast("B")
            if passed + len(view) > after:
                write(self, view[: after - passed])
                fault.happened = True
                with files.translated(self._url, "written"):
                    raise OSError(errno.EIO, "Input/output error")
            passed += len(view)
            return write(self, data)

        monkeypatch.setattr(files.OutputFile, "write", failing)


@pytest.mark.parametrize("storage", ["disk", "elsewhere"])
@pytest.mark.parametrize("name", NAMES)
def test_an_exception_inside_a_write(served, tmp_path, monkeypatch, name, storage):
    """In some of its files, on a disk and on a storage that keeps what was written so far."""
    to = f"{tmp_path}/tried" if storage == "disk" else f"memory://faults/{name}/tried"
    chance, last = random.Random(1), COUNTS.get(name, manifest.NAME)
    sizes = stored(f"{served.folder}/{name}")
    others = chance.sample(sorted(sizes.keys() - {last}), 1 if name == "graph" else 3)
    for file in [*others, last]:
        with monkeypatch.context() as patched:
            fault = Fault(patched, file, chance.randrange(sizes[file]))
            served.refused(name, to, file, "could not be written")
        assert fault.happened
        if storage == "disk":
            assert not any(path.startswith(file) for path in stored(to))
    served.complete(name, to)


def test_a_full_disk(served, tmp_path):
    """A real one, where one may be mounted: a small file system with too much in it."""
    with conftest.small_disk(tmp_path / "disk", 2) as disk:
        ballast, to = disk / "ballast", f"{disk}/tried"
        for name in ("parquet", "dictionary", "fold", "graph"):
            size = sum(stored(f"{served.folder}/{name}").values())
            ballast.write_bytes(bytes((2 << 20) - size * 3 // 4))
            served.refused(name, to, "no space is left there")
            ballast.unlink()
            served.complete(name, to)
            shutil.rmtree(to)


# A child per kill: the imports take longer than all else.
KILLED = """
import json, os, signal, sys
from tnctl import files
from tnctl.cli import main
import tnctl.serving.graph.splitting
import tnctl.serving.rows.export
import tnctl.serving.rows.folding
import tnctl.serving.graph.splitting

write = files.OutputFile.write
codes = []
for arguments, left in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        def killing(self, data):
            global left
            if "killed-" not in self._url:  # of a temporary folder
                return write(self, data)
            size = memoryview(data).nbytes
            if size > left:
                write(self, memoryview(data).cast("B")[:left])
                self._stream.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            left -= size
            return write(self, data)
        files.OutputFile.write = killing
        main(arguments)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""


def test_kill_9(served, place, tmp_path):
    """The commands, at random bytes of what they write, the manifest's too."""
    seed = random.SystemRandom().randrange(1000)
    chance, kills = random.Random(seed), []
    for name in COMMANDS:
        sizes = stored(f"{served.folder}/{name}")
        size = sizes[COUNTS.get(name, manifest.NAME)]
        last = sum(sizes.values()) - size
        # Not its end: a manifest names paths, which are shorter when a command runs in `place`.
        moments = chance.randrange(last), last + chance.randrange(size // 2)
        kills += [(name, left, f"{tmp_path}/killed-{name}-{left}") for left in moments]
    jobs = [([*COMMANDS[name], f"to={to}"], left) for name, left, to in kills]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, json.dumps(jobs)],
        cwd=place, capture_output=True, text=True, timeout=300,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    for (name, left, to), code in zip(kills, codes, strict=True):
        assert code == -9, (seed, name, left, done.stderr)
        beside = Path(to).with_name(f".{Path(to).name}.tnctl-new")
        assert stored(beside) and not Path(to).exists(), (seed, name, left)
    for name, _, to in kills[::2]:
        served.complete(name, to)
        assert not Path(to).with_name(f".{Path(to).name}.tnctl-new").exists()


def test_what_is_broken_off_by_the_user(served, place, tmp_path, cli, monkeypatch):
    """Ctrl-C in the middle of a file leaves nothing that counts, and no traceback."""
    to = f"{tmp_path}/tried"
    for name in COMMANDS:
        with monkeypatch.context() as patched:
            write = files.OutputFile.write

            def interrupted(self, data, write=write):
                write(self, data)
                raise KeyboardInterrupt

            patched.setattr(files.OutputFile, "write", interrupted)
            done = cli(*COMMANDS[name], f"to={to}", cwd=place)
        assert done.code == 130 and "interrupted" in done.last
        assert not list(tmp_path.iterdir())
        served.complete(name, to)
        shutil.rmtree(to)


def test_rows_that_fold_gets_wrong(served, tmp_path, monkeypatch):
    """Before the manifest is written, the golden rows are looked up in both."""
    merged = folding.merged

    def wrong(*of_group):
        for records in merged(*of_group):
            records["payload"][:, 0] ^= 1
            yield records

    with monkeypatch.context() as patched:
        patched.setattr(folding, "merged", wrong)
        with pytest.raises(folding.Failure, match=r"not those of the chain\. Export in full"):
            served.make("fold", f"{tmp_path}/tried")
    assert not counts("fold", f"{tmp_path}/tried")
    served.complete("fold", f"{tmp_path}/tried")
