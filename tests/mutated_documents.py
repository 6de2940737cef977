"""Structure-aware damage to JSON documents, with checksums made to fit.

`mutations` damages one place of a document at a time: a key goes, a value becomes another type, a
number negative, huge or NaN, a name or a path hostile, a list an object. `texts` are the results
as bytes, sealed as a manifest is where the document has files.
"""

import copy
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Any

from tnctl import documents, manifest
from tnctl.manifest import CHECKSUM

Path = tuple[str | int, ...]  # keys and places from the root to a value
DEEP = 300

HOSTILE_TEXTS = (
    "../../x", "/etc/passwd", "a/../../b", "graph//x", "graph/../../x", "C:\\x", "memory://x",
    "file:///etc/passwd", ".hidden", "", " ", "a-b", "é", "name\n", "x\0y", "\ud800", "~/x",
    "${oc.env:HOME}", "{day}", "*", "x" * 5000, "1", "-1", "nan", "[/x]", "\x1b[2J",
    "tables/embedding3/00000.rows", "step-0000000010", "step-0000000020",
    "0" * 64, "f" * 16, "f" * 64, "adam", "linear", "<f8", "<u8", "object",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 2, 255, 2**16, 2**31, 2**32, 2**60, 2**63, 2**64, 10**30, -(2**63), -(2**70),
    0.5, -0.5, 1e-320, 1e30, 1e308, float("nan"), float("inf"), float("-inf"), True, False,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, 0, 1.5, "text", [], {}, [None], {"a": 1}, [[1, 2]])


def places(document: Any, path: Path = ()) -> Iterator[Path]:
    """Every value of a document, itself too."""
    yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*path, key))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from places(value, (*path, number))


def at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


def nested() -> Any:
    value: Any = 1
    for _ in range(DEEP):
        value = [value]
    return value


def _delete(_: random.Random, parent: Any, key: Any) -> str:
    del parent[key]
    return "deleted"


def _other_type(chance: random.Random, parent: Any, key: Any) -> str:
    parent[key] = chance.choice(OTHERS)
    return f"= {parent[key]!r}"


def _number(chance: random.Random, parent: Any, key: Any) -> str:
    parent[key] = chance.choice(NUMBERS)
    return f"= {parent[key]!r}"


def _near(chance: random.Random, parent: Any, key: Any) -> str:
    value = parent[key]
    if isinstance(value, int | float) and not isinstance(value, bool):
        parent[key] = value + chance.choice((-1, 1, 7, 256))
    elif isinstance(value, str) and value:
        place = chance.randrange(len(value))
        parent[key] = value[:place] + chance.choice("/.a0 \n") + value[place + 1 :]
    elif isinstance(value, bool):
        parent[key] = not value
    else:
        return _other_type(chance, parent, key)
    return f"= {parent[key]!r}"


def _text(chance: random.Random, parent: Any, key: Any) -> str:
    parent[key] = chance.choice(HOSTILE_TEXTS)
    return f"= {parent[key][:40]!r}"


def _joined_text(chance: random.Random, parent: Any, key: Any) -> str:
    value = parent[key]
    if not isinstance(value, str):
        return _text(chance, parent, key)
    hostile = chance.choice(HOSTILE_TEXTS)
    parent[key] = chance.choice((f"{hostile}/{value}", f"{value}/{hostile}", value + hostile))
    return f"= {parent[key][:40]!r}"


def _renamed_key(chance: random.Random, parent: Any, key: Any) -> str:
    if isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
        return "twice"
    renamed = chance.choice(HOSTILE_TEXTS)
    items = [(renamed if name == key else name, value) for name, value in parent.items()]
    parent.clear()
    parent.update(items)
    return f"renamed {renamed[:40]!r}"


def _deep(_: random.Random, parent: Any, key: Any) -> str:
    parent[key] = nested()
    return "too deep"


def _shuffled(chance: random.Random, parent: Any, key: Any) -> str:
    value = parent[key]
    if isinstance(value, list) and value:
        parent[key] = chance.choice((value[::-1], value + value, value[:-1], value * 3))
        return "in another order, or more or fewer"
    if isinstance(value, dict):
        parent[key] = list(value) if chance.random() < 0.5 else list(value.items())
        return "a list"
    return _near(chance, parent, key)


def _moved(chance: random.Random, parent: Any, key: Any) -> str:
    """The value of a neighbour, which is of the right type more often than not."""
    keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    other = chance.choice(keys)
    parent[key] = copy.deepcopy(parent[other])
    return f"= that of {other}"


Damage = Callable[[random.Random, Any, Any], str]
DAMAGES: tuple[Damage, ...] = (
    _delete, _other_type, _number, _near, _text, _joined_text, _renamed_key, _deep, _shuffled,
    _moved,
)  # fmt: skip


def mutations(document: dict[str, Any], seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Damaged copies of a document without end, each with words for the damage.

    Places near the root come as often as deep ones: a level is chosen first.
    """
    chance = random.Random(seed)
    by_level: dict[int, list[Path]] = {}
    for path in places(document):
        if path:
            by_level.setdefault(len(path), []).append(path)
    levels = list(by_level)
    while True:
        damaged = copy.deepcopy(document)
        changes = []
        for _ in range(chance.choice((1, 1, 1, 2))):
            path = chance.choice(by_level[chance.choice(levels)])
            try:
                parent = at(damaged, path[:-1])
                words = chance.choice(DAMAGES)(chance, parent, path[-1])
            except (
                KeyError,
                IndexError,
                TypeError,
                AttributeError,
            ):  # an earlier damage took it away
                continue
            changes.append(f"{'.'.join(map(str, path))} {words}")
        yield "; ".join(changes), damaged


def json_text(document: Any) -> bytes:
    """JSON, also of what JSON does not have: NaN and lone surrogates."""
    return json.dumps(document, indent=2).encode()


def sealed(document: dict[str, Any]) -> bytes:
    """A manifest with the checksum that it needs, whatever is in it."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    text = json_text(body).removesuffix(b"\n}") + b",\n"
    digest = hashlib.sha256(text).hexdigest()
    return text + f'{CHECKSUM}{digest}"\n}}\n'.encode()


def reseal(folder: FilePath, name: str = manifest.NAME, **changed: Any) -> None:
    """Make a manifest true for the files that are there now, with other values for some keys."""
    content = json.loads((folder / name).read_text())
    del content["sha256"]
    inventory = manifest.Inventory(str(folder))
    for file in content["files"]:
        if (folder / file).exists():
            inventory.write(file, (folder / file).read_bytes())
    entries = {file: documents.plain(entry) for file, entry in inventory.files.items()}
    content |= {**changed, "files": entries}
    (folder / name).write_bytes(manifest.sealed(content))
