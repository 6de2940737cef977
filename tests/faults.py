"""How many of the seeded faults in tests/faults.toml the tests notice, and which they no longer do.

    pip install coverage
    python tests/faults.py coverage FOLDER         # once: which tests run which lines
    python tests/faults.py run FOLDER              # each fault against those tests, resumable
    python tests/faults.py run NEW --before OLD    # another version: what noticed it in OLD first
    python tests/faults.py report OLD NEW          # the faults that NEW no longer notices
    python tests/faults.py draw COMMIT SEED COUNT [PATH ...]   # other faults, as text

FOLDER keeps a copy of the checkout (or of another one, --of CHECKOUT), so no checkout is ever
changed. A fault is lines of code and what replaces them. It is applied wherever in tnctl those
lines are; where they are gone, draw another one of the same kind. Faults are drawn from the code,
read, and left out where nobody could notice them.
"""

import argparse
import ast
import json
import os
import queue
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "faults.toml"
LIMIT = 300  # seconds of tests for a fault
STAGES = (10, 40, 160, 640)  # how many tests a pytest runs, the most specific ones first
# They read the code as text, so any edit may fail in them.
OF_TEXT = ("test_size", "test_names", "test_imports", "test_faults")


@dataclass(frozen=True)
class Fault:
    """An edit: the lines `old` of a file, at `line` of the version it was drawn from, to `new`."""

    name: str
    file: str
    line: int
    kind: str
    old: str
    new: str


def read_faults(path=LIST):
    return [Fault(**fields) for fields in tomllib.loads(path.read_text())["fault"]]


# ---- Applying ----------------------------------------------------------------


def indent(line):
    return len(line) - len(line.lstrip())


def places(text, old):
    """The indices of the lines of `text` at which the lines `old` begin, however indented."""
    lines = [line.strip() for line in text.splitlines()]
    wanted = [line.strip() for line in old.splitlines()]
    return [
        index
        for index in range(len(lines) - len(wanted) + 1)
        if lines[index : index + len(wanted)] == wanted
    ]


def replaced(text, index, fault):
    """`text` with the lines from `index` on, which are the old ones of `fault`, replaced."""
    lines = text.splitlines()
    old, new = fault.old.splitlines(), fault.new.splitlines()
    shift = indent(lines[index]) - indent(old[0])
    new = [" " * max(0, indent(line) + shift) + line.lstrip() for line in new]
    return "\n".join([*lines[:index], *new, *lines[index + len(old) :]]) + "\n"


def locate(checkout, fault):
    """(file, index of its line) of a fault: in its file, or where its lines moved to; or None."""
    file = checkout / fault.file
    if file.exists() and (indices := places(file.read_text(), fault.old)):
        return file, min(indices, key=lambda index: abs(index + 1 - fault.line))
    others = [
        (path, index)
        for folder in ("tnctl", "recipes")
        for path in sorted((checkout / folder).rglob("*.py"))
        for index in places(path.read_text(), fault.old)
    ]
    return others[0] if len(others) == 1 else None


def changed_lines(fault, index):
    """The numbers of the lines that a fault at `index` changes."""
    old, new = fault.old.splitlines(), fault.new.splitlines()
    same = next((n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), 0)
    end = len(old) - next(
        (n for n, pair in enumerate(zip(old[::-1], new[::-1], strict=False)) if pair[0] != pair[1]),
        0,
    )
    return range(index + 1 + same, index + 1 + max(end, same + 1))


def write_source(path, text):
    """Write a Python file, and remove what Python made of the one before."""
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


# ---- Which tests -------------------------------------------------------------


