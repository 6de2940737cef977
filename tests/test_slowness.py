"""Why several workers are slow, from made-up figures, and how their figures are shown."""

import math

import numpy as np
import pytest

from tnctl.cluster.messages import work
from tnctl.cluster.transport.frames import FrameError
from tnctl.training.slowness import Cause, why_slow
from tnctl.training.worker_figures import WorkerFigures, since
from tnctl.training.worker_watch import Windows, parts


def worker(computing=0.0, data=0.0, others=0.0, exchanging=0.0, idle=0.0, **fields):
    return WorkerFigures(
        **{"rows": 1000, "bytes": 1 << 20, **fields},
        compute_seconds=computing,
        input_wait_seconds=data,
        worker_wait_seconds=others,
        exchange_seconds=exchanging,
        idle_seconds=idle,
    )


@pytest.mark.parametrize(
    ("figures", "cause", "workers", "words"),
    [
        (
            [worker(30, 4, 60, 6), worker(32, 62, 0, 6)],
            Cause.READING,
            (1,),
            "worker 1 waits 62% of its time for data: `tnctl prepare`",
        ),
        (
            [worker(40, 40, 10, 10), worker(40, 50, 0, 10)],
            Cause.READING,
            (),
            "the workers wait 45% of their time for data",
        ),
        (
            [worker(90, 0, 0, 10), worker(50, 0, 40, 10), worker(54, 0, 36, 10)],
            Cause.SLOWEST,
            (0,),
            "worker 0 is the slowest, the others wait 38% of their time for it",
        ),
        (
            [worker(50, 0, 40, 10), worker(90, 0, 0, 10)],
            Cause.SLOWEST,
            (1,),
            "worker 1 is the slowest, the other waits 40% of its time for it",
        ),
        (
            [worker(45, 5, 5, 45), worker(50, 0, 5, 45)],
            Cause.EXCHANGING,
            (),
            "exchanging takes 45% of a step: a larger train.batch_size",
        ),
        (
            # What the owners take is most of an exchange.
            [worker(45, 5, 5, 45, network_seconds=22), worker(50, 0, 5, 45, network_seconds=22)],
            Cause.EXCHANGING,
            (),
            "exchanging takes 45% of a step",
        ),
        (
            [
                worker(45, 5, 5, 45, network_seconds=40, received_bytes=400_000_000),
                worker(50, 0, 5, 45, network_seconds=30),
            ],
            Cause.NETWORK,
            (),
            "the network between worker 0 and 1 carries 10.0 MB/s, and the workers wait 45% of",
        ),
        (
            # In async two requests at a time may be on the way, and more than a step takes.
            [worker(60, exchanging=40, network_seconds=150, received_bytes=1_180_000_000)] * 2,
            Cause.NETWORK,
            (),
            "the network between worker 0 and 1 carries 11.8 MB/s, and the workers wait 40% of",
        ),
        (
            [worker(60, exchanging=40, network_seconds=20, received_bytes=4_000_000_000)] * 3,
            Cause.NETWORK,
            (),
            "the network between the workers carries 200.0 MB/s",
        ),
        (
            [
                *[worker(60, exchanging=40, network_seconds=20)] * 2,
                worker(60, exchanging=40, network_seconds=40, received_bytes=400_000_000),
            ],
            Cause.NETWORK,
            (2,),
            "the network of worker 2 carries 10.0 MB/s",
        ),
        (
            [worker(90, 0, 0, 10), worker(40, 0, 0, 10, idle=50)],
            Cause.NO_DATA,
            (1,),
            "worker 1 has no data left and waited 50% of its time for the others",
        ),
        (
            [worker(90, 0, 0, 10), worker(20, 0, 0, 10, idle=70), worker(0, 0, 0, 0, idle=100)],
            Cause.NO_DATA,
            (1, 2),
            "workers 1, 2 have no data left and waited up to 100% of it",
        ),
    ],
)
def test_the_cause_is_the_one_that_limits_all(figures, cause, workers, words):
    slow = why_slow(figures)
    assert (slow.cause, slow.workers) == (cause, workers)
    assert slow.text.startswith(words) and "\n" not in slow.text


