"""What workers exchanged with owners: waits, loads of owners, staleness, the hottest keys."""

import json
import re
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cluster_in_one_process
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.util import tensor_util
from test_cluster import conf_of, parts  # noqa: F401 - a fixture
from test_cluster_async import async_conf
from test_slowness import worker

from tnctl import schema
from tnctl.cluster.messages import commands, work
from tnctl.cluster.messages.exchange import (
    Keys,
    Shape,
    Sizes,
    TableShape,
    new_exchange,
    parse_exchange,
)
from tnctl.cluster.messages.hot_key_commands import HotKey, HotKeyList
from tnctl.cluster.owners import owned
from tnctl.cluster.owners.hot_keys import HotKeys
from tnctl.cluster.owners.owner import Owner
from tnctl.cluster.rank_0.hottest_rows import hottest_of
from tnctl.cluster.transport.frames import FrameError
from tnctl.cluster.workers.owner_traffic import Arrivals, divided_waits
from tnctl.data.statistics import Statistics
from tnctl.errors import Failure
from tnctl.training import exchange_lines
from tnctl.training.exchange_figures import (
    ExchangeFigures,
    ExchangeReport,
    HotRow,
    OwnerFigures,
    imbalance,
)
from tnctl.training.report.exchange_tables import exchange_tables, hottest_table
from tnctl.training.slowness import Cause, why_slow
from tnctl.training.worker_watch import Windows

# ---- Waits -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrivals", "waits"),
    [
        ([4], [4]),
        ([4, 4], [2, 2]),
        ([2, 10], [1, 9]),
        ([-3, 5], [0, 5]),  # one has answered before it was waited for
        ([-1, -2], [0, 0]),
    ],
)
def test_the_waiting_is_divided_among_those_that_are_missing(arrivals, waits):
    assert divided_waits(np.array(arrivals, np.float64)).tolist() == waits


def test_divided_waits_are_those_of_a_clock_that_ticks():
    rng = np.random.default_rng(3)
    for _ in range(50):
        arrivals = rng.integers(-20, 200, rng.integers(1, 9))
        waits = np.zeros(len(arrivals))
        for tick in range(200):
            missing = arrivals > tick
            waits += missing / max(missing.sum(), 1)
        assert divided_waits(arrivals.astype(np.float64)) == pytest.approx(waits)


def test_arrivals_are_the_times_of_the_answers():
    now, futures = [0.0], [Future(), Future()]
    arrivals = Arrivals(futures, lambda: now[0])
    for owner, time in ((1, 3.0), (0, 7.0)):
        now[0] = time
        futures[owner].set_result(b"")
    now[0] = 9.0
    assert arrivals.waits(1.0).tolist() == [5.0, 1.0]


def report(waiting=0.0, idle=0.0, by_owner=((0, 0), (0, 0), (0, 0), (0, 0))):
    by_worker = np.zeros(work.REPORTED)
    by_worker[[work.COMPUTING, work.WAITING, work.IDLE]] = 1.0, waiting, idle
    return np.concatenate([by_worker, np.ravel(by_owner)])


def test_waits_are_for_the_worker_that_is_last_and_then_for_owners():
    sums = work.WorkSums(3, 2)
    sums.add([report(5, by_owner=[(7, 8), (70, 80), (1, 2), (3, 2)]), report(1), report(2)], 1)
    exchanged = sums.exchanged()
    assert exchanged.worker_waits.tolist() == [[0, 4, 0], [0, 0, 0], [0, 1, 0]]
    # 4 of the 5 seconds were before any owner answered.
    assert exchanged.owner_waits.tolist() == [[1, 0], [0, 0], [0, 0]]
    assert exchanged.keys[0].tolist() == [7, 8] and exchanged.sent_bytes[0].tolist() == [70, 80]
    sums.add([report(0, idle=4), report(1), report(3)], 0)
    later = sums.exchanged().since(exchanged)
    assert later.worker_waits.tolist() == [[0, 0, 0], [0, 0, 0], [2, 0, 0]]
    assert later.keys.sum() == 0 and sums.exchanged().awaited == [2, 5, 0]
    of_workers = sums.figures([(0, 0)] * 3)
    assert [of.worker_wait_seconds for of in of_workers] == [4, 0, 3]