def copy_checkout(source, target):
    """Copy what git tracks, and the built library."""
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=source, text=True).split("\0")
    built = [str(path.relative_to(source)) for path in (source / "tnctl").glob("_tables*.so")]
    for name in filter(None, [*names, *built]):
        if (source / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def environment(checkout, **variables):
    """Variables for commands that are to run the code of `checkout`."""
    path = [str(checkout), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **variables}


COVERAGE = """\
[run]
core = ctrace
source = {checkout}
data_file = {folder}/coverage
parallel = true
context = ${{PYTEST_CURRENT_TEST-}}
patch = _exit, execv, fork, subprocess
sigterm = true
disable_warnings = no-data-collected
"""


def coverage(folder, chosen):
    """Run the tests (or those `chosen`) under coverage, with a context for each test."""
    checkout = folder / "checkout"
    settings = folder / "coveragerc"
    settings.write_text(COVERAGE.format(checkout=checkout, folder=folder))
    variables = environment(checkout, FAULTS_OUTCOMES=str(folder / "outcomes.jsonl"))
    for options in (
        ["-n", "2", "--dist", "loadfile", "-m", "not long and not alone"],
        ["-m", "alone and not long"],
    ):
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest"]
        subprocess.run(
            [*command, "-q", "-p", "faults", *options, *chosen], cwd=checkout, env=variables
        )
    subprocess.run(
        [sys.executable, "-m", "coverage", "combine", f"--rcfile={settings}"],
        cwd=checkout, env=variables, stdout=subprocess.DEVNULL,
    )  # fmt: skip


# This module is a plugin of pytest too, in `coverage` above and in the runs of tests below.


def pytest_runtest_logstart(nodeid):
    if "coverage" in sys.modules:
        from coverage import Coverage

        if Coverage.current() is not None:
            Coverage.current().switch_context(nodeid)


def pytest_runtest_logreport(report):
    path = os.environ.get("FAULTS_OUTCOMES")
    if path and "PYTEST_XDIST_WORKER" not in os.environ:
        outcome = {"test": report.nodeid, "seconds": report.duration, "failed": report.failed}
        with open(path, "a") as file:
            file.write(json.dumps(outcome) + "\n")


def read_lines(path):
    """The objects of a file of JSON lines; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Choice:
    """Which tests may notice a fault, by what `coverage` measured in a folder."""

    def __init__(self, folder):
        self.checkout = folder / "checkout"
        self.lock = threading.Lock()
        self.seconds, self.failed = Counter(), set()
        for outcome in read_lines(folder / "outcomes.jsonl"):
            self.seconds[outcome["test"]] += outcome["seconds"]
            if outcome["failed"]:
                self.failed.add(outcome["test"])
        self.database, self.sizes = None, Counter()
        if (folder / "coverage").exists():
            self.database = sqlite3.connect(folder / "coverage", check_same_thread=False)
            self.database.create_function("ones", 1, lambda b: int.from_bytes(b).bit_count())
            for context, lines in self.database.execute(
                "SELECT context, SUM(ones(numbits)) FROM line_bits JOIN context"
                " ON context.id = context_id GROUP BY context"
            ):
                self.sizes[self.test_of(context)] += lines

    @staticmethod
    def test_of(context):
        return re.sub(r" \((setup|call|teardown)\)$", "", context)

    def covering(self, file, lines):
        """The tests that run one of `lines` of `file`."""
        if self.database is None:
            return set()
        with self.lock:
            rows = self.database.execute(
                "SELECT context, numbits FROM line_bits JOIN context ON context.id = context_id"
                " JOIN file ON file.id = file_id WHERE path = ?",
                [str(file)],
            ).fetchall()
        return {
            self.test_of(context)
            for context, bits in rows
            if any(line // 8 < len(bits) and bits[line // 8] >> line % 8 & 1 for line in lines)
        } - {""}

    def mentioning(self, file):
        """The files of tests that name the module or, where it is one, the command."""
        words = {file.stem, file.stem.replace("_", "-")} - {"__init__"}
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, words))})\b") if words else None
        tests = [
            path
            for path in (self.checkout / "tests").glob("test_*.py")
            if path.stem not in OF_TEXT and pattern and pattern.search(path.read_text())
        ]
        tests.sort(key=lambda path: path.stat().st_size)
        return [f"tests/{path.name}" for path in tests]

    def tests(self, fault, file, index, first=()):
        """Tests in the order to run them: `first`, then those that run few lines, then files.

        Of the cases of one function the first comes before any second one.
        """
        covering = self.covering(file, changed_lines(fault, index)) or self.covering(
            file, range(index + 1, index + 1 + len(fault.old.splitlines()))
        )
        cases, ordered = Counter(), []
        for test in sorted(covering - self.failed, key=lambda test: (self.sizes[test], test)):
            function = test.split("[")[0]
            ordered.append((cases[function] > 0, len(ordered), test))
            cases[function] += 1
        return list(
            dict.fromkeys([*first, *(test for *_, test in sorted(ordered)), *self.mentioning(file)])
        )


# ---- Running -----------------------------------------------------------------


def run_tests(checkout, tests, seconds):
    """The first of `tests` that fails in `checkout`, None if none does, "hang" after `seconds`."""
    outcomes = checkout.parent / f"{checkout.name}.outcomes"
    outcomes.unlink(missing_ok=True)
    process = subprocess.Popen(
        [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "faults", "-p", "no:cacheprovider",
            "-m", "not long", *tests,
        ],
        cwd=checkout, env=environment(checkout, FAULTS_OUTCOMES=str(outcomes)),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "hang"
    failed = [outcome["test"] for outcome in read_lines(outcomes) if outcome["failed"]]
    # 0: all passed; 5: none was chosen by the marks. Else a file could not be imported.
    return failed[0] if failed else None if code in (0, 5) else tests[0]


def collected(checkout):
    """The names of all tests of a checkout."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    output = subprocess.run(
        command, cwd=checkout, env=environment(checkout), stdout=subprocess.PIPE, text=True
    ).stdout
    return {line for line in output.splitlines() if "::" in line}


