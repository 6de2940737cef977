"""The formats of exported rows in files: one interface, and one class for each format.

Parquet and text are written block by block and read from end to end; a dictionary is looked up by
its index. Writers take stored payloads, so that folding a chain of exports writes the bytes of a
full export. Readers give records in ascending order of the hashes of their keys.
docs/formats/embeddings.md and docs/formats/dictionary.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tnctl import files
from tnctl.errors import Failure
from tnctl.manifest import Inventory, Manifest
from tnctl.serving.artefact_document import local_copy
from tnctl.serving.rows.export_document import FileGroup
from tnctl.serving.rows.precision import (
    PRECISIONS,
    Bools,
    LookedUp,
    Payloads,
    Precision,
    Records,
    RowShape,
    Uint64s,
    decode,
    encode,
)
from tnctl.serving.rows.selection import SelectedGroup
from tnctl.tables import key_hashes
from tnctl.tables.dictionary import Dictionary, DictionaryStack, DictionaryWriter

BYTES_PER_READ = 4 << 20

# Ids uint64 [n] -> their decoded rows float32 [n, columns], zeros where unknown; which are known.
Lookup = Callable[[Uint64s], LookedUp]
# Takes ids uint64 [n] and payloads uint8 [n, stride].
WriteBlock = Callable[[Uint64s, Payloads], Any]
Block = tuple[Uint64s, Payloads | None]


class GroupWriter(Protocol):
    """Writes the files of one group."""

    def add(self, ids: Uint64s, hashes: Uint64s, payload: Payloads, removed: Bools | None) -> None:
        """The next keys: ids and hashes uint64 [n], payloads uint8 [n, stride].

        `removed` bool [n] says which keys are removed; None: no key is.
        """

    def finish(self) -> None:
        """Write what is left."""


class StoredGroup(Protocol):
    """The files of one group in one export, open for reading."""

    def sources(self, count: int = 1) -> list[Iterator[Records]]:
        """All records, in sources without a key in common, each ascending by hash.

        Arrays [n] of record_dtype, each with a `count`-th of the memory. Raises Failure.
        """

    def close(self) -> None:
        """Close the files."""


class FileFormat(ABC):
    """A format whose rows are files of a folder, a set of files for each share group."""

    name: ClassVar[str]  # as `format=` and the manifest's `encoding` have it
    # How the names of a group's files end: rows, removed ids of a delta, an index.
    suffix: ClassVar[str]
    removed_suffix: ClassVar[str | None] = None
    index_suffix: ClassVar[str | None] = None
    precisions: ClassVar[tuple[Precision, ...]] = PRECISIONS
    mapped: ClassVar[bool] = False  # files are mapped into memory: remote ones are copied first
    counts_first: ClassVar[bool] = False  # a writer needs the exact number of rows

    def names(self, group: str, removed: int) -> dict[str, Any]:
        """The files of a group that has `removed` removed keys, by the fields of FileGroup."""
        removed_suffix = self.removed_suffix if removed else None
        suffixes = {"file": self.suffix, "removed_file": removed_suffix, "index": self.index_suffix}
        return {key: suffix and group + suffix for key, suffix in suffixes.items()}

    @abstractmethod
    def open_writer(
        self, stack: ExitStack, inventory: Inventory, group: SelectedGroup, delta: bool
    ) -> GroupWriter:
        """The writer of a group's files, whose counts must be right; `stack` closes them.

        Call `finish` before the stack is closed.
        """

    @abstractmethod
    def open_group(
        self, folder: str, content: Manifest, entry: FileGroup, temporary: Path
    ) -> StoredGroup:
        """The reader of a group's files; copies go to the folder `temporary`. Raises Failure."""

    @abstractmethod
    def lookup(self, entry: FileGroup, stored: Sequence[Any]) -> Lookup:
        """Looks ids up in a group's files of a chain of exports, the newest first."""


def record_dtype(shape: RowShape) -> np.dtype[Any]:
    """What is stored of a key; `group` is 0, `payload` zeros where it was removed."""
    return np.dtype(
        [("id", "<u8"), ("group", "<u2"), ("removed", "?"), ("payload", "u1", (shape.stride,))]
    )


