"""What an error of one worker is on all of them: a line that names the worker."""

import contextlib
import sys
import traceback

from tnctl.cluster.frames import FrameError
from tnctl.cluster.members import Problem
from tnctl.errors import Failure, UserError
from tnctl.masking import masked
from tnctl.out_of_memory import RESUME_WITH_MORE, OutOfMemory, is_out_of_memory
from tnctl.ownership import WORKER_LOGS
from tnctl.tables import NotFiniteError, NotOwnedError


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
        f"{WORKER_LOGS}/rank-{rank}.log"
    )


def is_unexpected(error: BaseException) -> bool:
    """Whether an error is a bug of tnctl, a recipe or a library, whose traceback is needed."""
    expected = (UserError, FrameError, NotFiniteError, NotOwnedError)
    return not isinstance(error, expected) and not is_out_of_memory(error)


def show_traceback(error: BaseException) -> None:
    """Write the traceback of an error, without secrets of URLs, to the standard error."""
    text = masked("".join(traceback.format_exception(error))).rstrip("\n")
    with contextlib.suppress(OSError):  # the disk of the log may be full
        print(text, file=sys.stderr, flush=True)