@pytest.mark.parametrize(
    "figures",
    [
        [],
        [worker(10, 90)],  # one worker has its own figure
        [worker(), worker()],  # before the first step
        [worker(10, 90), worker()],
        [worker(71, 29), worker(71, 29)],
        [worker(66, 0, 0, 34), worker(66, 0, 0, 34)],
        [worker(76, 0, 24), worker(100)],
        # It waits for data while others compute longer: its data is not what limits.
        [worker(40, 35, 20, 5), worker(90, 0, 5, 5)],
        # It sends all the time, and nobody waits for it.
        [worker(90, exchanging=10, network_seconds=95)] * 2,
        # They wait in turn.
        [worker(70, 0, 30), worker(70, 0, 30)],
    ],
)
def test_nothing_is_said_below_the_limits(figures):
    assert why_slow(figures) is None


def sums(seconds, data):
    """The sums of two workers of which the second reads for a share of its time."""
    return [
        worker(seconds * (1 - data), 0, seconds * data),
        worker(seconds * (1 - data), seconds * data),
    ]


def test_a_cause_must_last():
    windows = Windows()
    for second in range(30):
        windows.add(100.0 + second, sums(second, 0.5))
        assert windows.slowness is None
    recent = windows.add(130, sums(30, 0.5))
    assert windows.slowness.cause is Cause.READING and windows.slowness.workers == (1,)
    assert recent[1].seconds == 10 and recent[1].input_wait_seconds == 5
    # For the next 10 s data is there in time.
    *_, last = sums(30, 0.5)
    faster = worker(last.compute_seconds + 10, last.input_wait_seconds)
    windows.add(139, [faster, faster])
    assert windows.slowness is not None
    windows.add(140, [faster, faster])
    assert windows.slowness is None


def test_a_cause_of_another_worker_begins_anew():
    windows = Windows()
    for second in range(0, 40, 10):
        windows.add(second, sums(second, 0.5))
    assert windows.slowness.workers == (1,)
    for second, workers in ((40, None), (50, None), (60, (0,))):
        first, reading = sums(30, 0.5)
        more = second - 30
        figures = [
            worker(first.compute_seconds + more / 2, more / 2, first.worker_wait_seconds),
            worker(reading.compute_seconds + more / 2, reading.input_wait_seconds, more / 2),
        ]
        windows.add(second, figures)
        assert (windows.slowness and windows.slowness.workers) == workers


def test_figures_since_earlier_ones():
    earlier, later = worker(20, 5, 15), worker(21, 15, 15, rows=3000, sent_bytes=9)
    [apart] = since([later], [earlier])
    assert apart == worker(1, 10, rows=3000, sent_bytes=9)
    assert since([later], []) == [later] and later.since(later).seconds == 0
    assert later.since(later).share(1.0) == 0 and later.since(later).bytes_per_second == 0


def test_figures_of_a_display():
    figures = [
        worker(5, 1, 3, 1, sent_bytes=4_000_000, received_bytes=6_000_000),
        worker(8, 0, 0, 1, idle=1, rows=12_345, bytes=3 << 30),
    ]
    shown = parts(figures, "slow")
    assert shown.rows == [
        ("0", "1,000", "1.0 MiB", "1.0 MB/s", "10%", "30%", "10%"),
        ("1", "12,345", "3.0 GiB", "0.0 MB/s", "0%", "10%", "10%"),
    ]
    assert all(len(row) == len(shown.headings) for row in shown.rows)
    assert shown.line == (
        "  workers: rows 1,000 | 12,345, network 1.0 | 0.0 MB/s, waited for data 10% | 0%, "
        "for others 30% | 10%, exchanging 10% | 10%"
    )
    assert shown.remark == "slow"


def test_figures_of_many_workers_are_short():
    shown = parts([worker(8, 2, rows=rank) for rank in range(64)], "")
    assert len(shown.rows) == 17 and shown.rows[-1][0] == "and 48 more"
    assert len(shown.line) < 160 and "rows 0 to 63" in shown.line


def test_figures_before_the_first_step():
    assert "rows 7 | 7, network 0.0 | 0.0 MB/s" in parts([worker(rows=7)] * 2, "").line


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


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e-9, 2.0**54])
def test_a_report_that_no_worker_makes_is_refused(value):
    work.check_work(report(1, 2, 3, 4, 5, 6, 7))
    work.check_work(np.empty(0))
    for place in range(work.REPORTED):
        wrong = report()
        wrong[place] = value
        with pytest.raises(FrameError, match="seconds or bytes"):
            work.check_work(wrong)
