"""Variables are named after what they hold: no function binds a name that says nothing."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
C_SUFFIXES = {".c", ".h", ".cc"}
SAY_NOTHING = {"one", "found", "told", "some", "here", "own", "item", "asked"}
PYTHON = ("tnctl", "recipes", "tests", "benchmarks", "examples", "csrc")
C = ("examples", "benchmarks", "csrc/tests")
C_NO_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
C_NAME = re.compile(r"(?<![\w.>])[a-z]\w*")


def bound(function):
    """The names that a function binds, its parameters and those of functions in it too."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler | ast.alias) and node is not function:
            yield (node.asname if isinstance(node, ast.alias) else node.name) or ""
        elif isinstance(node, ast.FunctionDef) and node is not function:
            yield node.name


def say_nothing(text):
    """(function, name) for each name without a meaning; `before` has one beside `after` only."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            names = set(bound(node))
            for name in sorted(names & SAY_NOTHING):
                yield getattr(node, "name", "lambda"), name
            if "before" in names and not any("after" in name for name in names):
                yield getattr(node, "name", "lambda"), "before"


def c_say_nothing(text):
    without = C_NO_CODE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(without.splitlines(), 1):
        for name in C_NAME.findall(line):
            if name in SAY_NOTHING or name == "before":
                yield number, name


@pytest.mark.parametrize("folder", PYTHON)
def test_names_of_python(folder):
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    for path in paths:
        assert list(say_nothing(path.read_text())) == [], path


@pytest.mark.parametrize("folder", C)
def test_names_of_c(folder):
    paths = [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in C_SUFFIXES]
    assert paths
    for path in paths:
        assert list(c_say_nothing(path.read_text())) == [], path


@pytest.mark.parametrize(
    "text",
    [
        "def f(one):\n    return one\n",
        "def f(rows):\n    return [found for found in rows]\n",
        "class A:\n    def f(self):\n        for item in self:\n            print(item)\n",
        "def f():\n    with open('a') as own:\n        pass\n",
        "f = lambda told: told\n",
        "def f():\n    before = 1\n    return before\n",
        "def f():\n    def some():\n        pass\n",
    ],
)
def test_names_that_say_nothing_are_seen(text):
    assert list(say_nothing(text))


def test_a_pair_of_before_and_after_says_something():
    assert not list(say_nothing("def f():\n    before, after = 1, 2\n    return before, after\n"))


def test_names_of_c_are_seen():
    text = '/* one */\nstatic int f(int one) {\n    return a->one + g("one"); // found\n}\n'
    assert list(c_say_nothing(text)) == [(2, "one")]
