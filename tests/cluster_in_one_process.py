"""A cluster whose workers are threads of the test's process: frames go from node to node."""

import threading
from unittest import mock

from tnctl.cluster import commands, frames, share
from tnctl.cluster.cluster_workers import ClusterProcesses
from tnctl.cluster.follower import Follower
from tnctl.cluster.node import Node
from tnctl.errors import Failure
from tnctl.training.training_run import train


def cluster(workers):
    """The nodes of a cluster."""
    nodes = []

    def send(peer, frame):
        nodes[peer].receive(frames.parse(frame.to_bytes()))

    nodes += [Node(rank, workers, 1, send) for rank in range(workers)]
    return nodes


_one_at_a_time = threading.RLock()
_build = share.build


def build(*arguments):
    """A model: Keras draws its weights from the state of the process, which threads share."""
    with _one_at_a_time:
        return _build(*arguments)


def train_together(conf, workers, **options):
    """The report of a run of so many workers, and the errors of the others."""
    nodes, errors = cluster(workers), []

    def follow(node):
        try:
            Follower(conf, node).run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=follow, args=[node], daemon=True) for node in nodes[1:]]
    for thread in threads:
        thread.start()
    try:
        with mock.patch.object(share, "build", build):
            report = train(conf, processes=ClusterProcesses(nodes[0]), **options)
            for rank in range(1, workers):
                nodes[0].command(rank, commands.End()).result()
    finally:
        nodes[0].fail(Failure("the run has ended"))  # for those that still wait
        for thread in threads:
            thread.join(5)
        for node in nodes:
            node.close()
    return report, errors
