"""Signals that ask a worker to stop: they reach worker 0, which saves and ends all."""

import os
import signal
from typing import TYPE_CHECKING

from tnctl.cluster.messages import commands
from tnctl.cluster.node import Node
from tnctl.documents import Count

if TYPE_CHECKING:
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses

HANDLED = (signal.SIGINT, signal.SIGTERM)


def send_signals(node: Node) -> None:
    """On another rank than 0: from now on a signal is a request to worker 0."""

    def ask_to_stop(number: int, _: object) -> None:
        node.command(0, StopRequests.stop, number)

    for number in HANDLED:
        signal.signal(number, ask_to_stop)


class StopRequests:
    """On rank 0: from now on this process gets the signals that others have received."""

    def __init__(self, node: Node, processes: "ClusterProcesses") -> None:
        self._processes = processes
        node.route(StopRequests.stop, commands.answering(self))

    @commands.command
    def stop(self, number: Count) -> None:
        """Give this process the signal that another one has received: rank 0 saves, and ends all.

        Not a second one: all of them may have received the first, and it must not keep rank 0 from
        saving.
        """
        signals = self._processes.signals
        if (signals is None or not signals.received) and number in HANDLED:
            os.kill(os.getpid(), number)
