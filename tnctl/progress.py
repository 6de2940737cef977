"""What a user sees of a long run: a live line in a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

SECONDS_BETWEEN_LINES = 10.0

console = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One plain line."""
    console.print(text, markup=False)


class Display:
    """Shows how far something is: `update(done, text)` as often as one likes.

    A terminal shows a bar, the text and the time left; anything else gets a plain line every ten
    seconds and one at the end.
    """

    def __init__(self, title: str, total: int | None) -> None:
        self._title = title
        self._total = total
        self._text = ""
        self._done = 0
        self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f}%" if total else ""),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
                refresh_per_second=5,
            )
            self._task = self._progress.add_task(title, total=total, text="")

    def __enter__(self) -> "Display":
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def update(self, done: int, text: str = "") -> None:
        self._done, self._text = done, text
        if self._progress:
            self._progress.update(self._task, completed=done, text=text)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            say(self._line())

    def finish(self) -> None:
        """Leave one line about the whole."""
        if self._progress:
            self._progress.stop()
        say(self._line())

    def _line(self) -> str:
        share = (
            f" {self._done / self._total:4.0%}" if self._total and self._done < self._total else ""
        )
        return f"{self._title}{share}  {self._text}".rstrip()


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """A spinner around something short; a plain line when not in a terminal."""
    if console.is_terminal:
        with console.status(title):
            yield
    else:
        say(title)
        yield


def table(title: str, headings: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """A small table, such as the figures of a report."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        shown.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows:
        shown.add_row(*(str(value) for value in row))
    console.print(shown)