def test_a_worker_that_was_left_out_shortens_no_wait():
    sums = work.WorkSums(2, 2)
    sums.add([report(3), np.zeros_like(report())], None)
    assert sums.figures([(0, 0)] * 2)[0].exchange_seconds == 3


def test_asynchronous_waits_are_for_owners_or_for_the_worker_that_held():
    sums = work.WorkSums(2, 2, reads_ahead=True)
    waits = report(3, by_owner=[(0, 0), (0, 0), (0, 0), (2, 1)])
    sums.add_one(work.AsyncReport(1, waits, None))
    sums.add_one(work.AsyncReport(1, waits, 0))
    sums.add_one(work.AsyncReport(1, waits, 0))
    sums.add_batch(work.PushedBatch(1, 4, 2))
    sums.add_batch(work.PushedBatch(1, 5000, 0))
    exchanged = sums.exchanged()
    assert exchanged.worker_waits.tolist() == [[0, 0], [6, 0]]
    assert exchanged.owner_waits.tolist() == [[0, 0], [2, 1]]
    first, second = exchanged.staleness()
    assert (first.batches, first.mean, first.max) == (0, 0, 0)
    assert (second.batches, second.max, second.ahead) == (2, work.BINS - 1, 2)
    assert second.mean == (4 + work.BINS - 1) / 2
    assert exchanged.since(exchanged).staleness()[1].batches == 0


SHAPE = Shape((TableShape(1, 1),), dense=0, figures=True, owners=2)
NOTHING = Sizes(0, (0,))


class NoRows:
    """Parameters of an owner whose workers have no batch."""

    steps = 0

    def owned(self):
        return [owned.Owned(0, 0)]


def test_the_worker_that_arrives_last_is_the_one_waited_for():
    owner, seen = Owner(SHAPE, 3, NoRows()), []
    for order in ([1, 0, 2], [2, 0, 1], [0, 1, 2]):
        for rank in order:
            owner.exchange(rank, new_exchange(SHAPE, 1, NOTHING, NOTHING)[0])
        seen.append(owner.waited_for)
    assert seen == [None, 2, 1]  # of the step before, which the reports are of


@pytest.mark.parametrize("place", range(work.REPORTED + 2 * work.BY_OWNER))
def test_a_report_by_owner_that_no_worker_makes_is_refused(place):
    body, written = new_exchange(SHAPE, 1, NOTHING, NOTHING)
    written.work[place] = -1.0
    with pytest.raises(FrameError, match="worker 1: an exchange reports seconds or bytes"):
        Owner(SHAPE, 2, NoRows()).exchange(1, body)
    for wrong in (body[:-8], body + bytes(8)):
        with pytest.raises(FrameError):
            parse_exchange(SHAPE, NOTHING, wrong)


# ---- Hottest keys ----------------------------------------------------------------


def keys_of(pairs):
    """The distinct keys (group, id) of a table in a batch."""
    groups, ids = zip(*pairs, strict=True) if pairs else ((), ())
    return Keys(np.array(ids, np.uint64), np.array(groups, np.uint16), None)


def batches_of(rng, count, size):
    """Batches of two tables whose ids follow a power law; hot ones are in nearly each batch."""
    for _ in range(count):
        draws = rng.zipf(1.3, (2, size)).tolist()
        yield [{(id_ % 3, id_ << 40) for id_ in draw if id_ < 1 << 20} for draw in draws]


def counted(hot_keys, most):
    return [((key.table, key.group, int(key.id)), key.batches) for key in hot_keys.top(most).keys]


def test_counts_are_exact_while_all_is_counted():
    hot_keys, exact, requested = HotKeys(1, counted_all=10**6), Counter(), 0
    for batch in batches_of(np.random.default_rng(1), 60, 500):
        hot_keys.add([keys_of(sorted(pairs)) for pairs in batch])
        exact.update((table, *pair) for table, pairs in enumerate(batch) for pair in pairs)
        requested += sum(map(len, batch))
    listed = hot_keys.top(30)
    assert (listed.batches, listed.requested, hot_keys.error) == (60, requested, 0)
    expected = sorted(exact.items(), key=lambda entry: (-entry[1], entry[0]))[:30]
    assert counted(hot_keys, 30) == expected
    hot_keys.clear()
    hot_keys.add([keys_of([]), keys_of([])])
    assert hot_keys.top(3) == HotKeyList(batches=0, requested=0, keys=())


