"""Mistakes in names, places and data are answered before TensorFlow is imported."""

import json
import os
import subprocess
import sys

import pytest

# The import of TensorFlow and Keras fails in a process that begins so.
REFUSING = """\
import contextlib, io, json, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorflow", "keras"):
            raise ImportError(f"{name} is imported")

sys.meta_path.insert(0, Refusing())
"""
# Runs commands.
PROGRAM = (
    REFUSING
    + """
from tnctl.cli.main import main

answers = {}
for line in json.loads(sys.argv[1]):
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        try:
            main(line.split())
        except SystemExit as stop:
            answers[line] = [stop.code, err.getvalue().splitlines()[-1]]
print(json.dumps(answers))
"""
)
NEW = "conf=small.yaml output=new"
MISTAKES = {
    f"train {NEW} data.train=nope.csv": "clicks/nope.csv was not found",
    f"train {NEW} data.validation=nope.csv": "clicks/nope.csv was not found",
    f"train {NEW} data.test=nope*.csv": "matches no file",
    f"train {NEW} slots.region.column=regin": "train.csv has no column 'regin'",
    f"train {NEW} data.label.column=clicked": "train.csv has no column 'clicked'",
    f"train {NEW} data.validation=narrow.csv": "narrow.csv has no column",
    f"train {NEW} data.split.by=house data.split.test=0.1 data.test=null": "no column 'house'",
    f"train {NEW} overwrite=true data.train=nope.csv": "clicks/nope.csv was not found",
    f"train {NEW} cluster=local cluster.workers=2 data.train=nope.csv": "nope.csv was not found",
    f"train {NEW} baseline=true recipe=nope": "no recipe 'nope'",
    "train conf=small.yaml output=file": "file",
    "train conf=small.yaml output=file/below": "file",
    f"check {NEW} data.train=nope.csv": "clicks/nope.csv was not found",
    f"check {NEW} slots.region.column=regin": "train.csv has no column 'regin'",
    f"prepare {NEW} to=ids slots.region.column=regin": "train.csv has no column 'regin'",
    "evaluate output=nope": "nope has no complete checkpoint",
    "evaluate checkpoint=run/checkpoints/nope": "run/checkpoints/nope",
    "evaluate output=run data.test=nope.csv": "clicks/nope.csv was not found",
    "evaluate output=run data.test=narrow.csv": "narrow.csv has no column",
    "evaluate output=run train.bach_size=3": "'train.batch_size'",
    "evaluate conf=small.yaml output=nope": "nope has no complete checkpoint",
    "predict output=run data.test=nope.csv": "clicks/nope.csv was not found",
    "predict output=run data.carry=[nope]": "test.csv has no column 'nope'",
    "predict output=run to=file": "to=file is there already",
    "predict output=run format=orc": "no format 'orc'",
    "ablate output=nope": "nope has no complete checkpoint",
    "ablate output=run data.validation=nope.csv": "clicks/nope.csv was not found",
    "split-graph output=nope": "nope has no complete checkpoint",
    "split-graph output=run to=file": "file is a file",
    "split-graph output=run target_cpu=x": "give aot=[1,32] too",
    "export-embeddings output=nope": "nope has no complete checkpoint",
    "export-embeddings output=run to=file": "file is a file",
    "export-embeddings output=run to=file/below": "file/below",
    "export-embeddings output=run format=onnx": "no format 'onnx'",
    "export-embeddings output=run values=train": "tnctl no longer has values=. In Python",
    "export-embeddings output=run format=redis": "to=redis://",
    "export-embeddings output=run format=tensornet": "format=text has their columns",
    "export-embeddings output=run ranks=2": "no longer has ranks=",
    "verify-serving output=nope": "nope has no complete checkpoint",
    "verify-serving output=run graph=nope": "nope",
    "verify-serving output=run": "run/",
    "verify-serving graph=nope": "nope",
    "score graph=nope embeddings=nope": "nope",
}


@pytest.fixture(scope="module")
def answers(_trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("early")
    for name in ("small.yaml", "clicks", "run"):
        (folder / name).symlink_to(_trained / name)
    (folder / "file").write_text("mine")
    narrow = _trained / "clicks/narrow.csv"
    narrow.write_text("user_id,label\na,1\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(list(MISTAKES))],
        cwd=folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    narrow.unlink()
    assert done.returncode == 0, done.stderr
    made = sorted(path.name for path in folder.iterdir())
    return json.loads(done.stdout.splitlines()[-1]) | {"made": made}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_answered_before_tensorflow_is_imported(answers, arguments):
    code, line = answers[arguments]
    assert MISTAKES[arguments] in line
    assert code in (1, 2) and line.startswith("tnctl ")
    assert "is imported" not in line


def test_nothing_is_left_behind(answers):
    assert answers["made"] == ["clicks", "file", "run", "small.yaml"]
