"""The files of TensorNet's tables: their folders, ranks and blocks, and the rows of a block.

Blocks are text or binary; they are streamed as arrays of rows, and checked. docs/tensornet.md has
the lines and records. The facts are from TensorNet's source (core/ps/optimizer/*_kernel.cc,
optimizer_kernel.h).
"""

import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from numpy.typing import NDArray

from tnctl import files, limits
from tnctl.documents import LONGEST_PATH
from tnctl.errors import Failure, UserError, quoted, shortened

SPARSE, DENSE, LAST_DAY = "sparse_table", "dense_table", "_checkpoint"
BLOCKS = 8  # of a rank: one for each of the lowest 3 bits of sign / 2^32
RANK = re.compile(r"rank_(0|[1-9]\d{0,4})")
BLOCK = re.compile(r"(?:sparse_)?block_([0-7])(?:_txt|_bin)?(?:\.gz)?")
HANDLE = re.compile(r"0|[1-9]\d{0,8}")
MOST_TABLES = 1000
LAST_DAY_BYTES = 1 << 16
Rows = NDArray[Any]  # of the dtype of a RowForm
LONGEST_AGE = 100_000  # days that a row was not shown
WIDEST = 65_536  # floats of a row
HEAD_BYTES = 1 << 20
BYTES_PER_READ = 4 << 20
LONGEST_REASON = 160  # characters of what Arrow says
HEADER = re.compile(rb"opt_name:(\w{1,32})\r?\ndim:(\d{1,6})\r?\n")
TEXT_START = b"opt_name:"
TYPES = {"id": pa.uint64(), "dim": pa.int32(), "age": pa.int32(), "end": pa.string()}


@dataclass(frozen=True)
class SourceTable:
    """The files of a sparse table, rank by rank, and the bytes that they take."""

    name: str
    files: tuple[str, ...]
    ranks: int
    bytes: int


@dataclass(frozen=True)
class TensorNetFolder:
    """A checkpoint of TensorNet: `day` is the name of its folder, or None."""

    folder: str
    day: str | None
    tables: dict[str, SourceTable]
    dense: tuple[str, ...]
    """the files of the dense table, rank by rank"""


def source_at(url: str) -> TensorNetFolder:
    """The checkpoint in a folder, or the last one of a folder with _checkpoint.

    Raises UserError when it is no such folder, Failure when a file of it is missing.
    """
    folder = url.rstrip("/") or url
    names = {entry.name for entry in files.listed(folder)}
    day = None
    if SPARSE not in names and LAST_DAY in names:
        day = last_day(files.join(folder, LAST_DAY))
        folder = files.join(folder, day)
        names = {entry.name for entry in files.listed(folder)}
    elif SPARSE in names:
        day = folder.rpartition("/")[2] or None
    if SPARSE not in names:
        raise UserError(
            f"tensornet={url}: {folder} has no folder {SPARSE}. Give what TensorNet saved its "
            f"weights to: a folder with {LAST_DAY}, or the folder of a day in it"
        )
    above = files.join(folder, SPARSE)
    listed = shown(above)
    if len(listed) > MOST_TABLES:
        raise Failure(f"{above} has over {MOST_TABLES:,} entries. Give a checkpoint of TensorNet")
    for entry in listed:
        if entry.kind != "folder":
            raise Failure(f"{files.join(above, entry.name)} is no folder of a table")
    tables = {e.name: source_table(files.join(above, e.name), e.name) for e in listed}
    if not tables:
        raise Failure(f"{above} has no table. Copy it again")
    dense = dense_files(files.join(folder, DENSE)) if DENSE in names else ()
    return TensorNetFolder(folder, day, tables, dense)


def shown(folder: str) -> list[files.Listed]:
    """What is in a folder, but for hidden files and Hadoop's own."""
    return [entry for entry in files.listed(folder) if entry.name[0] not in "._"]


