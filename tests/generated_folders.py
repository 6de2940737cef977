"""Generated folders with files of tnctl's and foreign ones, and what is whose by construction."""

import hashlib
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from tnctl import manifest, ownership

LIST = ownership.LISTS[0]
# Names that each format can have, and names that none has.
NAMES = {
    "tnctl checkpoint": [
        "conf.json", "golden.jsonl", "dense.bin", "graph/saved_model.pb",
        "graph/variables/variables.index", "extra/running", "tables/embedding8/00000.rows",
        "tables/embedding8/00001.rows.zst", "tables/linear/sketch.bin",
    ],
    "tnctl graph": [
        "saved_model.pb", "fingerprint.pb", "variables/variables.index", "golden.jsonl",
        "variables/variables.data-00000-of-00001", "aot/32/graph.o", "aot/compiled.h",
        "assets.extra/tf_serving_warmup_requests",
    ],
    "tnctl embeddings": [
        "user.parquet", "user.removed.parquet", "item.dictionary", "item.index", "golden.jsonl",
        "tag.txt",
    ],
    "tnctl prepared": [
        "train/part-00000.parquet", "train/first.json", "validation/part-00000.parquet",
        "test/part-00012.parquet",
    ],
}  # fmt: skip
FOREIGN = [
    "thesis.tex", "notes", ".hidden", "photos/cat.jpg", "tables/embedding8/00000.rows.bak",
    "variables/mine", "train/raw/data.csv", "step-0000000001/dense.bin", "user.parquet.crc", "a b",
    "graph/variables/variables.index2", ".x.0123456789abcdef.tnctl-part", "manifest.json.old",
]  # fmt: skip
HOSTILE = [
    "../outside/secret", "/etc/hosts", "thesis.tex", "photos", "a/../../outside/secret", "",
    "photos/cat.jpg", "./notes", "tables//x", ".tnctl-lock",
]  # fmt: skip


@dataclass
class Tree:
    """A folder of a format; `owned` and `foreign` are relative names with their bytes."""

    folder: Path
    format: ownership.Format
    owned: dict[str, bytes] = field(default_factory=dict)
    foreign: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


def entry(data: bytes) -> dict:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def stored(folder):
    """Every regular file below a folder with its bytes, and every link with its target."""
    held = {}
    for above, subfolders, names in os.walk(folder):
        for name in [*names, *subfolders]:
            path = Path(above, name)
            if path.is_symlink():
                held[path.relative_to(folder).as_posix()] = os.readlink(path)
            elif path.is_file():
                held[path.relative_to(folder).as_posix()] = path.read_bytes()
    return held


def free(tree: Tree, name: str) -> bool:
    """Whether nothing stands at a name, nor at a part of it."""
    path = tree.folder / name
    above = [tree.folder.joinpath(*name.split("/")[:n]) for n in range(1, name.count("/") + 1)]
    return not os.path.lexists(path) and not any(
        os.path.lexists(part) and (part.is_symlink() or not part.is_dir()) for part in above
    )


def grow(folder: Path, outside: Path, chance: random.Random) -> Tree:
    """Make a folder with a random state; `outside` has files that links and names may point to."""
    format_ = ownership.FORMATS[chance.choice(list(NAMES))]
    tree = Tree(folder, format_)
    folder.mkdir(parents=True)
    names = chance.sample(NAMES[format_.text], chance.randint(1, 4))
    data = {name: chance.randbytes(chance.randint(0, 20)) for name in names}
    state = chance.choice(["manifest", "list", "both", "none", "damaged", "other", "hostile"])
    stored = dict(data)
    for name in chance.sample(names, chance.randint(0, 1)):
        if chance.random() < 0.5:
            stored[name] = chance.choice(
                [b"", b"x", data[name] + b"!", b"another one, of the user's"]
            )
    for name in names:
        if chance.random() < 0.9 and free(tree, name):
            put(folder / name, stored[name])
            is_listed = state in ("list", "both")
            with_checksum = state in ("manifest", "both")
            is_named = with_checksum and stored[name] == data[name]
            (tree.owned if is_listed or is_named else tree.foreign)[name] = stored[name]
    documents(tree, state, data, chance)
    strangers(tree, outside, chance)
    return tree


def documents(tree: Tree, state: str, data: dict, chance: random.Random) -> None:
    """The manifest and the list of an earlier version that a state has."""
    of, name = tree.format.text, tree.format.manifest
    assert name is not None
    body = {"format": of, "version": 1, "files": {n: entry(d) for n, d in data.items()}}
    listed = {"format": "tnctl files", "version": 1, "of": of, "names": [*data], "files": {}}
    if state in ("manifest", "both"):
        put_owned(tree, name, manifest.sealed(body))
    if state in ("list", "both"):
        put_owned(tree, LIST, manifest.sealed(listed))
    if state == "damaged":
        if chance.random() < 0.5:
            strange(tree, name, manifest.sealed(body).replace(b"version", b"vversion"))
        else:
            cut = manifest.sealed(listed)[: chance.choice([0, 5, 100, -30])]
            put_owned(tree, LIST, cut)  # the list itself, and no file that it names
    if state == "other":
        other = chance.choice([text for text in NAMES if text != of])
        strange(tree, name, manifest.sealed(body | {"format": other}))
    if state == "hostile":
        lie = chance.choice([1, {"bytes": 1, "sha256": "0" * 64}, entry(b"secret")])
        strange(tree, name, manifest.sealed(body | {"files": {chance.choice(HOSTILE): lie}}))


def strangers(tree: Tree, outside: Path, chance: random.Random) -> None:
    """Foreign files, symbolic links to files and folders outside, and what looks like ours."""
    for name in chance.sample(FOREIGN, chance.choice([0, 0, 1, 2])):
        if free(tree, name):
            strange(tree, name, b"mine")
    if chance.random() < 0.3:
        for name in chance.sample(NAMES[tree.format.text], 2):
            if free(tree, name):
                if chance.random() < 0.5:
                    (tree.folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (tree.folder / name).symlink_to(outside / "secret")
                    tree.links[name] = str(outside / "secret")
                else:
                    listed = tree.folder / LIST
                    if name.encode() not in (listed.read_bytes() if listed.exists() else b""):
                        strange(tree, name, b"mine")
    top = chance.choice(["tables", "variables", "train", "tensorboard"])
    if chance.random() < 0.2 and not os.path.lexists(tree.folder / top):
        (tree.folder / top).symlink_to(outside)
        tree.links[top] = str(outside)


def put_owned(tree: Tree, name: str, data: bytes) -> None:
    put(tree.folder / name, data)
    tree.owned[name] = data


def strange(tree: Tree, name: str, data: bytes) -> None:
    put(tree.folder / name, data)
    tree.foreign[name] = data
