"""Where a predicted cluster breaks, in sentences that follow from the predictions."""

from benchmarks.cluster_arithmetic import (
    COMPUTE,
    SYNC,
    TRANSPORT,
    Prediction,
    fixed_transport,
)
from benchmarks.cluster_nodes import slices_bytes
from benchmarks.cluster_predictions import CURVE, LINKS, MODES, NODE_BYTES, ROWS, WORKERS, Model
from tnctl.cluster.transport.frames import MOST_WORKERS


def breaks(model: Model) -> list[str]:
    """What limits a cluster, and from how many workers on."""
    points = [
        f"More than {MOST_WORKERS} workers are refused: a table has {MOST_WORKERS} shards, and "
        "each worker owns one at least."
    ]
    for mode in MODES:
        steps = {n: model.nodes[mode, LINKS[0], n] for n in CURVE}
        half = next((n for n, step in steps.items() if step.efficiency < 0.5), None)
        shown = ", ".join(f"{steps[n].efficiency:.0%} at {n}" for n in WORKERS)
        end = "it stays above half." if half is None else f"it is below half from {half} on."
        points.append(f"{mode}, 10 GbE: the efficiency is {shown} workers; {end}")
    sync = {n: model.nodes[SYNC, LINKS[0], n] for n in CURVE}
    points += [_frames(model), *map(_beside_compute, (sync[n] for n in WORKERS)), _slices(model)]
    points.append(_stragglers(model))
    points.append(_memory(model))
    return points


def _beside_compute(step: Prediction) -> str:
    """What takes most of a step beside TensorFlow."""
    parts = {name: s for name, s in step.seconds_by.items() if name != COMPUTE}
    ordered = sorted(parts, key=lambda name: -parts[name])[:2]
    shares = " and ".join(f"{name} {parts[name] / step.seconds:.0%}" for name in ordered)
    compute = step.seconds_by[COMPUTE] / step.seconds
    return (
        f"Of a sync step of {step.workers} workers over 10 GbE {COMPUTE} and reading are "
        f"{compute:.0%}, {shares}."
    )


def _frames(model: Model) -> str:
    calibration, most = model.calibration, WORKERS[-1]
    step = model.nodes[SYNC, LINKS[0], most]
    fixed = fixed_transport(calibration, most, SYNC)
    return (
        "Messages: each pair of workers exchanges two round trips in a step, and one costs "
        f"{1e3 * calibration.further_frame:.2f} ms of CPU in each process beside others, however "
        f"small it is. That is {1e3 * fixed:.0f} ms of the step's {1e3 * step.seconds:.0f} at "
        f"{most} workers ({fixed / step.cpu[TRANSPORT]:.0%} of the CPU of the transport), and it "
        "grows with their number, while the bytes of a worker stay the same."
    )


def _slices(model: Model) -> str:
    job, workers = model.calibration.job, WORKERS[-1]
    step = model.nodes[SYNC, LINKS[0], workers]
    dense = slices_bytes(job, workers)
    return (
        f"Dense slices: all weights travel to each worker and back in every step, "
        f"{dense / 1e6:.1f} of the {step.traffic.sent_bytes / 1e6:.1f} MB that a node sends. "
        f"A slice is {4 * job.dense / workers / 1024:.1f} KiB at {workers} workers: it is the "
        "message that costs, not its bytes."
    )


def _stragglers(model: Model) -> str:
    spread = model.calibration.busy.spread
    waits = ", ".join(
        f"{model.nodes[SYNC, LINKS[0], n].seconds_by['stragglers'] * 1e3:.0f} ms at {n}"
        for n in WORKERS
    )
    return (
        f"Stragglers: a step of one process varies by {spread:.1%} here. The slowest of all makes "
        f"a sync step longer by {waits} workers. Real machines have rarer and longer delays than "
        "a normal distribution, so this is the least."
    )


def _memory(model: Model) -> str:
    held = {n: model.nodes[SYNC, LINKS[0], n].memory_bytes for n in WORKERS}
    text = ", ".join(f"{bytes_ / 2**30:,.0f} GiB with {n}" for n, bytes_ in held.items())
    largest = max(held.values())
    fits = "fits" if largest <= NODE_BYTES else "does not fit"
    return (
        f"Memory: {ROWS:,} rows take {text} workers, in each node. The largest {fits} into "
        f"{NODE_BYTES >> 30} GiB."
    )
