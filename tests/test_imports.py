"""Imports point one way, and each heavy library is known to one part only (docs/design.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tnctl"

# Each part may import those before it. Parts of the ground floor know errors, masking, limits and
# which URLs are plain, and no other.
GROUND = [
    "limits", "masking", "errors", "file_urls", "documents", "files", "progress", "shipped",
]  # fmt: skip
LAYERS = [
    *GROUND, "memory_limits", "folders", "manifest", "ownership", "outputs", "schema",
    "saved_conf", "tables",
    "data", "model", "checkpoint", "training", "serving", "cli",
]  # fmt: skip

# Library -> the parts that may import it.
OWNERS = {
    "hydra": {"cli", "schema"},
    "omegaconf": {"cli", "schema"},
    "yaml": {"cli"},
    "cffi": {"tables"},
    "tnctl._tables": {"tables"},
    "fsspec": {"files"},
    "rich": {"progress"},
    "tensorflow": {"data", "model", "training", "serving"},
    "google": {"data", "serving"},
    "keras": {"model", "training", "serving"},
    "tensorboard": {"training"},
    "grpc": {"cluster"},
    "ray": {"launch"},
    "redis": {"serving"},
}
TOP = {"tnctl": "cli", "tnctl.__main__": "cli"}  # the version, and `python -m tnctl`


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def part_of(module):
    return TOP.get(module) or module.split(".")[1]


def imports_of(path):
    """Every module that a file imports, wherever in it, `from a import b` as a and as a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            argument = node.args[0]
            text = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
            found.add(text.value.rstrip("."))
    return found


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "_tables.py"]


def test_there_are_files():
    assert {part_of(name_of(path)) for path in FILES} == set(LAYERS)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_downwards(path):
    part = part_of(name_of(path))
    for module in imports_of(path):
        if not module.startswith("tnctl."):
            continue
        other = module.split(".")[1]
        if other in ("__version__", "_tables", "recipes") or other == part:
            continue
        assert other in LAYERS, f"{module} is of no known part"
        assert LAYERS.index(other) < LAYERS.index(part), f"{part} imports {module}"
        of_ground = ("errors", "masking", "limits", "file_urls")
        assert part not in GROUND or other in of_ground, f"{part} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_libraries_have_owners(path):
    part = part_of(name_of(path))
    for module in imports_of(path):
        for library, owners in OWNERS.items():
            if module == library or module.startswith(f"{library}."):
                assert part in owners, f"{part} imports {module}"


def test_data_knows_tensorflow_only_to_decode_records():
    users = {
        name_of(path)
        for path in FILES
        if part_of(name_of(path)) == "data"
        and any(module.startswith(("tensorflow", "google")) for module in imports_of(path))
    }
    assert users == {"tnctl.data.tfrecord_files"}


def test_only_model_loads_recipes():
    users = {
        part_of(name_of(path))
        for path in FILES
        if any(m.startswith("tnctl.recipes") for m in imports_of(path))
    }
    assert users == {"model"}


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.py")), ids=lambda p: p.stem)
def test_recipes_know_only_the_model(path):
    standard = {"collections", "typing", "math"}
    for module in imports_of(path):
        assert module.split(".")[0] in standard or module.startswith("tnctl.model"), module
