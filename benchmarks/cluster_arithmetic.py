"""What a step of a cluster takes: CPU by part, time, memory; from the costs of single processes.

A worker and an owner are one process, as in `cluster=local`. Sizes follow from the data
(key_counts.py), messages from the protocol (cluster_traffic.py), costs from cluster_calibration.py.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import NormalDist

from benchmarks.cluster_costs import ONE_CALL, OWNER_PARTS, PARALLEL, WORKER_PARTS
from benchmarks.cluster_traffic import (
    Job,
    Traffic,
    dense_slices,
    equal_pulls,
    key_shares,
    shapes_of,
    traffic_in_two,
    traffic_of,
)
from tnctl.cluster.transport.frames import HEADER_BYTES
from tnctl.cpu_shares import shares

SYNC, ASYNC, HYBRID = "sync", "async", "hybrid"
WITH_SERVER = " with a server"  # after a mode: one worker, whose rows and weights a server owns
ONE_PROCESS = "one process"  # without a cluster, on one CPU
# What an owner does for a step's dense weights, which all wait for in hybrid.
DENSE_PARTS = ("reduce dense", "apply dense", "figures")
MESSAGES = ("worker's messages", "owner's messages")
COMPUTE, REST, TRANSPORT, INSERT = "TensorFlow", "data and loop", "transport", "insert rows"


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU: `call` for each call, `unit` for each of what the part works on."""

    call: float
    unit: float

    def seconds(self, calls: float, units: float) -> float:
        return self.call * calls + self.unit * units


@dataclass(frozen=True)
class LocalStep:
    """Seconds of a step of one process: TensorFlow, its parameters, the figures, and the rest.

    The rest is reading and the loop. `spread` is the standard deviation of a step, of its median.
    """

    seconds: float
    compute: float
    parameters: float
    figures: float
    rest: float
    spread: float
    steps: float


@dataclass(frozen=True)
class Calibration:
    """What was measured of single processes on this machine.

    `alone` is a process on one CPU, `busy` the same while all CPUs do this, `together` one process
    on all of them. `frame` is what each process uses of a round trip, and of each byte that it
    sends or receives; `further_frame` what it uses of a round trip beside others at the same time;
    `gap` are the seconds of a round trip in which neither of two uses its CPU. Meanwhile other
    processes used `others` cores.
    """

    machine: str
    cpus: int
    job: Job
    alone: LocalStep
    busy: LocalStep
    together: LocalStep
    parts: Mapping[str, Cost]
    frame: Cost
    further_frame: float
    gap: float
    row_bytes: float
    process_bytes: int
    others: float


@dataclass(frozen=True)
class Keys:
    """Distinct keys of a worker's batch and of all workers' batches of a step, and new ones."""

    of_batch: float
    of_step: float
    new: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """A step: of the slowest process, which is worker 0's; `seconds_by` are what it consists of.

    In async and hybrid they overlap and the largest decides. `efficiency` is beside as many single
    processes.
    """

    workers: int
    mode: str
    traffic: Traffic
    cpu: Mapping[str, float]
    seconds_by: Mapping[str, float]
    seconds: float
    examples_per_second: float
    efficiency: float
    memory_bytes: float = 0.0
    limits: tuple[str, ...] = field(default=())

    @property
    def largest(self) -> str:
        """What takes most of a step."""
        return max(self.seconds_by, key=lambda part: self.seconds_by[part])


def highest_of(workers: int, backup: int = 0) -> float:
    """The expected highest of so many standard normal numbers, or the one below `backup` others.

    Blom's approximation, within 0.03 of the exact figure.
    """
    return NormalDist().inv_cdf((workers - backup - 0.375) / (workers + 0.25))


@cache
def traffic(job: Job, workers: int, keys: float, mode: str, rank: int = 0) -> Traffic:
    """What a worker exchanges when all have batches with so many distinct keys."""
    shapes, pulls = shapes_of(job, workers), equal_pulls(job, keys, workers)
    return (traffic_in_two if mode == HYBRID else traffic_of)(rank, shapes, pulls)


