"""`data`, the files and how they are read, and `gate`, what a day's files must look like."""

import math
from dataclasses import dataclass
from typing import Any

from tnctl.errors import refuse_if
from tnctl.schema.declarations import Section, choice, key, number
from tnctl.schema.input_sections import SLOT_NAME
from tnctl.schema.time_section import Time

GENERATED = ("generated", "arrivals")  # formats whose rows are in no file
FORMATS = ("csv", "parquet", "orc", "tfrecord", "libsvm", "paddle", "jsonl", *GENERATED)
SINGLE_LABEL = "label"


@dataclass
class Label(Section):
    """Where a label is, and what it counts in the loss."""

    column: str = key("label", "the column of the label")
    positive: list[str] | None = key(
        None, "the texts that count as 1 (all others 0); without it the label is a number"
    )
    above: float | None = key(
        None, "numbers above it count as 1 and all others as 0, such as ratings over 3"
    )
    weight: float = number(1.0, 0, 1_000_000, "the weight of this label in the loss")
    mature_days: int = number(
        0,
        0,
        10_000,
        "daily training, a label that arrives late: so many days after a day it is trained on it, "
        "in a second visit to the day's data",
        unit="days",
    )

    def check(self) -> None:
        refuse_if(
            self.positive is not None and self.above is not None,
            "positive (of texts) and above (of numbers) exclude each other",
        )


@dataclass
class Split(Section):
    """The rows of data.train that data.validation and data.test get instead."""

    validation: float = number(0.0, 0, 1, "the share of the rows that become data.validation")
    test: float = number(0.0, 0, 1, "the share of the rows that become data.test")
    by: str = key(
        "rows",
        "how rows are chosen: rows (at random, by the hash of their place), last (the last ones in "
        "the order of the files: validation, then test), or the name of a column, such as the "
        "user: by the hash of its value, so that all rows of a value are in one split",
    )
    seed: int = number(0, 0, 2**63 - 1, "of the hash: another one chooses other rows")

    def check(self) -> None:
        refuse_if(
            self.validation + self.test >= 1,
            f"split leaves no row for data.train. Received: validation={self.validation} and "
            f"test={self.test}, shares whose sum must be below 1",
        )
        refuse_if(not self.by, "split.by is empty. Take rows, last, or the name of a column")

    @property
    def column(self) -> str | None:
        """The column whose values choose the rows, None without one."""
        is_used = self.validation or self.test
        return self.by if is_used and self.by not in ("rows", "last") else None


