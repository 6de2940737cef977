"""The log of what a process shows in a terminal: its lines as they stay there.

A live display is drawn again and again: the cursor goes up, lines are erased and written anew. The
log has each line once, as it was last.
"""

import re
from pathlib import Path

# A control sequence, the end of a line, a return to its start, or text.
TOKEN = re.compile(rb"\x1b\[([0-9;?]*)([@-~])|\x1b[^\[]|(\n)|(\r)|[^\x1b\n\r]+")
UNFINISHED = re.compile(rb"\x1b(?:\[[0-9;?]{0,30})?\Z")
HIGHEST = 500  # lines that the cursor may go up


class TerminalLog:
    """Appends what is written to a terminal to a file, as plain lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        end = self._file.seek(0, 2)
        self._rows = [
            end
        ]  # where the last rows begin in the file; a row ends where the next begins
        self._row = 0  # of the cursor
        self._returned = False
        self._begun = b""

    def write(self, content: bytes) -> None:
        """Add bytes, which may end anywhere."""
        content = self._begun + content
        match = UNFINISHED.search(content)
        self._begun = match[0] if match else b""
        for token in TOKEN.finditer(content, 0, len(content) - len(self._begun)):
            if token[2] is not None:
                self._control(token[1], token[2])
            elif token[3]:
                self._end_row()
            elif token[4]:
                self._returned = True
            elif token[0][0] != 0x1B:
                self._text(token[0])
        self._file.flush()

    @property
    def is_in_a_row(self) -> bool:
        """Whether the last line has no end yet."""
        return self._file.tell() > self._rows[-1]

    def close(self) -> None:
        """End the last line, and close the file."""
        if self.is_in_a_row:
            self._file.write(b"\n")
        self._file.close()

    def _control(self, parameters: bytes, final: bytes) -> None:
        if final == b"A":
            up = int(parameters) if parameters.isdigit() else 1
            self._row = max(self._row - up, 0)
        elif final == b"K":
            self._erase()

    def _erase(self) -> None:
        """Take the cursor's row, and those below, out of the file."""
        self._file.flush()
        self._file.truncate(self._rows[self._row])
        self._file.seek(self._rows[self._row])
        del self._rows[self._row + 1 :]
        self._returned = False

    def _end_row(self) -> None:
        self._returned = False
        if self._row + 1 < len(self._rows):
            self._row += 1
            return
        self._file.write(b"\n")
        self._rows.append(self._file.tell())
        self._rows = self._rows[-HIGHEST:]
        self._row = len(self._rows) - 1

    def _text(self, text: bytes) -> None:
        if self._returned or self._row + 1 < len(self._rows):
            self._erase()
        self._file.write(text)
