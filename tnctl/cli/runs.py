"""`tnctl runs`: the runs of a folder or URL side by side, as a table or JSON."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tnctl.cli.printing import print_json, table, urls_and_json
from tnctl.errors import refuse_if

if TYPE_CHECKING:
    from tnctl.training.comparison import RunComparison, RunSummary, Spread

DEFAULT = "runs"
KEYS_SHOWN = 8  # columns of keys; JSON has all
INPUTS = ("slots", "numeric")  # sections of the conf
LONGEST_VALUE = 32  # characters of a value in the table


def run(given: list[str]) -> int:
    """Print the table, or JSON."""
    taken, urls, as_json = urls_and_json("runs", given)
    refuse_if(len(urls) > 1, f"give one folder or URL of runs. Received: {' '.join(urls)}")
    url = urls[0] if urls else DEFAULT
    from tnctl.api import training
    from tnctl.training.comparison import to_json

    comparison = training.runs(url, taken.get("metric"))
    if as_json:
        print_json(to_json(comparison))
    else:
        show(comparison)
    return 0


def show(comparison: "RunComparison") -> None:
    """The tables on the standard output; what is not listed, in lines on standard error."""
    from tnctl.limits import size
    from tnctl.progress import clock, say
    from tnctl.training.comparison import short_names

    keys = keys_in_table(comparison.keys)
    columns = [(split, name) for split, names in comparison.metrics.items() for name in names]
    heads = [f"{split} {name}" for split, name in columns]
    rows = []
    for entry in comparison.runs:
        values = comparison.values.get(entry.name)
        metrics = [getattr(entry, split).get(name) for split, name in columns]
        rows.append(
            [
                entry.name,
                *(in_table(values, key) for key in keys),
                *("-" if value is None else f"{value:.5f}" for value in metrics),
                "-" if entry.seconds is None else clock(entry.seconds),
                "-" if entry.step_milliseconds is None else f"{entry.step_milliseconds:,.1f}",
                "-" if entry.dense_weights is None else f"{entry.dense_weights:,}",
                "-" if entry.rows is None else f"{entry.rows:,}",
                "-" if entry.bytes is None else size(entry.bytes),
                "" if entry.state == "finished" and entry.problem is None else state_of(entry),
            ]
        )
    names = ["run", *short_names(keys), *heads, "time", "ms/step", "dense", "rows", "memory", ""]
    table("", names, rows, left=(0, len(names) - 1))
    if comparison.seeds:
        print()
        others = [key for key in keys if key != "seed"]
        rows = []
        for group in comparison.seeds:
            values = comparison.values[group.runs[0].name]
            spreads = [getattr(group, split).get(name) for split, name in columns]
            seeds = ", ".join(map(str, group.seeds))
            rows.append(
                [seeds, *(in_table(values, key) for key in others), *map(spread_text, spreads)]
            )
        table("", ["over seeds", *short_names(others), *heads], rows)
    if left_out := len(comparison.keys) - len(keys):
        say(f"{left_out:,} more keys differ; --json has all")
    for note in (*comparison.notes(), *comparison.skipped):
        say(note)


def keys_in_table(keys: Sequence[str]) -> list[str]:
    """The keys that the table has, settings of training first.

    Runs on different data have other inputs too, which say no more than data.train does.
    """
    sections = {key: key.partition(".")[0] for key in keys}
    if "data.train" in keys:
        keys = [key for key in keys if sections[key] not in INPUTS]
    return sorted(keys, key=lambda key: sections[key] in ("data", *INPUTS))[:KEYS_SHOWN]


def in_table(values: Mapping[str, Any] | None, key: str) -> str:
    """The value of a key, cut where it is long; of a run without a conf `?`."""
    from tnctl.training.comparison import value_text

    if values is None or key not in values:
        return "?" if values is None else "-"
    text = value_text(values[key])
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def state_of(run: "RunSummary") -> str:
    """The state of a run, with the reason where something is wrong."""
    at = "" if run.state == "finished" or run.step is None else f" at step {run.step:,}"
    return f"{run.state}{at}" if run.problem is None else f"{run.state}{at}: {run.problem}"


def spread_text(spread: "Spread | None") -> str:
    """A mean with its deviation."""
    return "–" if spread is None else f"{spread.mean:.5f} ± {spread.deviation:.5f}"
