"""Who joins a cluster and who is lost; what one machine reports ends all."""

import dataclasses
import errno
import itertools
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from types import SimpleNamespace

import cluster_commands
import cluster_in_one_process
import grpc
import numpy as np
import pytest
from env_commands import free_port
from test_cluster import conf_of

from tnctl import files, schema, system
from tnctl.checkpoint import load as loading
from tnctl.checkpoint import owners
from tnctl.cluster import cluster_member, process
from tnctl.cluster.cluster_member import Member
from tnctl.cluster.joining import members, patience
from tnctl.cluster.joining.assignment import NOT_JOINED, Assignment
from tnctl.cluster.node import Node
from tnctl.cluster.transport import rpc
from tnctl.cluster.transport.kinds import MessageError
from tnctl.cluster.workers import server, share
from tnctl.errors import Failure, Stopped, UserError
from tnctl.system import Limit
from tnctl.tables import NotFiniteError
from tnctl.training import row_life
from tnctl.training.workers import Signals

# ---- Who joins and who is lost ------------------------------------------------------


def assigned(rank, port=0, **given):
    """What a supervisor gives to a worker, with the port of rank 0."""
    values = {"ranks": 2, "task": {"command": "train"}, "token": "of this run"} | given
    return Assignment(
        rank=rank, generation=1, cpus=(0,), supervisor=0, port=0 if rank else port,
        rank_0=f"127.0.0.1:{port}", **values,
    )  # fmt: skip


def test_a_worker_that_was_started_again_ends_the_generation(workspace, monkeypatch, capfd):
    conf, lost = conf_of(workspace, monkeypatch), SimpleQueue()
    monkeypatch.setattr(Member, "_lose", lambda self, reason: lost.put((self.rank, reason)))
    port = free_port()
    workers = [Member(assigned(rank, port), conf) for rank in range(2)]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Member.join, workers))
        for _ in range(30):
            ask_as_a_stranger(port)
        workers.append(Member(assigned(1, port), conf))
        workers[2]._endpoint.connect(0, f"127.0.0.1:{port}", workers[2]._say_hello)
        reasons = [lost.get(timeout=60)]
        while reasons[-1][0] != 0:
            reasons.append(lost.get(timeout=60))
        assert reasons[-1] == (0, "worker 1 has ended")
    finally:
        for worker in workers:
            worker._is_leaving = True
            worker._endpoint.close()
    err = capfd.readouterr().err
    refused = re.findall(
        "refused connections from 'ipv4:127.0.0.1': they do not have the token of this run(.*)", err
    )
    assert refused == ["", " (10 times)"]


@pytest.fixture
def placed(workspace, monkeypatch):
    """Makes workers that know the address of worker 0 before it listens; all end with the test."""
    conf, workers, port = conf_of(workspace, monkeypatch), [], free_port()

    def make(rank, /, **given):
        workers.append(Member(assigned(rank, port, **given), conf))
        return workers[-1]

    yield make, port
    for worker in workers:
        worker._is_leaving = True
        worker._endpoint.close()


class Fast:
    """Time that passes ten times as fast."""

    @staticmethod
    def monotonic():
        return 10 * time.monotonic()

    @staticmethod
    def sleep(seconds):
        time.sleep(seconds / 10)


class Lost(Exception):
    pass


def lose(_, reason):
    raise Lost(reason)


def test_workers_join_while_worker_0_still_begins(placed, monkeypatch):
    """Their connections come as soon as it listens."""
    make, raised = placed[0], []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    new_hello = cluster_member.Hello

    def slow_hello(**given):
        time.sleep(0.5 * (given["rank"] == 0))
        return new_hello(**given)

    monkeypatch.setattr(cluster_member, "Hello", slow_hello)
    with ThreadPoolExecutor() as pool:
        joined = pool.submit(lambda: make(1).join())
        time.sleep(0.2)
        pool.submit(lambda: make(0).join()).result()
        joined.result()
    assert not raised


def test_worker_0_names_those_that_have_not_joined(placed):
    first, second = (placed[0](rank, ranks=3) for rank in range(2))
    with ThreadPoolExecutor() as pool:
        for worker in (first, second):
            pool.submit(worker.join)
        cluster_commands.until(lambda: first._joined, 30)
        missing = first._missing("did not join")
        placed[0](2, ranks=3).join()
    assert missing.startswith("1 of 3 workers did not join: worker 2")


