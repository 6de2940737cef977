"""What an error of one worker is on all of them: a line that names the worker."""

import contextlib
import sys
import traceback

from tnctl import files
from tnctl.cluster.frames import FrameError
from tnctl.cluster.members import Problem
from tnctl.errors import Failure, UserError
from tnctl.masking import masked
from tnctl.out_of_memory import RESUME_WITH_MORE, OutOfMemory, is_out_of_memory
from tnctl.ownership import WORKER_LOGS, WORKERS, Claims
from tnctl.tables import NotFiniteError, NotOwnedError

# What worker 0 writes is the output of the command, and a live display is drawn into its log.
_TRACEBACK_OF_0 = "rank-0-traceback.log"

_output: str | None = None  # of the run, on worker 0


def keep_tracebacks_in(output: str) -> None:
    """On worker 0: from now on tracebacks are written below an output, not to standard error."""
    global _output
    _output = output


def of_worker(rank: int, error: BaseException) -> UserError:
    """The error that ends the run when `error` was raised on a worker."""
    name = f"worker {rank}"
    if isinstance(error, UserError):
        return Problem(f"{name}: {error}", error.exit_code).error()
    if is_out_of_memory(error):
        return Failure(f"{name}: {OutOfMemory(error, RESUME_WITH_MORE)}")
    if not is_unexpected(error):
        return Failure(f"{name}: {error}")
    return Failure(
        f"{name}: {type(error).__name__}: {str(error)[:1000]}. Its traceback is in "
        f"{WORKER_LOGS}/{f'rank-{rank}.log' if rank else _TRACEBACK_OF_0}"
    )


def ending_of(rank: int, error: Exception) -> UserError:
    """The error whose line a worker ends with, after `error` was raised in it.

    An error that has its line already is the same as of one process: worker 0 refuses for all.
    """
    if isinstance(error, UserError) and not isinstance(error, OutOfMemory):
        return error
    return of_worker(rank, error)


def is_unexpected(error: BaseException) -> bool:
    """Whether an error is a bug of tnctl, a recipe or a library, whose traceback is needed."""
    expected = (UserError, FrameError, NotFiniteError, NotOwnedError)
    return not isinstance(error, expected) and not is_out_of_memory(error)


def show_traceback(error: BaseException) -> None:
    """Write the traceback of an error, without secrets of URLs, to the log that `of_worker` names.

    The standard error of other workers is their log; that of worker 0 takes what cannot be written.
    """
    text = masked("".join(traceback.format_exception(error))).rstrip("\n")
    if _output is not None:
        logs = files.join(_output, WORKER_LOGS)
        with contextlib.suppress(OSError, UserError):
            Claims(logs, WORKERS).add([_TRACEBACK_OF_0])
            content = f"{text}\n".encode(errors="backslashreplace")
            files.write_bytes(files.join(logs, _TRACEBACK_OF_0), content)
            return
    with contextlib.suppress(OSError):  # the disk of the log may be full
        print(text, file=sys.stderr, flush=True)
