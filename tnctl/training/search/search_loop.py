"""A search: trials in an Optuna study, which several commands of the same search may share."""

import fcntl
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from tnctl import files, progress
from tnctl.checkpoint.chain import differing_keys
from tnctl.checkpoint.document import number_of
from tnctl.data import batch_sizes
from tnctl.documents import plain
from tnctl.errors import Failure, UserError, refuse_if, shortened
from tnctl.evaluation.metrics import METRICS, shown
from tnctl.masking import masked
from tnctl.schema import Conf
from tnctl.training import loop as events
from tnctl.training import run_folder
from tnctl.training.report.report_document import Report, rank
from tnctl.training.run import train
from tnctl.training.search.search_confs import (
    Parameter,
    Space,
    Value,
    check,
    conf_of_all_data,
    conf_of_trial,
    words,
)
from tnctl.training.state import RunState
from tnctl.training.sweeping import attempted

JOURNAL = "sweep.journal"  # in the output
NAME = "sweep"  # of the study in that journal, which may be moved with the output
ATTRIBUTE = "tnctl"  # of the study: what all its trials have in common
VERSION = 1
BEGINNING = b'{"op_code":'  # of a journal
LONGEST_REASON = 300  # characters of what Optuna, or a database, says
# Keys in which trials of one search may differ.
NOT_COMPARED = {*run_folder.NOT_COMPARED, "data.test", "evaluation.test"}
SECONDS_BETWEEN_LOOKS = 0.05
# Optuna's states as the table shows them, the best trials first.
STATES = {
    "COMPLETE": "", "PRUNED": "stopped", "RUNNING": "unfinished", "WAITING": "unfinished",
    "FAIL": "undefined",
}  # fmt: skip
FOLDER = re.compile(r"(trial|refit)-[0-9]{4,}")  # of a run of a search
LONGEST_VALUE = 40  # characters of a value in the table


@dataclass(frozen=True)
class Settings:
    """The arguments of a search."""

    trials: int
    seed: int = 1
    prune: bool = True
    storage: str | None = None
    overwrite: bool = False
    golden: int = 200


@dataclass(frozen=True)
class Results:
    """Optuna's trials of a search, and the numbers of those that failed in this command."""

    trials: Sequence[FrozenTrial]
    monitor: str
    failed: Set[int]

    def ranked(self) -> list[FrozenTrial]:
        """The trials, the best first; those that were stopped are behind all that were not."""

        def key(trial: FrozenTrial) -> tuple[int, bool, float, int]:
            state = list(STATES).index(trial.state.name)
            return state, *rank(value_of(trial), self.monitor), trial.number

        return sorted(self.trials, key=key)

    @property
    def best(self) -> FrozenTrial | None:
        """The best trial that was trained to its end; None without one."""
        return next((trial for trial in self.ranked()[:1] if trial.state.name == "COMPLETE"), None)

    @property
    def under_way(self) -> int:
        """How many trials other commands train."""
        running = {trial.number for trial in self.trials if trial.state.name == "RUNNING"}
        return len(running - self.failed)

    def show(self, parameters: Sequence[Parameter]) -> None:
        """The table of trials, the best first."""
        rows = []
        for trial in self.ranked():
            values = [_text(trial.params.get(parameter.key)) for parameter in parameters]
            state = "failed" if trial.number in self.failed else STATES[trial.state.name]
            rows.append((str(trial.number), *values, shown(value_of(trial), 5), state))
        names = [parameter.key.lstrip("+") for parameter in parameters]
        progress.table("", ("trial", *names, f"{self.monitor} (validation)", ""), rows)


def value_of(trial: FrozenTrial) -> float | None:
    """The metric of a trial; of one that was not trained to its end, its last evaluation."""
    value, evaluations = trial.value, trial.intermediate_values
    if value is None and evaluations:
        value = evaluations[max(evaluations)]
    return None if value is None or not isfinite(value) else float(value)


def _text(value: Value | None) -> str:
    """A value as the table shows it."""
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def folder_of(number: int) -> str:
    """The folder of a trial under the output."""
    return f"trial-{number:04d}"


def search(space: Space, settings: Settings) -> tuple[Results, int]:
    """Make the trials that are left, and show a table; the exit code is not 0 when some failed.

    Other commands of the same search make some of them at the same time. Raises UserError for the
    output of another search, Stopped after Ctrl-C or SIGTERM.
    """
    first = space.first()
    check(first)
    quiet_optuna()
    with storage_errors(settings.storage or files.join(first.output, JOURNAL)):
        trials = Trials(space, settings, first)
        trials.make()
        failed = trials.failed
        results = Results(trials.recorded(), first.evaluation.monitor, failed.keys())
    results.show(space.parameters)
    if failed:
        progress.say(
            f"{len(failed):,} of {len(results.trials):,} trials failed; the same command tries "
            "them again"
        )
    return results, max(failed.values(), default=0)


