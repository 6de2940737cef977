"""From the names of files to a conf: what `tnctl init` does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tnctl import limits
from tnctl.data.batch_sizes import by_rows
from tnctl.data.partitions import partitions_of
from tnctl.data.sources import DAY
from tnctl.errors import Failure, UserError, quoted, refuse_if
from tnctl.masking import masked
from tnctl.schema import is_whole
from tnctl.starting.column_figures import Figures, figures
from tnctl.starting.column_kinds import FEW_VALUES, Column, Context, kind_of
from tnctl.starting.conf_text import ConfParts, Input, Settings, conf_text
from tnctl.starting.file_form import FileForm, form_of
from tnctl.starting.label_choice import ChosenLabel, choose_label
from tnctl.starting.line_features import LineFeatures, line_features
from tnctl.starting.named_files import DAYS_READ, NamedFiles, named_files
from tnctl.starting.other_splits import kept_rows, split_of
from tnctl.starting.sample import ROWS, Sample, read_rows

NUMBERS = 0.9  # the share of numbers in a column whose other texts mean a missing value
MOST_MISSING_TEXTS = 3  # different ones in such a column
ROWS_TRAINED = 1_000_000  # in all passes together, unless validation ends training before
MOST_PASSES = 20
SMALL, MIDDLE = 300_000, 3_000_000  # rows


@dataclass
class FirstConf:
    """A conf and what a user reads of it: the text, the kind of each column, warnings, doubts."""

    text: str
    form: FileForm
    sample: Sample
    label: ChosenLabel
    columns: dict[str, Column]
    inputs: list[Input]
    warnings: list[str]
    doubts: list[str]


def first_conf(
    words: Sequence[str], label: str | None = None, positive: Sequence[str] = (), name: str = ""
) -> FirstConf:
    """The conf for the data that words name; `name` is that of its file, for its own comments.

    Raises `UserError` or `Failure` when the data cannot be read or has no label.
    """
    named = named_files(words)
    form = form_of(named.urls("train")[0])
    form.columns = [*form.columns, *_folder_columns(form, named)]
    features = LineFeatures()
    if form.format == "libsvm":
        features = line_features(form.lines)
        form.columns = features.columns
        form.evidence["format"] = features.evidence
    refuse_if(
        len(form.columns) < 2 and not features.slots,
        f"{named.urls('train')[0]} has one column, and a row needs a label and an input",
        Failure,
    )
    sample = read_rows(form, named, "train", form.columns, ROWS)
    strip = bool(form.keys.get("strip"))
    measured = {
        column: figures(column, sample.table.column(column), strip) for column in form.columns
    }
    missing = _missing_texts(measured)
    # Files that were joined have their headers among the rows.
    measured = {name: column.without({"", name, *missing}) for name, column in measured.items()}
    is_named = "c1" not in form.columns and form.format != "libsvm"
    chosen = choose_label(measured, label, positive, is_named)
    context = Context(form, chosen.values, sample.estimate, features.ids)
    columns = {
        column: kind_of(of, context) for column, of in measured.items() if column != chosen.column
    }
    inputs = [entry for column in columns.values() for entry in column.inputs]
    inputs += [
        Input("slots", slot, "", dict(settings), shown)
        for slot, (settings, shown) in features.slots.items()
    ]
    reasons = [f"{column}: {of.remark}" for column, of in columns.items()][:3]
    refuse_if(not inputs, f"no column is left as an input ({'; '.join(reasons)})", Failure)
    result = FirstConf("", form, sample, chosen, columns, inputs, [], list(chosen.doubts))
    _add_text(result, named, missing, name)
    return result


def _folder_columns(form: FileForm, named: NamedFiles) -> list[str]:
    """The columns named by folders of all training files, except the day's."""
    of_files = [partitions_of(url) for url in named.urls("train")]
    of_days = partitions_of(named.pattern or "")
    return [
        name
        for name in of_files[0]
        if name not in form.columns
        and all(name in folders for folders in of_files)
        and DAY not in (of_days.get(name) or "")
    ]


def _missing_texts(columns: Mapping[str, Figures]) -> dict[str, str]:
    """Texts that mean a missing value, as they stand among numbers, each with what shows it."""
    texts: dict[str, str] = {}
    for name, column in columns.items():
        if column.form != "text":
            continue
        is_number = ~np.isnan(column.numbers)
        others = np.flatnonzero(~is_number & (column.counts > 0)).tolist()
        values = {str(column.values[at].as_py()): at for at in others}
        values = {text: at for text, at in values.items() if text not in ("", name)}
        counts = {text: int(column.counts[at]) for text, at in values.items()}
        numbers = column.counts[is_number]
        several = np.count_nonzero(numbers) > FEW_VALUES and len(counts) <= MOST_MISSING_TEXTS
        if several and numbers.sum() >= NUMBERS * (numbers.sum() + sum(counts.values())):
            for text, count in counts.items():
                texts.setdefault(text, f"{quoted(text)} in {count:,} rows of {name}")
    return texts


