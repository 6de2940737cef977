"""TFRecord files of tf.Example: framed here, so that any storage will do, decoded by TensorFlow.

A feature of an example is a list of integers, of floats or of bytes; each becomes a list column.
The types are learnt from the examples, since the file has none.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from tnctl import files, limits
from tnctl.data.file_pieces import (
    HEAD_BYTES,
    HEAD_LINES,
    EmptyFileError,
    FileFaults,
    FileReader,
    Record,
    Tables,
    report_absent,
)
from tnctl.data.formats.text_lines import is_utf8
from tnctl.errors import Failure, refuse_if
from tnctl.tables.text import RECORD_BYTES, tfrecords

READ_BYTES = 4 << 20
RECORDS = 16_384  # that are decoded together
SAMPLE = 64  # examples of a piece that are looked into for types
FRAME_BYTES = 16  # of a record beside its payload
AGAIN = "Write or fetch the file again"
KINDS = {"int64_list": "int64", "float_list": "float32", "bytes_list": "string"}


class RecordReader(FileReader):
    """Reads TFRecord; each column is a list of int64, float32 or text.

    A feature that an example lacks is an empty list.
    """

    def tables(self, url: str, needed: list[str], faults: FileFaults) -> Tables:
        kinds: dict[str, str] = {}
        for records in _payloads(url, faults):
            if not kinds.keys() >= set(needed):
                _learn(records.payloads[:SAMPLE], url, needed, kinds)
            table = _decoded(records.payloads, needed, kinds)
            if table is None:
                # A column that no earlier example had may be there now, of another type than ids.
                _learn(records.payloads, url, needed, kinds)
                records = _good(records, needed, kinds, faults)
                table = _decoded(records.payloads, needed, kinds)
            assert table is not None
            if self.data.check_utf8:
                table, records = _as_texts(table, records, faults)
            yield table, records.place

    def counts(self, url: str) -> list[int]:
        # Damaged records have numbers too: reading them refuses or skips them.
        numbers = (records.numbers[-1:] for records in _payloads(url, FileFaults(allowed=1)))
        return [max(itertools.chain.from_iterable(numbers), default=0)]

    @classmethod
    def stored_columns(cls, url: str) -> list[str]:
        with files.open_input(url) as stream:
            head = files.read_most(stream, HEAD_BYTES)
        framed = tfrecords(head, HEAD_LINES)
        ends = zip(framed.starts.tolist(), (framed.starts + framed.lengths).tolist(), strict=True)
        return sorted({name for start, end in ends for name in _features(head[start:end])})

    def count_head(self, stream: BinaryIO) -> tuple[int, int]:
        head = files.read_most(stream, HEAD_BYTES)
        framed = tfrecords(head, len(head) // FRAME_BYTES + 1)
        return len(framed.starts), framed.consumed


@dataclass
class _Records:
    """Some records of a file: their numbers, from 1, and payloads."""

    url: str
    numbers: list[int]
    payloads: list[bytes]

    def place(self, row: int) -> Record:
        """The file, and the number of a record in it."""
        return Record(self.url, self.numbers[row])

    def kept(self, places: list[int]) -> "_Records":
        """The records at the places."""
        numbers, payloads = self.numbers, self.payloads
        return _Records(self.url, [numbers[i] for i in places], [payloads[i] for i in places])


def _payloads(url: str, faults: FileFaults) -> Iterator[_Records]:
    """The records of a file that agree with their checksums."""
    number, rest = 1, bytearray()
    with files.open_input(url) as stream:
        while data := stream.read(READ_BYTES):
            rest += data
            more = True
            while more:
                framed = tfrecords(rest, RECORDS)
                records = _Records(url, [], [])
                ends = framed.starts + framed.lengths
                spans = zip(framed.starts.tolist(), ends.tolist(), framed.whole, strict=True)
                for count, (start, end, whole) in enumerate(spans, number):
                    if whole:
                        records.numbers.append(count)
                        records.payloads.append(bytes(rest[start:end]))
                    else:
                        faults.add(Record(url, count), f"damaged, by its checksum. {AGAIN}")
                number += len(framed.starts)
                del rest[: framed.consumed]
                if records.payloads:
                    yield records
                if framed.lost:
                    raise Failure(
                        f"{url}, record {number}: its length does not agree with its checksum, so "
                        "nothing from here on can be read. Write the file again, or set "
                        "data.format to what it is"
                    )
                refuse_if(
                    framed.too_long,
                    f"{url}, record {number}: longer than {limits.mebibytes(RECORD_BYTES)}, the "
                    "most that a record may have. Split the example into several",
                    Failure,
                )
                more = len(framed.starts) == RECORDS
    if rest:
        faults.add(Record(url, number), f"the file ends within it. {AGAIN}")
        yield _Records(url, [], [])
    elif number == 1:
        raise EmptyFileError(url)


def _learn(payloads: list[bytes], url: str, needed: list[str], kinds: dict[str, str]) -> None:
    """Add the types of columns that were not known; the first example that has one decides."""
    names: set[str] = set()
    for payload in payloads:
        for name, feature in _features(payload).items():
            names.add(name)
            kind = feature.WhichOneof("kind")
            if kind is not None and name in needed:
                kinds.setdefault(name, KINDS[kind])
    report_absent(url, needed, [name in kinds for name in needed], lambda: names)


def _features(payload: bytes) -> dict[str, Any]:
    """The features of a serialized tf.Example by name; none when it is no example."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        return dict(tf.train.Example.FromString(payload).features.feature)
    except DecodeError:
        return {}