def test_in_bounded_memory_counts_are_off_by_a_bounded_error():
    hot_keys, exact = HotKeys(1, counted_all=10**6, capacity=2000), Counter()
    for batch in batches_of(np.random.default_rng(2), 300, 1000):
        hot_keys.add([keys_of(sorted(pairs)) for pairs in batch])
        exact.update((table, *pair) for table, pairs in enumerate(batch) for pair in pairs)
    listed = counted(hot_keys, 1000)
    assert 0 < hot_keys.error <= sum(exact.values()) / 2000
    assert len(hot_keys._ids) <= 2000
    for key, batches in listed:
        assert exact[key] <= batches <= exact[key] + hot_keys.error
    hottest = {key for key, batches in exact.items() if batches == 300}
    assert hottest and {key for key, batches in listed if batches == 300} >= hottest


def test_a_sample_finds_the_hottest_keys():
    hot_keys, exact = HotKeys(1, counted_all=8, least=1 / 32, capacity=4000), Counter()
    count = 0
    for batch in batches_of(np.random.default_rng(4), 2000, 200):
        hot_keys.add([keys_of(sorted(pairs)) for pairs in batch])
        count += 1
        exact.update((table, *pair) for table, pairs in enumerate(batch) for pair in pairs)
    listed = dict(counted(hot_keys, 60))
    for key, batches in exact.most_common(20):
        assert listed[key] / count == pytest.approx(batches / count, abs=0.25)
    assert max(listed.values()) <= count


def test_of_a_large_batch_every_kth_key_is_counted(monkeypatch):
    monkeypatch.setattr("tnctl.cluster.owners.hot_keys.MOST_OF_BATCH", 100)
    hot_keys = HotKeys(1, counted_all=10**6)
    for _ in range(40):
        hot_keys.add([keys_of([(0, id_) for id_ in range(1000)])])
        assert hot_keys._collected_keys <= 40 * 100
    listed = counted(hot_keys, 1000)
    assert hot_keys._counts.sum() == 40 * 1000 and len(listed) > 900


@pytest.mark.parametrize(
    "reply",
    [
        b"{}",
        b'{"batches": -1, "requested": 0, "keys": []}',
        b'{"batches": 1, "requested": 1, "keys": [{"table": 0, "group": 70000, "id": "1", '
        b'"batches": 1}]}',
        b'{"batches": 1, "requested": 1, "keys": [{"table": 0, "group": 0, "id": '
        b'"18446744073709551616", "batches": 1}]}',
        b'{"batches": 1, "requested": 1, "keys": [{"table": 0, "group": 0, "id": "1", '
        b'"batches": NaN}]}',
    ],
)
def test_a_list_of_keys_that_no_owner_sends_is_refused(reply):
    with pytest.raises(Failure, match="a message of another worker is wrong"):
        commands.reply_of(HotKeyList, reply)


# ---- What is shown ---------------------------------------------------------------


def owner(keys, sent=0):
    return OwnerFigures(keys=keys, received_bytes=10, sent_bytes=sent, awaited_seconds=0)


def test_an_owner_with_more_than_its_share_is_named():
    exchanging = [worker(78, 0, 0, 22)] * 3
    slow = why_slow(exchanging, [owner(10), owner(60), owner(10)])
    assert (slow.cause, slow.workers) == (Cause.OWNER, (1,))
    assert slow.text.startswith(
        "owner 1 has 75% of the keys, 2.2 times its share, and exchanging takes 22% of a step: "
    )
    slow = why_slow(exchanging, [owner(10, 900), owner(11), owner(10)])
    assert slow.text.startswith("owner 0 has 98% of the bytes")
    assert why_slow(exchanging, [owner(10), owner(12), owner(11)]) is None
    assert why_slow([worker(90, 0, 0, 10)] * 3, [owner(10), owner(60), owner(10)]) is None
    assert why_slow([worker(50, 0, 0, 50)] * 2, [owner(0)] * 2).cause is Cause.EXCHANGING


