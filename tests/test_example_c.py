"""examples/serving: rows in C against the trainer's own code."""

import json
import math
import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from tnctl import schema
from tnctl.checkpoint.document import Recipe
from tnctl.data.bad_rows import BadRowsError
from tnctl.data.formats.jsonl_files import JsonReader
from tnctl.data.statistics_document import Statistics
from tnctl.errors import Failure, UserError
from tnctl.serving.graph import serving_json as describing
from tnctl.serving.graph_inputs import RawInputs, pooled_inputs
from tnctl.serving.rows.precision import RowShape, encode
from tnctl.tables import columns as c_columns
from tnctl.tables.dictionary import DictionaryWriter

EXAMPLE = Path(__file__).parent.parent / "examples" / "serving"
COMPILER = shutil.which(os.environ.get("CC", "cc"))
FLAGS = ["-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-pedantic"]
SANITIZED = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

# Every kind of slot and number; columns that several inputs read.
CONF = r"""
recipe: {name: lr}
embedding: {width: 3, linear: true}
slots:
  user: {missing: value, seed: 9007199254740991}
  tags: {separator: "|", pooling: mean, max_length: 3, keep: last, missing: value}
  words: {column: text, separator: "; ", pooling: sqrtn, group: words}
  listed: {separator: json, pooling: mean, group: words, max_length: 4}
  nested: {column: listed, separator: json, ids: boundaries, boundaries: [-1, 0, 0.5, 7], width: 2}
  item: {ids: modulo, size: 1000, seed: 4, missing: value, linear: false}
  count: {ids: integer, padding: 18446744073709551615, width: 0}
  hour: {ids: integer, size: 24, separator: ",", pooling: sqrtn}
  land: {ids: vocabulary, vocabulary: [de, fr, it, "7"], oov: 3, missing: value}
  city: {ids: vocabulary, vocabulary: [a, b, "ü", "-3"], separator: ",", max_length: 2}
  age: {ids: boundaries, boundaries: [18, 25, 35.5, 50], missing: value}
  age_one_hot: {column: age, ids: boundaries, boundaries: [18, 40], missing: value, indicator: true}
  days: {ids: integer, size: 7, indicator: true, weights: day_weights}
  liked: {separator: "|", weights: likes, pooling: mean, missing: value, padding: 2,
          ids: vocabulary, vocabulary: ["0", "1", "2", "3"]}
  scored: {separator: "|", column: tags, weights: tag_weights, pooling: sqrtn, width: 2}
  summed: {weights: sums, pooling: sum, linear: false}
  history: {group: item, ids: modulo, size: 1000, seed: 4, linear: false, pooling: none,
            max_length: 3, missing: value, separator: " "}
  recent: {pooling: none, max_length: 4, keep: last, separator: json}
  bare: {pooling: none, max_length: 2}
  tag_x_land: {cross: [tags, land, kind], width: 2, max_length: 5}
  item_x_raw: {cross: [item, raw], ids: modulo, size: 50, missing: value, width: 0}
  kind: {ids: vocabulary, vocabulary: [x, y], width: 0, linear: false}
  seen_hour: {column: seen, ids: hour, missing: value}
  seen_weekday: {column: seen, ids: weekday, indicator: true}
  seen_days: {column: visits, ids: day, separator: "|", pooling: mean, missing: value}
  month_day: {column: stamp, ids: day_of_month, width: 2}
  stamp_hours: {column: stamps, ids: hour, separator: json, pooling: none, max_length: 2,
                missing: value}
numeric:
  price: {transform: log1p, clip: [-2, 50]}
  plain: {clip: [null, 1000], column: count_text}
  scaled: {transform: standardize, mean: 1.5, deviation: 3.25, column: price}
  filled: {default: 2.5, transform: log1p, column: plain}
  vector: {width: 3, separator: json}
  split: {width: 2, separator: " ", default: 1}
  both: {columns: [price, age], transform: standardize}
  waited: {column: seen, since_column: stamp, unit: hour, transform: log1p}
  ages: {columns: [seen, stamp], since: "2026-01-01 06:00", unit: minute, clip: [-1e6, null]}
data:
  missing: ["", "?", " -1 "]
  strip: true
  times:
    seen: {offset: "+05:30"}
    stamp: {format: epoch_ms, offset: "-03:30"}
    stamps: {format: epoch_s}
    visits: {format: "%d/%b/%Y:%H:%M %z"}
"""
MOMENTS = {"both": ([1.0, 30.0], [0.1, 7.0]), "scaled": (1.5, 3.25)}


@pytest.fixture(scope="module")
def conf():
    return schema.from_values(yaml.safe_load(CONF))


