"""Small checkpoints made of plain dicts of rows, for the tests that read them."""

import dataclasses
import json
from typing import Any

import numpy as np

from tnctl import documents
from tnctl.checkpoint import dense_file, rows
from tnctl.checkpoint.chain import open_checkpoint
from tnctl.checkpoint.document import CheckpointManifest
from tnctl.checkpoint.merging import KeyHashes
from tnctl.manifest import Inventory
from tnctl.tables import REMOVED_DTYPE

TABLE = "embedding3"
GROUPS = {"user": 0, "item": 1, "shop": 5}
DTYPE = np.dtype(
    [
        ("id", "<u8"),
        ("group", "<u2"),
        ("flags", "<u2"),
        ("changed", "<u4"),
        ("linear.accumulator", "<f4", (1,)),
        ("embedding.accumulator", "<f4", (1,)),
        ("linear", "<f4", (1,)),
        ("embedding", "<f4", (3,)),
        ("show", "<f4", (1,)),
        ("click", "<f4", (1,)),
    ]
)
OPTIMIZER = {
    "name": "adagrad", "learning_rate": 0.05, "epsilon": 1e-8, "initial_accumulator": 1e-6,
}  # fmt: skip
SGD = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.0, "nesterov": False}
VARIABLES = [{"name": "deep/kernel", "shape": [3, 2]}, {"name": "deep/bias", "shape": [2]}]
DAYS = [[738_000, 1], [738_001, 11], [738_003, 21]]
DECAY = 0.5


@dataclasses.dataclass
class Saved:
    """What a checkpoint was made of: all rows of its model, by (number of the group, id)."""

    folder: str
    step: int
    rows: dict[tuple[int, int], Any]
    removed: dict[tuple[int, int], int]  # key -> step, of all that are kept
    kernel: Any


def keys():
    return KeyHashes({number: name for name, number in GROUPS.items()})


def in_order(records):
    """Records in the order of (hash, group)."""
    return records[np.lexsort((records["group"], keys().hashes(records)))]


def as_array(records, dtype=None):
    """Rows as an array in the order of a file."""
    dtype = DTYPE if dtype is None else dtype
    return in_order(np.array(list(records), dtype)) if records else np.empty(0, dtype)


