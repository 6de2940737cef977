"""The program of examples/serving on exports of a run, against `tnctl score`."""

import json
import math
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from clicks import clicks
from test_example_c import COMPILER, EXAMPLE, line_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

RECIPE = """\
from keras import ops

from tnctl.model import layers


def build(inputs):
    history, length = inputs.sequence("history")
    values = ops.cast(length, "float32")[:, None]
    deep = layers.concatenated(inputs.deep, values,
                               ops.sum(history, axis=1))
    click = layers.Logit()(layers.Mlp([8], name="click")(deep)) + inputs.linear
    return {"click": click, "buy": layers.Logit()(layers.Mlp([4], name="buy")(deep))}
"""
TRAINED = """\
defaults: [schema, _self_]
recipe: {name: mine.py}
embedding: {width: 4}
life: {groups: {tags: {shows: {cvm: true}}, user: {eviction: {unseen_steps: 3}}}}
slots:
  user: {side: user, missing: value, seed: 9007199254740991}
  tags: {separator: "|", weights: scores, pooling: mean, max_length: 3, keep: last}
  item: {ids: modulo, size: 9007199254740993, missing: value}
  history: {side: user, group: item, ids: modulo, size: 9007199254740993, pooling: none,
            max_length: 4, missing: value}
  place: {column: city, vectors: cities.npy, width: 3, missing: value}
  number: {ids: integer, padding: 18446744073709551615, width: 2}
  age: {side: user, column: person.age, ids: quantiles, buckets: 4, missing: value}
  spent: {column: price, ids: row_quantiles, buckets: 6, missing: value}
  income: {ids: boundaries, boundaries: [0.1, 10, 100], column: price, width: 0}
  land: {column: person.places.land, ids: vocabulary, vocabulary: [de, "f\\u00fcr"], oov: 2,
         missing: value, pooling: sqrtn}
  weekday: {ids: integer, size: 7, indicator: true}
  user_x_city: {cross: [user, city, kind], ids: modulo, size: 1000, width: 0}
  kind: {ids: vocabulary, vocabulary: [a, b], width: 0, linear: false}
numeric:
  price: {transform: log1p, clip: [null, 50], default: 2}
  vector: {width: 3, separator: json, transform: standardize}
  both: {columns: [price, number], transform: standardize, mean: 1, deviation: 2}
data:
  format: jsonl
  train: rows.jsonl
  missing: ["", "?"]
  labels: {click: {column: clicked}, buy: {column: bought}}
train: {batch_size: 64}
save: {every_steps: 5, every_minutes: null}
"""


def nested_clicks(n):
    """Clicks with some values in objects, and in lists of them."""
    for row in clicks(n):
        person = {"age": row.pop("age")}
        places = [{"land": land} for land in row.pop("land")]
        yield row | {"person": person | {"places": places}}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Program (a), built as its Makefile says."""
    tensorflow = Path(tf.__file__).parent
    if not (tensorflow / "include" / "tensorflow" / "c" / "c_api.h").exists():
        pytest.skip("needs TensorFlow's headers, which its wheel has")
    folder = tmp_path_factory.mktemp("program")
    subprocess.run(
        [
            "make",
            "--silent",
            "--jobs=2",
            "-C",
            EXAMPLE,
            f"BUILD={folder}",
            f"TF={tensorflow}",
            "score",
        ],
        check=True,
    )
    return folder / "score"


@pytest.fixture(scope="module")
def exported(ran, tmp_path_factory):
    """A run of two heads, the exports of its checkpoints, and graphs of the last one."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "rows.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in nested_clicks(640))
    )
    np.save(folder / "cities.npy", np.random.default_rng(4).normal(size=(3, 3)))
    (folder / "cities.txt").write_text("c0\nc1\nc9\n")
    (folder / "mine.py").write_text(RECIPE)
    (folder / "conf.yaml").write_text(TRAINED)

    def command(*arguments):
        ran(*arguments, cwd=folder)

    command("train", "conf=conf.yaml", "output=run")
    first, last = sorted(str(path) for path in (folder / "run" / "checkpoints").iterdir())
    export = "export-embeddings", "format=dictionary"
    command(*export, f"checkpoint={first}", "to=base")
    command(*export, f"checkpoint={last}", "to=whole")
    command(*export, f"checkpoint={last}", "to=delta", "since=base")
    command(*export, f"checkpoint={last}", "to=small", "precision=int8", "only=user,item,tags")
    command("split-graph", f"checkpoint={first}", "to=early")
    command("split-graph", f"checkpoint={last}", "to=graph")
    command("split-graph", f"checkpoint={last}", "to=part", "head=buy")
    return folder


