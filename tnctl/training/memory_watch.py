"""Ends training with a checkpoint while there is memory for one, as its tables grow."""

import time

from tnctl import memory_limits
from tnctl.model.parameter_tables import ParameterTables
from tnctl.model.table_figures import table_figures, total_bytes, total_rows
from tnctl.progress import size

SECONDS_BETWEEN_CHECKS = 1.0
# For the checkpoint, and what reading and TensorFlow take beside the tables.
RESERVE = 160 << 20
GROWTHS_AHEAD = 4  # of as many bytes as the tables grew between the last two checks


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
        limit = memory_limits.tightest(processes=processes)
        if limit is None:
            return None
        if limit.free_for_each(processes) >= RESERVE + GROWTHS_AHEAD * growth:
            return None
        among = f" to {processes} workers" if processes > 1 and not limit.of_process else ""
        return f"{limit}{among}, and {table_words(model)} and grow"