def _decoded(payloads: list[bytes], needed: list[str], kinds: dict[str, str]) -> pa.Table | None:
    """The columns of some examples, or None when TensorFlow refuses one of them."""
    import tensorflow as tf

    # A feature that no example had so far is most likely ids; if not, decoding fails once it has.
    spec = {name: tf.io.RaggedFeature(tf.as_dtype(kinds.get(name, "int64"))) for name in needed}
    serialized = np.array(payloads, object)
    try:
        ragged = tf.io.parse_example(tf.constant(serialized, tf.string), spec)
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        # TensorFlow's message quotes the record, whatever its bytes are.
        return None
    columns = []
    for name in needed:
        values = ragged[name].values.numpy()
        values = pa.array(values, pa.binary()) if values.dtype == object else pa.array(values)
        columns.append(pa.ListArray.from_arrays(pa.array(ragged[name].row_splits.numpy()), values))
    return pa.table(columns, names=needed)


def _good(
    records: _Records, needed: list[str], kinds: dict[str, str], faults: FileFaults
) -> _Records:
    """The records that TensorFlow takes, found by halving."""
    good: list[int] = []

    def look(low: int, high: int) -> None:
        if _decoded(records.payloads[low:high], needed, kinds) is not None:
            good.extend(range(low, high))
        elif high - low == 1:
            why = _complaint(records.payloads[low], needed, kinds)
            faults.add(records.place(low), f"{why}. Mend or remove it")
        else:
            look(low, (low + high) // 2)
            look((low + high) // 2, high)

    look(0, len(records.payloads))
    return records.kept(good)


def _complaint(payload: bytes, needed: list[str], kinds: dict[str, str]) -> str:
    for name, feature in _features(payload).items():
        kind = KINDS.get(feature.WhichOneof("kind"), "int64")
        if name in needed and kind != kinds.get(name, "int64"):
            return f"feature '{name}' holds {kind}, and {kinds.get(name, 'int64')} before it"
    return "no tf.Example"


def _as_texts(table: pa.Table, records: _Records, faults: FileFaults) -> tuple[pa.Table, _Records]:
    """Bytes as text, without the rows where they are not UTF-8."""
    names = [field.name for field in table.schema if field.type == pa.list_(pa.binary())]
    text = pa.list_(pa.string())
    try:
        for name in names:
            index = table.column_names.index(name)
            table = table.set_column(index, name, table.column(name).cast(text))
    except pa.ArrowInvalid:
        good = []
        for row, values in enumerate(table.select(names).to_pylist()):
            if wrong := [name for name, texts in values.items() if not all(map(is_utf8, texts))]:
                way = "Set data.check_utf8=false to hash its bytes"
                faults.add(records.place(row), f"not UTF-8. {way}", wrong[0])
            else:
                good.append(row)
        return _as_texts(table.take(good), records.kept(good), faults)
    return table, records