@pytest.fixture(scope="module")
def description(conf):
    return description_of(conf)


def description_of(conf):
    checkpoint = SimpleNamespace(
        statistics=Statistics(MOMENTS, {}, {}),
        folder="checkpoint",
        step=1,
        manifest=SimpleNamespace(
            heads=("label",),
            recipe=Recipe(name="lr", sha256="1" * 64),
            logit_correction=0.0,
            recalibration=None,
            sha256="0" * 64,
        ),
    )
    return describing.describe(checkpoint, conf)


class Table:
    """Rows of the groups: of most ids, made from the id."""

    def __init__(self, description):
        self.shapes = {
            slot.group: RowShape(slot.linear, slot.width, slot.cvm)
            for slot in description.slots.values()
            if slot.group
        }
        self.asked = {group: set() for group in self.shapes}

    def lookup(self, group, ids):
        self.asked[group].update(ids.tolist())
        return self.rows(group, ids), known(ids)

    def rows(self, group, ids):
        columns = np.arange(self.shapes[group].columns, dtype=np.uint64)
        with np.errstate(over="ignore"):
            mixed = c_columns.mix64(np.ascontiguousarray((ids[:, None] + columns).reshape(-1)))
        rows = (mixed % np.uint64(2001)).astype(np.float32) / np.float32(997) - 1
        return np.where(known(ids)[:, None], rows.reshape(len(ids), len(columns)), np.float32(0))

    def write(self, folder):
        """An export with the rows that were asked for."""
        groups = []
        for group, shape in self.shapes.items():
            ids = np.array(sorted(self.asked[group]), np.uint64)
            ids = ids[known(ids)]
            salt = c_columns.hash_bytes(group.encode())
            hashes = c_columns.mix64(ids ^ np.uint64(salt))
            order = np.argsort(hashes)
            with open(folder / f"{group}.dictionary", "wb") as stream:
                writer = DictionaryWriter(
                    stream.write, salt=salt, linear=shape.linear, width=shape.width, cvm=shape.cvm,
                    precision=shape.precision, stride=shape.stride, records=len(ids), removed=0,
                    delta=False,
                )  # fmt: skip
                writer.add(hashes[order], encode(self.rows(group, ids[order]), shape))
                index = writer.finish()
            (folder / f"{group}.index").write_bytes(index)
            files = {"file": f"{group}.dictionary", "index": f"{group}.index"}
            groups.append({"group": group, **files})
        manifest = {
            "format": "tnctl embeddings", "version": 1, "encoding": "dictionary", "kind": "full",
            "checkpoint": {"sha256": "0" * 64}, "base": None, "filter": {"slots": None},
            "groups": groups, "sha256": "1" * 64,
        }  # fmt: skip
        (folder / "manifest.json").write_text(json.dumps(manifest))


def known(ids):
    return ids % np.uint64(7) != 3


TEXTS = ["u1", "", "?", "ü", "a", "x|y", "12345678", "123456789", "日本語", 'q"\\', "-1", "7", "0"]
NUMBERS = [0.5, -1.25, 3, 0, 1e3, -7, 49.999, "2.5", " 12 ", "", "-0", "1e-3", "NaN", "?", "-1"]


SEEN = [
    "2026-11-20T13:45:09Z", "2026-11-20 00:30", "20240229", 20261120, "1969-12-31T23:59:59.999999",
    " 2026-11-20T13+01:00 ", "0001-01-01", "9999-12-31 23:59:59 UTC", "?", "",
]  # fmt: skip
STAMPS = [0, -2, 1_795_182_309_250, "1795182309250", 1_795_182_309_250.5, "1.7951e12", " -1 ", -1]
VISITS = ["20/Nov/2026:13:45 +0000", "1/jan/1970:00:00 Z", "?", "", "29/FEB/2024:23:59 -1130"]


