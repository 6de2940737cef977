"""A report as a person reads it."""

from typing import Any

from tnctl import files, progress
from tnctl.training.ablation import Ablation
from tnctl.training.run import PAGE, REPORT

NONE = "–"


def report(output: str, content: dict[str, Any]) -> None:
    """The figures that matter, and where the rest is."""
    rows: list[tuple[str, str]] = []
    for key, name in (("auc", "AUC"), ("gauc", "GAUC"), ("reference_auc", "AUC of the reference"),
                      ("logloss", "logloss"), ("mse", "MSE")):  # fmt: skip
        if content.get(key) is not None and not (key == "mse" and "logloss" in content):
            split = f" ({content['split']})" if not rows else ""
            rows.append((f"{name}{split}", f"{content[key]:.5f}"))
    for head, figures in content.get("heads", {}).items():
        key = "auc" if "auc" in figures else "mse"
        rows.append((f"{key.upper()} of {head}", f"{figures[key]:.5f}"))
    best = content.get("best")
    if best is not None and len(content["evaluations"]) > 1:
        kept = ", which is kept" if best["kept"] else ""
        shown = f"{best['value']:.5f} at step {best['step']:,}{kept}"
        rows.append((f"best {best['monitor']} on validation", shown))
    if days := content.get("days"):
        rows.append(("days", f"{len(days):,}, the last trained {days[-1]['day']}"))
        before = next((one for one in reversed(days) if one["before"] is not None), None)
        if before is not None:
            key = "auc" if "auc" in before["before"] else "mse"
            name = f"{key.upper()} of {before['day']} before it was trained"
            rows.append((name, f"{before['before'][key]:.5f}"))
    for name, table in content["tables"].items():
        rows.append((f"rows of {name}", f"{table['rows']:,} ({progress.size(table['bytes'])})"))
    rows.append(("dense weights", f"{content['dense_weights']:,}"))
    rows.append(("examples/s while training", f"{content['timing']['examples_per_second']:,.0f}"))
    rows.append(("checkpoint", files.join(output, content["checkpoint"])))
    rows.append(("report", files.join(output, REPORT)))
    rows.append(("page", files.join(output, PAGE)))
    progress.table("", ("trained", ""), rows)


def ablation(found: Ablation) -> None:
    """What each input is worth beside what it costs, the dearest first."""
    names = ("input", "kind", f"{found.metric} without", f"{found.metric} lost", "rows", "memory")
    rows = [
        (
            one.name,
            one.kind,
            f"{one.metric:.5f}",
            f"{one.loss:+.5f}",
            NONE if one.rows is None else f"{one.rows:,}",
            NONE if one.bytes is None else progress.size(one.bytes),
        )
        for one in found.inputs
    ]
    whole = f"{found.metric} {found.whole:.5f} on {found.examples:,} examples of data.{found.split}"
    progress.table(whole, names, rows)
