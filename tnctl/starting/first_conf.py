"""From the names of files to a conf, and its text: YAML with the evidence as comments."""

import json
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tnctl import files, limits
from tnctl.data.batch_sizes import by_rows
from tnctl.data.file_pieces import partitions_of
from tnctl.data.sources import DAY
from tnctl.data.vectors import read_vectors
from tnctl.errors import Failure, UserError, printable, quoted, refuse_if
from tnctl.masking import masked
from tnctl.schema import AUTO, ISO, is_whole
from tnctl.schema.conf import RESERVED_NAMES
from tnctl.schema.id_kinds import kinds_with
from tnctl.starting.column_figures import FEW_VALUES, ColumnFigures, figures
from tnctl.starting.column_kinds import (
    ChosenLabel,
    Column,
    Context,
    ProposedInput,
    choose_label,
    kind_of,
)
from tnctl.starting.file_form import FileForm, Settings, form_of
from tnctl.starting.named_files import DAYS_READ, NamedFiles, named_files
from tnctl.starting.sample import Sample, other_splits, read_rows

NUMBERS = 0.9  # the share of numbers in a column whose other texts mean a missing value
MOST_MISSING_TEXTS = 3  # different ones in such a column
SMALL, MIDDLE = 300_000, 3_000_000  # rows
# For validation, and of few rows more; for a test as many, where there are enough for both.
SHARE, LARGER_SHARE = 0.1, 0.2
FEW_ROWS, ENOUGH_ROWS = 5_000, 20_000
RARE = 100  # rows of an id, on average of a slot, below which its embedding is held small
OF_NUMBERS = ("quantiles", "row_quantiles", "boundaries")  # slots.X.ids of few values
# docs/defaults.md has what was measured.
EMBEDDING: dict[str, Any] = {"initial_gradients": 17}
RATES = {"linear": {"learning_rate": 0.1, **EMBEDDING}, "embedding": EMBEDDING}
BY_DAYS = {"dense": {"learning_rate": 0.0015}, "schedule": {"name": "day", "end": 0.02}}
PLATEAU = {"name": "plateau", "patience": 1, "reduce": 0.3}
OF_VECTORS = {"frozen": True, "linear": False, "initial": "zeros"}
EMBEDDING_L2 = 800  # of the summed loss of a pass: divided by its rows, of the mean loss
# Columns of the user alone, such as user_id, userId, user.country and u_clicks; others beside them.
USER = re.compile(
    r"(?!.*(?i:item|movie|product|rating|score))(u(ser)?_?id|[Uu]ser([_.A-Z][\w.]*)?|u_\w+)"
)
OF_A_PERSON = ("age", "gender", "sex", "occupation")

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./*-]*")
WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
COMMENT_AT = 48  # where comments begin, if the line is not longer
LONGEST_COMMENT = 150
LONGEST_LINE = 96
LONGEST_NAME = 120


@dataclass
class FirstConf:
    """A conf and what a user reads of it: the kind of each column, warnings, doubts."""

    named: NamedFiles
    form: FileForm
    sample: Sample
    label: ChosenLabel
    columns: dict[str, Column]
    data: Settings
    inputs: list[ProposedInput]
    warnings: list[str]
    doubts: list[str]
    name: str  # of its file

    @cached_property
    def text(self) -> str:
        """The file. Raises Failure for one that is too long."""
        lines = [f"# {printable(text)}".rstrip() for text in self._title()]
        recipe = "deepfm" if self.has_rare_ids else "dcn"
        lines += [f"defaults: [schema, {{recipe: {recipe}}}, _self_]", "", "data:"]
        for key, (value, evidence) in self.data.items():
            lines += _entry(key, value, evidence, "  ")
        names = input_names(entry.name for entry in self.inputs)
        for section in ("slots", "numeric"):
            members = [
                line(f"  {scalar(name)}: {scalar(_settings(entry, name))}", entry.evidence)
                for name, entry in zip(names, self.inputs, strict=True)
                if entry.section == section
            ]
            lines += [f"{section}:" if members else f"{section}: {{}}", *members]
        for key, (value, evidence) in self._sections().items():
            lines += _entry(key, value, evidence)
        lines += self._left_out()
        text = "\n".join(lines) + "\n"
        if len(text.encode()) > limits.CONF_BYTES:
            raise Failure(
                f"a conf of {len(self.inputs):,} inputs would be longer than "
                f"{limits.CONF_BYTES:,} bytes, the most that a conf may have. Write columns "
                "together as lists"
            )
        return text

    @cached_property
    def has_rare_ids(self) -> bool:
        """Whether the ids of a slot have few rows each."""
        return any(
            column.figures.occurring < RARE * column.figures.distinct
            for column in self.columns.values()
            for entry in column.inputs
            if entry.section == "slots" and entry.settings.get("ids") not in OF_NUMBERS
        )

    def _title(self) -> list[str]:
        rows = f"all {self.sample.rows:,} rows"
        if not self.sample.is_whole:
            rows = f"the first {self.sample.rows:,} of about {self.sample.estimate:,} rows"
        if (several := len(self.named.names["train"])) > 1:
            rows += f" of {several:,} files"
        conf = self.name or "FILE.yaml"
        lines = [
            f"Written by tnctl init, which read {rows}. Each comment says what shows the line.",
            "",
            f"    tnctl check conf={conf}",
            f"    tnctl train conf={conf}",
        ]
        remarks = {"Warnings": self.warnings, "What the data does not say": self.doubts}
        for head, texts in remarks.items():
            if texts:
                lines += ["", f"{head}:", *(f"  - {text}" for text in texts)]
        return [*lines, ""] if self.warnings or self.doubts else lines

    def _left_out(self) -> list[str]:
        """The lines of the columns that are no input, and why."""
        used = {entry.column for entry in self.inputs}
        reasons = {name: _remark_of(of) for name, of in self.columns.items() if name not in used}
        reasons |= self.form.left_out
        if not reasons:
            return []
        width = min(max(len(printable(name)) for name in reasons), 24)
        return ["", "# Columns that are no input:"] + [
            f"#   {printable(name):{width}}  {printable(reason)[:LONGEST_COMMENT]}"
            for name, reason in reasons.items()
        ]

    def _sections(self) -> Settings:
        """The sections recipe, optimizer, train and evaluation, by the number of training rows."""
        kept = self.data["split"][0] if "split" in self.data else {}
        rows = self.sample.estimate
        rows -= round((kept.get("validation", 0) + kept.get("test", 0)) * rows)
        optimizer, shown = RATES, "the same first steps of a row with every batch size"
        if self.named.pattern is not None:
            of_day = rows // min(len(self.named.days), DAYS_READ)
            batch = by_rows(of_day)
            steps = f"some {-(-of_day // batch):,} steps in a day"
            shown = (
                "rates fall within each day: the bias for the next is not that of the last batches"
            )
            return _recipe(of_day * len(self.named.days)) | {
                "optimizer": (optimizer | BY_DAYS, shown),
                "train": ({"batch_size": batch, "epochs": 1}, steps),
            }
        if self.has_rare_ids:
            l2 = {"lazy_l2": float(f"{EMBEDDING_L2 / max(rows, 1):.2g}")}
            optimizer = optimizer | {"embedding": EMBEDDING | l2}
            shown = f"ids with few rows each: L2 as of {EMBEDDING_L2} rows, over the rows of a pass"
        else:
            optimizer = optimizer | {"schedule": PLATEAU}
        batch = by_rows(rows)
        steps = f"{-(-rows // batch):,} steps in a pass"
        passes = "passes until three were not better; the best model is kept, and recalibrated"
        return _recipe(rows) | {
            "optimizer": (optimizer, shown),
            "train": ({"batch_size": batch, "epochs": AUTO}, steps),
            "evaluation": ({"patience": 3, "recalibrate": AUTO}, passes),
        }


def _recipe(rows: int) -> Settings:
    """The section recipe, unless its defaults are good for this number of rows."""
    if rows < SMALL:
        few = "a small tower, with dropout, for few rows"
        return {"recipe": ({"hidden": [64, 32], "dropout": 0.3}, few)}
    if rows < MIDDLE:
        return {"recipe": ({"hidden": [128, 64]}, f"for some {rows:,} rows")}
    return {}


# ---- From files to a conf ----------------------------------------------------------------


def first_conf(
    words: Sequence[str], label: str | None = None, positive: Sequence[str] = (), name: str = ""
) -> FirstConf:
    """The conf for the data that words name; `name` is the name of its file, for its comments.

    Raises `UserError` or `Failure` when the data cannot be read or has no label.
    """
    named = named_files(words)
    url = named.urls("train")[0]
    form = form_of(url)
    form.columns += _folder_columns(form, named)
    refuse_if(
        len(form.columns) < 2 and not form.bags,
        f"{url} has one column, and a row needs a label and an input",
        Failure,
    )
    sample = read_rows(form, named, "train", form.columns)
    strip = bool(form.keys.get("strip"))
    table = sample.table
    measured = {column: figures(column, table.column(column), strip) for column in form.columns}
    missing = _missing_texts(measured)
    # Files that were joined have their headers among the rows.
    measured = {column: of.without({"", column, *missing}) for column, of in measured.items()}
    is_named = "c1" not in form.columns and form.format != "libsvm"
    chosen = choose_label(measured, label, positive, is_named)
    context = Context(form, chosen.values, sample.estimate)
    columns = {
        column: kind_of(of, context) for column, of in measured.items() if column != chosen.column
    }
    inputs = [entry for column in columns.values() for entry in column.inputs]
    inputs += [ProposedInput("slots", slot, "", *bag) for slot, bag in form.bags.items()]
    reasons = [f"{column}: {_remark_of(of)}" for column, of in columns.items()][:3]
    refuse_if(not inputs, f"no column is left as an input ({'; '.join(reasons)})", Failure)
    doubts = [*chosen.doubts, *named.left_out]
    inputs += _of_vectors(named, inputs, doubts)
    of_user = [entry for entry in inputs if USER.fullmatch(entry.column)]
    of_user += [entry for entry in inputs if of_user and entry.column.lower() in OF_A_PERSON]
    if len(of_user) < len(inputs):  # else nothing is ranked
        for entry in of_user:
            entry.settings["side"] = "user"
            entry.evidence += "; by its name the user's"
    data = _places(named, name) | other_splits(named, form, chosen, doubts)
    if named.pattern is None and "validation" not in data:
        data["split"] = _kept_rows(sample.estimate, columns, "test" in data)
    data |= {"format": (form.format, form.evidence), **form.settings}
    if missing:
        data["missing"] = (["", *missing], "; ".join(missing.values()))
    data |= {"label": (chosen.keys, chosen.evidence), **_tolerance(sample, chosen, named)}
    if "skip_empty" in data:
        doubts.append(f"{data['skip_empty'][1]}; passed over")
    warnings = [data["bad_rows"][1]] if "bad_rows" in data else []
    warnings += [column.warning for column in columns.values() if column.warning]
    warnings += [f"{column} is left out: {reason}" for column, reason in form.left_out.items()]
    return FirstConf(named, form, sample, chosen, columns, data, inputs, warnings, doubts, name)


def _folder_columns(form: FileForm, named: NamedFiles) -> list[str]:
    """The columns named by folders of all training files, except the day's."""
    if form.format == "libsvm":  # whose columns are features
        return []
    of_files = list(map(partitions_of, named.urls("train")))
    of_days = partitions_of(named.pattern or "")
    return [
        name
        for name in of_files[0]
        if name not in form.columns
        and all(name in folders for folders in of_files)
        and DAY not in (of_days.get(name) or "")
    ]


def _of_vectors(
    named: NamedFiles, inputs: Sequence[ProposedInput], doubts: list[str]
) -> list[ProposedInput]:
    """For each file of vectors a slot beside the column's own; `doubts` get why there is none."""
    slots = {entry.column: entry.settings for entry in inputs if entry.section == "slots"}
    made = []
    for name, column in named.vectors.items():
        settings = slots.get(column)
        if settings is None or settings.get("ids", "hash") not in kinds_with("vectors")[1]:
            doubts.append(f"{name}: vectors of {column}, which is no slot of ids here")
            continue
        try:
            count, width = read_vectors(files.join(named.root, name)).floats.shape
        except Failure as error:
            doubts.append(f"{name} is left out: {error}")
            continue
        settings = settings | {"vectors": masked(name), "width": width, **OF_VECTORS}
        shown = f"{count:,} vectors; a value without has zeros"
        made.append(ProposedInput("slots", f"{column}_vectors", column, settings, shown))
    return made


def _missing_texts(columns: Mapping[str, ColumnFigures]) -> dict[str, str]:
    """Texts that mean a missing value, as they stand among numbers, each with what shows it."""
    texts: dict[str, str] = {}
    for name, column in columns.items():
        others = np.flatnonzero(np.isnan(column.numbers) & (column.counts > 0))
        few = column.distinct - len(others) <= FEW_VALUES
        if column.form != "text" or few or len(others) > MOST_MISSING_TEXTS + 2:
            continue
        counts = {str(column.values[int(at)].as_py()): int(column.counts[at]) for at in others}
        counts = {text: count for text, count in counts.items() if text not in ("", name)}
        numbers = column.number_share * column.occurring
        if numbers >= NUMBERS * (numbers + sum(counts.values())):
            for text, count in counts.items():
                texts.setdefault(text, f"{quoted(text)} in {count:,} rows of {name}")
    return texts


def _places(named: NamedFiles, name: str) -> Settings:
    """The keys data.root and data.train of a conf with this name."""
    data: Settings = {}
    if (root := named.root_from(Path(name or "FILE.yaml").resolve().parent)) is not None:
        remark = "" if is_whole(root) else "from the folder of this file"
        if masked(root) != root:
            remark = "its password is left out: give data.root="
        data["root"] = (masked(root), remark)
    data["train"] = (masked(named.spec("train")), named.evidence.get("train", ""))
    return data


def _kept_rows(rows: int, columns: Mapping[str, Column], has_test: bool) -> tuple[Any, str]:
    """`data.split` where no file is for validation, for a number of rows, and why these.

    `has_test` says whether files are for the test.
    """
    share = SHARE if rows >= FEW_ROWS else LARGER_SHARE
    keys: dict[str, Any] = {"validation": share}
    shown = f"no file is for validation: {share:.0%} of the rows"
    if rows >= ENOUGH_ROWS and not has_test:
        keys["test"] = share
        shown = f"{shown}, and as many for the test"
    times = {name: column.times for name, column in columns.items() if column.times}
    for name, form in times.items():
        if form.are_in_order:
            keys["by"] = "last"
            return keys, f"{shown}: the last, as they are in the order of {name}"
    shown += ", at random"
    return keys, f"{shown}: not in the order of {', '.join(times)}; sort by it?" if times else shown


def _tolerance(sample: Sample, label: ChosenLabel, named: NamedFiles) -> Settings:
    """The keys of `data` that allow what is wrong: bad rows, and files without any byte."""
    data: Settings = {}
    if label.missing > 0.05 * sample.rows:
        raise UserError(
            f"the label in column '{label.column}' is missing in {label.missing:,} of "
            f"{sample.rows:,} rows. Leave these rows out, or give label=NAME",
            1,
        )
    if bad := sample.skipped + label.missing:
        allowed = 100 + 2 * round(bad / sample.rows * sample.estimate)
        shown = sample.reason or f"{label.missing:,} rows have no label"
        data["bad_rows"] = (allowed, f"{bad:,} of the rows read cannot be used. {shown}")
    if named.empty:
        more = f" and {len(named.empty) - 1:,} more" if len(named.empty) > 1 else ""
        data["skip_empty"] = (True, f"without any byte: {masked(named.empty[0])}{more}")
    return data


# ---- The text ----------------------------------------------------------------------------


def _remark_of(column: Column) -> str:
    """Why a column is no input; of a time also the slot by which its hour would be one."""
    times, name = column.times, column.figures.name
    if times is None or column.remark:
        return column.remark
    if times.format is None:
        return f"times, but not all are in one format: {column.figures.examples()}"
    shown = f"a time, {times.range}"
    if times.is_ambiguous:
        shown += ", if day and month are not exchanged"
    shown += f". Its hour: {scalar({f'{name}_hour': {'column': name, 'ids': 'hour'}})[1:-1]}"
    if times.format == ISO:
        return shown
    return f"{shown}, data.times: {scalar({name: {'format': times.format}})}"


def scalar(value: Any) -> str:
    """A value as YAML: lists and mappings in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{scalar(key)}: {scalar(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(scalar, value))}]"
    if not isinstance(value, str):
        return re.sub(r"^(-?\d+)e", r"\1.0e", json.dumps(value))  # YAML takes 1e-05 for a text
    if PLAIN.fullmatch(value) and "//" not in value and value.lower() not in WORDS:
        return value
    # OmegaConf would take ${ for a reference.
    text = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value)
    text = re.sub(r'(["\\])', r"\\\1", text)
    escaped = [sign if sign.isprintable() else f"\\U{ord(sign):08X}" for sign in text]
    return f'"{"".join(escaped)}"'


def line(text: str, comment: str) -> str:
    """A line with its comment."""
    if not comment:
        return text
    comment = printable(" ".join(comment.split()))
    if len(comment) > LONGEST_COMMENT:
        comment = comment[:LONGEST_COMMENT] + "…"
    return f"{text:{COMMENT_AT}}  # {comment}"


def _settings(entry: ProposedInput, name: str) -> dict[str, Any]:
    return ({} if entry.column in ("", name) else {"column": entry.column}) | entry.settings


def _entry(key: str, value: Any, evidence: str, indent: str = "") -> list[str]:
    """A key with its value: a long list or mapping in several lines."""
    text = f"{indent}{key}: {scalar(value)}"
    if len(text) < LONGEST_LINE or not isinstance(value, list | dict):
        return [line(text, evidence)]
    texts = [f"- {scalar(part)}" for part in value]
    if isinstance(value, dict):
        texts = [f"{part}: {scalar(inner)}" for part, inner in value.items()]
    return [line(f"{indent}{key}:", evidence), *(f"{indent}  {text}" for text in texts)]


def input_names(wanted: Iterable[str]) -> list[str]:
    """Names that a graph can use, each once, near those wanted."""
    names: dict[str, str] = {}
    for name in wanted:
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "column"
        if not plain[0].isalpha():
            plain = f"c_{plain}"
        if plain in RESERVED_NAMES or keyword.iskeyword(plain) or keyword.issoftkeyword(plain):
            plain = f"{plain}_"
        base = plain = plain[:LONGEST_NAME]
        number = 1
        while plain.lower() in names:
            number += 1
            plain = f"{base}_{number}"
        names[plain.lower()] = plain
    return list(names.values())
