"""Wheel and sdist: what they hold, and that an installation works outside of the checkout."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KEPT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", "*.so", "*.o", "runs", ".*_cache"
)


def run(*arguments, cwd, **variables):
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of what is checked out: nothing that was built, and nothing to be written to."""
    folder = tmp_path_factory.mktemp("source") / "tnctl"
    shutil.copytree(ROOT, folder, ignore=KEPT_OUT)
    (folder / "tnctl/_tables.c").unlink(missing_ok=True)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _quick_compiler(tmp_path_factory):
    """What is compiled here need not be fast: the last of the flags tells how much to optimize."""
    path = tmp_path_factory.mktemp("compiler") / "cc"
    path.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O0\n')
    path.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", str(path))
        yield


def built(source, to, kind):
    """The one file of `python -m build`, in this environment where it has what building needs."""
    missing = [
        m for m in ("build", "setuptools", "cffi", "wheel") if not importlib.util.find_spec(m)
    ]
    if missing:
        pytest.skip(f"the environment lacks {', '.join(missing)}: pip install -e '.[dev]'")
    run(sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", f"--{kind}",
        "--outdir", to, source, cwd=to)  # fmt: skip
    [path] = to.iterdir()
    return path


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory):
    return built(source, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Built from the sdist, as a package index would have it."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    [folder] = unpacked.iterdir()
    return built(folder, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet",
        "--disable-pip-version-check", "--target", folder, wheel, cwd=folder)  # fmt: skip
    return folder


def relative(folder, *patterns):
    found = [path for pattern in patterns for path in (ROOT / folder).rglob(pattern)]
    assert found
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_sdist_carries_the_sources(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = relative("csrc", "*.c", "*.h", "build_ffi.py") | relative("conf", "*.yaml")
    wanted |= relative("recipes", "*.py") | relative("tnctl", "*.py") | {"README.md", "setup.py"}
    wanted -= {"tnctl/_tables.c"}
    assert {name for name in wanted if not name.startswith("csrc/tests/")} <= names


def test_the_wheel_is_one_abi3_file(wheel):
    assert "-cp311-abi3-linux_" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"tnctl/_tables.abi3.so", "tnctl/py.typed"} <= names
    assert [name for name in names if name.endswith(".so")] == ["tnctl/_tables.abi3.so"]


def test_the_wheel_carries_confs_and_recipes_inside_of_tnctl(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = relative("conf", "*.yaml") | relative("recipes", "*.py")
    assert {f"tnctl/{name}" for name in wanted} <= names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tnctl"}
    assert not [name for name in names if name.endswith((".c", ".h"))]


def test_nothing_but_tnctl_appears_where_it_is_installed(installed):
    tops = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert tops - {"bin"} == {"tnctl"}
    assert [path.name for path in (installed / "bin").iterdir()] == ["tnctl"]


def test_an_installation_runs_anywhere(installed, tmp_path):
    # The folder goes before everything, also before what `pip install -e` puts on the path.
    path = str(installed)
    where = run(sys.executable, "-c", "import tnctl; print(tnctl.__file__)", cwd=tmp_path,
                PYTHONPATH=path).stdout  # fmt: skip
    assert where.startswith(path)
    script = installed / "bin/tnctl"
    assert "deepfm" in run(sys.executable, script, "--help", cwd=tmp_path, PYTHONPATH=path).stdout
    shown = run(sys.executable, script, "train", "conf=deepfm", "--cfg", "job", cwd=tmp_path,
                PYTHONPATH=path).stdout  # fmt: skip
    assert "hidden:\n  - 64\n  - 32\n" in shown
    run(sys.executable, script, "train", "conf=deepfm", "data.train=0:2000", "output=run",
        "data.validation=2000:2500", "data.test=null", cwd=tmp_path, PYTHONPATH=path)  # fmt: skip
    assert (tmp_path / "run/report.json").is_file()
