"""A worker process: joins the others, then leads them as rank 0, or follows rank 0."""

import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tnctl.cluster.cluster_member import Member, membership_of
from tnctl.cluster.joining.assignment import Assignment
from tnctl.cluster.joining.membership import Membership
from tnctl.cluster.messages import commands
from tnctl.cluster.node import Node
from tnctl.cluster.worker_errors import (
    ending_of,
    is_unexpected,
    keep_tracebacks_in,
    show_traceback,
)
from tnctl.cluster.workers.row_service import RowService
from tnctl.documents import Count
from tnctl.errors import Stopped, UserError
from tnctl.schema import Conf, from_values

if TYPE_CHECKING:
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses

# Runs the command of a task as rank 0, and returns its exit code.
Lead = Callable[[Conf, "ClusterProcesses", dict[str, Any]], int]
HANDLED = (signal.SIGINT, signal.SIGTERM)


def work(assignment: Assignment, lead: Lead) -> int:
    """Do what the supervisor has assigned; the exit code of the process.

    Rank 0 runs the command with `lead`, which may use all workers and does not end them. A
    dedicated server never imports TensorFlow.
    """
    task = assignment.task
    conf = from_values(task["conf"])
    if assignment.rank == 0 and (logs := task.get("logs", conf.output)) is not None:
        keep_tracebacks_in(logs)
    follow = loop_of(membership_of(assignment, conf.cluster), assignment.rank)
    member = Member(assignment, conf)
    node = member.join()
    threading.excepthook = member.end_with_thread
    try:
        code = 0
        if node.rank:
            send_signals(node)
            follow(conf, node).run()
        else:
            from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses

            processes = ClusterProcesses(node)
            StopRequests(node, processes)  # before other imports, which take seconds
            code = lead(conf, processes, task)
            processes.end()
    except Exception as error:
        if is_unexpected(error):
            show_traceback(error)
        member.fail(error)
        raise ending_of(member.rank, member.membership, error) from error
    except Stopped as stopped:
        member.fail(UserError(str(stopped), stopped.exit_code))
        raise
    member.leave()
    return code


def train(conf: Conf, processes: "ClusterProcesses", task: dict[str, Any]) -> int:
    """Rank 0: train a conf to its end with all workers."""
    from tnctl.training.report.terminal_tables import show_report
    from tnctl.training.run import train as train_conf

    options = {key: task[key] for key in ("overwrite", "golden", "accept")}
    report = train_conf(conf, **options, processes=processes)
    show_report(conf.output, report)
    return 0


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


# ---- Signals that ask a worker to stop: they reach worker 0, which saves and ends all ----


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