def random_rows(n, seed):
    """Rows that a reader takes, with gaps in everything."""
    random = np.random.default_rng(seed)

    def choice(values):
        return values[random.integers(len(values))]

    def choices(values, most):
        return [choice(values) for _ in range(random.integers(0, most + 1))]

    def gap(value):
        return value if random.random() < 0.85 else None

    integers = [0, 3, 7, 23, 24, 2**63, 2**64 - 1, -1, -(2**63), 12]
    for _ in range(n):
        tags = choices([" t1", "t2", "?", "", "t3 ", "t4"], 5)
        days = choices(range(9), 4)
        likes = choices([0, 1, 2, 3, "9"], 4)
        numbers = [str(choice([1, 2.5, "nan", -3, ""])) for _ in tags]
        row = {
            "user": gap(choice(TEXTS)),
            "tags": "|".join(tags),
            "tag_weights": "|".join(
                "1.5" if number in ("nan", "") else number for number in numbers
            ),
            "text": gap("; ".join(choices(TEXTS, 4))),
            "listed": gap(json.dumps(choices(["7", 7, None, -1, 2**70, "0.5", "?"], 6))),
            "item": gap(choice([1, -1, 2**64 - 1, 77, 5])),
            "count": gap(choice(integers)),
            "hour": gap(",".join(str(value) for value in choices([0, 5, 23, 24, ""], 3))),
            "land": gap(choice(["de", "it", "es", "pt", "7", "", "?"])),
            "city": gap(",".join(choices(["a", " b", "ü", "-3", "other"], 4))),
            "age": gap(choice(NUMBERS[7:])),
            "days": gap(days),
            "likes": None,
            "sums": gap(choice([0.5, 2.0, -3.25])),
            "summed": gap(choice(TEXTS)),
            "history": gap(" ".join(choices(["h1", "h2", "?", ""], 6))),
            "recent": gap(json.dumps(choices(["r1", 5, "r\u00e9", None], 7))),
            "kind": gap(choice(["x", "y", "z"])),
            "raw": gap(choice(TEXTS)),
            "price": gap(choice([0.5, -1.25, 3.0, 0.0, 1e3, -7.0, 49.999, 1e-9])),
            "count_text": gap(choice(["2.5", " 12 ", "", "1e-3", "NaN", "?", "-1", "1234567890"])),
            "plain": gap(choice([1, 2, -1, 10**15])),
            "vector": gap(json.dumps([choice([1, 2.5, None, -3e-2]) for _ in range(3)])),
            "split": gap("1.5 -2"),
            "seen": gap(choice(SEEN)),
            "stamp": gap(choice(STAMPS)),
            "stamps": gap(json.dumps(choices([0, 3600.5, "7200", None, "?", -3599], 4))),
            "visits": gap("|".join(choices(VISITS, 4))),
            "unused": [{"deep": [1]}],
        }
        row["day_weights"] = None if row["days"] is None else [choice([0.5, 2, -2]) for _ in days]
        if row["tags"] in ("", "?"):
            row["tag_weights"] = row["tags"]
        row["liked"] = "|".join(str(value) for value in likes)
        row["likes"] = "|".join(str(choice([1, 0.25, -2, 3])) for _ in likes)
        if not likes:
            row["likes"] = ""
        if row["summed"] is not None and row["sums"] is None:
            row["sums"] = 1.0
        yield {
            key: value for key, value in row.items() if value is not None or random.random() < 0.5
        }


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Builds a test program of the sources that need no TensorFlow."""
    folder = tmp_path_factory.mktemp("build")
    sources = ["json", "message", "fields", "description", "slots", "values", "cells", "numbers",
               "times", "embeddings", "columns", "raw_inputs", "lines",
               "tensornet_line"]  # fmt: skip
    paths = [EXAMPLE / f"{name}.c" for name in sources]
    csrc = EXAMPLE.parent.parent / "csrc"
    paths += [EXAMPLE / "tests" / "rows.c", *csrc.glob("tn_dictionary*.c"), csrc / "tn_time.c"]
    program = folder / "rows"
    subprocess.run(
        [COMPILER, *FLAGS, *SANITIZED.split(), *map(str, paths), "-o", program, "-lm"],
        check=True,
    )
    return program


def run(program, *arguments, rows):
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    done = subprocess.run(
        [program, *map(str, arguments)], input=text.encode("utf-8", "surrogateescape"),
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines(), done.stderr.decode().splitlines()


@pytest.fixture(scope="module")
def folders(description, tmp_path_factory):
    return folders_of(description, list(random_rows(500, 1)), tmp_path_factory.mktemp("exported"))


def folders_of(description, rows, folder):
    """A graph's serving.json, an export, good rows and what tnctl makes of them."""
    graph, embeddings = folder / "graph", folder / "embeddings"
    graph.mkdir()
    embeddings.mkdir()
    content = description.body() | {"sha256": "2" * 64}
    (graph / "serving.json").write_text(json.dumps(content, indent=2))
    table = Table(description)
    encoded = RawInputs(description).encode(rows)
    inputs = pooled_inputs(description, encoded, table.lookup)
    table.write(embeddings)
    return SimpleNamespace(
        graph=graph, embeddings=embeddings, rows=rows, encoded=encoded, inputs=inputs
    )