@dataclass
class Data(Section):
    """The input files and how to read them."""

    root: str | None = key(None, "the folder or URL that relative file names start from")
    train: Any = key(
        None,
        "file, URL, glob, folder with / at its end, or list; or {files: …, skip_rows: N} "
        "(generated data: a range of rows)",
    )
    validation: Any = key(None, "as data.train; evaluated after every epoch")
    test: Any = key(None, "as data.train; evaluated once, at the end")
    split: Split = key(Split, "the rows of data.train that are kept for validation and test")
    prepared: str | None = key(
        None, "the folder or URL that `tnctl prepare` wrote: rows come from it, already as ids"
    )
    format: str = choice(
        "csv",
        FORMATS,
        "csv, parquet, orc, tfrecord (of tf.Example), libsvm (also libfm and libffm), paddle "
        "(slot:feature text), jsonl (a JSON object per line), or generated clicks: generated or "
        "arrivals",
    )
    delimiter: str = key(",", "csv: one character; '\\t' for TSV")
    header: bool = key(True, "csv: the first line names the columns")
    columns: list[str] | None = key(
        None,
        "csv without header: the names, in file order (a header wins); paddle: the slots of lines "
        "that have no names (MultiSlot), in file order",
    )
    pairs: str = choice(
        "slot:value",
        ("slot:value", "value:slot"),
        "paddle: which part of a word is the slot: slot:value or value:slot",
    )
    skip_rows: int = number(0, 0, math.inf, "csv: lines to skip at the start of each file")
    strip: bool = key(False, "csv: remove ASCII blanks around values")
    missing: list[str] = key(
        lambda: [""], "texts that mean a missing value (of text, ids and numbers in text)"
    )
    times: dict[str, Time] = key(
        dict, "by column: how times are written (default: iso, and times as Parquet has them)"
    )
    check_utf8: bool = key(True, "refuse text that is not UTF-8 (false: hash its bytes)")
    bad_rows: int = number(
        0,
        0,
        math.inf,
        "the most rows in a pass that cannot be read and are skipped (0: stop at the first one)",
    )
    skip_empty: bool = key(
        False, "pass over files without any byte, as Spark writes them for empty parts"
    )
    label: Label = key(Label, "the label")
    labels: dict[str, Label] = key(
        dict, "several labels, by the names of the recipe's heads; used instead of label"
    )
    weight: str | None = key(None, "a column with the weight of each example in the loss")
    days: Any = key(
        None,
        "daily training, with {day} in data.train: a list of days, FIRST..LAST, FIRST.. or "
        "..LAST (default: all that are there)",
    )
    negatives: float = number(
        1.0,
        1e-9,
        1,
        "the share of examples with label 0 that are trained on, chosen by (seed, row); the "
        "logits of evaluation and serving are corrected for it",
    )
    group: str | None = key(
        None, "a column, such as the user: AUC is reported per group of its values too (GAUC)"
    )
    carry: list[str] = key(list, "columns that predict writes beside the scores")
    reference: str | None = key(
        None, "a column with another model's score: its AUC is reported beside this model's"
    )
    window: int = number(262_144, 1, 2**31 - 1, "rows that are read, and shuffled, together")
    shuffle: bool = key(True, "shuffle the rows of each window in training")

    def normalize(self) -> None:
        # In a shell or in single quotes a tab is hard to spell.
        self.delimiter = {"\\t": "\t", "tab": "\t"}.get(self.delimiter, self.delimiter)

    def check(self) -> None:
        refuse_if(
            len(self.delimiter) != 1 or self.delimiter in '"\r\n',
            f"delimiter must be one character. Received: {self.delimiter!r} "
            "(a tab is data.delimiter='\\t')",
        )
        refuse_if(
            self.format == "csv" and not self.header and not self.columns,
            "header=false needs data.columns, the names in file order",
        )
        for name in self.labels:
            refuse_if(not SLOT_NAME.fullmatch(name), f"labels.{name} is not a name a graph can use")

    def source(self, split: str) -> Any:
        """What a split is read from, None where the conf has no such split.

        The files of its own key, or those of data.train where data.split gives it rows of them.
        """
        named = getattr(self, split)
        return self.train if named is None and self.is_cut(split) else named

    def is_cut(self, split: str) -> bool:
        """Whether data.split chooses the rows of a split among those of its files."""
        if split == "train":
            return bool(self.split.validation or self.split.test)
        return bool(getattr(self.split, split)) and getattr(self, split) is None

    def share(self, split: str) -> float:
        """The share of the rows of data.train that data.split gives a split."""
        shares = {"validation": self.split.validation, "test": self.split.test}
        return shares.get(split, 1 - sum(shares.values()))

    @property
    def is_generated(self) -> bool:
        """Whether rows are generated, and read from no file."""
        return self.prepared is None and self.format in GENERATED

    @property
    def all_labels(self) -> dict[str, Label]:
        """The labels by name; a single one is called `label`."""
        return self.labels or {SINGLE_LABEL: self.label}

    @property
    def late_labels(self) -> dict[str, int]:
        """The labels that arrive late, each with its `mature_days`."""
        return {name: of.mature_days for name, of in self.all_labels.items() if of.mature_days}

    @property
    def prompt_labels(self) -> tuple[str, ...]:
        """The labels that are known when their day is trained."""
        return tuple(name for name in self.all_labels if name not in self.late_labels)

    def time_of(self, column: str) -> Time:
        """How a column writes times."""
        return self.times.get(column) or Time()


@dataclass
class Gate(Section):
    """What a day must look like, beside the days before it, to be trained on."""

    enabled: bool = key(True, "whether a day that looks broken is refused")
    days: int = number(
        7, 1, 10_000, "the number of the last trained days that a day is compared to", unit="days"
    )
    coverage: float = number(
        0.2, 0, 1, "the most that a slot's coverage (share of examples with an id) may move"
    )
    new_ids: float = number(
        0.5,
        0,
        1,
        "how much the share of occurrences whose ids have a row may drop, relative to that share: "
        "0.5 accepts a drop from 90 % to 45 %",
    )
    length: float = number(
        1.5, 1, 1_000_000_000, "the most that ids per example may grow or shrink, as a factor"
    )
    distinct: float = number(
        10.0,
        1,
        1_000_000_000,
        "the most that distinct ids may grow or shrink relative to the number of occurrences, as a "
        "factor",
    )
    label_rate: float = number(
        2.0, 1, 1_000_000_000, "the most that the label's mean may move, as a factor"
    )
    stability: float = number(
        1.0,
        0,
        1_000_000_000,
        "the most that an input's population stability index may be (0.25 is a large shift)",
    )
    exempt: list[str] = key(list, "slots and numeric inputs that are not compared")
