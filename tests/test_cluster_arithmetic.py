"""The arithmetic of a cluster is what a cluster sends: its messages, bytes and distinct keys."""

import dataclasses
import json
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from types import SimpleNamespace

import cluster_in_one_process
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from benchmarks import cluster_calibration, cluster_model, cluster_predictions, key_counts, workload
from benchmarks.cluster_arithmetic import (
    ASYNC,
    HYBRID,
    ONE_PROCESS,
    SYNC,
    Calibration,
    Cost,
    Keys,
    LocalStep,
    highest_of,
    predict_local,
    predict_with_server,
    traffic,
)
from benchmarks.cluster_costs import OWNER_PARTS, WORKER_PARTS
from benchmarks.cluster_nodes import Nodes, predict_nodes
from benchmarks.cluster_traffic import (
    Job,
    body_bytes,
    dense_slices,
    equal_pulls,
    key_shares,
    shapes_of,
    traffic_of,
)
from tnctl.cli import compose
from tnctl.cluster.messages.exchange import Sizes, TableShape, no_batch
from tnctl.cluster.messages.shapes import first_floats, first_shards
from tnctl.cluster.transport import frames
from tnctl.cluster.transport.frames import HEADER_BYTES, Kind
from tnctl.cluster.workers.remote import RemoteParameters
from tnctl.tables import (
    DenseTable,
    Initial,
    KeyWorkspace,
    Optimizer,
    Pool,
    Segment,
    SlotPlan,
    SparseTable,
)
from tnctl.tables.shards import HASHES_PER_SHARD

SIZES = (7, 300, 5_000, 40_000)  # of slots
BATCH, UNITS, BATCHES = 256, 6, 2  # of a unit: two and three workers read as many each
TABLE = TableShape(weights=9, floats_read=9)


def ids_of(rows, seed=1):
    """Ids uint64 [rows, slots] as W1 draws them."""
    rng = np.random.default_rng(seed)
    columns = [
        workload.keys_of(slot, workload.zipf(rng, size, rows)) for slot, size in enumerate(SIZES)
    ]
    return np.stack(columns, axis=1)


# ---- Distinct keys -----------------------------------------------------------------


def test_distinct_keys_are_those_that_a_worker_numbers():
    ids = ids_of(4 * BATCH + 3)
    rule = Optimizer("sgd", learning_rate=0.5)
    table = SparseTable([Segment("embedding", 2, "concat", rule)], seed=1, pool=Pool(1))
    for group in range(len(SIZES)):
        table.add_group(group, f"s{group}", [Initial("zeros", 0.0)])
    keys = KeyWorkspace(table, [SlotPlan(slot, "sum", 2 * slot) for slot in range(len(SIZES))])
    offsets = np.arange(BATCH * len(SIZES) + 1, dtype=np.uint32)
    numbered = [
        sum(keys.number_keys(rows.reshape(-1), offsets, BATCH, first_shards(3)))
        for rows in np.split(ids[: 4 * BATCH], 4)
    ]
    assert key_counts.distinct_keys(ids, BATCH).tolist() == numbered
    up_to = [len({(slot, key) for row in ids[:n] for slot, key in enumerate(row)}) for n in (1, 99)]
    assert key_counts.distinct_keys_up_to(ids, [1, 99]) == up_to


@pytest.mark.parametrize("rows", [1, 256, 20_000])
def test_expected_keys_are_about_those_of_the_data(rows, monkeypatch):
    sizes = np.array([*SIZES, 900_000])  # with ranks that are taken together
    monkeypatch.setattr(f"{__name__}.SIZES", sizes.tolist())
    counted = [key_counts.distinct_keys(ids_of(rows, seed), rows)[0] for seed in range(5)]
    assert key_counts.expected_distinct(sizes, rows) == pytest.approx(np.mean(counted), rel=0.01)


