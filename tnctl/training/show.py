"""A report as a person reads it."""

from typing import Any

from tnctl import files, progress
from tnctl.training.run import REPORT


def report(output: str, content: dict[str, Any]) -> None:
    """The figures that matter, and where the rest is."""
    rows = []
    if content.get("auc") is not None:
        rows.append((f"AUC ({content['split']})", f"{content['auc']:.5f}"))
    if "reference_auc" in content:
        rows.append(("AUC of the reference", f"{content['reference_auc']:.5f}"))
    if content.get("logloss") is not None:
        rows.append(("logloss", f"{content['logloss']:.5f}"))
    for name, table in content["tables"].items():
        rows.append((f"rows of {name}", f"{table['rows']:,} ({table['bytes'] / 2**20:,.0f} MiB)"))
    rows.append(("dense weights", f"{content['dense_weights']:,}"))
    rows.append(("examples/s while training", f"{content['timing']['examples_per_second']:,.0f}"))
    rows.append(("checkpoint", files.join(output, content["checkpoint"])))
    rows.append(("report", files.join(output, REPORT)))
    progress.table("", ("trained", ""), rows)