def test_rows_become_the_same_inputs(build, folders):
    lines, _ = run(build, folders.graph, folders.embeddings, rows=folders.rows)
    inputs = [json.loads(line) for line in lines]
    assert len(inputs) == len(folders.rows)
    for name, cells in folders.encoded.cells.items():
        ends = np.concatenate([[0], np.cumsum(cells.lengths())]).tolist()
        for row, (first, end) in enumerate(pairwise(ends)):
            ids, weights = inputs[row]["ids"][name]
            assert ids == cells.ids[first:end].tolist(), (name, folders.rows[row])
            if cells.weights is not None:
                assert np.float32(weights).tolist() == cells.weights[first:end].tolist()
    for name, array in folders.inputs.items():
        given = np.array([line[name] for line in inputs], array.dtype)
        wrong = np.argwhere(given != array)
        assert not len(wrong), (name, wrong[:5], folders.rows[int(wrong[0][0])])


NUMBER_TEXTS = """+1
1.|.5|-.5|.|-|1e5|1e|1e+|1E-3|0x1|nan|-nan|NaN|inf|-inf|Infinity|1_0|1d5|1,5|--1
1e400|-1e400|4.9e-324|1e-400|1.7976931348623157e308|9007199254740993|123456789012345678901234567890
0.1000000000000000055511151231257827|00000000000000000000000000001|179769313486231580793e289|1 2|١
123456789.123456789|0.000000000000000000000000000001|5e-1|8.5e22|-0|-0.0|3.4028236e38|1e39""".replace(
    "\n", "|"
).split("|")
NUMBER_TEXTS += ["\t3\n", "\v3 ", "\u00a03", "", " ", "?", " ?", "0" * 40, "7" * 300, "7" * 400]
INTEGER_TEXTS = ["+5", " 5", "5 ", "05", "-0", "-05", "0x1f", "9223372036854775808", "1.0", "--1",
                 "18446744073709551615", "18446744073709551616", "-9223372036854775808", "-",
                 "-9223372036854775809", "12a", "5\u0000", "१"]  # fmt: skip
TIME_TEXTS = """2026-11-20|2026-1-2|2026-02-30|2024-02-29|2023-02-29|0000-01-01|10000-01-01|20261120
2026-11-20T|2026-11-20T24:00|2026-11-20T23:59:60|2026-11-20 1:00|2026-11-20  01:00|2026-11-20T01:00z
2026-11-20T0100|2026-11-20T01:0000|2026-11-20T01:00:00.|2026-11-20T01:00:00.1234567890|2026-1120
2026-11-20T01:00:00,5 utc|2026-11-20T01+1|2026-11-20T01+24:00|2026-11-20T01-23:60|2026-11-20T01+01:
2026-11-20T01:00:00.123456789Z|2026-11-20T01:00Z |\t2026-11-20|2026-11-20T01:00 +0100|+2026-11-20
2026\u221211\u221220|x||?| ?|-1|1795182309|2026-11-20T01:00 Z Z|2026-11-20Z|2026-10-00""".replace(
    "\n", "|"
).split("|")
LISTS = ["[]", " [1 ] ", "null", "[null]", '["a", 1.5]', "[true]", "[-0]", "[1e3]", '["a"', "[NaN]",
         "[1, [2]]", "{}", '"a"', "[1,]", '["\\u00e9\\ud83d\\ude00"]', '["\\ud800"]', '["\\udc80"]',
         "[01]", "[1] x", '["a\tb"]', '["\\x"]', "[123456789012345678901234567890]", "",
         "a"]  # fmt: skip
