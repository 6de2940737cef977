"""What a user sees of a long run: a live display in a terminal, plain lines elsewhere."""

import os
import signal
import threading
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from tnctl.errors import printable
from tnctl.limits import size as size
from tnctl.masking import masked

SECONDS_BETWEEN_LINES = 10.0
SHOW_CURSOR = b"\x1b[?25h"
LONGEST_LINE = 10_000  # of a table that is not on a terminal

console = Console(stderr=True, highlight=False, soft_wrap=True)
results = Console(highlight=False, soft_wrap=True)  # what a command was run for
# The displays that are shown now, for a terminal has room for one live thing at a time.
_open: list["Display"] = []


def say(*lines: str, on: Console | None = None) -> None:
    """Plain lines, without secrets of URLs and signs that a terminal would obey: also line ends.

    On standard error, unless `on` says otherwise.
    """
    lines = tuple(printable(masked(line)) for line in lines)
    (on or console).print("\n".join(lines), markup=False)


@contextmanager
def ctrl_z_shows_cursor() -> Iterator[None]:
    """While the block runs Ctrl-Z shows the cursor, which a display hides, and then stops."""

    def stop(number: int, _: object) -> None:
        os.write(2, SHOW_CURSOR)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # returns when the process is continued
        signal.signal(number, stop)

    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and console.is_terminal and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL):
        yield
        return
    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


class Display:
    """Shows the progress of something: `update(done, figures)`, as often as the caller likes.

    A terminal shows a bar, the time left and the figures under their names. Anything else gets a
    plain line of them every ten seconds. `total` is what there is to do, `done` what was done of it
    earlier; `guessed` says that the total is an estimate. Leaving it by an exception, Ctrl-C too,
    leaves the terminal as it was.
    """

    def __init__(self, title: str, total: int | None, guessed: bool = False, done: int = 0) -> None:
        self._title = title = masked(title)
        self._total, self._guessed = total, guessed
        self._first = self._done = done
        self._figures: Mapping[str, str] = {}
        self._more = ""
        self._note = ""
        self._started = time.monotonic()
        self._apart = 0.0  # seconds spent on something else
        self._next_line = self._started + SECONDS_BETWEEN_LINES
        self._live: Live | None = None
        self._terminal = ExitStack()
        if console.is_terminal:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=32),
                TextColumn("{task.fields[share]}"),
                TextColumn("{task.fields[left]}", style="progress.remaining"),
                console=console,
            )
            self._task = self._progress.add_task(title, total=total, share="", left="")
            self._live = Live(
                get_renderable=self._shown, console=console, transient=True, refresh_per_second=5
            )

    def __enter__(self) -> "Display":
        try:
            _open.append(self)
            if self._live:
                self._terminal.enter_context(ctrl_z_shows_cursor())
                self._live.start()
        except BaseException:
            # Ctrl-C may come here, and then nobody else stops the thread that draws.
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self in _open:
            _open.remove(self)
        if self._live:
            self._live.stop()
        self._terminal.close()

    def update(self, done: int, figures: Mapping[str, str] | str, more: str = "") -> None:
        """Where it is: how much is done, figures by their names, or a text, and a further line."""
        self._done, self._more = done, more
        self._figures = masked({"": figures} if isinstance(figures, str) else figures)
        if self._total is not None and self._guessed and done > self._total:
            self._total = None  # the estimate was wrong
        if self._live:
            self._progress.update(
                self._task,
                completed=done,
                total=self._total,
                share=self._share(),
                left=self._left(),
            )
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            say(self._line(f"  {left}" if (left := self._left()) else ""))
            self._say_more()

    @contextmanager
    def meanwhile(self, note: str) -> Iterator[None]:
        """Something else is done in the block, whose time is not counted."""
        started, previous, self._note = time.monotonic(), self._note, masked(note)
        apart = self._apart
        try:
            yield
        finally:
            self._note = previous
            # A block inside of this one is not counted twice.
            self._apart = apart + time.monotonic() - started

    def finish(self) -> None:
        """Leave one line, and the further one."""
        if self._live:
            self._live.stop()
        self._total = None
        say(self._line())
        self._say_more()

    def seconds_left(self) -> float | None:
        """How long it takes at the pace so far; None when nobody knows."""
        seconds = time.monotonic() - self._started - self._apart
        done = self._done - self._first
        if self._total is None or not done or not seconds:
            return None
        return (self._total - self._done) * seconds / done

    def _say_more(self) -> None:
        if self._more:
            say(f"  {self._more}")

    def _share(self) -> str:
        sign = "~" if self._guessed else ""
        return f"{sign}{self._done / self._total:.0%}" if self._total else ""

    def _left(self) -> str:
        seconds = self.seconds_left()
        return "" if seconds is None else f"{clock(seconds)} left"

    def _line(self, more: str = "") -> str:
        share = f" {self._share():>4}" if self._total and self._done < self._total else ""
        figures = "  ".join(
            f"{value} {name}" if name == "examples" else f"{name} {value}".strip()
            for name, value in self._figures.items()
        )
        return f"{self._title}{share}  {figures}{more}".rstrip()

    def _shown(self) -> Group:
        grid = Table.grid(padding=(0, 3))
        for _ in self._figures:
            grid.add_column(justify="right")
        if self._figures:
            grid.add_row(*(Text(name, style="dim") for name in self._figures))
            grid.add_row(*(Text(value, style="bold") for value in self._figures.values()))
        below = []
        if self._more:
            below.append(Text(self._more, style="dim"))
        if self._note:
            below.append(Text(self._note, style="italic"))
        return Group(self._progress, grid, *below)


def clock(seconds: float) -> str:
    """Seconds as a person reads them: 45 s, 3:07, 2:03:07."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """A spinner around something short, or a note in the display that is open; else a line."""
    with ExitStack() as stack:
        if _open:
            stack.enter_context(_open[-1].meanwhile(title))
        if not console.is_terminal:
            say(title)
        elif not _open:
            status = console.status(masked(title))
            # First, for Ctrl-C may come while it starts.
            stack.callback(status.stop)
            status.start()
        yield


def table(
    title: str,
    headings: Iterable[str],
    rows: Iterable[Iterable[Any]],
    left: Container[int] = (0,),
    on: Console | None = None,
) -> None:
    """A small table, such as the figures of a report; columns are flush right but for `left`.

    Where a terminal is too narrow, texts go on in the next line; elsewhere no line is broken.
    """
    shown = Table(title=printable(masked(title)), title_justify="left", box=None, pad_edge=False)
    for index, heading in enumerate(headings):
        words = printable(heading).split()
        shown.add_column(
            Text(" ".join(words)),
            justify="left" if index in left else "right",
            overflow="fold" if index in left else "ellipsis",
            min_width=max(map(len, words), default=0),
        )
    for row in rows:
        shown.add_row(*(Text(printable(masked(str(value)))) for value in row))
    target = on or console
    if not target.is_terminal:
        whole = target.options.update(width=LONGEST_LINE)
        shown.width = shown.__rich_measure__(target, whole).maximum
    target.print(shown)
