"""A row's life while training: what is removed when, and what is told of it."""

import numpy as np
from numpy.typing import NDArray

from tnctl.data import days
from tnctl.errors import UserError
from tnctl.model.building import Model
from tnctl.progress import say
from tnctl.schema import Conf, Eviction, RowLife
from tnctl.training.report import GroupLife

# A sketch has as many counters for each range of the hash, in so many lines; an id counts in one
# counter of each line of its range.
SHARDS = 64
SKETCH_LINES = 4
MOST_COUNTED = 255  # of occurrences
MISCOUNTED = 0.05


def check(conf: Conf) -> None:
    """Refuse rules that count days where the conf has none."""
    if days.daily(conf):
        return
    given = [("life", conf.life.eviction)]
    for group, rules in conf.life.groups.items():
        if rules.eviction is not None:
            given.append((f"life.groups.{group}", rules.eviction))
    for key, eviction in given:
        if eviction.unseen_days is not None:
            raise UserError(
                f"{key}.eviction.unseen_days counts days of daily training, and data.train has no "
                "{day}. Take unseen_steps"
            )


def end_of_period(model: Model) -> dict[str, int]:
    """What the end of a day brings, or of an epoch without days: rows removed, by group.

    A sketch that has become too small is told.
    """
    removed = {}
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        if (share := miscounted(table.sketch)) > MISCOUNTED:
            say(
                f"warning: life.sketch is small for table {layout.name}: of {share:.0%} of new ids "
                "it counts occurrences that they never had"
            )
        if not layout.removes:
            continue
        evicted_before = {
            name: table.figures(number).evicted for name, number in layout.groups.items()
        }
        table.evict()
        for name, number in layout.groups.items():
            removed[name] = table.figures(number).evicted - evicted_before[name]
    return removed


def miscounted(sketch: NDArray[np.uint8]) -> float:
    """The share of new ids whose count is not 0: all of their counters are another's too."""
    if not sketch.size:
        return 0.0
    used = (sketch.reshape(SHARDS, SKETCH_LINES, -1) != 0).mean(axis=2)
    return float(used.prod(axis=1).mean())


def figures(model: Model) -> dict[str, GroupLife]:
    """What became of the ids of every group whose rows have a life; waiting is an estimate."""
    lives = {}
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        for (name, number), life in zip(layout.groups.items(), layout.lives, strict=True):
            if life.eventful:
                counts = table.figures(number)
                lives[name] = GroupLife(
                    rows=counts.rows,
                    admitted=counts.admitted,
                    waiting=counts.waiting,
                    evicted=counts.evicted,
                )
    return lives


def shown(model: Model) -> dict[str, str]:
    """The same of all groups together, as the display shows it; nothing without such rules."""
    names = []
    if any(table.waits for table in model.layout.tables):
        names += ["admitted", "waiting"]
    if any(table.removes or table.bounds for table in model.layout.tables):
        names.append("evicted")
    if not names:
        return {}
    lives = figures(model).values()
    return {name: f"{sum(getattr(life, name) for life in lives):,}" for name in names}


def rules(life: RowLife) -> list[str]:
    """A group's life in words: one rule each."""
    sentences = []
    if life.admission.after > 1:
        sentences.append(f"a row from occurrence {life.admission.after} on")
    if life.admission.probability < 1:
        sentences.append(
            f"each occurrence makes a row with probability {life.admission.probability:g}"
        )
    if life.counts:
        sentences.append(f"show and click, a day leaves {life.shows.decay:g} of them")
    if life.shows.cvm:
        sentences.append("show and ln(click+1) - ln(show+1) are inputs")
    eviction = life.eviction
    unseen = unseen_in_words(eviction)
    few = [] if eviction.show is None else [f"show is below {eviction.show:g}"]
    if eviction.logic == "and":
        sentences.append(f"removed when {few[0]} and {' or '.join(unseen)}")
    else:
        sentences += [f"removed when {reason}" for reason in few + unseen]
    if eviction.score is not None:
        sentences.append(
            f"removed when (show - click) * {eviction.nonclick:g} + click * "
            f"{eviction.click_weight:g} is below {eviction.score:g}"
        )
    if eviction.every_steps is not None:
        sentences.append(f"looked at every {eviction.every_steps:,} steps too")
    if eviction.rows is not None:
        sentences.append(f"at most {eviction.rows:,} rows")
    if eviction.bytes is not None:
        sentences.append(f"at most {eviction.bytes:,} bytes of rows")
    return sentences


def unseen_in_words(eviction: Eviction) -> list[str]:
    given: list[tuple[int | None, str]] = [
        (eviction.unseen_days, "days"),
        (eviction.unseen_steps, "steps"),
    ]
    return [f"unseen for more than {most:,} {unit}" for most, unit in given if most is not None]
