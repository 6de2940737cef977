"""Validation and test files: that they are read as training files are, and what differs."""

from typing import Any

from tnctl.data.partitions import partitions_of
from tnctl.errors import Failure
from tnctl.masking import masked
from tnctl.starting.column_figures import figures
from tnctl.starting.file_form import FileForm, form_of
from tnctl.starting.label_choice import ChosenLabel, variants
from tnctl.starting.named_files import NamedFiles
from tnctl.starting.sample import read_rows

ROWS = 20_000


def add_split(
    split: str,
    named: NamedFiles,
    form: FileForm,
    label: ChosenLabel,
    data: dict[str, tuple[Any, str]],
    notes: list[str],
) -> None:
    """Add data.SPLIT, and further spellings of the label; or say in `notes` why it is left out."""
    url = named.urls(split)[0]
    try:
        other = form_of(url)
        other.columns += [name for name in partitions_of(url) if name not in other.columns]
        reason = _difference(form, other, label.column)
        if not reason and form.format != "libsvm":
            _add_spellings(split, named, form, other, label)
    except Failure as error:
        reason = str(error)
    if reason:
        notes.append(f"{split}: {url} is left out: {reason}")
        return
    evidence = named.evidence.get(split, "")
    spec: Any = masked(named.spec(split))
    skipped = other.keys.get("skip_rows", 0)
    if skipped != form.keys.get("skip_rows", 0):
        spec = {"files": spec, "skip_rows": skipped}
        evidence = "; ".join(filter(None, (evidence, other.evidence.get("skip_rows", ""))))
    data[split] = (spec, evidence)


def _difference(form: FileForm, other: FileForm, label: str) -> str:
    """Why a file cannot be read as the training files are; empty when it can."""
    if other.format != form.format:
        return f"it is {other.format}, and the training files are {form.format}"
    if form.format == "csv":
        for key in ("delimiter", "header"):
            if other.keys.get(key) != form.keys.get(key):
                return f"it has another {key}"
        if form.keys.get("header") is False and len(other.columns) != len(form.columns):
            return (
                f"it has {len(other.columns)} columns, and the training files {len(form.columns)}"
            )
    if label not in other.columns and form.format != "libsvm" and other.columns != form.columns:
        if "columns" in form.keys:
            return ""
        return f"it has no label ({label}); tnctl predict scores it"
    absent = sorted(set(form.columns) - set(other.columns))
    if absent and "columns" not in form.keys and form.format in ("csv", "parquet", "orc"):
        return f"it has no column '{absent[0]}'"
    return ""


def _add_spellings(
    split: str, named: NamedFiles, form: FileForm, other: FileForm, label: ChosenLabel
) -> None:
    """Add the texts by which other files say label 1, such as `>50K.` for `>50K`."""
    positive = label.keys.get("positive")
    if not isinstance(positive, list):
        return
    keys = form.keys | {"skip_rows": other.keys.get("skip_rows", 0)}
    as_split = FileForm(form.format, keys, columns=form.columns)
    sample = read_rows(as_split, named, split, [label.column], ROWS)
    column = figures(label.column, sample.table.column(label.column), bool(keys.get("strip")))
    texts = variants(positive, column.texts())
    if texts:
        positive += texts
        label.evidence += f"; {', '.join(texts)} in the {split} files"