def test_a_worker_that_is_refused_when_all_are_welcome_ends_nobody(placed, monkeypatch):
    """Worker 0 may still connect to the others."""
    exits = []
    monkeypatch.setattr(cluster_member.os, "_exit", exits.append)
    worker = placed[0](0)
    hello = dataclasses.replace(worker._hello, rank=1, process="1" * 16)
    welcome = worker.joined(1, members.to_body(hello)).result(0)
    assert worker.joined(1, members.to_body(hello)).result(0) == welcome
    with pytest.raises(MessageError, match="a cluster of 2 workers"):
        worker.joined(1, members.to_body(dataclasses.replace(hello, workers=3)))
    assert members.parse_welcome(welcome, hello) == worker._welcome and not exits


@pytest.fixture
def joined(placed, monkeypatch):
    """Two workers that have joined, and a queue of what any of them is lost for, with its rank."""
    lost = SimpleQueue()
    monkeypatch.setattr(Member, "_lose", lambda self, reason: lost.put((self.rank, reason)))
    workers = [placed[0](rank) for rank in range(2)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(Member.join, workers))
    return workers, lost


def test_a_worker_that_ends_without_a_reason_ends_the_others(joined):
    """Nobody watches it any more: who needs it would wait."""
    workers, lost = joined
    workers[1]._farewell.set_result(b"garbage")
    assert lost.get(timeout=30) == (0, "worker 1 ends with what is no problem")


def test_a_worker_whose_connection_stays_away_is_lost(joined):
    """Also while nobody calls it."""
    workers, lost = joined
    workers[1]._is_leaving = True
    workers[1]._endpoint.close()
    rank, reason = lost.get(timeout=30)
    assert rank == 0 and re.match(r"worker 1 could not be reached for \d\.\d s: its", reason)


def test_a_worker_waits_for_the_address_of_the_process_before_it(placed, capfd):
    make, port = placed
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen()
        started = time.monotonic()
        threading.Timer(3.0, listening.close).start()
        assert make(0)._endpoint.port == port
        assert time.monotonic() - started > 2.5
    # Beside lines of gRPC, which processes of tnctl have switched off.
    said = [line for line in capfd.readouterr().err.splitlines() if "worker 0: " in line]
    assert len(said) == 1 and "another process may do so. Waiting up to 120 s for it" in said[0]


@pytest.mark.parametrize(("rank", "given", "words"), [
    (1, {"token": "of another run"}, "it refuses the token of this worker: all need the same"),
    (2, {"ranks": 3}, "it has no worker of this rank: all need the same number of workers"),
])  # fmt: skip
def test_a_worker_that_is_refused_for_long_ends_and_the_others_go_on(
    placed, monkeypatch, rank, given, words
):
    monkeypatch.setattr(cluster_member, "SECONDS_REFUSED", 1.0)
    monkeypatch.setattr(Member, "_lose", lose)
    make = placed[0]
    with ThreadPoolExecutor() as pool:
        first = pool.submit(make(0).join)
        refused, started = make(rank, **given), time.monotonic()
        with pytest.raises(UserError, match=f"^worker {refused.rank} does not connect to worker 0: "
                                            f"{words}") as caught:  # fmt: skip
            refused.join()
        assert caught.value.exit_code == 2 and time.monotonic() - started > 1
        assert not first.done()
        make(1).join()
        assert first.result(60).rank == 0


def test_a_worker_that_cannot_join_says_why(workspace, monkeypatch, capfd):
    monkeypatch.setattr(Member, "_lose", lose)
    monkeypatch.setattr(patience, "time", Fast)
    conf = conf_of(workspace, monkeypatch)
    impatient = dataclasses.replace(conf.cluster, patience=25.0)
    # Nobody listens on this port.
    worker = Member(assigned(1, port=1), dataclasses.replace(conf, cluster=impatient))
    reason = (
        r"1 of 2 workers did not join within 25 s \(cluster.patience\): "
        r"worker 0 at 127\.0\.0\.1:1 \(nothing listens there"
    )
    try:
        with pytest.raises(UserError, match=f"^{reason}") as caught:
            worker.join()
        assert caught.value.exit_code == NOT_JOINED
    finally:
        worker._endpoint.close()
    waiting = [line for line in capfd.readouterr().err.splitlines() if "Waiting" in line]
    assert 1 <= len(waiting) <= 3  # after 5 s and after 10, later where a look at the time is late
    for line in waiting:
        assert line.startswith("worker 1: 1 of 2 workers did not join so far: worker 0 at 127.0.0")
        assert "Waiting up to 25 s for it (cluster.patience), of which " in line


