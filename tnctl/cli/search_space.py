"""The values of a search, from overrides such as `train.batch_size=choice(256,1024)`."""

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tnctl import schema
from tnctl.cli import compose
from tnctl.errors import UserError, did_you_mean, refuse_if
from tnctl.training.search.search_parameters import Parameter

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

TAGS = ("int", "log")
# Keys by which trials would not be comparable, and what is no key of a conf.
NOT_SEARCHED = ("evaluation.monitor", "data.validation", "data.test", "hydra.searchpath")
MOST_CHOICES = 1_000


def parameters_of(
    path: Path, overrides: list[str]
) -> tuple[list[str | Parameter], list[Parameter]]:
    """The overrides, with a Parameter in the place of each that has several values.

    And all parameters. Raises UserError where there is none, and for one that cannot be searched.
    """
    mixed: list[str | Parameter] = []
    parsed = compose.parsed_overrides(path, overrides)
    for override, text in zip(parsed, overrides, strict=True):
        mixed.append(_parameter(override, text) if override.is_sweep_override() else text)
    parameters = [entry for entry in mixed if isinstance(entry, Parameter)]
    refuse_if(
        not parameters,
        "sweep.trials needs keys with several values, such as "
        "optimizer.dense.learning_rate='tag(log, interval(1e-4, 1e-1))' or recipe=deepfm,dcn",
    )
    keys = [override.get_key_element().lstrip("+") for override in parsed]
    for key in keys:
        refuse_if(keys.count(key) > 1, f"{key} is given twice. Give it once")
    return mixed, parameters


def _parameter(override: "Override", text: str) -> Parameter:
    key = override.get_key_element()
    refuse_if(
        override.key_or_group in NOT_SEARCHED
        or override.key_or_group.startswith(("cluster", "data.split")),
        f"{override.key_or_group} must be the same for all trials. Give one value",
    )
    if override.is_choice_sweep():
        few = itertools.islice(override.sweep_string_iterator(), MOST_CHOICES + 1)
        choices = tuple(dict.fromkeys(few))
        refuse_if(not choices, f"{text} matches nothing")
        refuse_if(
            len(choices) > MOST_CHOICES, f"{text} has over {MOST_CHOICES:,} values. Give fewer"
        )
        return Parameter(key=key, kind="choice", choices=choices)
    value: Any = override.value()
    for tag in sorted(value.tags):
        refuse_if(tag not in TAGS, f"{text} has no tag '{tag}'. {did_you_mean(tag, TAGS)}")
    build = _of_interval if override.is_interval_sweep() else _of_range
    parameter = build(key, value, "int" in value.tags or _is_whole(override.key_or_group), text)
    parameter.refuse_odd(text)
    return parameter


def _of_interval(key: str, interval: Any, whole: bool, text: str) -> Parameter:
    low, high, log = interval.start, interval.end, "log" in interval.tags
    refuse_if(
        isinstance(low, str) or isinstance(high, str) or not math.isfinite(low + high),
        f"{text} has bounds that are no finite numbers",
    )
    if whole or (isinstance(low, int) and isinstance(high, int)):
        low, high = math.ceil(low), math.floor(high)
        return Parameter(key=key, kind="int", low=low, high=high, step=1, log=log)
    return Parameter(key=key, kind="float", low=float(low), high=float(high), log=log)


def _of_range(key: str, range_: Any, whole: bool, text: str) -> Parameter:
    try:
        few = list(itertools.islice(range_.range(), compose.MOST_RUNS + 1))
    except Exception as error:  # a step of 0: ValueError of range, or Hydra's own
        raise UserError(f"{text} is no range. Give range(start, end, step)") from error
    refuse_if(not few, f"{text} matches nothing")
    refuse_if(
        len(few) > compose.MOST_RUNS,
        f"{text} has over {compose.MOST_RUNS:,} values. Give an interval, or a greater step",
    )
    low, high, log = min(few), max(few), "log" in range_.tags
    if all(isinstance(value, int) for value in few):
        return Parameter(key=key, kind="int", low=low, high=high, step=abs(range_.step), log=log)
    refuse_if(whole, f"{text} has fractions, and {key} is a whole number")
    step = abs(float(range_.step))
    # By its decimal digits: sums of binary fractions would end beside the last value.
    high = float(f"{low + (len(few) - 1) * step:.12g}")
    return Parameter(key=key, kind="float", low=low, high=high, step=step, log=log)


def _is_whole(key: str) -> bool:
    """Whether the schema says that a key is a whole number."""
    try:
        hint = schema.hint_of(key)
    except UserError:  # a group; composing says what is wrong with others
        return False
    kinds = get_args(hint) or (hint,)
    return int in kinds and float not in kinds