def units_of_worker(job: Job, keys: Keys, sent: Traffic) -> dict[str, float]:
    """The numbers that drive the costs of a worker's parts in a step."""
    return {
        "ids": job.batch * job.ids_per_row,
        "keys": keys.of_batch,
        "bytes": sent.worker_bytes,
        "floats": job.dense,
        "rows": job.batch,
    }


def units_of_owner(
    job: Job, keys: Keys, sent: Traffic, workers: int, rank: int, mode: str
) -> dict[str, float]:
    """The same of an owner's parts. In async each push is applied, in sync their sum is.

    In hybrid dense gradients are summed as in sync, and rows applied as in async.
    """
    share, slice_ = key_shares(workers)[rank], dense_slices(job, workers)[rank]
    pulled = workers * keys.of_batch * share
    sums_dense = mode != ASYNC
    return {
        "bytes": sent.owner_bytes,
        "keys": pulled,
        "floats_reduced": slice_ * workers if sums_dense else 0,
        "floats": slice_ if sums_dense else slice_ * workers,
        "distinct": keys.of_step * share if mode == SYNC else pulled,
        "rows": 0 if rank else job.batch * workers,
        "new": keys.new * share,
    }


def cpu_by_part(
    calibration: Calibration, keys: Keys, workers: int, mode: str, rank: int = 0
) -> tuple[Counter[str], Counter[str]]:
    """Seconds of CPU of a process by part, and of these what its calls take, whatever their size.

    Not among them are TensorFlow and the rest of a local step.
    """
    job, costs = calibration.job, calibration.parts
    sent = traffic(job, workers, keys.of_batch, mode, rank)
    of_worker = units_of_worker(job, keys, sent)
    of_owner = units_of_owner(job, keys, sent, workers, rank, mode)
    total: Counter[str] = Counter()
    fixed: Counter[str] = Counter()
    for parts, units in ((WORKER_PARTS, of_worker), (OWNER_PARTS, of_owner)):
        for part, unit in parts.items():
            calls = _calls(part, workers, mode)
            if part == "figures" and rank:
                calls = 0
            total[part] = costs[part].seconds(calls, units[unit])
            fixed[part] = costs[part].seconds(calls, 0)
    total[INSERT] = costs[INSERT].seconds(0, of_owner["new"])
    fixed[TRANSPORT] = fixed_transport(calibration, workers, mode)
    moved = sent.sent_bytes + sent.received_bytes
    total[TRANSPORT] = fixed[TRANSPORT] + calibration.frame.seconds(0, moved)
    return total, fixed


def _calls(part: str, workers: int, mode: str) -> int:
    """How often a process does a part in a step: for each worker or owner, or once."""
    if part in MESSAGES and mode == HYBRID:
        return 2 * workers
    if part not in ONE_CALL:
        return workers
    is_one = part in WORKER_PARTS or mode == SYNC or (mode == HYBRID and part in DENSE_PARTS)
    return 1 if is_one else workers


def fixed_transport(calibration: Calibration, workers: int, mode: str) -> float:
    """CPU of a process for its requests of a step and those that it answers, of no size."""
    if workers == 1:
        return 0.0
    trips = 4 if mode == HYBRID else 2
    return trips * (calibration.frame.call + (workers - 2) * calibration.further_frame)


# ---- Workers on this machine -------------------------------------------------------


def predict_local(calibration: Calibration, keys: Keys, workers: int, mode: str) -> Prediction:
    """A cluster on the CPUs of this machine, beside as many processes of one CPU."""
    seconds_by: dict[str, float]
    cpu, _ = cpu_by_part(calibration, keys, workers, mode)
    if workers == 1:
        step = calibration.together
        scale = step.parameters / calibration.busy.parameters
        parameters = sum(s * (scale if part in PARALLEL else 1.0) for part, s in cpu.items())
        seconds_by = {COMPUTE: step.compute, REST: step.rest, "parameters": parameters}
        base = step.seconds
    else:
        seconds_by = _on_one_cpu_each(calibration, keys, workers, mode)
        base = calibration.alone.seconds
    used = {COMPUTE: calibration.busy.compute, REST: calibration.busy.rest, **cpu}
    seconds = sum(seconds_by.values())
    return Prediction(
        workers, mode, traffic(calibration.job, workers, keys.of_batch, mode), used, seconds_by,
        seconds,
        examples_per_second=workers * calibration.job.batch / seconds,
        efficiency=base / seconds,
    )  # fmt: skip