EDGES = (
    [{"age": raw} for raw in [*NUMBER_TEXTS, 1, -1, 2**64 - 1, 1.5, True, [], [3], [3, 4], [None]]]
    + [{"plain": raw} for raw in [*NUMBER_TEXTS, True, [1.5], [1, 2], 10**15 + 1, 3e38, 4e38]]
    + [{"price": raw} for raw in [*NUMBER_TEXTS, [1.5], [1, 2], [[1]], {"a": 1}]]
    + [{"count": raw} for raw in [*INTEGER_TEXTS, 1.5, True, [], [1], [1, None, 2], [1.5]]]
    + [{"seen": raw} for raw in [*TIME_TEXTS, 1.5, True, 20261131, [], ["2026-11-20"], 2**70,
                                 ["2026-11-20", "2026-11-20"], [[1]], {"a": 1}, math.nan]]
    + [{"stamp": raw} for raw in [*NUMBER_TEXTS, True, 10**30, -62135596800000, [], [5], [5, 6],
                                  253402300799999, 253402300800000, 1e300, -62135596800001]]
    + [{"visits": raw} for raw in
       ["20/Nov/2026:13:45 +0000|x", "|", 7, "1/1/1970:00:00 Z", ["?"], "01/Jan/1970:0:0 utc",
        "1/Jan/1970:00:00 z", "31/Jun/1970:1:1 Z"]]
    + [{"stamps": raw} for raw in LISTS]
    + [{"listed": raw} for raw in LISTS]
    + [{"recent": raw} for raw in LISTS]
    + [{"bare": raw} for raw in [True, False, 7, "?", "", "a", [True], [], [1, "?"], [[1]], 1.5]]
    + [{"vector": raw} for raw in ["[1, 2, 3]", "[1]", "[]", "[1, 2, 1e400]", [1, 2, 3], [1.5], 3]]
    + [{"split": raw} for raw in ["1 2", "1  2", "1 2 ", "?", "", "1 x", [1, 2]]]
    + [{"user": raw} for raw in [1.5, True, [1, "a", None, ""], [[1]], {}, "\ufffd", "a\u0000b"]]
    + [{"tags": raw} for raw in ["|", "||", " ?| -1 |-1", "a", 7, -1]]
    + [{"land": raw} for raw in [7, -3, "7 ", "de"]]
    + [{"summed": raw, "sums": two} for raw, two in
       [("a", "x"), ("a", None), (None, 1.0), (None, None), ("a", ""), ("a", [2]), (["a"], 2),
        ([], None), (None, [1]), ("a", 1e39), ("a", "nan"), ("?", "nan")]]
)  # fmt: skip


def refused_of(build, folders, description, rows, encode):
    """How many rows are refused, by the program as by `encode`; of the others all is the same."""
    table = Table(description)
    lines, _ = run(build, folders.graph, folders.embeddings, rows=rows)
    refused = 0
    for row, line in zip(rows, lines, strict=True):
        answer = json.loads(line)
        try:
            encoded = encode(row)
        except (BadRowsError, UserError, Failure) as error:
            refused += 1
            assert "error" in answer, (row, error)
            continue
        assert "error" not in answer, row
        for name, cells in encoded.cells.items():
            assert answer["ids"][name][0] == cells.ids.tolist(), (row, name)
        numbers = description.signatures.by_slot
        x = pooled_inputs(description, encoded, table.lookup)["x"][0]
        for number in numbers:
            if number.name in description.numeric:
                place = slice(number.at, number.end)
                assert np.float32(answer["x"][place]).tolist() == x[place].tolist(), row
    return refused


def test_edges_are_taken_or_refused_alike(build, folders, description):
    raw = RawInputs(description)
    refused = refused_of(build, folders, description, EDGES, lambda row: raw.encode([row]))
    assert 60 < refused < len(EDGES) - 60


# Numbers that JSON has not, but Python; integers about 64 bits and beyond.
ODD = [math.nan, math.inf, -math.inf, 2**64 - 1, 2**64, -(2**63) - 1, 1 - 2**64, -(2**64), 10**30]
ODD_ROWS = [
    row
    for odd in ODD
    for row in [
        *({name: odd} for name in ("user", "item", "count", "land", "age", "price", "plain", "raw",
                                   "vector", "split", "unused")),
        *({name: [odd]} for name in ("user", "count", "age", "price", "count_text", "unused")),
        {"vector": [1.5, odd, 2]}, {"recent": ["a", odd]}, {"listed": f"[{json.dumps(odd)}]"},
        {"vector": f"[1, {json.dumps(odd)}, 2]"}, {"tags": "a", "tag_weights": odd},
        {"summed": "a", "sums": odd}, {"summed": None, "sums": odd}, {"days": odd},
        {"days": [1, 2], "day_weights": [odd, 2]}, {"days": [None], "day_weights": [odd]},
    ]
]  # fmt: skip


def encode_line(description, path):
    """Encodes a row as `tnctl score` does, from a file of JSON lines."""
    raw = RawInputs(description)

    def encode(row):
        path.write_text(row if isinstance(row, str) else json.dumps(row))
        [piece] = JsonReader(raw.conf).pieces(str(path), raw.columns)
        return raw.encode(piece.table, piece.where)

    return encode


def test_odd_numbers_are_taken_or_refused_as_score_does(build, folders, description, tmp_path):
    encode = encode_line(description, tmp_path / "row.jsonl")
    refused = refused_of(build, folders, description, ODD_ROWS, encode)
    assert 60 < refused < len(ODD_ROWS) - 60


