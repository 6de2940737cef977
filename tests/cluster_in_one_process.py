"""A cluster whose workers are threads of the test's process: calls go from node to node."""

import contextlib
import csv
import itertools
import threading
import time
from collections import Counter
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from functools import partial
from unittest import mock

import numpy as np

from tnctl.checkpoint import load as loading
from tnctl.checkpoint import rows
from tnctl.cluster.node import Node
from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
from tnctl.cluster.transport.kinds import MessageError
from tnctl.cluster.transport.once import Envelope, Reply
from tnctl.cluster.workers import worker
from tnctl.cluster.workers.server import RowServer
from tnctl.cluster.workers.worker import Worker
from tnctl.errors import Failure, Stopped
from tnctl.training.run import train


def cluster(workers, transport=None, servers=0):
    """The nodes of a cluster, with a transport between them that has `start` and `call`."""
    nodes, transport = [], transport or Transport()

    def fail_others(rank, problem):
        for node in nodes:
            if node.rank != rank:
                node.end(problem.error())

    nodes += [
        Node(rank, workers, 1, partial(transport.call, rank), partial(fail_others, rank), servers)
        for rank in range(workers + servers)
    ]
    transport.start(nodes)
    return nodes


class Transport:
    """Calls of nodes to each other, each of which a thread brings."""

    def start(self, nodes):
        self.nodes, self.threads = nodes, ThreadPoolExecutor(64, "calls")

    def call(self, caller, peer, envelope, body):
        """Answer a call by the node of the peer, from a copy of its body."""
        reply = Future()
        content = bytes(body)
        self.threads.submit(self.deliver, caller, peer, envelope.to_bytes(), content, reply)
        return reply

    def deliver(self, caller, peer, envelope, body, reply):
        arrived = time.perf_counter()
        try:
            answer = self.nodes[peer].answer(caller, Envelope.parse(envelope), body)
        except MessageError as error:
            if not reply.done():
                reply.set_exception(error)
            return
        answer.add_done_callback(lambda answer: self.answered(reply, answer, arrived))

    def answered(self, reply, answer, arrived):
        with contextlib.suppress(InvalidStateError):
            reply.set_result(Reply(bytes(answer.result()), time.perf_counter() - arrived))

    def close(self):
        self.threads.shutdown(wait=False)


_one_at_a_time = threading.RLock()
_build = worker.build


def build(*arguments):
    """A model: Keras draws its weights from the state of the process, which threads share."""
    with _one_at_a_time:
        return _build(*arguments)


def train_together(conf, workers, transport=None, **options):
    """The report of a run of so many workers, and the errors of the others."""
    with following(conf, workers, transport) as (node, errors):
        report = train(conf, processes=ClusterProcesses(node), **options)
    return report, errors


def stop_at(patch, kind, call):
    """Let a call of `kind.train`, counted from 1, stop the training as a signal does."""
    train_step, calls = kind.train, itertools.count(1)

    def stopping(self, *arguments):
        if next(calls) == call:
            raise Stopped("stopped", 130)
        return train_step(self, *arguments)

    patch.setattr(kind, "train", stopping)


def shows_of_users(output):
    """How often the row of each user was shown, sorted; with life.shows.keep."""
    checkpoint = loading.newest(output)
    [table] = checkpoint.manifest.tables
    number = next(group.number for group in table.groups if group.name == "user_id")
    stored = np.concatenate(list(rows.stream(checkpoint, table.name)))
    return sorted(stored["show"][stored["group"] == number, 0].tolist())


def expected_shows(folder):
    """The same, of a run whose first pass trained each row of the data once."""
    users = [row["user_id"] for row in csv.DictReader((folder / "clicks/train.csv").open())]
    return sorted(Counter(users).values())


@contextlib.contextmanager
def following(conf, workers, transport=None, members=None):
    """The node of rank 0, whose commands the others follow until the end, and their errors.

    The others are added to `members`, in the order of ranks.
    """
    members = [] if members is None else members
    nodes, errors = cluster(workers, transport, conf.cluster.servers), []
    members += [(RowServer if node.rank >= workers else Worker)(conf, node) for node in nodes[1:]]

    def follow(member):
        try:
            member.run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=follow, args=[each], daemon=True) for each in members]
    for thread in threads:
        thread.start()
    with mock.patch.object(worker, "build", build):  # for as long as there are threads
        try:
            yield nodes[0], errors
            ClusterProcesses(nodes[0]).end()
        except BaseException as error:
            nodes[0].fail(Failure(f"worker 0 has ended: {error}"))  # as the end of its process does
            raise
        finally:
            nodes[0].fail(Failure("the run has ended"))  # for those that still wait
            for thread in threads:
                thread.join(5)
            if transport is not None:
                transport.close()
