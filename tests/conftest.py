"""What the tests of the command line share: two ways to run it, and small clicks to train on."""

import contextlib
import gc
import io
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

# A shell starts commands in the background with Ctrl-C ignored, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
# Begun first, so that no worker is left with one of them at the end. Longest first.
LONGEST = (
    "test_c_library", "test_resume", "test_quality", "test_train", "test_warm_start", "test_saver",
    "test_readme", "test_serving", "test_daily", "test_bad_input_cli", "test_recipes",
)  # fmt: skip
CONF = """\
defaults: [schema, {recipe: deepfm}, _self_]
recipe: {hidden: [16, 8]}
embedding: {width: 4}
slots:
  user_id: {}
  item_id: {missing: value}
  device: {group: shared}
  region: {group: shared}
  interests: {separator: "|", pooling: mean}
  price_range: {column: price, ids: quantiles, buckets: 8}
numeric:
  price: {transform: log1p}
  quality: {transform: standardize}
data:
  root: clicks
  train: train.csv
  validation: validation.csv
  test: test.csv
  reference: planted
  window: 1024
train: {batch_size: 256}
evaluation: {keep: last}
"""
ROWS = {"train": (0, 3000), "validation": (10_000, 10_900), "test": (20_000, 20_700)}


# What a machine may lack. All else is installed by `make test`, so a test that skips for want of it
# fails.
OPTIONAL = [
    r"(zsh|fish) is not installed", r"no g\+\+", r"no openssl", r"no s3rver", r"TNCTL_TEST_DATA",
    r"networks of one's own", r"no network namespaces", r"(tc|ip|unshare)\b.* not installed",
    r"may not mount a tmpfs", r"no /dev/full", r"root may read everything", r"x86-64",
    r"with a load of", r"safetensors is not installed",
]  # fmt: skip
if sys.version_info >= (3, 13) or platform.machine() != "x86_64":
    OPTIONAL.append("redis-server is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return without_odd_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return without_odd_skip((yield))


def without_odd_skip(report):
    """The report of a test or module, failed if it skips for a reason that is not optional."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr)
        if not re.search("|".join(OPTIONAL), reason):
            report.outcome = "failed"
            report.longrepr = f"skips for what `make test` should have installed: {reason}"
    return report


def pytest_collection_modifyitems(items):
    """Files that take long come first; the others stay in their order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda test: places.get(test.path.stem, len(places)))


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_is_no_garbage():
    """Keeps Python from looking for garbage among the objects that are there before a module.

    Keras has it look before each model, which takes up to a second beside TensorFlow, thousands of
    tests and what modules left behind.
    """
    gc.collect()
    gc.freeze()


@dataclass
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The only line of stderr."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]

    @property
    def last(self) -> str:
        """The last line of stderr, which is the error when there is one."""
        assert "Traceback" not in self.err, self.err
        return self.err.splitlines()[-1]


def run_process(*arguments, cwd, env=None, **options) -> Result:
    """`tnctl ARGUMENTS` as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tnctl", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def run_copied_process(*arguments, cwd) -> Result:
    """The same as a copy of a process that has imported TensorFlow; `err` is all that it prints."""
    import preloaded_commands

    with tempfile.NamedTemporaryFile("r") as log:
        code = preloaded_commands.Command(arguments, cwd, log.name).wait(timeout=300)
        return Result(code, "", log.read())


def run_in_process(*arguments, cwd) -> Result:
    """`tnctl ARGUMENTS` in this process: the same code, without three seconds of imports."""
    from tnctl.cli.main import main

    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    code = 0
    try:
        with (
            contextlib.chdir(cwd),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = argv
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def process():
    return run_process


@pytest.fixture(scope="session")
def copied_process():
    return run_copied_process


@pytest.fixture(scope="session")
def cli():
    return run_in_process


@pytest.fixture(scope="session")
def ran(cli):
    """As `cli`, of a command that must succeed."""

    def succeeding(*arguments, cwd) -> Result:
        done = cli(*arguments, cwd=cwd)
        assert done.code == 0, done.err
        return done

    return succeeding


@pytest.fixture(scope="module")
def one_server():
    from redis_servers import Server

    server = Server()
    yield server
    server.close()


@pytest.fixture
def _short_locks(monkeypatch):
    """A writer that was killed keeps the next one out for three seconds, and not for ten."""
    from tnctl.serving.rows import redis_session

    monkeypatch.setattr(redis_session, "LOCK_SECONDS", 3.0)


@pytest.fixture
def server(one_server, _short_locks):
    """A Redis server that is empty, shared with tests that neither kill nor change it."""
    with one_server.client() as client:
        client.flushall()
    return one_server


@pytest.fixture
def own_server(_short_locks):
    """Starts Redis servers of the test's own."""
    from redis_servers import Server

    servers = []

    def start(*options):
        servers.append(Server(*options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int):
    """A file system of its own in a new folder. Skips where this user may not mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def write_clicks(folder: Path) -> None:
    """The files that CONF reads."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    from tnctl.data import generated

    folder.mkdir()
    for split, (first, end) in ROWS.items():
        table = generated.rows(first, end)
        interests = pc.binary_join(table.column("interests"), "|")
        names = ["user_id", "item_id", "device", "region", "price", "quality", "label", "planted"]
        table = table.select(names).append_column("interests", interests)
        # Some categories are missing, as they are in life.
        gaps = pa.array([i % 50 == 0 for i in range(end - first)])
        items = pc.if_else(gaps, pa.scalar(None, pa.string()), table.column("item_id"))
        table = table.set_column(1, "item_id", items)
        pyarrow.csv.write_csv(
            table,
            folder / f"{split}.csv",
            pyarrow.csv.WriteOptions(quoting_style="none"),
        )


@pytest.fixture(scope="session")
def _workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workspace")
    write_clicks(folder / "clicks")
    (folder / "small.yaml").write_text(CONF)
    return folder


@pytest.fixture
def workspace(_workspace, tmp_path):
    """A folder of one's own with small.yaml and clicks/."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    copy_workspace(_workspace, folder)
    return folder


@pytest.fixture
def parts(workspace):
    """The workspace with its training data in files of different sizes."""
    from cluster_commands import split_training_data

    split_training_data(workspace)
    return workspace


def copy_workspace(workspace, folder):
    """Copy small.yaml and clicks/, and no run that is beside them."""
    shutil.copytree(workspace / "clicks", folder / "clicks")
    shutil.copy(workspace / "small.yaml", folder)


@pytest.fixture(scope="session")
def _trained(_workspace):
    # Given on the command line, data.root starts from the working folder, and so it does in copies.
    done = run_process("train", "conf=small.yaml", "data.root=clicks", "output=run", cwd=_workspace)
    assert done.code == 0, done.err
    return _workspace


@pytest.fixture(scope="session")
def trained(_trained):
    """A folder with small.yaml, clicks/ and the finished run/; nobody writes to it."""
    return _trained


@pytest.fixture
def run_copy(_trained, tmp_path):
    """The same in a folder of one's own."""
    folder = tmp_path / "copy"
    shutil.copytree(_trained, folder)
    return folder
