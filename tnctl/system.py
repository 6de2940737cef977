"""The machine and the process: memory that is left, and its want; CPUs; how a process ends."""

import contextlib
import itertools
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn

from tnctl.errors import Failure, Stopped, UserError, shortened
from tnctl.limits import size
from tnctl.masking import masked

ROOT = Path("/")
UNLIMITED = 1 << 60  # version 1 of cgroups has a number near 2^63 where there is no limit
# Of an allocation below this nothing is asked: reading the limits is not worth it.
LEAST_BYTES = 64 << 20


@dataclass(frozen=True)
class Limit:
    """One limit of memory, in bytes, and what it leaves; `of_process`: to this process alone."""

    name: str
    total: int
    free: int
    of_process: bool = field(default=False, compare=False)

    def free_for_each(self, processes: int) -> int:
        """The bytes that it leaves to each of the processes of this machine."""
        return self.free if self.of_process else self.free // processes

    def __str__(self) -> str:
        return f"{self.name} ({size(self.total)}) leaves {size(max(self.free, 0))}"


class _Files(NamedTuple):
    """The files of a version of cgroups, and keys of its memory.stat."""

    mount: str
    total: str
    used: str
    # Page cache, which the system takes back; what processes have mapped of it they need.
    caches: tuple[str, str]
    mapped: str


_FILES = {
    1: _Files(
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
        "total_mapped_file",
    ),
    2: _Files(
        "sys/fs/cgroup",
        "memory.max",
        "memory.current",
        ("inactive_file", "active_file"),
        "file_mapped",
    ),
}


def tightest(root: Path = ROOT, processes: int = 1) -> Limit | None:
    """The limit that leaves the least; None where the system names none (no Linux).

    `root` is the folder with `proc` and `sys`. `processes` of this machine, of which this one is
    one, need as much as it does.
    """
    limits = _limits(root)
    return min(limits, key=lambda limit: limit.free_for_each(processes), default=None)


def require(needed: int, beside: int, what: str) -> None:
    """Raise Failure when a limit leaves less than `needed` bytes for `what` and `beside` more."""
    if needed < LEAST_BYTES:
        return
    limit = tightest()
    if limit is not None and needed + beside > limit.free:
        raise Failure(
            f"{what} takes {size(needed)} of memory and work on it {size(beside)} more, but "
            f"{limit}. Give it more memory"
        )


def _limits(root: Path) -> Iterator[Limit]:
    machine = _sizes(root / "proc/meminfo", unit=1024)
    swap = machine.get("SwapFree", 0)
    if "MemAvailable" in machine and "MemTotal" in machine:
        free = machine["MemAvailable"] + swap
        yield Limit("the memory of this machine", machine["MemTotal"], free)
    yield from _cgroups(root, swap)
    yield from _ulimits(root)


def _cgroups(root: Path, swap: int) -> Iterator[Limit]:
    """The limits of the process's cgroup and of those around it."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path, *_ = [*line.split(":", 2), "", ""]
        if number != "0" and "memory" not in controllers.split(","):
            continue
        files = _FILES[2 if number == "0" else 1]
        # In a container the path may be one of the host, of which only the mount itself is there.
        inside = PurePosixPath(path.lstrip("/"))
        for above in (inside, *inside.parents):
            folder = root / files.mount / above
            with contextlib.suppress(ValueError):
                total, used = (int(_text(folder / name)) for name in (files.total, files.used))
                if total < UNLIMITED and ".." not in above.parts:
                    figures = _sizes(folder / "memory.stat")
                    caches = sum(figures.get(key, 0) for key in files.caches)
                    reclaimable = max(0, caches - figures.get(files.mapped, 0))
                    free = total - used + reclaimable + swap
                    yield Limit("the memory limit of the cgroup", total, free)


def _ulimits(root: Path) -> Iterator[Limit]:
    status = _sizes(root / "proc/self/status", unit=1024)
    for name, number, key in (
        ("ulimit -v", resource.RLIMIT_AS, "VmSize"),
        ("ulimit -d", resource.RLIMIT_DATA, "VmData"),
    ):
        total = resource.getrlimit(number)[0]
        if key in status and total not in (resource.RLIM_INFINITY, -1):
            yield Limit(name, total, total - status[key], of_process=True)


def _sizes(file: Path, unit: int = 1) -> dict[str, int]:
    """The numbers of a file of lines `name number`, in bytes."""
    sizes = {}
    for line in _text(file).splitlines():
        name, *words = line.replace(":", " ").split()[:2] or [""]
        if words and words[0].isascii() and words[0].isdecimal():
            sizes[name] = unit * int(words[0])
    return sizes


def _text(file: Path) -> str:
    """The text of a file of the system, empty where it is not there."""
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


# ---- Out of memory ------------------------------------------------------------

# Of Python, for the stack of a thread, and of the loader of libraries.
MESSAGES = ("can't start new thread", "failed to map segment", "Cannot allocate memory")
MORE_MEMORY = "Give it more memory, or raise its limit"
# Of a training that has ended for want of memory.
RESUME_WITH_MORE = (
    "Run the same command again with more memory to resume. A new run takes less with fewer rows "
    "(life.admission, life.eviction.rows) or a smaller embedding.width"
)
_LONGEST_REASON = 200  # characters of what the library says


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is one of those that libraries raise when the system gives no memory."""
    if isinstance(error, UserError):  # it has its line already
        return False
    return isinstance(error, MemoryError) or any(part in str(error) for part in MESSAGES)


class OutOfMemory(Failure):
    """A command has ended because the system gives no memory."""

    def __init__(
        self, error: BaseException, way_out: str, *, when: str = "", held: str = "", saved: str = ""
    ) -> None:
        """`error` is what was raised, `when` says at which time ("after step 3").

        `held` says what takes the memory, and `saved` is the checkpoint that is there.
        """
        text = shortened(str(error), _LONGEST_REASON)
        parts = [
            "out of memory",
            f" {when}" if when else "",
            f" ({text})" if text else "",
            f": {held}" if held else "",
            f". {saved} is saved" if saved else "",
        ]
        super().__init__(f"{''.join(parts)}. {way_out}")


# ---- CPUs, and the end of a process --------------------------------------------


def shares(cpus: Iterable[int], workers: int) -> list[tuple[int, ...]]:
    """The CPUs of each worker: contiguous parts of the sorted CPUs, none of them empty.

    When there are more workers than CPUs, neighbours have the same one.
    """
    ordered = sorted(cpus)
    bounds = [rank * len(ordered) // workers for rank in range(workers + 1)]
    return [
        tuple(ordered[start : max(end, start + 1)]) for start, end in itertools.pairwise(bounds)
    ]


def leave_with(name: str, action: Callable[[], int]) -> NoReturn:
    """Leave with the exit code of an action, or with the line of what it raises."""
    code = 1
    try:
        sys.exit(action())
    except (UserError, Stopped) as error:
        message, code = f"{name}: {error}", error.exit_code
    except KeyboardInterrupt:
        message, code = f"{name}: interrupted", 130
    except BrokenPipeError:
        # The reader of the pipe has ended, and nobody reads a message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if is_out_of_memory(error):
            message = f"{name}: {OutOfMemory(error, MORE_MEMORY)}"
        else:
            # As Python shows it, but libraries put URLs into their messages with all they hold.
            message = masked(traceback.format_exc()).rstrip("\n")
    print(message, file=sys.stderr)
    sys.exit(code)
