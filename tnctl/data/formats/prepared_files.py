"""Prepared data: a folder of Parquet files that have ids already (docs/formats/prepared.md).

It belongs to the conf that it was made with: whatever of a conf decides the ids and numbers is in
its manifest, and another conf is refused.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from tnctl import documents, files, manifest
from tnctl.data.bad_rows import SPLITS, SplitName
from tnctl.data.file_pieces import FileFaults, GroupedReader, Tables, counted
from tnctl.data.formats.arrow_files import (
    ParquetReader,
    group_range,
    rows_of_groups,
    seekable,
    translated,
)
from tnctl.data.numbers import flat
from tnctl.data.statistics_document import Statistics
from tnctl.documents import Count, Name, RelativePath, Text, Tree, TreeByName
from tnctl.errors import Failure, UserError, quoted, refuse_if
from tnctl.manifest import DamagedError, Manifest
from tnctl.masking import bare_conf, masked_conf
from tnctl.schema import SERVING_KEYS, Conf, completed, differences


@dataclass(frozen=True, kw_only=True)
class SplitEntry:
    """A split: its rows, the bad rows left out, its Parquet files in order, its first rows."""

    rows: Count
    skipped: Count
    parts: tuple[RelativePath, ...]
    first: RelativePath


@dataclass(frozen=True, kw_only=True)
class DecidingConf:
    """What of a conf decides the ids, numbers and labels of its rows.

    `data` has the labels, and the names of the files of each split.
    """

    slots: dict[Name, TreeByName]
    numeric: dict[Name, TreeByName]
    data: dict[str, Tree]


@dataclass(frozen=True, kw_only=True)
class PreparedManifest(Manifest):
    """The manifest of prepared data."""

    FORMAT: ClassVar[str] = "tnctl prepared"

    tnctl: Text
    splits: dict[SplitName, SplitEntry]
    statistics: Statistics
    conf: DecidingConf

    def __post_init__(self) -> None:
        named = {path for entry in self.splits.values() for path in (*entry.parts, entry.first)}
        if self.files or self.sha256:  # else it is being made
            for path in self.files:
                if path not in named:
                    raise ValueError(f"key 'files' has {quoted(path)}, which no split names")
            if missing := sorted(named - self.files.keys()):
                raise ValueError(f"key 'files' has no {quoted(missing[0])}")


AGAIN = "Prepare the data again"
MOST = float(np.finfo(np.float32).max)
KINDS = {"weight": pa.float32(), "reference": pa.float64(), "group": pa.uint64()}


def check(conf: Conf, table: pa.Table, url: str) -> None:
    """Raise Failure for a column that is absent, or that tnctl cannot have written.

    What reads the columns does not look at types again: it would read memory beyond them.
    """

    def refuse_unless(is_right: Any, name: str, what: str) -> None:
        if not is_right:
            raise Failure(f"{url}: column {quoted(name)} should {what}. {AGAIN}")

    def column(name: str) -> pa.Array:
        refuse_unless(table.column_names.count(name) == 1, name, "be there once")
        return flat(table.column(name))

    def refuse_nulls(array: pa.Array, name: str) -> None:
        refuse_unless(array.null_count == 0, name, "have a value in every row")

    def cells(name: str, kind: pa.DataType) -> pa.Array:
        """Each row has one value, none or one, or a list of values, which has no nulls."""
        array = column(name)
        if array.type != kind:
            has = f"be {kind}, or lists of it. It has {array.type}"
            is_right = pt.is_list(array.type) and array.type.value_type == kind
            refuse_unless(is_right, name, has)
            refuse_nulls(array, name)
            refuse_nulls(array.flatten(), name)
        return array

    def values(name: str, kind: pa.DataType) -> pa.Array:
        """Each row has one value."""
        array = column(name)
        refuse_unless(array.type == kind, name, f"be {kind}. It has {array.type}")
        refuse_nulls(array, name)
        return array

    for name, slot in conf.slots.items():
        if not slot.indicator:
            ids = cells(f"ids_{name}", pa.uint64())
            if slot.weights is not None:
                weights = cells(f"weights_{name}", pa.float32())
                is_right = _lengths(ids).equals(_lengths(weights))
                refuse_unless(is_right, f"weights_{name}", "have a weight for each id")
    if conf.numeric or any(slot.indicator for slot in conf.slots.values()):
        numeric = column("numeric")
        is_right = pt.is_fixed_size_binary(numeric.type) and numeric.type.byte_width % 4 == 0
        refuse_unless(is_right, "numeric", f"be of 4 bytes a number. It has {numeric.type}")
        refuse_nulls(numeric, "numeric")
    least, most = (-MOST, MOST) if conf.train.loss.name == "mse" else (0.0, 1.0)
    for name in conf.data.all_labels:
        is_right = _within(values(f"label_{name}", pa.float32()), least, most)
        refuse_unless(is_right, f"label_{name}", f"have labels from {least:g} to {most:g}")
    for key, kind in KINDS.items():
        if getattr(conf.data, key) is not None:
            array = values(key, kind)
            is_right = key != "weight" or _within(array, 0, MOST)
            refuse_unless(is_right, key, "have finite numbers, at least 0")


def _lengths(array: pa.Array) -> pa.Array:
    """How many values each row has, of lists; else which rows have one."""
    return pc.list_value_length(array) if pt.is_list(array.type) else array.is_valid()


def check_width(array: pa.Array, width: int) -> None:
    """Raise Failure unless the column `numeric`, binary [rows], has `width` float32 in each row."""
    refuse_if(
        array.type.byte_width != 4 * width,
        f"prepared data has {array.type.byte_width // 4} numbers in each row of column 'numeric', "
        f"the conf {width}. {AGAIN}",
        Failure,
    )


def _within(array: pa.Array, least: float, most: float) -> bool:
    values = array.to_numpy()
    return bool(((values >= least) & (values <= most)).all())  # NaN is neither


# How rows are trained, not what they are: these keys of slots may differ.
OF_ROWS = SERVING_KEYS | {
    "group", "pooling", "width", "linear", "initial", "initial_scale", "max_norm", "frozen",
}  # fmt: skip
OF_LOSS = {"weight", "mature_days"}  # the keys of labels that may differ
OF_DATA = (
    "format", "delimiter", "header", "columns", "pairs", "skip_rows", "strip", "missing",
    "check_utf8", "weight", "group", "reference",
)  # fmt: skip


def open_folder(conf: Conf) -> PreparedManifest:
    """The manifest of data.prepared.

    Raises `Failure` when the folder is not whole, `UserError` when it was made with another conf.
    """
    folder = folder_of(conf)
    stored = manifest.read(folder, PreparedManifest)
    expected, received = deciding(conf), _completed(stored.conf)
    # A split that is not read need not be in the folder.
    unread = {str(split): None for split in SPLITS if expected.data[split] is None}
    received = dataclasses.replace(received, data={**received.data, **unread})
    if differing := differences(
        bare_conf(documents.plain(expected)), bare_conf(documents.plain(received))
    ):
        raise UserError(
            f"{folder} was prepared with another conf; these keys differ: {', '.join(differing)}. "
            "Prepare it again, or train with the keys that it was prepared with"
        )
    return stored


def folder_of(conf: Conf) -> str:
    """The path or URL of data.prepared."""
    return conf.paths.path("data.prepared", str(conf.data.prepared))


def deciding(conf: Conf) -> DecidingConf:
    """Whatever of a conf decides the ids, numbers and labels of its rows, as JSON holds it.

    Without secrets of URLs, which decide none.
    """
    data = conf.data
    labels = {name: dataclasses.asdict(label) for name, label in data.all_labels.items()}
    slots = {name: dataclasses.asdict(slot) for name, slot in conf.slots.items()}
    numeric = {name: dataclasses.asdict(number) for name, number in conf.numeric.items()}
    keys = {
        "slots": {
            # Missing values keep their places in a sequence, and only there.
            name: keys | {"sequence": conf.slots[name].pooling == "none"}
            for name, keys in _without(OF_ROWS, slots).items()
        },
        "numeric": _without(SERVING_KEYS, numeric),
        "data": {
            **{key: getattr(data, key) for key in OF_DATA},
            "labels": _without(OF_LOSS, labels),
            "times": {name: dataclasses.asdict(time) for name, time in data.times.items()},
            **{str(split): data.source(split) for split in SPLITS},
            "split": dataclasses.asdict(data.split) if data.is_cut("train") else None,
        },
    }
    text = json.dumps(masked_conf(json.loads(json.dumps(keys))))
    return documents.parse(DecidingConf, text.encode())


def _without(names: Collection[str], sections: Any) -> Any:
    """Named sections without some of their keys; what is no section stays, to be compared."""
    if not isinstance(sections, Mapping):
        return sections
    return {
        name: {key: value for key, value in keys.items() if key not in names}
        if isinstance(keys, Mapping)
        else keys
        for name, keys in sections.items()
    }


def _completed(stored: DecidingConf) -> DecidingConf:
    """The stored conf, completed by the keys that tnctl did not have when it was written."""
    data = {"split": None, **stored.data}
    full = completed({"slots": stored.slots, "numeric": stored.numeric, "data": data})
    full["data"]["labels"] = _without(OF_LOSS, full["data"]["labels"])
    slots = _without(OF_ROWS, full["slots"])
    return DecidingConf(
        slots={name: {"sequence": False} | keys for name, keys in slots.items()},
        numeric=_without(SERVING_KEYS, full["numeric"]),
        data=data | {key: full["data"][key] for key in (*OF_DATA, "labels", "times", "split")},
    )


class PreparedReader(GroupedReader):
    """Reads the files of data.prepared: rows that have ids already.

    Raises `Failure` and `UserError` as `open_folder` does.
    """

    def __init__(self, conf: Conf, skip_rows: int = 0) -> None:
        super().__init__(conf, skip_rows)
        self._folder = folder_of(conf)
        self.manifest = open_folder(conf)

    def entry(self, split: str) -> SplitEntry:
        """The manifest's entry of a split. Raises `UserError` when it was not prepared."""
        for name, entry in self.manifest.splits.items():
            if name == split:
                return entry
        raise UserError(f"{self._folder} has no data.{split}. Prepare it with one")

    def urls(self, split: str) -> list[str]:
        """The Parquet files of a split, in order."""
        return [files.join(self._folder, name) for name in self.entry(split).parts]

    def counts(self, url: str) -> list[int]:
        with seekable(url) as stream, translated(url, ParquetReader.format, AGAIN):
            return rows_of_groups(pq.ParquetFile(stream).metadata)

    def tables_of_groups(
        self,
        url: str,
        needed: list[str],  # noqa: ARG002
        faults: FileFaults,  # noqa: ARG002
        first: int,
        end: int | None,
    ) -> Tables:
        """The rows of row groups, one at a time, with the columns as they are stored.

        Raises `Failure` for a file that differs from its entry in the manifest, or is damaged.
        """
        sizes = {
            files.join(self._folder, n): entry.bytes for n, entry in self.manifest.files.items()
        }
        stored, size = sizes[url], files.size(url)
        if size != stored:
            raise Failure(
                f"{url} is cut short or too long: {size:,} bytes, the manifest says {stored:,}. "
                f"{AGAIN}"
            )
        with seekable(url) as stream, translated(url, ParquetReader.format, AGAIN):
            source = pq.ParquetFile(stream, page_checksum_verification=True)
            chosen, row = group_range(url, rows_of_groups(source.metadata), first, end)
            for group in chosen:
                table = source.read_row_group(group)
                check(self.conf, table, url)
                yield table, counted(url, row)
                row += table.num_rows

    def first_rows(self, split: str, limit: int) -> list[dict[str, Any]]:
        """The first rows of a split as they were in its files, as many as were kept."""
        name = self.entry(split).first
        try:
            # Python's JSON: bytes that are not UTF-8 are lone surrogates.
            rows = json.loads(manifest.read_file(self._folder, self.manifest, name))
        except (ValueError, RecursionError):
            rows = None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            url = files.join(self._folder, name)
            raise DamagedError(self._folder, f"{url} is no list of rows", AGAIN)
        return rows[:limit]
