"""Which process of a cluster this is, and what runs the commands of rank 0 in it."""

from collections.abc import Callable

from tnctl.cluster.joining.assignment import Assignment
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.node import Node
from tnctl.cluster.workers.row_service import RowService
from tnctl.schema import Cluster, Conf


def membership_of(assignment: Assignment, cluster: Cluster) -> Membership:
    """The processes of the cluster that a process is assigned to."""
    return Membership(assignment.ranks - cluster.servers, cluster.servers)


def loop_of(membership: Membership, rank: int) -> Callable[[Conf, Node], RowService]:
    """What runs the commands of rank 0 in a process of a rank, and imports all that it needs.

    To be called before the process joins, for imports take long. Those of rank 0 are imported too.
    """
    if membership.is_server(rank):
        from tnctl.cluster.workers.server import RowServer

        return RowServer
    from tnctl.cluster.rank_0 import cluster_processes  # noqa: F401 - of rank 0
    from tnctl.cluster.workers.worker import Worker

    return Worker
