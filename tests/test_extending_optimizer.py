"""docs/extending.md, "An optimizer": an entry of the table in C, and a key for a new setting."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
# Where each block of the document belongs: the file, and the line that it stands before.
PLACES = (
    ("csrc/tnctl.h", "/* Settings are finite and at least 0,"),
    ("csrc/tnctl.h", "    float l2;            /* FTRL's own;"),
    ("csrc/tn_optimizer.c", "/* ---- The table ---"),
    ("csrc/tn_optimizer.c", "};\n\nstatic const tn_setting EXTRAS[]"),
    ("tnctl/schema/optimizer*.py", "    l2: float = number("),
)
# The extension module, without a build: cffi calls a library that the compiler made.
TABLES = """\
from pathlib import Path
from cffi import FFI

ffi = FFI()
csrc = Path(__file__).parent.parent / "csrc"
for header in ("tnctl.h", "tn_dictionary.h", "tn_time.h"):
    text = (csrc / header).read_text()
    ffi.cdef(text.partition("/* CFFI begin */")[2].partition("/* CFFI end */")[0])
lib = ffi.dlopen(str(csrc / "tables.so"))
"""
SETTINGS = {"learning_rate": 0.1, "threshold": 0.3}
# Trains a row and dense weights with the conf's optimizer; prints them and what a manifest says.
STEPS = """\
import json, sys
import numpy as np
from tnctl import documents, schema
from tnctl.checkpoint.document import OptimizerEntry as Saved
from tnctl.model.layout import table_optimizer
from tnctl.tables import DenseTable, InitialWeights, Pool, Segment, SlotPlan, SparseTable, Workspace

settings, gradients = json.loads(sys.argv[1])
gradients = np.array(gradients, np.float32)
conf = schema.from_values({
    "recipe": {"name": "lr"}, "output": "run", "slots": {"a": {}}, "data": {"train": "a.csv"},
})
optimizer = table_optimizer(schema.Optimizer(name="lion", **settings), conf)
pool = Pool(1)
table = SparseTable([Segment("embedding", 3, "concat", optimizer)], 3, pool)
table.add_group(0, "slot", [InitialWeights("zeros", 0.0)])
workspace = Workspace(table, [SlotPlan(0, "sum", 0)])
dense = DenseTable([3], optimizer, pool)
dense.weights[0][:] = 0
for step, gradient in enumerate(gradients, 1):
    table.set_step(step)
    workspace.find(np.array([7], np.uint64), np.array([0, 1], np.uint32), 1, insert=True)
    workspace.gather([np.empty((1, 3), np.float32)])
    workspace.accumulate([gradient[None]])
    workspace.apply(1.0)
    dense.apply([gradient])
[records] = table.records()
saved = Saved.of(optimizer)
assert saved.rule() == optimizer
print(json.dumps({
    "row": table.lookup(0, 7).tolist(),
    "m": records["embedding.m"][0].tolist(),
    "dense": dense.weights[0].tolist(),
    "saved": documents.plain(saved),
}))
"""


def blocks():
    """The code blocks of the section, in their order."""
    page = (ROOT / "docs/extending.md").read_text()
    text = page.split("\n## An optimizer\n")[1].split("\n## ")[0]
    return re.findall(r"```\w+\n(.*?)```", text, re.S)


def with_the_optimizer(folder):
    """A copy of the package and the C library with the document's optimizer."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "_tables.*", "tests")
    for name in ("tnctl", "csrc"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for code, (name, line) in zip(blocks(), PLACES, strict=True):
        [path] = folder.glob(name)
        text = path.read_text()
        assert text.count(line) == 1, (name, line)
        path.write_text(text.replace(line, code + line))
    (folder / "tnctl/_tables.py").write_text(TABLES)
    sources = [path.name for path in (folder / "csrc").glob("tn_*.c")]
    subprocess.run(
        [os.environ.get("CC", "cc"), "-std=c11", "-O0", "-Wall", "-Wextra", "-Werror", "-shared",
         "-fPIC", *sources, "-o", "tables.so", "-lm", "-lpthread"],
        cwd=folder / "csrc", check=True,
    )  # fmt: skip


def lion(gradients, learning_rate, threshold, beta1=0.9, beta2=0.99):
    """The weights and the state after steps with gradients [steps, n], from 0."""
    w, m = np.zeros(gradients.shape[1]), np.zeros(gradients.shape[1])
    for g in gradients:
        c = beta1 * m + (1 - beta1) * g
        w -= learning_rate * np.where(np.abs(c) > threshold, np.sign(c), 0)
        m = beta2 * m + (1 - beta2) * g
    return w, m


def test_an_optimizer_is_an_entry_of_the_table_in_c(tmp_path):
    assert len({name for name, _ in PLACES}) == 3
    with_the_optimizer(tmp_path)
    gradients = np.random.default_rng(5).normal(size=(20, 3)).astype(np.float32) * 4
    done = subprocess.run(
        [sys.executable, "-c", STEPS, json.dumps([SETTINGS, gradients.tolist()])],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trained = json.loads(done.stdout)
    w, m = lion(gradients.astype(float), **SETTINGS)
    assert len(set(np.abs(w).round(3))) > 1  # some steps were below the threshold
    np.testing.assert_allclose(trained["row"], w, 1e-5, 1e-6)
    np.testing.assert_allclose(trained["m"], m, 1e-5, 1e-6)
    np.testing.assert_allclose(trained["dense"], w, 1e-5, 1e-6)
    assert trained["saved"] == {
        "name": "lion", "learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "threshold": 0.3
    }  # fmt: skip
