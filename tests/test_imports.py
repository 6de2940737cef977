"""Imports point one way, and each heavy library is known to one part only (docs/design.md)."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tnctl"

# Each part may import those before it. Parts of the ground floor know errors, masking and limits,
# and no other.
GROUND = [
    "limits", "masking", "errors", "documents", "files", "progress", "shipped",
]  # fmt: skip
LAYERS = [
    *GROUND, "system", "optimizer_table",
    "manifest", "ownership", "outputs", "schema", "saved_conf", "tables",
    "data", "model", "composing", "checkpoint", "evaluation", "starting", "training", "serving",
    "tensornet", "cluster", "launch", "api", "cli",
]  # fmt: skip
# Parts that stand beside each other: neither imports the other, whatever their order above.
SIBLINGS = [{"training", "serving"}]

# Library -> the parts that may import it.
OWNERS = {
    "hydra": {"composing", "api"},
    "omegaconf": {"composing"},
    "yaml": {"composing"},
    "cffi": {"tables"},
    "tnctl._tables": {"optimizer_table", "tables"},
    "fsspec": {"files"},
    "rich": {"progress"},
    "tensorflow": {"data", "model", "evaluation", "training", "serving"},
    "google": {"data", "serving"},
    "keras": {"model", "training", "serving"},
    "tensorboard": {"training"},
    "grpc": {"cluster"},
    "ray": {"launch"},
    "lightgbm": {"training"},
    "redis": {"serving"},
    "optuna": {"training"},
    "mlflow": {"training"},
}
TOP = {"tnctl": "api", "tnctl.__main__": "cli"}  # for Python, and `python -m tnctl`


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def part_of(module):
    return TOP.get(module) or module.split(".")[1]


def imports_of(path):
    """Every module that a file imports, wherever in it, `from a import b` as a and as a.b."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            modules.add(node.module)
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            argument = node.args[0]
            text = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
            modules.add(text.value.rstrip("."))
    return modules


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "_tables.py"]


def test_there_are_files():
    assert {part_of(name_of(path)) for path in FILES} == set(LAYERS)


def violations(part, modules):
    """The modules, of those that a file of `part` imports, that it must not import."""
    for module in sorted(modules):
        if not module.startswith("tnctl."):
            continue
        other = module.split(".")[1]
        if other in ("__version__", "_tables", "recipes") or other == part:
            continue
        assert other in LAYERS, f"{module} is of no known part"
        if (
            LAYERS.index(other) > LAYERS.index(part)
            or {part, other} in SIBLINGS
            or (part in GROUND and other not in ("errors", "masking", "limits"))
        ):
            yield module


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_downwards(path):
    part = part_of(name_of(path))
    assert list(violations(part, imports_of(path))) == [], f"imported by a file of {part}"


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
    assert users == {"tnctl.data.formats.tfrecord_files"}


def test_only_the_calls_of_a_cluster_know_grpc():
    users = {name_of(path) for path in FILES if "grpc" in imports_of(path)}
    assert users == {"tnctl.cluster.transport.rpc"}


def test_only_model_loads_recipes():
    users = {
        part_of(name_of(path))
        for path in FILES
        if any(m.startswith("tnctl.recipes") for m in imports_of(path))
    }
    assert users == {"model"}


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.py")), ids=lambda p: p.stem)
def test_recipes_know_only_the_model(path):
    allowed = ("tnctl.model", "keras", "collections", "itertools", "math", "typing")
    for module in imports_of(path):
        known = any(f"{module}.".startswith(f"{name}.") for name in allowed)
        assert known, f"{module} is none of {', '.join(allowed)}"


# ---- C -----------------------------------------------------------------------

CSRC = ROOT / "csrc"
PUBLIC_HEADERS = ("tnctl.h", "tn_dictionary.h", "tn_time.h")  # declare functions of many files
C_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# clang-format puts every definition at the start of a line, and `{` on its last one.
C_FUNCTION = re.compile(r"^(?!static|typedef)\w[\w \*]*?\b(tn_\w+)\([^;{]*\) \{", re.MULTILINE)


def c_dependencies(folder):
    """What each part of the C library (a name with its .c and .h) includes or calls."""
    texts = {
        path: C_COMMENT.sub("", path.read_text())
        for path in sorted(folder.glob("tn*.[ch]"))
        if path.name not in PUBLIC_HEADERS
    }
    part_of_function = {
        name: path.stem
        for path, text in texts.items()
        if path.suffix == ".c"
        for name in C_FUNCTION.findall(text)
    }
    parts = {path.stem: set() for path in texts}
    for path, text in texts.items():
        headers = set(re.findall(r'^#include "(\w+\.h)"', text, re.MULTILINE))
        uses = {Path(header).stem for header in headers - set(PUBLIC_HEADERS)}
        without_strings = re.sub(r'"[^"\n]*"', "", text)
        words = set(re.findall(r"\btn_\w+", without_strings)) & part_of_function.keys()
        parts[path.stem] |= (uses | {part_of_function[word] for word in words}) - {path.stem}
    return parts


def test_c_files_are_in_no_circle():
    parts = c_dependencies(CSRC)
    assert parts["tn_find"] >= {"tn_batch", "tn_index", "tn_rows", "tn_admission", "tn_thread_pool"}
    try:
        list(TopologicalSorter(parts).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of C files: {' -> '.join(error.args[1])}")


# ---- Files -------------------------------------------------------------------


def file_dependencies(folder):
    """What each Python file of the package in `folder` imports of it, by module names."""
    paths = [path for path in folder.rglob("*.py") if path.name != "_tables.py"]
    modules = {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in paths
    }
    dependencies = {}
    for path in paths:
        module = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        uses = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                uses |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    uses.add(name if name in modules else node.module)
        dependencies[module] = (uses & modules) - {module}
    return dependencies


def test_python_files_are_in_no_circle():
    dependencies = file_dependencies(PACKAGE)
    assert "tnctl.training.loop" in dependencies["tnctl.training.run"]
    try:
        list(TopologicalSorter(dependencies).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of files: {' -> '.join(error.args[1])}")


def readers_of_one_section(tree):
    """The functions that take a Conf, pass it to nobody, and read one section of it."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for argument in [*function.args.args, *function.args.kwonlyargs]:
            if argument.annotation is None or ast.unparse(argument.annotation) != "Conf":
                continue
            inside = [node for statement in function.body for node in ast.walk(statement)]
            is_conf = [isinstance(node, ast.Name) and node.id == argument.arg for node in inside]
            sections = [
                node.attr
                for node in inside
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == argument.arg
            ]
            if sum(is_conf) == len(sections) and len(set(sections)) == 1:
                yield function.name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_function_takes_the_section_that_it_reads(path):
    assert list(readers_of_one_section(ast.parse(path.read_text()))) == []


def test_python_files_and_functions_have_bounds():
    for path in FILES:
        text = path.read_text()
        assert len(text.splitlines()) <= 800, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"
