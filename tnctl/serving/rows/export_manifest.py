"""The manifest of exported embeddings in files. docs/formats/embeddings.md."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from tnctl.checkpoint.chain import GOLDEN
from tnctl.documents import shown
from tnctl.serving.references import check_files
from tnctl.serving.rows.export_document import RowsManifest
from tnctl.serving.rows.export_formats import file_formats, format_of
from tnctl.serving.rows.file_format import FileFormat, FileGroup


def _file_format(name: str) -> str:
    *names, last = map(repr, file_formats())
    if repr(name) not in (*names, last):
        raise PydanticCustomError("encoding", f"should be {', '.join(names)} or {last}")
    return name


@dataclass(frozen=True, kw_only=True)
class ExportManifest(RowsManifest):
    """The manifest of embeddings in files; `encoding` is the name of their format."""

    encoding: Annotated[str, AfterValidator(_file_format)]
    groups: tuple[FileGroup, ...]

    @property
    def file_format(self) -> FileFormat:
        """What writes and reads the files."""
        format: FileFormat = format_of(self.encoding)
        return format

    def __post_init__(self) -> None:
        super().__post_init__()
        for entry in self.groups:
            for key, name in self.file_format.names(entry.group, entry.removed).items():
                if getattr(entry, key) != name:
                    raise ValueError(
                        f"{key} of group {entry.group} is {shown(getattr(entry, key))}, and should "
                        f"be {shown(name)}"
                    )
        if self.sha256:  # else its files are still being written
            self._check_files()

    def _check_files(self) -> None:
        """Raise ValueError for other files, or a file that cannot have so many rows."""
        names = {name for entry in self.groups for name in entry.names}
        check_files(self.files, names | ({GOLDEN} if self.golden else set()))
        for entry in self.groups:
            for name in entry.names:
                size, delta = self.files[name].bytes, self.kind == "delta"
                if not self.file_format.can_have_size(entry, name, size, delta):
                    raise ValueError(
                        f"{name} has {size:,} bytes, which {entry.rows:,} rows and "
                        f"{entry.removed:,} removed keys cannot have"
                    )