class Runner:
    """Runs faults in copies of a checkout, one for each thread."""

    def __init__(self, folder, earlier):
        self.folder = folder
        self.clean = folder / "checkout"
        # Without coverage of its own a version is tested by what covers a fault in `earlier`.
        is_covered = (folder / "coverage").exists() or not earlier
        self.choices = [Choice(path) for path in ([folder] if is_covered else [earlier, folder])]
        self.killers = {}
        self.collected = {}  # tests by what follows the file in their names
        if earlier:
            lines = read_lines(earlier / "results.jsonl")
            self.killers = {line["fault"]: line.get("by") for line in lines}
            for test in collected(self.clean):
                self.collected.setdefault(test.partition("::")[2], []).append(test)
        self.reliable = {}
        self.lock = threading.Lock()

    def fails_without_fault(self, copy, test):
        """Whether `test` fails in a copy without any fault too."""
        if test not in self.reliable:
            self.reliable[test] = run_tests(copy, [test], LIMIT) is None
        return not self.reliable[test]

    def stages(self, tests):
        """`tests` in parts that grow, none longer than a minute by what they took before."""
        tests, sizes = list(tests), list(STAGES)
        while tests:
            size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
            part, seconds = [], 0
            while tests and len(part) < size and (seconds < 60 or not part):
                seconds += self.choices[0].seconds.get(tests[0], 60 if "::" not in tests[0] else 1)
                part.append(tests.pop(0))
            yield part, 60 + 4 * seconds

    def killer(self, copy, file, text, broken, tests):
        """(the test that notices a fault or None, how many were run)."""
        deadline, count = time.monotonic() + LIMIT, 0
        for part, seconds in self.stages(tests):
            count += len(part)
            while part:
                write_source(file, broken)
                by = run_tests(copy, part, min(seconds, LIMIT))
                write_source(file, text)
                if by is None:
                    break
                if by == "hang" or not self.fails_without_fault(copy, by):
                    return by, count
                part = part[part.index(by) + 1 :] if by in part else []
            if time.monotonic() > deadline:
                break
        return None, count

    def result(self, copy, fault):
        """What became of a fault."""
        location = locate(copy, fault)
        if location is None:
            return {"fault": fault.name, "outcome": "gone"}
        file, index = location
        text = file.read_text()
        known = self.killers.get(fault.name)
        first = [known] if known and known != "hang" else []
        located = ((choice, locate(choice.checkout, fault)) for choice in self.choices)
        choice, place = next(pair for pair in located if pair[1] is not None)
        tests = choice.tests(fault, *place, first)
        tests = self.present(tests) if self.collected else tests
        by, count = self.killer(copy, file, text, replaced(text, index, fault), tests)
        outcome = {"fault": fault.name, "outcome": "killed" if by else "survived"}
        return {**outcome, "by": by, "tests": count, "of": len(tests)}

    def present(self, tests):
        """The tests of this version among `tests`, also where their file has another name now."""
        names = []
        for test in tests:
            file, _, name = test.partition("::")
            same = self.collected.get(name, [])
            if test in same or (not name and (self.clean / file).exists()):
                names.append(test)
            elif len(same) == 1:
                names += same
        return list(dict.fromkeys(names))

    def run(self, faults, jobs):
        """Write a line to results.jsonl for each fault that has none."""
        results = self.folder / "results.jsonl"
        done = {line["fault"] for line in read_lines(results)}
        waiting = queue.SimpleQueue()
        for fault in faults:
            if fault.name not in done:
                waiting.put(fault)

        def work(number):
            copy = self.folder / f"copy-{number}"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.clean, copy)
            while not waiting.empty():
                try:
                    fault = waiting.get_nowait()
                except queue.Empty:
                    return
                line = json.dumps(self.result(copy, fault))
                with self.lock, results.open("a") as file:
                    file.write(line + "\n")
                print(line, flush=True)

        threads = [threading.Thread(target=work, args=[number]) for number in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def report(old, new):
    """Print how many faults each version notices, and those that the new one does not any more."""
    outcomes = [
        {line["fault"]: line for line in read_lines(folder / "results.jsonl")}
        for folder in (old, new)
    ]
    for folder, lines in zip((old, new), outcomes, strict=True):
        print(folder, dict(Counter(line["outcome"] for line in lines.values())))
    was, is_now = outcomes
    killed = [name for name, line in was.items() if line["outcome"] == "killed"]
    for outcome, words in (("survived", "lost"), ("gone", "gone: draw another one")):
        for name in killed:
            if is_now.get(name, {}).get("outcome") == outcome:
                print(f"{words}: {name} (was noticed by {was[name]['by']})")


# ---- Drawing -----------------------------------------------------------------

OTHER = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


class Sites(ast.NodeVisitor):
    """The edits that a file can get: (kind, node, text of the node after it)."""

    def __init__(self, text):
        self.text = text
        self.edits = []
        self.visit(ast.parse(text))

    def add(self, kind, node, text):
        self.edits.append((kind, node, text))

    def source(self, node):
        return ast.get_source_segment(self.text, node)

    def generic_visit(self, node):
        # What these have is of messages, or of types.
        if not isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            super().generic_visit(node)

    def visit_FunctionDef(self, node):
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node):
        if node.value:
            self.visit(node.value)

    def visit_Compare(self, node):
        if len(node.ops) == 1:
            left, right = self.source(node.left), self.source(node.comparators[0])
            self.add("condition", node, f"{left} {OTHER[type(node.ops[0])]} {right}")
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        other = " or " if isinstance(node.op, ast.And) else " and "
        if not any(isinstance(value, ast.BoolOp) for value in node.values):
            self.add("condition", node, other.join(map(self.source, node.values)))
        self.generic_visit(node)

    def visit_If(self, node):
        raises = all(isinstance(statement, ast.Raise) for statement in node.body)
        if not isinstance(node.test, ast.Compare | ast.BoolOp) and (raises or not node.orelse):
            negated = isinstance(node.test, ast.UnaryOp)
            text = self.source(node.test.operand) if negated else f"not ({self.source(node.test)})"
            self.add("condition", node.test, text)
        self.generic_visit(node)

    def visit_Constant(self, node):
        if type(node.value) is int:
            self.add("number", node, str(node.value + 1))

    def visit_Call(self, node):
        plain = not any(isinstance(argument, ast.Starred) for argument in node.args)
        if len(node.args) >= 2 and plain:
            first, second, *_ = node.args
            texts = self.source(first), self.source(second)
            if texts[0] != texts[1] and not isinstance(second, ast.Lambda):
                start = self.source(node).index(texts[0], len(self.source(node.func)))
                between = self.source(node)[start + len(texts[0]) :]
                end = between.index(texts[1])
                text = self.source(node)[:start] + texts[1] + between[:end] + texts[0]
                self.add("arguments", node, text + between[end + len(texts[1]) :])
        self.generic_visit(node)

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Call):
            self.add("dropped call", node, "pass")
        self.generic_visit(node)


