"""The text of a conf: YAML whose lines have their evidence as comments."""

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tnctl.errors import printable
from tnctl.schema.conf import RESERVED_NAMES

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./*-]*")
WORDS = {
    "y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "none",
}  # fmt: skip
COMMENT_AT = 48  # where comments begin, if the line is not longer
LONGEST_COMMENT = 150
LONGEST_LINE = 96


Settings = dict[str, tuple[Any, str]]  # values by key, each with what shows it (empty: nothing)


@dataclass
class Input:
    """An entry of `slots` or `numeric`: its settings, and what shows them."""

    section: str
    name: str
    column: str
    settings: dict[str, Any]
    evidence: str


def scalar(value: Any) -> str:
    """A value as YAML: lists and mappings in one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        # YAML takes 1e-05 for a text.
        text = repr(value)
        mantissa, sign, exponent = text.partition("e")
        return text if not sign else f"{mantissa}{'' if '.' in mantissa else '.0'}e{exponent}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{scalar(key)}: {scalar(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(scalar, value))}]"
    text = str(value)
    if PLAIN.fullmatch(text) and "//" not in text and text.lower() not in WORDS:
        return text
    # OmegaConf would take ${ for a reference.
    text = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(sign: str) -> str:
    if sign in '"\\':
        return f"\\{sign}"
    return sign if sign.isprintable() else f"\\U{ord(sign):08X}"


def line(text: str, comment: str, indent: int = 0) -> str:
    """A line with its comment."""
    text = " " * indent + text
    if not comment:
        return text
    comment = printable(" ".join(comment.split()))
    if len(comment) > LONGEST_COMMENT:
        comment = comment[:LONGEST_COMMENT] + "…"
    return f"{text:{COMMENT_AT}}  # {comment}"


def conf_text(
    title: Iterable[str],
    data: Settings,
    inputs: Sequence[Input],
    left_out: Mapping[str, str],
    sections: Settings,
    recipe: str,
) -> str:
    """The whole file; `left_out` has the columns that are no input, and why."""
    lines = [f"# {printable(text)}".rstrip() for text in title]
    lines += [f"defaults: [schema, {{recipe: {recipe}}}, _self_]", "", "data:"]
    for key, (value, evidence) in data.items():
        lines += _setting(key, value, evidence)
    names = input_names(entry.name for entry in inputs)
    named = list(zip(names, inputs, strict=True))
    for section in ("slots", "numeric"):
        members = [(name, entry) for name, entry in named if entry.section == section]
        lines.append(f"{section}:" if members else f"{section}: {{}}")
        for name, entry in members:
            column = {} if entry.column == name else {"column": entry.column}
            text = f"{scalar(name)}: {scalar({**column, **entry.settings})}"
            lines.append(line(text, entry.evidence, 2))
    for section, (settings, evidence) in sections.items():
        text = f"{section}: {scalar(settings)}"
        if len(text) < LONGEST_LINE:
            lines.append(line(text, evidence))
        else:
            lines.append(line(f"{section}:", evidence))
            lines += [f"  {key}: {scalar(value)}" for key, value in settings.items()]
    if left_out:
        lines += ["", "# Columns that are no input:"]
        width = min(max(len(printable(name)) for name in left_out), 24)
        for name, reason in left_out.items():
            lines.append(f"#   {printable(name):{width}}  {printable(reason)[:LONGEST_COMMENT]}")
    return "\n".join(lines) + "\n"


def _setting(key: str, value: Any, evidence: str) -> list[str]:
    """A key of `data`; a long list in several lines."""
    text = f"{key}: {scalar(value)}"
    if not isinstance(value, list) or len(text) < LONGEST_LINE:
        return [line(text, evidence, 2)]
    lines = [line(f"{key}:", evidence, 2)]
    return lines + [f"    - {scalar(entry)}" for entry in value]


def input_names(wanted: Iterable[str]) -> list[str]:
    """Names that a graph can use, each once, near those wanted."""
    taken: set[str] = set()
    names = []
    for name in wanted:
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "column"
        if not plain[0].isalpha():
            plain = f"c_{plain}"
        if plain in RESERVED_NAMES or keyword.iskeyword(plain) or keyword.issoftkeyword(plain):
            plain = f"{plain}_"
        base, number = plain[:120], 1
        plain = base
        while plain.lower() in taken:
            number += 1
            plain = f"{base}_{number}"
        taken.add(plain.lower())
        names.append(plain)
    return names
