"""A worker process: joins the others, then leads them as rank 0, or follows rank 0."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tnctl.cluster import stop_requests
from tnctl.cluster.cluster_member import Member
from tnctl.cluster.following import loop_of, membership_of
from tnctl.cluster.joining.assignment import Assignment
from tnctl.cluster.worker_errors import (
    ending_of,
    is_unexpected,
    keep_tracebacks_in,
    show_traceback,
)
from tnctl.errors import Stopped, UserError
from tnctl.schema import Conf, from_values

if TYPE_CHECKING:
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses

# Runs the command of a task as rank 0, and returns its exit code.
Lead = Callable[[Conf, "ClusterProcesses", dict[str, Any]], int]


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
            stop_requests.send_signals(node)
            follow(conf, node).run()
        else:
            from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses

            processes = ClusterProcesses(node)
            stop_requests.StopRequests(node, processes)  # before other imports, which take seconds
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
