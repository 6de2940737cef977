"""What a search varies, and its confs: of trials, and of the best one on all data."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tnctl.data.days import daily
from tnctl.data.sources import row_range, split_of
from tnctl.errors import refuse_if
from tnctl.schema import Conf, Data

# What Optuna records of a value: the text of a choice, or a number.
Value = str | int | float


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A key of the conf, or a group, and its values.

    A choice has `choices`, texts of Hydra's grammar; int and float have the numbers from `low` to
    `high`, both included, in multiples of `step` where there is one.
    """

    key: str
    kind: Literal["choice", "int", "float"]
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None
    log: bool = False

    def refuse_odd(self, argument: str) -> None:
        """Raise UserError for bounds that a search cannot draw from."""
        if self.kind == "choice":
            return
        refuse_if(
            not (math.isfinite(self.low) and math.isfinite(self.high)) or self.low > self.high,
            f"{argument} has no values: its bounds must be finite, the lower one first",
        )
        refuse_if(
            self.log and self.low <= 0,
            f"{argument} has a logarithmic scale, which begins above 0",
        )
        refuse_if(
            self.log and self.step not in (None, 1),
            f"{argument} has a logarithmic scale, on which there are no steps. Give interval(…)",
        )

    def suggested(self, trial: Any) -> Value:
        """The value in a trial of Optuna: the recorded one, else one that is drawn."""
        if self.kind == "choice":
            value: Value = trial.suggest_categorical(self.key, self.choices)
        else:
            suggest = trial.suggest_int if self.kind == "int" else trial.suggest_float
            step = self.step or (1 if self.kind == "int" else None)
            value = suggest(self.key, self.low, self.high, step=step, log=self.log)
        return value

    def text_of(self, value: Value) -> str:
        """A value in Hydra's grammar."""
        return value if isinstance(value, str) else repr(value)

    def tested(self) -> list[str]:
        """Texts that, when the conf takes all of them, it takes every value."""
        if self.kind == "choice":
            return list(self.choices)
        return list(dict.fromkeys(map(self.text_of, (self.low, self.high))))


def words(values: Mapping[str, str]) -> str:
    """Values by their keys, as they are written in a command."""
    return " ".join(f"{key}={value}" for key, value in values.items())


@dataclass(frozen=True)
class Space:
    """The parameters, and the conf that their values make: texts of Hydra's grammar, by key."""

    parameters: Sequence[Parameter]
    conf_of: Callable[[dict[str, str]], Conf]

    def texts(self, values: Mapping[str, Value]) -> dict[str, str]:
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


def conf_of_trial(conf: Conf, output: str) -> Conf:
    """The conf of a trial in the folder `output`."""
    # What is chosen by validation data must not have been looked at on test data. A share of
    # data.split stays what it is: without it, its rows would be trained.
    return replace(
        conf,
        output=output,
        data=replace(conf.data, test=None),
        evaluation=replace(conf.evaluation, test=False),
        baseline=replace(conf.baseline, enabled=False),  # the same trees for all trials
    )


def conf_of_all_data(conf: Conf, passes: int) -> Conf:
    """A conf whose training data has data.validation too; nothing decides when training ends.

    Raises UserError where one conf cannot say that.
    """
    refuse_if(
        conf.data.prepared is not None,
        "sweep.refit=true needs the files of data.train and data.validation, and data.prepared has "
        "each apart. Leave one of them out",
    )
    refuse_if(
        conf.optimizer.schedule.name == "plateau",
        "sweep.refit=true leaves no validation data, by which optimizer.schedule.name=plateau "
        "goes. Leave one of them out",
    )
    evaluation = replace(
        conf.evaluation, every_steps=None, patience=None, keep="last", recalibrate=False
    )
    return replace(
        conf,
        data=_with_validation(conf.data),
        evaluation=evaluation,
        train=replace(conf.train, epochs=passes),
    )


def _with_validation(data: Data) -> Data:
    """The data with the rows of data.validation in data.train. Raises UserError."""
    if data.is_cut("validation"):
        return replace(data, split=replace(data.split, validation=0.0))
    refuse_if(
        data.is_cut("train"),
        f"sweep.refit=true trains on data.validation, of which data.split.test={data.split.test} "
        "would then take rows too. Give data.test=FILES, or data.split.validation",
    )
    return replace(data, train=_joined(data), validation=None)


def _joined(data: Data) -> Any:
    """data.train and data.validation as one value of data.train."""
    splits = ("train", "validation")
    first, second = (split_of(data, split) for split in splits)
    if data.is_generated:
        (start, middle), (begin, end) = sorted(row_range(data, split) for split in splits)
        refuse_if(
            middle != begin,
            "sweep.refit=true needs ranges of generated rows that adjoin. Received: "
            f"data.train={first.spec} and data.validation={second.spec}",
        )
        return f"{start}:{end}"
    refuse_if(
        first.skip_rows != second.skip_rows,
        "sweep.refit=true reads data.train and data.validation in one way, and they have other "
        f"skip_rows. Received: {first.skip_rows} and {second.skip_rows}",
    )
    names: list[Any] = []
    for spec in (first.spec, second.spec):
        names += [spec] if isinstance(spec, str) else list(spec or [])
    return {"files": names, "skip_rows": first.skip_rows}