def ask_as_a_stranger(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(f"/{rpc.SERVICE}/Call")(b"", metadata=((rpc.TOKEN, "guess"),))


# ---- A request to stop -----------------------------------------------------------


def test_a_signal_that_was_sent_to_several_processes_is_one_request():
    with Signals() as signals:
        signals.seconds_apart = 60.0
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received and not signals.again
        signals.seconds_apart = 0.0
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.again


@pytest.mark.parametrize("received", [False, True])
def test_a_signal_of_another_worker_is_one_of_rank_0(monkeypatch, received):
    nodes, given = cluster_in_one_process.cluster(2), SimpleQueue()
    system_calls = SimpleNamespace(getpid=os.getpid, kill=lambda *call: given.put(call))
    monkeypatch.setattr(process, "os", system_calls)
    signals = SimpleNamespace(received=received)
    process.StopRequests(nodes[0], SimpleNamespace(signals=signals))
    handlers = {number: signal.getsignal(number) for number in process.HANDLED}
    try:
        process.send_signals(nodes[1])
        signal.raise_signal(signal.SIGTERM)
        if received:  # rank 0 saves already
            with pytest.raises(Empty):
                given.get(timeout=0.5)
        else:
            assert given.get(timeout=30) == (os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


# ---- What one machine reports ------------------------------------------------------


def full_disk(monkeypatch):
    """No space for the rows of the second owner, in the thread that trains."""
    write = files.OutputFile.write

    def failing(self, data):
        if "00001.rows" in self._url:
            with files.translated(self._url, "written"):
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(files.OutputFile, "write", failing)


def fails_in_step(error):
    def patch(monkeypatch):
        train = share.Share.train

        def failing(self, rate_factor):
            if self.node.rank == 1 and self.parameters.steps == 2:
                raise error
            train(self, rate_factor)

        monkeypatch.setattr(share.Share, "train", failing)

    return patch


def fails_in_exchange(error):
    """In the thread of server 1 that answers exchanges, in one of the first steps."""

    def patch(monkeypatch):
        exchange, calls = Node._exchange, itertools.count()

        def failing(node, *arguments):
            if node.rank == 3 and next(calls) == 5:
                raise error
            return exchange(node, *arguments)

        monkeypatch.setattr(Node, "_exchange", failing)

    return patch


def nan(monkeypatch):
    push = share.RemoteParameters.push

    def failing(self, *arguments):
        if self._node.rank == 1 and self.steps == 2:
            raise NotFiniteError
        push(self, *arguments)

    monkeypatch.setattr(share.RemoteParameters, "push", failing)


def sends_nan(monkeypatch):
    """A worker whose dense gradients are NaN on their way to servers."""
    send = share.RemoteParameters._send

    def failing(parameters, pulled, **flags):
        if parameters._pushed and parameters.steps >= 3 and parameters._node.rank == 1:
            for push in parameters._pushed[1:]:
                push.dense[:] = np.nan
        return send(parameters, pulled, **flags)

    monkeypatch.setattr(share.RemoteParameters, "_send", failing)


def fails_in_finish(error):
    """In the thread that completes the parts of checkpoints."""

    def patch(monkeypatch):
        finish = owners.PartWriter.finish

        def failing(self):
            if self._shards.first:
                raise error
            return finish(self)

        monkeypatch.setattr(owners.PartWriter, "finish", failing)

    return patch


def fails_while_reading(monkeypatch):
    read = share.training_batches

    def failing(conf, features, passes, remainders, skipped):
        yield from read(conf, features, passes, remainders, skipped)
        if any(remainder.unit.index % 2 for remainder in remainders):
            raise RuntimeError("a bug of a format")

    monkeypatch.setattr(share, "training_batches", failing)


WORKERS, SERVERS, ASYNC_SERVERS = (
    {"servers": servers, "mode": mode} for servers, mode in ((0, "sync"), (2, "sync"), (2, "async"))
)
NO_SPACE = r"1: .*00001\.rows.*no space is left there\. Free some"
NAN = r"step \d+: worker 1: a gradient of a dense weight is NaN, infinite or beyond"


@pytest.mark.parametrize(("cluster", "fault", "line", "code"), [
    (WORKERS, full_disk, f"worker {NO_SPACE}", 1),
    (WORKERS, nan, r"worker 1: step 3: a gradient is NaN, infinite or beyond 2\^58", 1),
    (WORKERS, fails_in_step(MemoryError("9 GB")),
     r"worker 1: out of memory \(9 GB\): the tables hold .* with more memory", 1),
    (WORKERS, fails_in_step(UserError("a mistake")), "worker 1: a mistake$", 2),
    (WORKERS, fails_in_step(KeyError("x")), r"worker 1: KeyError: 'x'\. Its traceback is in w", 1),
    (WORKERS, fails_in_finish(ValueError("a bug")), r"worker 1: ValueError: a bug\. Its trace", 1),
    (WORKERS, fails_while_reading, r"worker 1: RuntimeError: a bug of a format\. Its traceback", 1),
    (SERVERS, full_disk, f"server {NO_SPACE}", 1),
    (ASYNC_SERVERS, fails_in_exchange(MemoryError("TN_NO_MEMORY")),
     r"server 1: out of memory \(TN_NO_MEMORY\)\. Run the same command again with more memory", 1),
    (ASYNC_SERVERS, sends_nan, NAN, 1),
    pytest.param(SERVERS, fails_in_exchange(ValueError("a bug")),
                 r"server 1: ValueError: a bug\. Its traceback is in workers/server-1\.log", 1,
                 marks=pytest.mark.long),
    pytest.param(SERVERS, fails_in_exchange(NotFiniteError("a sum")), "server 1: .*a sum", 1,
                 marks=pytest.mark.long),
    pytest.param(SERVERS, sends_nan, NAN, 1, marks=pytest.mark.long),
])  # fmt: skip
def test_what_one_machine_reports_ends_all_with_one_line(
    parts, monkeypatch, cluster, fault, line, code
):
    conf = conf_of(parts, monkeypatch, "data.train=part-*.csv", "train.batch_size=64",
                   "save.every_steps=4")  # fmt: skip
    conf = dataclasses.replace(conf, cluster=schema.Cluster(**cluster))
    fault(monkeypatch)
    with pytest.raises(UserError, match=f"^{line}") as failed:
        cluster_in_one_process.train_together(conf, 2, golden=0)
    assert failed.value.exit_code == code and "\n" not in str(failed.value)
    if cluster is WORKERS:
        saved = list((parts / "run/checkpoints").glob("*/manifest.json"))
        assert bool(saved) == (fault is fails_while_reading)  # which fails at the end of the data


@pytest.mark.parametrize(("servers", "name", "leaves"), [
    (0, "worker 1", r".* \(4\.0 GiB\) leaves 300\.0 MiB to 2 workers, and the tables hold "),
    (2, "server 1", ""),
])  # fmt: skip
def test_memory_that_runs_short_for_any_is_reported_and_saved(
    parts, monkeypatch, servers, name, leaves
):
    conf = conf_of(parts, monkeypatch, "data.train=part-*.csv", "train.batch_size=64")
    conf = dataclasses.replace(conf, cluster=schema.Cluster(servers=servers))
    held, calls = itertools.count(0, 1 << 20), itertools.count()
    for module in (row_life, server):
        monkeypatch.setattr(module, "SECONDS_BETWEEN_CHECKS", 0.0)
    monkeypatch.setattr(row_life, "table_bytes", lambda _: next(held))
    shortage = row_life.MemoryWatch.shortage

    def of_the_last_owner(watch, model):
        return shortage(watch, model) if model.tables[0]._shards.first else None

    def limit(**_):  # 200 and later 150 MiB for each of two workers
        free = 400 if next(calls) < 3 else 300
        return Limit("the memory of this machine", 4 << 30, free << 20)

    monkeypatch.setattr(row_life.MemoryWatch, "shortage", of_the_last_owner)
    monkeypatch.setattr(system, "tightest", limit)
    reason = f"before memory runs out: {name}: the memory of this machine{leaves}"
    with pytest.raises(Failure, match=reason) as failed:
        cluster_in_one_process.train_together(conf, 2)
    text = str(failed.value)
    assert "is saved. Run the same command again with more memory" in text and "\n" not in text
    assert loading.newest("run").folder == text.split(" is saved")[0].split()[-1]
