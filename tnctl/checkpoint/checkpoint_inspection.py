"""What is in a checkpoint: counts, norms, ages, shows, lineage. Rows are streamed, once."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.checkpoint import dense_file, rows
from tnctl.checkpoint.chain import Checkpoint
from tnctl.checkpoint.document import Table
from tnctl.documents import plain
from tnctl.progress import Display

LARGEST = 10
EXPONENTS = 2200  # all of float64's, from -1074 on
LEAST = -1100


def inspect(checkpoint: Checkpoint) -> dict[str, Any]:
    """All that `tnctl checkpoint inspect` shows, as JSON. Raises Failure where it is damaged."""
    content, chain = checkpoint.manifest, checkpoint.chain()
    tables: list[dict[str, Any]] = []
    with Display("inspect", content.rows) as display:
        for table in content.tables:
            tables.append(inspect_table(checkpoint, table, display, tables))
    report: dict[str, Any] = plain(
        {
            "folder": checkpoint.folder,
            "step": checkpoint.step,
            "days": checkpoint.clock.days,
            "kind": content.kind,
            "chain": [link.folder for link in chain],
            "finished": content.finished,
            "bytes": content.total_bytes,
            "chain_bytes": sum(link.manifest.total_bytes for link in chain),
            "position": content.position,
            "recipe": content.recipe.name,
            "conf_sha256": content.files[content.conf].sha256,
            "sha256": content.sha256,
            "tnctl": content.tnctl,
            "tables": tables,
            "dense": inspect_dense(checkpoint),
            # Of these weights, empty where they were not evaluated.
            "metrics": validation_figures(checkpoint),
            # `step` is the best of them, if it is less.
            "steps_trained": content.steps_trained,
            "recalibration": content.recalibration or {},
        }
    )
    return report


def inspect_table(
    checkpoint: Checkpoint, table: Table, display: Display, earlier: list[dict[str, Any]]
) -> dict[str, Any]:
    """One pass over the rows of a table, all links of its chain merged.

    `earlier` are the tables that were read before.
    """
    done = sum(of_table["rows"] for of_table in earlier)
    removed = sum(len(removed) for removed in rows.tombstones(checkpoint, table.name))
    findings = RowFigures(checkpoint, table)
    for records in rows.stream(checkpoint, table.name):
        findings.add(records)
        read = done + int(findings.counts.sum())
        display.update(read, f"{read:,} rows")
    return {
        "name": table.name,
        "rows": int(findings.counts.sum()),
        "record_bytes": table.record_dtype.itemsize,
        "files": sum(len(link.table(table.name).files) for link in checkpoint.chain()),
        "segments": table.segments,
        "groups": findings.groups(),
        **findings.histograms(),
        "largest": findings.largest,
        "not_finite": findings.not_finite,  # rows with a weight or state that is NaN or infinite
        "not_finite_first": findings.not_finite_first,
        "tombstones": removed,
        "sketch_bytes": table.sketch_bytes,
    }


class RowFigures:
    """Sums over the rows of a table, by the groups' numbers."""

    def __init__(self, checkpoint: Checkpoint, table: Table) -> None:
        self._table, self._clock = table, checkpoint.clock
        self._names = {group.number: group.name for group in table.groups}
        self._most = max(self._names) + 1
        self.counts = np.zeros(self._most, np.int64)
        self._norms, self._most_norms, self._shows, self._clicks = np.zeros((4, self._most))
        self._histograms: dict[str, NDArray[np.int64]] = {}
        self.largest: list[dict[str, Any]] = []
        self.not_finite = 0
        self.not_finite_first: dict[str, Any] | None = None

    def add(self, records: NDArray[Any]) -> None:
        """Take records [n] of the table's dtype into the sums."""
        table, clock, numbers = self._table, self._clock, records["group"]
        outputs = {segment.output: segment.name for segment in table.segments}
        # The norms are of the embedding, or else of the linear weight.
        weights = rows.as_read(records, table, clock.step)[outputs.get("concat") or outputs["sum"]]
        norms, finite = lengths(weights), all_finite(records)
        norms[~finite] = 0
        self._count("norms", norms)
        self._count("age_steps", clock.step - records["changed"].astype(np.float64))
        if clock.days:
            self._count("age_days", rows.unseen_days(records["changed"], clock.days))
        self.counts += np.bincount(numbers, minlength=self._most)
        self._norms += np.bincount(numbers, norms, self._most)
        np.maximum.at(self._most_norms, numbers, norms)
        if table.life.shows:
            shows, clicks = rows.shows_as_read(records, table, clock.days)
            self._count("shows", shows)
            self._shows += np.bincount(numbers, shows, self._most)
            self._clicks += np.bincount(numbers, clicks, self._most)
        first = np.argsort(-norms, kind="stable")[:LARGEST].tolist()
        candidates = [*self.largest, *(self._large(records[at], float(norms[at])) for at in first)]
        self.largest = sorted(candidates, key=lambda row: -row["norm"])[:LARGEST]
        self.not_finite += int((~finite).sum())
        if self.not_finite_first is None and not finite.all():
            self.not_finite_first = self._large(records[np.argmin(finite)], None)

    def _large(self, record: Any, norm: float | None) -> dict[str, Any]:
        """A row and its norm."""
        return {"id": int(record["id"]), "group": self._names[int(record["group"])], "norm": norm}

    def _count(self, name: str, values: NDArray[Any]) -> None:
        """Count numbers [n] from 0 on: zeros, then those in [2^k, 2^(k + 1)) for every k."""
        values = values[np.isfinite(values) & (values >= 0)].astype(np.float64)
        bins = np.where(values > 0, np.frexp(values)[1] - LEAST, 0)
        counts = np.bincount(bins, minlength=EXPONENTS + 1)
        self._histograms[name] = self._histograms.get(name, 0) + counts

    def groups(self) -> list[dict[str, Any]]:
        """The figures of each share group; shows and clicks are decayed, of all its rows."""
        has_shows = self._table.life.shows and self.counts.any()
        return [
            {
                "name": group.name,
                "rows": int(self.counts[group.number]),
                "admitted": group.admitted,  # ids that ever got a row
                "waiting": group.waiting,  # about how many ids are counted and have no row yet
                "evicted": group.evicted,
                "mean_norm": self._norms[group.number] / max(self.counts[group.number], 1),
                "most_norm": float(self._most_norms[group.number]),
                "shows": float(self._shows[group.number]) if has_shows else None,
                "clicks": float(self._clicks[group.number]) if has_shows else None,
            }
            for group in self._table.groups
        ]

    def histograms(self) -> dict[str, Any]:
        """The bins that have something in them, ascending; that of zero is from 0 below 0."""
        life, days = self._table.life, self._clock.days
        known = {"norms": True, "shows": life.shows, "age_steps": True, "age_days": bool(days)}
        histograms: dict[str, Any] = {}
        for name, is_known in known.items():
            counts = self._histograms.get(name, np.zeros(0, np.int64))
            bins = np.flatnonzero(counts).tolist()
            edges = [math.ldexp(1.0, k + LEAST - 1) if k else 0.0 for k in bins]
            histograms[name] = None
            if is_known:
                histograms[name] = [
                    {"from": edge, "below": 2 * edge, "rows": int(counts[k])}
                    for edge, k in zip(edges, bins, strict=True)
                ]
        return histograms


