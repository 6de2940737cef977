"""What an error of one worker is on all of them: a line that names the worker."""

import contextlib
import re
import sys
import traceback

from tnctl import files
from tnctl.cluster.joining.members import Problem
from tnctl.cluster.joining.membership import ONLY_WORKERS, Membership
from tnctl.cluster.transport.kinds import MessageError
from tnctl.errors import Failure, UserError, shortened
from tnctl.masking import masked
from tnctl.ownership import WORKER_LOGS
from tnctl.system import RESUME_WITH_MORE, OutOfMemory, is_out_of_memory
from tnctl.tables import NotFiniteError, NotOwnedError

# What worker 0 writes is the output of the command, and a live display is drawn into its log.
_TRACEBACK_OF_0 = "rank-0-traceback.log"

_LONGEST_CAUSE = 300  # characters of an unexpected error's message
# What messages of TensorFlow and Keras contain beside the cause: stack frames with their lines of
# code, what introduces them, names of nodes, and colours.
_NOT_CAUSE = re.compile(
    r"""^([ ]*)File\ "[^"\n]*",\ line\ \d+.*(?:\n\1[ ]+.*)*
    |^[ \t]*(?:\w+:\ )?(?:Graph\ execution\ error|in\ user\ code|Traceback\ \(most\ recent[\w ]+\)):
    |^[ \t]*Detected\ at\ node\ .*|\[\[\{\{node\ .*|\{\{function_node\ [^}]*\}\}|\x1b\[[\d;]*m""",
    re.MULTILINE | re.VERBOSE,
)

_output: str | None = None  # of the run, on worker 0


def keep_tracebacks_in(output: str) -> None:
    """On worker 0: from now on tracebacks are written below an output, not to standard error."""
    global _output
    _output = output


def of_worker(rank: int, error: BaseException, membership: Membership = ONLY_WORKERS) -> UserError:
    """The error that ends the run when `error` was raised on a worker or server."""
    name = membership.name(rank)
    if isinstance(error, UserError):
        return Problem(f"{name}: {error}", error.exit_code).error()
    if is_out_of_memory(error):
        return Failure(f"{name}: {OutOfMemory(error, RESUME_WITH_MORE)}")
    if not is_unexpected(error):
        return Failure(f"{name}: {error}")
    return Failure(
        f"{name}: {_cause(error)}. Its traceback is in "
        f"{WORKER_LOGS}/{membership.log_name(rank) if rank else _TRACEBACK_OF_0}"
    )


def _cause(error: BaseException) -> str:
    """The type of an error and what its message says of the cause, in one line."""
    lines = (line.strip() for line in _NOT_CAUSE.sub("", str(error)).splitlines())
    text = shortened(" ".join(dict.fromkeys(filter(None, lines))), _LONGEST_CAUSE).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def ending_of(rank: int, membership: Membership, error: Exception) -> UserError:
    """The error whose line a worker or server ends with, after `error` was raised in it.

    A mistake in the conf has the line of one process: worker 0 refuses it for all. So has every
    error that has its line already when there is one worker. Other errors name the worker.
    """
    if isinstance(error, UserError) and not isinstance(error, OutOfMemory):
        is_named = re.search(r"\b(worker|server) \d", str(error))
        if membership.size == 1 or error.exit_code != 1 or is_named:
            return error
    return of_worker(rank, error, membership)


def is_unexpected(error: BaseException) -> bool:
    """Whether an error is a bug of tnctl, a recipe or a library, whose traceback is needed."""
    expected = (UserError, MessageError, NotFiniteError, NotOwnedError)
    return not isinstance(error, expected) and not is_out_of_memory(error)


def show_traceback(error: BaseException) -> None:
    """Write the traceback of an error, without secrets of URLs, to the log that `of_worker` names.

    The standard error of other workers is their log. Worker 0 writes a file, and to its standard
    error where the file cannot be written.
    """
    text = masked("".join(traceback.format_exception(error))).rstrip("\n")
    if _output is not None:
        logs = files.join(_output, WORKER_LOGS)
        with contextlib.suppress(OSError, UserError):
            content = f"{text}\n".encode(errors="backslashreplace")
            files.write_bytes(files.join(logs, _TRACEBACK_OF_0), content)
            return
    with contextlib.suppress(OSError):  # the disk of the log may be full
        print(text, file=sys.stderr, flush=True)
