"""What every reader of a format offers to the rest of tnctl."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import BinaryIO

from tnctl import files
from tnctl.data.file_pieces import Piece

HEAD_BYTES = 4 << 20
HEAD_LINES = 1000


class FileReader(ABC):
    """Reads the files of one format, with the settings that it was made with."""

    @abstractmethod
    def pieces(self, url: str, needed: list[str]) -> Iterator[Piece]:
        """The rows of one file, in order, with the columns `needed`.

        Raises `Failure` naming the file, and the line or row where it is one, for what cannot be
        read.
        """

    def columns(self, url: str) -> list[str] | None:  # noqa: B027
        """The names of a file's columns, by its beginning; None where only all rows could tell."""

    def require(self, url: str, needed: list[str]) -> None:  # noqa: ARG002
        """Raise as `pieces` does for a file that is not there, is empty, or lacks a column.

        Only the beginning, or the footer, of the file is read. Where rows name their columns, no
        column is looked for.
        """
        with files.open_input(url):
            pass

    @property
    def lines_before(self) -> int:
        """The lines of each file before its first row; none in files of records."""
        return 0

    def counts(self, url: str) -> list[int]:
        """How far the rows of a file are numbered: in each row group, else in the whole file.

        For text the number of its lines. It reads the file, and parses no row.
        """
        lines, end = 0, b"\n"
        with files.open_input(url) as stream:
            while text := files.read_most(stream, HEAD_BYTES):
                lines += text.count(b"\n")
                end = text[-1:]
        return [lines + (end != b"\n")]

    def count_head(self, stream: BinaryIO) -> tuple[int, int]:
        """The whole rows in the first HEAD_BYTES of a stream, and their bytes."""
        text = files.read_most(stream, HEAD_BYTES)
        return text.count(b"\n"), text.rfind(b"\n") + 1


class GroupedReader(FileReader):
    """Reads files of row groups, any of which can be read without the others."""

    @abstractmethod
    def group_rows(self, url: str) -> list[int]:
        """The rows of each row group of a file."""

    @abstractmethod
    def pieces_of_groups(
        self, url: str, needed: list[str], first: int, end: int | None
    ) -> Iterator[Piece]:
        """As `pieces`, of row groups `first` to `end` - 1 (None: the last), and no others."""

    def counts(self, url: str) -> list[int]:
        return self.group_rows(url)

    def pieces(self, url: str, needed: list[str]) -> Iterator[Piece]:
        return self.pieces_of_groups(url, needed, 0, None)
