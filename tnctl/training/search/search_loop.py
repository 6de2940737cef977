"""A search: trials one after the other, shared with other commands of the same search."""

import re
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Any

import numpy as np
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState

from tnctl import files, progress
from tnctl.checkpoint.document import number_of
from tnctl.data.days import daily
from tnctl.documents import plain
from tnctl.errors import Failure, refuse_if
from tnctl.evaluation.metrics import METRICS, shown
from tnctl.masking import masked
from tnctl.schema import Conf
from tnctl.training import loop as events
from tnctl.training import run_folder
from tnctl.training.report.report_document import Report, rank
from tnctl.training.run import train
from tnctl.training.search import study
from tnctl.training.search.search_parameters import Parameter, Value, words
from tnctl.training.state import RunState
from tnctl.training.sweeping import attempted

# Keys in which trials of one search may differ.
NOT_COMPARED = {*run_folder.NOT_COMPARED, "data.test", "evaluation.test"}
SECONDS_BETWEEN_LOOKS = 0.05
# Optuna's states, those of the best trials first, as the table shows them.
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
class Space:
    """The parameters, and the conf that their values make: texts of Hydra's grammar, by key."""

    parameters: Sequence[Parameter]
    conf_of: Callable[[dict[str, str]], Conf]

    def texts(self, values: dict[str, Value]) -> dict[str, str]:
        """Values in Hydra's grammar."""
        return {entry.key: entry.text_of(values[entry.key]) for entry in self.parameters}

    def first(self) -> Conf:
        """The conf with the first value of every parameter."""
        return self.conf_of({entry.key: entry.tested()[0] for entry in self.parameters})


def check(conf: Conf) -> None:
    """Refuse a conf that cannot be searched. Raises UserError."""
    refuse_if(
        conf.data.source("validation") is None,
        "sweep.trials chooses by data.validation, which is not given. Give data.validation=FILES, "
        "or data.split.validation=0.1",
    )
    refuse_if(
        daily(conf),
        "sweep.trials goes by one set of data, and data.train has {day}. Name the files of some "
        "days, and of later ones as data.validation",
    )
    refuse_if(
        conf.cluster.start is not None,
        "sweep.trials trains each run in one process; the same command given several times shares "
        "the trials. Leave out cluster=local and its keys; where the conf file itself starts "
        "workers, give cluster.start=null",
    )


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


def report_of(output: str, number: int) -> Report:
    """The report of a trial that was trained to its end. Raises Failure."""
    url = files.join(output, folder_of(number))
    report = run_folder.finished(url)
    if report is None:
        raise Failure(f"{url} has no whole report of the best trial. Give overwrite=true")
    return report


def search(space: Space, settings: Settings) -> tuple[Results, int]:
    """Make the trials that are left, and show a table; the exit code is not 0 when some failed.

    Other commands of the same search make some of them at the same time. Raises UserError for the
    output of another search, Stopped after Ctrl-C or SIGTERM.
    """
    first = space.first()
    check(first)
    study.quiet_optuna()
    with study.storage_errors(settings.storage or files.join(first.output, study.JOURNAL)):
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
            "parameters": plain(tuple(space.parameters)),
            "seed": settings.seed,
            "monitor": self._monitor,
            "conf": run_folder.compared(first, NOT_COMPARED),
        }
        if (local := files.local_path(self._output)) is not None:
            local.mkdir(parents=True, exist_ok=True)  # for locks
        with self._turn():
            storage = study.storage_at(settings.storage, self._output)
            name = study.NAME
            if settings.storage is not None:  # which may have other searches: by its path
                name = str(masked(self._output if local is None else str(local.resolve())))
            if settings.overwrite:
                self._remove_earlier(storage, name)
            greater = bool(METRICS[self._monitor].greater_is_better)
            self._study = study.opened(storage, name, common, greater=greater, prune=settings.prune)

    def _remove_earlier(self, storage: Any, name: str) -> None:
        """Remove an earlier search in the output. Raises UserError while a command is at it."""
        runs = [
            files.join(self._output, entry.name)
            for entry in files.listed(self._output)
            if entry.kind == "folder" and FOLDER.fullmatch(entry.name)
        ]
        for folder in runs:
            run_folder.refuse_foreign(folder)
        study.delete(storage, name, self._held)
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
        report, code = attempted(
            f"trial {number}",
            lambda: run_trial(
                self._conf(number, texts), settings.golden, partial(self._is_poor, trial)
            ),
        )
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

    def _conf(self, number: int, texts: dict[str, str]) -> Conf:
        """The conf of a trial. Raises UserError for values that do not make one."""
        conf = self._space.conf_of(texts)
        # What is chosen by validation data must not have been looked at on test data. A share of
        # data.split stays what it is: without it, its rows would be trained.
        return replace(
            conf,
            output=files.join(self._output, folder_of(number)),
            data=replace(conf.data, test=None),
            evaluation=replace(conf.evaluation, test=False),
            baseline=replace(conf.baseline, enabled=False),  # the same trees for all trials
        )

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


class Pruning:
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
        return train(conf, golden=golden, observer=partial(Pruning, conf.evaluation.monitor, judge))
    except PrunedError:
        return None
