"""One reader for each format of files, by name; `FileReader` is what they have in common."""

from tnctl.data.file_pieces import FileReader
from tnctl.data.formats.arrow_files import OrcReader, ParquetReader
from tnctl.data.formats.csv_files import CsvReader
from tnctl.data.formats.jsonl_files import JsonReader
from tnctl.data.formats.prepared_files import PreparedReader
from tnctl.data.formats.tfrecord_files import RecordReader
from tnctl.data.formats.word_files import LibsvmReader, PaddleReader
from tnctl.schema import Conf

# By data.format, but for generated data; and the files of data.prepared.
READERS: dict[str, type[FileReader]] = {
    "csv": CsvReader,
    "jsonl": JsonReader,
    "libsvm": LibsvmReader,
    "orc": OrcReader,
    "paddle": PaddleReader,
    "parquet": ParquetReader,
    "tfrecord": RecordReader,
    "prepared": PreparedReader,
}


def reader_of(conf: Conf, skip_rows: int = 0) -> FileReader:
    """The reader of the files of a conf, which passes over lines at the start of files of text."""
    name = "prepared" if conf.data.prepared is not None else conf.data.format
    return READERS[name](conf, skip_rows)
