"""Validation and test files: that they are read as training files are, and what differs."""

from functools import partial
from typing import Any

from tnctl.data.partitions import partitions_of
from tnctl.data.read_ahead import in_order
from tnctl.errors import Failure
from tnctl.masking import masked
from tnctl.starting.column_figures import figures
from tnctl.starting.file_form import FileForm, form_of
from tnctl.starting.label_choice import ChosenLabel, variants
from tnctl.starting.named_files import NamedFiles
from tnctl.starting.sample import read_rows

ROWS = 20_000
MOST_FILES = 200  # whose first bytes are read


def add_split(
    split: str,
    named: NamedFiles,
    form: FileForm,
    label: ChosenLabel,
    data: dict[str, tuple[Any, str]],
    notes: list[str],
) -> None:
    """Add data.SPLIT, and further spellings of the label.

    Files that cannot be read as training files are leave it; `notes` get the reason.
    """
    urls, names = named.urls(split), named.names[split]
    compared = in_order(partial(_as_trained, form, label.column), iter(urls[:MOST_FILES]))
    others = dict(zip(urls, compared, strict=False))
    left_out = {url: other for url, other in others.items() if isinstance(other, str)}
    forms = [other for other in others.values() if isinstance(other, FileForm)]
    kept = [name for name, url in zip(names, urls, strict=True) if url not in left_out]
    named.names[split] = kept
    try:
        if forms and form.format != "libsvm":
            _add_spellings(split, named, form, forms[0], label)
    except Failure as error:
        forms, left_out = [], dict.fromkeys(urls, str(error))
    if left_out:
        first, reason = next(iter(left_out.items()))
        more = f" and {len(left_out) - 1:,} more are" if len(left_out) > 1 else " is"
        notes.append(f"{split}: {first}{more} left out: {reason}")
    if not forms:
        return
    evidence = named.evidence.get(split, "")
    spec: Any = masked(named.spec(split))
    skipped = forms[0].keys.get("skip_rows", 0)
    if skipped != form.keys.get("skip_rows", 0):
        spec = {"files": spec, "skip_rows": skipped}
        evidence = "; ".join(filter(None, (evidence, forms[0].evidence.get("skip_rows", ""))))
    data[split] = (spec, evidence)


def _as_trained(form: FileForm, label: str, url: str) -> FileForm | str:
    """The form of a file; or why it cannot be read as the training files are."""
    try:
        other = form_of(url)
    except Failure as error:
        return str(error)
    other.columns += [name for name in partitions_of(url) if name not in other.columns]
    return _difference(form, other, label) or other


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
