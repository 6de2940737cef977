"""Each part of the project has a budget of size, tests/size.toml (CONTRIBUTING.md, "Size").

`python tests/test_size.py` prints the sizes, and lowers budgets to them.
"""

import ast
import io
import tokenize
import tomllib
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = ROOT / "tests" / "size.toml"
HEAD = """\
# What each part may have at most: words of code (of docs: of text; of tests: lines), and files.
# `python tests/test_size.py` lowers these numbers. CONTRIBUTING.md says how one is raised.
"""
FAR_BELOW = 0.02
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
# From Python 3.12 on an f-string is a series of tokens, which may hold others; before, it is one.
TEXT_START = getattr(tokenize, "FSTRING_START", None)
TEXT_END = getattr(tokenize, "FSTRING_END", None)


def without_words(tree):
    """The numbers of the lines of `tree` that are imports or docstrings."""
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lines |= set(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            docstring = node.body[0]
            lines |= set(range(docstring.lineno, docstring.end_lineno + 1))
    return lines


def texts_joined(tokens):
    """`tokens` with each f-string as one, of its whole source text, on every Python."""
    depth, parts = 0, []
    for token in tokens:
        depth += token.type == TEXT_START
        if depth == 0:
            yield token
            continue
        parts.append(token)
        depth -= token.type == TEXT_END
        if depth == 0:
            yield parts[0]._replace(type=tokenize.STRING, end=token.end)
            parts = []


def length(source_lines, token):
    """The characters of `token`, line ends included."""
    (first, start), (last, end) = token.start, token.end
    return sum(len(source_lines[n - 1]) for n in range(first, last)) - start + end


def words(source):
    """The number of words of a Python file: its tokens, but for layout, imports and docstrings.

    Brackets, commas and colons are layout, as are comments and line ends. A text, also an f-string
    with all that is in it, is one word, and one more for each 40 characters that it has.
    """
    skipped = without_words(ast.parse(source))
    source_lines = source.splitlines(keepends=True)
    count = 0
    for token in texts_joined(tokenize.generate_tokens(io.StringIO(source).readline)):
        if token.type in LAYOUT or token.start[0] in skipped:
            continue
        if token.type == tokenize.STRING:
            count += 1 + length(source_lines, token) // 40
        elif token.string not in "()[]{},:":
            count += 1
    return count


def parts():
    """The files of each part: the packages of tnctl, its loose modules, recipes, tests, docs."""
    tnctl = ROOT / "tnctl"
    packages = [folder for folder in sorted(tnctl.iterdir()) if (folder / "__init__.py").exists()]
    files = {folder.name: folder.rglob("*.py") for folder in packages}
    files["loose"] = (path for path in tnctl.glob("*.py") if path.name != "_tables.py")
    files["recipes"] = (ROOT / "recipes").glob("*.py")
    files["tests"] = (ROOT / "tests").rglob("*.py")
    files["docs"] = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return {part: sorted(paths) for part, paths in files.items()}


def size(part, paths):
    """How large a part is, by unit, as its budget."""
    texts = [path.read_text(encoding="utf-8") for path in paths]
    if part == "tests":
        return {"lines": sum(len(text.splitlines()) for text in texts), "files": len(texts)}
    count = (lambda text: len(text.split())) if part == "docs" else words
    return {"words": sum(map(count, texts)), "files": len(texts)}


def budgets():
    return tomllib.loads(BUDGETS.read_text(encoding="utf-8"))


def above(part, is_now, budget):
    """The sentence that refuses a part above its budget, or None."""
    for unit, most in budget.items():
        number = is_now[unit]
        if number > most:
            return (
                f"{part} has {number:,} {unit}, {number - most:,} above its budget of {most:,}: "
                'delete what it replaces, or raise the budget as CONTRIBUTING.md says ("Size")'
            )
    return None


def far_below(part, is_now, budget):
    """The sentence that asks for a lower budget, or None."""
    for unit, most in budget.items():
        number = is_now[unit]
        if number < most * (1 - FAR_BELOW):
            return (
                f"{part} has {number:,} {unit}, {1 - number / most:.0%} below its budget of "
                f"{most:,}: lower it with `python tests/test_size.py`"
            )
    return None


def test_each_part_has_a_budget():
    assert budgets().keys() == parts().keys(), "add or remove the part in tests/size.toml"


@pytest.mark.parametrize("part", parts())
def test_a_part_is_within_its_budget(part):
    is_now, budget = size(part, parts()[part]), budgets()[part]
    if sentence := above(part, is_now, budget):
        pytest.fail(sentence, pytrace=False)
    if sentence := far_below(part, is_now, budget):
        warnings.warn(sentence, stacklevel=1)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""A docstring."""\n\nimport os  # why\nfrom a import (\n    b,\n    c,\n)\n', 0),
        ("def f(x, *rest):\n    return [x[1:-2], {rest: 0.5}]\n", 12),
        ("class A:\n    '''A docstring.'''\n\n    x = 1\n", 5),
        (f"x = '{'a' * 37}'\n", 3),
        (f"x = '{'a' * 38}'\n", 4),
        (f"x = '''{'a' * 30}\n{'a' * 50}'''\n", 5),
        ("x = 'a' 'b'\n", 4),
        # An f-string is one text, whatever its expressions are, nested ones too.
        ("x = f'{a}'\n", 3),
        ("x = f'a{b.c(d, 1)!r:>{width}}{{}}'\n", 3),
        ("x = f\"{f'{a}' + f'{b}'}\" + rf'{c}\\d'\n", 5),
        (f"x = f'{{aaa}}{'b' * 31}'\n", 3),
        (f"x = f'{{aaa}}{'b' * 32}'\n", 4),
        (f"x = f'''{{\n    aaa\n}}{'b' * 30}'''\n", 4),
        ("x = f'é{a}é' + y\n", 5),
    ],
)
def test_words(source, count):
    assert words(source) == count


def test_above_and_far_below_a_budget():
    budget = {"words": 1000, "files": 10}

    def of(words, files):
        return "data", {"words": words, "files": files}, budget

    assert above(*of(1000, 10)) is None
    assert above(*of(1001, 10)).startswith("data has 1,001 words, 1 above")
    assert above(*of(900, 11)).startswith("data has 11 files, 1 above")
    assert far_below(*of(980, 10)) is None
    assert far_below(*of(979, 10)).startswith("data has 979 words, 2% below")
    assert far_below(*of(1000, 9)).startswith("data has 9 files, 10% below")


def lower():
    """Print the sizes and write budgets that are nowhere above them; a new part gets its size."""
    written = budgets() if BUDGETS.exists() else {}
    texts = [HEAD]
    print(f"{'':12}{'lines':>8}")
    for part, paths in parts().items():
        is_now = size(part, paths)
        budget = written.get(part, is_now)
        least = {unit: min(number, budget[unit]) for unit, number in is_now.items()}
        fields = ", ".join(f"{unit} = {number:_}" for unit, number in least.items())
        texts.append(f"{part} = {{ {fields} }}\n")
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
        sizes = "".join(f"{number:9,} {unit}" for unit, number in is_now.items())
        print(f"{part:12}{lines:8,}{sizes}  {above(part, is_now, budget) or ''}".rstrip())
    BUDGETS.write_text("".join(texts), encoding="utf-8")


if __name__ == "__main__":
    lower()
