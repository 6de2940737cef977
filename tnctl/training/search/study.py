"""The record of a search: an Optuna study, in a journal file or in a database."""

import fcntl
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import MedianPruner, NopPruner
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from tnctl import files
from tnctl.checkpoint.chain import differing_keys
from tnctl.errors import Failure, UserError, refuse_if, shortened
from tnctl.masking import masked

JOURNAL = "sweep.journal"  # in the output
NAME = "sweep"  # of the study in that journal, which may be moved with the output
ATTRIBUTE = "tnctl"  # of the study: what all its trials have in common
VERSION = 1
BEGINNING = b'{"op_code":'  # of a journal
LONGEST_REASON = 300  # characters of what Optuna, or a database, says


class JournalLock:
    """The lock of a journal, which the kernel releases when its process is killed.

    A last line that was not written to its end is removed: nothing has happened by it yet.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal

    def acquire(self) -> bool:
        """Wait until no other process writes to the journal."""
        self._stream = self._journal.open("rb+")
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._stream, fcntl.LOCK_EX)
        if self._stream.seek(0, os.SEEK_END):
            self._stream.seek(-1, os.SEEK_END)
            if self._stream.read(1) != b"\n":
                self._stream.seek(0)
                self._stream.truncate(self._stream.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Let the next process write."""
        self._stream.close()


def storage_at(url: str | None, output: str) -> Any:
    """Optuna's storage at a file or the URL of a database, by default a journal in the output.

    Raises UserError for a file that is no journal, Failure for a damaged one.
    """
    if url is not None and "://" in url and not url.startswith("file://"):
        return RDBStorage(url)
    url = url or files.join(output, JOURNAL)
    journal = files.local_path(url)
    if journal is None:
        raise UserError(
            f"a journal is a file of this machine, and {masked(url)} is none. Give "
            "sweep.storage=FILE or the URL of a database, such as sqlite:////tmp/sweep.db"
        )
    journal.parent.mkdir(parents=True, exist_ok=True)
    refuse_if(
        os.path.lexists(journal) and not is_journal(journal),
        f"{url} is no journal of a search. Move it away, or give sweep.storage=FILE",
    )
    try:
        return JournalStorage(JournalFileBackend(str(journal), lock_obj=JournalLock(journal)))
    except OSError:
        raise
    except Exception as error:  # it replays what it reads, which may be anything
        reason = shortened(f"{type(error).__name__}: {error}", LONGEST_REASON)
        raise Failure(
            f"{url} is damaged: {reason}. Choose another output, or move it away and give "
            "overwrite=true to begin again"
        ) from error


def is_journal(path: Path) -> bool:
    """Whether a path is a file that Optuna has begun, or an empty one."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(BEGINNING)) in (b"", BEGINNING)


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turn what Optuna, a database or the file system raises in the block into a Failure."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        library = type(error).__module__.partition(".")[0]
        if not isinstance(error, OSError | ImportError) and library not in (
            "optuna", "sqlalchemy", "alembic"
        ):  # fmt: skip
            raise
        cause = error.__cause__ or error
        reason = shortened(str(getattr(cause, "strerror", None) or cause), LONGEST_REASON)
        raise Failure(f"{masked(url)} cannot be used: {reason}") from error


def existing(storage: Any, name: str) -> Any:
    """The study of this name; None where there is none. Raises UserError for another program's."""
    if name not in optuna.get_all_study_names(storage):
        return None
    # Not `create_study`, which writes to the journal in any case.
    study = optuna.load_study(study_name=name, storage=storage)
    kept = study.user_attrs.get(ATTRIBUTE)
    refuse_if(
        study.get_trials(deepcopy=False) if kept is None else kept.get("version") != VERSION,
        f"the study {masked(name)} is of another program, or of another version of tnctl. Choose "
        "another output",
    )
    return study


def opened(storage: Any, name: str, common: dict[str, Any], *, greater: bool, prune: bool) -> Any:
    """The study of this name, which is made where there is none.

    `common` is what all its trials have in common, as plain values. Raises UserError for the study
    of another search.
    """
    study = existing(storage, name)
    if study is None:
        direction = "maximize" if greater else "minimize"
        study = optuna.create_study(study_name=name, storage=storage, direction=direction)
    if (kept := study.user_attrs.get(ATTRIBUTE)) is None:
        study.set_user_attr(ATTRIBUTE, {"version": VERSION, **common})
    else:
        refuse_other_search(kept, common)
    study.pruner = MedianPruner() if prune else NopPruner()
    return study


def refuse_other_search(kept: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise UserError when a study is of another search, with what differs."""
    old, new = ({entry["key"]: entry for entry in c["parameters"]} for c in (kept, wanted))
    differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if not differing:
        differing = differing_keys(wanted["conf"], kept["conf"])
        differing += ["sweep.seed"] if kept["seed"] != wanted["seed"] else []
    refuse_if(
        differing,
        f"the output has trials of another search; these differ: {', '.join(differing)}. Choose "
        "another output, or overwrite=true to begin again",
    )


def delete(storage: Any, name: str, held: Callable[[int], AbstractContextManager[None]]) -> None:
    """Remove the study of this name, if there is one.

    `held` is the lock of a trial. Raises UserError for another program's study, and HeldError
    while another command trains a trial.
    """
    if (study := existing(storage, name)) is not None:
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            with held(trial.number):
                pass
        optuna.delete_study(study_name=name, storage=storage)


def quiet_optuna() -> None:
    """Keep Optuna's own lines off the terminal: this program says what happens."""
    optuna.logging.set_verbosity(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    warnings.filterwarnings("ignore", module="optuna")
    # By its text: on Python 3.12 it is one of this program's modules.
    warnings.filterwarnings("ignore", message="The reported value is ignored")