def test_slots_of_a_larger_model():
    sizes = key_counts.sizes_of(10**10)
    assert sizes.sum() == 10**10
    assert (key_counts.sizes_of(workload.KEYS) == workload.slot_sizes()).all()
    small = sizes < workload.LARGE
    assert (sizes[small] == workload.slot_sizes()[small]).all()


# ---- Messages ------------------------------------------------------------------------


class Counting:
    """A transport that keeps the exchanges and their replies: (step, bytes) by sender, receiver."""

    def __init__(self):
        self.exchanges, self.replies = defaultdict(list), defaultdict(list)
        self._asked = {}

    def start(self, nodes):
        self._nodes = nodes

    def send(self, rank, peer, frame):
        content = frame.to_bytes()
        if frame.kind is Kind.EXCHANGE:
            self.exchanges[rank, peer].append(len(content))
            self._asked[rank, peer, frame.number] = True
        elif frame.kind is Kind.REPLY and self._asked.get((peer, rank, frame.number)):
            self.replies[rank, peer].append(len(content))
        self._nodes[peer].receive(frames.parse(content))

    def close(self):
        pass


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """Slots of W1's kind, and units of rows."""
    monkeypatch.chdir(tmp_path)
    ids = ids_of(UNITS * BATCHES * BATCH).astype(np.int64)
    columns = {f"s{slot}": pa.array(column) for slot, column in enumerate(ids.T)}
    columns["label"] = pa.array((ids[:, 0] % 2).astype(np.float32))
    pq.write_table(pa.table(columns), "clicks.parquet", row_group_size=BATCH * BATCHES)
    values = {
        "defaults": ["schema", {"recipe": "deepfm"}, "_self_"],
        "recipe": {"hidden": [16, 8]},
        "slots": {f"s{slot}": {"ids": "integer"} for slot in range(len(SIZES))},
        "data": {"label": {"column": "label"}, "train": "clicks.parquet", "format": "parquet"},
        "train": {"batch_size": BATCH, "threads": 1},
        "evaluation": {"ablate": False},
        "output": "run",
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    confs = []
    compose.with_conf(tmp_path / "small.yaml", [], lambda conf: confs.append(conf) or 0)
    return confs[0]


def keys_by_owner(table, plans, batch, workers):
    """The distinct keys of a batch that each owner has, by the hash."""
    ids = batch.ids[0].reshape(batch.rows, -1)
    starts = np.array(first_shards(workers)[:-1], np.uint64) * np.uint64(HASHES_PER_SHARD)
    counts = np.zeros(workers, int)
    for column, plan in zip(ids.T, plans, strict=True):
        distinct = np.unique(column)
        groups = np.full(len(distinct), plan.group, np.uint16)
        owners = np.searchsorted(starts, table.hashes(groups, distinct), side="right") - 1
        counts += np.bincount(owners, minlength=workers)
    return counts


@pytest.mark.parametrize("workers", [2, 3])
def test_a_cluster_sends_what_the_arithmetic_says(conf, monkeypatch, workers):
    from tnctl.model.layout import slot_plans

    pulls, models = defaultdict(list), []
    pull = RemoteParameters.pull

    def recorded(self, batch, buffers):
        [table], layout = self._model.tables, self._model.layout.tables[0]
        plans = slot_plans(self._model.conf.slots, layout)
        counts = keys_by_owner(table, plans, batch, workers)
        models.append(self._model)
        pull(self, batch, buffers)
        pulls[self._peers.rank].append([Sizes(batch.rows, (int(n),)) for n in counts])

    monkeypatch.setattr(RemoteParameters, "pull", recorded)
    transport = Counting()
    _, errors = cluster_in_one_process.train_together(conf, workers, transport, golden=0)
    assert not errors
    dense = len(models[0].dense.flat_weights)
    places = tuple(models[0].dense.chunk_starts.tolist())
    job = Job((TABLE,), dense, ids_per_row=len(SIZES), batch=BATCH, slices_begin=places)
    slices = [last - first for first, last in zip(*bounds(models[0], workers), strict=True)]
    assert dense_slices(job, workers) == slices
    shapes = shapes_of(job, workers)
    steps = UNITS * BATCHES // workers
    measured, predicted = 0, 0
    for sender in range(workers):
        for owner in range(workers):
            if sender == owner:
                continue
            sizes = [of_step[owner] for of_step in pulls[sender]]
            nothing = no_batch(shapes[owner])
            bodies = [
                body_bytes(shapes[owner], pushed, pulled)
                for pushed, pulled in zip([nothing, *sizes], [*sizes, nothing], strict=True)
            ]
            exchanges = transport.exchanges[sender, owner]
            replies = transport.replies[owner, sender]
            # The last push goes with the pause; a reply to that has no rows.
            assert exchanges == [HEADER_BYTES + exchange for exchange, _ in bodies]
            assert replies[:steps] == [HEADER_BYTES + reply for _, reply in bodies[:-1]]
            # All but the first have a push and a pull.
            measured += sum(exchanges[1:steps]) + sum(replies[1:steps])
    keys = np.mean([sum(s.keys[0] for s in step) for of in pulls.values() for step in of])
    for rank in range(workers):
        of_worker = traffic_of(rank, shapes, equal_pulls(job, keys, workers))
        requested = sum(len(transport.exchanges[rank, peer]) for peer in range(workers))
        answered = sum(len(transport.replies[rank, peer]) for peer in range(workers))
        # And one with the pause.
        assert requested + answered == of_worker.messages * (steps + 1)
        predicted += of_worker.sent_bytes * (steps - 1)
    assert predicted == pytest.approx(measured, rel=0.01)


def bounds(model, workers):
    floats = first_floats(model, workers)
    return floats[:-1], floats[1:]


@pytest.mark.parametrize("owners", [1, 3, 7, 64])
@pytest.mark.parametrize("dense", [0, 15, 410_032, 1_000_003])
def test_slices_are_those_of_the_product(owners, dense):
    table = DenseTable([dense] * (dense > 0), Optimizer("sgd", learning_rate=0.5), Pool(1))
    starts, ends = bounds(SimpleNamespace(dense=table), owners)
    job = Job((TABLE,), len(table.flat_weights), ids_per_row=1, batch=1)
    slices = dense_slices(job, owners)
    assert slices == [end - start for start, end in zip(starts, ends, strict=True)]
    assert sum(key_shares(owners)) == pytest.approx(1)


def test_what_all_send_is_what_all_receive():
    job = Job((TABLE,), dense=410_032, ids_per_row=26, batch=4096)
    for mode in (SYNC, HYBRID):
        of = [traffic(job, 5, 27_000, mode, rank) for rank in range(5)]
        assert sum(t.sent_bytes for t in of) == sum(t.received_bytes for t in of)
    sync, hybrid = (traffic(job, 5, 27_000, mode) for mode in (SYNC, HYBRID))
    assert hybrid.messages == 2 * sync.messages
    # More bytes before the arrays.
    assert sync.sent_bytes < hybrid.sent_bytes < sync.sent_bytes + 2000
    assert sum(key_shares(512)) == pytest.approx(1) and len(shapes_of(job, 512)) == 512


# ---- Costs and time -----------------------------------------------------------------


def test_costs_are_fitted_and_not_negative():
    points = [(1, 1000, 5e-6 + 1e-6), (16, 1000, 80e-6 + 1e-6), (64, 9000, 320e-6 + 9e-6)]
    cost = cluster_calibration.fitted(points)
    assert (cost.call, cost.unit) == pytest.approx((5e-6, 1e-9))
    falling = cluster_calibration.fitted([(1, 1000, 3e-6), (1, 2000, 2.9e-6)])
    assert falling.unit == 0 and falling.call == pytest.approx(2.95e-6, rel=0.01)
    assert cluster_calibration.fitted([(0, 20, 1e-6)]) == Cost(0.0, pytest.approx(5e-8))


def calibration_of(cost, **changes):
    """A calibration in which all parts have a cost."""
    step = LocalStep(
        seconds=0.105, compute=0.1, parameters=0.004, figures=0.0, rest=0.001, spread=0.02, steps=9
    )
    values = {
        "machine": "two CPUs", "cpus": 2,
        "job": Job((TABLE,), dense=410_032, ids_per_row=26, batch=4096),
        "alone": dataclasses.replace(step, seconds=0.1, compute=0.095), "busy": step,
        "together": dataclasses.replace(step, seconds=0.055, compute=0.052, parameters=0.0025),
        "parts": dict.fromkeys((*WORKER_PARTS, *OWNER_PARTS, "insert rows"), cost),
        "frame": cost, "further_frame": cost.call, "gap": 0.0, "row_bytes": 80.0,
        "process_bytes": 1 << 30, "others": 0.5,
    }  # fmt: skip
    return Calibration(**{**values, **changes})


def test_a_local_step_without_costs_is_that_of_one_process():
    nothing, keys = calibration_of(Cost(0.0, 0.0)), Keys(27_000, 50_000, 4_000)
    both = predict_local(nothing, keys, 2, SYNC)
    slowest = 0.02 * 0.105 * highest_of(2)
    assert both.seconds == pytest.approx(0.101 + slowest)
    assert both.examples_per_second == pytest.approx(2 * 4096 / (0.101 + slowest))
    assert predict_local(nothing, keys, 2, ASYNC).seconds == pytest.approx(0.101)
    assert predict_local(nothing, keys, 2, HYBRID).seconds == both.seconds
    # Two of three workers share a CPU, the half of the time beside an idle one.
    three = predict_local(nothing, keys, 3, SYNC)
    assert three.seconds == pytest.approx(0.101 + 0.101 * 0.1 / 0.105)
    assert predict_local(nothing, keys, 3, ASYNC).seconds == pytest.approx(1.5 * 0.101)
    assert predict_local(nothing, keys, 1, SYNC).seconds == pytest.approx(0.053)
    for mode in (SYNC, ASYNC, HYBRID):
        assert predict_with_server(nothing, keys, mode).seconds == pytest.approx(0.053)


def test_each_cost_makes_a_step_longer():
    keys = Keys(27_000, 50_000, 4_000)
    base = calibration_of(Cost(1e-6, 1e-10))
    for mode in (SYNC, ASYNC, HYBRID):
        seconds = predict_local(base, keys, 2, mode).seconds
        served = predict_with_server(base, keys, mode).seconds
        for name, cost in base.parts.items():
            dearer = {**base.parts, name: Cost(cost.call * 2, cost.unit * 2)}
            changed = dataclasses.replace(base, parts=dearer)
            assert predict_local(changed, keys, 2, mode).seconds > seconds, name
            if mode == SYNC or name in WORKER_PARTS:
                assert predict_with_server(changed, keys, mode).seconds > served, name
        changed = dataclasses.replace(base, frame=Cost(2e-6, 2e-10))
        assert predict_local(changed, keys, 2, mode).seconds > seconds


def test_a_cluster_of_nodes_is_bound_by_what_is_slowest():
    keys = Keys(29_000, 400_000)

    def step(calibration, **changes):
        nodes = Nodes(**{"workers": 64, "cores": 16, "bits": 1e10, **changes})
        return predict_nodes(calibration, keys, nodes, 1e10, 256 << 30)

    cheap = calibration_of(Cost(1e-7, 1e-11))
    assert step(cheap, bits=1e8).seconds_by["network"] > step(cheap, bits=1e9).seconds_by["network"]
    assert step(cheap, bits=1e8, mode=ASYNC).largest == "network"
    assert step(cheap, bits=1e8, bytes_factor=0.5).seconds < step(cheap, bits=1e8).seconds
    dear = calibration_of(Cost(3e-4, 1e-11))
    assert step(dear, mode=ASYNC).largest == "interpreter"
    assert step(dear, frame_factor=0.1).seconds < step(dear).seconds
    noisy = dataclasses.replace(dear, busy=dataclasses.replace(dear.busy, spread=0.3))
    assert step(noisy).seconds > step(dear).seconds
    assert step(noisy, backup=2).seconds < step(noisy).seconds
    assert step(noisy, mode=ASYNC).seconds == step(dear, mode=ASYNC).seconds
    assert step(cheap, mode=ASYNC).seconds < step(cheap, mode=HYBRID).seconds
    assert step(cheap, mode=HYBRID).seconds < step(cheap).seconds
    assert not step(dear).limits
    assert "64 shards" in step(dear, workers=512).limits[0]
    assert step(dear, workers=2).limits == ("374 GiB of memory in a node",)
    assert step(dear, workers=8).memory_bytes > 8 * step(dear, workers=128).memory_bytes


def test_the_page_the_plot_and_the_file_of_costs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cluster_predictions, "_ids", lambda rows: ids_of(rows))
    monkeypatch.setattr(cluster_model, "OUTPUT", tmp_path / "runs")
    path, page, predictions = (tmp_path / name for name in ("costs.json", "page.md", "all.json"))
    calibration = calibration_of(Cost(2e-5, 1e-10))
    cluster_calibration.save(calibration, path)
    assert cluster_calibration.load(path) == calibration
    given = ["cluster_model", "--calibration", str(path), "--rows", "65536", "--page", str(page)]
    monkeypatch.setattr("sys.argv", [*given, "--json", str(predictions)])
    cluster_model.main()
    shown = capsys.readouterr().out
    assert "sync, 10 GbE, 512" in shown and "measure again on an idle machine" in shown
    lines = page.read_text().splitlines()
    assert "| sync, 2 |" in "\n".join(line[:11] for line in lines)
    assert "![efficiency by the number of workers](page.svg)" in lines
    tables = [line for line in lines if line.startswith("|")]
    assert len(tables) > 60
    root = ElementTree.parse(tmp_path / "page.svg").getroot()
    assert root.tag.endswith("svg") and len(list(root)) > 20
    written = json.loads(predictions.read_text())
    assert [step["of"] for step in written["local"]][:2] == [["sync", 1], ["async", 1]]