def edited(text, node, new):
    """(lines, new lines, index) of an edit, with lines around it that make it unique in `text`."""
    lines = text.splitlines()
    start, end = node.lineno - 1, node.end_lineno
    head = lines[start].encode()[: node.col_offset].decode()
    tail = lines[end - 1].encode()[node.end_col_offset :].decode()
    new_lines = (head + new + tail).splitlines()
    first, last = start, end
    while len(places(text, "\n".join(lines[first:last]))) > 1:
        if first == 0 or ((last - first) % 2 and last < len(lines)):
            last += 1
        else:
            first -= 1
    old = lines[first:last]
    return old, [*lines[first:start], *new_lines, *lines[end:last]], start


def draw(commit, seed, count, paths):
    """Print `count` faults of each kind, drawn from the files of a commit below `paths`."""
    names = subprocess.check_output(
        ["git", "ls-tree", "-r", "--name-only", commit, *(paths or ["tnctl", "recipes"])],
        cwd=ROOT, text=True,
    ).splitlines()  # fmt: skip
    edits = {}
    for name in sorted(name for name in names if name.endswith(".py")):
        text = subprocess.check_output(["git", "show", f"{commit}:{name}"], cwd=ROOT, text=True)
        for kind, node, new in Sites(text).edits:
            edits.setdefault(kind, []).append((name, text, node, new))
    for kind in sorted(edits):
        drawn = random.Random(f"{seed} {kind}").sample(edits[kind], min(count, len(edits[kind])))
        for name, text, node, new in sorted(drawn, key=lambda edit: (edit[0], edit[2].lineno)):
            old, lines, index = edited(text, node, new)
            print(toml(Fault(
                f"{Path(name).stem}:{index + 1} {kind}", name, index + 1, kind,
                "\n".join(old), "\n".join(lines),
            )))  # fmt: skip


