"""The formats of files by name, and the reader of each with the settings that a conf gives it."""

from collections.abc import Callable

from tnctl.data.column_names import id_columns, text_columns, ways_of_labels
from tnctl.data.file_pieces import FileReader
from tnctl.data.formats.arrow_files import OrcReader, ParquetReader
from tnctl.data.formats.csv_files import CsvReader
from tnctl.data.formats.jsonl_files import JsonReader, cutters
from tnctl.data.formats.libsvm_files import LibsvmReader
from tnctl.data.formats.paddle_files import PaddleReader
from tnctl.data.formats.prepared_files import PreparedReader
from tnctl.data.formats.tfrecord_files import RecordReader
from tnctl.schema import Conf


def csv_reader(conf: Conf, skip_rows: int = 0) -> CsvReader:
    """The reader of CSV and TSV."""
    data = conf.data
    return CsvReader(
        delimiter=data.delimiter,
        names=None if data.header else tuple(data.columns or ()),
        strip=data.strip,
        missing=tuple(data.missing),
        of_text=frozenset(text_columns(conf)),
        check_utf8=data.check_utf8,
        bad_rows=data.bad_rows,
        skip_rows=skip_rows,
        ways=ways_of_labels(data),
    )


def json_reader(conf: Conf, skip_rows: int = 0) -> JsonReader:
    """The reader of JSON lines."""
    return JsonReader(id_columns(conf), cutters(conf), conf.data.bad_rows, skip_rows)


# By data.format, but for those of generated data; and the files of data.prepared. Each takes
# the lines that are skipped at the start of a file of text.
READERS: dict[str, Callable[[Conf, int], FileReader]] = {
    "csv": csv_reader,
    "jsonl": json_reader,
    "libsvm": lambda conf, skip_rows: LibsvmReader(
        conf.data.check_utf8, conf.data.bad_rows, skip_rows
    ),
    "orc": lambda conf, _: OrcReader(conf.data.check_utf8, conf.data.bad_rows),
    "paddle": lambda conf, skip_rows: PaddleReader(
        conf.data.columns, conf.data.pairs, conf.data.check_utf8, conf.data.bad_rows, skip_rows
    ),
    "parquet": lambda conf, _: ParquetReader(conf.data.check_utf8, conf.data.bad_rows),
    "tfrecord": lambda conf, _: RecordReader(conf.data.check_utf8, conf.data.bad_rows),
    "prepared": lambda conf, _: PreparedReader(conf),
}


def reader_of(conf: Conf, skip_rows: int = 0) -> FileReader:
    """The reader of the files of a conf."""
    name = "prepared" if conf.data.prepared is not None else conf.data.format
    return READERS[name](conf, skip_rows)
