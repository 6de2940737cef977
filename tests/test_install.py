"""Wheel and sdist: what they hold, and that an installation works outside of the checkout."""

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import conftest
import pytest

ROOT = Path(__file__).resolve().parent.parent
COMPILER = os.environ.get("CC", "cc")
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
        timeout=600,
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
    path.write_text(f'#!/bin/sh\nexec {COMPILER} "$@" -O0\n')
    path.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", str(path))
        yield


def built(source, to, kind, **variables):
    """The one file of `python -m build`, in this environment where it has what building needs."""
    missing = [
        m for m in ("build", "setuptools", "cffi", "wheel") if not importlib.util.find_spec(m)
    ]
    if missing:
        pytest.skip(f"the environment lacks {', '.join(missing)}: pip install -e '.[dev]'")
    run(sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", f"--{kind}",
        "--outdir", to, source, cwd=to, **variables)  # fmt: skip
    [path] = to.iterdir()
    return path


def wheel_of(sdist, unpacked, to, **variables):
    """Built from the sdist, as a package index would have it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    [folder] = unpacked.iterdir()
    return built(folder, to, "wheel", **variables)


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory):
    return built(source, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    return wheel_of(sdist, tmp_path_factory.mktemp("unpacked"), tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet",
        "--disable-pip-version-check", "--target", folder, wheel, cwd=folder)  # fmt: skip
    return folder


def relative(folder, *patterns):
    paths = [path for pattern in patterns for path in (ROOT / folder).rglob(pattern)]
    assert paths
    return {path.relative_to(ROOT).as_posix() for path in paths}


FOLDERS = (".github", "benchmarks", "conf", "csrc", "docs", "examples", "recipes", "tests", "tnctl")
TOP = {
    ".clang-format", ".dockerignore", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "LICENSE",
    "MANIFEST.in", "Makefile", "README.md", "SECURITY.md", "pyproject.toml", "setup.py",
}  # fmt: skip


def test_the_sdist_carries_the_checkout(sdist, source):
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    wanted = {
        path.relative_to(source).as_posix()
        for folder in FOLDERS
        for path in (source / folder).rglob("*")
        if path.is_file() and "benchmarks/data/" not in path.as_posix()
    }
    assert len(wanted) > 400
    assert (wanted | TOP) - names == set()
    made = {"PKG-INFO", "setup.cfg"}
    foreign = {name for name in names - wanted - TOP - made if ".egg-info/" not in name}
    assert foreign == set()


def test_packages_carry_the_licence(sdist, wheel):
    metadata = next(
        zipfile.ZipFile(wheel).read(name).decode()
        for name in zipfile.ZipFile(wheel).namelist()
        if name.endswith(".dist-info/METADATA")
    )
    header = metadata.partition("\n\n")[0]
    assert "\nLicense-Expression: Apache-2.0\n" in header
    assert "\nLicense-File: LICENSE\n" in header
    assert "\nClassifier: Programming Language :: Python :: 3.13\n" in header
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Copyright 2026 The tnctl authors" in text
    with tarfile.open(sdist) as archive:
        [member] = [m for m in archive.getmembers() if m.name.partition("/")[2] == "LICENSE"]
        assert archive.extractfile(member).read().decode() == text


def test_the_page_on_installing_lists_the_dependencies():
    """Whoever has another build of TensorFlow installs the others by their names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs/installing.md").read_text()
    listed = re.findall(r"'([a-z-]+[<>=][^']*)'", page)
    assert ["tensorflow>=2.18", *listed] == project["dependencies"]
    [command] = re.findall(r'python -c "(.*)"', (ROOT / "Dockerfile").read_text())
    assert run(sys.executable, "-c", command, cwd=ROOT).stdout.splitlines() == listed
    for extra, packages in project["optional-dependencies"].items():
        if extra != "dev":
            names = ", ".join(package.partition(">")[0] for package in packages)
            assert f"| `pip install '.[{extra}]'` | {names} |" in page


def makes(*targets):
    """What `make` would run, in a checkout where nothing is installed."""
    return run("make", "-n", "-B", "PYTHON=python3", *targets, cwd=ROOT).stdout


def test_the_demo_installs_what_running_needs_and_the_tests_add_theirs():
    demo, tests = makes("demo"), makes("test")
    assert "--editable ." in demo
    assert "[dev]" not in demo and "--editable '.[dev]'" in tests
    assert tests.count("--editable") == 1  # nothing is compiled twice


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


def audited(wheel, to):
    """What `auditwheel repair` makes of a wheel: the oldest Linux that can run it is in its tag."""
    to.mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", to, wheel, cwd=to, PATH=path)
    [repaired] = to.iterdir()
    return repaired


def empty_environment(folder, wheel):
    """A venv with this wheel alone, which sees the packages of this environment but no tnctl."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    run(sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--no-deps",
        "--no-index", "--disable-pip-version-check", wheel, cwd=folder)  # fmt: skip
    [packages] = folder.glob("lib/python*/site-packages")
    # The .pth files of that folder are not read, so an editable tnctl stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))


@pytest.mark.long
def test_a_manylinux_wheel_trains_and_scores_in_an_empty_environment(sdist, tmp_path):
    for name in ("unpacked", "plain", "training", "serving"):
        (tmp_path / name).mkdir()
    plain = wheel_of(sdist, tmp_path / "unpacked", tmp_path / "plain", CC=COMPILER)
    wheel = audited(plain, tmp_path / "audited")
    tags = rf"tnctl-[\d.]+-cp311-abi3-(manylinux\w+_{platform.machine()}\.)+whl"
    assert re.fullmatch(tags, wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if ".so" in name] == ["tnctl/_tables.abi3.so"]
    empty_environment(tmp_path / "venv", wheel)

    def tnctl(*arguments, folder, **options):
        done = run(tmp_path / "venv/bin/tnctl", *arguments, cwd=tmp_path / folder, PYTHONPATH="",
                   **options)  # fmt: skip
        return done.stdout

    tnctl("train", "conf=demo", "output=run", 'data.train="{day}/3000"', "data.days=..2026-01-02",
          folder="training")  # fmt: skip
    tnctl("split-graph", "output=run", "to=../serving/graph", folder="training")
    tnctl("export-embeddings", "output=run", "to=../serving/embeddings", folder="training")
    shutil.rmtree(tmp_path / "training")
    row = re.search(r"^DEMO_ROW := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    (tmp_path / "serving/rows.jsonl").write_text(f"{row}\n{row}\n")
    scored = tnctl("score", "graph=graph", "embeddings=embeddings", "input=rows.jsonl",
                   folder="serving")  # fmt: skip
    scores = [json.loads(line)["prediction"] for line in scored.splitlines()]
    assert len(scores) == 2
    assert 0 < scores[0] == scores[1] < 1


def test_wheels_are_tested_on_every_supported_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    versions = [
        classifier.rpartition(" :: ")[2].replace(".", "")
        for classifier in project["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", classifier)
    ]
    assert project["tool"]["cibuildwheel"]["build"] == [f"cp{v}-manylinux_*" for v in versions]


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("Skipped: fish is not installed", "skipped"),
        ("Skipped: could not import 'redis': No module named 'redis'", "failed"),
        ("Skipped: no C compiler (set CC)", "failed"),
    ],
)
def test_only_what_is_optional_may_be_absent(reason, outcome):
    report = SimpleNamespace(skipped=True, outcome="skipped", longrepr=("test.py", 1, reason))
    assert conftest.without_odd_skip(report).outcome == outcome