VISIT = "20/Nov/2026:13:45 +0000"
PATHS_CONF = r"""
recipe: {name: lr}
embedding: {width: 2, linear: true}
slots:
  user: {column: user.id, missing: value}
  screen: {column: user.device.screen, ids: boundaries, boundaries: [100, 1000], missing: value}
  items: {column: basket.id, weights: basket.count}
  tags: {column: basket.tags.name, pooling: mean, missing: value}
  words: {column: user.words, separator: "|"}
  recent: {column: visits.item.id, pooling: none, max_length: 4, missing: value}
  visit: {column: visits.at, ids: hour, missing: value}
  deepest: {column: NAMES, missing: value}
  ends: {column: user., missing: value}
  user_x_screen: {cross: [user, screen]}
numeric:
  price: {column: user.price, transform: log1p}
  prices: {column: pair.price, width: 2, default: -1}
  too_deep: {column: NAMES.n}
data:
  missing: ["", "?"]
  times: {visits.at: {format: "%d/%b/%Y:%H:%M %z"}}
""".replace("NAMES", ".".join(["n"] * 32))
VALUES = [None, "a", "?", "", 7, -1, 2.5, [], ["a", "b"], [1, None], [[1]], [[]], {}, "a|b"]


def deep(depth, value):
    return {"n": deep(depth - 1, value)} if depth else value


def nested_rows(n, seed):
    """Objects and lists of them, with gaps, other values, and keys that have dots themselves."""
    random = Random(seed)

    def object_of(**makers):
        keys = [key for key in makers if random.random() < 0.85]
        random.shuffle(keys)
        return {key: odd(makers[key]) for key in keys}

    def odd(make):
        return random.choice(VALUES) if random.random() < 0.04 else make()

    def several(make, most=3):
        return lambda: [odd(make) for _ in range(random.randrange(most + 1))]

    def tag():
        return object_of(name=lambda: random.choice(["t1", "t2", "ü", "?"]), other=dict)

    def product():
        return object_of(
            id=lambda: random.choice(["i1", 2, "i3"]), count=lambda: random.choice([1, 0.5, "2"]),
            tags=several(tag),
        )  # fmt: skip

    def user():
        return object_of(
            id=lambda: random.choice(["u1", "u2", 3]), price=lambda: random.choice([0.5, 9, "1"]),
            device=lambda: object_of(screen=lambda: random.choice([50, 320, "2000"])),
            words=lambda: random.choice(["a|b", "c", ["d|e"]]),
        ) | ({"": "empty", "id.x": 1} if random.random() < 0.2 else {})  # fmt: skip

    def visit():
        return object_of(item=lambda: object_of(id=lambda: random.choice(["i1", 5])),
                         at=lambda: random.choice([VISIT, "?"]))  # fmt: skip

    def price():
        return {"price": random.choice([1.5, 3, None])}

    for number in range(n):
        row = object_of(user=user, visits=several(visit, 5), basket=several(product),
                        pair=lambda: [price(), price()])  # fmt: skip
        if number % 5 == 0:
            row |= {
                key: random.choice(VALUES)
                for key in random.sample(
                    ["user.id", "user.device", "visits.item", "visits.at", "basket.tags.name"], 2
                )
            }
        if number % 7 == 0:
            row |= random.choice([deep(32, 3), {"n.n": deep(30, "x")}, deep(33, 4), {"n": 5}])
        yield row


PATHS = [
    '{"user": {"id": "u1"}, "user": {"id": "u2", "id": "u3"}}',
    '{"user.id": null, "user.id": "u4"}',
    '{"\\u0075ser": {"\\u0069d": "u1"}}', '{"user.id.x": 1, "user.": "u", "user": 5}',
    '{"user": [{"id": "u1"}, null, 7, {"id": ["u2", "u3"]}, {}]}', '{"user": [[{"id": "u1"}]]}',
    '{"user.device": {"screen": 5}, "user": {"device": {"screen": 500}}}',
    '{"visits": [{"item": [{"id": "a"}, {"id": ["b", "c"]}]}, {"item": {"id": ["d"]}}]}',
    '{"visits": {"item": []}}', '{"visits": [{"item": [[]]}]}',
    '{"visits": [{"item": {"id": {}}}]}',
    '{"visits": [{"item": [{"id": [1, [2]]}]}]}', '{"user": {"": 5, "id": {"": 4}}}',
    '{"user": []}',
]  # fmt: skip