def refit(conf: Conf, output: str, number: int, golden: int) -> tuple[str, Report]:
    """Train the conf of the best trial, which has ended, on all data but data.test.

    Or resume that. Returns the folder, which another best trial does not share, and the report.
    """
    trial = files.join(output, folder_of(number))
    report = run_folder.finished(trial)
    if report is None:
        raise Failure(f"{trial} has no whole report of the best trial. Give overwrite=true")
    folder = files.join(output, f"refit-{number:04d}")
    # The passes are the best with the batch size of the trial.
    conf = conf_of_all_data(batch_sizes.resolved(conf)[0], passes_of_best(report))
    return folder, train(replace(conf, output=folder), golden=golden)


def passes_of_best(report: Report) -> int:
    """How many passes the model took that a run has kept.

    Where the best model is of the middle of a pass, those up to the nearest end of one.
    """
    if report.best is None or not report.best.kept:
        return len(report.epochs)
    step = report.best.step
    return min(report.epochs, key=lambda epoch: abs(epoch.step - step)).epoch


# ---- Trials ------------------------------------------------------------------------------


class Trials:
    """The trials of a search as they are made; `failed` has exit codes by their numbers.

    Commands of one search take turns to choose a trial and to record the end of one, and each
    holds a lock of the trial that it trains. So a trial that has not ended and whose lock is free
    was interrupted.
    """

    def __init__(self, space: Space, settings: Settings, first: Conf) -> None:
        """`first` is one of the confs of the search. Raises UserError, Failure."""
        self._space, self._settings, self._output = space, settings, first.output
        self._monitor = first.evaluation.monitor
        self.failed: dict[int, int] = {}
        common = {
            "version": VERSION,
            "parameters": plain(tuple(space.parameters)),
            "seed": settings.seed,
            "monitor": self._monitor,
            "conf": run_folder.compared(first, NOT_COMPARED),
        }
        if (local := files.local_path(self._output)) is not None:
            local.mkdir(parents=True, exist_ok=True)  # for locks
        with self._turn():
            storage = storage_at(settings.storage, self._output)
            name = NAME
            if settings.storage is not None:  # which may have other searches: by its path
                name = str(masked(self._output if local is None else str(local.resolve())))
            if settings.overwrite:
                self._remove_earlier(storage, name)
            self._study = opened(storage, name, common)
        self._study.pruner = MedianPruner() if settings.prune else NopPruner()

    def _remove_earlier(self, storage: Any, name: str) -> None:
        """Remove an earlier search in the output. Raises UserError while a command is at it."""
        runs = [
            files.join(self._output, entry.name)
            for entry in files.listed(self._output)
            if entry.kind == "folder" and FOLDER.fullmatch(entry.name)
        ]
        for folder in runs:
            run_folder.refuse_foreign(folder)
        if (study := existing(storage, name)) is not None:
            for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                with self._held(trial.number):
                    pass
            optuna.delete_study(study_name=name, storage=storage)
        for folder in runs:
            run_folder.remove(folder)

    def make(self) -> None:
        """Train trials until none is left that no other command trains."""
        if known := self.recorded():
            done = sum(trial.state.is_finished() for trial in known)
            progress.say(f"{done:,} trials are done")
        while True:
            with self.chosen() as trial:
                if trial is None:
                    return
                self._train(trial)

    @contextmanager
    def chosen(self) -> Iterator[Trial | None]:
        """A trial to train, whose lock is held in the block; None when none is left."""
        with ExitStack() as stack:
            with self._turn():
                trial = self._next(stack)
            yield trial

    def recorded(self) -> list[FrozenTrial]:
        """The trials as they are recorded."""
        trials: list[FrozenTrial] = self._study.get_trials(deepcopy=False)
        return trials

    def _held(self, number: int) -> AbstractContextManager[None]:
        """The lock of a trial, held in the block. Raises HeldError."""
        return files.locked(self._output, name=f".{folder_of(number)}.lock")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for the turn of this command, which ends with the block."""
        with ExitStack() as stack:
            while True:
                with suppress(files.HeldError):
                    stack.enter_context(files.locked(self._output, name=".sweep.lock"))
                    break
                time.sleep(SECONDS_BETWEEN_LOOKS)
            yield

    def _next(self, stack: ExitStack) -> Trial | None:
        """A trial that was interrupted, else a new one, whose lock `stack` holds.

        One that failed in this command is not tried again.
        """
        known = self.recorded()
        for trial in known:
            if trial.state == TrialState.RUNNING and trial.number not in self.failed:
                with suppress(files.HeldError):
                    stack.enter_context(self._held(trial.number))
                    progress.say(f"trial {trial.number} goes on")
                    return Trial(self._study, trial._trial_id)
        if len(known) >= self._settings.trials:
            return None
        new: Trial = self._study.ask()
        stack.enter_context(self._held(new.number))
        return new

    def _train(self, trial: Trial) -> None:
        """Train a trial, and record how it ended."""
        number, settings = trial.number, self._settings
        # Seeded for each trial: what it draws does not depend on which command makes it.
        seed = np.random.SeedSequence([settings.seed, number]).generate_state(1)
        self._study.sampler = TPESampler(seed=int(seed[0]), multivariate=False, constant_liar=True)
        parameters = self._space.parameters
        texts = self._space.texts({entry.key: entry.suggested(trial) for entry in parameters})
        progress.say(f"trial {number} of {settings.trials}  {words(texts)}")

        def run() -> Report | None:
            output = files.join(self._output, folder_of(number))
            conf = conf_of_trial(self._space.conf_of(texts), output)
            return run_trial(conf, settings.golden, partial(self._is_poor, trial))

        report, code = attempted(f"trial {number}", run)
        with self._turn():
            if code:  # it stays one that has not ended, and is tried again with the same values
                self.failed[number] = code
            elif report is None:
                self._study.tell(trial, state=TrialState.PRUNED)
                progress.say(
                    f"trial {number} stopped: others were better after as many evaluations"
                )
            else:
                self._complete(trial, report)

    def _is_poor(self, trial: Trial, values: Sequence[float | None]) -> bool:
        """Record the evaluations of a trial so far; whether it is worse than most others were.

        The nth evaluation is compared with the nth of others. An undefined one is left out.
        """
        for step, value in enumerate(values, 1):
            if value is not None and isfinite(value):
                trial.report(value, step)  # what is recorded already stays as it is
        return bool(trial.should_prune())

    def _complete(self, trial: Trial, report: Report) -> None:
        """Record the result of a trial; one whose metric is undefined has none."""
        self._is_poor(trial, [entry.figure(self._monitor) for entry in report.evaluations])
        value = number_of(report.of_split("validation"), self._monitor)
        if value is None or not isfinite(value):
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, value)
        progress.say(f"trial {trial.number}  {self._monitor} {shown(value, 5)}")


# Takes the monitored metric of all evaluations so far; True when the trial is to be stopped.
Judge = Callable[[Sequence[float | None]], bool]


class PrunedError(events.EndedError):
    """A trial was stopped, for others were better after as many evaluations."""


class TrialPruner:
    """Reports each evaluation of a run, and ends a poor run unless it is at its end anyway.

    It ends before anything of a later step is done or saved. So a killed trial that is resumed is
    judged again.
    """

    def __init__(self, monitor: str, judge: Judge, state: RunState) -> None:
        self._monitor, self._judge, self._state = monitor, judge, state
        self._is_new = bool(state.evaluations)
        self._is_poor = False

    def see(self, event: events.Event) -> None:
        """Raise PrunedError when training would go on though the run is poor."""
        match event:
            case events.Evaluated():
                self._ask()
            case events.BetweenSteps() | events.PassEnds(is_last=False):
                if self._is_new:  # it was resumed
                    self._ask()
                if self._is_poor:
                    raise PrunedError("other trials were better after as many evaluations")

    def _ask(self) -> None:
        values = [evaluation.figure(self._monitor) for evaluation in self._state.evaluations]
        self._is_new, self._is_poor = False, self._judge(values)


def run_trial(conf: Conf, golden: int, judge: Judge) -> Report | None:
    """Train a trial from where it is to its end; None when it was stopped. Raises as `train`."""
    try:
        return train(
            conf, golden=golden, observer=partial(TrialPruner, conf.evaluation.monitor, judge)
        )
    except PrunedError:
        return None


# ---- The study ---------------------------------------------------------------------------


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


def opened(storage: Any, name: str, common: dict[str, Any]) -> Any:
    """The study of this name, which is made where there is none.

    `common` is what all its trials have in common, as plain values. Raises UserError for the study
    of another search.
    """
    study = existing(storage, name)
    if study is None:
        greater = METRICS[common["monitor"]].greater_is_better
        direction = "maximize" if greater else "minimize"
        study = optuna.create_study(study_name=name, storage=storage, direction=direction)
    if (kept := study.user_attrs.get(ATTRIBUTE)) is None:
        study.set_user_attr(ATTRIBUTE, common)
    else:
        refuse_other_search(kept, common)
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


def quiet_optuna() -> None:
    """Keep Optuna's own lines off the terminal: this program says what happens."""
    optuna.logging.set_verbosity(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    warnings.filterwarnings("ignore", module="optuna")
    # By its text: on Python 3.12 it is one of this program's modules.
    warnings.filterwarnings("ignore", message="The reported value is ignored")