def test_what_is_measured_stands_beside_what_is_predicted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cluster_predictions, "_ids", lambda rows: ids_of(rows))
    monkeypatch.setattr(cluster_model, "OUTPUT", tmp_path / "runs")
    monkeypatch.setattr(cluster_model.os, "sched_getaffinity", lambda _: {0, 1})
    calibration = calibration_of(Cost(2e-5, 1e-10))
    cluster_calibration.save(calibration, tmp_path / "costs.json")
    keys = Keys(1, 1)
    rates = {
        (mode, n): predict_local(calibration, keys, n, mode).examples_per_second
        for mode in (SYNC, ASYNC, HYBRID)
        for n in (2, 3)
    } | {(ONE_PROCESS, 1): 7.0}
    monkeypatch.setattr(cluster_model, "has_servers", lambda: False)
    monkeypatch.setattr(cluster_model, "measure", lambda mode, workers, *_: rates[mode, workers])
    given = ["cluster_model", "--calibration", str(tmp_path / "costs.json"), "--rows", "65536"]
    monkeypatch.setattr("sys.argv", [*given, "--check"])
    cluster_model.main()
    shown = capsys.readouterr().out.splitlines()
    for kind, rate in rates.items():
        name = kind[0] if kind[0] == ONE_PROCESS else "{}, {} ".format(*kind)
        line = next(line for line in shown if line.startswith(name))
        assert line.split()[-2] == f"{rate:,.0f}"
    rates[ASYNC, 3] *= 2
    with pytest.raises(SystemExit, match=r"of what is measured: async with 3 workers$"):
        cluster_model.main()