def history(output, steps=(10, 20, 30, 40), full_every=4, count=400, seed=3, suffix="", files=1):
    """The checkpoints of a run that adds, changes and removes rows; a list of Saved."""
    chance = np.random.default_rng(seed)
    there: dict[tuple[int, int], Any] = {}
    removed: dict[tuple[int, int], int] = {}
    saved: list[Saved] = []
    kernel = chance.normal(size=6).astype("<f4")
    for number, step in enumerate(steps):
        previous = steps[number - 1] if number else 0
        for _ in range(count if not number else count // 4):
            key = (int(chance.choice([*GROUPS.values()])), int(chance.integers(1, 3 * count)))
            there[key] = record(chance, key, previous + 1 + int(chance.integers(step - previous)))
            removed.pop(key, None)
        for key in [*there][:: 37 if number else 10**9]:
            del there[key]
            removed[key] = step
        kernel = kernel + np.float32(0.25)
        folder = f"{output}/checkpoints/step-{step:010d}"
        is_full = number % full_every == 0
        parent = None if is_full else open_checkpoint(saved[-1].folder)
        since = 0 if parent is None else parent.step
        write(
            folder,
            step,
            [row for row in there.values() if int(row["changed"]) > since],
            there,
            {key: at for key, at in removed.items() if parent is None or at > since},
            kernel,
            parent,
            suffix,
            files,
        )
        saved.append(Saved(folder, step, dict(there), dict(removed), kernel))
    return saved


def record(chance, key, step):
    """A row with some weights."""
    row = np.zeros((), DTYPE)
    row["group"], row["id"], row["changed"] = key[0], key[1], step
    for name in ("linear", "embedding"):
        row[name] = chance.normal(size=row[name].shape)
    row["linear.accumulator"] = row["embedding.accumulator"] = chance.random()
    row["show"] = chance.integers(1, 100)
    row["click"] = chance.integers(0, int(row["show"][0]) + 1)
    return row


def golden_line(user, **more):
    """A line of golden.jsonl."""
    line = {"row": {"user": user}, "ids": {}, "logits": {"label": 0}, "predictions": {"label": 0.5}}
    return json.dumps(line | more).encode() + b"\n"


def write(folder, step, changed_rows, there, removed, kernel, parent=None, suffix="", files=1):
    """A checkpoint with the rows `own` in its files, of a model with the rows `there`."""
    inventory = Inventory(str(folder))
    table = write_table(inventory, changed_rows, there, removed, suffix, files)
    write_further_files(inventory, step, kernel)
    content = documents.plain(manifest_content(step, table, parent))
    typed = documents.parse(CheckpointManifest, json.dumps(content).encode())
    return inventory.complete(typed)


def write_table(inventory, changed, there, removed, suffix, files):
    """The files of the table; its entry in the manifest."""
    written = write_rows(inventory, as_array(changed), suffix, files)
    with inventory.writing(f"tables/{TABLE}/sketch.bin") as stream:
        stream.write(b"tnctlskt" + (1).to_bytes(4, "little") + bytes(4) + bytes(range(256)))
    gone = as_array([(key[1], key[0], at) for key, at in removed.items()], REMOVED_DTYPE)
    shows = "show" in DTYPE.names
    linear = OPTIMIZER if "linear.accumulator" in DTYPE.names else SGD
    return {
        "name": TABLE,
        "rows": len(there),
        "slots": [*GROUPS],
        "segments": [
            {"name": "linear", "width": 1, "output": "sum", "optimizer": linear},
            {"name": "embedding", "width": 3, "output": "concat", "optimizer": OPTIMIZER},
        ],
        "groups": group_entries(there),
        "life": {
            "shows": shows,
            "cvm": False,
            "decay": dict.fromkeys(GROUPS, DECAY) if shows else None,
        },
        "record": [
            {"name": name, "type": kind.base.str, "count": kind.itemsize // kind.base.itemsize}
            for name, (kind, *_) in DTYPE.fields.items()
        ],
        "files": written,
        "tombstones": rows.write_tombstones(
            inventory.writing, f"tables/{TABLE}/tombstones.bin", [gone], {}
        ),
        "sketch": {"file": f"tables/{TABLE}/sketch.bin", "bytes": 256},
    }


def write_rows(inventory, records, suffix, files):
    """Sorted records in about so many files; the entries of the files."""
    hashes = keys().hashes(records)

    def between(first, last):
        yield records[(hashes >= np.uint64(first)) & (hashes <= np.uint64(last))]

    keep, rows.BYTES_PER_FILE = rows.BYTES_PER_FILE, max(1, records.nbytes // files)
    try:
        count = rows.files_needed(len(records), DTYPE.itemsize)
        names = [rows.file_name(f"tables/{TABLE}", index, suffix) for index in range(count)]
        hashes_of = rows.ranges(count)
        return rows.write_files(inventory.writing, names, hashes_of, DTYPE.itemsize, between)
    finally:
        rows.BYTES_PER_FILE = keep


def group_entries(there):
    """The share groups with their counts, as the manifest has them."""
    numbers = [number for number, _ in there]
    return [
        {
            "name": name,
            "number": number,
            "rows": numbers.count(number),
            "admitted": numbers.count(number) + 7,
            "waiting": 3,
            "evicted": 7,
        }
        for name, number in GROUPS.items()
    ]


def write_further_files(inventory, step, kernel):
    """The files beside those of the table: dense weights, conf, golden rows, and any others."""
    with inventory.writing(dense_file.NAME) as stream:
        stream.write(dense_file.HEADER.pack(dense_file.MAGIC, 1, len(VARIABLES)))
        stream.write(np.concatenate([kernel, np.zeros(2 + 8 + 1)]).astype("<f4").tobytes())
    inventory.write(
        "conf.json", json.dumps({"seed": step, "evaluation": {"monitor": "auc"}}).encode()
    )
    inventory.write("golden.jsonl", b"".join(map(golden_line, ("u1", None))))
    inventory.write("extra/running", bytes(range(64)))
    inventory.write("graph/saved_model.pb", b"a graph")


def manifest_content(step, table, parent):
    """The values of manifest.json but its files; a delta where there is a parent."""
    evaluation = {"step": step, "epoch": 1, "validation": {"auc": 0.5 + step / 1000}}
    return {
        "format": CheckpointManifest.FORMAT,
        "version": 1,
        "tnctl": "0.1.0",
        "kind": "delta" if parent else "full",
        "parent": parent and {"folder": parent.name, "sha256": parent.manifest.sha256},
        "saved": "2026-01-02T03:04:05+00:00",
        "clock": {"step": step, "days": [day for day in DAYS if day[1] <= step]},
        "position": {
            "day": "2021-07-24",
            "epoch": 0,
            "window": 0,
            "offset": 0,
            "passes": 3,
            "units": {
                "workers": 3,
                "count": 9,
                "sha256": "a" * 64,
                "skipped": 1,
                "done": [[0, 3], [6, 6]],
                "open": [[4, 1, 2], [5, 0, 64]],
            },
        },
        "finished": False,
        "recipe": {"name": "deepfm", "sha256": "0" * 64},
        "statistics": {"standardize": {}, "boundaries": {}, "vocabularies": {}},
        "tables": [table],
        "dense": {
            "file": dense_file.NAME,
            "optimizer": OPTIMIZER,
            "step": step,
            "states": ["accumulator"],
            "variables": VARIABLES,
            "moving": [{"name": "norm/mean", "shape": [1]}],
        },
        "heads": ["label"],
        "logit_correction": 0.0,
        "graph": "graph",
        "conf": "conf.json",
        "golden": {"file": "golden.jsonl", "rows": 2},
        "metrics": {
            "epochs": [],
            "evaluations": [evaluation],
            "watch": {"best": 0.52, "best_step": 20},
        },
        "data": [],
        "days": [],
    }
