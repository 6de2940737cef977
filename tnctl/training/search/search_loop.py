"""A search: trials one after the other, or several at the same time, and the best of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tnctl import files, progress
from tnctl.data.days import daily
from tnctl.errors import Failure, Stopped, UserError, refuse_if, shortened
from tnctl.evaluation.metrics import METRICS, shown
from tnctl.masking import masked
from tnctl.schema import Conf
from tnctl.training import run_folder
from tnctl.training.search import results, trial_processes
from tnctl.training.search.search_parameters import LONGEST_REASON, Parameter, Value, words
from tnctl.training.search.trial_run import Outcome, run_trial

if TYPE_CHECKING:
    from tnctl.training.search.record import Description, Record

NEEDS_OPTUNA = "sweep.trials needs a package that is not installed: pip install 'tnctl[sweep]'"
# Keys in which trials of one search may differ.
NOT_COMPARED = {*run_folder.NOT_COMPARED, "data.test", "evaluation.test"}
NAME = "sweep"  # of the study in a journal in the output, which may be moved with it


@dataclass(frozen=True)
class Settings:
    """The arguments of a search."""

    trials: int
    workers: int = 1
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
        "sweep.trials trains each run in one process; sweep.workers=N trains several at a time. "
        "Leave out cluster=local and its keys; where the conf file itself starts workers, give "
        "cluster.start=null",
    )


def search(space: Space, settings: Settings) -> tuple[results.Results, int]:
    """Make all trials that are left, and show a table; the exit code is 1 when some failed.

    Raises UserError for the output of another search, Stopped after Ctrl-C or SIGTERM.
    """
    first = space.first()
    check(first)
    monitor = first.evaluation.monitor
    with recorded(space, first, settings) as record:
        failed: dict[int, Outcome] = {}
        trials = Trials(space, first.output, record, settings, monitor, failed)
        if settings.workers == 1:
            trials.one_by_one()
        else:
            trials.together()
        summary = results.Results(
            record.trials(), monitor, bool(METRICS[monitor].greater_is_better), set(failed)
        )
    results.show(summary, space.parameters)
    if failed:
        progress.say(
            f"{len(failed):,} of {len(summary.trials):,} trials failed; the same command tries "
            "them again"
        )
    return summary, max((outcome.exit_code for outcome in failed.values()), default=0)


@contextmanager
def recorded(space: Space, first: Conf, settings: Settings) -> "Iterator[Record]":
    """The record of a search, while this process alone writes to the output."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise UserError(NEEDS_OPTUNA) from error
    from tnctl.training.search import record, storages

    record.quiet_optuna()
    output, monitor = first.output, first.evaluation.monitor
    place = settings.storage or files.join(output, storages.JOURNAL)
    description = record.Description(
        parameters=tuple(space.parameters),
        seed=settings.seed,
        monitor=monitor,
        greater_is_better=bool(METRICS[monitor].greater_is_better),
        conf=run_folder.compared(first, NOT_COMPARED),
    )
    name = NAME if settings.storage is None else path_of(output)
    database = settings.storage is not None and storages.is_database(place)
    with ExitStack() as stack:
        stack.enter_context(files.locked(output))
        storage = stack.enter_context(storages.opened(place, database=database))
        if settings.overwrite:
            earlier = folders_of_runs(output)
            for folder in earlier:
                run_folder.refuse_foreign(folder)
            record.Record.forget(storage, name)
            for folder in earlier:
                run_folder.remove(folder)
        yield opened(storage, name, description, settings, place)


def path_of(output: str) -> str:
    """The path or URL of an output, without secrets, from wherever the command was given."""
    local = files.local_path(output)
    return str(masked(output if local is None else str(local.resolve())))


def opened(
    storage: Any, name: str, description: "Description", settings: Settings, place: str
) -> "Record":
    """The record in a storage. Raises UserError for another search, Failure for a damaged one."""
    from tnctl.training.search.record import Record

    try:
        return Record(
            storage, name, description, prune=settings.prune, parallel=settings.workers > 1
        )
    except Failure as error:
        raise Failure(f"{masked(place)} cannot be used: {error}. Choose another output") from error
    except UserError as error:
        raise UserError(f"{masked(place)}: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        reason = shortened(f"{type(error).__name__}: {error}", LONGEST_REASON)
        raise Failure(f"{masked(place)} is damaged: {reason}. Move it away") from error


def folders_of_runs(output: str) -> list[str]:
    """The folders in which an earlier search may have its trials, and the best one refitted."""
    return [
        files.join(output, entry.name)
        for entry in files.listed(output)
        if entry.kind == "folder" and results.FOLDER.fullmatch(entry.name)
    ]


@dataclass
class Trials:
    """The trials of a search as they are trained."""

    space: Space
    output: str
    record: "Record"
    settings: Settings
    monitor: str
    failed: dict[int, Outcome]

    def one_by_one(self) -> None:
        """Train them in this process."""
        for task in self._tasks():
            number = task.number
            outcome = run_trial(task.conf, task.golden, partial(self.record.report, number))
            self._end(number, outcome)
            if outcome.state == "interrupted":
                raise Stopped(f"trial {number}: {outcome.message}", outcome.exit_code)

    def together(self) -> None:
        """Train them in several processes."""
        trial_processes.train_together(
            self.settings.workers, self._tasks(), self.record.report, self._end
        )

    def _tasks(self) -> Iterator[trial_processes.Task]:
        """The trials that were interrupted, then new ones."""
        known = self.record.trials()
        begun = [trial.number for trial in known if trial.state == "running"]
        if known:
            progress.say(f"{len(known) - len(begun):,} trials are done")
        for number in begun:
            progress.say(f"trial {number} goes on")
            yield from self._task(number)
        for _ in range(len(known), self.settings.trials):
            yield from self._task(self.record.begin())

    def _task(self, number: int) -> Iterator[trial_processes.Task]:
        """A trial with its conf; none for values that do not make one, which is a failure."""
        texts = self.space.texts(self.record.values_of(number))
        progress.say(f"trial {number} of {self.settings.trials}  {words(texts)}")
        try:
            conf = self.space.conf_of(texts)
        except UserError as error:
            self._end(number, Outcome("failed", message=str(error), exit_code=error.exit_code))
            return
        output = files.join(self.output, results.folder_of(number))
        # What is chosen by validation data must not have been looked at on test data. A share of
        # data.split stays what it is: without it, its rows would be trained.
        conf = replace(
            conf,
            output=output,
            data=replace(conf.data, test=None),
            evaluation=replace(conf.evaluation, test=False),
            baseline=replace(conf.baseline, enabled=False),  # the same trees for all trials
        )
        yield trial_processes.Task(number, conf, self.settings.golden)

    def _end(self, number: int, outcome: Outcome) -> None:
        """Record how a trial ended."""
        if outcome.state == "complete":
            self.record.report(number, outcome.evaluations)
            self.record.complete(number, outcome.value)
            progress.say(f"trial {number}  {self.monitor} {shown(outcome.value, 5)}")
        elif outcome.state == "pruned":
            self.record.prune(number)
            progress.say(f"trial {number} stopped: others were better after as many evaluations")
        elif outcome.state == "failed":
            self.failed[number] = outcome
            progress.say(f"trial {number} failed: {outcome.message}")
