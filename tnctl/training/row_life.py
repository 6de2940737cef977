"""The rows of tables while they grow: what removes them, and whether memory is left for more."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tnctl import system
from tnctl.data import days
from tnctl.errors import UserError
from tnctl.limits import size
from tnctl.model.layout import Layout
from tnctl.model.parameter_tables import (
    ParameterTables,
    TableFigures,
    table_figures,
    total_bytes,
    total_rows,
)
from tnctl.progress import say
from tnctl.schema import Conf, RowLife
from tnctl.training.report.report_document import LifeFigures

# A sketch divides its counters evenly among the shards, and a shard's into lines; an id
# counts in one counter of each line of its shard.
SHARDS = 64
SKETCH_LINES = 4
MOST_COUNTED = 255  # occurrences
MISCOUNTED = 0.05
SECONDS_BETWEEN_CHECKS = 1.0
# For the checkpoint, and what reading and TensorFlow take beside the tables.
RESERVE = 160 << 20
GROWTHS_AHEAD = 4  # of as many bytes as the tables grew between the last two checks


def check(conf: Conf) -> None:
    """Refuse rules that count days in a conf without days. Raises UserError."""
    if days.daily(conf):
        return
    groups = {f"life.groups.{name}": rules.eviction for name, rules in conf.life.groups.items()}
    for key, eviction in {"life": conf.life.eviction, **groups}.items():
        if eviction is not None and eviction.unseen_days is not None:
            raise UserError(
                f"{key}.eviction.unseen_days counts days of daily training, and data.train has no "
                "{day}. Take unseen_steps"
            )


def end_of_period(model: ParameterTables) -> dict[str, int]:
    """Evict at the end of a day, or of an epoch without days; the rows removed, by group.

    A sketch that has become too small is reported.
    """
    warn_of_sketches(miscounted_by_table(model))
    return remove_rows(model)


def remove_rows(model: ParameterTables) -> dict[str, int]:
    """Evict what is due at the end of a day or epoch; the rows removed, by group."""
    removed = {}
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        if not layout.removes:
            continue
        groups = layout.groups
        earlier = {name: table.figures(group).evicted for name, group in groups.items()}
        table.evict()
        for name, group in groups.items():
            removed[name] = table.figures(group).evicted - earlier[name]
    return removed


def warn_of_sketches(shares: Mapping[str, float]) -> None:
    """Report the tables whose sketch is too small, from `miscounted` of each."""
    for name, share in shares.items():
        if share > MISCOUNTED:
            say(
                f"warning: life.sketch is small for table {name}: for {share:.0%} of new ids it "
                "counts occurrences that they never had"
            )


def miscounted_by_table(model: ParameterTables) -> dict[str, float]:
    """`miscounted` of the sketch of each table."""
    return {
        layout.name: miscounted(table.sketch)
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
    }


def miscounted(sketch: NDArray[np.uint8]) -> float:
    """The share of new ids whose count is not 0, because other ids use all of their counters.

    The counters of shards that a table does not own are 0, so the sum over the owners of a table
    is the share of all.
    """
    if not sketch.size:
        return 0.0
    shards = sketch.reshape(SHARDS, SKETCH_LINES, -1)
    used = np.array([(counters != 0).mean(axis=1) for counters in shards])
    return float(used.prod(axis=1).mean())


def figures(layout: Layout, tables: Sequence[TableFigures]) -> dict[str, LifeFigures]:
    """The counts of ids of every group whose rows have a life; `waiting` is an estimate."""
    return {
        name: LifeFigures(**vars(figures.groups[name]))
        for table, figures in zip(layout.tables, tables, strict=True)
        for name, life in zip(table.groups, table.lives, strict=True)
        if life.eventful
    }


def totals(layout: Layout, tables: Sequence[TableFigures]) -> dict[str, str]:
    """The counts of all groups together, as the display shows them; nothing without such rules."""
    names = ["admitted", "waiting"] if any(table.waits for table in layout.tables) else []
    if any(table.removes or table.bounds for table in layout.tables):
        names.append("evicted")
    lives = figures(layout, tables).values() if names else ()
    return {name: f"{sum(getattr(life, name) for life in lives):,}" for name in names}


def rules(life: RowLife) -> list[str]:
    """The rules of a group's life as sentences, one per rule."""
    after, probability = life.admission.after, life.admission.probability
    rules = {
        f"a row from occurrence {after} in the data on": after > 1,
        f"an occurrence in the data makes a row with probability {probability:g}": probability < 1,
        f"show and click, a day leaves {life.shows.decay:g} of them": life.counts,
        "show and ln(click+1) - ln(show+1) are inputs": life.shows.cvm,
    }
    sentences = [sentence for sentence, applies in rules.items() if applies]
    eviction = life.eviction
    limits = ((eviction.unseen_days, "days"), (eviction.unseen_steps, "steps"))
    unseen = [f"unseen for more than {most:,} {unit}" for most, unit in limits if most is not None]
    few = [] if eviction.show is None else [f"show is below {eviction.show:g}"]
    reasons = [f"{few[0]} and {' or '.join(unseen)}"] if eviction.logic == "and" else few + unseen
    sentences += [f"removed when {reason}" for reason in reasons]
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


def table_bytes(model: ParameterTables) -> int:
    """What the tables hold at the moment."""
    return total_bytes(table_figures(model))


def table_words(model: ParameterTables) -> str:
    """Rows and bytes of the tables, as a message has them."""
    rows = total_rows(table_figures(model))
    return f"the tables hold {size(table_bytes(model))} ({rows:,} rows)"


class MemoryWatch:
    """Compares what tables grow by with what the limits of memory leave, once a second.

    The killer of a system that runs out of memory leaves no time for a checkpoint or a message.
    """

    def __init__(self, model: ParameterTables, processes: int = 1) -> None:
        """`processes` of this machine have tables that grow as this model's do."""
        self._processes = processes
        self._held = table_bytes(model)
        self._next_check = time.monotonic()

    def shortage(self, model: ParameterTables) -> str | None:
        """What is wrong when the next growth may not have room, else None.

        None too while the tables do not grow: what is there has been enough so far.
        """
        now = time.monotonic()
        if now < self._next_check:
            return None
        self._next_check = now + SECONDS_BETWEEN_CHECKS
        held = table_bytes(model)
        growth, self._held = held - self._held, held
        if growth <= 0:
            return None
        processes = self._processes
        limit = system.tightest(processes=processes)
        if limit is None:
            return None
        if limit.free_for_each(processes) >= RESERVE + GROWTHS_AHEAD * growth:
            return None
        among = f" to {processes} workers" if processes > 1 and not limit.of_process else ""
        return f"{limit}{among}, and {table_words(model)} and grow"