def test_paths_lead_where_score_finds_values(build, tmp_path):
    description = description_of(schema.from_values(yaml.safe_load(PATHS_CONF)))
    folders = folders_of(description, [{"user.id": "u1"}], tmp_path)
    rows = [*PATHS, *nested_rows(200, 3)]
    lines, _ = run(build, folders.graph, folders.embeddings, rows=rows)
    encode = encode_line(description, tmp_path / "row.jsonl")
    refused = refused_of(build, folders, description, rows, encode)
    assert 20 < refused < 120
    ids = [json.loads(line).get("ids") for line in lines]
    for name in description.slots:
        assert len({str(row[name]) for row in ids if row}) > 2, name
    [out, *_], _ = run(build, folders.graph, folders.embeddings, 1, 20_000, rows=rows)
    read, _, of, *_, added, _ = out.split()
    assert int(of) == 20_000 and 0 < int(added) <= int(read) < 20_000


def test_lines_that_are_no_rows_are_refused(build, folders):
    bad = ["x", "[1]", "{", '{"user": 1', '{"user": 01}', '{"user": tru}', '{"user": "\\ud800"}',
           '{"user": "a\udcff"}', '{"user": "\tq"}', '{"user": 1} {}', "{'user': 1}", '{"user" 1}',
           '{"user": 1,}', '{1: 2}', "[" * 100, '{"user": -}', '{"user": 1.}', '{"user": 1e}',
           '{"user": "\udced\udca0\udc80"}', '{"user": "\\u12g4"}', '{"user": Infinity}',
           '{"price": nan}', '{"price": -NaN}', '{"price": NaNs}', '{"price": Inf}', '{"price": -I',
           '{"price": +Infinity}', '{"price": N',
           '"a"', ""]  # fmt: skip
    lines, _ = run(build, folders.graph, folders.embeddings, rows=bad)
    assert ["error" in json.loads(line) for line in lines] == [True] * len(bad)


def test_texts_are_their_bytes(build, folders):
    """Escapes, pairs of surrogates, and bytes that are not UTF-8 as golden rows have them."""
    texts = ['é\U0001f600\n"\\/\t\b', "\udc80x\udcff", "a\u0000b", "퟿￿"]
    rows = [json.dumps({"user": text}) for text in texts]
    rows += [json.dumps({"user": text}, ensure_ascii=False) for text in texts[:1] + texts[3:]]
    rows += ['{"user": "wrong", "user": "a"}', '{ "\\u0075ser" :"a" }\r']
    lines, _ = run(build, folders.graph, folders.embeddings, rows=rows)
    texts += [texts[0], texts[3], "a", "a"]
    for text, line in zip(texts, lines, strict=True):
        data = text.encode("utf-8", "surrogateescape")
        expected = c_columns.hash_bytes(data, 9007199254740991)
        assert json.loads(line)["ids"]["user"][0] == [expected], text


def fuzz(build, folders, seed, rounds):
    rows = [*folders.rows[:60], *EDGES]
    lines, _ = run(build, folders.graph, folders.embeddings, seed, rounds, rows=rows)
    read, _, of, *_, added, _ = lines[0].split()
    assert int(of) == rounds
    assert 0 < int(added) < int(read) < rounds


def test_damaged_lines_harm_nothing(build, folders):
    fuzz(build, folders, 1, 300_000)


@pytest.mark.long
def test_damaged_lines_harm_nothing_for_long(build, folders):
    for seed in range(2, 12):
        fuzz(build, folders, seed, 400_000)


# ---- Lines of TensorNet ------------------------------------------------------------------------

# Columns whose values are integers, most of them lists.
SIGNS = {"count": 6, "user": 1, "item": 3, "hour": 4, "history": 5, "recent": 7, "days": 1}


def line_of(row, number=0):
    """A row of lists of integers as TensorNet's demo writes it."""
    slots = [f"{name}\x01" + "\x02".join(map(str, signs)) for name, signs in row.items()]
    return "\t".join([f"id {number}", *slots])


def rows_of_signs(n):
    random = np.random.default_rng(4)
    edges = [0, 23, -1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 10**15]
    for _ in range(n):
        row = {}
        for name, most in SIGNS.items():
            if count := random.integers(0, most + 1):
                row[name] = [
                    edges[random.integers(len(edges))] if random.random() < 0.4 else int(sign)
                    for sign in random.integers(-(2**63), 2**63, count)
                ]
        if "days" in row:
            row["day_weights"] = [int(random.integers(1, 9))]  # -1 would be missing
        yield row


def test_lines_of_tensornet_are_rows_of_lists(build, folders):
    """The inputs are those of the same rows in JSON, which are those of the trainer."""
    rows = list(rows_of_signs(120))
    lines = [line_of(row, number) for number, row in enumerate(rows)]
    given, _ = run(build, "--tensornet", folders.graph, folders.embeddings, rows=lines)
    expected, errors = run(build, folders.graph, folders.embeddings, rows=rows)
    assert given == expected
    assert errors == []
    assert len({json.dumps(json.loads(line)["ids"]) for line in given}) > 100