def sums_of(keys, stale=()):
    """The sums of two workers and as many owners, where worker 0 waited for worker 1."""
    size = len(keys)
    return ExchangeFigures(
        np.array([keys, keys]), np.ones((2, size), np.int64), np.ones((2, size), np.int64),
        np.full((2, size), 0.5), np.array([[0, 4.0], [0, 0]]),
        np.array([stale, stale]), np.array([stale, stale]),
    )  # fmt: skip


def test_the_owner_of_each_window_must_be_the_same():
    windows = Windows()
    for second, keys in ((0, [0, 0]), (10, [9, 1]), (20, [18, 2]), (30, [27, 3])):
        windows.add(second, [worker(second * 0.75, 0, 0, second / 4)] * 2, sums_of(keys))
    assert windows.slowness.workers == (0,) and windows.exchanged.keys[0].tolist() == [9, 1]
    windows.add(40, [worker(30, 0, 0, 10)] * 2, sums_of([27, 100]))
    assert windows.slowness is None


def test_the_lines_below_the_workers():
    lines = exchange_lines.notes([worker(8, 1, 4, 1)] * 2, sums_of([3, 1], stale=[1, 0, 1]))
    assert lines == (
        "owners: keys 75% | 25%, bytes 50% | 50%",
        "waited for most: worker 1 (14% of the workers' time), owner 0 (4% of the workers' time)",
        "staleness: mean 1.0 | 1.0, most 2 | 2, batches ahead 2 | 2",
    )
    assert exchange_lines.notes([worker()] * 2, sums_of([0, 0])) == (
        "owners: keys 0% | 0%, bytes 50% | 50%",
    )
    [line] = exchange_lines.hottest(
        [HotRow(group="user", id="12", batches=0.5, keys=0.1),
         HotRow(group="country", id="0", value="de", batches=1, keys=0.1)]
    )  # fmt: skip
    assert line == "hottest rows, by their share of batches: user 12 50%, country de 100%"
    assert list(exchange_lines.hottest([])) == []


def test_servers_have_scalars_under_their_own_numbers():
    figures = [worker(8, 1, 4, 1), worker(6, 2, 4, 1), replace(worker(1), role="server")]
    scalars = exchange_lines.scalars(figures, sums_of([3], stale=[1, 0, 1]))
    kinds = {tag.split("/")[1] for tag in scalars if tag.startswith("cluster_exchange_share/")}
    assert kinds == {"worker_0", "worker_1", "server_0"}
    assert "cluster_awaited_seconds/server_0" not in scalars
    assert "cluster_staleness_mean/worker_1" in scalars


