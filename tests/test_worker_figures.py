"""What workers report of their time: waits, staleness, and the line that shows them."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import cluster_in_one_process
import numpy as np
import pytest
import units
from test_cluster_async import async_conf
from test_cluster_seeing import lines_of

from tnctl.checkpoint.document import Position
from tnctl.cluster.messages import work
from tnctl.cluster.messages.exchange import Owned, Shape, Sizes, TableShape, new_exchange
from tnctl.cluster.owners.barrier import Barrier
from tnctl.cluster.rank_0.cluster_workers import ClusterBatches, ClusterWorkers
from tnctl.cluster.transport.kinds import MessageError
from tnctl.data.bad_rows import Skipped
from tnctl.documents import parse
from tnctl.training import observers
from tnctl.training.observers import WorkerWatch, line_of, scalars_of
from tnctl.training.report.worker_figures import (
    ExchangeFigures,
    ExchangeReport,
    WorkerFigures,
    WorkerSums,
)

# ---- What workers report ---------------------------------------------------------


def report(
    computing=0.0, reading=0.0, waiting=0.0, idle=0.0, owning=0.0, sent=0, received=0, left_out=0,
    network=0.0,
):  # fmt: skip
    return np.array([computing, reading, waiting, idle, owning, sent, received, left_out, network])


def test_the_shortest_wait_of_a_step_is_the_exchange():
    sums_of = work.WorkSums(3)
    sums_of.add([report(3, 0, 1, sent=10), report(1, 0, 3), report(0, 2, 2, owning=0.5)])
    # In the next step the third has no batch.
    sums_of.add([report(3, 0, 1), report(3.5, 0, 0.5, received=7), report(idle=4, left_out=2)])
    first, second, third = sums_of.figures([(5, 50), (6, 60), (7, 70)])
    assert (first.rows, first.bytes, third.bytes) == (5, 50, 70)
    assert (first.compute_seconds, first.exchange_seconds, first.worker_wait_seconds) == (
        6,
        1.5,
        0.5,
    )
    assert (second.exchange_seconds, second.worker_wait_seconds) == (1.5, 2)
    assert (third.exchange_seconds, third.worker_wait_seconds, third.idle_seconds) == (1, 1, 4)
    assert (third.input_wait_seconds, third.owner_seconds) == (2, 0.5)
    assert (first.sent_bytes, second.received_bytes, third.left_out) == (10, 7, 2)
    assert [figures.seconds for figures in (first, second, third)] == [8, 8, 8]


def test_waits_are_for_the_worker_that_is_last():
    sums = work.WorkSums(3)
    sums.add([report(1, waiting=5), report(1, waiting=1), report(1, waiting=2)], 1)
    exchanged = sums.exchanged()
    assert exchanged.awaited.tolist() == [0, 5, 0]
    sums.add([report(1, idle=4), report(1, waiting=1), report(1, waiting=3)], 0)
    later = sums.exchanged().since(exchanged)
    assert later.awaited.tolist() == [2, 0, 0] and exchanged.awaited.tolist() == [0, 5, 0]
    of_workers = sums.figures([(0, 0)] * 3)
    assert [of.worker_wait_seconds for of in of_workers] == [4, 0, 3]


def test_a_worker_that_was_left_out_shortens_no_wait():
    sums = work.WorkSums(2)
    sums.add([report(1, waiting=3), report()], None)
    assert sums.figures([(0, 0)] * 2)[0].exchange_seconds == 3


def test_asynchronous_waits_are_for_owners_or_for_the_worker_that_held():
    sums = work.WorkSums(2, reads_ahead=True)
    waits = report(1, waiting=3)
    sums.add_one(1, waits, None)
    sums.add_one(1, waits, 0)
    sums.add_one(1, waits, 0)
    sums.add_batch(1, 4, 2)
    sums.add_batch(1, 5000, 0)
    exchanged = sums.exchanged()
    assert exchanged.awaited.tolist() == [6, 0]
    assert sums.figures([(0, 0)] * 2)[1].exchange_seconds == 3
    first, second = exchanged.staleness()
    assert (first.batches, first.mean, first.max) == (0, 0, 0)
    assert (second.batches, second.max, second.ahead) == (2, work.BINS - 1, 2)
    assert second.mean == (4 + work.BINS - 1) / 2
    assert exchanged.since(exchanged).staleness()[1].batches == 0


SHAPE = Shape((TableShape(1, 1),), dense=0, figures=True)
NOTHING = Sizes(0, (0,))


class NoRows:
    """Parameters of an owner whose workers have no batch."""

    steps = 0

    def owned(self):
        return [Owned(0, 0)]


def test_the_worker_that_arrives_last_is_the_one_waited_for():
    owner, seen = Barrier(SHAPE, 3, NoRows()), []
    for order in ([1, 0, 2], [2, 0, 1], [0, 1, 2]):
        for rank in order:
            owner.exchange(rank, new_exchange(SHAPE, 1, NOTHING, NOTHING)[0], rank)
        seen.append(owner.waited_for)
    assert seen == [None, 2, 1]  # of the step before, which the reports are of


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e-9, 2.0**54])
def test_a_report_that_no_worker_makes_is_refused(value):
    body, written = new_exchange(SHAPE, 1, NOTHING, NOTHING)
    for place in range(work.REPORTED):
        written.work[:] = 1.0
        written.work[place] = value
        with pytest.raises(MessageError, match="worker 1: an exchange reports seconds or bytes"):
            Barrier(SHAPE, 2, NoRows()).exchange(1, body, 1)
    written.work[:] = 2.0**53
    Barrier(SHAPE, 2, NoRows()).exchange(1, body, 1)


def test_laps_leave_pauses_out():
    now = [10.0]
    laps = work.Laps(lambda: now[0])
    for kind, seconds in ((work.COMPUTING, 1), (work.READING, 2), (work.WAITING, 4)):
        now[0] += seconds
        laps.lap(kind)
    now[0] += 100
    laps.restart()
    now[0] += 8
    laps.lap(work.IDLE)
    assert laps.take() == [1, 2, 4, 8]
    assert laps.take() == [0, 0, 0, 0]


# ---- What is shown ---------------------------------------------------------------


def worker(computing=0.0, data=0.0, others=0.0, exchanging=0.0, idle=0.0, **fields):
    return WorkerFigures(
        **{"rows": 1000, "bytes": 1 << 20, **fields},
        compute_seconds=computing,
        input_wait_seconds=data,
        worker_wait_seconds=others,
        exchange_seconds=exchanging,
        idle_seconds=idle,
    )


def sums_of(processes, awaited, stale=()):
    """The sums of processes, with what was waited for each worker."""
    counts = np.array([stale] * len(awaited), np.int64)
    return WorkerSums(processes, ExchangeFigures(np.array(awaited, np.float64), counts, counts))


def test_figures_since_earlier_ones():
    earlier, later = worker(20, 5, 15), worker(21, 15, 15, rows=3000, sent_bytes=9)
    apart = later.since(earlier)
    assert apart == worker(1, 10, rows=3000, sent_bytes=9)
    assert later.since(later).seconds == 0
    assert later.since(later).share(1.0) == 0 and later.since(later).bytes_per_second == 0


def test_the_line_has_the_shares_and_the_worker_that_was_waited_for():
    processes = [worker(5, 1, 3, 1), worker(8, 0, 0, 1, idle=1), replace(worker(), role="server")]
    assert line_of(sums_of(processes, [0, 4])) == (
        "workers: data 10% | 0%, compute 50% | 80%, peers 30% | 10%, network 10% | 10%, "
        "waited for worker 1"
    )
    shares = "workers: data 0% | 0%, compute 0% | 0%, peers 0% | 0%, network 0% | 0%"
    assert line_of(sums_of([worker()] * 2, [0, 0])) == shares


def test_the_line_of_many_workers_is_short():
    line = line_of(sums_of([worker(100 - rank, rank) for rank in range(64)], [0.1] * 64))
    assert line == (
        "workers: data 0% to 63%, compute 37% to 100%, peers 0% to 0%, network 0% to 0%"
    )


class Trained:
    """Workers of which one computes all the time, and the other waits for it."""

    def __init__(self):
        self.seconds = 0.0

    def sums(self):
        workers = [worker(self.seconds), worker(self.seconds / 2, others=self.seconds / 2)]
        return sums_of(workers, [self.seconds / 2, 0])


def test_a_line_is_of_the_last_seconds_of_a_pass_or_since_the_one_before(monkeypatch):
    now, workers = [0.0], Trained()
    monkeypatch.setattr(observers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watch = WorkerWatch(workers)
    watch.start_pass()
    seen = []
    for _ in range(5):
        watch.now()
        seen.append(watch._marks[0][0])
        now[0], workers.seconds = now[0] + 6, workers.seconds + 6
    assert seen == [0, 0, 0, 0, 12]
    assert watch.now().endswith("compute 100% | 50%, peers 0% | 50%, network 0% | 0%, "
                                "waited for worker 0")  # fmt: skip
    assert watch.since_line()["exchange"] == {"awaited": [15, 0]}
    workers.seconds += 2
    assert watch.since_line()["workers"][0]["compute_seconds"] == 2
    assert watch.scalars["cluster_compute_share/worker_0"] == 1
    watch.of_pass()
    assert watch.pass_record == {"exchange": {"awaited": [16, 0]}}


def test_scalars_are_by_worker_and_by_server():
    processes = [worker(8, 1, 4, 1), worker(6, 2, 4, 1), replace(worker(1), role="server")]
    scalars = scalars_of(sums_of(processes, [3, 0], stale=[1, 0, 1]))
    kinds = {tag.split("/")[1] for tag in scalars if tag.startswith("cluster_exchange_share/")}
    assert kinds == {"worker_0", "worker_1", "server_0"}
    assert scalars["cluster_awaited_seconds/worker_0"] == 3
    assert "cluster_awaited_seconds/server_0" not in scalars
    assert scalars["cluster_staleness_mean/worker_1"] == 1
    assert scalars["cluster_staleness_max/worker_1"] == scalars["cluster_ahead/worker_0"] == 2


def test_the_report_of_an_earlier_version_has_no_such_figures():
    text = json.dumps({
        "owners": [{"keys": 1, "received_bytes": 2, "sent_bytes": 3, "awaited_seconds": 0.5}],
        "waits_for_workers": [[0.0]], "waits_for_owners": [[0.5]],
    })  # fmt: skip
    assert parse(ExchangeReport, text.encode()) == ExchangeReport()


def test_what_was_waited_before_a_pass_is_no_wait_of_its_steps():
    share = SimpleNamespace(seconds_waited=3.0)
    batches = ClusterBatches(SimpleNamespace(share=share), None, SimpleNamespace(position=None), 0)
    share.seconds_waited = 5.0
    assert batches.seconds_waited == 2


def test_workers_without_data_are_named_in_the_first_pass(tmp_path, capsys):
    conf = units.conf_of(tmp_path, "csv", units.write_csv(tmp_path, 1))
    workers = SimpleNamespace(_node=SimpleNamespace(workers=2), _warning="", _deal=lambda _: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            ClusterWorkers.batches(workers, conf, Position(), Skipped("train", 0), []).__enter__()
    assert capsys.readouterr().err.count("Workers without data: 1") == 1


# ---- Runs ------------------------------------------------------------------------


def test_an_asynchronous_run_shows_staleness(parts, monkeypatch):
    overrides = ["data.train=part-*.csv", "train.batch_size=64", "train.epochs=2"]
    conf = async_conf(parts, monkeypatch, *overrides, staleness=2)
    report, errors = cluster_in_one_process.train_together(conf, 2)
    assert not errors
    whole = report.timing.exchange.staleness
    passes = [line["timing"]["exchange"]["staleness"] for line in lines_of("run", "epoch")]
    for rank, of_worker in enumerate(whole):
        assert of_worker.batches == sum(of[rank]["batches"] for of in passes) > 0
        assert of_worker.max == max(of[rank]["max"] for of in passes)
        assert of_worker.mean <= of_worker.max and of_worker.ahead <= 4
    assert max(of.max for of in whole) > 0
    assert all("staleness" in line["timing"]["exchange"] for line in lines_of("run", "step"))
