"""What `cluster.mode` chooses."""

from tnctl.cluster.node import Node
from tnctl.cluster.workers.async_share import AsyncShare
from tnctl.cluster.workers.hybrid_share import HybridShare
from tnctl.cluster.workers.share import NextOf, Share
from tnctl.model.building import Model
from tnctl.schema import Conf


def new_share(conf: Conf, model: Model, node: Node, steps: int, next_of: NextOf) -> Share:
    """What a worker does of the training, in the mode of the conf: the arguments of `Share`."""
    kinds: dict[str, type[Share]] = {"sync": Share, "async": AsyncShare, "hybrid": HybridShare}
    return kinds[conf.cluster.mode](conf, model, node, steps, next_of)
