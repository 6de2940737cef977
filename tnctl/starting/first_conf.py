"""From the names of files to a conf: what `tnctl init` does."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tnctl import limits
from tnctl.data.partitions import partitions_of
from tnctl.data.sources import DAY
from tnctl.errors import Failure, UserError, refuse_if
from tnctl.masking import masked
from tnctl.schema import ISO, is_whole
from tnctl.starting import ages, line_features, run_sizes
from tnctl.starting.column import Column, Context, Input
from tnctl.starting.column_figures import Figures, figures
from tnctl.starting.column_kinds import LONGEST, kind_of
from tnctl.starting.conf_text import ConfParts, conf_text, input_names
from tnctl.starting.file_form import FileForm, form_of
from tnctl.starting.kept_rows import kept_rows
from tnctl.starting.label_choice import ChosenLabel, choose_label
from tnctl.starting.missing_texts import missing_texts
from tnctl.starting.named_days import named_days
from tnctl.starting.named_files import NamedFiles, named_files
from tnctl.starting.number_inputs import BUCKETS, FEWEST_BUCKETS
from tnctl.starting.other_splits import add_split
from tnctl.starting.sample import ROWS, Sample, read_rows
from tnctl.starting.shared_values import share_rows

ROWS_OF_A_BUCKET = 200


@dataclass
class FirstConf:
    """A conf and what a user reads of it: the text, the kind of each column, warnings, doubts."""

    text: str
    form: FileForm
    sample: Sample
    label: ChosenLabel
    columns: dict[str, Column]
    warnings: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    event: str | None = None  # the column of the event's time

    def kind(self, name: str) -> str:
        """What a column was recognised as."""
        return "label" if name == self.label.column else self.columns[name].kind


def first_conf(
    words: Sequence[str], label: str | None = None, positive: Sequence[str] = (), name: str = ""
) -> FirstConf:
    """The conf for the data that words name; `name` is that of its file, for its own comments.

    Raises `UserError` or `Failure` when the data cannot be read or has no label.
    """
    is_daily = any(DAY in word for word in words)
    named = named_days(words) if is_daily else named_files(words)
    form = form_of(named.urls("train")[0])
    of_folders = _folder_columns(form, named)
    form.columns += of_folders
    features = None
    if form.format == "libsvm":
        features = line_features.line_features(form.lines)
        form.columns = features.columns
        form.evidence["format"] = features.evidence or form.evidence["format"]
    refuse_if(
        not form.columns or (len(form.columns) < 2 and not (features and features.slots)),
        f"{named.urls('train')[0]} has one column, and a row needs a label and an input",
        Failure,
    )
    sample = read_rows(form, named, "train", form.columns, ROWS)
    strip = bool(form.keys.get("strip"))
    measured = {
        column: figures(column, sample.table.column(column), strip) for column in form.columns
    }
    missing = missing_texts(measured)
    measured = {column: measured[column].without({"", *missing}) for column in measured}
    is_named = "c1" not in form.columns and form.format != "libsvm"
    chosen = choose_label(measured, label, positive, is_named)
    context = Context(
        form.format,
        form.keys.get("delimiter"),
        chosen.values,
        max(FEWEST_BUCKETS, min(BUCKETS, sample.estimate // ROWS_OF_A_BUCKET)),
        frozenset(features.numbers if features else ()),
        frozenset(features.ids if features else ()),
        sample.days,
        sample.is_whole,
        sample.estimate,
    )
    columns = _kinds(measured, chosen, context)
    # Days of folders are those of delivery, so they are no times of the row.
    of_rows = {name: column for name, column in columns.items() if name not in of_folders}
    event, doubts = ages.add_ages(of_rows, chosen.values)
    inputs = [entry for column in columns.values() for entry in column.inputs]
    doubts += [
        _attention(columns[sequence], candidate, name)
        for sequence, candidate in share_rows(columns)[:1]
    ]
    if features:
        inputs += [
            Input("slots", slot, "", dict(settings), shown)
            for slot, (settings, shown) in features.slots.items()
        ]
    refuse_if(not inputs, _nothing_to_learn(columns), Failure)
    result = FirstConf("", form, sample, chosen, columns, doubts=doubts, event=event)
    _write(result, named, missing, inputs, name)
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


def _kinds(measured: dict[str, Figures], label: ChosenLabel, context: Context) -> dict[str, Column]:
    columns = {}
    for name, column in measured.items():
        if name == label.column:
            continue
        if name in label.others:
            remark = (
                "it looks like an outcome, known only after the event, and is left out. "
                f"label={name} trains on it"
            )
            columns[name] = Column(column, "another label", [], remark, f"{name}: {remark}")
        else:
            columns[name] = kind_of(column, context)
    return columns


def _attention(column: Column, candidate: str, conf: str) -> str:
    """How a sequence is trained with attention; it is pooled in the conf that is written."""
    sequence, target = input_names([column.figures.name, candidate])
    assert column.figures.lengths is not None
    longest = min(int(column.figures.lengths.max()), LONGEST)
    return (
        f"whether attention to {target} makes more of the sequence {sequence} than its mean: tnctl "
        f"train conf={conf or 'FILE.yaml'} recipe=din recipe.behavior={sequence} "
        f"recipe.target={target} slots.{sequence}.pooling=none "
        f"slots.{sequence}.max_length={longest} slots.{sequence}.keep=last output=runs/din"
    )


def _nothing_to_learn(columns: dict[str, Column]) -> str:
    reasons = [f"{name}: {column.remark}" for name, column in columns.items()][:3]
    return f"no column is left as an input ({'; '.join(reasons)})"


def _write(
    result: FirstConf,
    named: NamedFiles,
    missing: dict[str, str],
    inputs: list[Input],
    name: str,
) -> None:
    """Fill in the text, the warnings and the doubts."""
    form, sample, label = result.form, result.sample, result.label
    data: dict[str, tuple[Any, str]] = {}
    if (root := named.root_from(Path(name or "FILE.yaml").resolve().parent)) is not None:
        remark = "" if is_whole(root) else "from the folder of this file"
        if masked(root) != root:
            remark = "its password is left out: give data.root="
        data["root"] = (masked(root), remark)
    notes = list(named.left_out)
    data["train"] = (masked(named.spec("train")), named.evidence.get("train", ""))
    for split in ("validation", "test"):
        if named.names.get(split):
            add_split(split, named, form, label, data, notes)
    trained = sample.estimate
    if named.pattern is None and "validation" not in data:
        data["split"] = kept_rows(
            trained, len(named.names["train"]), result.columns, result.event, "test" in data
        )
        kept = data["split"][0]
        trained -= round((kept["validation"] + kept.get("test", 0)) * trained)
    data["format"] = (form.format, form.evidence.get("format", ""))
    for key, value in form.keys.items():
        data[key] = (value, form.evidence.get(key, ""))
    if missing:
        data["missing"] = (["", *missing], "; ".join(missing.values()))
    if times := _times(result.columns):
        data["times"] = (times, "how these columns write times; all values read are in the format")
    data["label"] = (label.keys, label.evidence)
    if group := _group_of(result.columns):
        data["group"] = group
    _add_tolerance(data, notes, sample, label, named)
    if "bad_rows" in data:
        result.warnings.append(data["bad_rows"][1])
    result.warnings += [column.warning for column in result.columns.values() if column.warning]
    result.warnings += [f"{name} is left out: {reason}" for name, reason in form.left_out.items()]
    result.doubts += [*label.doubts, *notes]
    read = _read_by_inputs(result.columns)
    left_out = {
        column: kind.remark for column, kind in result.columns.items() if column not in read
    } | form.left_out
    if sample.days is None:
        sections = run_sizes.sections(trained)
    else:
        rows_of_day = round(trained / len(np.unique(sample.days)))
        sections = run_sizes.daily_sections(rows_of_day, len(named.days))
    parts = ConfParts(_title(result, named, name), data, inputs, left_out, sections)
    result.text = _text_of(parts)


def _text_of(parts: ConfParts) -> str:
    """The text, without comments where it would be too long. Raises Failure if it still is."""
    text = conf_text(parts)
    if len(text.encode()) > limits.CONF_BYTES:
        parts.left_out = {}
        parts.title.append(f"It would have over {limits.CONF_BYTES:,} bytes with its comments.")
        text = conf_text(parts, with_evidence=False)
    if len(text.encode()) > limits.CONF_BYTES:
        raise Failure(
            f"a conf of {len(parts.inputs):,} inputs would be longer than {limits.CONF_BYTES:,} "
            "bytes, the most that a conf may have. Write columns together as lists"
        )
    return text


def _read_by_inputs(columns: dict[str, Column]) -> set[str]:
    """The columns that inputs are made of: an age is made of two."""
    inputs = [entry for column in columns.values() for entry in column.inputs]
    starts = {entry.settings.get("since_column", entry.column) for entry in inputs}
    return starts.union(entry.column for entry in inputs)


def _times(columns: dict[str, Column]) -> dict[str, Any]:
    """`data.times` for the columns of times that are read, unless the format is the default."""
    read = _read_by_inputs(columns)
    return {
        name: {"format": column.times.format}
        for name, column in columns.items()
        if name in read and column.times and column.times.format not in (None, ISO)
    }


def _group_of(columns: dict[str, Column]) -> tuple[str, str] | None:
    """The column of users, whose AUC is reported by itself."""
    for name, column in columns.items():
        words = name.lower().replace("_", "").removesuffix("id")
        several = column.figures.occurring >= 3 * max(column.figures.distinct, 1)
        if column.kind == "id" and words in ("user", "u", "member", "visitor") and several:
            settings = column.inputs[0].settings
            if "ids" not in settings and not column.figures.missing:
                return name, "AUC is reported within users too (gauc)"
    return None


def _add_tolerance(
    data: dict[str, tuple[Any, str]],
    notes: list[str],
    sample: Sample,
    label: ChosenLabel,
    named: NamedFiles,
) -> None:
    """The keys that allow what is wrong with the data: bad rows, and files without any byte."""
    if bad := _bad_rows(sample, label):
        data["bad_rows"] = bad
    if named.empty:
        more = f" and {len(named.empty) - 1:,} more" if len(named.empty) > 1 else ""
        first = f"{masked(named.empty[0])}{more}"
        data["skip_empty"] = (True, f"without any byte: {first}")
        notes.append(f"{first}: without any byte, and passed over")


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


def _title(result: FirstConf, named: NamedFiles, name: str) -> list[str]:
    sample = result.sample
    whole = (
        f"all {sample.rows:,} rows"
        if sample.is_whole
        else (f"the first {sample.rows:,} of about {sample.estimate:,} rows")
    )
    several = len(named.names["train"])
    of_files = f" of {several:,} files" if several > 1 else ""
    lines = [
        f"Written by tnctl init, which read {whole}{of_files}. Each comment says what shows the "
        "line.",
        "",
        f"    tnctl check conf={name or 'FILE.yaml'}",
        f"    tnctl train conf={name or 'FILE.yaml'}",
    ]
    if result.warnings:
        lines += ["", "Warnings:", *(f"  - {text}" for text in result.warnings)]
    if result.doubts:
        lines += ["", "What the data does not say:", *(f"  - {text}" for text in result.doubts)]
    return [*lines, ""] if result.warnings or result.doubts else lines
