"""`paths`: where the relative paths start that a conf names to be read."""

import os
import re
from dataclasses import dataclass

from tnctl.errors import quoted, refuse_if
from tnctl.limits import is_plain
from tnctl.schema.declarations import Section, key

# Keys whose values are paths or URLs that are read.
READ = (
    r"data\.(?:root|prepared|(?:train|validation|test)(?:\.files)?)|warm\.start|recipe\.name"
    r"|slots\.\w+\.(?:vocabulary_file|vectors)|cluster\.tls\.(?:certificate|authority|key)"
)
# A URL, fsspec's forms without //, an absolute path, or one in a user's home folder.
WHOLE = re.compile(r"/|~|(?:file|local|data):|.*(?:://|::)", re.S)


@dataclass
class Paths(Section):
    """Where relative paths start: docs/data.md."""

    folder: str | None = key(
        None,
        "the folder of the conf file that conf= names, from which its relative paths start (null, "
        "as for a shipped conf: the working folder)",
    )
    given: list[str] = key(
        list, "the keys that the command line gives, whose paths start from the working folder"
    )

    def check(self) -> None:
        if self.folder is None:
            return
        is_utf8 = self.folder.encode(errors="ignore").decode() == self.folder
        is_value = is_utf8 and "${" not in self.folder
        refuse_if(
            not (os.path.isabs(self.folder) and is_plain(self.folder) and is_value),
            "folder must be the absolute path of a folder, without ://, ::, ${ and what is not "
            f"UTF-8. Received: {quoted(self.folder)}",
        )

    def start(self, key: str) -> str | None:
        """The folder that a relative path of a key starts from; None: the working folder."""
        is_given = key in self.given or f"{key}.files" in self.given
        return None if is_given else self.folder

    def path(self, key: str, text: str) -> str:
        """The path of a key from where it starts; URLs and absolute paths are unchanged."""
        start = self.start(key)
        return text if start is None or is_whole(text) else os.path.join(start, text)


def is_whole(path: str) -> bool:
    """Whether a path or URL says by itself where it is."""
    return WHOLE.match(path) is not None
