"""The record of a search: Optuna's study, in a journal beside the trials or in a database.

One process asks and tells; whoever trains a trial does not know Optuna. What a trial is given
depends on the seed of the search, on the trial's number, and on the trials that have ended. So a
search that is killed and goes on tries the same values as one that was not.
"""

import json
import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.pruners import MedianPruner, NopPruner
from optuna.trial import TrialState

from tnctl import documents
from tnctl.checkpoint.completed_conf import differing_keys
from tnctl.documents import Count, DocumentError, Text, TreeByName
from tnctl.errors import Failure, UserError, shortened
from tnctl.training.search.results import State, Trial
from tnctl.training.search.search_parameters import LONGEST_REASON, Parameter, Value
from tnctl.training.search.seeded_sampler import SeededSampler

ATTRIBUTE = "tnctl"  # of the study
VERSION = 1

STATES: dict[Any, State] = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True, kw_only=True)
class Description:
    """What all trials of a search have in common; kept with the study."""

    version: Count = VERSION
    parameters: tuple[Parameter, ...]
    seed: Count
    monitor: Text
    greater_is_better: bool
    conf: TreeByName
    """the conf with the first value of every parameter"""


class Record:
    """The trials of a search."""

    def __init__(
        self, storage: Any, name: str, description: Description, *, prune: bool, parallel: bool
    ) -> None:
        """The study of this name, which is made where there is none.

        Raises UserError when it is of another search, Failure when it cannot be read.
        """
        self._parameters = description.parameters
        self._storage = storage
        sampler = SeededSampler(description.seed, parallel)
        pruner = MedianPruner() if prune else NopPruner()
        if name in optuna.get_all_study_names(storage):
            # Not `create_study`, which writes to the journal in any case.
            self._study = optuna.load_study(
                study_name=name, storage=storage, sampler=sampler, pruner=pruner
            )
        else:
            direction = "maximize" if description.greater_is_better else "minimize"
            self._study = optuna.create_study(
                study_name=name,
                storage=storage,
                direction=direction,
                sampler=sampler,
                pruner=pruner,
            )
        self._check(description)

    def _check(self, description: Description) -> None:
        kept, trials = self._study.user_attrs.get(ATTRIBUTE), self._study.get_trials(deepcopy=False)
        if kept is None and not trials:
            self._study.set_user_attr(ATTRIBUTE, documents.plain(description))
            return
        if kept is None:
            raise UserError("another program has made this study. Choose another output")
        refuse_other_search(read_description(kept), description)
        by_key = {parameter.key: parameter for parameter in self._parameters}
        for trial in trials:
            is_whole = trial.state != TrialState.COMPLETE or trial.params.keys() == by_key.keys()
            values = trial.params.items()
            if not is_whole or not all(k in by_key and by_key[k].has(v) for k, v in values):
                raise Failure(f"trial {trial.number} has values that this search cannot draw")

    @staticmethod
    def forget(storage: Any, name: str) -> None:
        """Remove the study of this name, if there is one that tnctl made. Raises UserError."""
        if name not in optuna.get_all_study_names(storage):
            return
        study = optuna.load_study(study_name=name, storage=storage)
        if ATTRIBUTE not in study.user_attrs and study.get_trials(deepcopy=False):
            raise UserError("another program has made this study. Choose another output")
        optuna.delete_study(study_name=name, storage=storage)

    def trials(self) -> list[Trial]:
        """All trials that were begun, by their numbers."""
        return [
            Trial(trial.number, STATES[trial.state], dict(trial.params), _number(trial))
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state != TrialState.WAITING
        ]

    def begin(self) -> int:
        """The number of a new trial."""
        return int(self._study.ask().number)

    def values_of(self, number: int) -> dict[str, Value]:
        """The values of a trial that has not ended, drawn where it has none yet."""
        trial = self._trial(number)
        try:
            return {parameter.key: suggested(trial, parameter) for parameter in self._parameters}
        except ValueError as error:  # a recorded value is of another kind of parameter
            reason = shortened(str(error), LONGEST_REASON)
            raise Failure(f"the record of trial {number} is damaged: {reason}") from error

    def report(self, number: int, values: Sequence[float | None]) -> bool:
        """Record the evaluations of a trial so far; whether it is worse than most others were.

        The nth evaluation is compared with the nth of others. An undefined one is left out.
        """
        trial = self._trial(number)
        known = self._study.get_trials(deepcopy=False)[number].intermediate_values
        defined = {
            place: value
            for place, value in enumerate(values, 1)
            if value is not None and math.isfinite(value)
        }
        for place in sorted(defined.keys() - known.keys()):
            trial.report(defined[place], place)
        # A trial that was killed may repeat evaluations: it is judged by the last of them again.
        is_last = bool(defined) and max(defined) == max({*known, *defined})
        return is_last and bool(trial.should_prune())

    def complete(self, number: int, value: float | None) -> None:
        """Record the result of a trial; without one, that it has none."""
        if value is None or not math.isfinite(value):
            self._study.tell(number, state=TrialState.FAIL)
        else:
            self._study.tell(number, value)

    def prune(self, number: int) -> None:
        """Record that a trial was stopped."""
        self._study.tell(number, state=TrialState.PRUNED)

    def _trial(self, number: int) -> Any:
        study = self._storage.get_study_id_from_name(self._study.study_name)
        trial = self._storage.get_trial_id_from_study_id_trial_number(study, number)
        return optuna.trial.Trial(self._study, trial)