def toml(fault):
    """A fault as an entry of the list."""

    def block(text):
        return json.dumps(text) if "'''" in text else f"'''\n{text}'''"

    return textwrap.dedent(
        """\
        [[fault]]
        name = "{0.name}"
        file = "{0.file}"
        line = {0.line}
        kind = "{0.kind}"
        old = {1}
        new = {2}
        """
    ).format(fault, block(fault.old), block(fault.new))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measured = argparse.ArgumentParser(add_help=False)
    measured.add_argument("folder", type=Path)
    measured.add_argument("--of", type=Path, default=ROOT, help="the checkout, if not this one")
    command = commands.add_parser("coverage", parents=[measured])
    command.add_argument("tests", nargs="*", help="files of tests, if not all of them")
    command = commands.add_parser("run", parents=[measured])
    command.add_argument("--before", type=Path, help="the folder of an earlier version")
    command.add_argument("--jobs", type=int, default=2)
    command.add_argument("--only", default="", help="faults whose name contains this text")
    command = commands.add_parser("report")
    command.add_argument("old", type=Path)
    command.add_argument("new", type=Path)
    command = commands.add_parser("draw")
    command.add_argument("commit")
    command.add_argument("seed")
    command.add_argument("count", type=int)
    command.add_argument("paths", nargs="*")
    words = parser.parse_args()
    if words.command in ("coverage", "run") and not (words.folder / "checkout").exists():
        copy_checkout(words.of.resolve(), words.folder.resolve() / "checkout")
    if words.command == "coverage":
        coverage(words.folder.resolve(), words.tests)
    elif words.command == "run":
        faults = [fault for fault in read_faults() if words.only in fault.name]
        runner = Runner(words.folder.resolve(), words.before and words.before.resolve())
        runner.run(faults, words.jobs)
    elif words.command == "report":
        report(words.old, words.new)
    else:
        draw(words.commit, words.seed, words.count, words.paths)


if __name__ == "__main__":
    main()
