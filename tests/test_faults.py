"""Seeded faults are applied where their lines are, and tell which tests ran them."""

import ast
import sqlite3

import faults
import pytest

SOURCE = "def f(x):\n    if x < 1:\n        g(x)\n    return x\n"
FAULT = faults.Fault("a:2", "tnctl/a.py", 2, "condition", "    if x < 1:", "    if x <= 1:")


def test_each_fault_is_an_edit_of_code():
    listed = faults.read_faults()
    assert len({fault.name for fault in listed}) == len(listed) == 150
    for fault in listed:
        assert fault.old != fault.new
        assert fault.file.startswith(("tnctl/", "recipes/"))


@pytest.mark.parametrize("moved", ["tnctl/a.py", "tnctl/data/b.py"])
def test_a_fault_is_applied_where_its_lines_are(tmp_path, moved):
    path = tmp_path / moved
    path.parent.mkdir(parents=True)
    path.write_text("class A:\n" + "".join(f"    {line}\n" for line in SOURCE.splitlines()))
    file, index = faults.locate(tmp_path, FAULT)
    assert (file, index) == (path, 2)
    assert "\n        if x <= 1:\n            g(x)\n" in faults.replaced(path.read_text(), 2, FAULT)


def test_a_fault_whose_lines_are_gone_or_twice_elsewhere_is_not_applied(tmp_path):
    (tmp_path / "tnctl").mkdir()
    (tmp_path / "tnctl" / "b.py").write_text(SOURCE.replace("<", ">"))
    assert faults.locate(tmp_path, FAULT) is None
    (tmp_path / "tnctl" / "b.py").write_text(SOURCE + SOURCE)
    assert faults.locate(tmp_path, FAULT) is None


def test_edits_are_of_code_and_no_messages():
    text = 'def f(x: int = 0):\n    "1 < 2"\n    if x < 3:\n        raise E(f(1, 2))\n    g(x, y)\n'
    edits = {(kind, new) for kind, _, new in faults.Sites(text).edits}
    assert edits == {
        ("condition", "x <= 3"), ("number", "4"), ("arguments", "g(y, x)"),
        ("dropped call", "pass"),
    }  # fmt: skip
    for kind, node, new in faults.Sites(text).edits:
        old, lines, _ = faults.edited(text, node, new)
        assert text.count("\n".join(old)) == 1
        assert ast.parse(text.replace("\n".join(old), "\n".join(lines))), kind


def test_tests_of_few_lines_come_first_and_cases_of_one_function_last(tmp_path):
    database = sqlite3.connect(tmp_path / "coverage")
    database.executescript(
        "CREATE TABLE context (id, context); CREATE TABLE file (id, path);"
        "CREATE TABLE line_bits (file_id, context_id, numbits)"
    )
    path = tmp_path / "checkout" / "tnctl" / "a.py"
    (tmp_path / "checkout" / "tests").mkdir(parents=True)
    (tmp_path / "checkout" / "tests" / "test_b.py").write_text("from tnctl import a\n")
    database.execute("INSERT INTO file VALUES (1, ?)", [str(path)])
    lines = {
        "": [2],
        "t.py::f[1] (call)": [2],
        "t.py::f[2]": [1, 2],
        "t.py::g": [1, 2, 3],
        "h": [9],
    }
    for number, (context, covered) in enumerate(lines.items()):
        bits = sum(1 << line for line in covered).to_bytes(2, "little")
        database.execute("INSERT INTO context VALUES (?, ?)", [number, context])
        database.execute("INSERT INTO line_bits VALUES (1, ?, ?)", [number, bits])
    database.commit()
    choice = faults.Choice(tmp_path)
    expected = ["t.py::f[1]", "t.py::g", "t.py::f[2]", "tests/test_b.py"]
    assert choice.tests(FAULT, path, 1) == expected
    assert choice.tests(FAULT, path, 1, ["t.py::g"])[:2] == ["t.py::g", "t.py::f[1]"]