def records_of(ids: Uint64s, removed: Any, payload: Payloads | None, shape: RowShape) -> Records:
    """Records, record_dtype [n], of ids uint64 [n] with payloads uint8 [n, stride].

    `removed` is bool [n] or one bool for all; `payload` is None when all are removed.
    """
    records = np.zeros(len(ids), record_dtype(shape))
    records["id"], records["removed"] = ids, removed
    if payload is not None:
        records["payload"] = payload
    return records


def hashes_of(group: str, ids: Uint64s) -> Uint64s:
    """The hash of each id's key in a group, uint64 [n]. docs/formats/ids.md."""
    return key_hashes({0: group}, np.zeros(len(ids), np.uint16), np.ascontiguousarray(ids))


def last_of_ascending(last: int, hashes: Uint64s) -> int:
    """The last of hashes uint64 [n], n > 0.

    Raises ValueError unless they ascend, all of them above `last`.
    """
    if int(hashes[0]) <= last or (hashes[1:] <= hashes[:-1]).any():
        raise ValueError("its rows are not in the order of their hashes")
    return int(hashes[-1])


@contextmanager
def reported_damage(url: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns what a reader raises for a damaged file, or errors of `kinds`, into a Failure."""
    try:
        yield
    except (pa.ArrowException, ValueError, *kinds) as error:
        reason = str(error).strip().split("\n")[0]
        raise Failure(f"{url} is damaged ({reason}). Export again") from error


class BlockFormat(FileFormat):
    """A format that says how a block of rows is written, and how blocks are read."""

    # As many of each share group are in memory while it is written.
    rows_per_block: ClassVar[int] = 1 << 14

    @abstractmethod
    def open_blocks(self, stack: ExitStack, file: Any, shape: RowShape | None) -> WriteBlock:
        """What writes blocks of rows to an open file, or of ids alone when `shape` is None."""

    @abstractmethod
    def read_blocks(self, file: Any, shape: RowShape | None, size: int) -> Iterator[Block]:
        """The blocks of an open file, of about `size` bytes; None for payloads without `shape`.

        Raises ValueError, OSError or an Arrow error for a damaged file.
        """

    def open_writer(
        self,
        stack: ExitStack,
        inventory: Inventory,
        group: SelectedGroup,
        delta: bool,  # noqa: ARG002
    ) -> "BlockWriter":
        return BlockWriter(self, stack, inventory, group)

    def open_group(
        self,
        folder: str,
        content: Manifest,  # noqa: ARG002
        entry: FileGroup,
        temporary: Path,  # noqa: ARG002
    ) -> "BlockGroup":
        return BlockGroup(self, folder, entry)

    def lookup(self, entry: FileGroup, stored: Sequence["BlockGroup"]) -> Lookup:
        def of_ids(ids: Uint64s) -> LookedUp:
            hashes, inverse = np.unique(hashes_of(entry.group, ids), return_inverse=True)
            rows = np.zeros((len(hashes), entry.shape.columns), np.float32)
            known = np.zeros(len(hashes), bool)
            # What a newer export has of a key takes the place of what older ones have.
            for source in (source for group in reversed(stored) for source in group.sources()):
                for records in source:
                    stored_hashes = hashes_of(entry.group, records["id"])
                    first, last = np.searchsorted(hashes, stored_hashes[[0, -1]])
                    wanted = hashes[first : last + 1]
                    at = np.minimum(np.searchsorted(stored_hashes, wanted), len(records) - 1)
                    hit = stored_hashes[at] == wanted
                    indices, matching = first + np.flatnonzero(hit), records[at[hit]]
                    rows[indices] = decode(matching["payload"], entry.shape)
                    known[indices] = ~matching["removed"]
            return rows[inverse], known[inverse]

        return of_ids


class Buffer:
    """Collects rows, and hands them to `write` in blocks of one size.

    So the same rows are the same bytes wherever the parts of an export end. Rows are copied: a view
    would keep the whole part in memory.
    """

    def __init__(self, rows: int, stride: int, write: WriteBlock) -> None:
        self._ids = np.empty(rows, np.uint64)
        self._payload = np.empty((rows, stride), np.uint8)
        self._count, self._write = 0, write

    def add(self, ids: Uint64s, payload: Payloads) -> None:
        at, size = 0, len(self._ids)
        while at < len(ids):
            count = min(len(ids) - at, size - self._count)
            free = slice(self._count, self._count + count)
            self._ids[free], self._payload[free] = ids[at : at + count], payload[at : at + count]
            self._count, at = self._count + count, at + count
            if self._count == size:
                self.flush()

    def flush(self) -> None:
        """Write the rows that are left, if any."""
        if self._count:
            self._write(self._ids[: self._count], self._payload[: self._count])
        self._count = 0


class BlockWriter:
    """Writes the rows and the removed ids of a group into two files."""

    def __init__(
        self, format: BlockFormat, stack: ExitStack, inventory: Inventory, group: SelectedGroup
    ) -> None:
        def buffer(name: str, shape: RowShape | None, rows: int) -> Buffer:
            file = stack.enter_context(inventory.writing(name))
            write = format.open_blocks(stack, file, shape)
            return Buffer(rows, shape.stride if shape else 0, write)

        names, size = format.names(group.stem, group.removed), format.rows_per_block
        self._rows = buffer(names["file"], group.shape, min(size, max(group.rows, 1)))
        removed_file = names["removed_file"]
        self._removed = buffer(removed_file, None, size) if removed_file else None

    def add(
        self,
        ids: Uint64s,
        hashes: Uint64s,  # noqa: ARG002 (of dictionaries)
        payload: Payloads,
        removed: Bools | None,
    ) -> None:
        if self._removed and removed is not None:
            self._removed.add(ids[removed], payload[removed, :0])
            ids, payload = ids[~removed], payload[~removed]
        self._rows.add(ids, payload)

    def finish(self) -> None:
        for buffer in filter(None, (self._rows, self._removed)):
            buffer.flush()


@dataclass(frozen=True)
class BlockGroup:
    """A group whose files are read from end to end, however few keys are looked up."""

    format: BlockFormat
    folder: str
    entry: FileGroup

    def sources(self, count: int = 1) -> list[Iterator[Records]]:
        size, entry = BYTES_PER_READ // count, self.entry
        rows = self._records(entry.rows_file, entry.shape, entry.rows, size)
        if entry.removed_file is None:
            return [rows]
        return [rows, self._records(entry.removed_file, None, entry.removed, size)]

    def close(self) -> None:
        """Nothing stays open between two calls."""

    def _records(
        self, name: str, shape: RowShape | None, rows: int, size: int
    ) -> Iterator[Records]:
        """The records of a file. Raises Failure unless they are as many, in order of hashes."""
        last, url = -1, files.join(self.folder, name)
        with (
            reported_damage(url, OSError),  # which Arrow raises too
            files.open_input(url, decompress=False) as file,
        ):
            for ids, payload in self.format.read_blocks(file, shape, size):
                if len(ids):
                    last = last_of_ascending(last, hashes_of(self.entry.group, ids))
                    rows -= len(ids)
                    yield records_of(ids, shape is None, payload, self.entry.shape)
            if rows:
                raise ValueError("it has not as many rows as its manifest says")


# ---- Parquet ----


class ParquetFormat(BlockFormat):
    """A column for each part of a payload, a row group for each block."""

    name, suffix, removed_suffix = "parquet", ".parquet", ".removed.parquet"

    def open_blocks(self, stack: ExitStack, file: Any, shape: RowShape | None) -> WriteBlock:
        schema = schema_of(shape)
        # Ids and trained floats do not compress; dictionaries and statistics would only cost time.
        settings = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        writer = stack.enter_context(
            pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema, **settings)
        )
        return lambda ids, payload: writer.write_table(table_of(ids, payload, schema, shape))

    def read_blocks(self, file: Any, shape: RowShape | None, size: int) -> Iterator[Block]:
        opened = pq.ParquetFile(file)
        if not opened.schema_arrow.equals(schema_of(shape)):
            raise ValueError("its columns are not those that its manifest says")
        for batch in opened.iter_batches(max(1, size // ((shape.stride if shape else 0) + 8))):
            payload = None if shape is None else payload_of(batch, shape)
            yield batch.column("id").to_numpy(), payload


def fields_of(shape: RowShape | None) -> list[tuple[str, np.dtype[Any]]]:
    """The fields of a payload that are columns; none in a file of removed ids."""
    return [(name, shape.payload[name]) for name in shape.payload.names or ()] if shape else []


def schema_of(shape: RowShape | None) -> pa.Schema:
    """The columns of a file of rows, or of removed ids."""
    columns = [("id", pa.uint64())]
    for name, field in fields_of(shape):
        kind = pa.from_numpy_dtype(field.base)
        columns.append((name, pa.list_(kind, *field.shape) if field.shape else kind))
    return pa.schema(columns)


def table_of(
    ids: Uint64s, payload: Payloads, schema: pa.Schema, shape: RowShape | None
) -> pa.Table:
    """A column for each field of the payloads [n, stride]."""
    arrays = [pa.array(ids)]
    stored: NDArray[Any] = payload.view(shape.payload) if shape else payload
    for name, field in fields_of(shape):
        values = pa.array(stored[name].reshape(-1))
        arrays.append(
            pa.FixedSizeListArray.from_arrays(values, *field.shape) if field.shape else values
        )
    return pa.Table.from_arrays(arrays, schema=schema)


def payload_of(batch: pa.RecordBatch, shape: RowShape) -> Payloads:
    """The payloads uint8 [n, stride] of a record batch."""
    stored = np.zeros(len(batch), shape.payload)
    for name, field in fields_of(shape):
        column = batch.column(name)
        values = column.flatten() if field.shape else column
        stored[name] = values.to_numpy().reshape(stored[name].shape)
    return stored.view(np.uint8).reshape(len(batch), shape.stride)


# ---- Text ----


class TextFormat(BlockFormat):
    """A line for each row: its id, the number of its floats, and the floats."""

    name, suffix, removed_suffix = "text", ".txt", ".removed.txt"
    precisions = ("float32",)

    def open_blocks(self, stack: ExitStack, file: Any, shape: RowShape | None) -> WriteBlock:
        schema = pa.schema(columns_of(shape, pa.uint32()))
        options = pc.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        writer = stack.enter_context(
            pc.CSVWriter(pa.PythonFile(file, mode="w"), schema, write_options=options)
        )

        def write(ids: Uint64s, payload: Payloads) -> None:
            columns: list[Any] = [ids]
            if shape is not None:
                columns.append(np.full(len(ids), shape.columns, np.uint32))
                columns += map(np.ascontiguousarray, decode(payload, shape).T)
            writer.write_table(pa.Table.from_arrays([*map(pa.array, columns)], schema=schema))

        return write

    def read_blocks(self, file: Any, shape: RowShape | None, size: int) -> Iterator[Block]:
        if not file.read(1):
            return
        file.seek(0)
        types = dict(columns_of(shape, pa.int64()))
        for batch in pc.open_csv(
            file,
            pc.ReadOptions(column_names=list(types), block_size=max(size, 1 << 16)),
            pc.ParseOptions(delimiter="\t", quote_char=False),
            pc.ConvertOptions(column_types=types, null_values=[]),
        ):
            ids, *columns = (column.to_numpy() for column in batch.columns)
            yield ids, None if shape is None else encode(np.stack(columns[1:], axis=1), shape)


def columns_of(shape: RowShape | None, dim: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """The columns of a file of rows, or of removed ids; `dim` is the type of the second."""
    columns = [("id", pa.uint64())]
    if shape is not None:
        columns += [("dim", dim), *((str(at), pa.float32()) for at in range(shape.columns))]
    return columns


# ---- Dictionaries ----


class DictionaryFormat(FileFormat):
    """A dictionary for each group, removed keys of a delta among its records."""

    name, suffix, index_suffix = "dictionary", ".dictionary", ".index"
    mapped = counts_first = True

    def open_writer(
        self, stack: ExitStack, inventory: Inventory, group: SelectedGroup, delta: bool
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

    def __init__(
        self, stack: ExitStack, inventory: Inventory, group: SelectedGroup, delta: bool
    ) -> None:
        names, shape = DictionaryFormat().names(group.stem, group.removed), group.shape
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
            shape = RowShape(stored.linear, stored.width, stored.cvm, precision)
            header = shape, stored.rows - stored.removed, stored.removed, str(stored.salt)
            if header != (entry.shape, entry.rows, entry.removed, entry.salt):
                raise ValueError("its header is not what the manifest says")

    def sources(self, count: int = 1) -> list[Iterator[Records]]:
        return [self._records(max(1, BYTES_PER_READ // count // (self._shape.stride + 8)))]

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