def score(program, folder, *arguments, rows=(), graph="graph", embeddings="whole", code=0):
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    done = subprocess.run(
        [program, graph, embeddings, *arguments], cwd=folder, input=text, capture_output=True,
        text=True, timeout=120, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.mark.parametrize(
    ("graph", "embeddings", "golden"),
    [
        ("graph", "whole", "run/checkpoints/{}/golden.jsonl"),
        ("graph", "delta", "run/checkpoints/{}/golden.jsonl"),
        ("graph", "small", "small/golden.jsonl"),
        ("part", "whole", "part/golden.jsonl"),
        ("early", "base", "base/golden.jsonl"),
    ],
)
def test_golden_rows_pass(program, exported, graph, embeddings, golden):
    last = sorted(os.listdir(exported / "run" / "checkpoints"))[-1]
    out, _ = score(
        program, exported, "--check", golden.format(last), "--batch", "7", graph=graph,
        embeddings=embeddings,
    )  # fmt: skip
    assert "200 rows" in out[0]
    removed = json.loads((exported / "delta" / "manifest.json").read_text())["groups"]
    assert sum(group["removed"] for group in removed) > 0


def test_other_golden_rows_fail(program, exported):
    lines = (exported / "graph" / "golden.jsonl").read_text().splitlines()
    changed = json.loads(lines[3])
    for key, value in [
        ("x", [np.nextafter(np.float32(changed["x"][0]), np.float32(9)).item(), *changed["x"][1:]]),
        ("linear", changed["linear"] + 1e-3),
        ("ids", changed["ids"] | {"user": ["1"]}),
        ("weights", changed["weights"] | {"tags": [1.0]}),
        ("logits", changed["logits"] | {"buy": changed["logits"]["buy"] + 1e-3}),
        ("lengths", [9]),
        ("sequences", changed["sequences"][1:]),
    ]:
        wrong = json.dumps(changed | {key: value})
        (exported / "wrong.jsonl").write_text("\n".join([*lines[:3], wrong]))
        _, err = score(program, exported, "--check", "wrong.jsonl", code=1)
        errors = [line for line in err if line.startswith("line 4:")]
        assert len(errors) == 1, (key, err)
        assert "1 differences in 4 rows" in err[-1]


def test_rows_are_scored_as_tnctl_does(ran, program, exported):
    rows = list(nested_clicks(100))
    out, _ = score(program, exported, "--batch", "32", "--threads", "2", rows=rows)
    (exported / "some.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ran(
        "score", "graph=graph", "embeddings=whole", "input=some.jsonl", "to=scores.jsonl",
        cwd=exported,
    )  # fmt: skip
    expected = (exported / "scores.jsonl").read_text().splitlines()
    for line, other in zip(map(json.loads, out), map(json.loads, expected), strict=True):
        assert list(line) == list(other)
        for name, value in other.items():
            assert math.isclose(line[name], value, rel_tol=2e-5, abs_tol=2e-5)


def test_rows_of_one_user_are_ranked(program, exported, tmp_path):
    first, *others = nested_clicks(40)
    rows = [first, *(row | {name: first[name] for name in ("user", "history", "person")}
                     for row in others)]  # fmt: skip
    ranked, _ = score(program, exported, "--batch", "64", rows=rows)
    alone, _ = score(program, exported, "--batch", "15", rows=rows)
    for line, other in zip(map(json.loads, ranked), map(json.loads, alone), strict=True):
        for name, value in other.items():
            assert math.isclose(line[name], value, rel_tol=1e-6, abs_tol=1e-6)
    assert len({json.loads(line)["logit_click"] for line in ranked}) > 20
    shutil.copytree(exported / "graph", tmp_path / "graph")
    serving = tmp_path / "graph" / "serving.json"
    content = json.loads(serving.read_text())
    content["signatures"]["rank"].remove("age")
    serving.write_text(json.dumps(content))
    whole = exported / "whole"
    _, err = score(program, tmp_path, rows=rows, embeddings=whole, code=1)
    assert "an input of the graph has not the 40 columns of serving.json" in err[-1]


def test_lines_of_tensornet_get_the_scores_of_their_rows(program, exported):
    """Of an id that is hashed or not: what the line says of it is what `tnctl score` reads."""
    rows = [
        {"number": [row["number"]], "weekday": [row["weekday"] or 0], "history": [3, -5]}
        for row in clicks(50)
    ]
    lines = [line_of(row) for row in rows]
    given, _ = score(program, exported, "--tensornet", "--batch", "7", rows=lines)
    expected, _ = score(program, exported, "--batch", "7", rows=rows)
    assert given == expected
    assert len(set(given)) > 10
    lines[3] = "1\tnumber\x01five"
    _, err = score(program, exported, "--tensornet", rows=lines, code=2)
    assert err[-1].endswith(
        "line 4: no line of TensorNet: a sign is no integer of 64 bits (character 10)"
    )
    out, _ = score(program, exported, "--tensornet", "--keep-going", rows=lines)
    assert [number for number, line in enumerate(out) if "error" in line] == [3]
    out, _ = score(program, exported, "--tensornet", "--benchmark", "1", rows=lines[:3])
    assert len(out) == 3


def test_scores_come_before_more_rows_do(program, exported):
    """A server may keep the program at its side, and speak to it row by row."""
    row = json.dumps(next(clicks(1)))
    with subprocess.Popen(
        [program, "graph", "whole"], cwd=exported, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as running:  # fmt: skip
        for _ in range(3):
            running.stdin.write(f"{row}\n")
            running.stdin.flush()
            assert "logit_click" in json.loads(running.stdout.readline())
        running.stdin.close()
        assert running.wait(timeout=60) == 0


def test_bad_rows_end_the_program_or_are_told(program, exported):
    rows = [*clicks(2), {"user": 1.5}, next(clicks(1)), "no json", next(clicks(1))]
    out, err = score(program, exported, rows=rows, code=2)
    assert len(out) == 2
    assert err[-1].endswith("line 3: column 'user': '1.5' is no id, which are texts and integers")
    out, _ = score(program, exported, "--keep-going", rows=rows)
    errors = [json.loads(line).get("error") for line in out]
    assert [error is not None for error in errors] == [False, False, True, False, True, False]
    assert errors[4].startswith("line 5: no JSON")


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["graph"], "usage", 2),
        (["graph", "whole", "--batch", "0"], "usage", 2),
        (["nowhere", "whole"], "nowhere/serving.json: No such file", 1),
        (["graph", "nowhere"], "nowhere/manifest.json: No such file", 1),
        (["whole", "whole"], "whole/serving.json: No such file", 1),
        (["early", "whole"], "was made from another checkpoint than the graph", 1),
        (["graph", "whole", "--check", "nowhere"], "nowhere: No such file", 1),
    ],
)
def test_what_cannot_be_opened_is_told(program, exported, arguments, said, code):
    done = subprocess.run(
        [program, *arguments], cwd=exported, input="", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code
    assert said in done.stderr


def test_a_changed_base_is_noticed(program, exported, tmp_path):
    for name in ("delta", "graph"):
        shutil.copytree(exported / name, tmp_path / name)
    shutil.copytree(exported / "whole", tmp_path / "base")
    _, err = score(program, tmp_path, embeddings="delta", code=1)
    assert "base holds another export now" in err[-1]
    shutil.rmtree(tmp_path / "base")
    _, err = score(program, tmp_path, embeddings="delta", code=1)
    assert "base/manifest.json: No such file" in err[-1]


def test_the_benchmark_runs(program, exported):
    out, _ = score(program, exported, "--benchmark", "1", rows=clicks(20))
    assert [json.loads(line)["batch"] for line in out] == [1, 32, 256]
