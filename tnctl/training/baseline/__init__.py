"""Boosted trees on the data of a run, beside its recipe in the report: `baseline=true`."""

from tnctl.training.baseline.baseline_run import baseline_of, check

__all__ = ["baseline_of", "check"]
