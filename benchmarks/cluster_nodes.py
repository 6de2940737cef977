"""What a step of many nodes takes: a worker and an owner on each, of a model of any size."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from benchmarks.cluster_arithmetic import (
    COMPUTE,
    DENSE_PARTS,
    HYBRID,
    INSERT,
    REST,
    SYNC,
    TRANSPORT,
    Calibration,
    Cost,
    Keys,
    Prediction,
    cpu_by_part,
    highest_of,
    traffic,
)
from benchmarks.cluster_costs import OWNER_PARTS, PARALLEL, WORKER_PARTS
from benchmarks.cluster_traffic import Job, Traffic, key_shares
from tnctl.cluster.transport.frames import BODY_LIMITS, MOST_WORKERS, Kind

ONE_WAY = 25e-6  # seconds through the network between two nodes
USED = 0.94  # of a link's bits are payload: headers of Ethernet, IP, TCP and HTTP/2


@dataclass(frozen=True)
class Nodes:
    """The machines of a cluster, each with one worker; `bits` per second of its link.

    `backup` workers are not waited for. The factors say what would change by another batch, fewer
    bytes on the way, or cheaper frames.
    """

    workers: int
    cores: int
    bits: float
    mode: str = SYNC
    backup: int = 0
    bytes_factor: float = 1.0
    frame_factor: float = 1.0


def slices_bytes(job: Job, workers: int) -> float:
    """Bytes of dense gradients and weights that a node sends in a step."""
    return 2 * 4 * job.dense * (workers - 1) / workers


def serial_share(calibration: Calibration, attribute: str) -> float:
    """The share of a part of a step that more CPUs do not make faster, by Amdahl's law."""
    cpus = calibration.cpus
    ratio = getattr(calibration.together, attribute) / getattr(calibration.busy, attribute)
    return min(max((cpus * ratio - 1) / (cpus - 1), 0.0), 1.0)


def on_cores(seconds: float, serial: float, cores: int) -> float:
    """Seconds of CPU on so many cores, by Amdahl's law."""
    return seconds * (serial + (1 - serial) / cores)


def with_frames(calibration: Calibration, factor: float) -> Calibration:
    """The same with frames that cost so many times as much CPU, whatever their size."""
    frame = calibration.frame
    return replace(
        calibration,
        frame=Cost(frame.call * factor, frame.unit),
        further_frame=calibration.further_frame * factor,
    )


def predict_nodes(
    calibration: Calibration, keys: Keys, nodes: Nodes, rows: float, node_bytes: float
) -> Prediction:
    """A cluster of nodes of `node_bytes` of memory, whose tables have so many rows together."""
    local, workers, cores = calibration.busy, nodes.workers, nodes.cores
    calibration = with_frames(calibration, nodes.frame_factor)
    cpu, fixed = cpu_by_part(calibration, keys, workers, nodes.mode)
    sent = traffic(calibration.job, workers, keys.of_batch, nodes.mode)
    shares_ = {name: serial_share(calibration, name) for name in ("compute", "parameters")}

    def elapsed(parts: Iterable[str]) -> float:
        serial = shares_["parameters"]
        return sum(
            on_cores(cpu[part], serial, cores) if part in PARALLEL else cpu[part] for part in parts
        )

    computing = on_cores(local.compute, shares_["compute"], cores) + calibration.together.rest
    owner = elapsed({**OWNER_PARTS, INSERT: ""})
    one_process = computing + on_cores(local.parameters, shares_["parameters"], cores)
    network = sent.sent_bytes * nodes.bytes_factor * 8 / (nodes.bits * USED)
    streams = (cpu[TRANSPORT] - fixed[TRANSPORT]) * nodes.bytes_factor
    # Python runs one thread at a time, so what each frame costs is serial; copying is not.
    sending = max(fixed[TRANSPORT], network, streams / min(cores, max(workers - 1, 1)))
    main = computing + elapsed(WORKER_PARTS)
    used = {COMPUTE: local.compute, REST: local.rest, **cpu}
    slowest = max(highest_of(workers, nodes.backup), 0.0) * local.spread * main
    if nodes.mode == SYNC:
        seconds_by = {
            COMPUTE: computing,
            "worker": main - computing,
            "owner": owner,
            "network" if sending == network else "frames": sending + 2 * ONE_WAY,
            "stragglers": slowest,
        }
        seconds = sum(seconds_by.values())
    else:
        seconds_by = {
            "worker": main,
            "owner": owner,
            "network": network,
            "interpreter": sum(fixed.values()),
            "CPU": sum(used.values()) / cores,
        }
        if nodes.mode == HYBRID:
            dense = 8 * slices_bytes(calibration.job, workers) / (nodes.bits * USED)
            way = max(fixed[TRANSPORT] / 2, dense) + 2 * ONE_WAY
            seconds_by["worker"] = main + elapsed(DENSE_PARTS) + way + slowest
        seconds = max(seconds_by.values())
    examples = (workers - nodes.backup) * calibration.job.batch / seconds
    memory = _memory(calibration, sent, workers, rows)
    return Prediction(
        workers, nodes.mode, sent, used, seconds_by, seconds, examples,
        efficiency=examples * one_process / calibration.job.batch / workers,
        memory_bytes=memory,
        limits=tuple(_limits(sent, workers, memory, node_bytes)),
    )  # fmt: skip


def _memory(calibration: Calibration, sent: Traffic, workers: int, rows: float) -> float:
    """Bytes of a process: its rows, the program, the messages that it holds.

    An owner holds the requests of a step and of the one before it, and its replies.
    """
    share = max(key_shares(workers))
    held = 2 * sent.owner_bytes + sent.worker_bytes
    return rows * share * calibration.row_bytes + calibration.process_bytes + held


def _limits(sent: Traffic, workers: int, memory: float, node_bytes: float) -> list[str]:
    limits = []
    if workers > MOST_WORKERS:
        limits.append(f"more than {MOST_WORKERS} workers: a table has {MOST_WORKERS} shards")
    if sent.largest_bytes > BODY_LIMITS[Kind.EXCHANGE]:
        limits.append("a message is beyond 1 GiB")
    if memory > node_bytes:
        limits.append(f"{memory / 2**30:,.0f} GiB of memory in a node")
    return limits