def test_scalars_have_for_whom_each_worker_waited():
    figures = [worker(8, 1, 4, 1), worker(6, 2, 4, 1)]
    scalars = exchange_lines.scalars(figures, sums_of([3, 1]))
    pairs = {tag: share for tag, share in scalars.items() if "_for_" in tag}
    of_0, of_1 = figures[0].seconds, figures[1].seconds
    assert pairs == {
        "cluster_wait_share/worker_0_for_worker_1": 4.0 / of_0,
        "cluster_wait_share/worker_1_for_worker_0": 0.0,
        **{f"cluster_wait_share/worker_0_for_owner_{owner}": 0.5 / of_0 for owner in range(2)},
        **{f"cluster_wait_share/worker_1_for_owner_{owner}": 0.5 / of_1 for owner in range(2)},
    }
    # Of many there would be thousands of charts.
    of_17 = exchange_lines.scalars(figures, sums_of([1] * 17))
    assert {tag.rpartition("_")[0] for tag in of_17 if "_for_" in tag} == {
        "cluster_wait_share/worker_0_for_worker", "cluster_wait_share/worker_1_for_worker",
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_table_of_the_hottest_rows_shows_values_as_they_are():
    rows = [
        HotRow(group="user_id", id="12", batches=0.5, keys=0.1),
        HotRow(group="place", id="0", value="a``*b*\n|<i>", batches=1, keys=0.00125),
    ]
    heads, *cells = exchange_lines.hottest_cells(rows)
    assert heads == ["**share group**", "**id**", "**batches**", "**keys**"]
    assert cells == [
        ["` user_id `", "` 12 `", "50.0%", "10.000%"],
        ["` place `", "``` a``*b* |<i> ```", "100.0%", "0.125%"],
    ]
    assert "<code>a``*b* |&lt;i&gt;</code>" in markdown_to_safe_html(cells[1][1])


def test_imbalance():
    assert imbalance([5, 5]) == 1 and imbalance([0, 0]) == 1 and imbalance([]) == 1
    assert imbalance([0, 9, 0]) == 3


def test_tables_of_many_workers_are_those_of_the_most_awaited():
    waits = np.zeros((64, 64))
    waits[3, 40], waits[5, 41] = 7, 9
    seconds = tuple(map(tuple, waits.tolist()))
    exchange = ExchangeReport(owners=(owner(1),) * 64, waits_for_workers=seconds)
    html = exchange_tables(exchange)
    assert "for worker 40" in html and "for worker 41" in html and "16 of 64" in html
    assert "all workers" in html and "for worker 63" not in html and "<th>worker 3</th>" not in html
    assert exchange_tables(None) == "" and hottest_table([]) == ""


def test_nobody_waits_for_itself():
    report = sums_of([3, 1]).whole()
    html = exchange_tables(report)
    assert "<tr><th>worker 0</th><td>–</td><td>4.0</td></tr>" in html
    assert "<tr><th>worker 1</th><td>0.0</td><td>–</td></tr>" in html
    assert html.count("–") == 2  # owners of the same process are waited for


# ---- Runs ------------------------------------------------------------------------


def lines_of(run, event):
    lines = [json.loads(line) for line in Path(run, "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def events_of(run):
    [events] = Path(run, "tensorboard").glob("events*")
    return EventAccumulator(str(events)).Reload()


def tags_of(run):
    return set(events_of(run).Tags()["tensors"])


def counts_of_pulls(monkeypatch):
    """Exact counts of all keys that owners find, and of the batches of each owner."""
    exact, batches = Counter(), Counter()
    monkeypatch.setattr(owned, "HotKeys", partial(HotKeys, counted_all=10**6))
    pull = owned.OwnedPart.pull

    def counting(part, keys, replies):
        for of_rank in keys:
            batches[part] += any(len(of_table.ids) for of_table in of_rank)
            for table, of_table in enumerate(of_rank):
                pairs = zip(of_table.groups.tolist(), of_table.ids.tolist(), strict=True)
                exact.update((table, *pair) for pair in pairs)
        return pull(part, keys, replies)

    monkeypatch.setattr(owned.OwnedPart, "pull", counting)
    return exact, batches


def test_a_run_shows_owners_waits_and_the_hottest_rows(parts, monkeypatch, capsys):  # noqa: F811
    exact, batches = counts_of_pulls(monkeypatch)
    overrides = [
        "data.train=part-*.csv", "train.batch_size=64", "train.tensorboard=true", "train.epochs=1",
    ]  # fmt: skip
    conf = conf_of(parts, monkeypatch, *overrides)
    report, errors = cluster_in_one_process.train_together(conf, 3)
    assert not errors
    timing = json.loads(Path("run/report.json").read_text())["timing"]
    [epoch], steps = lines_of("run", "epoch"), lines_of("run", "step")
    assert epoch["timing"]["hottest"] == timing["hottest"]
    assert epoch["timing"]["exchange"] == timing["exchange"]
    exchange = report.timing.exchange
    # What is asked for when training pauses is not looked up, and asked for again.
    keys = sum(of.keys for of in exchange.owners)
    assert sum(exact.values()) <= keys <= 1.2 * sum(exact.values())
    assert exchange.staleness is None and "staleness" not in timing["exchange"]
    for rank, figures in enumerate(report.timing.workers):
        waits = exchange.waits_for_workers[rank]
        assert waits[rank] == 0 and sum(waits) <= figures.worker_wait_seconds + 0.01
        waited = figures.worker_wait_seconds + figures.exchange_seconds
        assert sum(exchange.waits_for_owners[rank]) <= waited + 0.01
    assert sum(map(sum, exchange.waits_for_workers)) > 0
    assert sum(map(sum, exchange.waits_for_owners)) > 0
    logged = [sum(of["keys"] for of in line["timing"]["exchange"]["owners"]) for line in steps]
    assert all(logged) and sum(logged) <= keys
    # What owners receive is what workers send, with their own part, which does not travel.
    received = sum(of.received_bytes for of in exchange.owners)
    assert 0.5 < received / sum(of.sent_bytes for of in report.timing.workers) < 4

    expected = sorted(exact.values(), reverse=True)[: len(report.timing.hottest)]
    of_owner = max(batches.values())
    assert [round(row.batches * of_owner) for row in report.timing.hottest] == expected
    groups = {slot.group or name for name, slot in conf.slots.items()}
    assert {row.group for row in report.timing.hottest} <= groups

    page, shown = Path("run/report.html").read_text(), capsys.readouterr().err
    assert "Hottest rows" in page and "for owner 2" in page and "share of bytes" in page
    assert re.search(r"\n  owners: keys \d+% \| \d+% \| \d+%, bytes ", shown)
    assert "\n  hottest rows, by their share of batches: " in shown
    tags = tags_of("run")
    assert {"cluster_exchange_share/worker_2", "cluster_keys/owner_1"} <= tags
    assert {"cluster/keys_imbalance", "cluster_awaited_seconds/worker_0"} <= tags
    assert {"cluster_wait_share/worker_2_for_worker_0", "cluster/hottest_rows"} <= tags
    [written] = events_of("run").Tensors("cluster/hottest_rows")
    assert written.step == report.steps
    cells = tensor_util.make_ndarray(written.tensor_proto).astype(str).tolist()
    assert cells == exchange_lines.hottest_cells(report.timing.hottest)


def test_an_asynchronous_run_shows_staleness(parts, monkeypatch):  # noqa: F811
    overrides = ["data.train=part-*.csv", "train.batch_size=64", "train.epochs=2"]
    conf = async_conf(parts, monkeypatch, *overrides, staleness=2)
    report, errors = cluster_in_one_process.train_together(conf, 2)
    assert not errors
    whole = report.timing.exchange.staleness
    passes = [line["timing"]["exchange"]["staleness"] for line in lines_of("run", "epoch")]
    for rank, worker_ in enumerate(whole):
        assert worker_.batches == sum(of[rank]["batches"] for of in passes) > 0
        assert worker_.max == max(of[rank]["max"] for of in passes)
        assert worker_.mean <= worker_.max and worker_.ahead <= 4
    assert max(of.max for of in whole) > 0
    assert all("staleness" in line["timing"]["exchange"] for line in lines_of("run", "step"))
    assert "mean staleness" in Path("run/report.html").read_text()


def test_the_hottest_of_all_owners_have_names_and_values():
    slots = {
        "user": schema.Slot(),
        "country": schema.Slot(ids="vocabulary", vocabulary=["de", "fr"], oov=1, group="place"),
        "city": schema.Slot(ids="vocabulary", vocabulary=["de", "fr"], group="place"),
    }
    model = SimpleNamespace(
        layout=SimpleNamespace(
            tables=[SimpleNamespace(groups={"user": 0}), SimpleNamespace(groups={"place": 2})]
        ),
        conf=SimpleNamespace(slots=slots),
        statistics=Statistics(),
    )

    def key(table, group, id_, batches):
        return HotKey(table=table, group=group, id=str(id_), batches=batches)

    lists = [
        HotKeyList(batches=10, requested=30, keys=(key(1, 2, 1, 9.0), key(0, 0, 2**64 - 1, 2.5))),
        HotKeyList(batches=8, requested=20, keys=(key(1, 2, 2, 8.0),)),
        HotKeyList(batches=0, requested=0, keys=()),
    ]
    assert hottest_of(model, lists) == [
        HotRow(group="place", id="1", value="fr", batches=0.9, keys=0.18),
        HotRow(group="place", id="2", batches=0.8, keys=0.16),  # not in the vocabulary
        HotRow(group="user", id="18446744073709551615", batches=0.25, keys=0.05),
    ]
    slots["city"] = schema.Slot(ids="vocabulary", vocabulary=["fr", "de"], group="place")
    assert hottest_of(model, lists)[0].value is None
    assert hottest_of(model, [HotKeyList(batches=0, requested=0, keys=())] * 2) == []
    for table, group in ((2, 0), (0, 1)):
        wrong = HotKeyList(batches=1, requested=1, keys=(key(table, group, 1, 1.0),))
        with pytest.raises(Failure, match=f"it has a key of group {group} of table {table}"):
            hottest_of(model, [wrong])
