"""What a process of a cluster owns of a model, and what answers exchanges for it.

Imports no TensorFlow: dedicated servers own in the same way as workers.
"""

from dataclasses import replace
from typing import Any

from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages.shapes import shapes
from tnctl.cluster.node import AnyOwner, Node
from tnctl.cluster.owners.async_owned import AsyncOwnedPart
from tnctl.cluster.owners.async_owner import AsyncOwner
from tnctl.cluster.owners.owned import OwnedPart
from tnctl.cluster.owners.owner import Owner
from tnctl.errors import refuse_if
from tnctl.model.layout import table_life
from tnctl.model.parameter_tables import MovingStatistics, ParameterTables
from tnctl.schema import Cluster, Conf


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


def sync_owner(
    conf: Conf, model: ParameterTables, node: Node, steps: int, moving: MovingStatistics
) -> tuple[OwnedPart, Owner]:
    """What a process owns, and what answers for it, in the mode `sync`.

    `steps` were trained before. `moving` are all moving statistics, on rank 0.
    """
    number = node.membership.owners.index(node.rank)
    owned = OwnedPart(model, node.rank, node.workers, steps, moving, node.servers)
    owner = Owner(
        shapes(model, node.workers, moving, node.servers)[number],
        node.workers,
        owned,
        node.rank,
        conf.optimizer.clip_norm,
        conf.cluster.backup,
        owners=len(node.membership.owners),
        totals=node.totals,
    )
    return owned, owner


def async_owner(
    cluster: Cluster, model: ParameterTables, node: Node, steps: int, moving: MovingStatistics
) -> tuple[AsyncOwnedPart, AsyncOwner[Any]]:
    """The same in the mode `async`."""
    number = node.membership.owners.index(node.rank)
    owned = AsyncOwnedPart(model, node.rank, node.workers, steps, moving, node.servers)
    owner: AsyncOwner[Any] = AsyncOwner(
        shapes(model, node.workers, moving, node.servers)[number],
        node.workers,
        owned,
        cluster.staleness,
        warmup_steps=-(-cluster.warmup_batches // node.workers),
        totals=node.totals,
    )
    return owned, owner


def owner_of_server(conf: Conf, model: ParameterTables, node: Node, steps: int) -> AnyOwner:
    """What answers for the part that a dedicated server owns, in the mode of the conf."""
    if conf.cluster.mode == "async":
        return async_owner(conf.cluster, model, node, steps, [])[1]
    return sync_owner(conf, model, node, steps, [])[1]