def read_description(kept: object) -> Description:
    """The description that a study has. Raises Failure for anything else."""
    try:
        description = documents.parse(Description, json.dumps(kept).encode())
    except (DocumentError, ValueError) as error:
        reason = shortened(str(error), LONGEST_REASON)
        raise Failure(f"its description is damaged: {reason}") from error
    if description.version != VERSION:
        raise Failure(f"a newer tnctl wrote it (version {description.version})")
    return description


def refuse_other_search(kept: Description, wanted: Description) -> None:
    """Raise UserError when a study is of another search, with what differs."""
    old = {parameter.key: parameter for parameter in kept.parameters}
    new = {parameter.key: parameter for parameter in wanted.parameters}
    differing = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    if not differing:
        differing = differing_keys(wanted.conf, kept.conf)
        names = ("seed", "sweep.seed"), ("monitor", "evaluation.monitor")
        differing += [key for name, key in names if getattr(kept, name) != getattr(wanted, name)]
    if differing:
        names_differing = ", ".join(dict.fromkeys(differing))
        raise UserError(
            f"it has trials of another search; these differ: {names_differing}. Choose another "
            "output, or overwrite=true to begin again"
        )


def suggested(trial: Any, parameter: Parameter) -> Value:
    """The value of a parameter in a trial: the recorded one, else one that is drawn."""
    value: Value
    if parameter.kind == "choice":
        value = trial.suggest_categorical(parameter.key, parameter.choices)
    elif parameter.kind == "int":
        value = trial.suggest_int(
            parameter.key, parameter.low, parameter.high,
            step=parameter.step or 1, log=parameter.log,
        )  # fmt: skip
    else:
        value = trial.suggest_float(
            parameter.key, parameter.low, parameter.high, step=parameter.step, log=parameter.log
        )
    return value


def _number(trial: Any) -> float | None:
    """The value of a trial; of one that has not ended, its last evaluation."""
    value = trial.value
    if value is None and trial.intermediate_values:
        value = trial.intermediate_values[max(trial.intermediate_values)]
    return None if value is None or not math.isfinite(value) else float(value)


def quiet_optuna() -> None:
    """Keep Optuna's own lines off the terminal: this program says what happens."""
    optuna.logging.set_verbosity(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    warnings.filterwarnings("ignore", module="optuna")
