"""Warm start: a new run that begins with the weights of a checkpoint of another conf."""

from tnctl.training.warm.warm_start import WarmStart, begin, check

__all__ = ["WarmStart", "begin", "check"]
