"""Rows as a memory-mapped dictionary with its index. docs/formats/dictionary.md."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import cast

import numpy as np

from tnctl import files
from tnctl.manifest import Inventory, Manifest
from tnctl.serving.artefact_document import local_copy
from tnctl.serving.rows import file_format
from tnctl.serving.rows.export_document import FileGroup
from tnctl.serving.rows.file_format import (
    FileFormat,
    Lookup,
    last_of_ascending,
    records_of,
    reported_damage,
)
from tnctl.serving.rows.precision import Bools, Payloads, Precision, Records, RowShape, Uint64s
from tnctl.serving.rows.selection import Group
from tnctl.tables.dictionary import (
    Dictionary,
    DictionaryStack,
    DictionaryWriter,
)

INDEX_LINE, INDEX_RECORDS = 64, 42  # bytes of a line of an index, and records per line


class DictionaryFormat(FileFormat):
    """A dictionary for each group, removed keys of a delta among its records."""

    name, suffix, index_suffix = "dictionary", ".dictionary", ".index"
    mapped = counts_first = True

    def open_writer(
        self, stack: ExitStack, inventory: Inventory, group: Group, delta: bool
    ) -> "GroupDictionaryWriter":
        return GroupDictionaryWriter(stack, inventory, group, delta)

    def open_group(
        self, folder: str, content: Manifest, entry: FileGroup, temporary: Path
    ) -> "DictionaryGroup":
        return DictionaryGroup(folder, content, entry, temporary)

    def lookup(self, entry: FileGroup, stored: Sequence["DictionaryGroup"]) -> Lookup:  # noqa: ARG002
        stack = DictionaryStack([group.dictionary for group in stored])
        return lambda ids: stack.lookup(np.ascontiguousarray(ids, np.uint64))


class GroupDictionaryWriter:
    """Writes the dictionary of a group, and its index."""

    def __init__(self, stack: ExitStack, inventory: Inventory, group: Group, delta: bool) -> None:
        names, shape = FORMAT.names(group.stem, group.removed), group.shape
        self._inventory, self._index = inventory, names["index"]
        self._writer = DictionaryWriter(
            stack.enter_context(inventory.writing(names["file"])).write,
            salt=group.salt,
            **asdict(shape),
            stride=shape.stride,
            records=group.rows + group.removed,
            removed=group.removed,
            delta=delta,
        )

    def add(
        self,
        ids: Uint64s,  # noqa: ARG002 (hashes are stored)
        hashes: Uint64s,
        payload: Payloads,
        removed: Bools | None,
    ) -> None:
        self._writer.add(hashes, payload, removed)

    def finish(self) -> None:
        self._inventory.write(self._index, self._writer.finish())


class DictionaryGroup:
    """A dictionary file, mapped into memory; a remote one is first copied to `temporary`."""

    def __init__(self, folder: str, content: Manifest, entry: FileGroup, temporary: Path) -> None:
        self._url, self._shape = files.join(folder, entry.rows_file), entry.shape
        path, index = (local_copy(folder, content, name, temporary) for name in entry.names)
        with files.translated(self._url), reported_damage(self._url):
            self.dictionary = stored = Dictionary(str(path), str(index))
            precision = cast(Precision, stored.precision)
            if RowShape(stored.linear, stored.width, stored.cvm, precision) != entry.shape:
                raise ValueError("its rows are not those that the manifest says")
            counts = stored.rows - stored.removed, stored.removed
            if (*counts, str(stored.salt)) != (entry.rows, entry.removed, entry.salt):
                raise ValueError("its keys are not those that the manifest says")

    def sources(self, count: int = 1) -> list[Iterator[Records]]:
        return [
            self._records(max(1, file_format.BYTES_PER_READ // count // (self._shape.stride + 8)))
        ]

    def close(self) -> None:
        self.dictionary.close()

    def _records(self, at_once: int) -> Iterator[Records]:
        last, rows = -1, self.dictionary.rows
        with reported_damage(self._url):
            for first in range(0, rows, at_once):
                count = min(at_once, rows - first)
                hashes, removed, payload = self.dictionary.records(first, count)
                last = last_of_ascending(last, hashes)
                yield records_of(
                    ids_of(hashes, self.dictionary.salt), removed, payload, self._shape
                )


def ids_of(hashes: Uint64s, salt: int) -> Uint64s:
    """The ids whose keys hash so in the group of a salt, uint64 [n]. docs/formats/ids.md."""
    shift = np.uint64(33)
    x = hashes ^ hashes >> shift
    x = x * np.uint64(0x9CB4B2F8129337DB)
    x = (x ^ x >> shift) * np.uint64(0x4F74430C22A54005)
    return (x ^ x >> shift) ^ np.uint64(salt)


FORMAT = DictionaryFormat()
