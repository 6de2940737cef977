"""The factor of all learning rates: a function of the steps done, and of plateaus."""

import math

from tnctl.data.days import daily
from tnctl.errors import refuse_if
from tnctl.schema import Conf, Schedule


def check(conf: Conf) -> None:
    """Refuse a schedule within days where a day's rows are not known. Raises UserError."""
    if conf.optimizer.schedule.name == "day":
        refuse_if(
            not daily(conf),
            "optimizer.schedule.name=day is for days: data.train has no {day}. Take another",
        )
        refuse_if(
            conf.data.negatives < 1,
            "optimizer.schedule.name=day needs the rows of a day, and data.negatives leaves out "
            "some. Take another schedule, or data.negatives=1",
        )


def is_crossed(every: int, earlier: int, steps: int) -> bool:
    """Whether a multiple of `every` is among the steps after `earlier` up to `steps`.

    Several workers may take a few steps between two looks at the clock.
    """
    return steps // every > earlier // every


def factor(
    schedule: Schedule, steps: int, plateau: float = 1.0, share_of_day: float = 0.0
) -> float:
    """The factor of the step that follows `steps` steps.

    `share_of_day` is the part of its day that the steps before have trained: steps of the pass
    times the rows of a full step, over the rows of the day.

    With s = steps, w = warmup_steps, t = s - w, e = end:

    - s < w: s / w, whatever the schedule
    - constant: 1
    - exponential: max(decay_rate ^ (t / decay_steps), e)
    - step: the factor of the last boundary below s (boundaries count all steps, also warm-up's)
    - cosine: e + (1 - e) * (1 + cos(pi * min(t / decay_steps, 1))) / 2
    - plateau: `plateau`, which evaluations reduce
    - day: 1 - (1 - e) * share_of_day

    Up to the warm-up of others than cosine, these are Keras' ExponentialDecay,
    PiecewiseConstantDecay and CosineDecay.
    """
    if steps < schedule.warmup_steps:
        return steps / schedule.warmup_steps
    after = steps - schedule.warmup_steps
    if schedule.name == "exponential":
        return max(schedule.decay_rate ** (after / schedule.decay_steps), schedule.end)
    if schedule.name == "step":
        passed = sum(boundary < steps for boundary in schedule.boundaries)
        return schedule.factors[passed - 1] if passed else 1.0
    if schedule.name == "cosine":
        share = min(after / schedule.decay_steps, 1.0)
        return schedule.end + (1 - schedule.end) * (1 + math.cos(math.pi * share)) / 2
    if schedule.name == "day":
        return 1 - (1 - schedule.end) * min(share_of_day, 1.0)
    return plateau if schedule.name == "plateau" else 1.0