def lengths(weights: NDArray[Any]) -> NDArray[np.float64]:
    """The L2 norm of each row of weights [n, width], float64 [n]."""
    exact = weights.astype(np.float64)
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", exact, exact))
    return norms


def all_finite(records: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether every float of each of n records is finite, bool [n]."""
    finite = np.ones(len(records), bool)
    for name in records.dtype.names or ():
        values = records[name]
        if values.dtype.kind == "f":
            finite &= np.isfinite(values).reshape(len(records), -1).all(1)
    return finite


def inspect_dense(checkpoint: Checkpoint) -> dict[str, Any]:
    """The dense weights: how many, their norm by variable, and what is not finite."""
    described = checkpoint.manifest.dense
    parts = dense_file.variables(checkpoint.folder, checkpoint.manifest)
    arrays = [array for part in parts for array in part.values()]
    return {
        "weights": sum(weights.size for weights in parts[0].values()),
        "bytes": sum(array.nbytes for array in arrays),
        "step": described.step,
        "optimizer": described.optimizer,
        "states": described.states,
        "variables": [
            {
                "name": name,
                "shape": weights.shape,
                "norm": float(np.linalg.norm(weights.astype(np.float64))),
            }
            for name, weights in parts[0].items()
        ],
        # Weights, states and moving statistics that are NaN or infinite.
        "not_finite": sum(int((~np.isfinite(array)).sum()) for array in arrays),
    }


def validation_figures(checkpoint: Checkpoint) -> dict[str, float]:
    """The metrics of the checkpoint's weights on data.validation, by dotted names."""
    return dict(numbers_in(checkpoint.manifest.validation or {}, "validation."))


def numbers_in(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested mappings, by dotted keys."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from numbers_in(value, f"{path}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path + key, value