def test_forms_of_lines(build, folders):
    """What a line may have besides: another slot, a slot twice, the end of a line of Windows."""
    lines = ["", "7", "\tcount\x015", "7\tcount\x015\r", "7\tother\x015\tcount\x015",
             "7\tcount\x016\x027\tcount\x015", "\x01\x02\tcount\x015"]  # fmt: skip
    rows = [{}, {}] + [{"count": [5]}] * 5
    many = ["1\tother\x01" + "\x02".join(["-1"] * 200_000) + "\tcount\x015"]
    lines, rows = lines + many, [*rows, {"count": [5]}]
    given, _ = run(build, "--tensornet", folders.graph, folders.embeddings, rows=lines)
    expected, _ = run(build, folders.graph, folders.embeddings, rows=rows)
    assert given == expected


NO_LINES = [
    ("1\t", "a tab is not followed by a slot"), ("1\t\tcount\x015", "a tab is not followed"),
    ("1\tcount", "a tab is not followed by a slot, the byte 1 and its signs"),
    ("1\t\x015", "a tab is not followed"), ("1\tcount\x01", "a sign is no integer of 64 bits"),
    ("1\tcount\x015\t", "a tab is not followed"), ("1\tcount\x02", "a tab is not followed"),
    *((f"1\tcount\x01{sign}", "a sign is no integer of 64 bits") for sign in
      ("5\x02", "\x025", "5\x02\x026", "5\x016", "+5", " 5", "5 ", "05", "-0", "-", "0x1", "1.0",
       "a", str(2**64), str(-(2**63) - 1), "9" * 10_000, "5\x00", "5\r6", "\u0967")),
]  # fmt: skip


def test_damaged_lines_of_tensornet_are_refused(build, folders):
    lines = [line for line, _ in NO_LINES]
    out, err = run(build, "--tensornet", folders.graph, folders.embeddings, rows=lines)
    assert ["error" in json.loads(line) for line in out] == [True] * len(lines)
    for number, ((line, said), message) in enumerate(zip(NO_LINES, err, strict=True), start=1):
        assert message.startswith(f"{number}: {said}"), line


def test_damage_to_lines_of_tensornet_harms_nothing(build, folders):
    lines = [line_of(row) for row in rows_of_signs(60)] + [line for line, _ in NO_LINES[:8]]
    [out, *_], _ = run(
        build, "--tensornet", folders.graph, folders.embeddings, 1, 100_000, rows=lines
    )
    read, _, of, *_, added, _ = out.split()
    assert int(of) == 100_000
    assert 0 < int(added) <= int(read) < 100_000


def changed(value, random):
    """A JSON value with something left out or of another kind."""
    if isinstance(value, dict | list) and value and random.random() < 0.85:
        copy = value.copy()
        key = (
            random.choice(list(value)) if isinstance(value, dict) else random.randrange(len(value))
        )
        if random.random() < 0.2:
            del copy[key]
        else:
            copy[key] = changed(value[key], random)
        return copy
    return random.choice(
        [None, 0, -1, 2**31 - 1, 10**11, "x", "", [], {}, True, [[1]], ["a", None]]
    )


def damage_descriptions(build, folders, tmp_path, seed, rounds):
    random = Random(seed)
    opened = 0
    for name in ("graph", "embeddings"):
        shutil.copytree(getattr(folders, name), tmp_path / name)
    paths = [tmp_path / "graph" / "serving.json", tmp_path / "embeddings" / "manifest.json"]
    kept = [path.read_text() for path in paths]
    for number in range(rounds):
        for path, text in zip(paths, kept, strict=True):
            content = json.loads(text)
            if (number % 3 == 0) == (path.name == "manifest.json"):
                content = changed(changed(content, random), random)
            path.write_text(json.dumps(content))
        row = json.dumps(folders.rows[number])
        done = subprocess.run(
            [build, tmp_path / "graph", tmp_path / "embeddings"],
            input=f"{row}\n", capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        refused = done.returncode == 1 and len(done.stderr.splitlines()) == 1
        assert refused or done.returncode == 0, done.stderr
        opened += not refused
    assert 0 < opened < rounds


def test_damaged_descriptions_harm_nothing(build, folders, tmp_path):
    damage_descriptions(build, folders, tmp_path, 1, 40)


@pytest.mark.long
def test_damaged_descriptions_harm_nothing_for_long(build, folders, tmp_path):
    damage_descriptions(build, folders, tmp_path, 2, 500)
