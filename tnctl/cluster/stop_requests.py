"""Signals that ask a worker to stop: they reach worker 0, which saves and ends all."""

import os
import signal
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tnctl.cluster.messages import commands
from tnctl.cluster.node import Node, Respond

if TYPE_CHECKING:
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses

HANDLED = (signal.SIGINT, signal.SIGTERM)


def send_signals(node: Node) -> None:
    """On another rank than 0: from now on a signal is a request to worker 0."""

    def ask_to_stop(number: int, _: object) -> None:
        node.command(0, commands.Stop(signal=number))

    for number in HANDLED:
        signal.signal(number, ask_to_stop)


def obey(node: Node, processes: "ClusterProcesses") -> None:
    """On rank 0: from now on this process gets the signals that others have received."""
    requests: SimpleQueue[tuple[bytes, Respond]] = SimpleQueue()
    node.route({"stop"}, requests)
    threading.Thread(target=_pass_signals, args=(requests, processes), daemon=True).start()


def _pass_signals(
    requests: "SimpleQueue[tuple[bytes, Respond]]", processes: "ClusterProcesses"
) -> None:
    """Give this process the signal that others have received: rank 0 saves, and ends all.

    Not a second one: all of them may have received the first, and it must not keep rank 0 from
    saving.
    """
    while True:
        body, respond = requests.get()
        command = commands.command_of(body)
        assert isinstance(command, commands.Stop)
        respond(commands.encode(commands.Done()))
        is_first = processes.signals is None or not processes.signals.received
        if is_first and command.signal in HANDLED:
            os.kill(os.getpid(), command.signal)
