"""The counts of rows of all workers, as rank 0 adds them up."""

from collections.abc import Sequence

from tnctl.cluster.messages import commands
from tnctl.cluster.node import Node
from tnctl.cluster.workers.command_loop import table_counts
from tnctl.model.building import Model
from tnctl.model.parameter_tables import TableFigures
from tnctl.tables import Figures


def counts_by_worker(node: Node, model: Model) -> list[list[commands.TableCount]]:
    """The counts of each process's part of every table, by rank. `model` is rank 0's."""
    replies = node.command_members(commands.CountRows())
    parts = [table_counts(model)]
    parts += [list(reply.tables) for reply in commands.replies_of(commands.TableCounts, replies)]
    return parts


def together(parts: Sequence[Sequence[commands.TableCount]]) -> list[TableFigures]:
    """The sums over all workers, by table."""
    return [_sum(of_table) for of_table in zip(*parts, strict=True)]


def _sum(parts: Sequence[commands.TableCount]) -> TableFigures:
    groups = {}
    for of_group in zip(*(part.groups for part in parts), strict=True):
        rows, evicted = sum(g.rows for g in of_group), sum(g.evicted for g in of_group)
        waiting = max(sum(g.waiting for g in of_group), 0)
        groups[of_group[0].name] = Figures(rows, rows + evicted, waiting, evicted)
    return TableFigures(sum(p.rows for p in parts), sum(p.bytes for p in parts), groups)
