"""The tables of the cluster's arithmetic: on the terminal, and as a page with a plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import timing
from benchmarks.cluster_arithmetic import (
    ASYNC,
    COMPUTE,
    HYBRID,
    INSERT,
    ONE_PROCESS,
    REST,
    SYNC,
    TRANSPORT,
    Prediction,
)
from benchmarks.cluster_breaks import breaks
from benchmarks.cluster_costs import OWNER_PARTS, WORKER_PARTS
from benchmarks.cluster_plot import Line, chart
from benchmarks.cluster_predictions import CORES, LINKS, MODES, NODE_BYTES, ROWS, WORKERS, Model

UNITS = {
    "ids": "id", "keys": "key", "bytes": "byte", "rows": "row", "floats": "float",
    "floats_reduced": "float", "distinct": "row", "new": "row",
}  # fmt: skip
ALL_PARTS = (COMPUTE, REST, *WORKER_PARTS, *OWNER_PARTS, INSERT, TRANSPORT)
MOST_OTHERS = 0.1  # cores that other processes may use while costs are measured
Table = list[list[str]]
# Examples per second by mode and workers.
Measured = Mapping[tuple[str, int], float]


@dataclass
class Section:
    """A heading, paragraphs for the page, and tables."""

    title: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    """a list, which the terminal shows too"""


def document(model: Model, measured: Measured) -> list[Section]:
    """All sections; `measured` may be empty."""
    return [
        _costs(model),
        _here(model, measured),
        _nodes(model),
        _parts_of_nodes(model),
        Section("Where it breaks", points=breaks(model)),
        _help(model),
    ]


def as_text(sections: Sequence[Section]) -> str:
    """All of them as lines."""
    lines = []
    for section in sections:
        lines += ["", f"== {section.title}", *section.text]
        lines += [f"- {point}" for point in section.points]
        lines += [timing.table(table) + "\n" for table in section.tables]
    return "\n".join(lines)


# ---- The sections ------------------------------------------------------------------


def _costs(model: Model) -> Section:
    calibration = model.calibration
    busy = calibration.others > MOST_OTHERS
    steps: Table = [["a step of one process, ms", "alone", "one on each CPU", "one on all CPUs"]]
    of = [calibration.alone, calibration.busy, calibration.together]
    steps += [
        [name, *(f"{1e3 * getattr(step, attribute):.2f}" for step in of)]
        for name, attribute in (
            ("all", "seconds"), (COMPUTE, "compute"), ("find, pool, sum, apply", "parameters"),
            (REST, "rest"),
        )
    ]  # fmt: skip
    steps.append(["spread (standard deviation)", *(f"{step.spread:.1%}" for step in of)])
    parts: Table = [["CPU of a part", "us per call", "ns per unit", "unit"]]
    for units in (WORKER_PARTS, OWNER_PARTS, {INSERT: "new"}):
        for part, unit in units.items():
            cost = calibration.parts[part]
            parts.append([part, f"{1e6 * cost.call:.1f}", f"{1e9 * cost.unit:.2f}", UNITS[unit]])
    frame = calibration.frame
    further = f"{1e6 * calibration.further_frame:.1f}"
    parts += [
        [
            f"{TRANSPORT}, a round trip",
            f"{1e6 * frame.call:.1f}",
            f"{1e9 * frame.unit:.2f}",
            "byte",
        ],
        [f"{TRANSPORT}, another one at the same time", further, "", ""],
    ]
    text = [
        f"Measured on {calibration.machine.replace(chr(10), '; ')}; a batch has "
        f"{calibration.job.batch:,} rows. Steps on one CPU are CPU time, on all CPUs time by the "
        "clock. A call is one to an owner, or one of a worker that an owner serves; numbering, "
        "pooling, summing and applying are one call for all.",
        f"Other processes used {calibration.others:.2f} cores meanwhile."
        + (" **The figures are wrong: measure again on an idle machine.**" if busy else ""),
        f"A row takes {calibration.row_bytes:.0f} bytes of memory with its share of the index, the "
        f"process {calibration.process_bytes / 2**20:,.0f} MiB without rows.",
    ]
    return Section("What is measured of single processes", text, [steps, parts])


def _here(model: Model, measured: Measured) -> Section:
    rows: Table = [
        ["workers on 2 CPUs", "MB sent", "messages", "ms/step", "examples/s", "of one process",
         "measured", "predicted / measured"]
    ]  # fmt: skip
    alone = model.calibration.job.batch / model.calibration.alone.seconds
    rows.append(
        [
            ONE_PROCESS, "", "", f"{1e3 * model.calibration.alone.seconds:.1f}", f"{alone:,.0f}",
            "1.00", *_beside(alone, measured.get((ONE_PROCESS, 1))),
        ]
    )  # fmt: skip
    for (mode, workers), step in model.local.items():
        times = step.efficiency * workers
        rows.append(
            [
                f"{mode}, {workers}", f"{step.traffic.sent_bytes / 1e6:.2f}",
                str(step.traffic.messages), f"{1e3 * step.seconds:.1f}",
                f"{step.examples_per_second:,.0f}", f"{times:.2f}",
                *_beside(step.examples_per_second, measured.get((mode, workers))),
            ]
        )  # fmt: skip
    text = [
        f"{model.rows:,} rows of W1. Bytes and messages are those that worker 0 sends in a step. "
        "One worker, with a server or without, has both CPUs and is compared with one process on "
        "both; several have one CPU each and are compared with one process on one CPU, alone. With "
        "three workers two share a CPU: in sync the third waits for them, in async it takes more "
        "of the work.",
    ]
    cpu = _cpu_table("CPU of a step here, ms", {n: model.local[SYNC, n] for n in (1, 2, 3)})
    return Section("On this machine", text, [rows, cpu])


def _beside(predicted: float, measured: float | None) -> list[str]:
    """What was measured, and the ratio of the predicted rate to it."""
    return ["", ""] if measured is None else [f"{measured:,.0f}", f"{predicted / measured:.2f}"]


def _cpu_table(title: str, steps: Mapping[int, Prediction]) -> Table:
    rows: Table = [[title, *(f"{workers} workers" for workers in steps)]]
    for part in ALL_PARTS:
        rows.append([part, *(f"{1e3 * step.cpu[part]:.2f}" for step in steps.values())])
    rows.append(["together", *(f"{1e3 * sum(step.cpu.values()):.1f}" for step in steps.values())])
    return rows


def _nodes(model: Model) -> Section:
    rows: Table = [
        ["workers", "MB sent", "messages", "CPU ms", "ms/step", "examples/s", "efficiency",
         "memory GiB", "most of it"]
    ]  # fmt: skip
    for mode in MODES:
        for bits in LINKS:
            for workers in WORKERS:
                step = model.nodes[mode, bits, workers]
                rows.append(
                    [
                        f"{mode}, {bits / 1e9:.0f} GbE, {workers}",
                        f"{step.traffic.sent_bytes / 1e6:.2f}", f"{step.traffic.messages:,}",
                        f"{1e3 * sum(step.cpu.values()):.0f}", f"{1e3 * step.seconds:.1f}",
                        f"{step.examples_per_second:,.0f}", f"{step.efficiency:.0%}",
                        f"{step.memory_bytes / 2**30:.1f}", step.largest,
                    ]
                )  # fmt: skip
    text = [
        f"Assumed: a node is one worker with {CORES} such cores and {NODE_BYTES >> 30} GiB; its "
        "link has the given speed in both directions, all nodes at the same time, 94 % of it for "
        f"payload, and 25 us of delay. The tables have {ROWS:,} rows already: W1's five large "
        "slots are larger, and a batch has more distinct keys. TensorFlow and the threads of the "
        "table use more cores by Amdahl's law, with the serial share that one and two CPUs show "
        "here. What Python does for a call and a frame runs one at a time in a process; bytes are "
        "copied on all cores. Everything that one CPU is measured at includes a busy neighbour.",
        "In sync the parts of a step follow one another, and it takes as long as the slowest of "
        "the workers, whose times are normally distributed. In async they overlap completely, the "
        "largest decides, and an owner applies each push by itself, rows and dense slice. In "
        "hybrid rows are as in async, and dense weights as in sync: `worker` has the wait for "
        "them, with the slowest worker, and there are twice as many messages. "
        "Efficiency is beside as many single processes with the same cores. More than 64 workers "
        "are refused today; their figures are as if shards were smaller.",
    ]
    return Section("Many nodes", text, [rows])


def _parts_of_nodes(model: Model) -> Section:
    steps = {workers: model.nodes[SYNC, LINKS[0], workers] for workers in WORKERS}
    names = dict.fromkeys(name for step in steps.values() for name in step.seconds_by)
    rows: Table = [["ms of a sync step, 10 GbE", *(f"{n} workers" for n in steps)]]
    for name in names:
        rows.append(
            [name, *(f"{1e3 * step.seconds_by.get(name, 0):.1f}" for step in steps.values())]
        )
    tables = [rows]
    for mode in (ASYNC, HYBRID):
        overlapping = {workers: model.nodes[mode, LINKS[0], workers] for workers in WORKERS}
        names = dict.fromkeys(name for step in overlapping.values() for name in step.seconds_by)
        tables.append([[f"ms of a step in {mode}, 10 GbE", *(f"{n} workers" for n in overlapping)]])
        for name in names:
            times = (step.seconds_by.get(name, 0) for step in overlapping.values())
            tables[-1].append([name, *(f"{1e3 * seconds:.1f}" for seconds in times)])
    text = [
        "`frames` is what the messages cost in Python where that takes longer than the bytes on "
        "the link, `network` the bytes where they take longer. The CPU is that of node 0, which "
        "also adds up loss and AUC of all workers."
    ]
    return Section(
        "What a step of many nodes consists of",
        text,
        [*tables, _cpu_table("CPU of a sync step, ms", steps)],
    )


def _help(model: Model) -> Section:
    counts = sorted({workers for _, workers in model.helped})
    kinds = [f"{n} workers, {what}" for n in counts for what in ("examples/s", "efficiency")]
    rows: Table = [["sync, 10 GbE", *kinds]]
    for name in dict.fromkeys(name for name, _ in model.helped):
        row = [name]
        for workers in counts:
            step = model.helped[name, workers]
            row += [f"{step.examples_per_second:,.0f}", f"{step.efficiency:.0%}"]
        rows.append(row)
    text = [
        "Each change alone. Efficiency is beside single processes with the same batch; those that "
        "are not waited for count as lost."
    ]
    return Section("What would help", text, [rows])


# ---- The page ------------------------------------------------------------------


def write(path: Path, sections: Sequence[Section], model: Model) -> None:
    """Write the page, and the plot beside it with the suffix .svg."""
    plot = path.with_suffix(".svg")
    plot.write_text(_plot(model))
    lines = [
        "# The arithmetic of a large cluster",
        "",
        "Written by `python -m benchmarks.cluster_model --check --page docs/cluster-model.md`; do "
        "not edit it. No cluster was measured for the predictions: they follow from the costs of "
        "single processes, the protocol and the data. What was measured of clusters is in "
        "[cluster](cluster.md#speed).",
        "",
        f"![efficiency by the number of workers]({plot.name})",
    ]
    for section in sections:
        lines += ["", f"## {section.title}"]
        for paragraph in section.text:
            lines += ["", paragraph]
        if section.points:
            lines += ["", *(f"- {point}" for point in section.points)]
        for table in section.tables:
            lines += ["", *_markdown(table)]
    path.write_text("\n".join([*lines, ""]))


def _markdown(table: Table) -> list[str]:
    heading, *rows = [f"| {' | '.join(row)} |" for row in table]
    return [heading, "|---|" + "---:|" * (len(table[0]) - 1), *rows]


def _plot(model: Model) -> str:
    lines = [
        Line(
            f"{mode}, {bits / 1e9:.0f} GbE",
            [
                (workers, 100 * step.efficiency)
                for (of_mode, of_bits, workers), step in model.nodes.items()
                if (of_mode, of_bits) == (mode, bits)
            ],
            colour=number // 2,
            dashed=bool(number % 2),
        )
        for number, (mode, bits) in enumerate(
            dict.fromkeys((mode, bits) for mode, bits, _ in model.nodes)
        )
    ]
    title = "Predicted efficiency, % of as many single processes of 16 cores"
    return chart(title, "workers", lines, [(64, "most workers today")])
