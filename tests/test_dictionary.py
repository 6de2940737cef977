"""Dictionaries: what is written is what is found, by three readers; damage is told, not read."""

import importlib.util
import re
import shutil
import struct
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tnctl.tables import Dictionary, DictionaryStack, DictionaryWriter
from tnctl.tables.columns import group_salt, mix64

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples/serving/dictionary.py"
SALT = group_salt("user")


def example_reader():
    spec = importlib.util.spec_from_file_location("example_dictionary", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXAMPLE_READER = example_reader()


def stride_of(linear, width, cvm, precision):
    weights = {"float32": 4 * width, "float16": 2 * width, "int8": width + 4 * (width > 0)}
    return 4 * linear + 8 * cvm + -(-weights[precision] // 4) * 4


def payloads_of(rng, n, linear, width, cvm, precision):
    """Random payloads, uint8 [n, stride], and what they are decoded, float32 [n, columns]."""
    head, counts = rng.standard_normal((n, int(linear))), rng.exponential(9, (n, 2 * cvm))
    scale = rng.exponential(1, (n, 1)).astype("<f4")
    if precision == "int8":
        stored = rng.integers(-127, 128, (n, width)).astype("i1")
        weights = stored.astype("<f4") * scale
    else:
        stored = rng.standard_normal((n, width)).astype("<f4" if precision == "float32" else "<f2")
        weights = stored.astype("<f4")
    head, counts = head.astype("<f4"), counts.astype("<f4")
    parts = {
        "float32": [head, stored, counts],
        "float16": [head, counts, stored],
        "int8": [head, counts, *[scale] * (width > 0), stored],
    }[precision]
    joined = np.concatenate([np.ascontiguousarray(part).view("u1") for part in parts], axis=1)
    payload = np.zeros((n, stride_of(linear, width, cvm, precision)), np.uint8)
    payload[:, : joined.shape[1]] = joined
    return payload, np.concatenate([head, weights, counts], axis=1)


def write(path, ids, payload, removed=None, at_a_time=1 << 30, salt=SALT, **shape):
    """Writes PATH.dictionary and PATH.index; ids in any order."""
    shape = {"linear": True, "width": 8, "cvm": False, "precision": "float32"} | shape
    ids = np.asarray(ids, np.uint64)
    hashes = mix64(ids ^ np.uint64(salt))
    order = np.argsort(hashes)
    with path.with_suffix(".dictionary").open("wb") as file:
        writer = DictionaryWriter(
            file.write,
            salt=salt,
            **shape,
            stride=payload.shape[1],
            records=len(ids),
            removed=0 if removed is None else int(removed.sum()),
            delta=removed is not None,
        )
        for start in range(0, len(ids), at_a_time):
            part = order[start : start + at_a_time]
            writer.add(hashes[part], payload[part], None if removed is None else removed[part])
        index = writer.finish()
    path.with_suffix(".index").write_bytes(index)
    return str(path.with_suffix(".dictionary")), str(path.with_suffix(".index"))


def some_ids(rng, n):
    return np.unique(rng.integers(0, 2**64, n, dtype=np.uint64))


def some_rows(rng, n, columns=9):
    rows = rng.standard_normal((n, columns)).astype("<f4")
    return rows.view("u1").reshape(n, 4 * columns), rows


@pytest.fixture
def small(tmp_path):
    """A dictionary of 1,000 rows of 9 floats: its two paths, ids, rows."""
    rng = np.random.default_rng(3)
    ids = some_ids(rng, 1000)
    payload, rows = some_rows(rng, len(ids))
    return *write(tmp_path / "small", ids, payload), ids, rows


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize(
    ("linear", "width", "cvm"),
    [(True, 8, False), (True, 5, True), (False, 3, True), (True, 0, False), (False, 33, False)],
)
def test_every_shape_by_every_reader(tmp_path, linear, width, cvm, precision):
    rng = np.random.default_rng(width)
    shape = {"linear": linear, "width": width, "cvm": cvm, "precision": precision}
    ids = some_ids(rng, 300)
    payload, rows = payloads_of(rng, len(ids), **shape)
    paths = write(tmp_path / "rows", ids, payload, **shape)
    unknown = some_ids(rng, 20)
    for dictionary in (Dictionary(*paths), Dictionary(paths[0])):
        assert (dictionary.linear, dictionary.width, dictionary.cvm) == (linear, width, cvm)
        assert (dictionary.precision, dictionary.stride) == (precision, payload.shape[1])
        assert (dictionary.rows, dictionary.removed, dictionary.delta) == (len(ids), 0, False)
        assert (dictionary.salt, dictionary.columns) == (SALT, rows.shape[1])
        dictionary.verify()
        floats, known, removed = dictionary.lookup(np.concatenate([ids, unknown, ids[:5]]))
        assert (
            floats.tobytes() == np.concatenate([rows, np.zeros_like(rows[:20]), rows[:5]]).tobytes()
        )
        assert (known == [True] * len(ids) + [False] * 20 + [True] * 5).all()
        assert not removed.any()
    example = EXAMPLE_READER.Dictionary(paths[0])
    example.verify()
    assert [example.find(id) for id in ids.tolist()] == rows.tolist()
    assert [example.find(id) for id in unknown.tolist()] == [None] * 20


def test_the_bytes_do_not_depend_on_how_they_come(tmp_path):
    """Over two blocks of checksums, which records straddle."""
    rng = np.random.default_rng(5)
    ids = some_ids(rng, 60_000)
    payload, rows = some_rows(rng, len(ids))
    whole = [Path(path).read_bytes() for path in write(tmp_path / "whole", ids, payload)]
    paths = write(tmp_path / "parts", ids[::-1], payload[::-1], at_a_time=977)
    assert [Path(path).read_bytes() for path in paths] == whole
    bytes_a_row = sum(map(len, whole)) / len(ids)
    assert 36 + 8 < bytes_a_row < 46
    dictionary = Dictionary(*paths)
    dictionary.verify()
    assert dictionary.lookup(ids)[0].tobytes() == rows.tobytes()
    example = EXAMPLE_READER.Dictionary(paths[0])
    example.verify()
    assert [example.find(int(id)) for id in ids[::997]] == rows[::997].tolist()


def test_the_example_of_the_page(tmp_path):
    page = (ROOT / "docs/formats/dictionary.md").read_text().split("## An example")[1]
    expected = bytes.fromhex("".join(re.findall(r"^    ((?:[0-9a-f]{2} ?)+)$", page, re.M)))
    removed = np.array([False, True])
    rows = np.array([[0.5, -2], [0, 0]], "<f4").view("u1").reshape(2, 8)
    path, _ = write(tmp_path / "page", [7, 8], rows, removed, linear=True, width=1)
    assert Path(path).read_bytes() == expected
    done = subprocess.run([sys.executable, EXAMPLE, "7", path], capture_output=True, text=True)
    assert done.stdout == "[0.5, -2.0]\n", done.stderr


def test_a_stack_of_deltas(tmp_path):
    """Nine layers against a dict of what was written last."""
    rng = np.random.default_rng(8)
    universe = some_ids(rng, 3000)
    expected, layers, examples = {}, [], []
    for number in range(9):
        ids = rng.choice(universe, 900, replace=False)
        payload, rows = some_rows(rng, len(ids))
        removed = rng.random(len(ids)) < 0.3 if number else None
        paths = write(tmp_path / str(number), ids, payload, removed)
        layers.insert(0, Dictionary(*paths[: 2 - number % 2]))
        layers[0].verify()
        examples.insert(0, EXAMPLE_READER.Dictionary(paths[0]))
        gone = np.zeros(len(ids), bool) if removed is None else removed
        got = layers[0].lookup(ids)
        assert (got[1] == ~gone).all() and (got[2] == gone).all()
        for id, row, was_removed in zip(ids.tolist(), rows, gone, strict=True):
            expected[id] = None if was_removed else row
    assert (layers[0].delta, layers[-1].delta) == (True, False)
    assert 0 < layers[0].removed < layers[0].rows
    stack = DictionaryStack(layers)
    rows, known = stack.lookup(universe)
    wanted = [expected.get(id) for id in universe.tolist()]
    assert known.tolist() == [row is not None for row in wanted]
    nothing = np.zeros(9, np.float32)
    assert (rows == [nothing if row is None else row for row in wanted]).all()
    for at in range(0, len(universe), 10):
        assert EXAMPLE_READER.find(examples, int(universe[at])) == rows[at].tolist()
    with pytest.raises(ValueError, match="at most 8 deltas"):
        DictionaryStack([layers[0], *layers])
    with pytest.raises(ValueError, match="cannot be stacked"):
        DictionaryStack(layers[::-1])
    layers[3].close()
    with pytest.raises(ValueError, match="is closed"):
        stack.lookup(universe)


def test_other_dictionaries_are_not_stacked(tmp_path, small):
    ids, removed = np.arange(10), np.zeros(10, bool)
    payload = np.zeros((10, 36), np.uint8)
    base = Dictionary(small[0])
    for number, other in enumerate([{"salt": 5}, {"linear": False, "width": 9}]):
        delta = Dictionary(write(tmp_path / f"{number}", ids, payload, removed, **other)[0])
        with pytest.raises(ValueError, match="cannot be stacked"):
            DictionaryStack([delta, base])


def test_what_is_not_right_is_told_when_opened(tmp_path, small):
    path, index, _, _ = small
    whole = Path(path).read_bytes()

    def opened(data, index=None):
        other = tmp_path / "other.dictionary"
        other.write_bytes(data)
        return Dictionary(str(other), index)

    for at in range(64):
        with pytest.raises(ValueError, match="damaged" if at >= 8 else "no dictionary"):
            opened(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    for size in (8, 63, 71, len(whole) // 2, len(whole) - 1):
        with pytest.raises(ValueError, match="damaged"):
            opened(whole[:size])
    with pytest.raises(ValueError, match="damaged"):
        opened(whole + b"\0")
    for size in (0, 7):
        with pytest.raises(ValueError, match="no dictionary"):
            opened(whole[:size])
    newer = bytearray(whole)
    newer[8:12] = struct.pack("<I", 2)
    newer[60:64] = struct.pack("<I", zlib.crc32(newer[:60]))
    with pytest.raises(ValueError, match="version"):
        opened(newer)
    with pytest.raises(FileNotFoundError, match=r"none\.dictionary"):
        Dictionary(str(tmp_path / "none.dictionary"))
    with pytest.raises(IsADirectoryError):
        Dictionary(str(tmp_path))
    with pytest.raises(ValueError, match=r"small\.index: the index is damaged, or that of another"):
        opened(write_other(tmp_path, small), index)
    Path(index).write_bytes(Path(index).read_bytes()[:-1])
    with pytest.raises(ValueError, match="index is damaged"):
        Dictionary(path, index)


def write_other(tmp_path, small):
    """A dictionary of the same ids, and other rows."""
    _, _, ids, rows = small
    path, _ = write(tmp_path / "alike", ids, (rows + 1).view("u1"))
    return Path(path).read_bytes()


def test_an_index_that_is_not_there_is_made(small):
    path, index, ids, rows = small
    Path(index).unlink()
    dictionary = Dictionary(path, index)
    with ThreadPoolExecutor(8) as threads:
        for payload, known, _ in threads.map(lambda _: dictionary.lookup(ids), range(32)):
            assert known.all() and (payload == rows).all()
    dictionary.verify()
    dictionary.close()
    dictionary.close()
    for call in (
        dictionary.verify,
        lambda: dictionary.lookup(ids),
        lambda: dictionary.records(0, 1),
    ):
        with pytest.raises(ValueError, match="is closed"):
            call()


def test_opening_takes_no_time(tmp_path):
    rng = np.random.default_rng(2)
    ids = some_ids(rng, 300_000)
    paths = write(tmp_path / "large", ids, some_rows(rng, len(ids))[0])
    taken = []
    for _ in range(20):
        start = time.perf_counter()
        Dictionary(*paths).close()
        taken.append(time.perf_counter() - start)
    assert min(taken) < 1e-3


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_same_without_sse2(tmp_path):
    names = ["tests/test_dictionary.c", "tn_columns.c", "tn_message.c"]
    names += [path.name for path in (ROOT / "csrc").glob("tn_dictionary*.c")]
    command = ["cc", "-std=c11", "-O1", "-DTN_NO_SIMD", f"-I{ROOT / 'csrc'}"]
    command += [str(ROOT / "csrc" / name) for name in names]
    program = tmp_path / "scalar"
    subprocess.run([*command, "-o", program, "-lm", "-lpthread"], check=True)
    done = subprocess.run([program, "20", "20"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
