"""What a process of a cluster owns of a model, and what answers exchanges for it.

Imports no TensorFlow: dedicated servers own in the same way as workers.
"""

from dataclasses import replace
from typing import Any

from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages.shapes import shapes
from tnctl.cluster.node import Node
from tnctl.cluster.owners.arrivals import Arrivals
from tnctl.cluster.owners.barrier import Barrier
from tnctl.cluster.owners.owned import ArrivingPart, OwnedPart
from tnctl.cluster.owners.owner import Owner
from tnctl.errors import refuse_if
from tnctl.model.layout import table_life
from tnctl.model.parameter_tables import MovingStatistics, ParameterTables
from tnctl.schema import Conf


def take_shards(model: ParameterTables, membership: Membership, rank: int) -> None:
    """Let the tables of a model without rows own the shards of a rank, with their bounds."""
    shards, owners = membership.shards(rank), len(membership.writers)
    if not shards.count:
        return
    for layout, table in zip(model.layout.tables, model.tables, strict=True):
        table.set_shards(shards.first, shards.count)
        for number, life in zip(layout.groups.values(), layout.lives, strict=True):
            rules = table_life(life, table.stride)
            if rules.most_rows:
                # Keys are spread evenly, so each owner keeps its share of the bound.
                most_rows = rules.most_rows // owners
                kind = "servers" if membership.servers else "workers"
                refuse_if(
                    most_rows == 0,
                    f"the bound of a share group (life.eviction) is {rules.most_rows} rows, and "
                    f"{owners} {kind} own at least one each. Raise it, or take fewer {kind}",
                )
                table.set_life(number, replace(rules, most_rows=most_rows))


def new_owner(
    conf: Conf, model: ParameterTables, node: Node, steps: int, moving: MovingStatistics
) -> tuple[OwnedPart, Owner[Any]]:
    """What a process owns, and what answers exchanges for it, in the mode of the conf.

    `steps` were trained before. `moving` are all moving statistics, on rank 0.
    """
    owners, workers = node.membership.owners, node.workers
    shape = shapes(model, workers, moving, node.servers)[owners.index(node.rank)]
    part = (model, node.rank, workers, steps, moving, node.servers)
    cluster = conf.cluster
    if cluster.mode == "async":
        arriving = ArrivingPart(*part)
        return arriving, Arrivals(
            shape,
            workers,
            arriving,
            staleness=cluster.staleness,
            warmup_steps=-(-cluster.warmup_batches // workers),
            totals=node.totals,
        )
    owned = OwnedPart(*part)
    return owned, Barrier(
        shape,
        workers,
        owned,
        rank=node.rank,
        clip_norm=conf.optimizer.clip_norm,
        backup=cluster.backup,
        owners=len(owners),
        totals=node.totals,
    )
