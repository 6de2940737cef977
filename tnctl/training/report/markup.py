"""The markup of report.html: page.html beside this file, in parts that Python fills in."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from string import Template

NONE = "–"  # shown where there is no value, or none was measured


class Markup(str):
    """Text that is HTML already. Any other text is escaped where it is filled in."""


@cache
def fragments() -> dict[str, Template]:
    """The parts of page.html by their names."""
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    _, *parts = re.split(r"^<!-- (\w+) -->\n", text, flags=re.MULTILINE)
    return {
        name: Template(body.removesuffix("\n"))
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def fill(name: str, /, **values: object) -> Markup:
    """A part of the page with its values, escaped unless they are Markup.

    Raises KeyError when a value is missing.
    """
    texts = {
        key: value if isinstance(value, Markup) else escape(str(value))
        for key, value in values.items()
    }
    return Markup(fragments()[name].substitute(texts))


def joined(parts: Iterable[Markup], separator: str = "") -> Markup:
    """Parts of the page one after the other; those that are empty are left out."""
    return Markup(separator.join(part for part in parts if part))


def table_row(head: object, cells: Iterable[object]) -> Markup:
    """A row of a table: its head, and cells of text or Markup."""
    filled = (cell if isinstance(cell, Markup) else fill("cell", text=cell) for cell in cells)
    return fill("row", head=head, cells=joined(filled))


def table_of(names: Iterable[object], rows: Sequence[Markup], kind: str = "") -> Markup:
    """A table with the names of its columns; empty when there are no rows."""
    if not rows:
        return Markup()
    heads = joined(fill("column", name=name) for name in names)
    return fill("table", kind=kind, heads=heads, rows=joined(rows))