def predict_with_server(calibration: Calibration, keys: Keys, mode: str) -> Prediction:
    """One worker and one server that share all CPUs, beside one process on all of them."""
    job, local = calibration.job, calibration.together
    parts, _ = cpu_by_part(calibration, keys, 1, mode)
    local_traffic = traffic(job, 1, keys.of_batch, mode)  # with the owner in the same process
    frames = 2 if mode == HYBRID else 1
    transport = calibration.frame.seconds(frames, local_traffic.worker_bytes)
    of_worker = sum(parts[part] for part in WORKER_PARTS) + transport
    seconds_by = {
        COMPUTE: local.compute,
        REST: local.rest,
        "worker": of_worker,
        "server": sum(parts[part] for part in (*OWNER_PARTS, INSERT)) + transport,
        "gaps": calibration.gap,
    }
    seconds = sum(seconds_by.values())
    if mode == ASYNC:
        # The server works while TensorFlow does, on the same CPUs.
        cpu = calibration.busy.compute + calibration.busy.rest + of_worker + seconds_by["server"]
        seconds = max(local.compute + local.rest + of_worker, cpu / calibration.cpus)
    moved = local_traffic.worker_bytes // 2 + HEADER_BYTES
    sent = replace(local_traffic, messages=frames, sent_bytes=moved, received_bytes=moved)
    used = {COMPUTE: local.compute, REST: local.rest, **parts, TRANSPORT: 2 * transport}
    return Prediction(
        1, mode + WITH_SERVER, sent, used, seconds_by, seconds, job.batch / seconds,
        efficiency=local.seconds / seconds,
    )  # fmt: skip


def _on_one_cpu_each(
    calibration: Calibration, keys: Keys, workers: int, mode: str
) -> dict[str, float]:
    """What a step consists of where each worker has one CPU, or shares one with others."""
    local = calibration.busy
    loads: Counter[int] = Counter()
    ranks: Counter[int] = Counter()
    for rank, [cpu] in enumerate(shares(range(calibration.cpus), workers)):
        parts, _ = cpu_by_part(calibration, keys, workers, mode, rank)
        loads[cpu] += local.compute + local.rest + sum(parts.values())
        ranks[cpu] += 1
    highest, *lower = sorted(loads.values(), reverse=True)
    # While the other CPUs have nothing to do, the busiest one is as fast as alone.
    beyond = highest - (lower[0] if lower else 0.0)
    faster = calibration.alone.seconds / local.seconds
    parts, _ = cpu_by_part(calibration, keys, workers, mode)
    most = max(ranks.values())
    slow = [cpu for cpu, number in ranks.items() if number == most]
    seconds_by = {
        COMPUTE: local.compute * most,
        REST: local.rest * most,
        "parameters": (sum(parts.values()) - parts[TRANSPORT]) * most,
        TRANSPORT: parts[TRANSPORT] * most,
    }
    scale = (highest - beyond * (1 - faster)) / sum(seconds_by.values())
    if mode != ASYNC:
        # In hybrid a worker waits for the dense weights only.
        trips = 2 if mode == SYNC else 1
        spread = local.spread * local.seconds * most**0.5
        seconds_by = {name: s * scale for name, s in seconds_by.items()}
        seconds_by["gaps"] = trips * calibration.gap if most == 1 else 0.0
        seconds_by["stragglers"] = spread * highest_of(len(slow)) if len(slow) > 1 else 0.0
        return seconds_by
    # Nobody waits, so work spreads evenly over the CPUs as fast workers take more of it.
    even = sum(loads.values()) / len(loads) / sum(seconds_by.values())
    return {name: s * even for name, s in seconds_by.items()}