def _add_text(result: FirstConf, named: NamedFiles, missing: Mapping[str, str], name: str) -> None:
    """Add the text, the warnings and the doubts."""
    form, sample, columns = result.form, result.sample, result.columns
    data = _files_of(result, named, name)
    trained = sample.estimate
    if "split" in data:
        kept = data["split"][0]
        trained -= round((kept["validation"] + kept.get("test", 0)) * trained)
    data["format"] = (form.format, form.evidence.get("format", ""))
    data |= {key: (value, form.evidence.get(key, "")) for key, value in form.keys.items()}
    if missing:
        data["missing"] = (["", *missing], "; ".join(missing.values()))
    data["label"] = (result.label.keys, result.label.evidence)
    if bad := _bad_rows(sample, result.label):
        data["bad_rows"] = bad
        result.warnings.append(bad[1])
    if named.empty:
        shown = f"without any byte: {masked(named.empty[0])}"
        if len(named.empty) > 1:
            shown += f" and {len(named.empty) - 1:,} more"
        data["skip_empty"] = (True, shown)
        result.doubts.append(f"{shown}; passed over")
    result.warnings += [column.warning for column in columns.values() if column.warning]
    result.warnings += [f"{name} is left out: {reason}" for name, reason in form.left_out.items()]
    if named.pattern is None:
        sections = _sections(trained)
    else:
        of_day = trained // min(len(named.days), DAYS_READ)
        sections = _daily_sections(of_day, len(named.days))
    left_out = {column: of.remark for column, of in columns.items() if not of.inputs}
    parts = ConfParts(
        _title(result, named, name), data, result.inputs, left_out | form.left_out, sections
    )
    result.text = conf_text(parts)
    if len(result.text.encode()) > limits.CONF_BYTES:
        raise Failure(
            f"a conf of {len(parts.inputs):,} inputs would be longer than {limits.CONF_BYTES:,} "
            "bytes, the most that a conf may have. Write columns together as lists"
        )


def _files_of(result: FirstConf, named: NamedFiles, name: str) -> Settings:
    """The keys of `data` for files, and for the rows that are kept for validation."""
    data: Settings = {}
    if (root := named.root_from(Path(name or "FILE.yaml").resolve().parent)) is not None:
        remark = "" if is_whole(root) else "from the folder of this file"
        if masked(root) != root:
            remark = "its password is left out: give data.root="
        data["root"] = (masked(root), remark)
    result.doubts += named.left_out
    data["train"] = (masked(named.spec("train")), named.evidence.get("train", ""))
    for split in ("validation", "test"):
        if named.names.get(split) and (
            setting := split_of(split, named, result.form, result.label, result.doubts)
        ):
            data[split] = setting
    if named.pattern is None and "validation" not in data:
        data["split"] = kept_rows(result.sample.estimate, result.columns, "test" in data)
    return data


def _bad_rows(sample: Sample, label: ChosenLabel) -> tuple[int, str] | None:
    """How many bad rows to allow, where the sample has some."""
    bad = sample.skipped + label.missing
    if not bad:
        return None
    if label.missing > 0.05 * sample.rows:
        raise UserError(
            f"the label in column '{label.column}' is missing in {label.missing:,} of "
            f"{sample.rows:,} rows. Leave these rows out, or give label=NAME",
            1,
        )
    allowed = 100 + 2 * round(bad / sample.rows * sample.estimate)
    shown = sample.reason or f"{label.missing:,} rows have no label"
    return allowed, f"{bad:,} of the rows read cannot be used. {shown}"


def _sections(rows: int) -> Settings:
    """The sections recipe, train and evaluation for so many training rows."""
    passes = min(max(round(ROWS_TRAINED / max(rows, 1)), 1), MOST_PASSES)
    batch = by_rows(rows)
    steps = -(-rows // batch)
    sections = _recipe(rows)
    sections["train"] = (
        {"batch_size": batch, "epochs": passes},
        f"{steps:,} steps in a pass, {steps * passes:,} in all",
    )
    if passes > 1:
        sections["evaluation"] = (
            {"keep": "best", "patience": 2},
            "training ends when validation does not get better, and the best model is kept",
        )
    return sections


def _daily_sections(rows: int, days: int) -> Settings:
    """The sections recipe and train for so many rows in a day, of which so many are there."""
    batch = by_rows(rows)
    steps = f"some {-(-rows // batch):,} steps in a day"
    return {**_recipe(rows * days), "train": ({"batch_size": batch, "epochs": 1}, steps)}


def _recipe(rows: int) -> Settings:
    """The section recipe, unless its defaults are good for so many rows."""
    if rows < SMALL:
        few = "a small tower, with dropout, for few rows"
        return {"recipe": ({"hidden": [64, 32], "dropout": 0.3}, few)}
    if rows < MIDDLE:
        return {"recipe": ({"hidden": [128, 64]}, f"for some {rows:,} rows")}
    return {}


def _title(result: FirstConf, named: NamedFiles, name: str) -> list[str]:
    sample = result.sample
    rows = f"all {sample.rows:,} rows"
    if not sample.is_whole:
        rows = f"the first {sample.rows:,} of about {sample.estimate:,} rows"
    if (several := len(named.names["train"])) > 1:
        rows += f" of {several:,} files"
    lines = [
        f"Written by tnctl init, which read {rows}. Each comment says what shows the line.",
        "",
        f"    tnctl check conf={name or 'FILE.yaml'}",
        f"    tnctl train conf={name or 'FILE.yaml'}",
    ]
    if result.warnings:
        lines += ["", "Warnings:", *(f"  - {text}" for text in result.warnings)]
    if result.doubts:
        lines += ["", "What the data does not say:", *(f"  - {text}" for text in result.doubts)]
    return [*lines, ""] if result.warnings or result.doubts else lines
