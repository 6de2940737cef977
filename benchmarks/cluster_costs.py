"""What the parts of a cluster's step cost, measured in one process that sends nothing.

    python -m benchmarks.cluster_costs local CONF OUTPUT BATCH CPU [CPU]
    python -m benchmarks.cluster_costs parts CONF OUTPUT BATCH CPU

`local` is `tnctl train` in this process, on the given CPUs; what a step spends on its parameters,
and on the rest, is timed from within. `parts` is the same, and then the calls of workers and owners
on W1's batches: as many workers as there are owners, whose requests owner 0 answers. The result is
a line of JSON; times are medians, in seconds. CPU is that of the process on one CPU; on several,
local steps are timed by the clock.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.local_step import local_step

CLUSTERS = (1, 4, 16, 64)  # workers, each of which owns a part
STEPS = 3  # of each, after a first one
NEW_KEYS = 20_000  # at a time
OTHER = "other"

# What drives the cost of a part, beside its calls. A worker makes a call to each owner, an owner
# one for each worker, unless it is one for all.
WORKER_PARTS = {
    "number keys": "ids",
    "write keys": "keys",
    "worker's messages": "bytes",
    "pool rows": "ids",
    "fill inputs": "rows",
    "sum gradients": "ids",
    "write sums": "keys",
    "dense gradients": "floats",
}
OWNER_PARTS = {
    "owner's messages": "bytes",
    "add sums": "keys",
    "reduce dense": "floats_reduced",
    "apply dense": "floats",
    "apply rows": "distinct",
    "find rows": "keys",
    "read rows": "keys",
    "figures": "rows",
}
ONE_CALL = frozenset(
    {"number keys", "pool rows", "fill inputs", "sum gradients", "apply dense", "apply rows"}
)
PARALLEL = frozenset(
    {"number keys", "pool rows", "sum gradients", "apply dense", "apply rows", "find rows",
     "insert rows"}
)  # fmt: skip


class CpuByPart:
    """The CPU of this thread by the innermost part that is running."""

    def __init__(self) -> None:
        self._parts, self._at = [OTHER], time.thread_time()
        self.seconds: Counter[str] = Counter()

    def _switch(self) -> None:
        now = time.thread_time()
        self.seconds[self._parts[-1]] += now - self._at
        self._at = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._switch()
        self._parts.append(name)
        try:
            yield
        finally:
            self._switch()
            self._parts.pop()

    def take(self) -> Counter[str]:
        """The seconds since the last call."""
        self._switch()
        seconds, self.seconds = self.seconds, Counter()
        return seconds

    def measured(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            with self.part(name):
                return function(*arguments, **named)

        return run


@contextmanager
def measuring(cpu: CpuByPart) -> Iterator[None]:
    """Calls of a worker and of an owner are counted as their parts while the block runs."""
    from tnctl.cluster.owners import owned
    from tnctl.cluster.owners.owner import Owner
    from tnctl.cluster.workers.remote import RemoteParameters
    from tnctl.model.buffers import Buffers
    from tnctl.tables import DenseTable, KeyWorkspace, PullWorkspace, Workspace
    from tnctl.training.pass_sums import PassSums

    calls: list[tuple[Any, str, str]] = [
        (KeyWorkspace, "number_keys", "number keys"),
        (KeyWorkspace, "write_keys", "write keys"),
        (RemoteParameters, "pull", "worker's messages"),
        (KeyWorkspace, "set_rows", "pool rows"),
        (Workspace, "gather", "pool rows"),
        (Buffers, "fill_dense", "fill inputs"),
        (Workspace, "accumulate", "sum gradients"),
        (KeyWorkspace, "write_sums", "write sums"),
        (RemoteParameters, "push", "dense gradients"),
        (Owner, "exchange", "owner's messages"),
        (PullWorkspace, "push_sums", "add sums"),
        (owned, "weighted_sum", "reduce dense"),
        (DenseTable, "check_slice", "apply dense"),
        (DenseTable, "apply_slice", "apply dense"),
        (PullWorkspace, "apply", "apply rows"),
        (PullWorkspace, "find", "find rows"),
        (PullWorkspace, "read", "read rows"),
        (PassSums, "add", "figures"),
    ]
    with ExitStack() as stack:
        for holder, name, part in calls:
            run = cpu.measured(getattr(holder, name), part)
            stack.enter_context(mock.patch.object(holder, name, run))
        yield


# ---- The parts of a cluster's step -----------------------------------------------


class RecordingPeers:
    """Peers that answer a worker with zeros at once, and keep what it sends to owner 0."""

    servers = 0

    def __init__(self, rank: int, shapes: Sequence[Any], rows: int, cpu: CpuByPart) -> None:
        from tnctl.cluster.messages.exchange import no_batch

        self.rank, self.workers = rank, len(shapes)
        self.owner_seconds = self.network_seconds = 0.0
        self.sent_bytes = self.received_bytes = 0
        self.body: Any = b""
        self.keys: Any = None  # of the body: ids, uint64 [n]
        self.bytes = 0  # of all bodies, since it was set to 0
        self._shapes, self._rows, self._cpu = shapes, rows, cpu
        self._pulled = [no_batch(shape) for shape in shapes]

    def request(self, owner: int, _: Any, body: Any) -> Any:
        with self._cpu.part(OTHER):
            return self._answer(owner, body)

    def _answer(self, owner: int, body: Any) -> Any:
        from concurrent.futures import Future

        from tnctl.cluster.messages.exchange import parse_exchange, sizes_of
        from tnctl.cluster.messages.replies import Owned, new_reply

        shape = self._shapes[owner]
        exchange = parse_exchange(shape, self._pulled[owner], body)
        self._pulled[owner] = sizes_of(exchange)
        parts = [Owned(0, 0)] * len(shape.tables)
        reply, _ = new_reply(shape, self._pulled[owner], parts, rows=self._rows)
        self.bytes += len(body) + len(reply)
        if owner == 0:
            self.body, self.keys = body, exchange.keys[0].ids
        future: Future[Any] = Future()
        future.set_result(reply)
        return future


@dataclasses.dataclass
class Observation:
    """What a part cost in one call or step, with the numbers that may drive it."""

    part: str
    calls: int
    units: int
    seconds: float


class Parts:
    """Steps of clusters of several sizes, on a model whose table has all keys of the batches."""

    def __init__(self, batch: int, most_rows: int) -> None:
        from benchmarks.step import batches, conf_of
        from benchmarks.workload import load
        from tnctl.data.statistics import Statistics
        from tnctl.model.buffers import Buffers
        from tnctl.model.building import build
        from tnctl.model.parameters import Gradients, LocalParameters

        workload = load()
        rows = min(len(workload.labels) // batch, most_rows // batch) * batch
        part = dataclasses.replace(
            workload,
            ids=workload.ids[:rows],
            numeric=workload.numeric[:rows],
            labels=workload.labels[:rows],
        )
        self.batches = batches(part, batch)
        self.model = build(conf_of(batch), Statistics())
        self.buffers = Buffers(self.model, batch)
        self.batch, self.cpu = batch, CpuByPart()
        self.model.tables[0].set_step(1)
        filling = LocalParameters(self.model)
        for window in self.batches:
            filling.find(window, insert=True)
        del filling
        random = self._random()
        self._gradients = Gradients(
            inputs=[random(self.buffers.x.shape), random(self.buffers.linear.shape)],
            dense=[random((size,)) for size in self.model.dense.sizes],
            statistics=[],
        )

    @staticmethod
    def _random() -> Callable[[tuple[int, ...]], Any]:
        import numpy as np

        rng = np.random.default_rng(4)
        return lambda shape: (rng.standard_normal(shape) * 1e-4).astype(np.float32)

    def observe(self, workers: int) -> list[Observation]:
        """The medians of the parts in steps of so many workers."""
        from tnctl.cluster.messages.shapes import shapes
        from tnctl.cluster.owners.owned import OwnedPart
        from tnctl.cluster.owners.owner import Owner
        from tnctl.cluster.workers.remote import RemoteParameters
        from tnctl.model.parameters import moving_statistics
        from tnctl.training.pass_sums import PassSums

        moving = moving_statistics(self.model)
        model_shapes = shapes(self.model, workers, moving)
        peers = [
            RecordingPeers(rank, model_shapes, workers * self.batch, self.cpu)
            for rank in range(workers)
        ]
        remotes = [RemoteParameters(self.model, peer, 0) for peer in peers]
        owned = OwnedPart(self.model, 0, workers, 0, moving)
        owned.sums = PassSums(classes=True)
        owner = Owner(model_shapes[0], workers, owned)
        of_workers: list[Counter[str]] = []
        of_owner: list[Counter[str]] = []
        with measuring(self.cpu):
            for step in range(STEPS + 1):
                self._work(remotes, peers, step, of_workers)
                self.cpu.take()
                replies: list[Any] = []
                for rank, peer in enumerate(peers):
                    replies = owner.exchange(rank, peer.body)
                of_owner.append(self.cpu.take())
        units = self._units(peers, replies)
        return self._medians(workers, of_workers[workers:], of_owner[1:], units)

    def _work(
        self,
        remotes: Sequence[Any],
        peers: Sequence[RecordingPeers],
        step: int,
        of_workers: list[Counter[str]],
    ) -> None:
        for rank, remote in enumerate(remotes):
            batch = self.batches[(step * len(remotes) + rank) % len(self.batches)]
            peers[rank].bytes = 0
            self.cpu.take()
            remote.pull(batch, self.buffers)
            body = peers[rank].body
            remote.push(batch, self._gradients, 1.0)
            of_workers.append(self.cpu.take())
            remote.add_result(0.5, batch.labels[:, 0])
            peers[rank].body = body

    def _units(self, peers: Sequence[RecordingPeers], replies: Sequence[Any]) -> Counter[str]:
        """The numbers that drive the costs of a step of the workers and of owner 0."""
        import numpy as np

        from benchmarks.cluster_traffic import key_shares
        from tnctl.cluster.messages.shapes import first_floats

        workers, keys = len(peers), [peer.keys for peer in peers]
        _, slice_, *_ = first_floats(self.model, workers)
        received = sum(map(len, keys))
        return Counter(
            ids=self.batch * len(self.model.layout.tables[0].slots),
            worker_keys=round(received / workers / key_shares(workers)[0]),
            worker_bytes=round(statistics.mean(peer.bytes for peer in peers)),
            worker_floats=len(self.model.dense.flat_weights),
            worker_rows=self.batch,
            keys=received,
            distinct=len(np.unique(np.concatenate(keys))),
            bytes=sum(len(peer.body) for peer in peers) + sum(map(len, replies)),
            floats=slice_,
            floats_reduced=slice_ * workers,
            rows=self.batch * workers,
        )

    def _medians(
        self,
        workers: int,
        of_workers: Sequence[Counter[str]],
        of_owner: Sequence[Counter[str]],
        units: Counter[str],
    ) -> list[Observation]:
        observations = []
        for parts, measured, prefix in (
            (WORKER_PARTS, of_workers, "worker_"), (OWNER_PARTS, of_owner, "")
        ):  # fmt: skip
            for part, unit in parts.items():
                name = unit if prefix + unit not in units else prefix + unit
                seconds = statistics.median(of_step[part] for of_step in measured)
                calls = 1 if part in ONE_CALL else workers
                observations.append(Observation(part, calls, units[name], seconds))
        return observations

    def insertion(self) -> Observation:
        """What inserting a key costs beyond finding it, as an owner does both."""
        import numpy as np

        from tnctl.tables import PullWorkspace, RankKeys

        [table] = self.model.tables
        pull, rng = PullWorkspace(table), np.random.default_rng(5)
        groups = np.repeat(np.uint16(table.groups[0]), NEW_KEYS)
        differences = []
        for _ in range(STEPS + 2):
            ids = rng.integers(1 << 40, 1 << 62, NEW_KEYS).astype(np.uint64)
            seconds = []
            for _ in range(2):
                started = time.thread_time()
                pull.find([RankKeys(ids, groups)], True)
                seconds.append(time.thread_time() - started)
            differences.append(seconds[0] - seconds[1])
        return Observation("insert rows", 0, NEW_KEYS, max(statistics.median(differences), 0.0))

    @property
    def row_bytes(self) -> float:
        """Bytes of memory that a row takes, with its share of the index."""
        [table] = self.model.tables
        return (table.index_bytes + table.row_bytes) / table.rows


def measured_parts(batch: int) -> dict[str, Any]:
    """Observations of all parts, and what the model is."""
    from benchmarks.table import resident
    from tnctl.cluster.messages.shapes import shapes
    from tnctl.model.parameters import moving_statistics

    parts = Parts(batch, most_rows=128 * 4096)
    row_bytes, process_bytes = parts.row_bytes, resident()
    observations = [part for workers in CLUSTERS for part in parts.observe(workers)]
    observations.append(parts.insertion())
    [shape] = shapes(parts.model, 1, moving_statistics(parts.model))
    return {
        "observations": [dataclasses.asdict(part) for part in observations],
        "tables": [dataclasses.asdict(table) for table in shape.tables],
        "dense": shape.dense,
        "statistics": shape.statistics,
        "ids_per_row": len(parts.model.layout.tables[0].slots),
        "row_bytes": row_bytes,
        "process_bytes": process_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("local", "parts"))
    parser.add_argument("conf", type=Path)
    parser.add_argument("output")
    parser.add_argument("batch", type=int)
    parser.add_argument("cpus", type=int, nargs="+")
    given = parser.parse_args()
    os.sched_setaffinity(0, given.cpus)  # before TensorFlow counts them
    result: dict[str, Any] = {
        "local": local_step(given.conf, given.output, given.batch, given.cpus)
    }
    if given.do == "parts":
        result.update(measured_parts(given.batch))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
