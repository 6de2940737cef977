"""From the names of files to a conf: what `tnctl init` does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tnctl import limits
from tnctl.data.batch_sizes import by_rows
from tnctl.data.file_pieces import partitions_of
from tnctl.data.sources import DAY
from tnctl.errors import Failure, UserError, quoted, refuse_if
from tnctl.masking import masked
from tnctl.schema import AUTO, is_whole
from tnctl.starting.column_figures import FEW_VALUES, Figures, figures
from tnctl.starting.column_kinds import Column, Context, kind_of
from tnctl.starting.conf_text import Input, Settings, conf_text
from tnctl.starting.file_form import FileForm, LineFeatures, form_of, line_features
from tnctl.starting.label_choice import ChosenLabel, choose_label
from tnctl.starting.named_files import DAYS_READ, NamedFiles, named_files
from tnctl.starting.other_splits import kept_rows, other_splits
from tnctl.starting.sample import ROWS, Sample, read_rows

NUMBERS = 0.9  # the share of numbers in a column whose other texts mean a missing value
MOST_MISSING_TEXTS = 3  # different ones in such a column
SMALL, MIDDLE = 300_000, 3_000_000  # rows
RARE = 100  # rows of an id, on average of a slot, below which its embedding is held small
OF_NUMBERS = ("quantiles", "row_quantiles", "boundaries")  # slots.X.ids of few values
# docs/defaults.md has what was measured.
RATES: tuple[dict[str, Any], str] = (
    {
        "linear": {"learning_rate": 0.1, "initial_gradients": 17},
        "embedding": {"initial_gradients": 17},
    },
    "the same first steps of a row with every batch size",
)
RATES_BY_DAYS = (
    RATES[0] | {"dense": {"learning_rate": 0.0015}, "schedule": {"name": "day", "end": 0.02}},
    "rates fall within each day: the bias for the next is not that of the last batches",
)
EMBEDDING_L2 = 800  # of the summed loss of a pass: divided by its rows, of the mean loss


@dataclass
class FirstConf:
    """A conf and what a user reads of it: the kind of each column, warnings, doubts."""

    named: NamedFiles
    form: FileForm
    sample: Sample
    label: ChosenLabel
    columns: dict[str, Column]
    data: Settings
    inputs: list[Input]
    warnings: list[str]
    doubts: list[str]
    name: str  # of its file

    @cached_property
    def text(self) -> str:
        """The file. Raises Failure for one that is too long."""
        left_out = {name: column.remark for name, column in self.columns.items()}
        for entry in self.inputs:
            left_out.pop(entry.column, None)
        left_out |= self.form.left_out
        recipe = "deepfm" if self.has_rare_ids else "dcn"
        text = conf_text(self._title(), self.data, self.inputs, left_out, self._sections(), recipe)
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
        of_ids = [
            column.figures
            for column in self.columns.values()
            if any(
                entry.section == "slots" and entry.settings.get("ids") not in OF_NUMBERS
                for entry in column.inputs
            )
        ]
        return any(figures.occurring < RARE * figures.distinct for figures in of_ids)

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
        if self.warnings:
            lines += ["", "Warnings:", *(f"  - {text}" for text in self.warnings)]
        if self.doubts:
            lines += ["", "What the data does not say:", *(f"  - {text}" for text in self.doubts)]
        return [*lines, ""] if self.warnings or self.doubts else lines

    def _sections(self) -> Settings:
        """The sections recipe, train and evaluation, by the number of training rows."""
        kept = self.data["split"][0] if "split" in self.data else {}
        rows = self.sample.estimate
        rows -= round((kept.get("validation", 0) + kept.get("test", 0)) * rows)
        if self.named.pattern is None:
            return _recipe(rows) | _optimizer(rows, self.has_rare_ids) | _passes(rows)
        of_day = rows // min(len(self.named.days), DAYS_READ)
        batch = by_rows(of_day)
        steps = f"some {-(-of_day // batch):,} steps in a day"
        train = ({"batch_size": batch, "epochs": 1}, steps)
        of_rows = {"optimizer": RATES_BY_DAYS, "train": train}
        return _recipe(of_day * len(self.named.days)) | of_rows


def _recipe(rows: int) -> Settings:
    """The section recipe, unless its defaults are good for this number of rows."""
    if rows < SMALL:
        few = "a small tower, with dropout, for few rows"
        return {"recipe": ({"hidden": [64, 32], "dropout": 0.3}, few)}
    if rows < MIDDLE:
        return {"recipe": ({"hidden": [128, 64]}, f"for some {rows:,} rows")}
    return {}


def _optimizer(rows: int, has_rare_ids: bool) -> Settings:
    """The section optimizer for a number of training rows, in several passes."""
    rates, shown = RATES
    if not has_rare_ids:
        plateau = {"name": "plateau", "patience": 1, "reduce": 0.3}
        return {"optimizer": (rates | {"schedule": plateau}, shown)}
    l2 = {"lazy_l2": float(f"{EMBEDDING_L2 / max(rows, 1):.2g}")}
    embedding = rates["embedding"] | l2
    shown = f"ids with few rows each: L2 as of {EMBEDDING_L2} rows, over the rows of a pass"
    return {"optimizer": (rates | {"embedding": embedding}, shown)}


def _passes(rows: int) -> Settings:
    """The sections train and evaluation for a number of training rows."""
    batch = by_rows(rows)
    shown = f"{-(-rows // batch):,} steps in a pass"
    return {
        "train": ({"batch_size": batch, "epochs": AUTO}, shown),
        "evaluation": (
            {"patience": 3, "recalibrate": AUTO},
            "passes until three were not better; the best model is kept, and recalibrated",
        ),
    }


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
        form.evidence = features.evidence
    refuse_if(
        len(form.columns) < 2 and not features.slots,
        f"{named.urls('train')[0]} has one column, and a row needs a label and an input",
        Failure,
    )
    sample = read_rows(form, named, "train", form.columns, ROWS)
    table, strip = sample.table, bool(form.keys.get("strip"))
    measured = {column: figures(column, table.column(column), strip) for column in form.columns}
    missing = _missing_texts(measured)
    # Files that were joined have their headers among the rows.
    measured = {column: of.without({"", column, *missing}) for column, of in measured.items()}
    is_named = "c1" not in form.columns and form.format != "libsvm"
    chosen = choose_label(measured, label, positive, is_named)
    context = Context(form, chosen.values, sample.estimate, features.ids)
    columns = {
        column: kind_of(of, context) for column, of in measured.items() if column != chosen.column
    }
    inputs = [entry for column in columns.values() for entry in column.inputs] + [
        Input("slots", slot, "", dict(settings), shown)
        for slot, (settings, shown) in features.slots.items()
    ]
    reasons = [f"{column}: {of.remark}" for column, of in columns.items()][:3]
    refuse_if(not inputs, f"no column is left as an input ({'; '.join(reasons)})", Failure)
    doubts = [*chosen.doubts, *named.left_out]
    data = _places(named, name) | other_splits(named, form, chosen, doubts)
    if named.pattern is None and "validation" not in data:
        data["split"] = kept_rows(sample.estimate, columns, "test" in data)
    data |= _reading(form, missing, chosen) | _tolerance(sample, chosen, named)
    if "skip_empty" in data:
        doubts.append(f"{data['skip_empty'][1]}; passed over")
    warnings = [data["bad_rows"][1]] if "bad_rows" in data else []
    warnings += [column.warning for column in columns.values() if column.warning]
    warnings += [f"{column} is left out: {reason}" for column, reason in form.left_out.items()]
    return FirstConf(named, form, sample, chosen, columns, data, inputs, warnings, doubts, name)


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
        others = np.flatnonzero(~is_number & (column.counts > 0))
        numbers = column.counts[is_number]
        if np.count_nonzero(numbers) <= FEW_VALUES or len(others) > MOST_MISSING_TEXTS + 2:
            continue
        counts = {str(column.values[int(at)].as_py()): int(column.counts[at]) for at in others}
        counts = {text: count for text, count in counts.items() if text not in ("", name)}
        if numbers.sum() >= NUMBERS * (numbers.sum() + sum(counts.values())):
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


def _reading(form: FileForm, missing: Mapping[str, str], label: ChosenLabel) -> Settings:
    """The keys of `data` that say how rows are read."""
    data: Settings = {"format": (form.format, form.evidence), **form.settings}
    if missing:
        data["missing"] = (["", *missing], "; ".join(missing.values()))
    return data | {"label": (label.keys, label.evidence)}


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