def last_day(url: str) -> str:
    """The folder that _checkpoint names. Raises Failure when it names none."""
    try:
        content = json.loads(files.read_bytes(url, most=LAST_DAY_BYTES))
        day = content["dt"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Failure(f'{url} is not {{"dt": DAY}}, as TensorNet writes it') from error
    is_name = isinstance(day, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*", day)
    if not is_name or len(day) > LONGEST_PATH:
        raise Failure(f"{url} names no folder: {quoted(str(day))}. Name the folder of a day itself")
    return str(day)


def source_table(folder: str, name: str) -> SourceTable:
    """A sparse table. Raises Failure unless it has all blocks of all ranks, each once."""
    ranks = [files.join(folder, entry.name) for entry in numbered(folder, RANK, "folder")]
    blocks = {rank: numbered(rank, BLOCK, "file", BLOCKS) for rank in ranks}
    urls = [files.join(rank, block.name) for rank in ranks for block in blocks[rank]]
    size = sum(block.bytes for of_rank in blocks.values() for block in of_rank)
    return SourceTable(name, tuple(urls), len(ranks), size)


def numbered(
    folder: str, pattern: re.Pattern[str], kind: str, least: int = 1
) -> list[files.Listed]:
    """The ranks of a table, or the blocks of a rank, in the order of the numbers in their names.

    Raises Failure for an entry of another name or kind, and when a number is missing or is there
    twice.
    """
    numbers: dict[int, files.Listed] = {}
    for entry in shown(folder):
        match = pattern.fullmatch(entry.name)
        if match is None or entry.kind != kind:
            raise Failure(f"{files.join(folder, entry.name)} is no {kind} of a table")
        if (other := numbers.setdefault(int(match[1]), entry)) is not entry:
            raise Failure(f"{folder} has both {other.name} and {entry.name}. Take one away")
    for number in range(max(least, len(numbers))):
        if number not in numbers:
            raise Failure(f"{folder} lacks the {kind} with number {number}. Copy the table again")
    return [numbers[number] for number in sorted(numbers)]


def dense_files(folder: str) -> tuple[str, ...]:
    """The files of the only dense table, rank by rank.

    Raises Failure when there are several tables, and when the file of a rank is missing.
    """
    handles = [e for e in files.listed(folder) if e.kind == "folder" and HANDLE.fullmatch(e.name)]
    if not handles:
        return ()
    if len(handles) > 1:
        raise Failure(
            f"{folder} has {len(handles)} tables, of several optimizers of dense weights; a conf "
            "has one. Move it away to import the rows alone"
        )
    above = files.join(folder, handles[0].name)
    ranks = sorted(
        int(entry.name)
        for entry in files.listed(above)
        if entry.kind == "file" and HANDLE.fullmatch(entry.name)
    )
    if ranks != list(range(len(ranks))):
        raise Failure(f"{above} has the files of ranks {ranks[:8]}, and not of all. Copy it again")
    return tuple(files.join(above, str(rank)) for rank in ranks)


@dataclass(frozen=True)
class Rule:
    """An optimizer of TensorNet: its name in files, and the state of its rows.

    `optimizers` are those of tnctl that have the same state, `states` the names of it there, in
    TensorNet's order. Without `per_weight` a row has one float of state.
    """

    name: str
    optimizers: tuple[str, ...]
    states: tuple[str, ...]
    per_weight: bool
    signed: tuple[str, ...] = ()
    """the states that can be negative"""


ADAGRAD = Rule("AdaGrad", ("tensornet_adagrad", "adagrad"), ("accumulator",), per_weight=False)
ADAM = Rule("Adam", ("tensornet_adam",), ("m", "v"), per_weight=True, signed=("m",))
FTRL = Rule("Ftrl", ("tensornet_ftrl", "ftrl"), ("z", "n"), per_weight=True, signed=("z",))
RULES = (ADAGRAD, ADAM, FTRL)


@dataclass(frozen=True)
class RowForm:
    """The rows of one table: `dim` weights, trained by a rule."""

    rule: Rule
    dim: int

    @property
    def state_width(self) -> int:
        """The floats of each state."""
        return self.dim if self.rule.per_weight else 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """A row as it is in memory: its sign, days without a show, counts, states, weights."""
        states = [(name, "<f4", (self.state_width,)) for name in self.rule.states]
        counts = [("age", "<u4"), ("show", "<f4"), ("click", "<f4")]
        return np.dtype([("id", "<u8"), *counts, *states, ("weights", "<f4", (self.dim,))])

    def text_columns(self, line: bytes) -> list[str]:
        """The columns of a file by its first row; `end` is what follows a last tab.

        TensorNet before no_show_days wrote AdaGrad without that column, and writes click only with
        use_cvm. Raises ValueError for another number of columns.
        """
        fields = line.split(b"\t")
        end = ["end"] if not fields[-1].strip() else []
        count, dim = len(fields) - len(end), self.dim
        weights = [f"w{at}" for at in range(dim)]
        if self.rule.per_weight:
            kinds = ("w", *self.rule.states)
            columns = ["id", *(f"{kind}{at}" for at in range(dim) for kind in kinds), "show"]
            if count != len(columns):
                expected = len(columns)
                raise ValueError(f"its first row has {count} columns, and should have {expected}")
            return columns + end
        optional = {4: [], 5: ["age"], 6: ["age", "click"]}.get(count - dim)
        if optional is None:
            raise ValueError(
                f"its first row has {count} columns, and should have {dim + 4} to {dim + 6}"
            )
        return ["id", "dim", *weights, f"{self.rule.states[0]}0", "show", *optional, *end]

    def records(self) -> list[np.dtype[Any]]:
        """The records that binary files can have, each with fields of `dtype` in another order.

        AdaGrad's have click only with use_cvm; those of TensorNet's own resizing tool have `dim`.
        """
        weights, show = ("weights", "<f4", (self.dim,)), ("show", "<f4")
        states = [(name, "<f4", (self.state_width,)) for name in self.rule.states]
        if self.rule.per_weight:
            return [np.dtype([("id", "<u8"), weights, *states, show])]
        row: list[Any] = [weights, *states, show, ("age", "<i4")]
        return [
            np.dtype([("id", "<u8"), *row]),
            np.dtype([("id", "<u8"), *row, ("click", "<f4")]),
            np.dtype([("id", "<u8"), ("dim", "<i4"), *row]),
        ]

    def is_possible(self, rows: Rows) -> NDArray[np.bool_]:
        """Which rows [n], of `dtype` or of a record, TensorNet can have written."""
        names = rows.dtype.names or ()
        possible = np.ones(len(rows), np.bool_)
        for name in ("weights", "show", "click", *self.rule.states):
            if name in names:
                least = -np.inf if name in ("weights", *self.rule.signed) else 0
                of_each = np.isfinite(rows[name]) & (rows[name] >= least)
                possible &= of_each.all(axis=tuple(range(1, of_each.ndim)))
        if "age" in names:
            possible &= (rows["age"] >= 0) & (rows["age"] <= LONGEST_AGE)
        if "dim" in names:
            possible &= rows["dim"] == self.dim
        return possible

    def check(self, rows: Rows, url: str) -> None:
        """Raise Failure for the first row, of `dtype`, that TensorNet cannot have written."""
        if not (possible := self.is_possible(rows)).all():
            sign = int(rows["id"][np.argmin(possible)])
            raise Failure(
                f"{url}: the row of sign {sign} has a number that is not finite, a negative "
                f"{self._not_negative}, or no_show_days beyond {LONGEST_AGE:,}. Take a table that "
                "is whole, of training that did not diverge"
            )

    @property
    def _not_negative(self) -> str:
        return "g2sum or show" if self.rule is ADAGRAD else f"{self.rule.states[1]} or show"


@dataclass(frozen=True)
class Described:
    """What a block says of its table: its dim, and the optimizer where it is text."""

    dim: int
    optimizer: str | None


class Rest(io.RawIOBase):
    """What follows the first bytes of a stream, which were read: those and the others.

    `end` has the last two bytes that were read.
    """

    def __init__(self, start: bytes, stream: BinaryIO) -> None:
        self._start, self._stream = start, stream
        self.end = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        size = BYTES_PER_READ if size is None or size < 0 else size
        if self._start:
            data, self._start = self._start[:size], self._start[size:]
        else:
            data = self._stream.read(size)
        self.end = (self.end + data[-2:])[-2:]
        return data


def described(url: str) -> Described:
    """What the start of a block says. Raises Failure for a file that is no block."""
    with files.open_input(url) as stream:
        head = files.read_most(stream, 4096)
    if not head:
        raise empty(url)
    if head.startswith(TEXT_START[: len(head)]):
        match = header_of(head, url)
        return Described(int(match[2]), match[1].decode())
    dim = int.from_bytes(head[:4], "little", signed=True) if len(head) >= 4 else 0
    if not 1 <= dim <= WIDEST:
        raise Failure(
            f"{url} begins neither with opt_name: nor with the number of its weights, as blocks of "
            "TensorNet do. Copy it again"
        )
    return Described(dim, None)


def empty(url: str) -> Failure:
    """The error for a file without a byte."""
    return Failure(f"{url} is empty, and even a block without rows has a header. Copy it again")


def header_of(head: bytes, url: str) -> re.Match[bytes]:
    """The first two lines of a text. Raises Failure when they are others."""
    match = HEADER.match(head)
    if match is None or not 1 <= int(match[2]) <= WIDEST:
        raise Failure(
            f"{url} should begin with the lines opt_name:NAME and dim:NUMBER. "
            f"Received: {quoted(head[:60])}"
        )
    return match


def rows_of(url: str, form: RowForm) -> Iterator[Rows]:
    """The rows of a block, arrays [n] of the form's dtype, of a few MiB each.

    Raises Failure for a file that is damaged, cut short, or of rows of another form.
    """
    with files.open_input(url) as stream:
        head = files.read_most(stream, HEAD_BYTES)
        if not head:
            raise empty(url)
        read = text_rows if head.startswith(TEXT_START[: len(head)]) else binary_rows
        for rows in read(url, head, stream, form):
            form.check(rows, url)
            yield rows


# ---- Text -------------------------------------------------------------------


def text_rows(url: str, head: bytes, stream: BinaryIO, form: RowForm) -> Iterator[Rows]:
    """The rows of a text whose first bytes are `head`."""
    match = header_of(head, url)
    dim, optimizer = int(match[2]), match[1].decode()
    if (dim, optimizer.lower()) != (form.dim, form.rule.name.lower()):
        raise Failure(
            f"{url} has rows of {optimizer} with dim {dim}, and the first block of its table of "
            f"{form.rule.name} with dim {form.dim}. Copy the table again"
        )
    start = head[match.end() :]
    while b"\n" not in start.lstrip(b"\r\n") and (more := stream.read(HEAD_BYTES)):
        start += more
        if len(start) > limits.LINE_BYTES:
            raise Failure(f"{url} has a line of over {limits.mebibytes(limits.LINE_BYTES)}")
    line = start.lstrip(b"\r\n").split(b"\n", 1)[0].rstrip(b"\r")
    if not line:
        refuse_cut(url, start[-2:] in (b"\n", b"\r\n"), whole=start == b"")
        return  # a block without rows
    try:
        columns = form.text_columns(line)
    except ValueError as error:
        raise Failure(f"{url}: {error} for {form.rule.name} with dim {form.dim}") from error
    rest = Rest(start, stream)
    with damage_reported(url):
        for batch in pc.open_csv(rest, *tabbed(columns, max(BYTES_PER_READ, 4 * len(line)))):
            yield rows_of_batch(url, batch, form)
    refuse_cut(url, rest.end == b"\n\n", whole=rest.end[-1:] == b"\n")


def tabbed(columns: Sequence[str], block_size: int | None = None) -> tuple[Any, Any, Any]:
    """How Arrow reads lines of these columns, with tabs between them."""
    types = {name: TYPES.get(name, pa.float32()) for name in columns}
    return (
        pc.ReadOptions(column_names=columns, block_size=block_size),
        pc.ParseOptions(delimiter="\t", quote_char=False),
        pc.ConvertOptions(column_types=types, null_values=[]),
    )


def refuse_cut(url: str, ended: bool, *, whole: bool) -> None:
    """Raise Failure for a block that was cut short.

    TensorNet ends each block with one more line end (`ended`). Its resizing tool does not, but it
    compresses, and a compressed file that is cut cannot be read: there rows need only be `whole`.
    """
    if not (ended or (whole and url.endswith(".gz"))):
        raise Failure(
            f"{url} was cut short: it does not end as TensorNet's blocks do. Copy it again"
        )


@contextmanager
def damage_reported(url: str) -> Iterator[None]:
    """Turns what Arrow raises for a line that it cannot read into a Failure."""
    try:
        yield
    except pa.ArrowException as error:
        reason = shortened(str(error), LONGEST_REASON)
        raise Failure(f"{url} is damaged ({reason}). Copy it again") from error


def refuse_dims(url: str, dims: Rows, form: RowForm) -> None:
    """Raise Failure unless all rows have the dim of their table."""
    if (dims != form.dim).any():
        raise Failure(f"{url} has a row whose dim is not {form.dim}. Copy it again")


def rows_of_batch(url: str, batch: pa.RecordBatch, form: RowForm) -> Rows:
    """The rows of a batch of columns. Raises Failure for another dim, or text after the last."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    rows = np.zeros(batch.num_rows, form.dtype)
    if "end" in columns and set(columns["end"].unique().to_pylist()) != {""}:
        raise Failure(f"{url} has text after the last column of a row. Copy it again")
    if "dim" in columns:
        refuse_dims(url, columns["dim"].to_numpy(), form)
    if "age" in columns:
        # A negative one becomes one beyond every limit, and is refused with its sign.
        rows["age"] = columns["age"].to_numpy().astype(np.uint32)
    for name in ("id", "show", "click"):
        if name in columns:
            rows[name] = columns[name].to_numpy()
    for name, letter in (("weights", "w"), *((state, state) for state in form.rule.states)):
        for at in range(rows[name].shape[1]):
            rows[name][:, at] = columns[f"{letter}{at}"].to_numpy()
    return rows


# ---- Binary -----------------------------------------------------------------


def binary_rows(url: str, head: bytes, stream: BinaryIO, form: RowForm) -> Iterator[Rows]:
    """The rows of a binary block whose first bytes are `head`.

    Which records it has, of those that are possible, is seen from their numbers and its length.
    """
    if len(head) < 4 or int.from_bytes(head[:4], "little", signed=True) != form.dim:
        raise Failure(
            f"{url} begins neither with opt_name: nor with {form.dim}, the dim of its table. "
            "Copy it again"
        )
    start = head[4:]
    if start in (b"", b"\n"):
        refuse_cut(url, start == b"\n", whole=True)
        return  # a block without rows
    record = record_of(url, start, len(head) < HEAD_BYTES, form)
    rest = Rest(start, stream)
    size = max(BYTES_PER_READ // record.itemsize, 1) * record.itemsize
    left = b""
    while data := files.read_most(rest, size):  # type: ignore[arg-type]
        count = len(data) // record.itemsize
        left = data[count * record.itemsize :]
        if count:
            yield rows_of_records(url, np.frombuffer(data, record, count), form)
    refuse_cut(url, left == b"\n", whole=left == b"")


def record_of(url: str, start: bytes, whole: bool, form: RowForm) -> np.dtype[Any]:
    """The records of a block that begins so, or that `whole` is. Raises Failure unless it is one.

    A wrong length of records shifts them against their bytes, so numbers stand where none can be.
    """
    fitting = []
    for record in form.records():
        count, left = divmod(len(start), record.itemsize)
        if whole and start[len(start) - left :] not in (b"", b"\n"):
            continue
        if count and form.is_possible(np.frombuffer(start, record, count)).all():
            fitting.append(record)
    if len(fitting) != 1:
        which = "may have rows of several forms" if fitting else "has rows of another form"
        raise Failure(
            f"{url} {which}, not those of {form.rule.name} with dim {form.dim}, or it was cut "
            "short. Check the optimizer of the conf, or copy it again"
        )
    return fitting[0]


def rows_of_records(url: str, records: Rows, form: RowForm) -> Rows:
    """Rows of the form's dtype with the fields that records [n] have. Raises Failure."""
    rows = np.zeros(len(records), form.dtype)
    for name in records.dtype.names or ():
        if name == "dim":
            refuse_dims(url, records[name], form)
        else:
            rows[name] = records[name].astype(rows[name].dtype)
    return rows
