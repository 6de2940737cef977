"""Where a search is recorded: a journal file, which is checked before it is used, or a database."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from tnctl import files
from tnctl.errors import Failure, UserError, refuse_if, shortened
from tnctl.masking import masked
from tnctl.progress import say
from tnctl.training.search.search_parameters import LONGEST_REASON

JOURNAL = "sweep.journal"  # in the output
MOST_BYTES = 1 << 30


class _NoLock:
    """A journal's lock is the lock of the output, which the kernel releases at a kill."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return


def is_database(place: str) -> bool:
    """Whether sweep.storage names a database, and not a file."""
    return "://" in place and not place.startswith("file://")


@contextmanager
def opened(place: str, *, database: bool) -> Iterator[Any]:
    """Optuna's storage, a `database` or a journal file; in the block its errors become one line.

    Raises UserError for what is no journal, Failure for one that is damaged and for a database
    that cannot be used.
    """
    try:
        yield RDBStorage(place) if database else _journal(place)
    except (UserError, KeyboardInterrupt):
        raise
    except optuna.exceptions.StorageInternalError as error:
        reason = shortened(str(error.__cause__ or error), LONGEST_REASON)
        raise Failure(f"{masked(place)} cannot be used: {reason}") from error
    except OSError as error:  # what is written to the journal
        raise Failure(f"{masked(place)} cannot be written: {error.strerror or error}") from error
    except ImportError as error:
        raise UserError(
            f"{masked(place)} needs a driver that is not installed: "
            f"{shortened(str(error), LONGEST_REASON)}"
        ) from error
    except Exception as error:
        if not type(error).__module__.startswith(("sqlalchemy", "alembic", "optuna")):
            raise
        reason = shortened(str(error), LONGEST_REASON)
        raise Failure(f"{masked(place)} cannot be used: {reason}") from error


def _journal(place: str) -> Any:
    local = files.local_path(place)
    refuse_if(
        local is None,
        f"a journal is a file of this machine, and {masked(place)} is none. Give "
        "sweep.storage=FILE or the URL of a database, such as sqlite:////tmp/sweep.db",
    )
    assert local is not None
    with files.translated(place, "read"):
        refuse_if(
            os.path.islink(local) or (os.path.lexists(local) and not local.is_file()),
            f"{place} is no journal of a search, but a folder, a link or a device. Move it away, "
            "or give sweep.storage=FILE",
        )
        if local.exists():
            check_journal(local)
    with files.translated(place, "written"):
        local.parent.mkdir(parents=True, exist_ok=True)
        local.open("ab").close()
    try:
        return JournalStorage(JournalFileBackend(str(local), lock_obj=_NoLock()))
    except Exception as error:  # it replays what it reads, which may be anything
        raise damaged(local, f"{type(error).__name__}: {error}") from error


def check_journal(journal: Path) -> None:
    """Raise UserError or Failure for a file that is no whole journal of Optuna's.

    A last line that was not written to its end is removed: nothing has happened by it yet.
    """
    refuse_if(journal.stat().st_size > MOST_BYTES, f"{journal} is too long for a journal")
    lines = journal.read_bytes().split(b"\n")
    rest = lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except ValueError as error:
            if number == 1:
                raise no_journal(journal) from error
            raise damaged(journal, f"line {number:,} is no JSON") from error
        if not isinstance(entry, dict) or not isinstance(entry.get("op_code"), int):
            raise (
                no_journal(journal)
                if number == 1
                else damaged(journal, f"line {number:,} is no entry")
            )
    if rest:
        if not lines and not b'{"op_code":'.startswith(rest[:11]):
            raise no_journal(journal)
        say(f"{journal} ends within a line, which is removed")
        os.truncate(journal, journal.stat().st_size - len(rest))


def no_journal(journal: Path) -> UserError:
    """The refusal of a file that something else has written."""
    return UserError(
        f"{journal} is no journal of a search, and is left as it is. Move it away, or give "
        "sweep.storage=FILE"
    )


def damaged(journal: Path, reason: str) -> Failure:
    """The refusal of a journal that cannot be read."""
    return Failure(
        f"{journal} is damaged: {shortened(reason, LONGEST_REASON)}. Move it away: the same "
        "command makes it again from the runs of its trials"
    )
