"""Prepared data: a folder of Parquet files that have ids already (docs/formats/prepared.md).

It belongs to the conf that it was made with: whatever of a conf decides the ids and numbers is in
its manifest, and another conf is refused.
"""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from tnctl import documents, files, manifest
from tnctl.data.file_pieces import Piece, counted
from tnctl.data.formats import prepared_columns
from tnctl.data.formats.arrow_files import seekable, translated
from tnctl.data.formats.file_reader import GroupedReader
from tnctl.data.formats.parquet_files import ParquetReader, group_range, rows_of_groups
from tnctl.data.formats.prepared_columns import AGAIN
from tnctl.data.formats.prepared_document import SPLITS, DecidingConf, PreparedManifest, SplitEntry
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError
from tnctl.masking import bare_conf, masked_conf
from tnctl.schema import Conf, completed, differences

# How rows are trained, not what they are: these keys of slots may differ.
OF_ROWS = {
    "group", "pooling", "width", "linear", "initial", "initial_scale", "max_norm", "frozen",
}  # fmt: skip
OF_LOSS = {"weight"}  # the key of labels that may differ
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
    keys = {
        "slots": {
            # Missing values keep their places in a sequence, and only there.
            name: keys | {"sequence": conf.slots[name].pooling == "none"}
            for name, keys in _without(OF_ROWS, slots).items()
        },
        "numeric": {name: dataclasses.asdict(numeric) for name, numeric in conf.numeric.items()},
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
    """The same with the keys that tnctl did not have when it was written."""
    data = {"split": None, **stored.data}
    full = completed({"slots": stored.slots, "numeric": stored.numeric, "data": data})
    full["data"]["labels"] = _without(OF_LOSS, full["data"]["labels"])
    slots = _without(OF_ROWS, full["slots"])
    return DecidingConf(
        slots={name: {"sequence": False} | keys for name, keys in slots.items()},
        numeric=full["numeric"],
        data=data | {key: full["data"][key] for key in (*OF_DATA, "labels", "times", "split")},
    )


class PreparedReader(GroupedReader):
    """Reads the files of data.prepared: rows that have ids already.

    Raises `Failure` and `UserError` as `open_folder` does.
    """

    def __init__(self, conf: Conf) -> None:
        self._conf, self._folder = conf, folder_of(conf)
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

    def group_rows(self, url: str) -> list[int]:
        with seekable(url) as stream, translated(url, ParquetReader.format, AGAIN):
            return rows_of_groups(pq.ParquetFile(stream).metadata)

    def pieces_of_groups(
        self,
        url: str,
        needed: list[str],  # noqa: ARG002
        first: int,
        end: int | None,
    ) -> Iterator[Piece]:
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
                prepared_columns.check(self._conf, table, url)
                yield Piece(table, counted(url, row))
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
