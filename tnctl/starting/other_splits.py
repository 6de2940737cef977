"""Validation and test: their files, read as training files are, or rows of the training files."""

from dataclasses import replace
from functools import partial
from typing import Any

from tnctl.data.file_pieces import partitions_of
from tnctl.data.read_ahead import in_order
from tnctl.errors import Failure
from tnctl.masking import masked
from tnctl.starting.column_figures import figures
from tnctl.starting.column_kinds import Column
from tnctl.starting.conf_text import Settings
from tnctl.starting.file_form import FileForm, form_of
from tnctl.starting.label_choice import ChosenLabel, variants
from tnctl.starting.named_files import NamedFiles
from tnctl.starting.sample import read_rows

ROWS = 20_000
MOST_FILES = 200  # whose first bytes are read
# For validation, and of few rows more; for a test as many, where there are enough for both.
SHARE, LARGER_SHARE = 0.1, 0.2
FEW_ROWS, ENOUGH_ROWS = 5_000, 20_000


def other_splits(
    named: NamedFiles, form: FileForm, label: ChosenLabel, doubts: list[str]
) -> Settings:
    """data.validation and data.test; the label gets spellings that only these files have.

    Files that cannot be read as training files are leave their split, and `doubts` get the reason.
    """
    settings = {
        split: _split_of(split, named, form, label, doubts)
        for split in ("validation", "test")
        if named.names.get(split)
    }
    return {split: setting for split, setting in settings.items() if setting is not None}


def _split_of(
    split: str, named: NamedFiles, form: FileForm, label: ChosenLabel, doubts: list[str]
) -> tuple[Any, str] | None:
    urls = named.urls(split)
    compared = list(in_order(partial(_as_trained, form, label.column), iter(urls[:MOST_FILES])))
    left_out = {
        url: other for url, other in zip(urls, compared, strict=False) if isinstance(other, str)
    }
    forms = [other for other in compared if isinstance(other, FileForm)]
    try:
        kept = [n for n, url in zip(named.names[split], urls, strict=True) if url not in left_out]
        named.names[split] = kept
        if forms:
            _add_spellings(split, named, form, forms[0], label)
    except Failure as error:
        forms, left_out = [], dict.fromkeys(urls, str(error))
    if left_out:
        first, reason = next(iter(left_out.items()))
        more = f" and {len(left_out) - 1:,} more are" if len(left_out) > 1 else " is"
        doubts.append(f"{split}: {first}{more} left out: {reason}")
    if not forms:
        return None
    evidence = named.evidence.get(split, "")
    spec = masked(named.spec(split))
    skipped = forms[0].keys.get("skip_rows", 0)
    if skipped == form.keys.get("skip_rows", 0):
        return spec, evidence
    _, evidence = forms[0].settings.get("skip_rows", (0, evidence))
    return {"files": spec, "skip_rows": skipped}, evidence


def _as_trained(form: FileForm, label: str, url: str) -> FileForm | str:
    """The form of a file; or why it cannot be read as the training files are."""
    try:
        other = form_of(url)
    except Failure as error:
        return str(error)
    if other.format != form.format:
        return f"it is {other.format}, and the training files are {form.format}"
    for key in ("delimiter", "header"):
        if other.keys.get(key) != form.keys.get(key):
            return f"it has another {key}"
    if form.format == "libsvm":
        return other
    if "columns" in form.keys:
        count, trained = len(other.keys.get("columns", [])), len(form.keys["columns"])
        return other if count == trained else f"it has {count} columns, not {trained}"
    columns = {*other.columns, *partitions_of(url)}
    if label not in columns:
        return f"it has no label ({label}); tnctl predict scores it"
    absent = [name for name in form.columns if name not in columns]
    if absent and form.format in ("csv", "parquet", "orc"):
        return f"it has no column '{absent[0]}'"
    return other


def _add_spellings(
    split: str, named: NamedFiles, form: FileForm, other: FileForm, label: ChosenLabel
) -> None:
    """Add the texts by which other files say label 1, such as `>50K.` for `>50K`."""
    positive = label.keys.get("positive")
    if not isinstance(positive, list):
        return
    skipped = other.settings.get("skip_rows", (0, ""))
    as_split = replace(form, settings=form.settings | {"skip_rows": skipped})
    sample = read_rows(as_split, named, split, [label.column], ROWS)
    strip = bool(form.keys.get("strip"))
    column = figures(label.column, sample.table.column(label.column), strip)
    if texts := variants(positive, column.texts()):
        positive += texts
        label.evidence += f"; {', '.join(texts)} in the {split} files"


def kept_rows(rows: int, columns: dict[str, Column], has_test: bool) -> tuple[dict[str, Any], str]:
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
