"""Boosted trees on the data of a run, beside its recipe in the report: `baseline=true`."""

from tnctl.training.baseline.baseline_file import BaselineFile
from tnctl.training.baseline.baseline_run import baseline_of, check

__all__ = ["BaselineFile", "baseline_of", "check"]
