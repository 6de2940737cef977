"""Boosted trees on the data of a run, beside its recipe in the report: `baseline=true`."""
